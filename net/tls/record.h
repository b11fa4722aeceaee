/*
 * Record protection of TLS 1.3 (RFC 8446, 5.2 to 5.5), one direction of a connection: what mbedTLS's traffic secret
 * becomes once its handshake is over.
 *
 * mbedTLS copies every byte twice on its way out and twice on its way in, which costs as much as encrypting it. Here
 * bytes are encrypted where they lie in the buffer that is sent, and decrypted out of the buffer that was received into
 * straight to where they belong. Unlike mbedTLS this also changes keys in time: a job sends more through one connection
 * than AES-GCM is good for under one key.
 *
 * Pure functions of their arguments: one thread at a time uses a key.
 */
#ifndef NET_TLS_RECORD_H
#define NET_TLS_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/tls/gcm.h"

enum {
    RECORD_HEADER = 5,
    RECORD_TAG = 16,
    RECORD_CONTENT = 16384,                             /* the user's bytes in a record, at most */
    RECORD_PLAIN = RECORD_CONTENT + 1,                  /* what is encrypted: content and its type */
    RECORD_MOST_SEALED = RECORD_PLAIN + RECORD_TAG,     /* what may come behind a header: padding is content as well */
    RECORD_SEALED = RECORD_HEADER + RECORD_MOST_SEALED, /* of a full record of ours, header and all */
    RECORD_MOST_SECRET = 48,
};

/* Types of content, as in RFC 8446, B.1. */
enum { RECORD_CHANGE_CIPHER_SPEC = 20, RECORD_ALERT = 21, RECORD_HANDSHAKE = 22, RECORD_DATA = 23 };

/* What record_open says of a record that it does not open. */
enum { RECORD_FORGED = -1, RECORD_WITHOUT_TYPE = -2 };

enum record_cipher { RECORD_AES_256_GCM_SHA384, RECORD_CHACHA20_POLY1305_SHA256 };

struct record_key {
    struct gcm_key aes; /* first: it wants alignment */
    uint8_t chacha[32];
    enum record_cipher cipher;
    uint8_t secret[RECORD_MOST_SECRET];
    uint8_t iv[12];
    uint64_t sequence; /* of the next record */
    uint64_t limit;    /* records until the key has done its share; kept when the next generation comes */
};

/* Bytes of a traffic secret of that cipher. */
size_t record_secret_size(enum record_cipher cipher);

/* Begins with a traffic secret. Fails where there is no memory: then the key is good for nothing. */
bool record_key_set(struct record_key *key, enum record_cipher cipher, const uint8_t *secret);

/* Goes on to the next generation of keys, as KeyUpdate wants it (7.2). Fails as record_key_set does. */
bool record_key_next(struct record_key *key);

/* True once a key has done its share (5.5: 2^24.5 full records with AES-GCM; the margin is ours). */
bool record_key_is_spent(const struct record_key *key);

/*
 * Makes a record of the `size` bytes (at most RECORD_CONTENT) that lie at record + RECORD_HEADER, in place, and returns
 * its size: RECORD_HEADER + size + 1 + RECORD_TAG, for which there must be room.
 */
size_t record_seal(struct record_key *key, uint8_t type, uint8_t *record, size_t size);

/*
 * Opens a record: its header, and `sealed` bytes behind it, RECORD_TAG at least. `plain` gets sealed - RECORD_TAG
 * bytes; it is record + RECORD_HEADER or does not overlap. Returns the bytes of content, with their type in *type.
 * RECORD_FORGED: the record is not the peer's, and `plain` holds nothing of it. RECORD_WITHOUT_TYPE: it is the peer's,
 * and all padding.
 */
ptrdiff_t record_open(struct record_key *key, const uint8_t *record, size_t sealed, uint8_t *plain, uint8_t *type);

/* HKDF-Expand-Label (7.1) with an empty context. size: at most 64. Fails where there is no memory. */
bool record_expand_label(enum record_cipher cipher, const uint8_t *secret, const char *label, uint8_t *bytes,
                         size_t size);

#endif
