/*
 * What the units of each layer put out for a few images. A forward pass of its own, in plain C: engines do not hand out
 * what they compute on the way, and this is for histograms, now and then, of a handful of images.
 */
#ifndef WORKER_SUMMARY_ACTIVATIONS_H
#define WORKER_SUMMARY_ACTIVATIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ps/store/model.h"
#include "worker/summary/histogram.h"

enum { ACTIVATIONS_IMAGES = 32 };

/*
 * images: [count, inputs] uint8 0..255, count <= ACTIVATIONS_IMAGES; parameters: in the model's layout; histograms:
 * [model->layer_count], cleared first: of the activations of each hidden layer, and of the logits. Fails for want of
 * memory only.
 */
bool activations_measure(const struct model *model, const float *parameters, const uint8_t *images, int count,
                         struct histogram *histograms, struct error *error);

#endif
