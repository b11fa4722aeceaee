/*
 * A ring of batches. The thread fetches from `next` on while there is room, some at a time; the training thread takes
 * them in order. Where it wants another number than the ring's first, the ring is emptied and begins there: `round`
 * changes, and what still comes for the old one is dropped.
 */
#include "worker/remote/batch_fetcher.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/condition.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "net/bytes.h"
#include "worker/remote/data_server.h"

enum { AT_A_TIME = FEED_BATCHES / 2, AFTER_IMAGES = 64 /* bytes that engines may read behind the last image */ };

static const double SLICE_S = 0.1;

struct parcel {
    uint8_t *bytes;           /* of pictures as they came: labels, then images */
    struct examples examples; /* the images within those bytes, and labels [capacity] of its own; or rows */
    int count;
};

struct batch_fetcher {
    struct batch_fetcher_options options;
    struct link link;
    size_t pixels;         /* of an image, or what stands for them */
    int classes, capacity; /* of a batch */
    int32_t *in_order;     /* [capacity]: 0, 1, ... */
    struct parcel parcels[FEED_BATCHES];

    pthread_t thread;
    bool runs;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t first; /* number of the oldest batch in the ring; < 0: nothing is wanted yet */
    int fetched;   /* in the ring, from `first` on */
    uint32_t round;
    bool ending;
    enum push_pull_end end; /* REFUSED: for good, and why */
    struct error error;
};

static bool must_stop(void *context)
{
    struct batch_fetcher *feed = context;
    pthread_mutex_lock(&feed->lock);
    bool ending = feed->ending;
    pthread_mutex_unlock(&feed->lock);
    return ending || signals_pending() != 0 || feed->options.given_up(feed->options.context);
}

/* --- Asking --- */

static bool ask(struct batch_fetcher *feed, int64_t first, uint32_t count, uint64_t *request, struct error *error)
{
    struct channel *channel = &feed->link.channel;
    struct message_get_batches message = {.first = first, .count = count};
    *request = ++channel->next_request;
    return channel_send(channel, MESSAGE_get_batches, *request, &message, clock_monotonic_s() + LINK_ANSWER_S, error);
}

/* The next frame of an answer. */
static bool receive(struct batch_fetcher *feed, uint64_t request, struct error *error)
{
    const struct message_batch *batch = &feed->link.channel.message.batch;
    if (!link_receive_answer(&feed->link, MESSAGE_get_batches, request, MESSAGE_batch, NULL, error)) {
        return false;
    }
    if (batch->pixels != feed->pixels || batch->total == 0 || batch->total > INT32_MAX ||
        batch->validation > INT32_MAX) {
        return error_set(error, "%s has %s of %u bytes, and here they take %zu", feed->link.name,
                         feed->options.like ? "rows" : "images", batch->pixels, feed->pixels);
    }
    return true;
}

static void *fetch_on(void *context);

static enum push_pull_end by_link(enum link_try tried)
{
    return tried == LINK_OPEN ? PUSH_PULL_DONE : tried == LINK_REFUSED ? PUSH_PULL_REFUSED : PUSH_PULL_STOPPED;
}

enum push_pull_end batch_fetcher_ask(struct batch_fetcher *feed, struct batch_fetcher_facts *facts, struct error *error)
{
    for (;;) {
        uint64_t request;
        enum push_pull_end end = by_link(link_open(&feed->link, must_stop, feed, error));
        if (end != PUSH_PULL_DONE) {
            return end;
        }
        if (ask(feed, 0, 0, &request, error) && receive(feed, request, error)) {
            const struct message_batch *batch = &feed->link.channel.message.batch;
            *facts = (struct batch_fetcher_facts){.train = (int)batch->total, .validation = (int)batch->validation};
            snprintf(facts->description, sizeof facts->description, "from worker 0: %.300s", batch->description);
            feed->runs = feed->runs || pthread_create(&feed->thread, NULL, fetch_on, feed) == 0;
            if (!feed->runs) {
                error_set(error, "can't start a thread to fetch batches");
                return PUSH_PULL_REFUSED;
            }
            return PUSH_PULL_DONE;
        }
        link_lost(&feed->link, error->text);
    }
}

/* --- Fetching --- */

/* Do the rows say nothing that the model has no place for? */
static bool check_rows(const struct batch_fetcher *feed, const struct parcel *parcel, struct error *error)
{
    const struct examples *rows = &parcel->examples;
    for (int i = 0; rows->labels && i < parcel->count; i++) {
        if (rows->labels[i] < 0 || rows->labels[i] >= feed->classes) {
            return error_set(error, "%s sent label %d, and the model has %d classes", feed->link.name, rows->labels[i],
                             feed->classes);
        }
    }
    for (int64_t i = 0; i < (int64_t)parcel->count * rows->codes; i++) {
        if (rows->places[i] != -1 && (rows->places[i] < rows->numbers || rows->places[i] >= rows->inputs)) {
            return error_set(error, "%s sent a row with input %d, and there are %d", feed->link.name, rows->places[i],
                             rows->inputs);
        }
    }
    return true;
}

