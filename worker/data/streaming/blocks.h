/*
 * A data set cut into blocks: examples that lie one after another in a file, about BLOCK_BYTES of them. A block is what a
 * set that streams is read by: large enough that a disk reads it in one go, small enough that a window holds many.
 *
 * The list takes a few bytes for each block, not for each example. It is made once, and then any thread may read it.
 */
#ifndef WORKER_DATA_STREAMING_BLOCKS_H
#define WORKER_DATA_STREAMING_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { BLOCK_BYTES = 1 << 19 };

struct stream_block {
    uint64_t offset; /* where its first example is: whatever the source counts by */
    int32_t file;    /* likewise */
    uint32_t skip;   /* examples at its beginning that do not count: somebody else's share */
    uint32_t count;  /* examples behind them */
};

/* Zeros are an empty list; blocks_free releases it. */
struct blocks {
    struct stream_block *items;
    int count, capacity;
    int64_t examples; /* in all */
};

/* Appends a block; false for want of memory. */
bool blocks_add(struct blocks *blocks, int file, uint64_t offset, uint32_t count);

/*
 * Counts one more example of a file, whose own block under way is *open (-1: none yet): begins another one where that is
 * large enough by the offsets, which are bytes. False for want of memory.
 */
bool blocks_extend(struct blocks *blocks, int *open, int file, uint64_t offset);

/* Leaves examples [first, first + count) of the list as it stands. */
void blocks_cut(struct blocks *blocks, int64_t first, int64_t count);

/*
 * The order in which a task reads the blocks in an epoch, into order[count]: drawn by (seed, task, epoch). Blocks of a file
 * that can be read only from its beginning on (forward_only[file]; NULL: none is such) keep their order among
 * themselves: they share out the places that were drawn for them.
 */
bool blocks_order(const struct blocks *blocks, const bool *forward_only, int files, uint64_t seed, uint32_t task,
                  int64_t epoch, int32_t *order);

void blocks_free(struct blocks *blocks);

#endif
