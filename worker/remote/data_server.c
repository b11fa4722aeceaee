/*
 * Batches for workers without data. A batch depends only on seed, worker and number, so a session has no state but its
 * buffers, and a worker that reconnects just asks for the number it wants next.
 */
#include "worker/remote/data_server.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/address.h"
#include "net/bytes.h"
#include "net/listener.h"
#include "ps/store/model.h"
#include "worker/data/batch_source.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/preprocessing.h"

enum {
    PER_WORKER = 2, /* connections: one, and the one it replaces while that ends */
    FRAME_S = 30,   /* for a whole request once it began, and for sending a batch */
    STACK = 256 * 1024,
};

static const double TICK_S = 1.0; /* between two checks for threads that ended */

/* One connection, and the thread that serves it. */
struct data_session {
    struct listener_session base; /* must be first: the listener's part */
    struct data_server *server;
    struct channel *channel; /* the same as in base */
    int worker;              /* -1: not known yet */
    struct batch_source source;
    uint8_t *bytes;       /* one batch of images */
    struct examples rows; /* [batch_size]: one batch of rows; zeros for images */
};

struct data_server {
    const struct config *config;
    const struct identity *identity;
    const struct dataset *dataset;
    bool (*knows)(void *context, const char *digest);
    void *context;
    struct sampler sampler; /* all but the task */
    size_t pixels;          /* of an image, or what replaces them */
    struct listener *listener;
    struct wake wake; /* stops the accepting thread */
    pthread_t thread;
    bool runs;
    pthread_mutex_t lock; /* the listener's */
};

static struct data_session *session_of(struct listener_session *base)
{
    return (struct data_session *)(void *)base;
}

static double frame_deadline(void)
{
    return clock_monotonic_s() + FRAME_S;
}

/* --- Batches --- */

static void add_part(struct iovec *parts, int *count, void *array, size_t bytes)
{
    if (array && bytes > 0) {
        parts[(*count)++] = (struct iovec){array, bytes};
    }
}

int batch_row_parts(const struct examples *rows, int count, struct iovec parts[BATCH_PARTS])
{
    const size_t many = (size_t)count;
    int found = 0;
    add_part(parts, &found, rows->labels, many * sizeof *rows->labels);
    add_part(parts, &found, rows->target_values, many * (size_t)rows->targets * sizeof *rows->target_values);
    add_part(parts, &found, rows->weights, many * sizeof *rows->weights);
    add_part(parts, &found, rows->values, many * (size_t)rows->numbers * sizeof *rows->values);
    add_part(parts, &found, rows->positions, many * (size_t)rows->piecewise * sizeof *rows->positions);
    add_part(parts, &found, rows->places, many * (size_t)rows->codes * sizeof *rows->places);
    return found;
}

/* Makes one batch in the session's memory; *examples: how many. Sets where its bytes are. */
static bool gather(struct data_session *session, int64_t number, uint32_t *examples, struct iovec parts[BATCH_PARTS],
                   int *part_count, struct error *error)
{
    const struct data_server *server = session->server;
    struct batch drawn;
    if (!batch_source_draw(&session->source, (uint32_t)session->worker, number, &drawn, error)) {
        return false;
    }
    const struct examples *from = drawn.examples;
    const int count = drawn.count;
    *examples = (uint32_t)count;
    if (examples_are_rows(from)) {
        for (int i = 0; i < count; i++) {
            examples_copy(&session->rows, i, from, drawn.indexes[i], 1);
        }
        const int first = examples_dense(from);
        for (int64_t i = 0; i < (int64_t)count * from->codes; i++) {
            session->rows.places[i] += session->rows.places[i] >= 0 ? first : 0; /* as inputs */
        }
        *part_count = batch_row_parts(&session->rows, count, parts);
        return true;
    }
    uint8_t *images = session->bytes + 2 * (size_t)count;
    for (int i = 0; i < count; i++) {
        size_t example = (size_t)drawn.indexes[i];
        put_le16(session->bytes + 2 * (size_t)i, (uint16_t)from->labels[example]);
        copy_bytes(images + (size_t)i * server->pixels, from->images + example * server->pixels, server->pixels);
    }
    parts[0] = (struct iovec){session->bytes, batch_bytes((size_t)count, server->pixels)};
    *part_count = 1;
    return true;
}

