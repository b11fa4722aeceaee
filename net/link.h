/*
 * Inside the net room: what a connection is made of, for the files that implement it. connection.c moves bytes
 * between buffers and the socket and does all waiting; its own operations for plain text and those of tls/stream.c turn
 * those bytes into the user's and back, and never wait.
 */
#ifndef NET_LINK_H
#define NET_LINK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/connection.h"

struct tls;

/* What an operation did, beside counts of bytes. */
enum link_result {
    LINK_END = 0,     /* the peer closed, in order */
    LINK_WANTS = -1,  /* nothing there yet: wait until the socket is readable */
    LINK_FAILED = -2, /* the error and the connection's state are set */
};

struct link_operations {
    /* Reads 1..size bytes and returns how many, or a link_result. With size 0 it only looks at what has come. */
    ptrdiff_t (*read)(struct connection *connection, void *bytes, size_t size, struct error *error);
    /*
     * Takes up to `size` bytes, puts what is to be sent into the out buffer, which has room for `room` bytes at least,
     * and returns how many it took (at least 1). NULL: bytes are sent as they are, straight from where they lie.
     */
    ptrdiff_t (*write)(struct connection *connection, const void *bytes, size_t size, struct error *error);
    /* Puts what `write` kept back into the out buffer; may be NULL. */
    bool (*finish)(struct connection *connection, struct error *error);
    size_t room;
    /* The user's bytes that wait in memory. */
    size_t (*pending)(const struct connection *connection);
    /* Puts a close_reason into the out buffer if there is room (in_order), and frees. */
    void (*close)(struct connection *connection, bool in_order);
};

extern const struct link_operations link_plain, link_tls;

struct connection {
    const struct link_operations *operations;
    int fd;
    const struct wake *wake;
    enum connection_state state;
    double timeout_s; /* 0: none */
    double heard_s;
    struct member credential;
    struct tls *tls; /* NULL: plain */
    uint8_t *in;     /* [CONNECTION_BUFFER]: received, in_start..in_end not yet used */
    size_t in_start, in_end;
    uint8_t *out; /* [CONNECTION_BUFFER]: to be sent */
    size_t out_start, out_end;
    atomic_uint_fast64_t bytes_in, bytes_out;
    char peer[ENDPOINT_TEXT];
    char name[CONNECTION_NAME];
};

/*
 * Receives what is there into `bytes`, and what `size` does not hold into the in buffer, which must be empty then; with
 * size 0 into the in buffer alone, behind what it holds, which moves to its beginning. Returns the count of both or a
 * link_result. The very first bytes tell TLS from plain text: it fails where they are not what is spoken here.
 */
ptrdiff_t link_receive(struct connection *connection, void *bytes, size_t size, struct error *error);

/* Sets state and error; returns LINK_FAILED. */
ptrdiff_t link_fail(struct connection *connection, enum connection_state state, struct error *error, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));

/* Sends the out buffer, waiting until the deadline or the patience's end. */
bool link_flush(struct connection *connection, double started_s, double deadline_s, struct error *error);

/* Waits until the socket is readable; names who is awaited if that does not happen. */
bool link_wait(struct connection *connection, double started_s, double deadline_s, struct error *error);

/* Shakes hands and fills in credential. expected: NULL on the server. */
bool tls_open(struct connection *connection, const struct credentials *credentials, const struct member *expected,
              bool server, double deadline_s, struct error *error);
const char *tls_cipher(const struct connection *connection);

#endif
