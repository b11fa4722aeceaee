/*
 * The local way: two processes of one user on one machine exchange a connection's bytes through shared memory instead
 * of TLS and the kernel.
 *
 * It begins as any connection, with the ordinary handshake. Then the connecting side offers to move it (local_offer,
 * and a request `local` in which name and secret travel over the connection), and the other side takes the offer
 * (local_take): it makes the memory, a memfd sealed against any change of size, and passes it through a Unix socket of
 * the offered name. Each side checks that the other belongs to the same user (SO_PEERCRED), and the offering side that
 * the memory comes with the secret. Across machines, network namespaces (containers) and users the name leads nowhere,
 * and the connection stays as it is.
 *
 * The memory holds a ring of bytes for each direction. Each side keeps its own position to itself and reads the peer's
 * position once before it uses it; bytes are copied out before anybody looks at them. So a peer that writes whatever it
 * likes into the memory can do no more than one that sends such bytes. The Unix socket replaces the TCP socket under
 * the same descriptor: a byte on it wakes a side that said that it waits, and its end shows that the peer has gone.
 *
 * One thread at a time uses a `struct local`.
 */
#ifndef NET_LOCAL_H
#define NET_LOCAL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/error.h"

enum {
    LOCAL_RING_LEAST = 64 * 1024, /* bytes of a ring: a multiple of this one, up to that one */
    LOCAL_RING_MOST = 8 * 1024 * 1024,
    LOCAL_NAME = 33, /* 32 hexadecimal digits and a zero byte, as of the secret */
};

struct local;

/* Bytes of a ring that holds a message with `bytes` of bulk, if it may be that large. */
size_t local_ring(size_t bytes);

/* An offer to move a connection. */
struct local_offer {
    int listener; /* the Unix socket; -1: none */
    char name[LOCAL_NAME], secret[LOCAL_NAME];
};

/* True if both ends of a TCP connection have the same address: then an offer is worth making. */
bool local_is_same_machine(int fd);

bool local_offer(struct local_offer *offer, struct error *error);
void local_offer_end(struct local_offer *offer);

/*
 * The other side's: makes rings of about `bytes` and passes them to whoever offered. *fd: the new socket, which the
 * caller puts in the place of the old one. The peer may then write at once.
 */
bool local_take(struct local **local, int *fd, const char *name, const char *secret, size_t bytes, struct error *error);

/* The offering side's, after the peer has taken the offer. It does not wait. */
bool local_accept(struct local **local, int *fd, const struct local_offer *offer, struct error *error);

void local_free(struct local *local); /* NULL is fine; the socket is the caller's */

/*
 * As recvmsg and sendmsg on a non-blocking socket, `fd` being that of local_take or local_accept: errno is EAGAIN if
 * there is nothing to receive, or no room; 0 from local_receive: the peer has closed, and everything was received;
 * EBADMSG: the peer's position makes no sense. What was sent is published by local_publish, or once the ring is full:
 * so the peer is woken once for a message, however many parts that has.
 */
ssize_t local_receive(struct local *local, int fd, const struct iovec *parts, size_t count);
ssize_t local_send(struct local *local, int fd, const struct iovec *parts, size_t count);
void local_publish(struct local *local, int fd);

/*
 * Before any wait until `fd` is readable, whether to receive or to send: publishes how far this side is, and asks the
 * peer for a byte. False: there is no need to wait any more.
 */
bool local_must_wait(struct local *local, int fd, bool to_send);

size_t local_unsent(const struct local *local); /* bytes that the peer has not taken yet */

#endif
