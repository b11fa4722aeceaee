/*
 * The plan of a run: which steps end an epoch, and at which steps something is due. Pure functions of the config and
 * the size of the data, so that a resumed run does the same things at the same steps, and all members of a job agree.
 *
 * "Step s" means: after s steps have been applied. Epochs count the examples of the whole job: with m batches per step
 * (micro-batches, or gradients of a synchronous step) an epoch takes 1/m of the steps.
 */
#ifndef PS_JOB_PLAN_H
#define PS_JOB_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

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

#endif
