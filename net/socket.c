/* What connections need of the system. */
#include "net/socket.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/simulation.h"

/* --- Waits --- */

/*
 * Every wait with a deadline in this program goes through the one poll here, so that signals, wakes and a clock that is
 * slightly late are handled in one place.
 */

bool wake_create(struct wake *wake, struct error *error)
{
    wake->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake->fd >= 0 || error_set(error, "can't create an eventfd: %s", strerror(errno));
}

void wake_destroy(struct wake *wake)
{
    if (wake->fd >= 0) {
        close(wake->fd);
        wake->fd = -1;
    }
}

void wake_raise(struct wake *wake)
{
    int kept = errno;
    eventfd_write(wake->fd, 1); /* it can fail only if the counter is full, and so raised already */
    errno = kept;
}

void wake_lower(struct wake *wake)
{
    eventfd_t count;
    eventfd_read(wake->fd, &count);
}

/* Milliseconds until the deadline, rounded up: poll must not return just before it, over and over. */
static int milliseconds_left(double deadline_s)
{
    double left = ceil((deadline_s - clock_monotonic_s()) * 1e3);
    return left <= 0 ? 0 : left > 1e6 ? 1000000 : (int)left;
}

enum wake_result wake_wait_any(struct pollfd *waits, int count, const struct wake *wake, double deadline_s)
{
    waits[0] = (struct pollfd){.fd = wake ? wake->fd : -1, .events = POLLIN};
    for (;;) {
        int timeout_ms = milliseconds_left(deadline_s);
        int ready = poll(waits, (nfds_t)count, timeout_ms);
        if (ready > 0) {
            return waits[0].revents ? WAKE_RAISED : WAKE_READY;
        }
        if (ready == 0 && milliseconds_left(deadline_s) == 0) {
            return WAKE_TIMEOUT;
        }
        assert(ready == 0 || errno == EINTR || errno == ENOMEM || errno == EAGAIN);
    }
}

enum wake_result wake_wait(int fd, short events, const struct wake *wake, double deadline_s)
{
    struct pollfd waits[] = {{.fd = -1}, {.fd = fd, .events = events}};
    return wake_wait_any(waits, 2, wake, deadline_s);
}

/* --- Addresses --- */

/* Addresses between text and sockets. IPv4 mapped into IPv6 is shown as IPv4, as the config writes it. */

void endpoint_format_address(const struct address *address, char text[ENDPOINT_TEXT])
{
    snprintf(text, ENDPOINT_TEXT, address->is_ipv6 ? "[%s]:%d" : "%s:%d", address->host, address->port);
}

bool endpoint_resolve(const struct address *address, struct endpoints *endpoints, struct error *error)
{
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    snprintf(port, sizeof port, "%d", address->port);
    int result = getaddrinfo(address->host, port, &hints, &found);
    if (result != 0) {
        return error_set(error, "host %s: %s", address->host,
                         result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
    }
    endpoints->count = 0;
    for (struct addrinfo *next = found; next && endpoints->count < ENDPOINT_MAX; next = next->ai_next) {
        struct endpoint *endpoint = &endpoints->list[endpoints->count];
        if (next->ai_addrlen <= sizeof endpoint->address) {
            memcpy(&endpoint->address, next->ai_addr, next->ai_addrlen);
            endpoint->size = next->ai_addrlen;
            endpoints->count++;
        }
    }
    freeaddrinfo(found);
    if (endpoints->count == 0) {
        return error_set(error, "host %s: has no address", address->host);
    }
    return true;
}

void endpoint_format_host(const struct endpoint *endpoint, char text[ENDPOINT_TEXT])
{
    snprintf(text, ENDPOINT_TEXT, "?");
    if (endpoint->address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &endpoint->address, sizeof six);
        if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
            inet_ntop(AF_INET, six.sin6_addr.s6_addr + 12, text, ENDPOINT_TEXT);
        } else {
            inet_ntop(AF_INET6, &six.sin6_addr, text, ENDPOINT_TEXT);
        }
    } else {
        struct sockaddr_in four;
        memcpy(&four, &endpoint->address, sizeof four);
        inet_ntop(AF_INET, &four.sin_addr, text, ENDPOINT_TEXT);
    }
}

