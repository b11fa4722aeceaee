/* Collects an unknown number of examples one by one; the set grows as needed and is trimmed at the end. */
#ifndef WORKER_DATA_BUILDER_H
#define WORKER_DATA_BUILDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/image.h"

/* A zeroed builder is empty; call builder_free at the end, also after builder_finish. */
struct builder {
    struct examples examples;
    int capacity;
};

/* Adds an image and its label, 0 <= label < CONFIG_MAX_WIDTH. The first image sets the size of all. */
bool builder_add(struct builder *builder, const struct image *image, int32_t label, struct error *error);

/* Whether builder_add would accept this image; changes nothing. */
bool builder_fits(const struct builder *builder, const struct image *image, struct error *error);

/* Bytes of images and labels so far. */
uint64_t builder_bytes(const struct builder *builder);

/* Keeps at most the first `count` examples; `classes` stays. */
void builder_cut(struct builder *builder, int count);

/* Hands over the collected set; fails if it is empty. The error does not name the source. */
bool builder_finish(struct builder *builder, struct examples *examples, struct error *error);
void builder_free(struct builder *builder);

#endif
