/*
 * Activations of each layer for a few examples, for histograms. A separate forward pass in plain C: engines do not
 * expose intermediate results, and this runs rarely, on a handful of examples.
 */
#ifndef WORKER_SUMMARY_ACTIVATIONS_H
#define WORKER_SUMMARY_ACTIVATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ps/store/model.h"
#include "worker/data/examples.h"
#include "worker/summary/histogram.h"

enum { ACTIVATIONS_IMAGES = 32 };

/*
 * Of the first `count` examples, <= ACTIVATIONS_IMAGES; parameters: in the model's layout; histograms:
 * [model->layer_count], cleared first: the activations of each hidden layer, and the logits. Fails only if out of
 * memory.
 */
bool activations_measure(const struct model *model, const float *parameters, const struct examples *examples, int count,
                         struct histogram *histograms, struct error *error);

#endif