void endpoint_format(const struct endpoint *endpoint, char text[ENDPOINT_TEXT])
{
    char host[ENDPOINT_TEXT];
    struct sockaddr_in four; /* its port lies where that of an IPv6 address does */
    endpoint_format_host(endpoint, host);
    memcpy(&four, &endpoint->address, sizeof four);
    snprintf(text, ENDPOINT_TEXT, strchr(host, ':') ? "[%.*s]:%u" : "%.*s:%u", (int)(ENDPOINT_TEXT - 9), host,
             ntohs(four.sin_port));
}

/* --- Lookups with a deadline --- */

/*
 * A lookup that takes too long cannot be cancelled, only abandoned: it runs on its own thread, and whichever of the two
 * threads finishes last frees the request.
 */

bool (*resolver_lookup)(const struct address *address, struct endpoints *endpoints,
                        struct error *error) = endpoint_resolve;

enum resolver_answer { ANSWER_AWAITED, ANSWER_FOUND, ANSWER_ERROR };

/* One request, shared by two threads: the last one frees it. */
struct resolver_query {
    struct address address;
    struct endpoints endpoints;
    struct error error;
    _Atomic(enum resolver_answer) answer; /* set after the fields above: a wake alone orders no memory */
    struct wake answered;
    atomic_int holders;
};

static atomic_int under_way;

static void release(struct resolver_query *query)
{
    if (atomic_fetch_sub(&query->holders, 1) == 1) {
        wake_destroy(&query->answered);
        free(query);
    }
}

static void *run_query(void *context)
{
    struct resolver_query *query = context;
    const bool found = resolver_lookup(&query->address, &query->endpoints, &query->error);
    atomic_store(&query->answer, found ? ANSWER_FOUND : ANSWER_ERROR);
    atomic_fetch_sub(&under_way, 1); /* before anyone can see that this lookup is over: its place is free by then */
    wake_raise(&query->answered);
    release(query);
    return NULL;
}

static bool is_numeric(const struct address *address)
{
    struct in_addr four;
    return address->is_ipv6 || inet_pton(AF_INET, address->host, &four) == 1;
}

/* A thread that is never joined. */
static bool start_thread(struct resolver_query *query)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attributes, run_query, query) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static struct resolver_query *start_query(const struct address *address, struct error *error)
{
    struct resolver_query *query = calloc(1, sizeof *query);
    if (!query || !wake_create(&query->answered, error)) {
        free(query);
        error_set(error, "host %s: out of memory while looking it up", address->host);
        return NULL;
    }
    query->address = *address;
    atomic_init(&query->holders, 2);
    if (atomic_fetch_add(&under_way, 1) >= RESOLVER_MOST || !start_thread(query)) {
        atomic_fetch_sub(&under_way, 1);
        wake_destroy(&query->answered);
        free(query);
        error_set(error, "host %s: too many names are being looked up; does the name server answer?", address->host);
        return NULL;
    }
    return query;
}

bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error)
{
    if (is_numeric(address)) {
        return endpoint_resolve(address, endpoints, error);
    }
    double begun_s = clock_monotonic_s();
    RARELY("a lookup is given up", deadline_s = begun_s);
    struct resolver_query *query = start_query(address, error);
    if (!query) {
        return false;
    }
    enum wake_result how = wake_wait(query->answered.fd, POLLIN, wake, deadline_s);
    const enum resolver_answer answer = how == WAKE_READY ? atomic_load(&query->answer) : ANSWER_AWAITED;
    if (answer == ANSWER_FOUND) {
        *endpoints = query->endpoints;
    } else if (answer == ANSWER_ERROR) {
        *error = query->error;
    } else if (how == WAKE_RAISED) {
        error_set(error, "host %s: the lookup was cancelled", address->host);
    } else {
        error_set(error, "host %s: no name server answered within %.3g s", address->host,
                  clock_monotonic_s() - begun_s);
    }
    release(query);
    return answer == ANSWER_FOUND;
}

