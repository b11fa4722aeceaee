/*
 * tf.train.Example as used by image data sets: an image and its label under configurable names.
 *
 *     image    bytes: uint8 pixels, row-major, or a PNG, BMP or PNM picture; or a float list: 0..1, or 0..255 if any is
 *              above 1. Floats are rounded to the 256 levels that engines work on.
 *     label    an int64, or a list (int64 or float) with a single 1 at the label's place; or either as raw bytes, as
 *              tf.decode_raw reads them
 *     height, width (also image/height, image/width; int64): optional; without them an image of raw pixels is square,
 *              or else one row
 *
 * Format: tensorflow/core/example/example.proto and feature.proto.
 */
#ifndef WORKER_DATA_TFRECORD_EXAMPLE_H
#define WORKER_DATA_TFRECORD_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "worker/data/image/image.h"
#include "worker/data/tfrecord/feature.h"

struct example_names {
    const char *image, *label;
    enum label_dtype dtype; /* of a label that is raw bytes */
};

/* The bytes around the pixels and the label of a record of raw pixels. */
struct example_frame {
    size_t size;                 /* of the whole record; 0: none remembered */
    size_t image_at, image_size; /* its pixels */
    size_t label_at;             /* its label, a varint of one byte */
    int width, height;
    uint8_t bytes[224]; /* the bytes before and after the pixels */
};

/* The example read last. Start with zeros, end with example_free. Memory is reused from record to record. */
struct example {
    struct image image; /* pixels: in the record, or in `memory` */
    int32_t label;
    uint8_t *memory;
    size_t capacity;
    struct example_frame frame;
};

/*
 * Reads one record, which need not be trusted; names must be the same for all records read into one struct. The image
 * has 1 to IMAGE_MAX_PIXELS pixels, and is valid until the next call and as long as the record is. The error does not
 * name the file.
 */
bool example_decode(struct example *example, const uint8_t *record, size_t size, const struct example_names *names,
                    struct error *error);
void example_free(struct example *example);

/* A label alone: a number, one-hot, or either as raw bytes. names->image is ignored. */
bool example_label(const struct feature *feature, const struct example_names *names, int32_t *label,
                   struct error *error);

/* Appends an Example of raw pixels, with height and width, as TensorFlow reads it. */
void example_encode(struct proto *proto, const struct example_names *names, const uint8_t *pixels, int height,
                    int width, int32_t label);

#endif
