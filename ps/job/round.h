/*
 * Which workers are asked to take part in a round (train.participation): a pure function of seed and round, for a
 * cluster's job and for a process that simulates its workers.
 */
#ifndef PS_JOB_ROUND_H
#define PS_JOB_ROUND_H

#include <math.h>
#include <stdint.h>

#include "base/random/sampler.h"

enum { ROUND_TASK = 1 << 29 /* used as task number, which no worker has */ };

/* How many of the present workers form a round: at least one. participation 0 (no rounds): all. */
static inline int round_share(double participation, int there)
{
    const int share = participation > 0 ? (int)lround(participation * there) : there;
    return share < 1 ? 1 : share;
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