/* --- Sockets --- */

/*
 * A connect to a name with several addresses gives each its fair share of the time left, so that one that swallows
 * packets can't use up the time of one that would answer.
 */

/*
 * The system's queue of connections that are not accepted yet; its own limit is often the same. The 128 of musl's
 * SOMAXCONN are full within 30 ms of a flood, and further clients then wait for a second.
 */
enum { BACKLOG = 4096 };

static bool is_loopback(const struct endpoint *endpoint)
{
    if (endpoint->address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &endpoint->address, sizeof six);
        return IN6_IS_ADDR_LOOPBACK(&six.sin6_addr) ||
               (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr) && six.sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
    }
    struct sockaddr_in four;
    memcpy(&four, &endpoint->address, sizeof four);
    return ntohl(four.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

/*
 * None of these is worth failing for: a kernel that lacks one still transfers bytes. Between processes of one machine
 * there is no congestion, and BBR, if it is the system's default, only delays sending; every kernel has Reno.
 */
void socket_set_options(int fd, const struct endpoint *peer)
{
    static const char unpaced[] = "reno";
    int on = 1, idle_s = 10, interval_s = 5, probes = 4, lost_after_ms = SOCKET_LOST_AFTER_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_after_ms, sizeof lost_after_ms);
    if (is_loopback(peer)) {
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, unpaced, sizeof unpaced - 1);
    }
}

/* Connects to one endpoint; returns WAKE_READY and the socket, or how it ended and errno. */
static enum wake_result connect_endpoint(int *fd, const struct endpoint *endpoint, const struct wake *wake,
                                         double deadline_s)
{
    enum wake_result how = WAKE_READY;
    int reason = 0;
    socklen_t size = sizeof reason;
    int new = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (new < 0) {
        *fd = -1;
        return WAKE_READY;
    }
    socket_set_options(new, endpoint);
    if (connect(new, (const struct sockaddr *)&endpoint->address, endpoint->size) != 0) {
        reason = errno;
        if (reason == EINPROGRESS) {
            how = wake_wait(new, POLLOUT, wake, deadline_s);
            getsockopt(new, SOL_SOCKET, SO_ERROR, &reason, &size);
        }
    }
    if (how == WAKE_READY && reason == 0) {
        *fd = new;
        return how;
    }
    close(new);
    *fd = -1;
    errno = how == WAKE_TIMEOUT ? ETIMEDOUT : reason;
    return how;
}

bool socket_connect(int *fd, const struct address *address, const struct wake *wake, double deadline_s,
                    struct error *error)
{
    char text[ENDPOINT_TEXT];
    struct endpoints endpoints;
    endpoint_format_address(address, text);
    double started_s = clock_monotonic_s();
    if (!resolver_find(address, wake, deadline_s, &endpoints, error)) {
        return error_wrap(error, "can't connect to %s", text);
    }
    int reason = ETIMEDOUT;
    for (int i = 0; i < endpoints.count; i++) {
        double now_s = clock_monotonic_s();
        double share_s = now_s + (deadline_s - now_s) / (endpoints.count - i);
        enum wake_result how = connect_endpoint(fd, &endpoints.list[i], wake, share_s);
        if (*fd >= 0) {
            return true;
        }
        if (how == WAKE_RAISED) {
            return error_set(error, "connecting to %s was cancelled", text);
        }
        reason = errno;
    }
    if (reason == ETIMEDOUT) {
        return error_set(error, "can't connect to %s: no answer within %.3g s", text, clock_monotonic_s() - started_s);
    }
    return error_set(error, "can't connect to %s: %s%s", text, strerror(reason),
                     reason == ECONNREFUSED ? " (nothing listens there)" : "");
}

