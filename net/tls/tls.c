/*
 * The handshake of TLS 1.3 with mbedTLS, both sides with certificates. After it records are handled by stream.c.
 *
 * mbedTLS never waits here: it is given what has arrived and asks for more (MBEDTLS_ERR_SSL_WANT_READ), and what it
 * sends goes into the connection's out buffer, which always has room for a record. connection.c does the waiting.
 *
 * With a fleet key both sides present the same certificate and accept exactly it, or the second one that is trusted:
 * names and dates don't matter. With an authority, mbedTLS checks signatures and dates, and the common name must be the
 * expected member's.
 *
 * A peer whose certificate is not accepted must learn why. Verification is optional for mbedTLS, which finishes the
 * handshake (which proves possession of the key, whatever key that is); then check_certificate() decides before a byte
 * of user data is read or sent.
 *
 * Alerts are ours, too: mbedTLS has none for a record that it can't open, and sends those in mid-handshake under keys
 * that the other side does not read with at that point. So it is kept from sending any, and put_alert() does.
 */
#include "net/tls/tls.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mbedtls/error.h>
#include <mbedtls/oid.h>
#include <psa/crypto.h>
#include <sodium.h>

#include "base/clock.h"
#include "net/admission.h"
#include "net/transport.h"
#include "net/tls/gcm.h"
#include "net/tls/stream.h"

/* State that only the handshake needs. */
struct handshake {
    mbedtls_ssl_context ssl;
    mbedtls_ssl_config config; /* a copy of the credentials', which takes this handshake's random numbers */
    bool has_token;            /* it took the first ones: the token in the ClientHello */
    const struct credentials *credentials;
    struct connection *connection;
    struct member expected;
    bool server;
    bool failed; /* transport_receive failed: see `failure` */
    struct error failure;
    char verify_error[512]; /* why the peer's certificate was not accepted; "" if it was */
    struct record_filter filter;
    uint64_t sent;              /* our records under the handshake keys */
    const char *protocol_error; /* a violation of the protocol that mbedTLS did not detect; NULL: none */
    uint8_t alert;              /* the alert for it; 0: none */
    bool stale_key_data;        /* bytes followed the last message before a change of keys, under the old ones */
    int peer_alert;             /* if mbedTLS did not see it; 0: none */
    enum record_cipher cipher;  /* of the secrets */
    /* For the handshake [0] and what follows it [1], for the client [0] and the server [1] as senders. */
    bool has_secret[2][2];
    uint8_t secrets[2][2][RECORD_MOST_SECRET];
};

int tls_random(void *context, unsigned char *bytes, size_t size)
{
    (void)context;
    randombytes_buf(bytes, size);
    return 0;
}

/* mbedTLS's other interface for random numbers, declared in its headers (MBEDTLS_PSA_CRYPTO_EXTERNAL_RNG). */
psa_status_t mbedtls_psa_external_get_random(mbedtls_psa_external_random_context_t *context, uint8_t *output,
                                             size_t output_size, size_t *output_length)
{
    (void)context;
    randombytes_buf(output, output_size);
    *output_length = output_size;
    return PSA_SUCCESS;
}

static bool started;

static void start(void)
{
    started = sodium_init() >= 0 && psa_crypto_init() == PSA_SUCCESS;
}

bool tls_start(struct error *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
    return started ||
           error_set(error, "can't start cryptography: the system has no random numbers or is out of memory");
}

void tls_describe(int result, char text[128])
{
    mbedtls_strerror(result, text, 128);
}

bool tls_common_name(const mbedtls_x509_crt *certificate, char *name, size_t size)
{
    for (const mbedtls_x509_name *part = &certificate->subject; part; part = part->next) {
        if (MBEDTLS_OID_CMP(MBEDTLS_OID_AT_CN, &part->oid) == 0) {
            if (part->val.len >= size || memchr(part->val.p, 0, part->val.len)) {
                return false;
            }
            memcpy(name, part->val.p, part->val.len);
            name[part->val.len] = '\0';
            return true;
        }
    }
    return false;
}

int64_t tls_seconds(const mbedtls_x509_time *time)
{
    struct tm utc = {.tm_year = time->year - 1900,
                     .tm_mon = time->mon - 1,
                     .tm_mday = time->day,
                     .tm_hour = time->hour,
                     .tm_min = time->min,
                     .tm_sec = time->sec};
    return (int64_t)timegm(&utc);
}

