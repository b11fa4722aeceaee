/*
 * A batch's input, indexed for the first layer. For pictures, their nonzero pixels: the first layer's forward pass
 * walks them by sample, its weight gradient by pixel, both in pairs (struct sparse). Pixels are cut into blocks small
 * enough that a block's frequently used rows of a strip's weights stay in the L1 cache. A block with too many nonzero
 * pixels for skipping zeros to pay is kept as a dense matrix instead. For rows, the numbers as dense blocks or, if
 * they are encoded, as bins by sample and by bin; and which one-hot inputs are 1.
 */
#ifndef WORKER_CPU_INDEX_H
#define WORKER_CPU_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/kernels.h"
#include "worker/data/examples.h"

/* The strips of `width` columns. */
struct strips {
    int width;
    int lanes;
    int vectors; /* width / lanes, rounded up */
    int count;
    int pitch; /* floats of the widest strip */
};

/* A matrix [capacity, width], strip after strip, each [capacity, strips' pitch]; or row by row if pitch is not 0. */
struct matrix {
    float *values;
    int capacity;
    int pitch;
};

static inline int strip_col(const struct strips *strips, int strip)
{
    return (int)((int64_t)strip * strips->vectors / strips->count) * strips->lanes;
}

/* Columns of a strip, padding included: a whole number of vectors. */
static inline int strip_floats(const struct strips *strips, int strip)
{
    return strip_col(strips, strip + 1) - strip_col(strips, strip);
}

/* Columns of a strip, without padding. */
static inline int strip_units(const struct strips *strips, int strip)
{
    int end = strip_col(strips, strip + 1);
    return (end < strips->width ? end : strips->width) - strip_col(strips, strip);
}

static inline int strip_stride(const struct matrix *matrix, const struct strips *strips)
{
    return matrix->pitch ? matrix->pitch : strips->pitch;
}

static inline float *strip_row(const struct matrix *matrix, const struct strips *strips, int strip, int row)
{
    if (matrix->pitch) {
        return matrix->values + (size_t)row * (size_t)matrix->pitch + strip_col(strips, strip);
    }
    return matrix->values + ((size_t)strip * (size_t)matrix->capacity + (size_t)row) * (size_t)strips->pitch;
}

/* Samples are processed in chunks of nearly equal size; all but the last have an even number. */
static inline int chunk_count(int samples)
{
    return (samples + KERNEL_CHUNK - 1) / KERNEL_CHUNK;
}

static inline int chunk_first(int samples, int chunk)
{
    int first = (int)((int64_t)chunk * samples / chunk_count(samples));
    return chunk < chunk_count(samples) ? (first + 1) & ~1 : samples;
}

