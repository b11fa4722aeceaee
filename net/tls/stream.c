/*
 * The transport of a connection with TLS. Data to send is collected in the out buffer, at its final place, and
 * encrypted there: one copy, from as many pieces as the caller has. Received data is decrypted out of the in buffer to
 * where the caller wants it, if a whole record and the byte after it fit there, and in place otherwise.
 */
#include "net/tls/stream.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <mbedtls/hkdf.h>
#include <mbedtls/ssl.h>
#include <sodium.h>

#include "base/copy.h"
#include "base/profile.h"
#include "net/connection.h"

/* --- Records --- */

/*
 * TLS 1.3 records alone, without a connection: pure functions, so that published vectors can check them.
 *
 * The filter applies the rules of RFC 8446, 5 and 5.1, for the fields of a record's header. mbedTLS drops
 * ChangeCipherSpec records however many come, and so never checks whether their time is over.
 */

static const uint64_t MOST_RECORDS = (uint64_t)1 << 24;

static const mbedtls_md_info_t *hash_of(enum record_cipher cipher)
{
    return mbedtls_md_info_from_type(cipher == RECORD_AES_256_GCM_SHA384 ? MBEDTLS_MD_SHA384 : MBEDTLS_MD_SHA256);
}

size_t record_secret_size(enum record_cipher cipher)
{
    return mbedtls_md_get_size(hash_of(cipher));
}

bool record_expand_label(enum record_cipher cipher, const uint8_t *secret, const char *label, uint8_t *bytes,
                         size_t size)
{
    static const char prefix[] = "tls13 ";
    uint8_t info[64] = {(uint8_t)(size >> 8), (uint8_t)size};
    size_t length = strlen(label), used = 2;
    assert(size <= 64 && length <= 32);
    info[used++] = (uint8_t)(sizeof prefix - 1 + length);
    memcpy(info + used, prefix, sizeof prefix - 1);
    used += sizeof prefix - 1;
    memcpy(info + used, label, length);
    used += length;
    info[used++] = 0; /* no context */
    return mbedtls_hkdf_expand(hash_of(cipher), secret, record_secret_size(cipher), info, used, bytes, size) == 0;
}

static bool derive(struct record_key *key)
{
    uint8_t bytes[32];
    bool derived = record_expand_label(key->cipher, key->secret, "key", bytes, sizeof bytes) &&
                   record_expand_label(key->cipher, key->secret, "iv", key->iv, sizeof key->iv);
    key->sequence = 0;
    if (derived && key->cipher == RECORD_AES_256_GCM_SHA384) {
        gcm_key_set(&key->aes, bytes, gcm_fastest());
    } else if (derived) {
        memcpy(key->chacha, bytes, sizeof key->chacha);
    }
    sodium_memzero(bytes, sizeof bytes);
    return derived;
}

bool record_key_set(struct record_key *key, enum record_cipher cipher, const uint8_t *secret)
{
    key->cipher = cipher;
    key->limit = MOST_RECORDS;
    memcpy(key->secret, secret, record_secret_size(cipher));
    return derive(key);
}

bool record_key_next(struct record_key *key)
{
    uint8_t secret[RECORD_MOST_SECRET];
    bool derived =
        record_expand_label(key->cipher, key->secret, "traffic upd", secret, record_secret_size(key->cipher));
    if (derived) {
        memcpy(key->secret, secret, record_secret_size(key->cipher));
    }
    sodium_memzero(secret, sizeof secret);
    return derived && derive(key);
}

bool record_key_is_spent(const struct record_key *key)
{
    return key->sequence >= key->limit;
}

/* The next record's number, added to the iv (5.3). */
static void make_nonce(struct record_key *key, uint8_t nonce[12])
{
    uint64_t sequence = key->sequence++;
    memcpy(nonce, key->iv, sizeof key->iv);
    for (int i = 0; i < 8; i++) {
        nonce[11 - i] ^= (uint8_t)(sequence >> 8 * i);
    }
}

size_t record_seal(struct record_key *key, uint8_t type, uint8_t *record, size_t size)
{
    uint8_t nonce[12], *plain = record + RECORD_HEADER;
    size_t sealed = size + 1 + RECORD_TAG;
    assert(size <= RECORD_CONTENT);
    record[0] = RECORD_DATA; /* whatever it contains, it looks like TLS 1.2 data */
    record[1] = 3;
    record[2] = 3;
    record[3] = (uint8_t)(sealed >> 8);
    record[4] = (uint8_t)sealed;
    plain[size] = type;
    make_nonce(key, nonce);
    if (key->cipher == RECORD_AES_256_GCM_SHA384) {
        gcm_seal(&key->aes, nonce, record, RECORD_HEADER, plain, size + 1, plain, plain + size + 1);
    } else {
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(plain, plain + size + 1, NULL, plain, size + 1, record,
                                                           RECORD_HEADER, NULL, nonce, key->chacha);
    }
    return RECORD_HEADER + sealed;
}