uint64_t tls_issued_s(const mbedtls_x509_crt *certificate)
{
    const int64_t from_s = tls_seconds(&certificate->valid_from);
    return from_s > 0 ? (uint64_t)from_s + TLS_TOLERANCE_S : 0;
}

/* The error in a certificate, by mbedTLS's flags, in words. */
static void describe_flags(const mbedtls_x509_crt *certificate, uint32_t flags, char *text, size_t size)
{
    const mbedtls_x509_time *to = &certificate->valid_to, *from = &certificate->valid_from;
    if (flags & MBEDTLS_X509_BADCERT_NOT_TRUSTED) {
        snprintf(text, size, "its certificate is not signed by the authority that we trust");
    } else if (flags & MBEDTLS_X509_BADCERT_EXPIRED) {
        snprintf(text, size, "its certificate expired on %04d-%02d-%02d (by our clock)", to->year, to->mon, to->day);
    } else if (flags & MBEDTLS_X509_BADCERT_FUTURE) {
        char today[32] = "?";
        const time_t now = time(NULL);
        struct tm utc;
        if (gmtime_r(&now, &utc)) {
            strftime(today, sizeof today, "%Y-%m-%d", &utc);
        }
        snprintf(text, size, "its certificate is valid from %04d-%02d-%02d only, and our clock says %s: is it right?",
                 from->year, from->mon, from->day, today);
    } else {
        snprintf(text, size, "its certificate is not acceptable (mbedTLS flags 0x%x)", (unsigned)flags);
    }
}

static bool same_certificate(const mbedtls_x509_crt *a, const mbedtls_x509_crt *b)
{
    return a->raw.len == b->raw.len && memcmp(a->raw.p, b->raw.p, a->raw.len) == 0;
}

bool tls_is_pinned(const mbedtls_x509_crt *pinned, const mbedtls_x509_crt *certificate)
{
    for (const mbedtls_x509_crt *next = pinned; next; next = next->next) {
        if (same_certificate(next, certificate)) {
            return true;
        }
    }
    return false;
}

/* With a fleet key: exactly one of the trusted certificates, alone; identity is enough, whatever its dates. */
static void verify_pinned(struct handshake *handshake, const mbedtls_x509_crt *certificate, int depth, uint32_t *flags)
{
    if (depth == 0 && tls_is_pinned(&handshake->credentials->trusted, certificate)) {
        *flags = 0;
        return;
    }
    *flags |= MBEDTLS_X509_BADCERT_NOT_TRUSTED;
    snprintf(handshake->verify_error, sizeof handshake->verify_error, "its fleet key differs from this side's");
}

/* With an authority: mbedTLS's verdict on the chain, then the member that the certificate names. */
static void verify_named(struct handshake *handshake, const mbedtls_x509_crt *certificate, int depth, uint32_t *flags)
{
    char name[64], expected[MEMBER_TEXT];
    struct error ignored;
    struct member *member = &handshake->connection->credential;
    if (*flags != 0) {
        describe_flags(certificate, *flags, handshake->verify_error, sizeof handshake->verify_error);
        return;
    }
    if (depth > 0) {
        return;
    }
    if (!tls_common_name(certificate, name, sizeof name) || !member_parse(name, member, &ignored)) {
        *flags |= MBEDTLS_X509_BADCERT_CN_MISMATCH;
        snprintf(handshake->verify_error, sizeof handshake->verify_error,
                 "its certificate names no member of a cluster");
        return;
    }
    struct member asked = handshake->expected;
    if (member->index == MEMBER_ANY_INDEX) {
        asked.index = MEMBER_ANY_INDEX; /* a certificate for any ps is valid for ps 3 */
    }
    if (!member_matches(&asked, member)) {
        member_format(&handshake->expected, ':', expected);
        *flags |= MBEDTLS_X509_BADCERT_CN_MISMATCH;
        snprintf(handshake->verify_error, sizeof handshake->verify_error, "its certificate is for %s, but we expect %s",
                 name, expected);
    }
}

