#include "worker/remote/data_server.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/text/address.h"
#include "net/bytes.h"
#include "net/channel.h"
#include "net/handshake.h"
#include "net/socket.h"
#include "worker/data/streaming/streaming.h"
#include "base/random/sampler.h"

enum {
    SPARE = 64,       /* connections that have not said who they are, or that another one replaces */
    HANDSHAKE_S = 10, /* until a connection is through TLS and hello */
    CROWDED_S = 2,    /* the same, once half of the spare places are taken */
    FRAME_S = 30,     /* until a request that began is there, and a batch taken */
    STACK = 256 * 1024,
};

static const double TICK_S = 0.25;

/* One connection, and the thread that serves it. */
struct data_session {
    struct data_server *server;
    pthread_t thread;
    enum { SESSION_FREE, SESSION_HERE, SESSION_GONE } life;
    int fd;
    char peer[ENDPOINT_TEXT];
    int timeout_s;
    int worker; /* -1: nobody yet */
    struct channel channel;
    int32_t *indexes; /* [batch_size]; or labels, of data that stream */
    uint8_t *bytes;   /* of one batch */
};

struct data_server {
    const struct config *config;
    const struct identity *identity;
    const struct dataset *dataset;
    bool (*knows)(void *context, const char *digest);
    void *context;
    struct sampler sampler; /* but for the task */
    size_t pixels;
    int listener;
    struct wake wake;
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* guards the sessions' life, fd and worker */
    struct data_session *sessions;
    int session_count;
    bool leaving;
};

static double frame_deadline(void)
{
    return clock_monotonic_s() + FRAME_S;
}

/* ---- Batches ---- */

/* The same from files: the images first go where they end up in a full batch. */
static bool gather_streamed(struct data_session *session, int64_t number, uint32_t *examples, struct error *error)
{
    const struct data_server *server = session->server;
    uint8_t *images = session->bytes + 2 * (size_t)server->config->train.batch_size;
    int count;
    if (!streaming_draw(server->dataset->streaming, (uint32_t)session->worker, number, images, session->indexes, &count,
                        error)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        put_le16(session->bytes + 2 * (size_t)i, (uint16_t)session->indexes[i]);
    }
    memmove(session->bytes + 2 * (size_t)count, images, (size_t)count * server->pixels);
    *examples = (uint32_t)count;
    return true;
}

/* Images and labels of one batch into the session's bytes; *examples: how many. */
static bool gather(struct data_session *session, int64_t number, uint32_t *examples, struct error *error)
{
    const struct data_server *server = session->server;
    const struct examples *train = &server->dataset->train;
    if (server->dataset->streaming) {
        return gather_streamed(session, number, examples, error);
    }
    struct sampler sampler = server->sampler;
    sampler.task = (uint32_t)session->worker;
    int count = sampler_draw(&sampler, number, session->indexes);
    uint8_t *images = session->bytes + 2 * (size_t)count;
    for (int i = 0; i < count; i++) {
        size_t example = (size_t)session->indexes[i];
        put_le16(session->bytes + 2 * (size_t)i, (uint16_t)train->labels[example]);
        copy_bytes(images + (size_t)i * server->pixels, train->images + example * server->pixels, server->pixels);
    }
    *examples = (uint32_t)count;
    return true;
}

static bool send_batches(struct data_session *session, struct error *error)
{
    const struct data_server *server = session->server;
    const struct message_get_batches asked = session->channel.message.get_batches;
    const uint64_t request = session->channel.frame.request;
    struct message_batch batch = {.number = -1,
                                  .pixels = (uint32_t)server->pixels,
                                  .total = (uint32_t)server->dataset->train.count,
                                  .validation = (uint32_t)server->dataset->validation.count,
                                  .description = server->dataset->description};
    if (asked.count == 0) {
        return channel_send(&session->channel, MESSAGE_batch, request, FRAME_LAST, &batch, NULL, 0, frame_deadline(),
                            error);
    }
    if (asked.first < 0 || asked.first > INT64_MAX - asked.count) {
        channel_send_error(&session->channel, request, ERROR_BAD_REQUEST, frame_deadline(), error,
                           "batches are counted from 0");
        return error_set(error, "%s asks for batch %lld", connection_name(session->channel.connection),
                         (long long)asked.first);
    }
    for (uint32_t i = 0; i < asked.count; i++) {
        batch.number = asked.first + i;
        if (!gather(session, batch.number, &batch.examples, error)) {
            struct error ignored;
            channel_send_error(&session->channel, request, ERROR_INTERNAL, frame_deadline(), &ignored, "%s",
                               error->text);
            return false;
        }
        struct iovec bulk = {session->bytes, batch_bytes(batch.examples, server->pixels)};
        if (!channel_send(&session->channel, MESSAGE_batch, request, i + 1 == asked.count ? FRAME_LAST : 0, &batch,
                          &bulk, 1, frame_deadline(), error)) {
            return false;
        }
    }
    return true;
}

