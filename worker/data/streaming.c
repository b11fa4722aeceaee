/*
 * One lane per task: two windows and a thread that fills the one not in use. The thread reads in the blocks' order; the
 * examples of a window are shuffled only when drawn, so reading stays sequential.
 */
#include "worker/data/streaming.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/random/sampler.h"
#include "base/threads.h"

enum { WINDOWS = 2, STACK = 256 * 1024, LOG_EVERY_S = 10 };

/* A window: examples in the order they were read. number: counted over all epochs; -1: not read. */
struct window {
    int64_t number;
    struct examples examples;
};

/* One task's windows, and the thread that fills them. Created at the first draw, and kept. */
struct lane {
    struct streaming *streaming;
    struct lane *next;
    uint32_t task;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows, except the thread's own members */
    pthread_cond_t changed;
    struct window windows[WINDOWS];
    int64_t wanted; /* window; -1: none yet */
    bool failed, ending;
    struct error error;
    struct sampler_order order; /* of the examples of window `ordered` */
    int64_t ordered;
    /* The thread's own: its position in the order of the blocks. */
    struct example_reader *reader;
    int32_t *blocks; /* [blocks.count]: the order of epoch `epoch` */
    int64_t epoch;   /* -1: none */
    int64_t position;
    int place;       /* index in `blocks` of the next example's block */
    uint32_t inside; /* examples of that block already used */
};

struct streaming {
    struct streaming_options options;
    struct example_source *source;
    struct blocks blocks;
    int window;           /* examples in a window; a multiple of batch_size */
    pthread_mutex_t lock; /* guards lanes */
    struct lane *lanes;
};

static int window_examples(const struct streaming_options *options)
{
    int batches = options->shuffle_buffer / options->batch_size;
    return (batches > 1 ? batches : 1) * options->batch_size;
}

size_t streaming_task_bytes(const struct streaming_options *options, const struct examples *like)
{
    return WINDOWS * (size_t)window_examples(options) * examples_bytes(like);
}

static int64_t windows_in_epoch(const struct streaming *streaming)
{
    return (streaming->blocks.examples + streaming->window - 1) / streaming->window;
}

/* --- Reading: the lane's own thread --- */

/* Moves the lane to a position in an epoch's order. */
static bool turn_to(struct lane *lane, int64_t epoch, int64_t position, struct error *error)
{
    const struct streaming *streaming = lane->streaming;
    const struct blocks *blocks = &streaming->blocks;
    if (lane->epoch == epoch && lane->position == position) {
        return true;
    }
    if (lane->epoch != epoch && !blocks_order(blocks, streaming->source->forward_only, streaming->source->files,
                                              streaming->options.seed, lane->task, epoch, lane->blocks)) {
        return error_set(error, "out of memory for the order of %d blocks of data", blocks->count);
    }
    lane->epoch = epoch;
    lane->position = position;
    int64_t left = position;
    for (lane->place = 0; left >= blocks->items[lane->blocks[lane->place]].count; lane->place++) {
        left -= blocks->items[lane->blocks[lane->place]].count;
    }
    lane->inside = (uint32_t)left;
    return true;
}

static bool fill(struct lane *lane, struct window *window, int64_t number, struct error *error)
{
    PROFILE("read data");
    const struct streaming *streaming = lane->streaming;
    int64_t windows = windows_in_epoch(streaming);
    int64_t first = number % windows * streaming->window, left = streaming->blocks.examples - first;
    const int count = left < streaming->window ? (int)left : streaming->window;
    window->examples.count = count;
    if (!turn_to(lane, number / windows, first, error)) {
        return false;
    }
    for (int done = 0; done < count;) {
        const struct stream_block *block = &streaming->blocks.items[lane->blocks[lane->place]];
        uint32_t some = block->count - lane->inside, wanted = (uint32_t)(count - done);
        some = some < wanted ? some : wanted;
        const struct examples into = examples_part(&window->examples, done, (int)some);
        if (!streaming->source->table->read(lane->reader, block, lane->inside, &into, error)) {
            return false;
        }
        done += (int)some;
        lane->position += some;
        lane->inside += some;
        if (lane->inside == block->count) {
            lane->inside = 0;
            lane->place++;
        }
    }
    return true;
}