/* Of one that is trusted otherwise. */
static void verify_not_revoked(struct handshake *handshake, const mbedtls_x509_crt *certificate, uint32_t *flags)
{
    struct revocation_peer *peer = &handshake->connection->watch.peer;
    peer->member = handshake->connection->credential;
    peer->issued_s = tls_issued_s(certificate);
    crypto_generichash(peer->key, sizeof peer->key, certificate->pk_raw.p, certificate->pk_raw.len, NULL, 0);
    if (revocations_name(handshake->credentials->revocations, peer, handshake->verify_error,
                         sizeof handshake->verify_error)) {
        *flags |= MBEDTLS_X509_BADCERT_REVOKED;
    }
}

static int verify(void *context, mbedtls_x509_crt *certificate, int depth, uint32_t *flags)
{
    struct handshake *handshake = context;
    if (handshake->credentials->pinned) {
        verify_pinned(handshake, certificate, depth, flags);
    } else {
        verify_named(handshake, certificate, depth, flags);
    }
    if (depth == 0 && *flags == 0) {
        verify_not_revoked(handshake, certificate, flags);
    }
    return 0;
}

static bool has_handshake_keys(const struct handshake *handshake)
{
    return handshake->has_secret[0][!handshake->server];
}

/*
 * Checks the last record, which is possible only when mbedTLS requests the next: it ignores a ChangeCipherSpec even if
 * that was encrypted (RFC 8446, 5: then it is no harmless relic of TLS 1.2).
 */
static bool check_last_record(struct handshake *handshake)
{
    const struct record_filter *filter = &handshake->filter;
    bool whole = filter->left == 0 && filter->type == RECORD_DATA;
    if (whole && handshake->ssl.MBEDTLS_PRIVATE(in_msgtype) == RECORD_CHANGE_CIPHER_SPEC) {
        handshake->protocol_error = "an encrypted ChangeCipherSpec";
        handshake->alert = MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE;
    }
    return !handshake->protocol_error;
}

/* Waits for bytes that the filter passes. Fails with the error for mbedTLS to return. */
static int await_records(struct handshake *handshake)
{
    struct connection *connection = handshake->connection;
    if (!check_last_record(handshake)) {
        return MBEDTLS_ERR_SSL_INVALID_RECORD;
    }
    for (;;) {
        const uint8_t *bytes = connection->in + connection->in_start;
        size_t size = connection->in_end - connection->in_start;
        switch (record_filter_check(&handshake->filter, bytes, size, has_handshake_keys(handshake), &handshake->alert,
                                    &handshake->protocol_error)) {
        case RECORD_PASSES:
            if (size > 0) {
                return 0;
            }
            break;
        case RECORD_PLAIN_ALERT:
            if (size >= RECORD_HEADER + 2) {
                handshake->peer_alert = bytes[RECORD_HEADER + 1];
                return MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE;
            }
            break;
        case RECORD_REFUSED:
            return MBEDTLS_ERR_SSL_INVALID_RECORD;
        case RECORD_INCOMPLETE:
            break;
        }
        ptrdiff_t got = transport_receive(connection, NULL, 0, &handshake->failure);
        if (got == TRANSPORT_WANTS) {
            return MBEDTLS_ERR_SSL_WANT_READ;
        }
        if (got == TRANSPORT_END) {
            return MBEDTLS_ERR_SSL_CONN_EOF;
        }
        if (got < 0) {
            handshake->failed = true;
            return MBEDTLS_ERR_SSL_INTERNAL_ERROR;
        }
    }
}

static int receive(void *context, unsigned char *bytes, size_t size)
{
    struct handshake *handshake = context;
    struct connection *connection = handshake->connection;
    int result = await_records(handshake);
    if (result != 0) {
        return result;
    }
    size_t waiting = connection->in_end - connection->in_start;
    size_t taken = waiting < size ? waiting : size;
    taken = taken < handshake->filter.left ? taken : handshake->filter.left;
    memcpy(bytes, connection->in + connection->in_start, taken);
    connection->in_start += taken;
    record_filter_consume(&handshake->filter, taken);
    return (int)taken;
}

