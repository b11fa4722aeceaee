/*
 * Batches of a training set that is larger than the memory it may take: as shuffle(buffer).repeat().batch() over
 * interleaved files makes them, but a function of (seed, task, step) alone, so that a resumed run draws what the
 * uninterrupted one would have drawn.
 *
 * In every epoch each task reads all blocks (streaming/blocks.h), in an order drawn by (seed, task, epoch). The examples
 * in that order are cut into windows of `shuffle_buffer` examples, and a batch takes the next ones of its window in an
 * order drawn by (seed, task, epoch, window). Every example of an epoch is used once; the epoch's last batch may be short.
 *
 * A task has two windows in memory: the one that batches are drawn from, and the next one, which a thread of its own
 * reads and unpacks meanwhile. So the engine waits for the first window, and then only where the disk is slower than it.
 * After a jump (a resumed run) the thread goes straight to the block that is wanted; a gzip or zlib file it reads again up
 * to there.
 */
#ifndef WORKER_DATA_STREAMING_STREAMING_H
#define WORKER_DATA_STREAMING_STREAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/streaming/blocks.h"
#include "worker/data/streaming/source.h"

struct streaming;

struct streaming_options {
    uint64_t seed;
    int batch_size;
    int shuffle_buffer; /* examples; a window is that, rounded to whole batches */
};

/* Bytes of both windows of one task. */
size_t streaming_task_bytes(const struct streaming_options *options, size_t pixels);

/* Takes over source and blocks, also if it fails; blocks must not be empty. */
bool streaming_create(struct streaming **streaming, const struct streaming_options *options,
                      struct example_source *source, struct blocks *blocks, struct error *error);
void streaming_destroy(struct streaming *streaming); /* NULL is fine; nobody draws any more */

/* Examples in an epoch. */
int64_t streaming_examples(const struct streaming *streaming);

/* From now on only examples [first, first + count) of them. To be called before the first draw. */
void streaming_take_share(struct streaming *streaming, int64_t first, int64_t count);

/*
 * Batch `step` (0, 1, ... over all epochs) of a task into images [batch_size, pixels] and labels [batch_size]; *count: how
 * many there are. Waits for the window to be read. Steps that follow one another are cheap, the same one again is too.
 * Any thread may call it. Fails, and from then on for good, if a file can't be read or has changed.
 */
bool streaming_draw(struct streaming *streaming, uint32_t task, int64_t step, uint8_t *images, int32_t *labels,
                    int *count, struct error *error);

#endif