ptrdiff_t record_open(struct record_key *key, const uint8_t *record, size_t sealed, uint8_t *plain, uint8_t *type)
{
    uint8_t nonce[12];
    const uint8_t *from = record + RECORD_HEADER;
    size_t size = sealed - RECORD_TAG;
    assert(sealed >= RECORD_TAG);
    if (key->sequence == UINT64_MAX) { /* no number may repeat; keys should have changed long before */
        memset(plain, 0, size);
        return RECORD_FORGED;
    }
    make_nonce(key, nonce);
    bool is_peers = key->cipher == RECORD_AES_256_GCM_SHA384
                        ? gcm_open(&key->aes, nonce, record, RECORD_HEADER, from, size, from + size, plain)
                        : crypto_aead_chacha20poly1305_ietf_decrypt_detached(
                              plain, NULL, from, size, from + size, record, RECORD_HEADER, nonce, key->chacha) == 0;
    if (!is_peers) {
        memset(plain, 0, size);
        return RECORD_FORGED;
    }
    while (size > 0 && plain[size - 1] == 0) { /* padding */
        size--;
    }
    if (size == 0) {
        return RECORD_WITHOUT_TYPE;
    }
    *type = plain[size - 1];
    return (ptrdiff_t)size - 1;
}

/* --- The filter --- */

static enum record_verdict refuse_record(uint8_t code, const char *what, uint8_t *alert, const char **why)
{
    *alert = code;
    *why = what;
    return RECORD_REFUSED;
}

/* Why a record of this type is refused; NULL: it is not. */
static const char *misplaced(const struct record_filter *filter, uint8_t type, size_t length, bool sealed)
{
    switch (type) {
    case RECORD_CHANGE_CIPHER_SPEC:
        return !filter->has_hello   ? "a ChangeCipherSpec before its hello"
               : filter->has_change ? "more than one ChangeCipherSpec"
               : length != 1        ? "a ChangeCipherSpec of the wrong size"
                                    : NULL;
    case RECORD_HANDSHAKE:
        return sealed ? "a record that is not encrypted" : NULL;
    case RECORD_ALERT:
        return NULL;
    case RECORD_DATA:
        return sealed ? NULL : "data before the handshake";
    default:
        return "a record of an unknown type";
    }
}