static int transmit(void *context, const unsigned char *bytes, size_t size)
{
    struct handshake *handshake = context;
    struct connection *connection = handshake->connection;
    if (handshake->ssl.MBEDTLS_PRIVATE(send_alert)) { /* this is an alert: put_alert() has better keys for it */
        handshake->alert = handshake->ssl.MBEDTLS_PRIVATE(alert_type);
        if (handshake->alert == MBEDTLS_SSL_ALERT_MSG_NO_CERT) { /* TLS 1.3 has no such alert: RFC 8446, 4.4.2.4 */
            handshake->alert = MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR;
        }
        return (int)size;
    }
    if (CONNECTION_BUFFER - connection->out_end < size) {
        return MBEDTLS_ERR_SSL_WANT_WRITE; /* only a handshake flight can be that long: flush it and continue */
    }
    memcpy(connection->out + connection->out_end, bytes, size);
    connection->out_end += size;
    handshake->sent += bytes[0] == RECORD_DATA; /* one record at a time */
    return (int)size;
}

/* The first random bytes that a client needs are those of its ClientHello: they are its handshake token. */
static int random_with_token(void *context, unsigned char *bytes, size_t size)
{
    struct handshake *handshake = context;
    const bool has_token = handshake->has_token;
    handshake->has_token = true;
    if (has_token || size != HANDSHAKE_TOKEN_SIZE) {
        return tls_random(NULL, bytes, size);
    }
    handshake_token_make(&handshake->credentials->token_keys, bytes);
    return 0;
}

int tls_config_common(mbedtls_ssl_config *config, int endpoint)
{
    static const int with_aes[] = {MBEDTLS_TLS1_3_AES_256_GCM_SHA384, MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256, 0};
    static const int without_aes[] = {MBEDTLS_TLS1_3_CHACHA20_POLY1305_SHA256, 0};
    int result =
        mbedtls_ssl_config_defaults(config, endpoint, MBEDTLS_SSL_TRANSPORT_STREAM, MBEDTLS_SSL_PRESET_DEFAULT);
    if (result != 0) {
        return result;
    }
    mbedtls_ssl_conf_min_tls_version(config, MBEDTLS_SSL_VERSION_TLS1_3);
    mbedtls_ssl_conf_max_tls_version(config, MBEDTLS_SSL_VERSION_TLS1_3);
    mbedtls_ssl_conf_ciphersuites(config, gcm_is_available() ? with_aes : without_aes);
    mbedtls_ssl_conf_rng(config, tls_random, NULL);
    return 0;
}

static int configure(mbedtls_ssl_config *config, struct credentials *credentials, int endpoint)
{
    int result = tls_config_common(config, endpoint);
    if (result != 0) {
        return result;
    }
    mbedtls_ssl_conf_authmode(config, MBEDTLS_SSL_VERIFY_OPTIONAL); /* check_certificate() is not optional */
    mbedtls_ssl_conf_ca_chain(config, &credentials->trusted, NULL);
    mbedtls_ssl_conf_cert_req_ca_list(config, MBEDTLS_SSL_CERT_REQ_CA_LIST_DISABLED);
    return mbedtls_ssl_conf_own_cert(config, &credentials->own, &credentials->key);
}

bool tls_configure(struct credentials *credentials, struct error *error)
{
    char text[128];
    int result = configure(&credentials->client, credentials, MBEDTLS_SSL_IS_CLIENT);
    if (result == 0) {
        result = configure(&credentials->server, credentials, MBEDTLS_SSL_IS_SERVER);
    }
    if (result != 0) {
        tls_describe(result, text);
        return error_set(error, "can't set up TLS: %s", text);
    }
    return true;
}

/* Converts mbedTLS's failure into ours: the first known cause, in words for the log. */
static ptrdiff_t fail(struct handshake *handshake, int result, struct error *error)
{
    struct connection *connection = handshake->connection;
    const char *name = connection->name;
    char text[128];
    if (handshake->failed) {
        *error = handshake->failure;
        return TRANSPORT_FAILED;
    }
    if (handshake->verify_error[0] != '\0') {
        return transport_fail(connection, CONNECTION_BROKEN, error, "%s is not trusted: %s", name,
                              handshake->verify_error);
    }
    if (handshake->protocol_error) {
        return transport_fail(connection, CONNECTION_BROKEN, error, "TLS with %s failed: %s", name,
                              handshake->protocol_error);
    }
    switch (result) {
    case MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE: {
        int alert = handshake->peer_alert ? handshake->peer_alert : handshake->ssl.MBEDTLS_PRIVATE(in_msg)[1];
        const char *meaning = tls_describe_alert(alert);
        snprintf(text, sizeof text, "TLS alert %d", alert);
        return transport_fail(connection, CONNECTION_BROKEN, error, "%s refused us: %s", name,
                              meaning ? meaning : text);
    }
    case MBEDTLS_ERR_SSL_BAD_PROTOCOL_VERSION:
        return transport_fail(connection, CONNECTION_BROKEN, error, "%s does not speak TLS 1.3", name);
    case MBEDTLS_ERR_SSL_CONN_EOF:
        return transport_fail(connection, CONNECTION_CLOSED, error, "%s closed the connection in the TLS handshake",
                              name);
    default:
        tls_describe(result, text);
        return transport_fail(connection, CONNECTION_BROKEN, error, "TLS with %s failed: %s", name, text);
    }
}

