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
#include "worker/sampler.h"

enum {
    SPARE = 64,       /* connections that have not said who they are, or that another one replaces */
    HANDSHAKE_S = 10, /* until a connection is through TLS and hello */
    CROWDED_S = 2,    /* the same, once half of the spare places are taken */
    FRAME_S = 30,     /* until a request that began is there, and a batch taken */
    STACK = 256 * 1024,
};

static const double TICK_S = 0.25;

/* One connection, and the thread that serves it. */
struct customer {
    struct data_server *server;
    pthread_t thread;
    enum { CUSTOMER_FREE, CUSTOMER_HERE, CUSTOMER_GONE } life;
    int fd;
    char peer[ENDPOINT_TEXT];
    int patience_s;
    int worker; /* -1: nobody yet */
    struct channel channel;
    int32_t *indexes; /* [batch_size]; or labels, of data that stream */
    uint8_t *bytes;   /* of one batch */
};

struct data_server {
    const struct config *config;
    const struct self *self;
    const struct dataset *dataset;
    bool (*knows)(void *context, const char *digest);
    void *context;
    struct sampler sampler; /* but for the task */
    size_t pixels;
    int listener;
    struct wake wake;
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* guards the customers' life, fd and worker */
    struct customer *customers;
    int customer_count;
    bool leaving;
};

static double frame_deadline(void)
{
    return clock_monotonic_s() + FRAME_S;
}

/* ---- Batches ---- */

/* The same from files: the images first go where they end up in a full batch. */
static bool gather_streamed(struct customer *customer, int64_t number, uint32_t *examples, struct error *error)
{
    const struct data_server *server = customer->server;
    uint8_t *images = customer->bytes + 2 * (size_t)server->config->train.batch_size;
    int count;
    if (!streaming_draw(server->dataset->streaming, (uint32_t)customer->worker, number, images, customer->indexes,
                        &count, error)) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        put_le16(customer->bytes + 2 * (size_t)i, (uint16_t)customer->indexes[i]);
    }
    memmove(customer->bytes + 2 * (size_t)count, images, (size_t)count * server->pixels);
    *examples = (uint32_t)count;
    return true;
}

/* Images and labels of one batch into the customer's bytes; *examples: how many. */
static bool gather(struct customer *customer, int64_t number, uint32_t *examples, struct error *error)
{
    const struct data_server *server = customer->server;
    const struct examples *train = &server->dataset->train;
    if (server->dataset->streaming) {
        return gather_streamed(customer, number, examples, error);
    }
    struct sampler sampler = server->sampler;
    sampler.task = (uint32_t)customer->worker;
    int count = sampler_draw(&sampler, number, customer->indexes);
    uint8_t *images = customer->bytes + 2 * (size_t)count;
    for (int i = 0; i < count; i++) {
        size_t example = (size_t)customer->indexes[i];
        put_le16(customer->bytes + 2 * (size_t)i, (uint16_t)train->labels[example]);
        copy_bytes(images + (size_t)i * server->pixels, train->images + example * server->pixels, server->pixels);
    }
    *examples = (uint32_t)count;
    return true;
}

