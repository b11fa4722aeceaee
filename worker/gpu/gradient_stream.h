/*
 * Passes a gradient that becomes final front to back on to a sink, in blocks of whole rows; if the engine fails
 * halfway, the rest comes from another engine.
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
    int variable, row;     /* the first row not yet passed on */
};

/* `floats` leading floats are final now: passes on every complete row. context: a struct gradient_stream. */
void gradient_stream_grown(void *context, size_t floats);

/* A sink for a whole gradient that skips the rows passed on already. The stream must not change meanwhile. */
struct gradient_sink gradient_stream_rest(struct gradient_stream *feed);

#endif