/* Locked: the window to read next: the wanted one, then the one after it; -1: both are present. */
static int64_t next_to_read(const struct lane *lane)
{
    for (int64_t number = lane->wanted; lane->wanted >= 0 && number <= lane->wanted + 1; number++) {
        if (lane->windows[number % WINDOWS].number != number) {
            return number;
        }
    }
    return -1;
}

static void *read_on(void *context)
{
    struct lane *lane = context;
    struct error error;
    profile_thread("data");
    pthread_mutex_lock(&lane->lock);
    while (!lane->ending && !lane->failed) {
        int64_t number = next_to_read(lane);
        if (number < 0) {
            pthread_cond_wait(&lane->changed, &lane->lock);
            continue;
        }
        struct window *window = &lane->windows[number % WINDOWS];
        window->number = -1;
        pthread_mutex_unlock(&lane->lock);
        bool done = fill(lane, window, number, &error);
        pthread_mutex_lock(&lane->lock);
        if (done) {
            window->number = number;
        } else {
            lane->failed = true;
            lane->error = error;
        }
        pthread_cond_broadcast(&lane->changed);
    }
    pthread_mutex_unlock(&lane->lock);
    return NULL;
}

/* --- Lanes --- */

static void lane_destroy(struct lane *lane)
{
    if (lane->reader) {
        lane->streaming->source->table->close(lane->reader);
    }
    for (int i = 0; i < WINDOWS; i++) {
        examples_free(&lane->windows[i].examples);
    }
    free(lane->blocks);
    pthread_cond_destroy(&lane->changed);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

static bool lane_begin(struct lane *lane, struct error *error)
{
    struct streaming *streaming = lane->streaming;
    lane->blocks = malloc((size_t)streaming->blocks.count * sizeof *lane->blocks);
    bool there = lane->blocks;
    for (int i = 0; i < WINDOWS; i++) {
        lane->windows[i].number = -1;
        there = examples_create(&lane->windows[i].examples, &streaming->source->like, streaming->window) && there;
    }
    if (!there) {
        return error_set(error, "out of memory for two windows of %d examples; lower data.shuffle_buffer",
                         streaming->window);
    }
    if (!streaming->source->table->open(streaming->source, &lane->reader, error)) {
        return false;
    }
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    bool started = pthread_create(&lane->thread, &attributes, read_on, lane) == 0;
    pthread_attr_destroy(&attributes);
    return started || error_set(error, "cannot start a thread to read data");
}

/* The task's lane; NULL after a failure. */
static struct lane *find_lane(struct streaming *streaming, uint32_t task, struct error *error)
{
    pthread_mutex_lock(&streaming->lock);
    struct lane *lane = streaming->lanes;
    while (lane && lane->task != task) {
        lane = lane->next;
    }
    if (!lane && !(lane = calloc(1, sizeof *lane))) {
        error_set(error, "out of memory while reading data");
    } else if (!lane->streaming) {
        *lane = (struct lane){.streaming = streaming, .task = task, .wanted = -1, .ordered = -1, .epoch = -1};
        pthread_mutex_init(&lane->lock, NULL);
        condition_create(&lane->changed);
        if (lane_begin(lane, error)) {
            lane->next = streaming->lanes;
            streaming->lanes = lane;
        } else {
            lane_destroy(lane);
            lane = NULL;
        }
    }
    pthread_mutex_unlock(&streaming->lock);
    return lane;
}

/* --- Drawing --- */

/* Locked: waits until a window is present. Two threads that draw from one lane take turns. */
static bool await_window(struct lane *lane, int64_t number, struct error *error)
{
    PROFILE("wait for data");
    const struct window *window = &lane->windows[number % WINDOWS];
    double begun_s = clock_monotonic_s(), logged_s = begun_s;
    while (!lane->failed) {
        lane->wanted = number;
        if (window->number == number) {
            return true;
        }
        pthread_cond_broadcast(&lane->changed);
        condition_wait_for(&lane->changed, &lane->lock, LOG_EVERY_S);
        double now_s = clock_monotonic_s();
        if (now_s - logged_s >= LOG_EVERY_S) {
            logged_s = now_s;
            log_info("waiting for data from disk, %.0f s", now_s - begun_s);
        }
    }
    *error = lane->error;
    return false;
}

/* Locked: copies examples [first, first + batch->count) of a window, in shuffled order. */
static void take(struct lane *lane, int64_t number, int first, struct examples *batch)
{
    const struct streaming *streaming = lane->streaming;
    const struct window *window = &lane->windows[number % WINDOWS];
    if (lane->ordered != number) {
        struct sampler sampler = {.seed = streaming->options.seed,
                                  .task = lane->task,
                                  .examples = (uint32_t)window->examples.count,
                                  .batch_size = 1};
        int64_t windows = windows_in_epoch(streaming);
        sampler_order_make_part(&lane->order, &sampler, 1 + (uint32_t)(number % windows), number / windows);
        lane->ordered = number;
    }
    for (int i = 0; i < batch->count; i++) {
        examples_copy(batch, i, &window->examples, (int)sampler_index(&lane->order, (uint32_t)(first + i)), 1);
    }
}

bool streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error)
{
    const int count = streaming->options.batch_size;
    return examples_create(batch, &streaming->source->like, count) ||
           error_set(error, "out of memory for batches of %d examples: choose a smaller --batch_size", count);
}

