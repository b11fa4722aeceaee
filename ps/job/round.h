/*
 * Which workers are asked to take part in a round (train.participation), and how many batches each takes: pure
 * functions of the config, seed and round, for a cluster's job and for a process that simulates its workers.
 */
#ifndef PS_JOB_ROUND_H
#define PS_JOB_ROUND_H

#include <math.h>
#include <stdint.h>

#include "base/config.h"
#include "base/random/sampler.h"

enum { ROUND_TASK = 1 << 29 /* used as task number, which no worker has */ };

/* How many of the present workers form a round: at least one. participation 0 (no rounds): all. */
static inline int round_share(double participation, int there)
{
    const int share = participation > 0 ? (int)lround(participation * there) : there;
    return share < 1 ? 1 : share;
}

/* Batches that one worker draws for a round, of which its own examples make epoch_batches; without rounds: 1. */
static inline int64_t round_batches(const struct config_train *train, int64_t epoch_batches)
{
    const int64_t steps = train->local_steps > 1 ? train->local_steps : 1;
    return train->local_epochs > 0 ? train->local_epochs * epoch_batches : steps;
}

/*
 * The order in which a fleet's worker numbers (or clients) are asked: sampler_index(order, 0) first. The round takes
 * the first of them that are present.
 */
static inline void round_order(struct sampler_order *order, int64_t seed, int places, int64_t round)
{
    const struct sampler sampler = {
        .seed = (uint64_t)seed, .task = ROUND_TASK, .examples = (uint32_t)places, .batch_size = 1};
    sampler_order_make(order, &sampler, round);
}

#endif
