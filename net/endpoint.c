/* Addresses between text and sockets. IPv4 mapped into IPv6 is shown as IPv4, as the config writes it. */
#include "net/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/simulation.h"

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
