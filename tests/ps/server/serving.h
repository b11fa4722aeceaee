/*
 * A ps without a network, for tests and fuzzing of its requests: the handlers, the job and the shard are the program's,
 * and sessions are ends of socket pairs. A single thread does everything. This file provides the time: waiting advances
 * it, and `meanwhile` decides what others do.
 */
#ifndef TESTS_PS_SERVER_SERVING_H
#define TESTS_PS_SERVER_SERVING_H

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/socket.h"
#include "net/transport.h"
#include "ps/server/coordinator.h"
#include "ps/server/requests.h"
#include "ps/shard/internal.h"
#define OWN_CLOCK_WITHOUT_WAITS
#include "tests/own_clock.h"

enum { SERVING_SESSIONS = 8, SERVING_WORKERS = 4, SERVING_PS = 2, SERVING_LEASE_S = 10 };

struct serving_session {
    struct session session;
    struct channel client; /* the peer's */
    bool open;             /* admitted, and not yet ended */
    bool busy;             /* one of its requests is being served */
    bool deaf;             /* something sent to it was dropped */
};

static struct serving {
    struct config config;
    struct server server;
    struct serving_session sessions[SERVING_SESSIONS];
    double now_s;
    void (*meanwhile)(void); /* called during waits; NULL: nothing happens but that time passes */
    int depth;               /* of nested requests */
    int rollout_requests;    /* passed to the coordinator of rollouts */
    int waits;               /* so far */
    double keep_thread_s;
} serving;

/* --- Time and waiting --- */

double own_clock_s(void)
{
    return serving.now_s;
}

/* To the nanosecond, as the product reads it. */
static inline void serving_advance(double seconds)
{
    serving.now_s += seconds;
    serving.now_s = clock_monotonic_s();
}

/* What a ps's main thread does several times a second. */
static inline void serving_tick(void)
{
    struct server *server = &serving.server;
    bool more;
    do {
        server_lock(server);
        more = job_tick(&server->job, serving.now_s);
        server_apply_step(server);
        server_unlock(server);
    } while (more);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *until)
{
    serving.waits++;
    pthread_mutex_unlock(mutex);
    serving_advance(SERVER_TICK_MS / 1000.0);
    serving_tick();
    if (serving.meanwhile) {
        serving.meanwhile();
    }
    pthread_mutex_lock(mutex);
    return ETIMEDOUT;
}

/* Empties the socket of a peer that never reads. */
static inline bool serving_drain(int fd)
{
    static char dropped[1 << 16];
    for (int i = 0; i < SERVING_SESSIONS; i++) {
        struct serving_session *one = &serving.sessions[i];
        if (one->client.connection && one->session.base.fd == fd) {
            one->deaf = true;
            return recv(one->client.connection->fd, dropped, sizeof dropped, MSG_DONTWAIT) > 0;
        }
    }
    return false;
}

static inline int serving_look(struct pollfd *waits, nfds_t count)
{
    return ppoll(waits, count, &(struct timespec){0, 0}, NULL);
}

/* What isn't there after `meanwhile` won't come: a wait lasts as long as it may. */
int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
    const struct pollfd *last = &waits[count - 1];
    int ready = serving_look(waits, count);
    if (ready == 0 && (last->events & POLLOUT) && serving_drain(last->fd)) {
        ready = serving_look(waits, count);
    }
    if (ready != 0 || timeout_ms == 0) {
        return ready;
    }
    if (serving.meanwhile) {
        serving.meanwhile();
        ready = serving_look(waits, count);
    }
    if (ready == 0) {
        serving_advance(timeout_ms / 1000.0);
    }
    return ready;
}

/* --- The listener, as far as requests need it --- */

struct listener_session *listener_next(const struct listener *listener, const struct listener_session *session)
{
    for (int i = session ? (int)((const struct serving_session *)(const void *)session - serving.sessions) + 1 : 0;
         i < SERVING_SESSIONS; i++) {
        if (serving.sessions[i].open && !serving.sessions[i].session.base.disconnected) {
            return &serving.sessions[i].session.base;
        }
    }
    return NULL;
}

void listener_set_waiting(struct listener_session *session, bool waits)
{
    session->waiting = waits;
}

void listener_wake(struct listener_session *session)
{
    session->woken = true;
}

void listener_wake_at(struct listener_session *session, double when_s)
{
    session->wake_s = when_s;
}

double listener_keep_thread_s(const struct listener *listener)
{
    return serving.keep_thread_s;
}

void listener_disconnect(struct listener_session *session)
{
    session->disconnected = true;
    shutdown(session->fd, SHUT_RDWR);
}

