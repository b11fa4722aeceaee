/*
 * Which gradients make a synchronous step: the decision of tf.train.SyncReplicasOptimizer, as a state machine without
 * clock, threads or sockets.
 *
 * A gradient comes in parts, one for each shard, and is whole once every shard has its part. A worker has one gradient
 * in a step, whichever of its processes sent it and however often: what is known by (step, worker) cannot count twice.
 * The step is decided when enough gradients are whole, and from then on its set is fixed; shards apply the set in the
 * order of the workers' numbers, so the sum does not depend on who was first.
 *
 * Enough: `wanted`, or, where fewer workers are to be waited for, one of each of those; never fewer than `least`. A
 * gradient that some shard found not finite counts as none, and its worker is not waited for, until it sends another.
 *
 * Of several ps, the first that holds parameters (the coordinator) decides; the others (followers) tell it what they
 * have, and are told the set. They never disagree: the next step's gradients are computed on what all shards answered,
 * so that nobody can decide on a step before all have applied the one before it.
 */
#ifndef PS_JOB_AGGREGATION_H
#define PS_JOB_AGGREGATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct aggregation {
    int workers, shards; /* shards: whose parts are kept track of */
    int wanted, least;
    int64_t step;         /* being gathered */
    unsigned char *parts; /* [workers * shards]: enum aggregation_part */
    unsigned char *taken; /* [workers]: of the decision */
    int taken_count;
    bool decided;
};

enum aggregation_part { PART_MISSING = 0, PART_HERE = 1, PART_NOT_FINITE = 2 };

/* wanted: at least 1; least <= wanted. */
bool aggregation_create(struct aggregation *aggregation, int workers, int shards, int wanted, int least,
                        struct error *error);
void aggregation_destroy(struct aggregation *aggregation); /* fine on zeros */

/* Forgets everything and gathers `step`. */
void aggregation_begin(struct aggregation *aggregation, int64_t step);

/*
 * A part of a worker's gradient for the present step. What is there already stays: only a part that was not finite is
 * replaced. Once the step is decided nothing changes any more.
 */
void aggregation_add(struct aggregation *aggregation, int shard, int worker, bool finite);

enum aggregation_part aggregation_get(const struct aggregation *aggregation, int shard, int worker);

/* The worker's gradient over all shards: PART_HERE if it is whole. */
enum aggregation_part aggregation_whole(const struct aggregation *aggregation, int worker);

/*
 * Decides, if there is enough; true if the step is decided, now or before. is_awaited: [workers], who is worth waiting
 * for; gradients of others count where they are whole.
 */
bool aggregation_decide(struct aggregation *aggregation, const bool *is_awaited);

/* The set, as another one decided. */
void aggregation_apply_decision(struct aggregation *aggregation, const bool *taken);

/* How many gradients the step can still get, and how many of them are whole. */
void aggregation_count(const struct aggregation *aggregation, const bool *is_awaited, int *possible, int *whole);

#endif
