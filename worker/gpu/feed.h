/*
 * A gradient that grows from its first float on, into a sink as blocks of whole rows; and what remains of it from another
 * engine, should the first one break down on the way.
 */
#ifndef WORKER_GPU_FEED_H
#define WORKER_GPU_FEED_H

#include <stddef.h>

#include "ps/model.h"
#include "ps/store.h"

struct feed {
    const struct model *model; /* these three: borrowed */
    const struct gradient_sink *sink;
    const float *gradient; /* [float_count] */
    int variable, row;     /* the first row that the sink has not got */
};

/* `floats` leading floats are final now: hands on every row that is whole. context: a struct feed. */
void feed_grown(void *context, size_t floats);

/* A sink for a whole gradient that leaves out the rows handed on already. The feed must stay as it is meanwhile. */
struct gradient_sink feed_rest(struct feed *feed);

#endif
