/* Memory grows by half as images arrive, up to the limits of a set; all images must be of one size. */
#include "worker/data/builder.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "worker/data/idx.h"

static size_t pixels_of(const struct examples *examples)
{
    return (size_t)examples->height * (size_t)examples->width;
}

/* Memory for `capacity` images, plus the padding that vector loads may read. */
static bool resize(struct builder *builder, int capacity)
{
    struct examples *examples = &builder->examples;
    uint8_t *images = realloc(examples->images, (size_t)capacity * pixels_of(examples) + IDX_PADDING);
    if (!images) {
        return false;
    }
    examples->images = images;
    int32_t *labels = realloc(examples->labels, (size_t)capacity * sizeof *labels);
    if (!labels) {
        return false;
    }
    examples->labels = labels;
    builder->capacity = capacity;
    return true;
}

bool builder_fits(const struct builder *builder, const struct image *image, struct error *error)
{
    const struct examples *examples = &builder->examples;
    size_t values = (size_t)image->height * (size_t)image->width * (size_t)image->channels;
    if (examples->count == 0 && values > CONFIG_MAX_WIDTH) {
        return error_set(error, "its image has %zu %s; the limit is %d (--image_size=32 scales it)", values,
                         image->channels > 1 ? "values" : "pixels", CONFIG_MAX_WIDTH);
    }
    if (examples->count > 0 && (image->height != examples->height || image->width != examples_columns(examples) ||
                                image->channels != examples_channels(examples))) {
        return error_set(error, "its image is %dx%d%s, but the images before it are %dx%d%s", image->height,
                         image->width, image->channels > 1 ? " in colour" : "", examples->height,
                         examples_columns(examples), examples_channels(examples) > 1 ? " in colour" : "");
    }
    return true;
}

/* memcpy, a vector at a time: musl's is several times slower for the bytes of a small image. */
static void copy_pixels(uint8_t *to, const uint8_t *from, size_t size)
{
    enum { PIECE = 16 };
    size_t done = 0;
    for (; done + PIECE <= size; done += PIECE) {
        memcpy(to + done, from + done, PIECE);
        __asm__ volatile("" ::: "memory"); /* stops the compiler from turning the loop into memcpy */
    }
    memcpy(to + done, from + done, size - done);
}

bool builder_add(struct builder *builder, const struct image *image, int32_t label, struct error *error)
{
    struct examples *examples = &builder->examples;
    if (!builder_fits(builder, image, error)) {
        return false;
    }
    if (examples->count == 0) {
        examples->height = image->height;
        examples->width = image->width * image->channels;
        examples->channels = image->channels;
    }
    if (examples->count == builder->capacity) {
        int capacity = builder->capacity < 1024 ? 1024 : builder->capacity + builder->capacity / 2;
        if (examples->count > INT_MAX / 2 || !resize(builder, capacity)) {
            return error_set(error, "out of memory for more than %d images", examples->count);
        }
    }
    const size_t pixels = pixels_of(examples);
    copy_pixels(examples->images + (size_t)examples->count * pixels, image->pixels, pixels);
    examples->labels[examples->count++] = label;
    examples->classes = label + 1 > examples->classes ? label + 1 : examples->classes;
    return true;
}

uint64_t builder_bytes(const struct builder *builder)
{
    return (uint64_t)builder->examples.count * (pixels_of(&builder->examples) + sizeof *builder->examples.labels);
}

void builder_cut(struct builder *builder, int count)
{
    if (count < builder->examples.count) {
        builder->examples.count = count;
        resize(builder, count > 0 ? count : 1);
    }
}

bool builder_finish(struct builder *builder, struct examples *examples, struct error *error)
{
    if (builder->examples.count == 0) {
        return error_set(error, "holds no images");
    }
    resize(builder, builder->examples.count); /* if shrinking fails, the larger block stays */
    memset(builder->examples.images + (size_t)builder->examples.count * pixels_of(&builder->examples), 0, IDX_PADDING);
    *examples = builder->examples;
    *builder = (struct builder){.capacity = 0};
    return true;
}

void builder_free(struct builder *builder)
{
    examples_free(&builder->examples);
    builder->capacity = 0;
}
