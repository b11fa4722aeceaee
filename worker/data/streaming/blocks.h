/*
 * A data set cut into blocks: runs of examples in a file, about BLOCK_BYTES long. Blocks are the unit of reading when a
 * set streams: large enough to read efficiently, small enough that a window holds many.
 *
 * The list takes a few bytes per block, not per example. It is built once; then any thread may read it.
 */
#ifndef WORKER_DATA_STREAMING_BLOCKS_H
#define WORKER_DATA_STREAMING_BLOCKS_H

#include <stdbool.h>
#include <stdint.h>

enum { BLOCK_BYTES = 1 << 19 };

struct stream_block {
    uint64_t offset; /* position of its first example, in the source's own unit */
    int32_t file;    /* the source's file number */
    uint32_t skip;   /* examples at its beginning to skip: another worker's share */
    uint32_t count;  /* examples after them */
};

/* A zeroed list is empty; blocks_free releases it. */
struct blocks {
    struct stream_block *items;
    int count, capacity;
    int64_t examples; /* in all */
};

/* Appends a block; false if out of memory. */
bool blocks_add(struct blocks *blocks, int file, uint64_t offset, uint32_t count);

/*
 * Adds one more example of a file to its current block *open (-1: none yet); starts a new block once that one is large
 * enough by its offsets, which are bytes. False if out of memory.
 */
bool blocks_extend(struct blocks *blocks, int *open, int file, uint64_t offset);

/* Keeps only examples [first, first + count) of the current list. */
void blocks_cut(struct blocks *blocks, int64_t first, int64_t count);

/*
 * The order in which a task reads the blocks in an epoch, drawn by (seed, task, epoch), into order[count]. Blocks of a
 * file that cannot seek (forward_only[file]; NULL: all can) are sorted among the positions drawn for them.
 */
bool blocks_order(const struct blocks *blocks, const bool *forward_only, int files, uint64_t seed, uint32_t task,
                  int64_t epoch, int32_t *order);

void blocks_free(struct blocks *blocks);

#endif
