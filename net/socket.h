/*
 * TCP sockets under blocking calls with deadlines.
 *
 * Every socket is non-blocking and every wait is a poll with an absolute deadline, in seconds of clock_monotonic_s. A
 * wait also ends when the `wake` it was given is raised (net/wake.h); NULL stands for none. Sockets have TCP_NODELAY,
 * keep-alive and TCP_USER_TIMEOUT set, so that a vanished peer is noticed even by a sender.
 */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "net/endpoint.h"
#include "net/wake.h"

enum {
    SOCKET_LOST_AFTER_MS = 30000, /* a peer whose machine or link is gone is given up after so long */
    SOCKET_IN_USE_S = 2,          /* a port that is in use is waited for */
};

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

/* The options that every socket here has, for one from socket_take. */
void socket_prepare(int fd, const struct endpoint *peer);

/*
 * Takes the next connection, with the address it comes from, if one is there: where the listener is readable. Failures
 * that belong to one connection (it was aborted before we took it) are SOCKET_NONE. What is not to be used at once
 * needs no socket_prepare, which costs more than to take it.
 */
enum socket_taken { SOCKET_TAKEN, SOCKET_NONE, SOCKET_FAILED };
enum socket_taken socket_take(int listener, int *fd, struct endpoint *from, struct error *error);

#endif
