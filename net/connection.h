/*
 * A connection to a peer: bytes in order, over TLS 1.3 or plain TCP behind one small table.
 *
 * Calls block until done, until their deadline (seconds of clock_monotonic_s) or until the connection's wake is raised.
 * One thread at a time uses a connection; its wake may be raised by any. After a failed call only connection_close may
 * follow, with one exception: connection_wait may time out without harm. Errors name the peer and what was awaited: "no
 * answer from ps 0 (a:2222) within 10 s".
 *
 * A deadline is absolute: bytes that have arrived when it passes are still read, once; a peer that keeps sending or
 * reading does not extend it. Calls with the same deadline share that one last read.
 *
 * Memory: CONNECTION_BUFFER bytes for each direction while it is open and not parked, and 2 KiB more with TLS; about
 * 60 KiB in addition during a TLS handshake. Buffers of those that are parked or closed serve the next connections, of
 * whatever thread: up to CONNECTION_IDLE pairs, 32 MiB, are kept until the process ends, for mapping and unmapping
 * memory costs as much as answering a heartbeat.
 */
#ifndef NET_CONNECTION_H
#define NET_CONNECTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/error.h"
#include "net/member.h"
#include "net/socket.h"

struct credentials;
struct local;

enum {
    CONNECTION_BUFFER = 256 * 1024,         /* bytes batched into one send or receive */
    CONNECTION_IDLE = 64,                   /* pairs of buffers kept for the next connections */
    CONNECTION_HANDSHAKE_BYTES = 64 * 1024, /* limit on a TLS handshake; honest ones take some 2 KiB */
    CONNECTION_NAME = ENDPOINT_TEXT + MEMBER_TEXT + 4,
};

struct connection;

enum connection_state {
    CONNECTION_OPEN,
    CONNECTION_TIMED_OUT, /* a deadline passed during a call */
    CONNECTION_WOKEN,     /* its wake was raised */
    CONNECTION_CLOSED,    /* the peer closed it, in order */
    CONNECTION_BROKEN,    /* anything else: reset, cut, an alert, a bad record */
};

/*
 * Connects to `address` and performs the handshake. credentials NULL: plain TCP. expected: the peer, checked against
 * its certificate if that names a member, and shown in errors as "ps 0 (a:2222)". wake may be NULL; it is borrowed for
 * the connection's life.
 */
bool connection_connect(struct connection **connection, const struct address *address, const struct member *expected,
                        const struct credentials *credentials, const struct wake *wake, double deadline_s,
                        struct error *error);

/*
 * The server's side, on a socket from socket_accept. On failure the caller closes *connection, after making sure that
 * the socket's number is not in use any more; if it is NULL, the caller closes the socket itself. peer: the address as
 * text. The error for a refused peer names its address and the reason, and is meant to be logged as it is, once.
 */
bool connection_serve(struct connection **connection, int fd, const char *peer, const struct credentials *credentials,
                      const struct wake *wake, double deadline_s, struct error *error);

/*
 * Moves an open connection to shared memory (net/local.h), which it takes over, with the socket that goes with it. The
 * peer has agreed, and nothing is left in the buffers of either side. Fails if something is.
 */
bool connection_move(struct connection *connection, struct local *local, int fd, struct error *error);
bool connection_is_local(const struct connection *connection);

/* Announces the end to the peer, if that does not block, and frees the connection. NULL is fine. */
void connection_close(struct connection *connection);

/* Reads exactly `size` bytes. */
bool connection_read(struct connection *connection, void *bytes, size_t size, double deadline_s, struct error *error);

/*
 * Writes all parts, in order. May hold back bytes for the next write, up to CONNECTION_BUFFER or, in shared memory, as
 * many as a ring holds; connection_flush sends them.
 */
bool connection_write_more(struct connection *connection, const struct iovec *parts, int count, double deadline_s,
                           struct error *error);
bool connection_flush(struct connection *connection, double deadline_s, struct error *error);

/* Waits until a read would find something (data, an end or an error). *ready: false after the deadline or a wake. */
bool connection_wait(struct connection *connection, double deadline_s, bool *ready, struct error *error);

/* The number of bytes that a read would find buffered, as known after a wait; *bytes: where they are. */
size_t connection_peek(const struct connection *connection, const uint8_t **bytes);

/*
 * connection_park releases the buffers if they are empty. False: they are not, perhaps because of half a record, the
 * other half of which must be awaited with connection_wait; or something has just come. A parked connection allows only
 * connection_resume, connection_close, and the queries below. Resuming one that is not parked is fine; if memory is
 * out, resuming fails and it stays parked.
 */
bool connection_is_empty(const struct connection *connection); /* true: it may be parked */
bool connection_park(struct connection *connection);
bool connection_resume(struct connection *connection, struct error *error);

/*
 * Sets the idle timeout: a wait also ends, as if its deadline had passed, if for this long nothing came from the peer
 * and its system accepted nothing of what waits to be sent. 0, the default: only deadlines count.
 */
void connection_set_idle_timeout(struct connection *connection, double seconds);
double
connection_last_received_s(const struct connection *connection); /* when something last arrived, or it was opened */
size_t connection_unsent(const struct connection *connection);   /* bytes that the peer's system has not taken yet */

enum connection_state connection_state(const struct connection *connection);

/* The peer's name in errors and logs. The server renames it once it knows the member: "worker 1 (10.0.0.3:41234)". */
const char *connection_name(const struct connection *connection);
const char *connection_peer(const struct connection *connection); /* its address alone */
void connection_rename(struct connection *connection, const struct member *member);

/* The member named in the peer's certificate; MEMBER_NONE with a fleet key or plain TCP. */
struct member connection_credential(const struct connection *connection);
/* "TLS1-3-AES-256-GCM-SHA384", "plain TCP", "shared memory" */
const char *connection_cipher(const struct connection *connection);

/* Bytes on the wire since it was opened. */
uint64_t connection_bytes_in(const struct connection *connection);
uint64_t connection_bytes_out(const struct connection *connection);

/*
 * For polling several connections: when it is readable, connection_wait with a deadline in the past shows whether a
 * read would find something. Call that before polling again, too, since data may have arrived with the last read.
 */
int connection_fd(const struct connection *connection);

#endif
