/*
 * Which ps holds what: a pure function of the model, the number of ps and the policy, so that every member computes it
 * for itself and all agree.
 *
 *  - ranges: one contiguous part of the flat vector each, equal in bytes except that cuts lie between rows; a model
 *    with fewer rows than ps leaves some of them empty;
 *  - round_robin: whole variables in turn, as tf.train.replica_device_setter places them;
 *  - greedy: each variable, in order, goes to the first of the ps that hold the fewest bytes so far, as in tf.contrib's
 *    GreedyLoadBalancingStrategy.
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
 * The spans of ps number `ps` of `ps_count`, ascending; adjacent spans are merged. Returns how many: 0 if it holds
 * nothing. Together the spans of all ps cover every float of the model exactly once.
 */
int placement_spans(const struct model *model, enum placement_policy policy, int ps_count, int ps,
                    struct span spans[PLACEMENT_MAX_SPANS]);

/* The first ps that holds anything: every worker pushes to it. 0 if none does. */
int placement_first(const struct model *model, enum placement_policy policy, int ps_count);

#endif