static inline int round_up(int n, int multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* --- The index --- */

/*
 * A batch's input, indexed for the first layer. For pictures, their nonzero pixels: the first layer's forward pass
 * walks them by sample, its weight gradient by pixel, both in pairs (struct sparse). Pixels are cut into blocks small
 * enough that a block's frequently used rows of a strip's weights stay in the L1 cache. A block with too many nonzero
 * pixels for skipping zeros to pay is kept as a dense matrix instead. For rows, the numbers as dense blocks or, if
 * they are encoded, as bins by sample and by bin; and which one-hot inputs are 1.
 */

/* The encoded numbers of a block of rows, for kernels' bin_sums and bin_gradients. */
struct bin_index {
    int column, columns; /* the first of the block, and how many; 0: the block has none */
    int32_t *first;      /* [columns + 1]: their bins within the block */
    /* By sample: [capacity, columns] */
    int32_t *row_bin;
    float *row_share;
    /* By bin: */
    uint32_t *column_start; /* [bins + 1] */
    int32_t *column_sample; /* ascending for each bin */
    float *column_share;
};

struct index_block {
    int first, count; /* pixels; first + i is pixel i of the block */
    int pitch;        /* count, rounded up to 16 */
    size_t capacity;  /* entries by sample, and as many by pixel */
    bool dense;
    float *values; /* dense: [samples, pitch], 0..1 */
    struct bin_index bins;

    /* Sparse: the pixels of the block that are set in any sample, ascending. */
    int present_count;
    int32_t present[KERNEL_BLOCK + 1];
    /* Pairs of samples, chunk by chunk, counted from the chunk's first (a last one may be unpaired): */
    uint8_t *row_order;      /* [chunks][KERNEL_CHUNK / 2]: pairs by number of entries */
    struct parts *row_parts; /* [chunks][KERNEL_CHUNK / 2]: how they are divided; NULL: they are not */
    uint32_t *row_start;     /* [chunks][KERNEL_CHUNK / 2 + 1]: the entries of each pair ... */
    uint32_t *row_offset;    /* ... pixels of the block that are set in one of the two, x row_stride in bytes ... */
    float *row_value;        /* ... and both values, 0..1 */
    uint32_t *row_packed;    /* the same, as pack_parts writes it, if they are divided */
    /* Pairs of present pixels, chunk by chunk (a last one may be unpaired): */
    uint8_t *column_order;      /* [chunks][KERNEL_BLOCK / 2]: pairs by number of entries */
    struct parts *column_parts; /* [chunks][KERNEL_BLOCK / 2]: how they are divided; NULL: they are not */
    uint32_t *column_start;     /* [chunks][KERNEL_BLOCK / 2 + 1]: the entries of each pair ... */
    uint32_t *column_offset; /* ... samples of the chunk in which one of the two is set, x column_stride in bytes ... */
    float *column_value;     /* ... and both values */
    uint32_t *column_packed; /* the same, packed */
    uint32_t row_entries, column_entries; /* of all chunks */
};

/* The one-hot inputs of rows: which of them are 1. */
struct place_index {
    int first, count; /* inputs; place i is input first + i */
    int codes;        /* most ones of a sample; 0: there are no such inputs */
    /* By sample: */
    uint32_t *row_start; /* [capacity + 1]: the ones of each ... */
    int32_t *row_place;  /* ... by place */
    /* By input: the places that are 1 in any sample, ascending. */
    int present_count;
    int32_t *present;
    uint32_t *column_start;  /* [present_count + 1]: the ones of each ... */
    int32_t *column_sample;  /* ... by sample, ascending */
    uint64_t *keys, *sorted; /* scratch of building */
};

struct batch_index {
    int capacity;      /* samples */
    int row_stride;    /* floats from one pixel's weights to the next; 0: only pixels are indexed, not samples */
    int column_stride; /* floats from one sample's deltas to the next */
    int block_count;
    bool packed; /* offsets and values exist only in threads' own views */
    struct index_block *blocks;
    struct place_index places; /* rows: the last block, if there are one-hot inputs; all others are dense or bins */
    void *memory;
};

static inline bool index_is_places(const struct batch_index *index, int block)
{
    return index->places.codes > 0 && block == index->block_count - 1;
}

/* A thread's scratch memory to build blocks. */
struct index_scratch {
    uint8_t *bytes;      /* [chunks, KERNEL_CHUNK, KERNEL_BLOCK] */
    uint8_t *transposed; /* [KERNEL_BLOCK, KERNEL_CHUNK] */
    void *memory;
};

/* Number of blocks that images are cut into. */
int index_block_count(int pixels);

/*
 * For batches of up to `capacity` images; the strides are those of struct batch_index. shared: by several threads; the
 * index is then packed if pairs are divided and all views fit the threads' caches.
 */
void index_create(struct batch_index *index, const struct kernels *kernels, int pixels, int capacity, int row_stride,
                  int column_stride, bool shared);
void index_destroy(struct batch_index *index);

/*
 * A thread's own view of packed indexes of the same layout. If threads share no cache, a line that one writes and
 * another reads costs far more than computing its content: so only a third of the bytes is shared, from which each
 * thread computes offsets and values for itself. index_destroy frees it.
 */
void index_view_create(struct batch_index *view, const struct batch_index *index);
/* Unpacks an index that has been built; valid until it is built again. */
void index_view_take(struct batch_index *view, const struct batch_index *index, const struct kernels *kernels);

void index_scratch_create(struct index_scratch *scratch, int capacity);
void index_scratch_destroy(struct index_scratch *scratch);

/*
 * Builds one block from `count` images (of `pixels` bytes each) of a set: images[indexes[i]], or images[i] if indexes
 * is NULL. Different threads may build different blocks at the same time.
 */
void index_build(struct batch_index *index, int block, const struct kernels *kernels, struct index_scratch *scratch,
                 const uint8_t *images, int pixels, const int32_t *indexes, int count);

/* --- Rows --- */

/* Number of blocks for rows of this shape. */
int index_rows_block_count(const struct examples *like);

/* For batches of up to `capacity` rows of this shape; index_destroy frees it. */
void index_rows_create(struct batch_index *index, const struct examples *like, int capacity);

/* Builds one block from `count` rows of a set, those at `indexes` or, if that is NULL, the first. */
void index_rows_build(struct batch_index *index, int block, const struct examples *examples, const int32_t *indexes,
                      int count);

#endif