static bool listen_on(int *fd, const struct addrinfo *where)
{
    int on = 1, off = 0;
    *fd = socket(where->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (*fd < 0) {
        return false;
    }
    setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (where->ai_family == AF_INET6) {
        setsockopt(*fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off); /* "every address" includes IPv4 */
    }
    if (bind(*fd, where->ai_addr, where->ai_addrlen) == 0 && listen(*fd, BACKLOG) == 0) {
        return true;
    }
    int reason = errno;
    close(*fd);
    *fd = -1;
    errno = reason;
    return false;
}

static bool listen_on_any_of(int *fd, const char *host, int family, uint16_t port, int *reason, struct error *error)
{
    char service[8];
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    const char *shown = host ? host : "any address";
    snprintf(service, sizeof service, "%u", port);
    int result = getaddrinfo(host, service, &hints, &found);
    if (result != 0) {
        return error_set(error, "can't listen on %s port %u: %s", shown, port,
                         result == EAI_SYSTEM ? strerror(errno) : gai_strerror(result));
    }
    for (struct addrinfo *next = found; next && *fd < 0; next = next->ai_next) {
        if (!listen_on(fd, next)) {
            *reason = errno;
        }
    }
    freeaddrinfo(found);
    return *fd >= 0 || error_set(error, "can't listen on %s port %u: %s%s", shown, port, strerror(*reason),
                                 *reason == EADDRINUSE ? "; is another process of this job running here?" : "");
}

static bool listen_once(int *fd, const char *host, uint16_t port, int *reason, struct error *error)
{
    *fd = -1;
    if (host && host[0] != '\0') {
        return listen_on_any_of(fd, host, AF_UNSPEC, port, reason, error);
    }
    /* One IPv6 socket accepts both; a machine without IPv6 gets an IPv4 socket. */
    return listen_on_any_of(fd, NULL, AF_INET6, port, reason, error) ||
           listen_on_any_of(fd, NULL, AF_INET, port, reason, error);
}

bool socket_listen(int *fd, const char *host, uint16_t port, struct error *error)
{
    const double until_s = clock_monotonic_s() + SOCKET_IN_USE_S;
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    int reason = 0;
    while (!listen_once(fd, host, port, &reason, error)) {
        if (reason != EADDRINUSE || clock_monotonic_s() >= until_s) {
            return false;
        }
        nanosleep(&pause, NULL);
    }
    return true;
}

uint16_t socket_port(int fd)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    int result = getsockname(fd, (struct sockaddr *)&address, &size);
    assert(result == 0);
    if (address.ss_family == AF_INET6) {
        struct sockaddr_in6 six;
        memcpy(&six, &address, sizeof six);
        return ntohs(six.sin6_port);
    }
    struct sockaddr_in four;
    memcpy(&four, &address, sizeof four);
    return ntohs(four.sin_port);
}

/* Failures of accept that concern the accepted connection, not the listener (see accept(2)). */
static bool belongs_to_one_connection(int reason)
{
    switch (reason) {
    case EAGAIN:
    case EINTR:
    case ECONNABORTED:
    case ENETDOWN:
    case EPROTO:
    case ENOPROTOOPT:
    case EHOSTDOWN:
    case ENONET:
    case EHOSTUNREACH:
    case EOPNOTSUPP:
    case ENETUNREACH:
        return true;
    default:
        return false;
    }
}

enum socket_accepted socket_accept(int listener, int *fd, struct endpoint *from, struct error *error)
{
    from->size = sizeof from->address;
    *fd = accept4(listener, (struct sockaddr *)&from->address, &from->size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (*fd >= 0) {
        return SOCKET_ACCEPTED;
    }
    if (belongs_to_one_connection(errno)) {
        return SOCKET_NONE;
    }
    error_set(error, "can't accept connections: %s", strerror(errno));
    return SOCKET_FAILED;
}
