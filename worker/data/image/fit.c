/*
 * Scales with a tent filter as wide as a source or target pixel, whichever is larger: one rule that is smooth both
 * ways.
 */
#include "worker/data/image/fit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LIGHT = 128, INK = 32 }; /* a border at least this light is paper; a pixel at least this light on black is ink */

struct box {
    int left, top, right, bottom; /* right and bottom: one beyond */
};

/* The median of the border tells paper from ink: the ink rarely covers half of it. */
static bool has_light_border(const struct image *image)
{
    int light = 0, all = 0;
    for (int y = 0; y < image->height; y++) {
        bool edge = y == 0 || y == image->height - 1;
        for (int x = 0; x < image->width; x += edge || image->width == 1 ? 1 : image->width - 1) {
            light += image->pixels[(size_t)y * (size_t)image->width + (size_t)x] >= LIGHT;
            all++;
        }
    }
    return 2 * light > all;
}

/* Bounding box of the ink; the whole image if there is none. */
static struct box find_ink(const uint8_t *pixels, int width, int height)
{
    struct box box = {width, height, 0, 0};
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            if (pixels[(size_t)y * (size_t)width + (size_t)x] >= INK) {
                box.left = x < box.left ? x : box.left;
                box.right = x + 1 > box.right ? x + 1 : box.right;
                box.top = y < box.top ? y : box.top;
                box.bottom = y + 1;
            }
        }
    }
    return box.right > 0 ? box : (struct box){0, 0, width, height};
}

/* Tent-weighted mean of a row of `count` values around target pixel `i`; `stride` between values. */
static float sample(const float *values, int count, int stride, int i, double scale)
{
    double radius = fmax(scale, 1), centre = ((double)i + 0.5) * scale - 0.5, sum = 0, weights = 0;
    int first = (int)ceil(centre - radius), last = (int)floor(centre + radius);
    for (int k = first < 0 ? 0 : first; k <= last && k < count; k++) {
        double weight = 1 - fabs((double)k - centre) / radius;
        if (weight > 0) {
            sum += weight * (double)values[(size_t)k * (size_t)stride];
            weights += weight;
        }
    }
    return weights > 0 ? (float)(sum / weights) : 0;
}

/* from: [from_height, from_width]; half: [from_height, to_width], scratch; to: [to_height, to_width] */
static void resize(const float *from, int from_width, int from_height, float *half, float *to, int to_width,
                   int to_height)
{
    double scale_x = (double)from_width / to_width, scale_y = (double)from_height / to_height;
    for (int y = 0; y < from_height; y++) {
        for (int x = 0; x < to_width; x++) {
            half[(size_t)y * (size_t)to_width + (size_t)x] =
                sample(from + (size_t)y * (size_t)from_width, from_width, 1, x, scale_x);
        }
    }
    for (int y = 0; y < to_height; y++) {
        for (int x = 0; x < to_width; x++) {
            to[(size_t)y * (size_t)to_width + (size_t)x] = sample(half + x, from_height, to_width, y, scale_y);
        }
    }
}

/* Places [ink_height, ink_width] with its centre of mass in the middle of the target, as far as it fits. */
static void place(const float *ink, int ink_width, int ink_height, uint8_t *fitted, int width, int height)
{
    double mass = 0, sum_x = 0, sum_y = 0;
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            double value = (double)ink[(size_t)y * (size_t)ink_width + (size_t)x];
            mass += value;
            sum_x += value * (x + 0.5);
            sum_y += value * (y + 0.5);
        }
    }
    double centre_x = mass > 0 ? sum_x / mass : 0.5 * ink_width, centre_y = mass > 0 ? sum_y / mass : 0.5 * ink_height;
    int left = (int)lround(0.5 * width - centre_x), top = (int)lround(0.5 * height - centre_y);
    left = left < 0 ? 0 : left > width - ink_width ? width - ink_width : left;
    top = top < 0 ? 0 : top > height - ink_height ? height - ink_height : top;
    memset(fitted, 0, (size_t)width * (size_t)height);
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            float value = ink[(size_t)y * (size_t)ink_width + (size_t)x];
            fitted[(size_t)(top + y) * (size_t)width + (size_t)(left + x)] =
                (uint8_t)lroundf(fminf(fmaxf(value, 0), 255));
        }
    }
}

static int at_least_one(double size)
{
    return size < 1 ? 1 : (int)lround(size);
}

bool image_fit(const struct image *image, int width, int height, uint8_t *fitted, struct error *error)
{
    size_t pixels = (size_t)image->width * (size_t)image->height;
    if (image->width == width && image->height == height) {
        memcpy(fitted, image->pixels, pixels);
        return true;
    }
    uint8_t flip = has_light_border(image) ? 255 : 0;
    uint8_t *light = malloc(pixels);
    float *ink = NULL;
    bool done = false;
    if (!light) {
        goto out;
    }
    for (size_t i = 0; i < pixels; i++) {
        light[i] = image->pixels[i] ^ flip;
    }
    struct box box = find_ink(light, image->width, image->height);
    int ink_width = box.right - box.left, ink_height = box.bottom - box.top;
    double scale = fmax(ink_width / (20.0 / 28.0 * width), ink_height / (20.0 / 28.0 * height));
    int to_width = at_least_one(ink_width / scale), to_height = at_least_one(ink_height / scale);
    to_width = to_width > width ? width : to_width;
    to_height = to_height > height ? height : to_height;
    size_t cut = (size_t)ink_width * (size_t)ink_height, half = (size_t)ink_height * (size_t)to_width;
    ink = malloc((cut + half + (size_t)to_width * (size_t)to_height) * sizeof *ink);
    if (!ink) {
        goto out;
    }
    for (int y = 0; y < ink_height; y++) {
        for (int x = 0; x < ink_width; x++) {
            ink[(size_t)y * (size_t)ink_width + (size_t)x] =
                (float)light[(size_t)(box.top + y) * (size_t)image->width + (size_t)(box.left + x)];
        }
    }
    resize(ink, ink_width, ink_height, ink + cut, ink + cut + half, to_width, to_height);
    place(ink + cut + half, to_width, to_height, fitted, width, height);
    done = true;
out:
    free(ink);
    free(light);
    return done || error_set(error, "out of memory while scaling an image of %dx%d", image->width, image->height);
}

int image_side(int pixels)
{
    int side = (int)lround(sqrt(pixels));
    return side * side == pixels ? side : 0;
}

bool image_fit_inputs(const struct image *image, int inputs, uint8_t *fitted, struct error *error)
{
    int side = image_side(inputs);
    if ((int64_t)image->width * image->height == inputs) {
        return image_fit(image, image->width, image->height, fitted, error);
    }
    if (side == 0) {
        return error_set(error, "is an image of %dx%d, but the model's %d inputs are not a square to scale it to",
                         image->width, image->height, inputs);
    }
    return image_fit(image, side, side, fitted, error);
}
