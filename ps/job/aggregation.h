/*
 * Which gradients form a synchronous step: the decision of tf.train.SyncReplicasOptimizer, as a state machine without
 * clock, threads or sockets.
 *
 * A gradient comes in parts, one per shard, and is whole once every shard has its part. A worker has one gradient per
 * step, whichever of its processes sent it and however often: it is identified by (step, worker), so it cannot count
 * twice. The step is decided when enough gradients are whole, which fixes its set; shards apply the set in the order of
 * the workers' numbers, so the sum does not depend on the order of arrival.
 *
 * Enough means `wanted`, or, if fewer workers are awaited, one from each of those; never fewer than `least`. A gradient
 * that some shard found not finite does not count, and its worker is not awaited until it sends another.
 *
 * Of several ps, the first that holds parameters (the coordinator) decides; the others (followers) report their parts
 * to it, and receive the set. They never disagree: the next step's gradients are computed on all shards' answers, so no
 * step can be decided before all have applied the previous one.
 */
#ifndef PS_JOB_AGGREGATION_H
#define PS_JOB_AGGREGATION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct aggregation {
    int workers, shards; /* shards: the number of shards tracked */
    int wanted, least;
    int64_t step;         /* being collected */
    unsigned char *parts; /* [workers * shards]: enum aggregation_part */
    unsigned char *taken; /* [workers]: whether the decision includes it */
    int taken_count;
    bool decided;
};

enum aggregation_part { PART_MISSING = 0, PART_HERE = 1, PART_NOT_FINITE = 2 };

/* wanted: at least 1; least <= wanted. */
bool aggregation_create(struct aggregation *aggregation, int workers, int shards, int wanted, int least,
                        struct error *error);
void aggregation_destroy(struct aggregation *aggregation); /* fine on zeros */

/* Resets everything and starts collecting `step`. */
void aggregation_begin(struct aggregation *aggregation, int64_t step);

/*
 * Records a part of a worker's gradient for the present step. An existing part stays, unless it was not finite. No
 * effect once the step is decided.
 */
void aggregation_add(struct aggregation *aggregation, int shard, int worker, bool finite);

enum aggregation_part aggregation_get(const struct aggregation *aggregation, int shard, int worker);

/* The worker's gradient over all shards: PART_HERE if it is whole. */
enum aggregation_part aggregation_whole(const struct aggregation *aggregation, int worker);

/*
 * Decides the step if there are enough gradients; true if it is decided, now or before. is_awaited: [workers], those
 * worth waiting for; whole gradients of others count, too.
 */
bool aggregation_decide(struct aggregation *aggregation, const bool *is_awaited);

/* Takes over the coordinator's set. */
void aggregation_apply_decision(struct aggregation *aggregation, const bool *taken);

/* The number of gradients that the step can still get, and of whole ones among them. */
void aggregation_count(const struct aggregation *aggregation, const bool *is_awaited, int *possible, int *whole);

#endif