enum record_verdict record_filter_check(struct record_filter *filter, const uint8_t *bytes, size_t size, bool sealed,
                                        uint8_t *alert, const char **why)
{
    if (filter->left > 0) {
        return RECORD_PASSES;
    }
    if (size < RECORD_HEADER) {
        return RECORD_INCOMPLETE;
    }
    uint8_t type = bytes[0];
    size_t length = (size_t)bytes[3] << 8 | bytes[4];
    const char *misplacement = misplaced(filter, type, length, sealed);
    if (misplacement) {
        return refuse_record(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, misplacement, alert, why);
    }
    if (length > (type == RECORD_DATA ? RECORD_MOST_SEALED : RECORD_CONTENT)) {
        return refuse_record(MBEDTLS_SSL_ALERT_MSG_RECORD_OVERFLOW, "a record that is too large", alert, why);
    }
    if (length == 0) {
        return refuse_record(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an empty record", alert, why);
    }
    if (type == RECORD_DATA && length < RECORD_TAG) {
        return refuse_record(MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC, "a record that is too small", alert, why);
    }
    if (type == RECORD_ALERT && sealed) {
        return RECORD_PLAIN_ALERT;
    }
    if (filter->passed > CONNECTION_HANDSHAKE_BYTES) {
        return refuse_record(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an endless handshake", alert, why);
    }
    filter->type = type;
    filter->left = RECORD_HEADER + length;
    filter->passed += filter->left;
    filter->has_hello = filter->has_hello || type == RECORD_HANDSHAKE;
    filter->has_change = filter->has_change || type == RECORD_CHANGE_CIPHER_SPEC;
    return RECORD_PASSES;
}

void record_filter_consume(struct record_filter *filter, size_t size)
{
    assert(size <= filter->left);
    filter->left -= size;
}

enum {
    MOST_IDLE = 32, /* records without data in a row */
    HANDSHAKE_HEADER = 4,
    HANDSHAKE_NEW_SESSION_TICKET = 4,
    HANDSHAKE_KEY_UPDATE = 24,
};

const char *tls_describe_alert(int alert)
{
    switch (alert) {
    case MBEDTLS_SSL_ALERT_MSG_UNKNOWN_CA:
    case MBEDTLS_SSL_ALERT_MSG_BAD_CERT:
        return "it does not accept our key: do both sides have the same fleet key, or keys of the same authority?";
    case MBEDTLS_SSL_ALERT_MSG_CERT_EXPIRED:
        return "it says that our certificate is expired or not valid yet: is its clock right, and ours?";
    case MBEDTLS_SSL_ALERT_MSG_CERT_REVOKED:
        return "our key was revoked: ask whoever issues keys for a new one, and start this member with it (its log "
               "says "
               "by whom and why)";
    case MBEDTLS_SSL_ALERT_MSG_CERT_UNKNOWN:
    case MBEDTLS_SSL_ALERT_MSG_ACCESS_DENIED:
        return "it does not accept our certificate for this role";
    case TLS_ALERT_CERTIFICATE_REQUIRED:
        return "it requires a key from us";
    case MBEDTLS_SSL_ALERT_MSG_PROTOCOL_VERSION:
        return "it does not speak TLS 1.3";
    case MBEDTLS_SSL_ALERT_MSG_INSUFFICIENT_SECURITY:
        return "it speaks plain text: was it started with --insecure?";
    default:
        return NULL;
    }
}

/* --- Out --- */

static uint8_t *out_record(struct connection *connection)
{
    return connection->out + connection->out_end;
}

static void seal(struct connection *connection, uint8_t type, size_t size)
{
    uint64_t begin_ns = profile_begin_ns();
    connection->out_end += record_seal(&connection->tls->out, type, out_record(connection), size);
    profile_note_cipher(begin_ns);
}

static ptrdiff_t fail_keys(struct connection *connection, struct error *error)
{
    return transport_fail(connection, CONNECTION_BROKEN, error, "out of memory for new keys of the connection with %s",
                          connection->name);
}

/* Our sending keys have reached their limit, or the peer has requested new ones. */
static bool update_keys(struct connection *connection)
{
    static const uint8_t message[] = {HANDSHAKE_KEY_UPDATE, 0, 0, 1, 0 /* the peer need not change its own */};
    struct tls *tls = connection->tls;
    memcpy(out_record(connection) + RECORD_HEADER, message, sizeof message);
    seal(connection, RECORD_HANDSHAKE, sizeof message);
    tls->update_wanted = false;
    return record_key_next(&tls->out);
}

ptrdiff_t tls_write(struct connection *connection, const void *bytes, size_t size, struct error *error)
{
    struct tls *tls = connection->tls;
    if (tls->filled == 0 && (tls->update_wanted || record_key_is_spent(&tls->out)) && !update_keys(connection)) {
        return fail_keys(connection, error);
    }
    size_t room = RECORD_CONTENT - tls->filled;
    size_t taken = size < room ? size : room;
    assert(connection->out_end + RECORD_SEALED <= CONNECTION_BUFFER);
    copy_bytes(out_record(connection) + RECORD_HEADER + tls->filled, bytes, taken);
    tls->filled += taken;
    if (tls->filled == RECORD_CONTENT) {
        tls->filled = 0;
        seal(connection, RECORD_DATA, RECORD_CONTENT);
    }
    return (ptrdiff_t)taken;
}

bool tls_finish(struct connection *connection, struct error *error)
{
    struct tls *tls = connection->tls;
    size_t filled = tls->filled;
    (void)error;
    tls->filled = 0;
    if (filled > 0) {
        seal(connection, RECORD_DATA, filled);
    }
    return true;
}

void tls_put_alert(struct connection *connection, uint8_t level, uint8_t alert)
{
    connection->tls->filled = 0; /* an unfinished record is lost with the connection */
    if (CONNECTION_BUFFER - connection->out_end >= ALERT_SEALED) {
        uint8_t *content = out_record(connection) + RECORD_HEADER;
        content[0] = level;
        content[1] = alert;
        seal(connection, RECORD_ALERT, 2);
    }
}

/* --- In --- */

/* The peer violated the protocol: sends it the alert, if that needs no waiting. */
static ptrdiff_t refuse(struct connection *connection, uint8_t alert, const char *what, struct error *error)
{
    tls_put_alert(connection, MBEDTLS_SSL_ALERT_LEVEL_FATAL, alert);
    transport_send_now(connection, connection->out + connection->out_start,
                       connection->out_end - connection->out_start);
    return transport_fail(connection, CONNECTION_BROKEN, error, "TLS with %s failed: %s", connection->name, what);
}

/* TRANSPORT_WANTS: nothing that ends the connection. */
static ptrdiff_t take_alert(struct connection *connection, const uint8_t *content, size_t size, struct error *error)
{
    if (size == 0) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an empty alert", error);
    }
    if (size != 2) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR, "an alert of the wrong size", error);
    }
    if (content[1] == MBEDTLS_SSL_ALERT_MSG_CLOSE_NOTIFY) {
        connection->tls->ended = true;
        return TRANSPORT_END;
    }
    if (content[1] == MBEDTLS_SSL_ALERT_MSG_USER_CANCELED) {
        return TRANSPORT_WANTS; /* the alert comes first, then close_notify */
    }
    const char *meaning = tls_describe_alert(content[1]);
    return meaning
               ? transport_fail(connection, CONNECTION_BROKEN, error, "%s refused us: %s", connection->name, meaning)
               : transport_fail(connection, CONNECTION_BROKEN, error, "%s refused us: TLS alert %u", connection->name,
                                content[1]);
}

