/*
 * A ring of batches. The thread fetches from `next` on while there is room, several at a time; the training thread
 * takes them in order. If it wants another number than the ring's first, the ring is emptied and starts there: `round`
 * changes, and batches that still arrive for the old round are dropped.
 */
#include "worker/remote/batch_fetcher.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/threads.h"
#include "net/bytes.h"
#include "net/channel.h"
#include "ps/store/model.h"
#include "worker/remote/data_server.h"
#include "worker/remote/shard_link.h"

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
