/*
 * A connection to a peer: bytes in order, over TLS 1.3 or plain TCP behind one small table.
 *
 * Calls block until done, until their deadline (seconds of clock_monotonic_s) or until the connection's wake is raised.
 * One thread at a time uses a connection, except that its wake may be raised by anyone. A call that fails leaves the
 * connection good for nothing but connection_close, with one exception: connection_wait may time out without harm.
 * Errors name the peer and what was awaited: "no answer from ps 0 (a:2222) within 10 s".
 *
 * A deadline is absolute: what has come when it passes is still taken, once, and a peer that goes on sending, or goes
 * on taking, gains nothing by it. Calls with the same deadline share that one look.
 *
 * Memory: CONNECTION_BUFFER bytes for each direction, taken when it is opened and given back while it rests, and with
 * TLS 2 KiB more; during a TLS handshake about 60 KiB besides.
 */
#ifndef NET_CONNECTION_H
#define NET_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/member.h"
#include "net/socket.h"

struct credentials;

enum {
    CONNECTION_BUFFER = 256 * 1024,         /* bytes gathered into one send or receive */
    CONNECTION_HANDSHAKE_BYTES = 64 * 1024, /* of a TLS handshake, at most; honest ones have some 2 KiB */
    CONNECTION_NAME = ENDPOINT_TEXT + MEMBER_TEXT + 4,
};

struct connection;

enum connection_state {
    CONNECTION_OPEN,
    CONNECTION_TIMED_OUT, /* a deadline passed in the middle of something */
    CONNECTION_WOKEN,     /* its wake was raised */
    CONNECTION_CLOSED,    /* the peer closed it, in order */
    CONNECTION_BROKEN,    /* anything else: reset, cut, an alert, a bad record */
};

/*
 * Connects to `address` and shakes hands. credentials NULL: plain TCP. expected: who must answer, checked against its
 * certificate where that names a member, and shown in errors as "ps 0 (a:2222)". wake may be NULL; it is borrowed for
 * the connection's life.
 */
bool connection_connect(struct connection **connection, const struct address *address, const struct member *expected,
                        const struct credentials *credentials, const struct wake *wake, double deadline_s,
                        struct error *error);

/*
 * The other side, on a socket from socket_take. If it fails, *connection is what is to be closed, so that the caller
 * can first see to it that nobody uses the socket's number any more; NULL: the socket itself. peer: the address as
 * text. The error of a refused peer names its address and the reason, and is meant to be logged as it is, once.
 */
bool connection_serve(struct connection **connection, int fd, const char *peer, const struct credentials *credentials,
                      const struct wake *wake, double deadline_s, struct error *error);

/* Tells the peer that no more will come, if that needs no waiting, and frees. NULL is fine. */
void connection_close(struct connection *connection);

/* Reads exactly `size` bytes. */
bool connection_read(struct connection *connection, void *bytes, size_t size, double deadline_s, struct error *error);

/*
 * Writes all parts, in order. It may keep up to CONNECTION_BUFFER bytes back for the next write; connection_flush sends
 * them.
 */
bool connection_write_more(struct connection *connection, const struct iovec *parts, int count, double deadline_s,
                           struct error *error);
bool connection_flush(struct connection *connection, double deadline_s, struct error *error);

/* Waits until a read would find something (data, an end or an error). *ready: false after the deadline or a wake. */
bool connection_wait(struct connection *connection, double deadline_s, bool *ready, struct error *error);

/* What a read would find in memory, as far as it is known after a wait: so many bytes; *bytes: where they are. */
size_t connection_peek(const struct connection *connection, const uint8_t **bytes);

/*
 * Gives the buffers back, if nothing lies in them. False: something does, half a record perhaps, whose rest has to be
 * waited for with connection_wait. A connection that rests is good for connection_resume, connection_close, and what is
 * asked about it below. To resume where it does not rest is fine; it fails where there is no memory, and it rests on.
 * spare, which may be NULL, keeps the buffers of one that rests for the next that resumes: to map and unmap memory
 * costs as much as the answer to a heartbeat.
 */
struct connection_spare {
    uint8_t *bytes; /* NULL: none */
};
bool connection_is_empty(const struct connection *connection); /* so that it may rest */
bool connection_rest(struct connection *connection, struct connection_spare *spare);
bool connection_resume(struct connection *connection, struct connection_spare *spare, struct error *error);
void connection_spare_free(struct connection_spare *spare);

/*
 * From now on a wait also ends, as if its deadline had passed, when the peer gave no sign of life for so long: nothing
 * came from it, and its system took nothing of what waits to be sent. 0: only deadlines count, as in the beginning.
 */
void connection_set_idle_timeout(struct connection *connection, double seconds);
double connection_heard_s(const struct connection *connection); /* when something came last, or it was opened */
size_t connection_unsent(const struct connection *connection);  /* bytes that the peer's system has not taken yet */

enum connection_state connection_state(const struct connection *connection);

/* How errors and logs name the peer. The server renames it once it knows who it is: "worker 1 (10.0.0.3:41234)". */
const char *connection_name(const struct connection *connection);
const char *connection_peer(const struct connection *connection); /* its address alone */
void connection_rename(struct connection *connection, const struct member *member);

/* Whom the peer's certificate names; MEMBER_NONE with a fleet key or plain TCP. */
struct member connection_credential(const struct connection *connection);
const char *connection_cipher(const struct connection *connection); /* "TLS1-3-AES-256-GCM-SHA384", "plain TCP" */

/* Bytes on the wire since it was opened. */
uint64_t connection_bytes_in(const struct connection *connection);
uint64_t connection_bytes_out(const struct connection *connection);

/*
 * For poll over several connections: once it is readable, connection_wait with a deadline in the past tells whether a
 * read would find something. Ask that too before polling again, since data may have come in with what was read last.
 */
int connection_fd(const struct connection *connection);

#endif
