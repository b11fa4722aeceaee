/* A listener for tests: admits workers, one connection for each index at a time, and answers their pings. */
#ifndef TESTS_NET_LISTENING_H
#define TESTS_NET_LISTENING_H

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "net/listener.h"

enum { LISTENING_PATIENCE_S = 60 }; /* of both sides with each other, however busy this machine is */

struct listening {
    struct listener *listener;
    pthread_mutex_t lock;
    struct wake wake;
    pthread_t thread;
    atomic_int admitted, left;
    atomic_bool drops;     /* admitted peers are dropped at once */
    int members, expected; /* 0: 8 and 4 */
    int likely;
    double keep_s;           /* time until an idle session is parked; 0: none is */
    atomic_bool read_paused; /* parked sessions are resumed by no input */
    atomic_int timed; /* the worker whose session is woken a tenth of a second after it is parked next; 0: none */
    atomic_int served, parked;
    enum listener_inline (*try_inline)(struct listener_session *session); /* NULL: threads do all the work */
    uint16_t refusal; /* 0, or the reason for which all are refused */
    struct credentials *credentials;
};

struct listening_session {
    struct listener_session base;
    struct listening *owner;
    int worker;
};

static inline struct hello_identity listening_hello(const void *context)
{
    return (struct hello_identity){.member = {MEMBER_PS, 0},
                                   .incarnation = 11,
                                   .program = "trainer",
                                   .cluster = "test",
                                   .digest = "d",
                                   .job = "{}",
                                   .lease_ms = 10000};
}

static inline void listening_begin(struct listener_session *base, void *context)
{
    struct listening_session *session = (struct listening_session *)(void *)base;
    session->owner = context;
    session->worker = -1;
}

static inline bool listening_is_of(const struct listener_session *base, const void *worker)
{
    return ((const struct listening_session *)(const void *)base)->worker == *(const int *)worker;
}

static inline uint16_t listening_admit(struct listener_session *base, const struct peer *peer, struct error *message)
{
    struct listening_session *session = (struct listening_session *)(void *)base;
    struct listening *owner = session->owner;
    struct listener_session *older;
    if (owner->refusal != 0) {
        error_set(message, "nobody is let in");
        return owner->refusal;
    }
    pthread_mutex_lock(&owner->lock);
    if (listener_count(owner->listener, listening_is_of, &peer->member.index, &older) > 0) {
        listener_disconnect(older);
    }
    session->worker = peer->member.index;
    listener_admit(base);
    pthread_mutex_unlock(&owner->lock);
    atomic_fetch_add(&owner->admitted, 1);
    return 0;
}

static inline bool listening_serve(struct listener_session *base)
{
    struct listening *owner = ((struct listening_session *)(void *)base)->owner;
    struct channel *channel = &base->channel;
    struct error error;
    bool ready, good = !atomic_load(&owner->drops) && channel_resume(channel, &error);
    atomic_fetch_add(&owner->served, 1);
    while (good) {
        const double until_s = owner->keep_s > 0 ? clock_monotonic_s() + owner->keep_s : INFINITY;
        good = connection_wait(channel->connection, until_s, &ready, &error);
        if (good && !ready && channel_park(channel)) {
            int worker = ((struct listening_session *)(void *)base)->worker;
            if (worker > 0 && atomic_compare_exchange_strong(&owner->timed, &worker, 0)) {
                pthread_mutex_lock(&owner->lock);
                listener_wake_at(base, clock_monotonic_s() + 0.1);
                pthread_mutex_unlock(&owner->lock);
            }
            base->read_paused = atomic_load(&owner->read_paused);
            atomic_fetch_add(&owner->parked, 1);
            return true;
        }
        if (good && ready) {
            good = channel_receive(channel, clock_monotonic_s() + LISTENING_PATIENCE_S, &error) &&
                   channel->frame.type == MESSAGE_ping;
            struct message_pong pong = {channel->message.ping.nonce};
            good = good && channel_send(channel, MESSAGE_pong, channel->frame.request, &pong,
                                        clock_monotonic_s() + LISTENING_PATIENCE_S, &error);
        }
    }
    return false;
}

static inline void listening_leave(struct listener_session *base)
{
    atomic_fetch_add(&((struct listening_session *)(void *)base)->owner->left, 1);
}

static inline void *listening_run(void *context)
{
    struct listening *owner = context;
    while (listener_accept(owner->listener, &owner->wake, clock_monotonic_s() + 0.1)) {
    }
    return NULL;
}

/* port: 0, or the one to listen on. No thread accepts yet. */
static inline void listening_create(struct listening *owner, struct credentials *credentials, uint16_t port)
{
    struct error error;
    const struct listener_options options = {
        .host = "127.0.0.1",
        .port = port,
        .self = {.credentials = credentials, .hello = listening_hello, .idle_timeout_s = LISTENING_PATIENCE_S},
        .lock = &owner->lock,
        .session_size = sizeof(struct listening_session),
        .stack_size = 1024 * 1024,
        .members = owner->members > 0 ? owner->members : 8,
        .expected = owner->expected > 0 ? owner->expected : 4,
        .likely = owner->likely,
        .context = owner,
        .begin = listening_begin,
        .admit = listening_admit,
        .serve = listening_serve,
        .try_inline = owner->try_inline,
        .leave = listening_leave,
    };
    owner->credentials = credentials;
    pthread_mutex_init(&owner->lock, NULL);
    bool good = listener_create(&owner->listener, &options, &error) && wake_create(&owner->wake, &error);
    assert(good);
}

static inline void listening_start(struct listening *owner, struct credentials *credentials, uint16_t port)
{
    listening_create(owner, credentials, port);
    bool good = pthread_create(&owner->thread, NULL, listening_run, owner) == 0;
    assert(good);
}

static inline void listening_destroy(struct listening *owner)
{
    listener_destroy(owner->listener);
    wake_destroy(&owner->wake);
    pthread_mutex_destroy(&owner->lock);
}

static inline void listening_stop(struct listening *owner)
{
    wake_raise(&owner->wake);
    pthread_join(owner->thread, NULL);
    listening_destroy(owner);
}

/* A worker's hello; context: its index. */
static inline struct hello_identity listening_worker(const void *context)
{
    struct hello_identity hello = listening_hello(NULL);
    hello.member = (struct member){MEMBER_WORKER, *(const int *)context};
    hello.incarnation = 22;
    return hello;
}

/* Connects as a worker; false: it was not admitted. */
static inline bool listening_come_in(struct channel *channel, const struct listening *owner, int worker,
                                     struct error *error)
{
    static const struct member ps_0 = {MEMBER_PS, 0};
    const double until_s = clock_monotonic_s() + LISTENING_PATIENCE_S;
    const struct address address = {.host = "127.0.0.1", .port = listener_port(owner->listener)};
    const struct hello_identity hello = listening_worker(&worker);
    struct connection *connection;
    struct peer peer;
    if (!connection_connect(&connection, &address, &ps_0, owner->credentials, NULL, until_s, error)) {
        return false;
    }
    channel_open(channel, connection);
    if (!handshake_connect(channel, &hello, &ps_0, &peer, until_s, NULL, error)) {
        channel_close(channel);
        return false;
    }
    return true;
}

#endif