/* The handshake message received, or the part of it that is examined; `more`: bytes follow it in its record. */
static ptrdiff_t take_message(struct connection *connection, bool more, struct error *error)
{
    struct tls *tls = connection->tls;
    const uint8_t *message = tls->message;
    size_t length = (size_t)message[1] << 16 | (size_t)message[2] << 8 | message[3];
    if (message[0] == HANDSHAKE_NEW_SESSION_TICKET && !tls->server) {
        tls->message_left = length;
        tls->message_size = 0;
        return TRANSPORT_WANTS;
    }
    if (message[0] != HANDSHAKE_KEY_UPDATE) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a handshake message out of place", error);
    }
    if (length != 1) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR, "a key update of the wrong size", error);
    }
    if (tls->message_size < HANDSHAKE_HEADER + length) {
        return TRANSPORT_WANTS;
    }
    if (message[HANDSHAKE_HEADER] > 1) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_ILLEGAL_PARAMETER, "a key update that asks for nothing known",
                      error);
    }
    if (more) { /* data after it would be under the new keys: RFC 8446, 5.1 */
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a key update amid a record", error);
    }
    tls->message_size = 0;
    tls->update_wanted = tls->update_wanted || message[HANDSHAKE_HEADER] == 1;
    return record_key_next(&tls->in) ? TRANSPORT_WANTS : fail_keys(connection, error);
}

/*
 * After the handshake: session tickets, which are not used, and new keys. Messages may come in pieces, and several in a
 * record.
 */
static ptrdiff_t take_handshake(struct connection *connection, const uint8_t *content, size_t size, struct error *error)
{
    struct tls *tls = connection->tls;
    if (size == 0) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an empty handshake record", error);
    }
    while (size > 0) {
        size_t passed = tls->message_left < size ? tls->message_left : size;
        tls->message_left -= passed;
        content += passed;
        size -= passed;
        if (size == 0) {
            break;
        }
        tls->message[tls->message_size++] = *content++;
        size--;
        if (tls->message_size >= HANDSHAKE_HEADER && take_message(connection, size > 0, error) == TRANSPORT_FAILED) {
            return TRANSPORT_FAILED;
        }
    }
    return TRANSPORT_WANTS;
}

/*
 * Bytes after the header of a record that has arrived completely; or a transport_result, possibly TRANSPORT_WANTS for
 * ever.
 */
static ptrdiff_t await_record(struct connection *connection, struct error *error)
{
    for (;;) {
        const uint8_t *record = connection->in + connection->in_start;
        size_t there = connection->in_end - connection->in_start;
        size_t sealed = there < RECORD_HEADER ? 0 : (size_t)record[3] << 8 | record[4];
        if (there >= RECORD_HEADER && record[0] != RECORD_DATA) {
            return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a record that is not encrypted",
                          error);
        }
        if (sealed > RECORD_MOST_SEALED) {
            return refuse(connection, MBEDTLS_SSL_ALERT_MSG_RECORD_OVERFLOW, "a record that is too large", error);
        }
        if (there >= RECORD_HEADER && sealed < RECORD_TAG) {
            return refuse(connection, MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC, "a record that is too small", error);
        }
        if (there >= RECORD_HEADER && there - RECORD_HEADER >= sealed) {
            return (ptrdiff_t)sealed;
        }
        ptrdiff_t got = transport_receive(connection, NULL, 0, error);
        if (got == TRANSPORT_END) {
            connection->tls->ended = true; /* no close_notify, as from a killed process: frames carry their length */
        }
        if (got <= 0) {
            return got;
        }
    }
}

