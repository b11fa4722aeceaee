/*
 * The plan of a run: which steps end an epoch, and at which steps something is due. Pure functions of the config and
 * the size of the data, so that a resumed run does the same things at the same steps, and all members of a job agree.
 *
 * "Step s" means: after s steps have been applied. Epochs count the examples of the whole job: with m batches per step
 * (micro-batches, or gradients of a synchronous step) an epoch takes 1/m of the steps.
 */
#ifndef PS_JOB_PLAN_H
#define PS_JOB_PLAN_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/random/sampler.h"

struct plan {
    int64_t epoch_batches;    /* batches that hold every example once; the last one may be short */
    int64_t batches_per_step; /* micro-batches, or workers' */
    int64_t last_step;        /* the run ends there, by train_steps or epochs; INT64_MAX: unbounded */
    int64_t log_steps;        /* 0: never */
    int64_t validate_steps;   /* 0: at the end of every epoch */
};

/* epoch_batches: > 0, of one task (sampler_epoch_batches). */
void plan_begin(struct plan *plan, const struct config *config, int64_t epoch_batches);

/*
 * The same for a job of a cluster: a global step is a batch of one worker or, if synchronous, one batch per aggregated
 * gradient. With rounds (train.local_steps) a global step is a round: all batches that its workers draw for it or, with
 * train.buffer_size, the batches of buffer_size differences.
 */
void plan_begin_job(struct plan *plan, const struct config *config, int64_t epoch_batches);

/* The data are divided among `sharers` (1: each has all), of whom `replicas` take part in each step. */
void plan_begin_rounds(struct plan *plan, const struct config *config, int64_t epoch_batches, int sharers,
                       int replicas);

/* The last step of epoch 1, 2, ... */
int64_t plan_epoch_end(const struct plan *plan, int64_t epoch);

/* The epoch that step >= 1 belongs to: 1, 2, ... (for step 0: 1) */
int64_t plan_epoch(const struct plan *plan, int64_t step);

/* True if it became due in (before, step]: another worker may have taken the very step at which it was. */
bool plan_log_due(const struct plan *plan, int64_t before, int64_t step);
bool plan_validation_due(const struct plan *plan, int64_t before, int64_t step);

/* Steps from `step` to the next at which something is due, at least 1. For step < last_step. */
int64_t plan_steps_to_due(const struct plan *plan, int64_t step);

/* --- Rounds --- */

/*
 * Which workers are asked to take part in a round (train.participation), and how many batches each takes: pure
 * functions of the config, seed and round, for a cluster's job and for a process that simulates its workers.
 */

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
