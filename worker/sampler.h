/*
 * Which images a step draws: a pure function of (seed, task, step), so that CPU, GPU and a resumed run agree.
 *
 * Each task (a worker, or a micro-batch that plays one) goes through all examples in an order of its own, shuffled
 * anew every epoch; the last batch of an epoch is short if batch_size does not divide the examples. The order is a
 * Feistel permutation keyed by Philox with (seed, task, epoch), cycle-walked into [0, examples): no table, any element
 * in constant time. Shared by C and CUDA.
 */
#ifndef WORKER_SAMPLER_H
#define WORKER_SAMPLER_H

#include <stdint.h>

struct sampler {
    uint64_t seed;
    uint32_t task;
    uint32_t examples;   /* > 0 */
    uint32_t batch_size; /* > 0 */
};

/* Batches in one epoch: examples / batch_size, rounded up. */
int64_t sampler_epoch_batches(const struct sampler *sampler);

/* Indexes of the images of batch `step` (0, 1, ...; over all epochs) into indexes[batch_size]; returns how many. */
int sampler_draw(const struct sampler *sampler, int64_t step, int32_t *indexes);

#endif
