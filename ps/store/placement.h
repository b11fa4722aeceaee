/*
 * Which ps holds what: a pure function of the model, the number of ps and the policy, so that every member works it out
 * for itself and all come to the same result.
 *
 *  - ranges: one contiguous part of the flat vector each, equal in bytes but for the cut, which lies between two rows;
 *    a model with fewer rows than ps leaves some of them empty;
 *  - round_robin: whole variables in turn, as tf.train.replica_device_setter places them;
 *  - greedy: each variable, in order, to the ps that holds least so far, as tf.contrib's GreedyLoadBalancingStrategy
 *    does by bytes; of several, to the first.
 */
#ifndef PS_STORE_PLACEMENT_H
#define PS_STORE_PLACEMENT_H

#include <stddef.h>

#include "base/config.h"
#include "ps/store/model.h"

enum { PLACEMENT_MAX_SPANS = MODEL_MAX_VARIABLES };

/* A part of the flat vector: whole rows of variables, padding included. */
struct span {
    size_t first, count; /* floats; count > 0 */
};

/*
 * The spans that ps number `ps` of `ps_count` holds, ascending; spans that touch are one. Returns how many: 0 if it
 * holds nothing. The spans of all ps together are every float of the model, once.
 */
int placement_spans(const struct model *model, enum placement_policy policy, int ps_count, int ps,
                    struct span spans[PLACEMENT_MAX_SPANS]);

/* The first ps that holds anything: every worker pushes to it. 0 if none of them does. */
int placement_first(const struct model *model, enum placement_policy policy, int ps_count);

#endif