/* Handles a record without data; TRANSPORT_WANTS: nothing that ends the connection. */
static ptrdiff_t take_other(struct connection *connection, uint8_t type, const uint8_t *content, size_t size,
                            struct error *error)
{
    const struct tls *tls = connection->tls;
    if (type != RECORD_HANDSHAKE && (tls->message_size > 0 || tls->message_left > 0)) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a record amid a handshake message", error);
    }
    switch (type) {
    case RECORD_DATA:
        return TRANSPORT_WANTS;
    case RECORD_ALERT:
        return take_alert(connection, content, size, error);
    case RECORD_HANDSHAKE:
        return take_handshake(connection, content, size, error);
    default:
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a record of an unknown type", error);
    }
}

/*
 * Opens the next record, with `bytes` of `size` as the place for its content. Returns the bytes of data that are there
 * now, 0 if they are in the in buffer, or a transport_result of -1 and below.
 */
static ptrdiff_t take_record(struct connection *connection, size_t sealed, uint8_t *bytes, size_t size,
                             struct error *error)
{
    struct tls *tls = connection->tls;
    uint8_t *record = connection->in + connection->in_start, type = 0;
    bool straight = size > 0 && size >= sealed - RECORD_TAG;
    uint8_t *plain = straight ? bytes : record + RECORD_HEADER;
    uint64_t begin_ns = profile_begin_ns();
    ptrdiff_t content = record_open(&tls->in, record, sealed, plain, &type);
    profile_note_cipher(begin_ns);
    size_t plain_start = connection->in_start + RECORD_HEADER;
    connection->in_start += RECORD_HEADER + sealed;
    if (content == RECORD_WITHOUT_TYPE) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "a record of padding only", error);
    }
    if (content < 0) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC, "a record was altered in transit", error);
    }
    ptrdiff_t other = take_other(connection, type, plain, (size_t)content, error);
    if (other != TRANSPORT_WANTS) {
        return other;
    }
    tls->idle = type == RECORD_DATA && content > 0 ? 0 : tls->idle + 1;
    if (tls->idle > MOST_IDLE) {
        return refuse(connection, MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "records without data, one after another",
                      error);
    }
    if (tls->idle > 0) {
        return TRANSPORT_WANTS;
    }
    if (!straight) {
        tls->plain_start = plain_start;
        tls->plain_end = plain_start + (size_t)content;
        return 0;
    }
    return content;
}

ptrdiff_t tls_read(struct connection *connection, void *bytes, size_t size, struct error *error)
{
    struct tls *tls = connection->tls;
    for (;;) {
        size_t waiting = tls->plain_end - tls->plain_start;
        if (waiting > 0) {
            size_t taken = waiting < size ? waiting : size;
            copy_bytes(bytes, connection->in + tls->plain_start, taken);
            tls->plain_start += taken;
            return taken > 0 ? (ptrdiff_t)taken : TRANSPORT_WANTS; /* a request for no data: what has arrived stays */
        }
        if (tls->ended) {
            return TRANSPORT_END;
        }
        ptrdiff_t sealed = await_record(connection, error);
        if (sealed <= 0) {
            return sealed;
        }
        ptrdiff_t got = take_record(connection, (size_t)sealed, bytes, size, error);
        if (got > 0 || got == TRANSPORT_FAILED || (got == TRANSPORT_END && tls->ended)) {
            return got;
        }
    }
}

size_t tls_pending(const struct connection *connection, const uint8_t **bytes)
{
    if (bytes) {
        *bytes = connection->in + connection->tls->plain_start;
    }
    return connection->tls->plain_end - connection->tls->plain_start;
}

size_t tls_gathered(const struct connection *connection)
{
    return connection->tls->filled;
}

void tls_close(struct connection *connection, bool in_order)
{
    struct tls *tls = connection->tls;
    if (!tls) {
        return; /* memory ran out */
    }
    if (in_order && tls->established) {
        tls_put_alert(connection, MBEDTLS_SSL_ALERT_LEVEL_WARNING, MBEDTLS_SSL_ALERT_MSG_CLOSE_NOTIFY);
    }
    sodium_memzero(tls, sizeof *tls);
    free(tls);
    connection->tls = NULL;
}

const char *tls_cipher(const struct connection *connection)
{
    return connection->tls->out.cipher == RECORD_AES_256_GCM_SHA384 ? "TLS1-3-AES-256-GCM-SHA384"
                                                                    : "TLS1-3-CHACHA20-POLY1305-SHA256";
}
