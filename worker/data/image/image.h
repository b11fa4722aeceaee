/*
 * Pictures in files, as grey images: PNG (all colour types, depths and interlacing), BMP (uncompressed) and PNM (PGM,
 * PPM, PBM). Colours become grey by ITU-R 601's luma; what is transparent lies on white.
 *
 * Decoding is a pure function of bytes that may come from anywhere: every size is checked before memory is taken.
 */
#ifndef WORKER_DATA_IMAGE_IMAGE_H
#define WORKER_DATA_IMAGE_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    IMAGE_MAX_SIDE = 16384,
    IMAGE_MAX_PIXELS = 1 << 24,
    IMAGE_MAX_FILE = 1 << 27, /* bytes of a file that is worth reading: so many pixels, uncompressed in colour */
};

/* pixels: [height, width] row-major, 0 black .. 255 white; malloc'd, the owner's to free. */
struct image {
    int width, height;
    uint8_t *pixels;
};

/* True if the bytes begin as one of the formats does. */
bool image_is_known(const uint8_t *bytes, size_t size);

/* Errors say what is wrong, without a name: the caller knows whose bytes they are. */
bool image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error);

void image_free(struct image *image); /* zeros are fine */

/* A grey image as a PNG file in malloc'd memory. */
bool image_encode_png(const uint8_t *pixels, int width, int height, uint8_t **bytes, size_t *size, struct error *error);

#endif
