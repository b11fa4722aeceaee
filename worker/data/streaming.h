/*
 * Batches of a training set larger than its memory limit, like shuffle(buffer).repeat().batch() over interleaved files,
 * but a function of (seed, task, step) alone, so that a resumed run draws the same batches as an uninterrupted one.
 *
 * In every epoch each task reads all blocks (worker/data/source.h), in an order drawn by (seed, task, epoch). The
 * examples in that order are cut into windows of `shuffle_buffer` examples, and a batch takes the next ones of its
 * window in an order drawn by (seed, task, epoch, window). Every example of an epoch is used once; the epoch's last
 * batch may be short.
 *
 * A task has two windows in memory: the one that batches are drawn from, and the next one, which the task's own thread
 * reads and unpacks meanwhile. So the engine waits for the first window, and later only if the disk is slower than
 * training. After a jump (a resumed run) the thread seeks straight to the block it needs; a gzip or zlib file must be
 * read up to it.
 */
#ifndef WORKER_DATA_STREAMING_H
#define WORKER_DATA_STREAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/source.h"

struct streaming;

struct streaming_options {
    uint64_t seed;
    int batch_size;
    int shuffle_buffer; /* examples; a window is that, rounded to whole batches */
};

/* Bytes of both windows of one task. like: the shape of the examples. */
size_t streaming_task_bytes(const struct streaming_options *options, const struct examples *like);

/* Takes ownership of source and blocks, also if it fails; blocks must not be empty. */
bool streaming_create(struct streaming **streaming, const struct streaming_options *options,
                      struct example_source *source, struct blocks *blocks, struct error *error);
void streaming_destroy(struct streaming *streaming); /* safe on NULL; no draw may be in progress */

/* Restricts the set to examples [first, first + count). Call before the first draw. */
void streaming_take_share(struct streaming *streaming, int64_t first, int64_t count);

/*
 * Draws batch `step` (0, 1, ... over all epochs) of a task into a set made by streaming_create_batch, and sets
 * drawn->count. Waits until the window has been read. The next step, or the same one again, is cheap. Any thread may
 * call it. Fails permanently if a file cannot be read or has changed.
 */
bool streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, struct examples *drawn,
                    struct error *error);

/* Allocates a whole batch; the caller frees it with examples_free. */
bool streaming_create_batch(const struct streaming *streaming, struct examples *batch, struct error *error);

#endif
