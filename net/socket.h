/*
 * TCP sockets under blocking calls with deadlines.
 *
 * Every socket is non-blocking and every wait is a poll with an absolute deadline, in seconds of clock_monotonic_s. A
 * wait also ends when the `wake` it was given is raised, from any thread or signal handler. Sockets have TCP_NODELAY,
 * keep-alive and TCP_USER_TIMEOUT set, so that a vanished peer is noticed even by a sender.
 */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/endpoint.h"

enum {
    SOCKET_LOST_AFTER_MS = 30000, /* a peer whose machine or link is gone is given up after so long */
    SOCKET_IN_USE_S = 2,          /* a port that is in use is waited for */
};

/* A flag that ends waits. All functions that take one accept NULL. */
struct wake {
    int fd; /* an eventfd: readable while raised */
};
bool wake_create(struct wake *wake, struct error *error);
void wake_destroy(struct wake *wake); /* fine on one whose fd is -1 */
void wake_raise(struct wake *wake);   /* safe in signal handlers; stays raised */
void wake_lower(struct wake *wake);

/* How a wait ended. */
enum socket_wait { SOCKET_READY, SOCKET_TIMEOUT, SOCKET_WOKEN };

/* Waits for `events` (POLLIN, POLLOUT) or an error on the socket: the next call on it tells which. */
enum socket_wait socket_wait(int fd, short events, const struct wake *wake, double deadline_s);

/* Connects to the first endpoint of the address that answers, trying all of them before the deadline. */
bool socket_connect(int *fd, const struct address *address, const struct wake *wake, double deadline_s,
                    struct error *error);

/*
 * Listens on `host` (a name or address; NULL or "": every address, IPv6 and IPv4) and `port` (0: one that the system
 * chooses, found by socket_port). The socket is the caller's to close. A port that is in use is tried again for
 * SOCKET_IN_USE_S: the system may have lent it to some connection for a moment, or its last owner is just about to end.
 */
bool socket_listen(int *fd, const char *host, uint16_t port, struct error *error);
uint16_t socket_port(int fd);

/*
 * Takes the next connection; `peer` gets its address as text. *how tells SOCKET_TIMEOUT and SOCKET_WOKEN, which fail,
 * from real failures. Failures that belong to one connection (it was aborted before we took it) are passed over.
 */
bool socket_accept(int listener, int *fd, char peer[ENDPOINT_TEXT], const struct wake *wake, double deadline_s,
                   enum socket_wait *how, struct error *error);

#endif
