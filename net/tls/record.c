/*
 * TLS 1.3 records alone, without a connection: pure functions, so that published vectors can check them.
 *
 * The filter applies the rules of RFC 8446, 5 and 5.1, for the fields of a record's header. mbedTLS drops
 * ChangeCipherSpec records however many come, and so never checks whether their time is over.
 */
#include "net/tls/record.h"

#include <assert.h>
#include <string.h>

#include <mbedtls/hkdf.h>
#include <mbedtls/ssl.h>
#include <sodium.h>

#include "net/connection.h"

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

static enum record_verdict refuse(uint8_t code, const char *what, uint8_t *alert, const char **why)
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
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, misplacement, alert, why);
    }
    if (length > (type == RECORD_DATA ? RECORD_MOST_SEALED : RECORD_CONTENT)) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_RECORD_OVERFLOW, "a record that is too large", alert, why);
    }
    if (length == 0) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an empty record", alert, why);
    }
    if (type == RECORD_DATA && length < RECORD_TAG) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_BAD_RECORD_MAC, "a record that is too small", alert, why);
    }
    if (type == RECORD_ALERT && sealed) {
        return RECORD_PLAIN_ALERT;
    }
    if (filter->passed > CONNECTION_HANDSHAKE_BYTES) {
        return refuse(MBEDTLS_SSL_ALERT_MSG_UNEXPECTED_MESSAGE, "an endless handshake", alert, why);
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
