/*
 * Private to net/tls: TLS on a connection once its handshake is over. tls.c creates it.
 */
#ifndef NET_TLS_STREAM_H
#define NET_TLS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/tls/gcm.h"
#include "net/transport.h"

/* --- Records --- */

/*
 * Record protection of TLS 1.3 (RFC 8446, 5.2 to 5.5) for one direction of a connection, with mbedTLS's traffic secret
 * once the handshake is over.
 *
 * mbedTLS copies every byte twice when sending and twice when receiving, which costs as much as encrypting it. Here
 * bytes are encrypted in place in the send buffer, and decrypted from the receive buffer straight to their destination.
 * Unlike mbedTLS this also updates keys in time: a job sends more over one connection than AES-GCM may encrypt under
 * one key.
 *
 * And a filter for a peer's records until its handshake is over. Pure functions of their arguments: one thread at a
 * time uses a key.
 */

enum {
    RECORD_HEADER = 5,
    RECORD_TAG = 16,
    RECORD_CONTENT = 16384,                             /* most user bytes in a record */
    RECORD_PLAIN = RECORD_CONTENT + 1,                  /* the encrypted part: content and its type */
    RECORD_MOST_SEALED = RECORD_PLAIN + RECORD_TAG,     /* most bytes after a header: padding counts as content */
    RECORD_SEALED = RECORD_HEADER + RECORD_MOST_SEALED, /* of a full record of ours, with its header */
    RECORD_MOST_SECRET = 48,
};

/* Types of content, as in RFC 8446, B.1. */
enum { RECORD_CHANGE_CIPHER_SPEC = 20, RECORD_ALERT = 21, RECORD_HANDSHAKE = 22, RECORD_DATA = 23 };

/* Results of record_open for a record that it does not open. */
enum { RECORD_FORGED = -1, RECORD_WITHOUT_TYPE = -2 };

enum record_cipher { RECORD_AES_256_GCM_SHA384, RECORD_CHACHA20_POLY1305_SHA256 };

struct record_key {
    struct gcm_key aes; /* first, for its alignment */
    uint8_t chacha[32];
    enum record_cipher cipher;
    uint8_t secret[RECORD_MOST_SECRET];
    uint8_t iv[12];
    uint64_t sequence; /* of the next record */
    uint64_t limit;    /* records per key; kept for the next generation */
};

/* Bytes of a traffic secret of that cipher. */
size_t record_secret_size(enum record_cipher cipher);

/* Sets up a key from a traffic secret. Fails if out of memory: the key is then unusable. */
bool record_key_set(struct record_key *key, enum record_cipher cipher, const uint8_t *secret);

/* Moves to the next generation of keys, as for KeyUpdate (7.2). Fails as record_key_set does. */
bool record_key_next(struct record_key *key);

/* True once a key has reached its limit (5.5: 2^24.5 full records with AES-GCM; the margin is ours). */
bool record_key_is_spent(const struct record_key *key);

/*
 * Makes a record in place from the `size` bytes (at most RECORD_CONTENT) at record + RECORD_HEADER, and returns its
 * size: RECORD_HEADER + size + 1 + RECORD_TAG, for which there must be room.
 */
size_t record_seal(struct record_key *key, uint8_t type, uint8_t *record, size_t size);

/*
 * Opens a record: its header, followed by `sealed` bytes, at least RECORD_TAG. `plain` gets sealed - RECORD_TAG bytes;
 * it is record + RECORD_HEADER or does not overlap. Returns the bytes of content, with their type in *type.
 * RECORD_FORGED: the record is not authentic, and `plain` holds nothing of it. RECORD_WITHOUT_TYPE: it is authentic,
 * but all padding.
 */
ptrdiff_t record_open(struct record_key *key, const uint8_t *record, size_t sealed, uint8_t *plain, uint8_t *type);

/* HKDF-Expand-Label (7.1) with an empty context. size: at most 64. Fails if out of memory. */
bool record_expand_label(enum record_cipher cipher, const uint8_t *secret, const char *label, uint8_t *bytes,
                         size_t size);

/* --- The filter --- */

/*
 * By their headers it stops in front of mbedTLS, which parses the records, whatever mbedTLS would accept without limit,
 * reject without an alert, or misinterpret. A whole handshake takes at most CONNECTION_HANDSHAKE_BYTES.
 */

/* Starts as zeros. */
struct record_filter {
    size_t left;     /* bytes of the current record not yet passed on */
    size_t passed;   /* bytes of all records begun */
    uint8_t type;    /* of the last record begun */
    bool has_hello;  /* a handshake record was received */
    bool has_change; /* the one ChangeCipherSpec was received */
};

enum record_verdict {
    RECORD_PASSES,      /* pass on filter->left bytes as they arrive */
    RECORD_INCOMPLETE,  /* too few bytes to decide */
    RECORD_PLAIN_ALERT, /* a plaintext alert after keys were agreed on: from a peer that could not read what we sent */
    RECORD_REFUSED,     /* *alert is for the peer, *why for the log */
};

/* Judges the `size` bytes received and not yet passed on. sealed: keys are agreed on. */
enum record_verdict record_filter_check(struct record_filter *filter, const uint8_t *bytes, size_t size, bool sealed,
                                        uint8_t *alert, const char **why);

/* `size` of them, at most filter->left, were passed on. */
void record_filter_consume(struct record_filter *filter, size_t size);

/* An alert that mbedTLS has no name for: RFC 8446, 6. */
enum { TLS_ALERT_CERTIFICATE_REQUIRED = 116 };

struct tls {
    struct record_key in, out;
    bool established;              /* our code handles records from here on; before, mbedTLS */
    bool server;                   /* our side of the connection */
    bool ended;                    /* the peer sent close_notify, or the socket is at its end */
    bool update_wanted;            /* the peer asked for new keys */
    size_t filled;                 /* content of the current record, at the end of the out buffer */
    size_t plain_start, plain_end; /* decrypted bytes in the in buffer, not yet read */
    int idle;                      /* records without data in a row */
    uint8_t message[5];            /* beginning of an incomplete handshake message, as much as is examined, */
    size_t message_size;           /* how much of that was received, */
    size_t message_left;           /* and how much to skip after it */
};

enum {
    UPDATE_SEALED = RECORD_HEADER + 5 + 1 + RECORD_TAG, /* a KeyUpdate */
    ALERT_SEALED = RECORD_HEADER + 2 + 1 + RECORD_TAG,
    TLS_ROOM = RECORD_SEALED + UPDATE_SEALED + ALERT_SEALED,
};

/* As in struct transport_table. */
ptrdiff_t tls_read(struct connection *connection, void *bytes, size_t size, struct error *error);
ptrdiff_t tls_write(struct connection *connection, const void *bytes, size_t size, struct error *error);
bool tls_finish(struct connection *connection, struct error *error);
size_t tls_pending(const struct connection *connection, const uint8_t **bytes);
size_t tls_gathered(const struct connection *connection);
void tls_close(struct connection *connection, bool in_order);
const char *tls_cipher(const struct connection *connection);

/* Puts an alert into the out buffer, under tls->out, if there is room. */
void tls_put_alert(struct connection *connection, uint8_t level, uint8_t alert);

/* What the peer's fatal alert says about us; NULL: nothing that a user could act on. */
const char *tls_describe_alert(int alert);

#endif
