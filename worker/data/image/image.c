/* Finds the format by the first bytes; file names are not trusted. */
#include "worker/data/image/image.h"

#include <stdlib.h>
#include <string.h>

#include "worker/data/image/formats.h"

bool image_is_known(const uint8_t *bytes, size_t size)
{
    return png_is(bytes, size) || bmp_is(bytes, size) || pnm_is(bytes, size);
}

bool image_decode(struct image *image, const uint8_t *bytes, size_t size, struct error *error)
{
    bool done;
    *image = (struct image){0};
    if (png_is(bytes, size)) {
        done = png_decode(image, bytes, size, error);
    } else if (bmp_is(bytes, size)) {
        done = bmp_decode(image, bytes, size, error);
    } else if (pnm_is(bytes, size)) {
        done = pnm_decode(image, bytes, size, error);
    } else {
        done = error_set(error, "is not a PNG, BMP or PGM image");
    }
    if (!done) {
        image_free(image);
    }
    return done;
}

size_t image_memory(const uint8_t *bytes, size_t size)
{
    enum { ROWS = 2 * IMAGE_MAX_SIDE * 8, LEAST_BITS = 8 /* pixels in a byte */ };
    if (!image_is_known(bytes, size)) {
        return 0;
    }
    const uint64_t most = size < IMAGE_MAX_PIXELS / LEAST_BITS ? size * LEAST_BITS : IMAGE_MAX_PIXELS;
    const uint64_t pixels = png_is(bytes, size) ? png_pixels(bytes, size) : most;
    return pixels > IMAGE_MAX_PIXELS ? 0 : (size_t)pixels + ROWS;
}

bool image_create(struct image *image, uint64_t width, uint64_t height, struct error *error)
{
    if (width < 1 || height < 1 || width > IMAGE_MAX_SIDE || height > IMAGE_MAX_SIDE ||
        width * height > IMAGE_MAX_PIXELS) {
        return error_set(error, "is an image of %llux%llu pixels; the limits are %d per side and %d in all",
                         (unsigned long long)width, (unsigned long long)height, IMAGE_MAX_SIDE, IMAGE_MAX_PIXELS);
    }
    *image = (struct image){.width = (int)width, .height = (int)height, .pixels = malloc((size_t)(width * height))};
    if (!image->pixels) {
        return error_set(error, "out of memory for an image of %dx%d", image->width, image->height);
    }
    memset(image->pixels, 255, (size_t)(width * height));
    return true;
}

void image_free(struct image *image)
{
    free(image->pixels);
    *image = (struct image){0};
}
