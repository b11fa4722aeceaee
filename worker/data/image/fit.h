/*
 * Fits a picture of any size to the model: light strokes on black, centred like the digits of MNIST.
 */
#ifndef WORKER_DATA_IMAGE_FIT_H
#define WORKER_DATA_IMAGE_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/image/image.h"

/*
 * fitted: [height, width]. A picture of exactly that size is used unchanged. Any other is inverted if its border is
 * light, its ink scaled (keeping the aspect ratio) to 20/28 of the sides and placed with its centre of mass in the
 * middle, as was done for MNIST (http://yann.lecun.com/exdb/mnist/). Fails only if out of memory.
 */
bool image_fit(const struct image *image, int width, int height, uint8_t *fitted, struct error *error);

/*
 * The same for a model with `inputs` inputs: a picture with as many pixels is used unchanged; any other needs a square
 * number of inputs.
 */
bool image_fit_inputs(const struct image *image, int inputs, uint8_t *fitted, struct error *error);

/* The side of a square of `pixels` pixels; 0 if that is not a square number. */
int image_side(int pixels);

#endif