static bool send_batches(struct data_session *session, struct error *error)
{
    const struct data_server *server = session->server;
    const struct message_get_batches asked = session->channel->message.get_batches;
    const uint64_t request = session->channel->frame.request;
    struct message_batch batch = {.number = -1,
                                  .pixels = (uint32_t)server->pixels,
                                  .total = (uint32_t)server->dataset->train.count,
                                  .validation = (uint32_t)server->dataset->validation.count,
                                  .description = server->dataset->description};
    if (asked.count == 0) {
        return channel_send(session->channel, MESSAGE_batch, request, &batch, frame_deadline(), error);
    }
    if (asked.first < 0 || asked.first > INT64_MAX - asked.count) {
        channel_send_error(session->channel, request, ERROR_BAD_REQUEST, frame_deadline(), error,
                           "batches are counted from 0");
        return error_set(error, "%s asks for batch %lld", connection_name(session->channel->connection),
                         (long long)asked.first);
    }
    for (uint32_t i = 0; i < asked.count; i++) {
        struct iovec parts[BATCH_PARTS];
        int part_count;
        batch.number = asked.first + i;
        if (!gather(session, batch.number, &batch.examples, parts, &part_count, error)) {
            struct error ignored;
            channel_send_error(session->channel, request, ERROR_INTERNAL, frame_deadline(), &ignored, "%s",
                               error->text);
            return false;
        }
        const struct outgoing frame = {.type = MESSAGE_batch,
                                       .request = request,
                                       .more = i + 1 < asked.count,
                                       .message = &batch,
                                       .bulk = parts,
                                       .bulk_parts = part_count};
        if (!channel_send_frame(session->channel, &frame, frame_deadline(), error)) {
            return false;
        }
    }
    return true;
}

/* How rows become inputs; nothing for images. */
static bool send_description(struct data_session *session, struct error *error)
{
    const struct schema *schema = session->server->dataset->schema;
    char digest[PREPROCESSING_DIGEST] = "";
    struct iovec bulk = {schema ? schema->text : NULL, schema ? strlen(schema->text) : 0};
    if (schema) {
        preprocessing_digest(schema->text, digest);
    }
    const struct message_description description = {.digest = digest};
    const struct outgoing frame = {.type = MESSAGE_description,
                                   .request = session->channel->frame.request,
                                   .message = &description,
                                   .bulk = &bulk,
                                   .bulk_parts = schema ? 1 : 0};
    return channel_send_frame(session->channel, &frame, frame_deadline(), error);
}

static bool send_layers(struct data_session *session, struct error *error)
{
    char units[MODEL_UNITS_TEXT];
    model_units_text(&session->server->config->model, units);
    return channel_send(session->channel, MESSAGE_layers, session->channel->frame.request,
                        &(struct message_layers){.units = units}, frame_deadline(), error);
}

static bool answer(struct data_session *session, struct error *error)
{
    struct channel *channel = session->channel;
    switch (channel->frame.type) {
    case MESSAGE_get_batches:
        return send_batches(session, error);
    case MESSAGE_describe:
        return send_description(session, error);
    case MESSAGE_layers:
        return send_layers(session, error);
    case MESSAGE_ping: {
        struct message_pong pong = {channel->message.ping.nonce};
        return channel_send(channel, MESSAGE_pong, channel->frame.request, &pong, frame_deadline(), error);
    }
    default:
        return channel_send_error(channel, channel->frame.request, ERROR_NOT_ALLOWED, frame_deadline(), error,
                                  "%s is for a ps, and this is worker 0", message_name(channel->frame.type));
    }
}

/* --- Connections --- */

static void begin(struct listener_session *base, void *context)
{
    struct data_session *session = session_of(base);
    session->server = context;
    session->channel = &base->channel;
    session->worker = -1;
}

static bool is_known(struct listener_session *base, const char *digest)
{
    const struct data_server *server = session_of(base)->server;
    return server->knows(server->context, digest);
}

static bool is_of(const struct listener_session *base, const void *context)
{
    return ((const struct data_session *)(const void *)base)->worker == *(const int *)context;
}

/* Only workers other than the chief; an older connection of the same worker is cut. */
static uint16_t admit(struct listener_session *base, const struct peer *peer, struct error *message)
{
    struct data_session *session = session_of(base);
    struct data_server *server = session->server;
    struct listener_session *older;
    int workers = server->config->cluster.worker_hosts.count;
    if (peer->digest[0] == '\0' || peer->member.role != MEMBER_WORKER || peer->member.index < 1 ||
        peer->member.index >= workers) {
        error_set(message, "worker 0 sends batches to workers 1 to %d only", workers - 1);
        return REFUSAL_MEMBER;
    }
    pthread_mutex_lock(&server->lock);
    if (listener_count(server->listener, is_of, &peer->member.index, &older) > 0) {
        listener_disconnect(older);
    }
    session->worker = peer->member.index;
    listener_admit(base);
    pthread_mutex_unlock(&server->lock);
    return 0;
}