bool streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                    struct error *error)
{
    int batch = streaming->options.batch_size;
    int64_t examples = streaming->blocks.examples, batches = (examples + batch - 1) / batch;
    int64_t first = step % batches * batch, left = examples - first;
    int64_t number = step / batches * windows_in_epoch(streaming) + first / streaming->window;
    struct lane *lane = find_lane(streaming, task, error);
    if (!lane) {
        return false;
    }
    drawn->count = left < batch ? (int)left : batch;
    pthread_mutex_lock(&lane->lock);
    lane->wanted = number;
    bool there =
        (!lane->failed && lane->windows[number % WINDOWS].number == number) || await_window(lane, number, error);
    if (there) {
        pthread_cond_broadcast(&lane->changed); /* the previous window may be overwritten now */
        take(lane, number, (int)(first % streaming->window), drawn);
    }
    pthread_mutex_unlock(&lane->lock);
    return there;
}

/* --- Create and destroy --- */

bool streaming_create(struct streaming **out, const struct streaming_options *options, struct example_source *source,
                      struct blocks *blocks, struct error *error)
{
    struct streaming *streaming = calloc(1, sizeof *streaming);
    if (!streaming) {
        source->table->destroy(source);
        blocks_free(blocks);
        return error_set(error, "out of memory while reading data");
    }
    assert(blocks->examples > 0);
    streaming->options = *options;
    streaming->source = source;
    streaming->blocks = *blocks;
    *blocks = (struct blocks){.items = NULL};
    streaming->window = window_examples(options);
    pthread_mutex_init(&streaming->lock, NULL);
    *out = streaming;
    return true;
}

void streaming_take_share(struct streaming *streaming, int64_t first, int64_t count)
{
    assert(!streaming->lanes);
    blocks_cut(&streaming->blocks, first, count);
}

void streaming_destroy(struct streaming *streaming)
{
    if (!streaming) {
        return;
    }
    for (struct lane *lane = streaming->lanes, *next; lane; lane = next) {
        next = lane->next;
        pthread_mutex_lock(&lane->lock);
        lane->ending = true;
        pthread_cond_broadcast(&lane->changed);
        pthread_mutex_unlock(&lane->lock);
        pthread_join(lane->thread, NULL);
        lane_destroy(lane);
    }
    streaming->source->table->destroy(streaming->source);
    blocks_free(&streaming->blocks);
    pthread_mutex_destroy(&streaming->lock);
    free(streaming);
}