static bool send_batches(struct customer *customer, struct error *error)
{
    const struct data_server *server = customer->server;
    const struct message_get_batches asked = customer->channel.message.get_batches;
    const uint64_t request = customer->channel.frame.request;
    struct message_batch batch = {.number = -1,
                                  .pixels = (uint32_t)server->pixels,
                                  .total = (uint32_t)server->dataset->train.count,
                                  .validation = (uint32_t)server->dataset->validation.count,
                                  .description = server->dataset->description};
    if (asked.count == 0) {
        return channel_send(&customer->channel, MESSAGE_batch, request, FRAME_LAST, &batch, NULL, 0, frame_deadline(),
                            error);
    }
    if (asked.first < 0 || asked.first > INT64_MAX - asked.count) {
        channel_send_error(&customer->channel, request, ERROR_BAD_REQUEST, frame_deadline(), error,
                           "batches are counted from 0");
        return error_set(error, "%s asks for batch %lld", connection_name(customer->channel.connection),
                         (long long)asked.first);
    }
    for (uint32_t i = 0; i < asked.count; i++) {
        batch.number = asked.first + i;
        if (!gather(customer, batch.number, &batch.examples, error)) {
            struct error ignored;
            channel_send_error(&customer->channel, request, ERROR_INTERNAL, frame_deadline(), &ignored, "%s",
                               error->text);
            return false;
        }
        struct iovec bulk = {customer->bytes, batch_bytes(batch.examples, server->pixels)};
        if (!channel_send(&customer->channel, MESSAGE_batch, request, i + 1 == asked.count ? FRAME_LAST : 0, &batch,
                          &bulk, 1, frame_deadline(), error)) {
            return false;
        }
    }
    return true;
}

