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
    SHARD_GRADIENTS = 32,             /* per thread of the first layer: pixels x units */
    SHARD_PIXELS = 4 * SHARD_THREADS, /* at most, including padding: with 8 units a thread sums the gradients of 4 */
    SHARD_SLICES = 16,                /* of the pixels, and of a chunk's images, at most: each has its own sums */
    SHARD_IMAGES = SHARD_THREADS,     /* in a batch, at most: each has a thread for its softmax and statistics */
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
    int32_t slices;       /* of the pixels, when a chunk passes through the first layer */
    int32_t image_slices; /* of a chunk's images, when gradients are summed */
    uint32_t vectors[4];  /* [floats] each: parameters, slots, averages; unused ones alias the first */
    uint32_t images;      /* [2][chunk, image_stride]; a used one takes the parts of the gradients' sums */
    uint32_t activations; /* [capacity, units]; later the deltas */
    uint32_t outputs;     /* [capacity, units] */
    uint32_t logits;      /* [capacity, classes]; later their deltas */
    uint32_t parts;       /* of the first layer's sums: [slices][chunk, units]; later of its gradients', if apart */
    int32_t apart;        /* the gradients' parts are larger than the images */
    uint32_t small;       /* gradients from `biases` on, in a vector's order; then a 1 */
    uint32_t indexes;     /* [SHARD_TURNS][capacity] */
    uint32_t labels;      /* [SHARD_TURNS][capacity] */
    uint32_t updates;     /* [2] struct update */
    uint32_t drawn;       /* struct shard_drawn */
    uint32_t scratch;     /* [SHARD_WARPS] doubles */
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
    /* 2^23 as a float. A kernel keeps an argument in a register, and makes a constant anew for each byte. */
    uint32_t float_2_23;
    uint32_t per_class; /* 2^20 / classes, rounded up: e x this >> 20 is e / classes, for e < SHARD_IMAGES x classes */
    int32_t padding;
    struct shard_layout at;
};

static inline uint32_t shard_place(uint32_t *at, uint64_t bytes)
{
    uint32_t place = *at;
    *at += (uint32_t)((bytes + 15) / 16 * 16);
    return place;
}

static inline int shard_at_most(int value, int most)
{
    return value < most ? value : most;
}

/* kept: which vectors exist; the parameters always do. */
static inline void shard_layout_make(struct shard_layout *layout, int units, int chunk, int capacity, int image_stride,
                                     int classes, const int32_t kept[4])
{
    uint32_t at = 0;
    int images = SHARD_SUMS / units;      /* of a thread */
    int pixels = SHARD_GRADIENTS / units; /* of a thread */
    layout->biases = image_stride * units;
    layout->weights2 = layout->biases + units;
    layout->biases2 = layout->weights2 + units * classes;
    layout->floats = (layout->biases2 + classes + 3) / 4 * 4;
    layout->slices = shard_at_most(SHARD_THREADS / ((chunk + images - 1) / images), SHARD_SLICES);
    /* One slice's gradients take as much memory as 4 x units images. */
    layout->apart = chunk < 4 * units;
    layout->image_slices = shard_at_most(SHARD_THREADS / (image_stride / pixels), SHARD_SLICES);
    layout->image_slices = shard_at_most(layout->image_slices, layout->apart ? 1 : chunk / (4 * units));
    uint64_t sums = 4u * (uint64_t)layout->slices * (uint64_t)chunk * (uint64_t)units;
    uint64_t gradients = layout->apart ? 4u * (uint64_t)image_stride * (uint64_t)units : 0;
    for (int i = 0; i < 4; i++) {
        layout->vectors[i] = i == 0 || kept[i] ? shard_place(&at, (uint64_t)layout->floats * 4) : layout->vectors[0];
    }
    layout->images = shard_place(&at, 2u * (uint64_t)chunk * (uint64_t)image_stride);
    layout->activations = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)units);
    layout->outputs = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)units);
    layout->logits = shard_place(&at, 4u * (uint64_t)capacity * (uint64_t)classes);
    layout->parts = shard_place(&at, sums > gradients ? sums : gradients);
    layout->small = shard_place(&at, 4u * (uint64_t)(layout->biases2 + classes - layout->biases + 1));
    layout->indexes = shard_place(&at, 4u * SHARD_TURNS * (uint64_t)capacity);
    layout->labels = shard_place(&at, 4u * SHARD_TURNS * (uint64_t)capacity);
    layout->updates = shard_place(&at, 2 * sizeof(struct update));
    layout->drawn = shard_place(&at, sizeof(struct shard_drawn));
    layout->scratch = shard_place(&at, SHARD_WARPS * sizeof(double));
    layout->bytes = at;
}

#endif
