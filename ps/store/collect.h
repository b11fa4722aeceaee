/*
 * A sink that adds up whole gradients before anything is applied: the weighted sum of the gradients of several
 * micro-batches, or several workers, at the same parameters.
 *
 * The sum of contributions 0, 1, ... is, element by element, ((w0 x g0) + w1 x g1) + ..., in float32 without
 * contraction: the same bits wherever it is computed, if contributions come in the same order. A row that a
 * contribution leaves out is a zero gradient.
 */
#ifndef PS_STORE_COLLECT_H
#define PS_STORE_COLLECT_H

#include "ps/store/model.h"
#include "ps/store/store.h"

/*
 * One contribution being added to the sum. Threads that add disjoint blocks of it may share this struct or use copies;
 * for every range, a barrier separates two contributions.
 */
struct collector {
    const struct model *model;
    float *sum;   /* [model->float_count], borrowed; padding is never written */
    float weight; /* of this contribution: its share of the images */
    bool first;   /* the first contribution replaces the content of `sum` */
};

/* The sink that adds a contribution's blocks, each element once. The collector must outlive it. */
struct gradient_sink collector_sink(struct collector *collector);

#endif