static bool take_rows(struct batch_fetcher *feed, struct parcel *parcel, struct error *error)
{
    struct channel *channel = &feed->link.channel;
    struct iovec parts[BATCH_PARTS];
    size_t bytes = 0;
    const int count = batch_row_parts(&parcel->examples, parcel->count, parts);
    for (int i = 0; i < count; i++) {
        bytes += parts[i].iov_len;
    }
    if (bytes != channel->bulk_left) {
        return error_set(error, "%s sent %u bytes of rows, and %zu were expected", feed->link.name,
                         (unsigned)channel->bulk_left, bytes);
    }
    for (int i = 0; i < count; i++) {
        if (!channel_read_bulk(channel, parts[i].iov_base, parts[i].iov_len, clock_monotonic_s() + LINK_ANSWER_S,
                               error)) {
            return false;
        }
    }
    return check_rows(feed, parcel, error);
}

/* Takes one batch off the connection. */
static bool take_bulk(struct batch_fetcher *feed, struct parcel *parcel, int64_t number, struct error *error)
{
    struct channel *channel = &feed->link.channel;
    const struct message_batch *batch = &channel->message.batch;
    if (batch->number != number || batch->examples == 0 || batch->examples > (uint32_t)feed->capacity) {
        return error_set(error, "%s sent batch %lld of %u images, and batch %lld of at most %d was asked for",
                         feed->link.name, (long long)batch->number, batch->examples, (long long)number, feed->capacity);
    }
    parcel->count = (int)batch->examples;
    if (feed->options.like) {
        return take_rows(feed, parcel, error);
    }
    if (!channel_read_bulk(channel, parcel->bytes, channel->bulk_left, clock_monotonic_s() + LINK_ANSWER_S, error)) {
        return false;
    }
    for (int i = 0; i < parcel->count; i++) {
        parcel->examples.labels[i] = get_le16(parcel->bytes + 2 * (size_t)i);
        if (parcel->examples.labels[i] >= feed->classes) {
            return error_set(error, "%s sent label %d, and the model has %d classes", feed->link.name,
                             parcel->examples.labels[i], feed->classes);
        }
    }
    return true;
}

/* What is to be fetched now; false: nothing, for the ring is full, or the thread is to end. Waits a while for it. */
static bool await_room(struct batch_fetcher *feed, int64_t *next, uint32_t *count, uint32_t *round)
{
    pthread_mutex_lock(&feed->lock);
    int room = FEED_BATCHES - feed->fetched;
    if (!feed->ending && (feed->first < 0 || room < AT_A_TIME)) {
        condition_wait_for(&feed->changed, &feed->lock, 1);
        room = FEED_BATCHES - feed->fetched;
    }
    *next = feed->first + feed->fetched;
    *count = AT_A_TIME;
    *round = feed->round;
    bool wanted = !feed->ending && feed->first >= 0 && room >= AT_A_TIME;
    pthread_mutex_unlock(&feed->lock);
    return wanted;
}

/* Fetches `count` batches from `next` on into the ring, unless the ring was restarted. */
static bool fetch(struct batch_fetcher *feed, int64_t next, uint32_t count, uint32_t round, struct error *error)
{
    uint64_t request;
    if (!ask(feed, next, count, &request, error)) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct parcel *parcel = &feed->parcels[(next + i) % FEED_BATCHES];
        if (!receive(feed, request, error)) {
            return false;
        }
        pthread_mutex_lock(&feed->lock);
        bool current = feed->round == round;
        pthread_mutex_unlock(&feed->lock);
        if (current && !take_bulk(feed, parcel, next + i, error)) { /* else the channel drops it */
            return false;
        }
        pthread_mutex_lock(&feed->lock);
        feed->fetched += current && feed->round == round;
        pthread_cond_broadcast(&feed->changed);
        pthread_mutex_unlock(&feed->lock);
    }
    link_count(&feed->link);
    return true;
}

static void *fetch_on(void *context)
{
    struct batch_fetcher *feed = context;
    struct error error;
    while (!must_stop(feed)) {
        int64_t next;
        uint32_t count, round;
        if (!await_room(feed, &next, &count, &round)) {
            continue;
        }
        enum push_pull_end end = by_link(link_open(&feed->link, must_stop, feed, &error));
        if (end == PUSH_PULL_REFUSED) {
            pthread_mutex_lock(&feed->lock);
            feed->end = end;
            feed->error = error;
            pthread_cond_broadcast(&feed->changed);
            pthread_mutex_unlock(&feed->lock);
            break;
        }
        if (end == PUSH_PULL_DONE && !fetch(feed, next, count, round, &error)) {
            link_lost(&feed->link, must_stop(feed) ? NULL : error.text);
        }
    }
    return NULL;
}

