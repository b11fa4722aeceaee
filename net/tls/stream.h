/*
 * Private to net/tls: TLS on a connection once its handshake is over. tls.c creates it.
 */
#ifndef NET_TLS_STREAM_H
#define NET_TLS_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/transport.h"
#include "net/tls/record.h"

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
