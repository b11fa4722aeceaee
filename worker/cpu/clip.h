/*
 * Gradient clipping by norm, as tf.clip_by_global_norm over all variables: where the norm of a batch's whole gradient
 * is above `limit`, all of it is multiplied by limit / norm (Pascanu et al., "On the difficulty of training recurrent
 * neural networks", ICML 2013). The gradient is that of the cross-entropy; L2's share comes later, with the optimizer.
 *
 * Clipping needs the whole gradient before it can pass any of it on. So it is a sink that collects; then, between
 * barriers of the team, every thread measures its share of the rows, and every thread passes its share on. The result
 * has the same bits at any number of threads.
 */
#ifndef WORKER_CLIP_H
#define WORKER_CLIP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
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
void clip_create(struct clip *clip, const struct model *model, double limit);
void clip_destroy(struct clip *clip); /* fine on zeros */

/* The sink for the batch's gradient, every element of which must arrive. */
struct gradient_sink clip_sink(struct clip *clip);

/* Next, after a barrier, called by thread `thread` of `threads`; then another barrier. */
void clip_measure(struct clip *clip, int thread, int threads);

/*
 * Finally, passes the thread's rows on to `sink`, zero rows as absent ones. A barrier must follow before the next
 * batch.
 */
void clip_hand_on(struct clip *clip, int thread, int threads, const struct gradient_sink *sink);

#endif