/* --- Taking --- */

/* Locked: the ring's oldest becomes `number`, which is another than before. */
static void turn_to(struct batch_fetcher *feed, int64_t number)
{
    if (number >= feed->first && number < feed->first + feed->fetched) {
        feed->fetched -= (int)(number - feed->first);
    } else {
        feed->fetched = 0;
        feed->round++;
    }
    feed->first = number;
    pthread_cond_broadcast(&feed->changed);
}

enum push_pull_end batch_fetcher_take(struct batch_fetcher *feed, int64_t number, struct batch *batch,
                                      struct error *error)
{
    double begun_s = clock_monotonic_s(), told_s = begun_s;
    enum push_pull_end end = PUSH_PULL_DONE;
    pthread_mutex_lock(&feed->lock);
    if (feed->first != number) {
        turn_to(feed, number);
    }
    while (feed->fetched == 0 && feed->end == PUSH_PULL_DONE && end == PUSH_PULL_DONE) {
        condition_wait_for(&feed->changed, &feed->lock, SLICE_S);
        pthread_mutex_unlock(&feed->lock);
        double now_s = clock_monotonic_s();
        if (now_s - told_s >= LINK_LOGGED_EVERY_S) {
            told_s = now_s;
            log_info("waiting for %s to send batch %lld, %.0f s", feed->link.name, (long long)number, now_s - begun_s);
        }
        end = must_stop(feed) ? PUSH_PULL_STOPPED : PUSH_PULL_DONE;
        pthread_mutex_lock(&feed->lock);
    }
    if (feed->fetched > 0) {
        struct parcel *parcel = &feed->parcels[number % FEED_BATCHES];
        if (!feed->options.like) {
            parcel->examples.images = parcel->bytes + 2 * (size_t)parcel->count;
        }
        parcel->examples.count = parcel->count;
        *batch = (struct batch){.examples = &parcel->examples, .indexes = feed->in_order, .count = parcel->count};
        end = PUSH_PULL_DONE;
    } else if (feed->end != PUSH_PULL_DONE) {
        end = feed->end;
        *error = feed->error;
    }
    pthread_mutex_unlock(&feed->lock);
    return end;
}

/* --- Beginning and end --- */

static bool create_parcels(struct batch_fetcher *feed, struct error *error)
{
    size_t capacity = (size_t)feed->capacity;
    feed->in_order = malloc(capacity * sizeof *feed->in_order);
    bool there = feed->in_order;
    for (int i = 0; there && i < FEED_BATCHES; i++) {
        if (feed->options.like) {
            there = examples_create(&feed->parcels[i].examples, feed->options.like, feed->capacity);
            continue;
        }
        feed->parcels[i].bytes = calloc(1, batch_bytes(capacity, feed->pixels) + AFTER_IMAGES);
        feed->parcels[i].examples.labels = malloc(capacity * sizeof(int32_t));
        there = feed->parcels[i].bytes && feed->parcels[i].examples.labels;
    }
    for (int i = 0; there && i < feed->capacity; i++) {
        feed->in_order[i] = i;
    }
    return there || error_set(error, "out of memory for %d batches of %d examples", FEED_BATCHES, feed->capacity);
}

bool batch_fetcher_create(struct batch_fetcher **out, const struct batch_fetcher_options *options, struct error *error)
{
    const struct config *config = options->config;
    struct batch_fetcher *feed = calloc(1, sizeof *feed);
    *out = feed;
    if (!feed) {
        return error_set(error, "out of memory");
    }
    feed->options = *options;
    feed->first = -1;
    feed->pixels = options->like ? batch_row_pixels(options->like) : (size_t)config->model.layers[0];
    feed->classes = config->model.layers[config->model.layer_count - 1];
    feed->capacity = config->train.batch_size;
    pthread_mutex_init(&feed->lock, NULL);
    condition_create(&feed->changed);
    return create_parcels(feed, error) &&
           shard_link_create_to_chief(&feed->link, config, options->identity, options->traffic, error);
}

void batch_fetcher_destroy(struct batch_fetcher *feed)
{
    if (!feed) {
        return;
    }
    pthread_mutex_lock(&feed->lock);
    feed->ending = true;
    pthread_cond_broadcast(&feed->changed);
    pthread_mutex_unlock(&feed->lock);
    if (feed->runs) {
        pthread_join(feed->thread, NULL);
    }
    link_destroy(&feed->link);
    for (int i = 0; i < FEED_BATCHES; i++) {
        if (!feed->options.like) {
            feed->parcels[i].examples.images = NULL; /* within the bytes */
        }
        free(feed->parcels[i].bytes);
        examples_free(&feed->parcels[i].examples);
    }
    free(feed->in_order);
    pthread_mutex_destroy(&feed->lock);
    pthread_cond_destroy(&feed->changed);
    free(feed);
}
