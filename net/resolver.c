/*
 * A lookup that takes too long cannot be cancelled, only abandoned: it runs on its own thread, and whichever of the two
 * threads finishes last frees the request.
 */
#include "net/resolver.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/simulation.h"

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

static void let_go(struct resolver_query *question)
{
    if (atomic_fetch_sub(&question->holders, 1) == 1) {
        wake_destroy(&question->answered);
        free(question);
    }
}

static void *look_up(void *context)
{
    struct resolver_query *question = context;
    const bool found = resolver_lookup(&question->address, &question->endpoints, &question->error);
    atomic_store(&question->answer, found ? ANSWER_FOUND : ANSWER_ERROR);
    atomic_fetch_sub(&under_way, 1); /* before anyone can see that this lookup is over: its place is free by then */
    wake_raise(&question->answered);
    let_go(question);
    return NULL;
}

static bool is_numeric(const struct address *address)
{
    struct in_addr four;
    return address->is_ipv6 || inet_pton(AF_INET, address->host, &four) == 1;
}

/* A thread that is never joined. */
static bool start(struct resolver_query *question)
{
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    bool started = pthread_create(&thread, &attributes, look_up, question) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

static struct resolver_query *ask(const struct address *address, struct error *error)
{
    struct resolver_query *question = calloc(1, sizeof *question);
    if (!question || !wake_create(&question->answered, error)) {
        free(question);
        error_set(error, "host %s: out of memory while looking it up", address->host);
        return NULL;
    }
    question->address = *address;
    atomic_init(&question->holders, 2);
    if (atomic_fetch_add(&under_way, 1) >= RESOLVER_MOST || !start(question)) {
        atomic_fetch_sub(&under_way, 1);
        wake_destroy(&question->answered);
        free(question);
        error_set(error, "host %s: too many names are being looked up; does the name server answer?", address->host);
        return NULL;
    }
    return question;
}

bool resolver_find(const struct address *address, const struct wake *wake, double deadline_s,
                   struct endpoints *endpoints, struct error *error)
{
    if (is_numeric(address)) {
        return endpoint_resolve(address, endpoints, error);
    }
    double begun_s = clock_monotonic_s();
    RARELY("a lookup is given up", deadline_s = begun_s);
    struct resolver_query *question = ask(address, error);
    if (!question) {
        return false;
    }
    enum wake_result how = wake_wait(question->answered.fd, POLLIN, wake, deadline_s);
    const enum resolver_answer answer = how == WAKE_READY ? atomic_load(&question->answer) : ANSWER_AWAITED;
    if (answer == ANSWER_FOUND) {
        *endpoints = question->endpoints;
    } else if (answer == ANSWER_ERROR) {
        *error = question->error;
    } else if (how == WAKE_RAISED) {
        error_set(error, "host %s: the lookup was cancelled", address->host);
    } else {
        error_set(error, "host %s: no name server answered within %.3g s", address->host,
                  clock_monotonic_s() - begun_s);
    }
    let_go(question);
    return answer == ANSWER_FOUND;
}
