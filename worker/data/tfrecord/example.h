/*
 * The features of a tf.train.Example one by one: lists of floats or integers, and raw bytes as tf.decode_raw reads
 * them.
 *
 * Format: tensorflow/core/example/example.proto and feature.proto. The bytes are borrowed and need not be trusted.
 */
#ifndef WORKER_DATA_TFRECORD_EXAMPLE_H
#define WORKER_DATA_TFRECORD_EXAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "worker/data/image.h"

/* Numbers of fields: of an Example, of its map of features, of the map's entries, of a list. */
enum { EXAMPLE_FEATURES = 1, EXAMPLE_ENTRY = 1, EXAMPLE_KEY = 1, EXAMPLE_VALUE = 2, FEATURE_LIST = 1 };
enum feature_kind { FEATURE_NONE = 0, FEATURE_BYTES = 1, FEATURE_FLOATS = 2, FEATURE_INTEGERS = 3 };

/* A feature's list, still encoded. */
struct feature {
    enum feature_kind kind;
    const uint8_t *bytes;
    size_t size;
};

/* Name and value of an entry of the map; empty if missing. False if it is damaged. */
bool feature_entry(const struct proto_field *entry, struct proto_field *key, struct proto_field *value);

/* Reads an entry's value: one of three lists. False if it is damaged. */
bool feature_read(struct feature *feature, const struct proto_field *value);

/* Walks a list of floats or integers, packed or not. */
struct feature_walk {
    struct proto_reader list, packed;
};

struct feature_walk feature_walk(const struct feature *feature);

/* False at the end, or if the list is damaged. */
bool feature_next(struct feature_walk *walk, enum feature_kind kind, double *number);

/* The first text of a list of bytes; false if there is none. */
bool feature_bytes(const struct feature *feature, struct proto_field *raw);

/* dtype: not LABEL_AUTO. */
int feature_dtype_bytes(enum label_dtype dtype);
double feature_raw_number(const uint8_t *bytes, enum label_dtype dtype);

/* --- Examples --- */

/*
 * tf.train.Example as used by image data sets: an image and its label under configurable names.
 *
 *     image    bytes: uint8 pixels, row-major, or an encoded picture (worker/data/image.h); or a float list: 0..1, or
 *              0..255 if any is above 1. Floats are rounded to the 256 levels that engines work on.
 *     label    an int64, or a list (int64 or float) with a single 1 at the label's place; or either as raw bytes, as
 *              tf.decode_raw reads them
 *     height, width, channels (also depth; also image/height and so on; int64): optional; without them an image of raw
 *              pixels is grey, and square or else one row; in colour, if height and width leave three values a pixel
 *
 * Format: tensorflow/core/example/example.proto and feature.proto.
 */

struct example_names {
    const char *image, *label;
    enum label_dtype dtype; /* of a label that is raw bytes */
    /*
     * What to make of the pictures. channels 0: as they are stored; height 0: their own size, else encoded ones are
     * fitted to it.
     */
    struct image_shape shape;
};

/* The bytes around the pixels and the label of a record of raw pixels. */
struct example_frame {
    size_t size;                 /* of the whole record; 0: none remembered */
    size_t image_at, image_size; /* its pixels */
    size_t label_at;             /* its label, a varint of one byte */
    int width, height, channels;
    uint8_t bytes[224]; /* the bytes before and after the pixels */
};

/* The example read last. Start with zeros, end with example_free. Memory is reused from record to record. */
struct example {
    struct image image; /* pixels: in the record, or in `memory` */
    bool encoded;       /* it was stored as a picture, not as pixels */
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

/* Appends an Example of raw pixels, with height and width, and channels if in colour, as TensorFlow reads it. */
void example_encode(struct proto *proto, const struct example_names *names, const struct image *image, int32_t label);

#endif
