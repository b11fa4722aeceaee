/* Examples that come one by one, and nobody knows how many: a set that grows, and is cut to size at the end. */
#ifndef WORKER_DATA_BUILDER_H
#define WORKER_DATA_BUILDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/image/image.h"
#include "worker/data/examples.h"

/* Zeros are an empty one; builder_free releases it, also after builder_finish. */
struct builder {
    struct examples examples;
    int capacity;
};

/* Adds an image and its label, 0 <= label < CONFIG_MAX_WIDTH. The first one sets the size that all must have. */
bool builder_add(struct builder *builder, const struct image *image, int32_t label, struct error *error);

/* Would builder_add take this image? Needs no memory, and changes nothing. */
bool builder_fits(const struct builder *builder, const struct image *image, struct error *error);

/* Bytes of images and labels so far. */
uint64_t builder_bytes(const struct builder *builder);

/* Leaves the first `count` examples at most; `classes` stays. */
void builder_cut(struct builder *builder, int count);

/* Hands over what was collected; fails without a single example. The error does not name the source. */
bool builder_finish(struct builder *builder, struct examples *examples, struct error *error);
void builder_free(struct builder *builder);

#endif
