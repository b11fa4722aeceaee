/*
 * Where the pixels of a batch are not zero: the first layer's forward pass walks them by sample, its weight gradient by
 * pixel. Pixels are cut into blocks whose weights fit the first-level cache. A block in which so many pixels are set
 * that skipping zeros does not pay is kept as a dense matrix instead.
 */
#ifndef WORKER_CPU_INDEX_H
#define WORKER_CPU_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/cpu/kernels.h"

enum { INDEX_PART = 56, INDEX_PARTS = (KERNEL_BLOCK + INDEX_PART - 1) / INDEX_PART };

struct index_block {
    int first, count; /* pixels; first + i is pixel i of the block */
    int pitch;        /* count, rounded up to 16 */
    bool dense;
    float *values; /* dense: [samples, pitch], 0..1 */

    /*
     * Sparse: the pixels that are set in any sample, ascending, by parts of INDEX_PART pixels: those of part p are
     * present[part_first[p]] .. present[part_first[p + 1] - 1], counted from the part's first pixel. The gradient of a
     * part leaves room in the first-level cache for the deltas that it is made of.
     */
    int part_count;
    int part_first[INDEX_PARTS + 1];
    int32_t present[KERNEL_BLOCK + 1];
    int pair_first[INDEX_PARTS + 1]; /* in column_start and column_order */
    uint8_t *row_order; /* [samples]: samples of a chunk, counted from its first, those with as many entries together */
    uint32_t *row_start; /* [samples + 1]: the entries of each sample ... */
    uint8_t *row_index;  /* ... pixels of the block ... */
    float *row_value;    /* ... and their values, 0..1 */
    /* Present pixels in pairs, part by part (the last of a part may stand alone), and chunk by chunk: */
    uint8_t *column_order;  /* [chunks][KERNEL_BLOCK]: pairs of a part, counted within it, by number of entries */
    uint32_t *column_start; /* [chunks][KERNEL_BLOCK + 1]: the entries of each pair ... */
    uint8_t *column_index;  /* ... samples of the chunk in which one of the two is set ... */
    float *column_value;    /* ... and both values */
};

struct batch_index {
    int capacity; /* samples */
    int block_count;
    struct index_block *blocks;
    void *memory;
};

/* What a thread needs to build blocks. */
struct index_scratch {
    uint8_t *bytes;      /* [chunks, KERNEL_CHUNK, KERNEL_BLOCK] */
    uint8_t *transposed; /* [KERNEL_BLOCK, KERNEL_CHUNK] */
    void *memory;
};

bool index_create(struct batch_index *index, const struct kernels *kernels, int pixels, int capacity,
                  struct error *error);
void index_destroy(struct batch_index *index);

bool index_scratch_create(struct index_scratch *scratch, int capacity, struct error *error);
void index_scratch_destroy(struct index_scratch *scratch);

/*
 * Builds one block from `count` images (of `pixels` bytes each) of a set: images[indexes[i]], or images[i] if indexes
 * is NULL. Different threads may build different blocks at the same time.
 */
void index_build(struct batch_index *index, int block, const struct kernels *kernels, struct index_scratch *scratch,
                 const uint8_t *images, int pixels, const int32_t *indexes, int count);

#endif