static bool answer(struct customer *customer, struct error *error)
{
    struct channel *channel = &customer->channel;
    switch (channel->frame.type) {
    case MESSAGE_get_batches:
        return send_batches(customer, error);
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
    const struct data_server *server = ((const struct customer *)context)->server;
    return server->knows(server->context, digest);
}

/* Workers but the chief; an older connection of the same one is cut. */
static uint16_t admit(void *context, const struct peer *peer, struct error *sentence)
{
    struct customer *customer = context;
    struct data_server *server = customer->server;
    int workers = server->config->cluster.worker_hosts.count;
    if (peer->digest[0] == '\0' || peer->member.role != MEMBER_WORKER || peer->member.index < 1 ||
        peer->member.index >= workers) {
        error_set(sentence, "worker 0 sends batches to workers 1 to %d, and to nobody else", workers - 1);
        return REFUSAL_MEMBER;
    }
    pthread_mutex_lock(&server->lock);
    for (int i = 0; i < server->customer_count; i++) {
        struct customer *other = &server->customers[i];
        if (other->life == CUSTOMER_HERE && other->worker == peer->member.index) {
            shutdown(other->fd, SHUT_RDWR);
        }
    }
    customer->worker = peer->member.index;
    pthread_mutex_unlock(&server->lock);
    return 0;
}

static void serve(struct customer *customer)
{
    struct error error;
    for (;;) {
        bool ready;
        if (!connection_wait(customer->channel.connection, clock_monotonic_s() + TICK_S, &ready, &error)) {
            break;
        }
        pthread_mutex_lock(&customer->server->lock);
        bool leaving = customer->server->leaving;
        pthread_mutex_unlock(&customer->server->lock);
        if (leaving ||
            (ready && (!channel_receive(&customer->channel, frame_deadline(), &error) || !answer(customer, &error)))) {
            break;
        }
    }
}

static bool let_in(struct customer *customer, struct error *error)
{
    struct data_server *server = customer->server;
    const struct handshake_rules rules = {.knows = is_known, .admit = admit, .context = customer};
    const double deadline_s = clock_monotonic_s() + customer->patience_s;
    const size_t batch = (size_t)server->config->train.batch_size;
    struct connection *connection;
    struct peer peer;
    bool served = connection_serve(&connection, customer->fd, customer->peer, server->self->credentials, &server->wake,
                                   deadline_s, error);
    channel_open(&customer->channel, connection);
    if (!served) {
        return false;
    }
    if (!handshake_accept(&customer->channel, self_identity(server->self), &rules, &peer, deadline_s, error)) {
        return false;
    }
    connection_set_patience(connection, self_patience_s(server->self));
    customer->indexes = malloc(batch * sizeof *customer->indexes);
    customer->bytes = malloc(batch_bytes(batch, server->pixels));
    return (customer->indexes && customer->bytes) ||
           error_set(error, "out of memory for batches of worker %d", customer->worker);
}

static void *attend(void *context)
{
    struct customer *customer = context;
    struct error error;
    if (let_in(customer, &error)) {
        log_info("worker %d (%s) gets its batches from here", customer->worker, customer->peer);
        serve(customer);
    } else {
        log_warning("%s", error.text);
    }
    pthread_mutex_lock(&customer->server->lock); /* nobody cuts a connection by the number of a socket that is closed */
    customer->life = CUSTOMER_GONE;
    pthread_mutex_unlock(&customer->server->lock);
    if (customer->channel.connection == NULL) {
        close(customer->fd);
    }
    channel_close(&customer->channel);
    free(customer->indexes);
    free(customer->bytes);
    return NULL;
}

static bool start_thread(struct customer *customer)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    bool started = pthread_create(&customer->thread, &attributes, attend, customer) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

/* Joins threads that ended, and returns a free place; NULL if there is none. This thread alone makes places free. */
static struct customer *find_place(struct data_server *server, int *newcomers)
{
    struct customer *place = NULL;
    *newcomers = 0;
    for (int i = 0; i < server->customer_count; i++) {
        struct customer *customer = &server->customers[i];
        pthread_mutex_lock(&server->lock);
        int life = (int)customer->life;
        *newcomers += life == CUSTOMER_HERE && customer->worker < 0;
        pthread_mutex_unlock(&server->lock);
        if (life == CUSTOMER_GONE) {
            pthread_join(customer->thread, NULL);
            customer->life = CUSTOMER_FREE;
        }
        place = customer->life == CUSTOMER_FREE ? customer : place;
    }
    return place;
}

static void receive(struct data_server *server, int fd, const char *peer)
{
    int newcomers;
    struct customer *customer = find_place(server, &newcomers);
    if (!customer) {
        close(fd); /* it comes again */
        return;
    }
    pthread_mutex_lock(&server->lock);
    *customer = (struct customer){.server = server, .fd = fd, .worker = -1, .life = CUSTOMER_HERE};
    customer->patience_s = newcomers < SPARE / 2 ? HANDSHAKE_S : CROWDED_S;
    snprintf(customer->peer, sizeof customer->peer, "%s", peer);
    if (!start_thread(customer)) {
        customer->life = CUSTOMER_FREE;
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
        enum socket_wait how;
        struct error error;
        if (socket_accept(server->listener, &fd, peer, &server->wake, clock_monotonic_s() + 3600, &how, &error)) {
            receive(server, fd, peer);
        } else if (how == SOCKET_WOKEN) {
            return NULL;
        } else if (how != SOCKET_TIMEOUT) {
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

bool data_server_create(struct data_server **out, const struct config *config, const struct self *self,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error)
{
    struct data_server *server = calloc(1, sizeof *server);
    *out = server;
    if (!server) {
        return error_set(error, "out of memory");
    }
    server->config = config;
    server->self = self;
    server->knows = knows;
    server->context = context;
    server->dataset = dataset;
    server->listener = server->wake.fd = -1;
    server->pixels = (size_t)dataset->train.height * (size_t)dataset->train.width;
    server->sampler = (struct sampler){.seed = (uint64_t)config->train.seed,
                                       .examples = (uint32_t)dataset->train.count,
                                       .batch_size = (uint32_t)config->train.batch_size};
    server->customer_count = config->cluster.worker_hosts.count + SPARE;
    server->customers = calloc((size_t)server->customer_count, sizeof *server->customers);
    pthread_mutex_init(&server->lock, NULL);
    if (!server->customers || !open_listener(server, error)) {
        return server->customers != NULL ? false : error_set(error, "out of memory");
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
    for (int i = 0; server->customers && i < server->customer_count; i++) {
        if (server->customers[i].life != CUSTOMER_FREE) {
            pthread_join(server->customers[i].thread, NULL);
        }
    }
    if (server->listener >= 0) {
        close(server->listener);
    }
    if (server->wake.fd >= 0) {
        wake_destroy(&server->wake);
    }
    pthread_mutex_destroy(&server->lock);
    free(server->customers);
    free(server);
}
