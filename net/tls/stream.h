/*
 * Inside the net room: TLS on a connection once its handshake is over. tls.c makes it, stream.c moves bytes through it.
 */
#ifndef NET_TLS_STREAM_H
#define NET_TLS_STREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "net/transport.h"
#include "net/tls/record.h"

struct tls {
    struct record_key in, out;
    bool established;              /* records are ours from here on; before, mbedTLS's */
    bool ended;                    /* the peer said goodbye, or the socket is at its end */
    bool update_wanted;            /* the peer asked for new keys */
    size_t filled;                 /* content of the record under way, at the end of the out buffer */
    size_t plain_start, plain_end; /* decrypted bytes in the in buffer, not yet read */
};

/* transport_tls.open: shakes hands. */
bool tls_open(struct connection *connection, const struct credentials *credentials, const struct member *expected,
              bool server, double deadline_s, struct error *error);

/* What the peer's fatal alert says about us; NULL if nothing that a user could act on. */
const char *tls_describe_alert(int alert);

#endif
