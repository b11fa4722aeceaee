/* The decoders behind worker/data/image/image.h, chosen by a file's first bytes, and helpers they share. */
#ifndef WORKER_DATA_IMAGE_FORMATS_H
#define WORKER_DATA_IMAGE_FORMATS_H

#include "worker/data/image/image.h"

bool png_is(const uint8_t *bytes, size_t size);
bool bmp_is(const uint8_t *bytes, size_t size);
bool pnm_is(const uint8_t *bytes, size_t size);

bool png_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error);
bool bmp_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error);
bool pnm_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error);

/* The pixels that the header states; 0: there is no whole header. */
uint64_t png_pixels(const uint8_t *bytes, size_t size);

/* Checks the size and allocates a white image, which image_free releases. */
bool image_create(struct image *image, uint64_t width, uint64_t height, struct error *error);

/* ITU-R 601 in integers: the same grey on every machine. */
static inline uint8_t image_luma(unsigned red, unsigned green, unsigned blue)
{
    return (uint8_t)((299 * red + 587 * green + 114 * blue + 500) / 1000);
}

/* A grey pixel of that opacity (0..255) on white. */
static inline uint8_t image_on_white(unsigned grey, unsigned opacity)
{
    return (uint8_t)((grey * opacity + 255 * (255 - opacity) + 127) / 255);
}

#endif
