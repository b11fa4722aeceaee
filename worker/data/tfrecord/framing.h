/*
 * The frame of each record of a TFRecord file and each event of a tfevents file: length, CRC of the length, the
 * record, its CRC; CRCs masked (base/encoding/crc32c.h), all little-endian.
 * Source: tensorflow/core/lib/io/record_writer.h.
 */
#ifndef WORKER_DATA_TFRECORD_FRAMING_H
#define WORKER_DATA_TFRECORD_FRAMING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/encoding/proto.h"

enum { TFRECORD_HEADER = 12, TFRECORD_FOOTER = 4 };

/* Appends the record in its frame to `out`. */
void tfrecord_append(struct proto *out, const void *record, size_t size);

/* The length that a header promises; false if the header's CRC is wrong. */
bool tfrecord_length(const uint8_t header[TFRECORD_HEADER], uint64_t *length);

/* True if the record's CRC is right. */
bool tfrecord_is_whole(const void *record, size_t size, const uint8_t footer[TFRECORD_FOOTER]);

#endif
