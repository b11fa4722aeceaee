/*
 * Pictures in files: JPEG (baseline and progressive), PNG (all colour types, depths and interlacing), both upright by
 * their EXIF orientation, BMP (uncompressed) and PNM (PGM, PPM, PBM), in grey or in colour. Where grey is wanted of
 * colours, it is ITU-R 601's luma; transparency is blended with white.
 *
 * Decoding is a pure function of untrusted bytes: every size is checked before memory is allocated.
 */
#ifndef WORKER_DATA_IMAGE_H
#define WORKER_DATA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"

enum {
    IMAGE_MAX_SIDE = 16384,
    IMAGE_MAX_PIXELS = 1 << 24,
    IMAGE_MAX_FILE = 1 << 27, /* largest file worth reading: that of the largest uncompressed colour image */
    IMAGE_RGB = 3,            /* channels of a colour picture; grey ones have 1 */
};

/* pixels: [height, width, channels] row-major, 0 black .. 255 white; malloc'd, the owner's to free. */
struct image {
    int width, height;
    int channels; /* 1: grey; IMAGE_RGB: red, green and blue */
    uint8_t *pixels;
};

/* ITU-R 601 in integers: the same grey on every machine. */
static inline uint8_t image_luma(unsigned red, unsigned green, unsigned blue)
{
    return (uint8_t)((299 * red + 587 * green + 114 * blue + 500) / 1000);
}

/* What a picture states before its pixels; upright. channels: IMAGE_RGB if it is stored in colour. */
struct image_head {
    int width, height, channels;
};

/*
 * True if the bytes begin like a picture: of one of the formats above, or of one that image_decode can only name (GIF,
 * WebP, TIFF, HEIF, AVIF, JPEG 2000, Photoshop).
 */
bool image_is_known(const uint8_t *bytes, size_t size);

/*
 * Reads the head alone. The bytes may be the first part of a file: *more says that the head may go beyond them. False:
 * not (yet) known, and the error says why. If true despite *more, only the orientation, which a PNG may have behind its
 * pixels, is uncertain.
 */
bool image_examine(struct image_head *head, const uint8_t *bytes, size_t size, bool *more, struct error *error);

/*
 * Upper bound of what decoding takes, by the size that the bytes state; 0: it fails at once, as they are no image, one
 * too large, or of too few bytes.
 */
size_t image_memory(const uint8_t *bytes, size_t size);

/* channels: those wanted, 1 or IMAGE_RGB. Errors do not name the file; the caller adds that. */
bool image_decode(struct image *image, const uint8_t *bytes, size_t size, int channels, struct error *error);

void image_free(struct image *image); /* safe on zeros */

/* Encodes an image of 1 or IMAGE_RGB channels as PNG, in malloc'd memory. */
bool image_encode_png(const struct image *image, uint8_t **bytes, size_t *size, struct error *error);

/* --- Fit --- */

static inline size_t image_values(const struct image_shape *shape)
{
    return (size_t)shape->height * (size_t)shape->width * (size_t)shape->channels;
}

/*
 * Fits a picture of any size to the shape, whose channels it has. fitted: [height, width, channels]. A picture of
 * exactly that size is used unchanged. Any other is scaled to it; or, of a grey shape of digits, inverted if its border
 * is light, its ink scaled (keeping the aspect ratio) to 20/28 of the sides and placed with its centre of mass in the
 * middle, as was done for MNIST (http://yann.lecun.com/exdb/mnist/). Fails only if out of memory.
 */
bool image_fit(const struct image *image, const struct image_shape *shape, uint8_t *fitted, struct error *error);

/* What image_fit takes beside the result. */
size_t image_fit_memory(int height, const struct image_shape *shape);

/*
 * The shape that `inputs` inputs have where none is recorded: square and grey, of digits, or else one row. height 0 if
 * there are no inputs.
 */
struct image_shape image_shape_of(int inputs);

/* The sides that data.image_size gives; 0 for "auto". False: it is neither, and the error says so. */
bool image_size_parse(const char *text, int *height, int *width, struct error *error);

/* The side of a square of `pixels` pixels; 0 if that is not a square number. */
int image_side(int pixels);

#endif
