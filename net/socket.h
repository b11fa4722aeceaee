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
    SOCKET_LOST_AFTER_MS = 30000, /* time until a vanished peer is given up */
    SOCKET_IN_USE_S = 2,          /* longest wait for a port in use */
};

/* Connects to the first endpoint of the address that answers, trying all of them before the deadline. */
bool socket_connect(int *fd, const struct address *address, const struct wake *wake, double deadline_s,
                    struct error *error);

/*
 * Listens on `host` (a name or address; NULL or "": every address, IPv6 and IPv4) and `port` (0: chosen by the system,
 * see socket_port). The caller closes the socket. A port in use is retried for SOCKET_IN_USE_S: an outgoing connection
 * may be using it for a moment, or its last owner may be about to exit.
 */
bool socket_listen(int *fd, const char *host, uint16_t port, struct error *error);
uint16_t socket_port(int fd);

/* Sets the options that every socket here has, on one from socket_accept. */
void socket_set_options(int fd, const struct endpoint *peer);

/*
 * Accepts the next connection, if there is one, with its source address; call it when the listener is readable.
 * Failures of a single connection (aborted before we accepted it) are SOCKET_NONE. Defer socket_set_options, which
 * costs more than accepting, until the socket is used.
 */
enum socket_accepted { SOCKET_ACCEPTED, SOCKET_NONE, SOCKET_FAILED };
enum socket_accepted socket_accept(int listener, int *fd, struct endpoint *from, struct error *error);

#endif
