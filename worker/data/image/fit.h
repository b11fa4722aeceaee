/*
 * A picture of any size as the model wants it: light strokes on black, fitted into the middle as the digits of MNIST are.
 */
#ifndef WORKER_DATA_IMAGE_FIT_H
#define WORKER_DATA_IMAGE_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/image/image.h"

/*
 * fitted: [height, width]. A picture of that very size is taken as it is. Any other is inverted if its border is light,
 * its ink scaled (keeping its shape) to 20/28 of the sides, and put so that its centre of mass lies in the middle: what
 * was done to MNIST (http://yann.lecun.com/exdb/mnist/). Fails for want of memory only.
 */
bool image_fit(const struct image *image, int width, int height, uint8_t *fitted, struct error *error);

/*
 * The same for a model with so many inputs: a picture of as many pixels is taken as it is; any other needs a square
 * number of inputs.
 */
bool image_fit_inputs(const struct image *image, int inputs, uint8_t *fitted, struct error *error);

/* The side of a square of so many pixels; 0 if it is no square. */
int image_side(int pixels);

#endif
