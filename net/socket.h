/* Addresses, sockets, and waits with a deadline, which other threads can end. */
#ifndef NET_SOCKET_H
#define NET_SOCKET_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/error.h"
#include "base/text/address.h"

/* --- Waits --- */

/* Waits with a deadline, and a flag by which any thread or signal handler can end them. */

struct wake {
    int fd; /* an eventfd: readable while raised */
};
bool wake_create(struct wake *wake, struct error *error);
void wake_destroy(struct wake *wake); /* fine on one whose fd is -1 */
void wake_raise(struct wake *wake);   /* safe in signal handlers; stays raised */
void wake_lower(struct wake *wake);

/* How a wait ended. */
enum wake_result { WAKE_READY, WAKE_TIMEOUT, WAKE_RAISED };

/*
 * Waits for `events` (POLLIN, POLLOUT) or an error on `fd` (-1: none); the next call on it shows which. Ends at the
 * deadline, in seconds of clock_monotonic_s, or when the wake (NULL: none) is raised.
 */
enum wake_result wake_wait(int fd, short events, const struct wake *wake, double deadline_s);

/* The same for several, filled in by poll(2); the first is the wake's. A deadline in the past only polls. */
enum wake_result wake_wait_any(struct pollfd *waits, int count, const struct wake *wake, double deadline_s);

/* --- Addresses --- */

/* Addresses as text (base/text/address.h), names and socket addresses. */

enum {
    ENDPOINT_TEXT = ADDRESS_MAX_HOST + 10, /* room for "[host]:65535" and its end */
    ENDPOINT_MAX = 16,                     /* addresses of one name; further ones are not tried */
};

struct endpoint {
    struct sockaddr_storage address;
    socklen_t size;
};

/* The addresses of a name, in the system's order of preference. */
struct endpoints {
    struct endpoint list[ENDPOINT_MAX];
    int count; /* at least 1 after endpoint_resolve */
};

/* Blocks on the system's resolver without a deadline: see resolver_find for one. */
bool endpoint_resolve(const struct address *address, struct endpoints *endpoints, struct error *error);

/* "10.0.0.1:2222" or "[::1]:2222"; IPv4 addresses mapped into IPv6 are written as IPv4. */
void endpoint_format(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The same without the port: "10.0.0.1" or "::1". */
void endpoint_format_host(const struct endpoint *endpoint, char text[ENDPOINT_TEXT]);

/* The text that address_parse accepts. */
void endpoint_format_address(const struct address *address, char text[ENDPOINT_TEXT]);

/* --- Lookups with a deadline --- */

/*
 * The system's resolver has its own timeouts (resolv.conf; 10 s and more by default), so it runs on a thread that is
 * abandoned if it takes too long. Any thread may call. At most RESOLVER_MOST lookups run at once, including abandoned
 * ones.
 */
enum { RESOLVER_MOST = 32 };

/* Numeric addresses are resolved at once. wake (NULL: none) ends the wait. */
bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error);

/* The system lookup; a test replaces it by a slow one. */
extern bool (*resolver_lookup)(const struct address *address, struct endpoints *endpoints, struct error *error);

/* --- Sockets --- */

/*
 * TCP sockets under blocking calls with deadlines.
 *
 * Every socket is non-blocking and every wait is a poll with an absolute deadline, in seconds of clock_monotonic_s. A
 * wait also ends when the `wake` it was given is raised; NULL stands for none. Sockets have TCP_NODELAY, keep-alive and
 * TCP_USER_TIMEOUT set, so that a vanished peer is noticed even by a sender.
 */

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