static bool serve(struct listener_session *base)
{
    struct data_session *session = session_of(base);
    struct data_server *server = session->server;
    const size_t batch = (size_t)server->config->train.batch_size;
    struct error error;
    bool good = true;
    const struct examples *like = &server->dataset->train;
    bool there = true;
    if (examples_are_rows(like)) {
        there = examples_create(&session->rows, like, (int)batch);
    } else {
        session->bytes = malloc(batch_bytes(batch, server->pixels));
        there = session->bytes;
    }
    if (!there) {
        log_warning("out of memory for batches of worker %d", session->worker);
        good = false;
    } else if (!batch_source_create(&session->source, like, server->dataset->streaming, &server->sampler, &error)) {
        log_warning("worker %d: %s", session->worker, error.text);
        good = false;
    } else {
        log_info("worker %d (%s) gets its batches from here", session->worker, base->peer);
    }
    while (good) {
        bool ready;
        good = connection_wait(session->channel->connection, INFINITY, &ready, &error) &&
               channel_receive(session->channel, frame_deadline(), &error) && answer(session, &error);
    }
    batch_source_destroy(&session->source);
    free(session->bytes);
    examples_free(&session->rows);
    return false; /* it keeps its thread while idle; there are few */
}

static void leave(struct listener_session *base)
{
    (void)base;
}

static void *accept_all(void *context)
{
    struct data_server *server = context;
    while (listener_accept(server->listener, &server->wake, clock_monotonic_s() + TICK_S)) {
    }
    return NULL;
}

/* --- Create and destroy --- */

static bool open_listener(struct data_server *server, struct error *error)
{
    const struct config_cluster *cluster = &server->config->cluster;
    const char *text = cluster->worker_hosts.items[0];
    struct address address, bind;
    if (!address_parse(text, &address, error)) {
        return error_wrap(error, "cluster.worker_hosts: %s", text);
    }
    if (!address_parse_bind(cluster->bind, &bind, error)) {
        return error_wrap(error, "cluster.bind: %s", cluster->bind);
    }
    const struct listener_options options = {
        .host = bind.host,
        .port = (uint16_t)(bind.port > 0 ? bind.port : address.port),
        .self = identity_hello_options(server->identity),
        .lock = &server->lock,
        .session_size = sizeof(struct data_session),
        .stack_size = STACK,
        .members = PER_WORKER * cluster->worker_hosts.count,
        .expected = cluster->worker_hosts.count, /* all may connect at once */
        .likely = cluster->worker_hosts.count,
        .context = server,
        .begin = begin,
        .knows = is_known,
        .admit = admit,
        .serve = serve,
        .leave = leave,
    };
    return listener_create(&server->listener, &options, error) && wake_create(&server->wake, error);
}

bool data_server_create(struct data_server **out, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error)
{
    struct data_server *server = must_zero(1, sizeof *server, "the server of batches");
    *out = server;
    server->config = config;
    server->identity = identity;
    server->knows = knows;
    server->context = context;
    server->dataset = dataset;
    server->wake.fd = -1;
    server->pixels = examples_are_rows(&dataset->train) ? batch_row_pixels(&dataset->train)
                                                        : (size_t)dataset->train.height * (size_t)dataset->train.width;
    server->sampler = (struct sampler){.seed = (uint64_t)config->train.seed,
                                       .examples = (uint32_t)dataset->train.count,
                                       .batch_size = (uint32_t)config->train.batch_size};
    pthread_mutex_init(&server->lock, NULL);
    const size_t batch = batch_bytes((size_t)config->train.batch_size, server->pixels);
    if (batch > message_max_bulk(MESSAGE_batch)) {
        return error_set(error,
                         "data.data_sharding chief: a batch of %d rows is %zu MiB, and a message holds %u: lower "
                         "train.batch_size",
                         config->train.batch_size, batch >> 20, message_max_bulk(MESSAGE_batch) >> 20);
    }
    if (!open_listener(server, error)) {
        return false;
    }
    server->runs = pthread_create(&server->thread, NULL, accept_all, server) == 0;
    if (!server->runs) {
        return error_set(error, "can't start a thread to send batches");
    }
    log_info("worker 0 sends batches of %d %s to workers without data, on port %u", config->train.batch_size,
             examples_are_rows(&dataset->train) ? "rows" : "images", listener_port(server->listener));
    return true;
}

void data_server_destroy(struct data_server *server)
{
    if (!server) {
        return;
    }
    if (server->runs) {
        wake_raise(&server->wake);
        pthread_join(server->thread, NULL);
    }
    listener_destroy(server->listener);
    wake_destroy(&server->wake);
    pthread_mutex_destroy(&server->lock);
    free(server);
}