/*
 * Where keys change: messages must end with their record, because what follows would be under the new keys (RFC 8446,
 * 5.1). mbedTLS would accept it.
 */
static void check_key_change(struct handshake *handshake)
{
    const mbedtls_ssl_context *ssl = &handshake->ssl;
    if (ssl->MBEDTLS_PRIVATE(in_hslen) > 0 && ssl->MBEDTLS_PRIVATE(in_msglen) > ssl->MBEDTLS_PRIVATE(in_hslen)) {
        handshake->stale_key_data = true;
        handshake->protocol_error = "bytes after a message that changes the keys";
    }
}

/* The alert for a handshake that ends like this; 0: none, because the peer ended it. */
static uint8_t alert_for(const struct handshake *handshake, int result)
{
    if (handshake->failed || handshake->peer_alert) {
        return 0;
    }
    if (handshake->stale_key_data) {
        return MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE;
    }
    if (handshake->alert) {
        return handshake->alert;
    }
    switch (result) {
    case MBEDTLS_ERR_SSL_FATAL_ALERT_MESSAGE:
    case MBEDTLS_ERR_SSL_PEER_CLOSE_NOTIFY:
    case MBEDTLS_ERR_SSL_CONN_EOF:
        return 0;
    case MBEDTLS_ERR_SSL_INVALID_RECORD:
    case MBEDTLS_ERR_SSL_UNEXPECTED_MESSAGE:
        return MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE;
    case MBEDTLS_ERR_SSL_INVALID_MAC:
        return MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC;
    case MBEDTLS_ERR_SSL_DECODE_ERROR:
        return MBEDTLS_SSL_ALERT_MSG_DECODE_ERROR;
    case MBEDTLS_ERR_SSL_BAD_PROTOCOL_VERSION:
        return MBEDTLS_SSL_ALERT_MSG_PROTOCOL_VERSION;
    case MBEDTLS_ERR_SSL_ILLEGAL_PARAMETER:
    case MBEDTLS_ERR_SSL_BAD_INPUT_DATA: /* a share that is no point on the curve; a message larger than its buffer */
    case MBEDTLS_ERR_ERROR_CORRUPTION_DETECTED:
        return MBEDTLS_SSL_ALERT_MSG_ILLEGAL_PARAMETER;
    case MBEDTLS_ERR_SSL_HANDSHAKE_FAILURE:
        return MBEDTLS_SSL_ALERT_MSG_HANDSHAKE_FAILURE;
    default:
        return MBEDTLS_SSL_ALERT_MSG_INTERNAL_ERROR;
    }
}

/*
 * Puts an alert into the out buffer, under the keys with which the peer reads at this point (RFC 8446, 7.1 and A): the
 * server's are those for data once it has sent its Finished, the client's are those of the handshake until it sends its
 * own.
 */
static void put_alert(struct handshake *handshake, uint8_t alert)
{
    struct connection *connection = handshake->connection;
    const uint8_t plain[] = {RECORD_ALERT, 3, 3, 0, 2, MBEDTLS_SSL_ALERT_LEVEL_FATAL, alert};
    struct record_key *key = &connection->tls->out;
    bool own = handshake->server;
    bool for_data = handshake->has_secret[1][own] && (own || mbedtls_ssl_is_handshake_over(&handshake->ssl));
    if (handshake->has_secret[for_data][own]) {
        if (record_key_set(key, handshake->cipher, handshake->secrets[for_data][own])) {
            key->sequence = for_data ? 0 : handshake->sent;
            tls_put_alert(connection, MBEDTLS_SSL_ALERT_LEVEL_FATAL, alert);
        }
    } else if (CONNECTION_BUFFER - connection->out_end >= sizeof plain) {
        memcpy(connection->out + connection->out_end, plain, sizeof plain);
        connection->out_end += sizeof plain;
    }
}