static bool answer(struct data_session *session, struct error *error)
{
    struct channel *channel = &session->channel;
    switch (channel->frame.type) {
    case MESSAGE_get_batches:
        return send_batches(session, error);
    case MESSAGE_ping: {
        struct message_pong pong = {channel->message.ping.nonce};
        return channel_send(channel, MESSAGE_pong, channel->frame.request, FRAME_LAST, &pong, NULL, 0, frame_deadline(),
                            error);
    }
    default:
        return channel_send_error(channel, channel->frame.request, ERROR_NOT_ALLOWED, frame_deadline(), error,
                                  "%s is for a ps, and this is worker 0", message_name(channel->frame.type));
    }
}

/* ---- Connections ---- */

/* handshake_rules.knows */
static bool is_known(void *context, const char *digest)
{
    const struct data_server *server = ((const struct data_session *)context)->server;
    return server->knows(server->context, digest);
}

/* Workers but the chief; an older connection of the same one is cut. */
static uint16_t admit(void *context, const struct peer *peer, struct error *message)
{
    struct data_session *session = context;
    struct data_server *server = session->server;
    int workers = server->config->cluster.worker_hosts.count;
    if (peer->digest[0] == '\0' || peer->member.role != MEMBER_WORKER || peer->member.index < 1 ||
        peer->member.index >= workers) {
        error_set(message, "worker 0 sends batches to workers 1 to %d, and to nobody else", workers - 1);
        return REFUSAL_MEMBER;
    }
    pthread_mutex_lock(&server->lock);
    for (int i = 0; i < server->session_count; i++) {
        struct data_session *other = &server->sessions[i];
        if (other->life == SESSION_HERE && other->worker == peer->member.index) {
            shutdown(other->fd, SHUT_RDWR);
        }
    }
    session->worker = peer->member.index;
    pthread_mutex_unlock(&server->lock);
    return 0;
}

static void serve(struct data_session *session)
{
    struct error error;
    for (;;) {
        bool ready;
        if (!connection_wait(session->channel.connection, clock_monotonic_s() + TICK_S, &ready, &error)) {
            break;
        }
        pthread_mutex_lock(&session->server->lock);
        bool leaving = session->server->leaving;
        pthread_mutex_unlock(&session->server->lock);
        if (leaving ||
            (ready && (!channel_receive(&session->channel, frame_deadline(), &error) || !answer(session, &error)))) {
            break;
        }
    }
}

static bool let_in(struct data_session *session, struct error *error)
{
    struct data_server *server = session->server;
    const struct handshake_rules rules = {.knows = is_known, .admit = admit, .context = session};
    const double deadline_s = clock_monotonic_s() + session->timeout_s;
    const size_t batch = (size_t)server->config->train.batch_size;
    struct connection *connection;
    struct peer peer;
    bool served = connection_serve(&connection, session->fd, session->peer, server->identity->credentials,
                                   &server->wake, deadline_s, error);
    channel_open(&session->channel, connection);
    if (!served) {
        return false;
    }
    if (!handshake_accept(&session->channel, identity_hello(server->identity), &rules, &peer, deadline_s, error)) {
        return false;
    }
    connection_set_idle_timeout(connection, identity_idle_timeout_s(server->identity));
    session->indexes = malloc(batch * sizeof *session->indexes);
    session->bytes = malloc(batch_bytes(batch, server->pixels));
    return (session->indexes && session->bytes) ||
           error_set(error, "out of memory for batches of worker %d", session->worker);
}

static void *attend(void *context)
{
    struct data_session *session = context;
    struct error error;
    if (let_in(session, &error)) {
        log_info("worker %d (%s) gets its batches from here", session->worker, session->peer);
        serve(session);
    } else {
        log_warning("%s", error.text);
    }
    pthread_mutex_lock(&session->server->lock); /* nobody cuts a connection by the number of a socket that is closed */
    session->life = SESSION_GONE;
    pthread_mutex_unlock(&session->server->lock);
    if (session->channel.connection == NULL) {
        close(session->fd);
    }
    channel_close(&session->channel);
    free(session->indexes);
    free(session->bytes);
    return NULL;
}

