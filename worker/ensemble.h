/*
 * An ensemble: an engine whose model has several nets (model.ensemble), each computed by a CPU engine of its own over
 * its part of the model's vector.
 *
 * All nets learn from the same batches; from the same view of their inputs they differ by their initial values and by
 * what dropout drops. What it computes of examples is the average of the nets: of their probabilities, or of numbers as
 * the model computes them. forward() gives it as logits whose softmax or sigmoid that average is, so that whoever reads
 * outputs need not know of nets. The loss of a training step is the mean of the nets' losses, and a gradient is
 * clipped net by net (train.clip_norm), so that each net is trained as it would be alone.
 *
 * Nets are computed side by side, if there are threads; results do not depend on how many.
 */
#ifndef WORKER_ENSEMBLE_H
#define WORKER_ENSEMBLE_H

#include "worker/engine.h"

/* A CPU engine for any model: a plain one for a single net, an ensemble for several. */
bool ensemble_create_on_cpu(struct engine **engine, const struct engine_options *options, struct error *error);

/*
 * The average of one example's outputs, [nets, outputs], of nets trained by this loss: such outputs, [outputs], as
 * forward() gives them.
 */
void ensemble_average(enum loss_kind loss, int nets, int outputs, const double *values, double *average);

/*
 * The standard deviations, over the nets, of what they say of examples [first, first + count): of each probability or
 * number, [count, units of the last layer]. An error with a single net.
 */
bool ensemble_spread(struct engine *engine, const struct examples *examples, int first, int count, float *spreads,
                     struct error *error);

#endif