/* After the handshake: is the peer's certificate accepted? If not, sends an alert with the reason. */
static bool check_certificate(struct handshake *handshake, double started_s, double deadline_s, struct error *error)
{
    struct connection *connection = handshake->connection;
    struct error ignored;
    uint32_t flags = mbedtls_ssl_get_verify_result(&handshake->ssl);
    uint8_t alert = MBEDTLS_SSL_ALERT_MSG_BAD_CERT;
    const mbedtls_x509_crt *certificate = mbedtls_ssl_get_peer_cert(&handshake->ssl);
    check_key_change(handshake);
    if (flags == 0 && certificate && !handshake->stale_key_data) {
        return true;
    }
    if (handshake->stale_key_data) {
        alert = MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE;
    } else if (!certificate) {
        alert = TLS_ALERT_CERTIFICATE_REQUIRED;
        snprintf(handshake->verify_error, sizeof handshake->verify_error, "it presents no key");
    } else if (handshake->verify_error[0] == '\0') {
        describe_flags(certificate, flags, handshake->verify_error, sizeof handshake->verify_error);
    }
    if (flags & MBEDTLS_X509_BADCERT_NOT_TRUSTED) {
        alert = MBEDTLS_SSL_ALERT_MSG_UNKNOWN_CA;
    } else if (flags & (MBEDTLS_X509_BADCERT_EXPIRED | MBEDTLS_X509_BADCERT_FUTURE)) {
        alert = MBEDTLS_SSL_ALERT_MSG_CERT_EXPIRED; /* TLS has no other for one that is not valid yet */
    } else if (flags & MBEDTLS_X509_BADCERT_REVOKED) {
        alert = MBEDTLS_SSL_ALERT_MSG_CERT_REVOKED;
    } else if (flags & MBEDTLS_X509_BADCERT_CN_MISMATCH) {
        alert = MBEDTLS_SSL_ALERT_MSG_ACCESS_DENIED;
    }
    put_alert(handshake, alert);
    transport_flush(connection, started_s, deadline_s, &ignored);
    fail(handshake, 0, error);
    return false;
}

/* The connection opened, so small packets pass; certificates fill whole ones. */
static bool suggest_packet_size(struct error *error)
{
    const struct error timed_out = *error;
    return error_set(error, "%s, though the connection opened: is it stopped, or do large packets get lost (MTU)?",
                     timed_out.text);
}

static bool run_handshake(struct handshake *handshake, double deadline_s, struct error *error)
{
    double started_s = clock_monotonic_s();
    struct connection *connection = handshake->connection;
    for (;;) {
        int result = mbedtls_ssl_handshake(&handshake->ssl);
        if (result != 0 && result != MBEDTLS_ERR_SSL_WANT_READ && result != MBEDTLS_ERR_SSL_WANT_WRITE) {
            uint8_t alert = alert_for(handshake, result);
            if (alert) {
                put_alert(handshake, alert);
            }
            fail(handshake, result, error);
            enum connection_state state = connection->state;
            struct error ignored;
            transport_flush(connection, started_s, deadline_s, &ignored); /* the alert with the reason */
            connection->state = state;
            return false;
        }
        if (!transport_flush(connection, started_s, deadline_s, error)) {
            return false;
        }
        if (result == 0) {
            return check_certificate(handshake, started_s, deadline_s, error);
        }
        if (result == MBEDTLS_ERR_SSL_WANT_READ && !transport_wait(connection, started_s, deadline_s, error)) {
            return connection->state == CONNECTION_TIMED_OUT ? suggest_packet_size(error) : false;
        }
    }
}

