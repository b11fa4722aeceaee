/*
 * Pictures in files, as grey images: PNG (all colour types, depths and interlacing), BMP (uncompressed) and PNM (PGM,
 * PPM, PBM). Colours become grey by ITU-R 601's luma; transparency is blended with white.
 *
 * Decoding is a pure function of untrusted bytes: every size is checked before memory is allocated.
 */
#ifndef WORKER_DATA_IMAGE_H
#define WORKER_DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    IMAGE_MAX_SIDE = 16384,
    IMAGE_MAX_PIXELS = 1 << 24,
    IMAGE_MAX_FILE = 1 << 27, /* largest file worth reading: that of the largest uncompressed colour image */
};

/* pixels: [height, width] row-major, 0 black .. 255 white; malloc'd, the owner's to free. */
struct image {
    int width, height;
    uint8_t *pixels;
};

/* True if the bytes begin like one of the formats. */
bool image_is_known(const uint8_t *bytes, size_t size);

/* Upper bound of what decoding takes, by the size that the bytes state; 0: they are no image, or one too large. */
size_t image_memory(const uint8_t *bytes, size_t size);

/* Errors do not name the file; the caller adds that. */
bool image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error);

void image_free(struct image *image); /* safe on zeros */

/* Encodes a grey image as PNG, in malloc'd memory. */
bool image_encode_png(const uint8_t *pixels, int width, int height, uint8_t **bytes, size_t *size, struct error *error);

/* --- Fit --- */

/*
 * Fits a picture of any size to the model: light strokes on black, centred like the digits of MNIST.
 */

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
