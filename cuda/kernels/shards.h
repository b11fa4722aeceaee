/* How sharded training (cuda/kernels/sharded.cuh) cuts a network; shared by host and device. */
#ifndef CUDA_KERNELS_SHARDS_H
#define CUDA_KERNELS_SHARDS_H

#include <stdint.h>

#include "ps/store/optimizer.h"
#include "base/random/sampler.h"

enum {
    SHARD_THREADS = 512,
    SHARD_WARPS = SHARD_THREADS / 32,
    SHARD_SUMS = 8,                   /* per thread in the first layer: images x units */
    SHARD_PIXELS = 4 * SHARD_THREADS, /* at most, including padding: each thread sums the gradients of four */
    SHARD_SLICES = 4,                 /* of a chunk's images, at most: each has its own sums */
    SHARD_CLASSES = 16,               /* at most */
    SHARD_BLOCKS = 256,               /* at most: more parts of a logit could overflow the sum */
    SHARD_TURNS = 3,                  /* sums of logits and drawn batches in use at once */
};

/*
 * Logits are summed as integers in units of 2^-30, so that the order does not matter; one that does not fit ends the
 * run.
 */
#define SHARD_FIXED 0x1p30f
#define SHARD_LIMIT 0x1p24f

/* A block's drawn batches, in shared memory. */
struct shard_drawn {
    struct sampler_order order; /* of this epoch: */
    int64_t epoch;
    int32_t counts[SHARD_TURNS]; /* images in each batch */
    int32_t padding;
};

/* The layout of a block's shared memory, in bytes. */
struct shard_layout {
    int32_t floats; /* of each vector: weights [pixels, units], biases, weights above [units, classes], biases */
    int32_t biases; /* offset of the biases in such a vector, in floats */
    int32_t weights2;
    int32_t biases2;
    int32_t groups;       /* of 32 x SHARD_SUMS / units images of a chunk, a power of two */
    int32_t slices;       /* of the pixels: groups x slices = SHARD_WARPS */
    int32_t image_slices; /* of a chunk's images, when gradients are summed */
    uint32_t vectors[4];  /* [floats] each: parameters, slots, averages; unused ones alias the first */
    uint32_t images;      /* [2][chunk, image_stride] */
    uint32_t activations; /* [capacity, units]; later the deltas */
    uint32_t outputs;     /* [capacity, units] */
    uint32_t logits;      /* [capacity, classes]; later their deltas */
    uint32_t losses;      /* [capacity] */
    uint32_t parts;       /* of sums: [slices][chunk, units], or [image_slices][pixels, units] */
    uint32_t indexes;     /* [SHARD_TURNS][capacity] */
    uint32_t labels;      /* [SHARD_TURNS][capacity] */
    uint32_t updates;     /* [2] struct update */
    uint32_t drawn;       /* struct shard_drawn */
    uint32_t scratch;     /* 64 doubles */
    uint32_t bytes;
};

struct kernel_shards {
    int32_t units;     /* of the hidden layer in each block: 4 or 8 */
    int32_t blocks;    /* in use: hidden units / units, rounded up */
    int32_t capacity;  /* images in a batch, at most */
    int32_t chunk;     /* images per buffer in shared memory; there are two buffers */
    uint64_t *logits;  /* [SHARD_TURNS, capacity x classes + 1]: the last one counts parts that do not fit */
    uint32_t *arrived; /* blocks at the barrier, summed over all steps */
    int32_t steps;     /* to train */
    int32_t padding;
    struct shard_layout at;
};

static inline uint32_t shard_place(uint32_t *at, uint64_t bytes)
{
    uint32_t place = *at;
    *at += (uint32_t)((bytes + 15) / 16 * 16);
    return place;
}

/* Number of image slices that there are threads for. */
static inline int shard_most_slices(int image_stride)
{
    int slices = SHARD_THREADS / (image_stride / 4);
    return slices < SHARD_SLICES ? slices : SHARD_SLICES;
}

/*
 * kept: which vectors exist; the parameters always do. image_slices: 1..shard_most_slices; fewer use less memory and
 * fewer threads.
 */
static inline void shard_layout_make(struct shard_layout *layout, int units, int chunk, int capacity, int image_stride,
                                     int classes, int image_slices, const int32_t kept[4])
{
    uint32_t at = 0;
    layout->biases = image_stride * units;
    layout->weights2 = layout->biases + units;
    layout->biases2 = layout->weights2 + units * classes;
    layout->floats = (layout->biases2 + classes + 3) / 4 * 4;
    layout->groups = 1;
    while (layout->groups * 32 * (SHARD_SUMS / units) < chunk) {
        layout->groups *= 2;
    }
    layout->slices = SHARD_WARPS / layout->groups;
    layout->image_slices = image_slices;
    uint64_t forward = (uint64_t)layout->slices * (uint64_t)chunk;
    uint64_t backward = (uint64_t)layout->image_slices * (uint64_t)image_stride;
    for (int i = 0; i < 4; i++) {
        layout->vectors[i] = i == 0 || kept[i] ? shard_place(&at, (uint64_t)layout->floats * 4) : layout->vectors[0];
    }
    layout->images = shard_place(&at, 2u * (uint64_t)chunk * (uint64_t)image_stride);
    layout->activations = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)units);
    layout->outputs = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)units);
    layout->logits = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)classes);
    layout->losses = shard_place(&at, 4u * (uint64_t)capacity);
    layout->parts = shard_place(&at, 4u * (uint64_t)units * (forward > backward ? forward : backward));
    layout->indexes = shard_place(&at, 4u * SHARD_TURNS * (uint64_t)capacity);
    layout->labels = shard_place(&at, 4u * SHARD_TURNS * (uint64_t)capacity);
    layout->updates = shard_place(&at, 2 * sizeof(struct update));
    layout->drawn = shard_place(&at, sizeof(struct shard_drawn));
    layout->scratch = shard_place(&at, 64 * sizeof(double));
    layout->bytes = at;
}

#endif