static bool start_thread(struct data_session *session)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    bool started = pthread_create(&session->thread, &attributes, attend, session) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* Joins threads that ended, and returns a free place; NULL if there is none. This thread alone makes places free. */
static struct data_session *find_place(struct data_server *server, int *newcomers)
{
    struct data_session *place = NULL;
    *newcomers = 0;
    for (int i = 0; i < server->session_count; i++) {
        struct data_session *session = &server->sessions[i];
        pthread_mutex_lock(&server->lock);
        int life = (int)session->life;
        *newcomers += life == SESSION_HERE && session->worker < 0;
        pthread_mutex_unlock(&server->lock);
        if (life == SESSION_GONE) {
            pthread_join(session->thread, NULL);
            session->life = SESSION_FREE;
        }
        place = session->life == SESSION_FREE ? session : place;
    }
    return place;
}

static void receive(struct data_server *server, int fd, const char *peer)
{
    int newcomers;
    struct data_session *session = find_place(server, &newcomers);
    if (!session) {
        close(fd); /* it comes again */
        return;
    }
    pthread_mutex_lock(&server->lock);
    *session = (struct data_session){.server = server, .fd = fd, .worker = -1, .life = SESSION_HERE};
    session->timeout_s = newcomers < SPARE / 2 ? HANDSHAKE_S : CROWDED_S;
    snprintf(session->peer, sizeof session->peer, "%s", peer);
    if (!start_thread(session)) {
        session->life = SESSION_FREE;
        close(fd);
    }
    pthread_mutex_unlock(&server->lock);
}

static void *accept_all(void *context)
{
    struct data_server *server = context;
    for (;;) {
        int fd;
        char peer[ENDPOINT_TEXT];
        enum wake_result how;
        struct error error;
        if (socket_accept(server->listener, &fd, peer, &server->wake, clock_monotonic_s() + 3600, &how, &error)) {
            receive(server, fd, peer);
        } else if (how == WAKE_RAISED) {
            return NULL;
        } else if (how != WAKE_TIMEOUT) {
            log_warning("%s", error.text);
            usleep((useconds_t)(TICK_S * 1e6));
        }
    }
}

/* ---- Beginning and end ---- */

static bool open_listener(struct data_server *server, struct error *error)
{
    const struct config_cluster *cluster = &server->config->cluster;
    const char *text = cluster->worker_hosts.items[0];
    struct address address;
    return (address_parse(text, &address, error) || error_wrap(error, "cluster.worker_hosts: %s", text)) &&
           socket_listen(&server->listener, cluster->bind, (uint16_t)address.port, error) &&
           wake_create(&server->wake, error);
}

bool data_server_create(struct data_server **out, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error)
{
    struct data_server *server = calloc(1, sizeof *server);
    *out = server;
    if (!server) {
        return error_set(error, "out of memory");
    }
    server->config = config;
    server->identity = identity;
    server->knows = knows;
    server->context = context;
    server->dataset = dataset;
    server->listener = server->wake.fd = -1;
    server->pixels = (size_t)dataset->train.height * (size_t)dataset->train.width;
    server->sampler = (struct sampler){.seed = (uint64_t)config->train.seed,
                                       .examples = (uint32_t)dataset->train.count,
                                       .batch_size = (uint32_t)config->train.batch_size};
    server->session_count = config->cluster.worker_hosts.count + SPARE;
    server->sessions = calloc((size_t)server->session_count, sizeof *server->sessions);
    pthread_mutex_init(&server->lock, NULL);
    if (!server->sessions || !open_listener(server, error)) {
        return server->sessions != NULL ? false : error_set(error, "out of memory");
    }
    server->runs = pthread_create(&server->thread, NULL, accept_all, server) == 0;
    if (!server->runs) {
        return error_set(error, "can't start a thread to send batches");
    }
    log_info("worker 0 sends batches of %d images to workers without data, on port %u", config->train.batch_size,
             socket_port(server->listener));
    return true;
}

void data_server_destroy(struct data_server *server)
{
    if (!server) {
        return;
    }
    pthread_mutex_lock(&server->lock);
    server->leaving = true;
    pthread_mutex_unlock(&server->lock);
    if (server->runs) {
        wake_raise(&server->wake); /* ends the thread that accepts, and every wait of a connection's */
        pthread_join(server->thread, NULL);
    }
    for (int i = 0; server->sessions && i < server->session_count; i++) {
        if (server->sessions[i].life != SESSION_FREE) {
            pthread_join(server->sessions[i].thread, NULL);
        }
    }
    if (server->listener >= 0) {
        close(server->listener);
    }
    if (server->wake.fd >= 0) {
        wake_destroy(&server->wake);
    }
    pthread_mutex_destroy(&server->lock);
    free(server->sessions);
    free(server);
}
