/*
 * Private to net/: the parts of a connection, for the files that implement it. connection.c moves bytes between buffers
 * and the socket and does all waiting; the transport tables, its own for plain text and that of tls/stream.c, convert
 * those bytes to the user's and back, and never wait.
 */
#ifndef NET_TRANSPORT_H
#define NET_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/connection.h"
#include "net/revocation.h"

struct local;
struct tls;

/* Results of an operation, besides byte counts. */
enum transport_result {
    TRANSPORT_END = 0,     /* the peer closed, in order */
    TRANSPORT_WANTS = -1,  /* nothing available yet: wait until the socket is readable */
    TRANSPORT_FAILED = -2, /* the error and the connection's state are set */
};

/* The operations in which plain TCP and TLS differ. */
struct transport_table {
    /*
     * Sets up this transport on a fresh connection, with a handshake if it has one, and fills in credential. NULL:
     * nothing to do. expected: NULL on the server. After a failure only `close` may follow.
     */
    bool (*open)(struct connection *connection, const struct credentials *credentials, const struct member *expected,
                 bool server, double deadline_s, struct error *error);
    const char *(*cipher)(const struct connection *connection);
    bool begins_as_tls; /* whether its first byte is TLS's: a peer that begins otherwise speaks the other transport */
    /*
     * Reads 1..size bytes and returns how many, or a transport_result. With size 0 it only processes what has arrived.
     */
    ptrdiff_t (*read)(struct connection *connection, void *bytes, size_t size, struct error *error);
    /*
     * Consumes up to `size` bytes, puts their encoding into the out buffer, which has room for at least `room` bytes,
     * and returns how many it consumed (at least 1). NULL: bytes are sent unchanged, straight from the caller's memory.
     */
    ptrdiff_t (*write)(struct connection *connection, const void *bytes, size_t size, struct error *error);
    /* Moves what `write` held back into the out buffer; may be NULL. */
    bool (*finish)(struct connection *connection, struct error *error);
    size_t room;
    /* The number of the user's bytes already decoded; *bytes, which may be NULL: where they are. */
    size_t (*pending)(const struct connection *connection, const uint8_t **bytes);
    /* The number of the user's bytes not yet in a record; NULL: always 0. */
    size_t (*gathered)(const struct connection *connection);
    /* Puts TLS's close_notify into the out buffer if there is room (in_order), and frees. */
    void (*close)(struct connection *connection, bool in_order);
};

extern const struct transport_table transport_plain, transport_tls;

/* One direction's deadline, and whether the socket was looked at since it passed. */
struct due {
    double deadline_s;
    bool late;
};

struct connection {
    const struct transport_table *transport;
    int fd;
    bool shaking; /* in the handshake: a peer may send at most CONNECTION_HANDSHAKE_BYTES until the transport is open */
    struct due in_due, out_due;
    const struct wake *wake;
    enum connection_state state;
    double timeout_s; /* 0: none */
    double last_received_s;
    struct member credential;
    struct revocation_watch watch; /* of its peer's key */
    struct tls *tls;               /* NULL: plain */
    struct local *local;           /* its bytes travel in shared memory, and fd only wakes; NULL: by fd */
    uint8_t *in;                   /* [CONNECTION_BUFFER]: received; in_start..in_end is unread; NULL: it is parked */
    size_t in_start, in_end;
    uint8_t *out; /* [CONNECTION_BUFFER]: to be sent; right after `in` */
    size_t out_start, out_end;
    atomic_uint_fast64_t bytes_in, bytes_out;
    char peer[ENDPOINT_TEXT];
    char name[CONNECTION_NAME];
};

/*
 * Receives available bytes into `bytes`, and the excess over `size` into the in buffer, which must be empty then; with
 * size 0 only into the in buffer, after its content, which moves to its beginning. Returns the total count or a
 * transport_result. The very first bytes distinguish TLS from plain text: fails if they are not this transport's. Also
 * fails if the current call's deadline is over and the peer is still sending.
 */
ptrdiff_t transport_receive(struct connection *connection, void *bytes, size_t size, struct error *error);

/* Sets state and error; returns TRANSPORT_FAILED. */
ptrdiff_t transport_fail(struct connection *connection, enum connection_state state, struct error *error,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Sends what the socket takes of these at once, for a peer that is not waited for any more. */
void transport_send_now(const struct connection *connection, const void *bytes, size_t size);

/* Sends the out buffer, waiting until the deadline or the idle timeout. */
bool transport_flush(struct connection *connection, double started_s, double deadline_s, struct error *error);

/* Waits until the socket is readable; if it does not become so, the error names the awaited peer. */
bool transport_wait(struct connection *connection, double started_s, double deadline_s, struct error *error);

#endif
