/*
 * Which hidden units a training step drops (Srivastava et al., "Dropout", JMLR 2014). As in tf.nn.dropout, the rest are
 * scaled by 1 / (1 - rate), so that evaluation needs no correction.
 *
 * A pure function of (seed, task, step, layer, place in the batch, unit) by Philox, so that CPU, GPU, any number of
 * threads and a resumed run drop the same units. Shared by C and CUDA.
 */
#ifndef BASE_RANDOM_DROPOUT_H
#define BASE_RANDOM_DROPOUT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/random/philox.h"

/* 8 blocks of random numbers decide on 64 units: unit 8k + i of them by the kth 16 bits of block i. */
enum { DROPOUT_UNITS = 64, DROPOUT_BLOCKS = 8 };

struct dropout {
    uint64_t seed;
    uint32_t threshold; /* rate in units of 2^-16; 0: no dropout */
    float scale;        /* of the units that stay */
};

/* The seed for one of several nets; net 0 has the run's. */
PHILOX_INLINE uint64_t dropout_seed(uint64_t seed, int net)
{
    return seed ^ (uint64_t)net << 56;
}

PHILOX_INLINE struct dropout dropout_make(uint64_t seed, double rate)
{
    struct dropout dropout = {seed, (uint32_t)(rate * 65536.0 + 0.5), 1.0f};
    dropout.threshold = dropout.threshold < 65535 ? dropout.threshold : 65535;
    dropout.scale = (float)(65536.0 / (65536.0 - dropout.threshold));
    return dropout;
}

/* One batch of one task; step: the global step that it belongs to. */
struct dropout_batch {
    uint32_t task;
    int64_t step;
};

/* The counter of block `block` of a layer's outputs for the image at `place` in the batch as it was drawn. */
PHILOX_INLINE void dropout_counter(const struct dropout_batch *batch, int layer, int32_t place, uint32_t block,
                                   uint32_t counter[4])
{
    counter[0] = (uint32_t)batch->step;
    counter[1] = batch->task ^ (uint32_t)((uint64_t)batch->step >> 32) << 16;
    counter[2] = (uint32_t)place;
    counter[3] = (uint32_t)RANDOM_DROPOUT << 28 | (uint32_t)layer << 20 | block;
}

PHILOX_INLINE bool dropout_drops(const struct dropout *dropout, const struct dropout_batch *batch, int layer,
                                 int32_t place, int unit)
{
    uint32_t group = (uint32_t)unit / DROPOUT_UNITS;
    uint32_t within = (uint32_t)unit % DROPOUT_UNITS;
    uint32_t half = within / DROPOUT_BLOCKS;
    uint32_t counter[4];
    dropout_counter(batch, layer, place, group * DROPOUT_BLOCKS + within % DROPOUT_BLOCKS, counter);
    struct philox_block block = philox(philox_key(dropout->seed), counter[0], counter[1], counter[2], counter[3]);
    return (block.word[half / 2] >> 16 * (half % 2) & 0xffffu) < dropout->threshold;
}

#endif
