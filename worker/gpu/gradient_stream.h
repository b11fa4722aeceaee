/*
 * A gradient that grows from its first float on, into a sink as blocks of whole rows; and what remains of it from another
 * engine, should the first one break down on the way.
 */
#ifndef WORKER_GPU_GRADIENT_STREAM_H
#define WORKER_GPU_GRADIENT_STREAM_H

#include <stddef.h>

#include "ps/store/model.h"
#include "ps/store/store.h"

struct gradient_stream {
    const struct model *model; /* these three: borrowed */
    const struct gradient_sink *sink;
    const float *gradient; /* [float_count] */
    int variable, row;     /* the first row that the sink has not got */
};

/* `floats` leading floats are final now: hands on every row that is whole. context: a struct gradient_stream. */
void gradient_stream_grown(void *context, size_t floats);

/* A sink for a whole gradient that leaves out the rows handed on already. The feed must stay as it is meanwhile. */
struct gradient_sink gradient_stream_rest(struct gradient_stream *feed);

#endif