/* mbedTLS's callback: the secrets that each side's records are protected with. */
static void export_secret(void *context, mbedtls_ssl_key_export_type type, const unsigned char *secret, size_t size,
                          const unsigned char client_random[32], const unsigned char server_random[32],
                          mbedtls_tls_prf_types prf)
{
    struct handshake *handshake = context;
    bool server = type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_HANDSHAKE_TRAFFIC_SECRET ||
                  type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_APPLICATION_TRAFFIC_SECRET;
    bool for_data = type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_CLIENT_APPLICATION_TRAFFIC_SECRET ||
                    type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_SERVER_APPLICATION_TRAFFIC_SECRET;
    bool client_handshake = type == MBEDTLS_SSL_KEY_EXPORT_TLS1_3_CLIENT_HANDSHAKE_TRAFFIC_SECRET;
    (void)client_random, (void)server_random, (void)prf;
    if ((server || for_data || client_handshake) && size <= RECORD_MOST_SECRET) {
        memcpy(handshake->secrets[for_data][server], secret, size);
        handshake->has_secret[for_data][server] = true;
        handshake->cipher = size == record_secret_size(RECORD_AES_256_GCM_SHA384) ? RECORD_AES_256_GCM_SHA384
                                                                                  : RECORD_CHACHA20_POLY1305_SHA256;
        check_key_change(handshake);
    }
}

static bool begin(struct handshake *handshake, double deadline_s, struct error *error)
{
    const bool server = handshake->server;
    const struct credentials *credentials = handshake->credentials;
    handshake->config = server ? credentials->server : credentials->client; /* it points into the credentials */
    if (!server) {
        mbedtls_ssl_conf_rng(&handshake->config, random_with_token, handshake);
    }
    int result = mbedtls_ssl_setup(&handshake->ssl, &handshake->config);
    if (result == 0 && !server) {
        result = mbedtls_ssl_set_hostname(&handshake->ssl, NULL); /* `verify` checks the name in the certificate */
    }
    if (result != 0) {
        fail(handshake, result, error);
        return false;
    }
    mbedtls_ssl_set_bio(&handshake->ssl, handshake, transmit, receive, NULL);
    mbedtls_ssl_set_verify(&handshake->ssl, verify, handshake);
    mbedtls_ssl_set_export_keys_cb(&handshake->ssl, export_secret, handshake);
    return run_handshake(handshake, deadline_s, error);
}

/* From here on records are ours: mbedTLS has read no further than the last one of the handshake. */
static bool establish(const struct handshake *handshake, struct error *error)
{
    struct tls *tls = handshake->connection->tls;
    const bool server = handshake->server;
    assert(handshake->has_secret[1][0] && handshake->has_secret[1][1]);
    tls->established = record_key_set(&tls->in, handshake->cipher, handshake->secrets[1][!server]) &&
                       record_key_set(&tls->out, handshake->cipher, handshake->secrets[1][server]);
    return tls->established ||
           error_set(error, "out of memory for the keys of a connection with %s", handshake->connection->name);
}

static bool tls_open(struct connection *connection, const struct credentials *credentials,
                     const struct member *expected, bool server, double deadline_s, struct error *error)
{
    struct tls *tls = calloc(1, sizeof *tls);
    struct handshake *handshake = calloc(1, sizeof *handshake);
    if (!tls || !handshake) {
        free(tls);
        free(handshake);
        return error_set(error, "out of memory for a connection with %s", connection->name);
    }
    mbedtls_ssl_init(&handshake->ssl);
    handshake->credentials = credentials;
    handshake->connection = connection;
    handshake->server = tls->server = server;
    if (expected) {
        handshake->expected = *expected;
    }
    connection->tls = tls;
    bool done = begin(handshake, deadline_s, error) && establish(handshake, error);
    if (done && !revocations_watch(credentials->revocations, &connection->watch, &connection->fd)) {
        done = error_set(error, "%s is not trusted: its key was revoked during the handshake", connection->name);
        connection->state = CONNECTION_BROKEN;
    }
    mbedtls_ssl_free(&handshake->ssl);
    sodium_memzero(handshake, sizeof *handshake);
    free(handshake);
    return done;
}

const struct transport_table transport_tls = {.open = tls_open,
                                              .cipher = tls_cipher,
                                              .begins_as_tls = true,
                                              .read = tls_read,
                                              .write = tls_write,
                                              .finish = tls_finish,
                                              .room = TLS_ROOM,
                                              .pending = tls_pending,
                                              .gathered = tls_gathered,
                                              .close = tls_close};