bool listener_peer_hung_up(const struct listener_session *session)
{
    struct pollfd hangup = {.fd = session->fd, .events = POLLRDHUP};
    return poll(&hangup, 1, 0) > 0 && (hangup.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void listener_bytes(const struct listener *listener, uint64_t *in, uint64_t *out)
{
    *in = 1100;
    *out = 1200;
}

/* --- Rollouts, for tests without the program's (SERVING_ROLLOUTS) --- */

#ifndef SERVING_ROLLOUTS

void coordinator_drift(struct rollout_coordinator *coordinator, char *message, size_t size)
{
}

void coordinator_show(const struct rollout_coordinator *coordinator, struct board_rollout *shown)
{
}

void coordinator_version(struct rollout_coordinator *coordinator, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1])
{
    *version = 1;
    strcpy(digest, "d16e57");
}

static inline bool serving_rollout(struct session *session, struct error *error)
{
    serving.rollout_requests++;
    return serve_send_done(session, session->channel->frame.request, 0, error);
}

bool serve_report(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

bool serve_propose(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

bool serve_abort_rollout(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

bool serve_offer_program(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

bool serve_put_program(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

bool serve_get_program(struct session *session, struct error *error)
{
    return serving_rollout(session, error);
}

#endif

/* --- The ps --- */

static inline struct config *serving_config(void)
{
    static char names[SERVING_WORKERS][4] = {"a:1", "b:1", "c:1", "d:1"};
    static char *hosts[] = {names[0], names[1], names[2], names[3]};
    struct config *config = &serving.config;
    memset(&serving, 0, sizeof serving);
    serving.now_s = 1000;
    config->cluster.worker_hosts.items = hosts;
    config->cluster.worker_hosts.count = SERVING_WORKERS;
    config->cluster.ps_hosts.items = hosts;
    config->cluster.ps_hosts.count = 1;
    config->cluster.min_workers = 1;
    config->cluster.min_replicas = 1;
    config->cluster.lease_secs = SERVING_LEASE_S;
    config->model.layers[0] = 6;
    config->model.layers[1] = 40;
    config->model.layers[2] = 3;
    config->model.layer_count = 3;
    config->train.optimizer = OPTIMIZER_SGD;
    config->train.learning_rate = 1.0;
    config->train.lr_decay = 1.0;
    config->train.batch_size = 1;
    config->train.micro_batches = 1;
    return config;
}

/* As serving_config left it and the caller changed it, for ps `index`. */
static inline void serving_begin(int index)
{
    struct server *server = &serving.server;
    struct error error;
    const size_t workers = (size_t)config_worker_room(&serving.config.cluster);
    log_setup(LOG_TEXT, (enum log_level)(LOG_ERROR + 1)); /* nothing */
    server->launched = server->config = &serving.config;
    server->index = index;
    server->held_step = -1;
    server->last_loss = NAN;
    server->close_reason = "";
    server->identity.hello = (struct hello_identity){
        .member = {MEMBER_PS, index}, .incarnation = 1, .lease_ms = (uint32_t)(SERVING_LEASE_S * 1000)};
    pthread_mutex_init(&server->lock, NULL);
    pthread_mutex_init(&server->restoring, NULL);
    pthread_cond_init(&server->changed, NULL);
    pthread_cond_init(&server->stepped, NULL);
    model_layout(&server->model, &serving.config.model);
    server->stage_users = calloc(workers, sizeof(struct session *));
    server->sessions_of = calloc(workers, sizeof(struct session *));
    server->finite = calloc(workers, sizeof *server->finite);
    server->not_finite = calloc(workers, sizeof *server->not_finite);
    server->figures = calloc(workers, sizeof *server->figures);
    server->validations = calloc(workers, sizeof *server->validations);
    const bool good = server->figures && server->validations && server->stage_users && server->sessions_of &&
                      server->finite && server->not_finite &&
                      shard_create(&server->shard, &server->model, &serving.config, index, &error) &&
                      job_create(&server->job, &serving.config, index, serving.now_s, &error);
    server->following = good && job_is_follower(&server->job);
    if (!good) {
        abort();
    }
}

/* As ps/server/listen.c groups a worker's sessions. */
static inline void serving_list(struct session *session)
{
    struct session **list = &serving.server.sessions_of[session->worker];
    session->next_of_worker = *list;
    *list = session;
}

static inline void serving_unlist(struct session *session)
{
    struct session **at = &serving.server.sessions_of[session->worker];
    while (*at && *at != session) {
        at = &(*at)->next_of_worker;
    }
    *at = *at ? session->next_of_worker : NULL;
}

/* The session's connection is over: its thread's last actions. */
static inline void serving_hang_up(struct serving_session *one)
{
    struct server *server = &serving.server;
    if (one->open) {
        one->open = false;
        server_lock(server);
        if (one->session.worker >= 0) {
            serving_unlist(&one->session);
            job_disconnected(&server->job, one->session.worker, one->session.incarnation, serving.now_s);
        }
        server_unlock(server);
    }
    channel_close(&one->session.base.channel);
    channel_close(&one->client);
}

static inline void serving_end(void)
{
    struct server *server = &serving.server;
    for (int i = 0; i < SERVING_SESSIONS; i++) {
        serving_hang_up(&serving.sessions[i]);
    }
    pthread_cond_destroy(&server->stepped);
    pthread_cond_destroy(&server->changed);
    pthread_mutex_destroy(&server->restoring);
    pthread_mutex_destroy(&server->lock);
    job_destroy(&server->job);
    shard_destroy(server->shard);
    free(server->description);
    for (int i = 0; i < config_worker_room(&serving.config.cluster); i++) {
        free(server->figures[i].bytes);
        free(server->validations[i].bytes);
    }
    free(server->validations);
    free(server->figures);
    free(server->not_finite);
    free(server->finite);
    free(server->sessions_of);
    free(server->stage_users);
}

/* --- Sessions --- */

static inline void serving_connect(struct serving_session *one)
{
    struct connection *connection;
    struct error error;
    int ends[2];
    *one = (struct serving_session){.busy = one->busy};
    bool good = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0;
    one->session.base.fd = ends[0];
    good = good && connection_serve(&connection, ends[0], "10.0.0.1:1", NULL, NULL, INFINITY, &error);
    if (!good) {
        abort();
    }
    channel_open(&one->session.base.channel, connection);
    if (!connection_serve(&connection, ends[1], "the ps", NULL, NULL, INFINITY, &error)) {
        abort();
    }
    channel_open(&one->client, connection);
    one->client.version = one->session.base.channel.version = PROTOCOL_VERSION_MAX; /* as after a handshake */
    one->session.channel = &one->session.base.channel;
    one->session.server = &serving.server;
    one->session.who = (struct member){MEMBER_NONE, MEMBER_ANY_INDEX};
    one->session.worker = -1;
}

/* As a session's thread admits the sender of a hello (ps/server/listen.c); returns the refusal, 0: welcome. */
static inline uint16_t serving_admit(struct serving_session *one, const struct member *who, uint64_t incarnation,
                                     bool guest)
{
    struct server *server = &serving.server;
    struct session *session = &one->session;
    static uint64_t number;
    const struct peer peer = {
        .member = *who, .version = PROTOCOL_VERSION_MAX, .incarnation = incarnation, .program = "trainer"};
    struct error message;
    uint16_t refusal = 0;
    serving_connect(one);
    server_lock(server);
    while (!guest) {
        refusal = job_hello(&server->job, &peer, "10.0.0.1:1", serving.now_s, &message);
        if (refusal != JOB_RETRY) {
            break;
        }
        server_wait(server);
    }
    if (refusal == 0) {
        session->who = *who;
        session->is_guest = guest;
        session->worker = !guest && who->role == MEMBER_WORKER ? who->index : -1;
        session->incarnation = incarnation;
        session->link = STATUS_LINK_TLS;
        if (session->worker >= 0) {
            job_note_ready(&server->job, session->worker, incarnation, serving.now_s);
        }
        session->base.number = ++number;
        session->channel->generation = server->job.generation;
        if (session->worker >= 0) {
            serving_list(session);
        }
        session->base.state = SESSION_SERVED;
        one->open = true;
    }
    server_unlock(server);
    if (refusal != 0) {
        serving_hang_up(one);
    }
    return refusal;
}

/* A frame of that type whose message nobody can read: its one field is beyond what it may be. */
static inline void serving_send_nonsense(struct serving_session *one, uint16_t type, uint64_t request)
{
    uint8_t header[FRAME_HEADER], body[1] = {9};
    struct error error;
    const struct frame frame = {.version = one->client.version,
                                .type = type,
                                .request = request,
                                .flags = FRAME_LAST,
                                .message_bytes = sizeof body};
    frame_encode(&frame, header);
    const struct iovec parts[] = {{header, sizeof header}, {body, sizeof body}};
    bool sent = connection_write_more(one->client.connection, parts, 2, serving.now_s, &error) &&
                connection_flush(one->client.connection, serving.now_s, &error);
    assert(sent);
}

/* Serves one request from the peer; false: the session has ended. */
static inline bool serving_serve(struct serving_session *one)
{
    struct error error = {""};
    one->busy = true;
    serving.depth++;
    bool goes_on = serve_request(&one->session, &error);
    serving.depth--;
    one->busy = false;
    return goes_on && !one->session.base.disconnected;
}

#endif
