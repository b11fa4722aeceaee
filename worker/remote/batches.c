/*
 * A batch depends only on seed, worker and number, so a session has no state but its buffers, and a worker that
 * reconnects just asks for the number it wants next.
 */
#include "worker/remote/batches.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/text/address.h"
#include "base/threads.h"
#include "net/bytes.h"
#include "net/channel.h"
#include "net/listener.h"
#include "ps/store/model.h"
#include "worker/data/batch_source.h"
#include "worker/data/examples.h"
#include "worker/data/table/schema.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/exchange/requests.h"

enum {
    PER_WORKER = 2, /* connections: one, and the one it replaces while that ends */
    FRAME_S = 30,   /* for a whole request once it began, and for sending a batch */
    STACK = 256 * 1024,
    BATCH_PARTS = 6, /* arrays of a batch of rows */
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

/*
 * A batch of rows travels as its arrays, one after another: labels or targets, weights, numbers and categories, where
 * there are any. Finds those of the first `count` rows; returns how many arrays.
 */
static int batch_row_parts(const struct examples *rows, int count, struct iovec parts[BATCH_PARTS])
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
            session->rows.places[i] += session->rows.places[i] != -1 ? first : 0; /* as inputs */
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

/* --- The other workers' half: the fetcher --- */

/*
 * A ring of batches. The thread fetches from `next` on while there is room, several at a time; the training thread
 * takes them in order. If it wants another number than the ring's first, the ring is emptied and starts there: `round`
 * changes, and batches that still arrive for the old round are dropped.
 */

enum { AT_A_TIME = FETCHED_BATCHES / 2, AFTER_IMAGES = 64 /* bytes that engines may read past the last image */ };

static const double SLICE_S = 0.1;

struct parcel {
    uint8_t *bytes;           /* of images as received: labels, then pixels */
    struct examples examples; /* images within those bytes, with labels [capacity] of their own; or rows */
    int count;
};

struct batch_fetcher {
    struct batch_fetcher_options options;
    struct link link;
    size_t pixels;         /* of an image, or what replaces them */
    int classes, capacity; /* of a batch */
    int32_t *in_order;     /* [capacity]: 0, 1, ... */
    struct parcel parcels[FETCHED_BATCHES];

    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t first; /* number of the oldest batch in the ring; < 0: none is wanted yet */
    int fetched;   /* in the ring, from `first` on */
    uint32_t round;
    bool ending;
    enum exchange_result end; /* FAILED: for good, with the reason */
    struct error error;
};

static bool must_stop(void *context)
{
    struct batch_fetcher *fetcher = context;
    pthread_mutex_lock(&fetcher->lock);
    bool ending = fetcher->ending;
    pthread_mutex_unlock(&fetcher->lock);
    return ending || signals_pending() != 0 || fetcher->options.given_up(fetcher->options.context);
}

/* --- Requests --- */

static bool ask(struct batch_fetcher *fetcher, int64_t first, uint32_t count, uint64_t *request, struct error *error)
{
    struct channel *channel = &fetcher->link.channel;
    struct message_get_batches message = {.first = first, .count = count};
    *request = ++channel->next_request;
    return channel_send(channel, MESSAGE_get_batches, *request, &message, clock_monotonic_s() + LINK_ANSWER_S, error);
}

/* The next frame of an answer. */
static bool receive(struct batch_fetcher *fetcher, uint64_t request, struct error *error)
{
    const struct message_batch *batch = &fetcher->link.channel.message.batch;
    if (!link_receive_answer(&fetcher->link, MESSAGE_get_batches, request, MESSAGE_batch, NULL, error)) {
        return false;
    }
    if (batch->pixels != fetcher->pixels || batch->total == 0 || batch->total > INT32_MAX ||
        batch->validation > INT32_MAX) {
        return error_set(error, "%s has %s of %u bytes, and here they take %zu", fetcher->link.name,
                         fetcher->options.like ? "rows" : "images", batch->pixels, fetcher->pixels);
    }
    return true;
}

static void *fetch_on(void *context);

static enum exchange_result by_link(enum link_try tried)
{
    return tried == LINK_OPEN ? EXCHANGE_OK : tried == LINK_REFUSED ? EXCHANGE_FAILED : EXCHANGE_STOPPED;
}

enum exchange_result batch_fetcher_ask(struct batch_fetcher *fetcher, struct batch_fetcher_facts *facts,
                                       struct error *error)
{
    for (;;) {
        uint64_t request;
        enum exchange_result end = by_link(link_open(&fetcher->link, must_stop, fetcher, error));
        if (end != EXCHANGE_OK) {
            return end;
        }
        if (ask(fetcher, 0, 0, &request, error) && receive(fetcher, request, error)) {
            const struct message_batch *batch = &fetcher->link.channel.message.batch;
            *facts = (struct batch_fetcher_facts){.train = (int)batch->total, .validation = (int)batch->validation};
            snprintf(facts->description, sizeof facts->description, "from worker 0: %.300s", batch->description);
            fetcher->runs = fetcher->runs || pthread_create(&fetcher->thread, NULL, fetch_on, fetcher) == 0;
            if (!fetcher->runs) {
                error_set(error, "can't start a thread to fetch batches");
                return EXCHANGE_FAILED;
            }
            return EXCHANGE_OK;
        }
        link_lost(&fetcher->link, error->text);
    }
}

/* --- Fetching --- */

/* Are the rows' values within what the model accepts? Places were sent as inputs. */
static bool check_rows(const struct batch_fetcher *fetcher, const struct parcel *parcel, struct error *error)
{
    const struct examples *rows = &parcel->examples;
    for (int i = 0; rows->labels && i < parcel->count; i++) {
        if (rows->labels[i] < 0 || rows->labels[i] >= fetcher->classes) {
            return error_set(error, "%s sent label %d, and the model has %d classes", fetcher->link.name,
                             rows->labels[i], fetcher->classes);
        }
    }
    for (int64_t i = 0; i < (int64_t)parcel->count * rows->piecewise; i++) {
        const int bins = rows->bins[i % rows->piecewise];
        if (!(rows->positions[i] >= 0 && rows->positions[i] <= (float)bins)) {
            return error_set(error, "%s sent a row with position %g of %d bins", fetcher->link.name,
                             (double)rows->positions[i], bins);
        }
    }
    const int first = examples_dense(rows);
    for (int64_t i = 0; i < (int64_t)parcel->count * rows->codes; i++) {
        if (rows->places[i] != -1 && (rows->places[i] < first || rows->places[i] >= rows->inputs)) {
            return error_set(error, "%s sent a row with input %d, and there are %d", fetcher->link.name,
                             rows->places[i], rows->inputs);
        }
        rows->places[i] -= rows->places[i] != -1 ? first : 0;
    }
    return true;
}

static bool take_rows(struct batch_fetcher *fetcher, struct parcel *parcel, struct error *error)
{
    struct channel *channel = &fetcher->link.channel;
    struct iovec parts[BATCH_PARTS];
    size_t bytes = 0;
    const int count = batch_row_parts(&parcel->examples, parcel->count, parts);
    for (int i = 0; i < count; i++) {
        bytes += parts[i].iov_len;
    }
    if (bytes != channel->bulk_left) {
        return error_set(error, "%s sent %u bytes of rows, and %zu were expected", fetcher->link.name,
                         (unsigned)channel->bulk_left, bytes);
    }
    for (int i = 0; i < count; i++) {
        if (!channel_read_bulk(channel, parts[i].iov_base, parts[i].iov_len, clock_monotonic_s() + LINK_ANSWER_S,
                               error)) {
            return false;
        }
    }
    return check_rows(fetcher, parcel, error);
}

/* Receives one batch from the connection. */
static bool take_bulk(struct batch_fetcher *fetcher, struct parcel *parcel, int64_t number, struct error *error)
{
    struct channel *channel = &fetcher->link.channel;
    const struct message_batch *batch = &channel->message.batch;
    if (batch->number != number || batch->examples == 0 || batch->examples > (uint32_t)fetcher->capacity) {
        return error_set(error, "%s sent batch %lld of %u images, and batch %lld of at most %d was asked for",
                         fetcher->link.name, (long long)batch->number, batch->examples, (long long)number,
                         fetcher->capacity);
    }
    parcel->count = (int)batch->examples;
    if (fetcher->options.like) {
        return take_rows(fetcher, parcel, error);
    }
    if (!channel_read_bulk(channel, parcel->bytes, channel->bulk_left, clock_monotonic_s() + LINK_ANSWER_S, error)) {
        return false;
    }
    for (int i = 0; i < parcel->count; i++) {
        parcel->examples.labels[i] = get_le16(parcel->bytes + 2 * (size_t)i);
        if (parcel->examples.labels[i] >= fetcher->classes) {
            return error_set(error, "%s sent label %d, and the model has %d classes", fetcher->link.name,
                             parcel->examples.labels[i], fetcher->classes);
        }
    }
    return true;
}

/*
 * Waits a limited time until there is something to fetch; false: nothing, as the ring is full or the thread must end.
 */
static bool await_room(struct batch_fetcher *fetcher, int64_t *next, uint32_t *count, uint32_t *round)
{
    pthread_mutex_lock(&fetcher->lock);
    int room = FETCHED_BATCHES - fetcher->fetched;
    if (!fetcher->ending && (fetcher->first < 0 || room < AT_A_TIME)) {
        condition_wait_for(&fetcher->changed, &fetcher->lock, 1);
        room = FETCHED_BATCHES - fetcher->fetched;
    }
    *next = fetcher->first + fetcher->fetched;
    *count = AT_A_TIME;
    *round = fetcher->round;
    bool wanted = !fetcher->ending && fetcher->first >= 0 && room >= AT_A_TIME;
    pthread_mutex_unlock(&fetcher->lock);
    return wanted;
}

/* Fetches `count` batches from `next` on into the ring, unless the ring was restarted. */
static bool fetch(struct batch_fetcher *fetcher, int64_t next, uint32_t count, uint32_t round, struct error *error)
{
    uint64_t request;
    if (!ask(fetcher, next, count, &request, error)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct parcel *parcel = &fetcher->parcels[(next + i) % FETCHED_BATCHES];
        if (!receive(fetcher, request, error)) {
            return false;
        }
        pthread_mutex_lock(&fetcher->lock);
        bool current = fetcher->round == round;
        pthread_mutex_unlock(&fetcher->lock);
        if (current && !take_bulk(fetcher, parcel, next + i, error)) { /* otherwise the channel drops it */
            return false;
        }
        pthread_mutex_lock(&fetcher->lock);
        fetcher->fetched += current && fetcher->round == round;
        pthread_cond_broadcast(&fetcher->changed);
        pthread_mutex_unlock(&fetcher->lock);
    }
    link_count(&fetcher->link);
    return true;
}

static void *fetch_on(void *context)
{
    struct batch_fetcher *fetcher = context;
    struct error error;
    while (!must_stop(fetcher)) {
        int64_t next;
        uint32_t count, round;
        if (!await_room(fetcher, &next, &count, &round)) {
            continue;
        }
        enum exchange_result end = by_link(link_open(&fetcher->link, must_stop, fetcher, &error));
        if (end == EXCHANGE_FAILED) {
            pthread_mutex_lock(&fetcher->lock);
            fetcher->end = end;
            fetcher->error = error;
            pthread_cond_broadcast(&fetcher->changed);
            pthread_mutex_unlock(&fetcher->lock);
            break;
        }
        if (end == EXCHANGE_OK && !fetch(fetcher, next, count, round, &error)) {
            link_lost(&fetcher->link, must_stop(fetcher) ? NULL : error.text);
        }
    }
    return NULL;
}

/* --- Taking --- */

/* Locked: the ring restarts at `number`, which is not its first. */
static void turn_to(struct batch_fetcher *fetcher, int64_t number)
{
    if (number >= fetcher->first && number < fetcher->first + fetcher->fetched) {
        fetcher->fetched -= (int)(number - fetcher->first);
    } else {
        fetcher->fetched = 0;
        fetcher->round++;
    }
    fetcher->first = number;
    pthread_cond_broadcast(&fetcher->changed);
}

enum exchange_result batch_fetcher_take(struct batch_fetcher *fetcher, int64_t number, struct batch *batch,
                                        struct error *error)
{
    double begun_s = clock_monotonic_s(), logged_s = begun_s;
    enum exchange_result end = EXCHANGE_OK;
    pthread_mutex_lock(&fetcher->lock);
    if (fetcher->first != number) {
        turn_to(fetcher, number);
    }
    while (fetcher->fetched == 0 && fetcher->end == EXCHANGE_OK && end == EXCHANGE_OK) {
        condition_wait_for(&fetcher->changed, &fetcher->lock, SLICE_S);
        pthread_mutex_unlock(&fetcher->lock);
        double now_s = clock_monotonic_s();
        if (now_s - logged_s >= LINK_LOGGED_EVERY_S) {
            logged_s = now_s;
            log_info("waiting for %s to send batch %lld, %.0f s", fetcher->link.name, (long long)number,
                     now_s - begun_s);
        }
        end = must_stop(fetcher) ? EXCHANGE_STOPPED : EXCHANGE_OK;
        pthread_mutex_lock(&fetcher->lock);
    }
    if (fetcher->fetched > 0) {
        struct parcel *parcel = &fetcher->parcels[number % FETCHED_BATCHES];
        if (!fetcher->options.like) {
            parcel->examples.images = parcel->bytes + 2 * (size_t)parcel->count;
        }
        parcel->examples.count = parcel->count;
        *batch = (struct batch){.examples = &parcel->examples, .indexes = fetcher->in_order, .count = parcel->count};
        end = EXCHANGE_OK;
    } else if (fetcher->end != EXCHANGE_OK) {
        end = fetcher->end;
        *error = fetcher->error;
    }
    pthread_mutex_unlock(&fetcher->lock);
    return end;
}

/* --- Create and destroy --- */

static bool create_parcels(struct batch_fetcher *fetcher, struct error *error)
{
    size_t capacity = (size_t)fetcher->capacity;
    fetcher->in_order = must_alloc(capacity * sizeof *fetcher->in_order, "batches from the chief");
    bool there = true;
    for (int i = 0; there && i < FETCHED_BATCHES; i++) {
        if (fetcher->options.like) {
            there = examples_create(&fetcher->parcels[i].examples, fetcher->options.like, fetcher->capacity);
            continue;
        }
        fetcher->parcels[i].bytes =
            must_zero(1, batch_bytes(capacity, fetcher->pixels) + AFTER_IMAGES, "batches from the chief");
        fetcher->parcels[i].examples.labels = must_alloc(capacity * sizeof(int32_t), "batches from the chief");
    }
    for (int i = 0; there && i < fetcher->capacity; i++) {
        fetcher->in_order[i] = i;
    }
    return there || error_set(error, "out of memory for %d batches of %d examples", FETCHED_BATCHES, fetcher->capacity);
}

bool batch_fetcher_create(struct batch_fetcher **out, const struct batch_fetcher_options *options, struct error *error)
{
    const struct config *config = options->config;
    struct batch_fetcher *fetcher = must_zero(1, sizeof *fetcher, "batches from the chief");
    *out = fetcher;
    fetcher->options = *options;
    fetcher->first = -1;
    fetcher->pixels = options->like ? batch_row_pixels(options->like) : (size_t)config->model.layers[0];
    fetcher->classes = config->model.layers[config->model.layer_count - 1];
    fetcher->capacity = config->train.batch_size;
    pthread_mutex_init(&fetcher->lock, NULL);
    condition_create(&fetcher->changed);
    return create_parcels(fetcher, error) &&
           shard_link_create_to_chief(&fetcher->link, config, options->identity, options->traffic, error);
}

void batch_fetcher_destroy(struct batch_fetcher *fetcher)
{
    if (!fetcher) {
        return;
    }
    pthread_mutex_lock(&fetcher->lock);
    fetcher->ending = true;
    pthread_cond_broadcast(&fetcher->changed);
    pthread_mutex_unlock(&fetcher->lock);
    if (fetcher->runs) {
        pthread_join(fetcher->thread, NULL);
    }
    link_destroy(&fetcher->link);
    for (int i = 0; i < FETCHED_BATCHES; i++) {
        if (!fetcher->options.like) {
            fetcher->parcels[i].examples.images = NULL; /* it points into the bytes */
        }
        free(fetcher->parcels[i].bytes);
        examples_free(&fetcher->parcels[i].examples);
    }
    free(fetcher->in_order);
    pthread_mutex_destroy(&fetcher->lock);
    pthread_cond_destroy(&fetcher->changed);
    free(fetcher);
}
