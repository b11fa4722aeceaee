/*
 * Inside the net room: what a connection is made of, for the files that implement it. connection.c moves bytes
 * between buffers and the socket and does all waiting; its own table for plain text and those of tls/stream.c turn
 * those bytes into the user's and back, and never wait.
 */
#ifndef NET_TRANSPORT_H
#define NET_TRANSPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/connection.h"

struct tls;

/* What an operation did, beside counts of bytes. */
enum transport_result {
    TRANSPORT_END = 0,     /* the peer closed, in order */
    TRANSPORT_WANTS = -1,  /* nothing there yet: wait until the socket is readable */
    TRANSPORT_FAILED = -2, /* the error and the connection's state are set */
};

/* What plain TCP and TLS each do in their own way. */
struct transport_table {
    /*
     * Makes a fresh connection one of this transport, with a handshake where it has one, and fills in credential. NULL:
     * nothing to be done. expected: NULL on the server. If it fails the connection is good for `close` alone.
     */
    bool (*open)(struct connection *connection, const struct credentials *credentials, const struct member *expected,
                 bool server, double deadline_s, struct error *error);
    const char *(*cipher)(const struct connection *connection);
    bool begins_as_tls; /* its first byte: a peer that begins otherwise speaks the other transport */
    /* Reads 1..size bytes and returns how many, or a transport_result. With size 0 it only looks at what has come. */
    ptrdiff_t (*read)(struct connection *connection, void *bytes, size_t size, struct error *error);
    /*
     * Takes up to `size` bytes, puts what is to be sent into the out buffer, which has room for `room` bytes at least,
     * and returns how many it took (at least 1). NULL: bytes are sent as they are, straight from where they lie.
     */
    ptrdiff_t (*write)(struct connection *connection, const void *bytes, size_t size, struct error *error);
    /* Puts what `write` kept back into the out buffer; may be NULL. */
    bool (*finish)(struct connection *connection, struct error *error);
    size_t room;
    /* The user's bytes that wait in memory; *bytes, which may be NULL: where they are. */
    size_t (*pending)(const struct connection *connection, const uint8_t **bytes);
    /* The user's bytes that are not in a record yet; NULL: there are never any. */
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
    bool shaking; /* hands: until the transport is open, a peer may send no more than CONNECTION_HANDSHAKE_BYTES */
    struct due in_due, out_due;
    const struct wake *wake;
    enum connection_state state;
    double timeout_s; /* 0: none */
    double heard_s;
    struct member credential;
    struct tls *tls; /* NULL: plain */
    uint8_t *in;     /* [CONNECTION_BUFFER]: received, in_start..in_end not yet used; NULL: it rests */
    size_t in_start, in_end;
    uint8_t *out; /* [CONNECTION_BUFFER]: to be sent, behind the other */
    size_t out_start, out_end;
    atomic_uint_fast64_t bytes_in, bytes_out;
    char peer[ENDPOINT_TEXT];
    char name[CONNECTION_NAME];
};

/*
 * Receives what is there into `bytes`, and what `size` does not hold into the in buffer, which must be empty then; with
 * size 0 into the in buffer alone, behind what it holds, which moves to its beginning. Returns the count of both or a
 * transport_result. The very first bytes tell TLS from plain text: it fails where they are not what is spoken here. It
 * fails too where the deadline of the call in hand is over and a peer still sends.
 */
ptrdiff_t transport_receive(struct connection *connection, void *bytes, size_t size, struct error *error);

/* Sets state and error; returns TRANSPORT_FAILED. */
ptrdiff_t transport_fail(struct connection *connection, enum connection_state state, struct error *error,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Sends what the socket takes of these at once, for a peer that is not waited for any more. */
void transport_send_now(const struct connection *connection, const void *bytes, size_t size);

/* Sends the out buffer, waiting until the deadline or the idle timeout. */
bool transport_flush(struct connection *connection, double started_s, double deadline_s, struct error *error);

/* Waits until the socket is readable; names who is awaited if that does not happen. */
bool transport_wait(struct connection *connection, double started_s, double deadline_s, struct error *error);

#endif
