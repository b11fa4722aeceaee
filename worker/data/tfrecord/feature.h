/*
 * The features of a tf.train.Example one by one: lists of floats or integers, and raw bytes as tf.decode_raw reads
 * them.
 *
 * Format: tensorflow/core/example/example.proto and feature.proto. The bytes are borrowed and need not be trusted.
 */
#ifndef WORKER_DATA_TFRECORD_FEATURE_H
#define WORKER_DATA_TFRECORD_FEATURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/encoding/proto.h"

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

#endif
