/*
 * Which images a step draws: a pure function of (seed, task, step), so that CPU, GPU and a resumed run agree.
 *
 * Each task (a worker, or a micro-batch in its place) visits all examples in its own order, reshuffled every epoch; the
 * last batch of an epoch is short if batch_size does not divide the number of examples. The order is a Feistel
 * permutation keyed by Philox with (seed, task, epoch), cycle-walked into [0, examples) as Black and Rogaway describe
 * ("Ciphers with arbitrary finite domains", CT-RSA 2002): no table, and any element in constant expected time.
 *
 * The inline part is shared by C and CUDA: a GPU fills one sampler_order per epoch and calls sampler_index for every
 * image of a batch. Everything is integer arithmetic modulo 2^32, so that all give the same indexes. No state anywhere:
 * any thread may call anything.
 */
#ifndef BASE_RANDOM_SAMPLER_H
#define BASE_RANDOM_SAMPLER_H

#include <stdint.h>

#include "base/random/philox.h"

enum {
    SAMPLER_ROUNDS = 8,   /* even; with 4 the orders of a handful of examples are visibly uneven, with 6 they are not */
    SAMPLER_MIN_BITS = 8, /* smaller Feistel networks reach too few permutations; cycle walking skips the excess */
};

#define SAMPLER_BLOCKS UINT32_MAX /* the part number for the order of a streamed set's blocks */

struct sampler {
    uint64_t seed;
    uint32_t task;
    uint32_t examples;   /* 1..2^31 - 1 */
    uint32_t batch_size; /* > 0 */
};

/* The order of one epoch of one task: a permutation of [0, examples). */
struct sampler_order {
    uint32_t key[2 * SAMPLER_ROUNDS]; /* of each round: multiplier, addend */
    uint32_t examples;
    uint32_t low_bits; /* the halves' widths: low_bits and high_bits, equal or high_bits one less */
    uint32_t high_bits;
};

/* Batches in one epoch: examples / batch_size, rounded up. */
PHILOX_INLINE int64_t sampler_epoch_batches(const struct sampler *sampler)
{
    return ((int64_t)sampler->examples + sampler->batch_size - 1) / sampler->batch_size;
}

/*
 * Prepares the order of an epoch (0, 1, ...; its low 57 bits count) within one part of it: of the examples of window
 * `part` - 1 or of the blocks, for data sets that stream (worker/data/streaming.h). part 0: the whole set.
 */
PHILOX_INLINE void sampler_order_make_part(struct sampler_order *order, const struct sampler *sampler, uint32_t part,
                                           int64_t epoch)
{
    uint32_t bits = SAMPLER_MIN_BITS;
    while (bits < 32 && (sampler->examples - 1) >> bits != 0) {
        bits++;
    }
    order->examples = sampler->examples;
    order->low_bits = (bits + 1) / 2;
    order->high_bits = bits / 2;
    struct philox_key key = philox_key(sampler->seed);
    uint32_t epoch_low = (uint32_t)epoch;
    uint32_t epoch_high = (uint32_t)((uint64_t)epoch >> 32);
    for (uint32_t i = 0; i < SAMPLER_ROUNDS / 2; i++) {
        /* The purpose shares its word with the block number and the rarely used high bits of the epoch. */
        uint32_t last = (epoch_high << 3 | i) ^ (uint32_t)RANDOM_SHUFFLE << 28;
        struct philox_block block = philox(key, epoch_low, sampler->task, part, last);
        for (uint32_t j = 0; j < 4; j++) {
            order->key[4 * i + j] = block.word[j];
        }
    }
}

/* The order of all examples. */
PHILOX_INLINE void sampler_order_make(struct sampler_order *order, const struct sampler *sampler, int64_t epoch)
{
    sampler_order_make_part(order, sampler, 0, epoch);
}

/*
 * The round function: the top bits of multiplier * x + addend, pairwise independent for halves of at most 16 bits
 * (Dietzfelbinger, "Universal hashing and k-wise independent random variables via integer arithmetic", STACS 1996).
 */
PHILOX_INLINE uint32_t sampler_mix(const struct sampler_order *order, int round, uint32_t x, uint32_t bits)
{
    return (x * order->key[2 * round] + order->key[2 * round + 1]) >> (32 - bits);
}

/* The Feistel network itself: a permutation of [0, 2^(low_bits + high_bits)). */
PHILOX_INLINE uint32_t sampler_permute(const struct sampler_order *order, uint32_t x)
{
    uint32_t low_mask = (1u << order->low_bits) - 1;
    uint32_t low = x & low_mask;
    uint32_t high = x >> order->low_bits;
    for (int round = 0; round < SAMPLER_ROUNDS; round += 2) {
        high ^= sampler_mix(order, round, low, order->high_bits);
        low ^= sampler_mix(order, round + 1, high, order->low_bits);
    }
    return high << order->low_bits | low;
}

/* The example at `position` (< examples) of the order. */
PHILOX_INLINE uint32_t sampler_index(const struct sampler_order *order, uint32_t position)
{
    uint32_t x = position;
    do {
        x = sampler_permute(order, x);
    } while (x >= order->examples);
    return x;
}

/* Indexes of the images of batch `step` (0, 1, ...; over all epochs) into indexes[batch_size]; returns how many. */
int sampler_draw(const struct sampler *sampler, int64_t step, int32_t *indexes);

#endif
