/*
 * Gradient clipping by norm, as tf.clip_by_global_norm over all variables: where the norm of a batch's whole gradient
 * is above `limit`, all of it is multiplied by limit / norm (Pascanu et al., "On the difficulty of training recurrent
 * neural networks", ICML 2013). The gradient is that of the cross-entropy; L2's share comes later, with the optimizer.
 *
 * It needs the whole gradient before any of it is handed on, so it is a sink that gathers, and then, between barriers
 * of the team: every thread measures its share of the rows, then every thread hands its share on. The same bits at any
 * number of threads.
 */
#ifndef WORKER_CLIP_H
#define WORKER_CLIP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "ps/store/collect.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

struct clip {
    const struct model *model; /* borrowed */
    double limit;              /* 0: no clipping, and no memory */
    float *gradient;           /* [float_count] */
    double *squares;           /* per row of all variables: the sum of its squares */
    struct collector collector;
};

/* Memory: 4 bytes per float of the model, 8 per row. */
bool clip_create(struct clip *clip, const struct model *model, double limit, struct error *error);
void clip_destroy(struct clip *clip); /* fine on zeros */

/* Where the batch's gradient goes first; every element of it must arrive. */
struct gradient_sink clip_sink(struct clip *clip);

/* Then, after a barrier, thread `thread` of `threads`; then another barrier. */
void clip_measure(struct clip *clip, int thread, int threads);

/* ...and on to where it was bound for. A row that is zero goes as an absent one. Before the next batch: a barrier. */
void clip_hand_on(struct clip *clip, int thread, int threads, const struct gradient_sink *sink);

#endif
