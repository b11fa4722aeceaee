/*
 * The records of one TFRecord file, plain, gzip or zlib (detected by the first bytes). Every CRC is checked.
 *
 * A damaged record does not end the file: the reader continues at the next header with a valid CRC.
 */
#ifndef WORKER_DATA_TFRECORD_READER_H
#define WORKER_DATA_TFRECORD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/config.h"
#include "base/encoding/proto.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/source.h"

enum { TFRECORD_MAX_RECORD = 1 << 26 }; /* bytes; a header that promises more counts as damaged */

enum tfrecord_status {
    TFRECORD_RECORD,
    TFRECORD_END,
    TFRECORD_DAMAGED, /* one record; the error names file, position and cause. The next call continues */
    TFRECORD_FAILED,  /* permanently: the file cannot be read or unpacked */
};

struct tfrecord_reader;

bool tfrecord_open(struct tfrecord_reader **reader, const char *path, struct error *error);

/* From memory, which must outlive the reader. */
bool tfrecord_open_bytes(struct tfrecord_reader **reader, const char *name, const void *bytes, size_t size,
                         struct error *error);
void tfrecord_charge_to(struct tfrecord_reader *reader,
                        struct budget_account *account); /* as in worker/data/stream.h */
void tfrecord_close(struct tfrecord_reader *reader);     /* safe on NULL */

/* *record: [*size], valid until the next call. */
enum tfrecord_status tfrecord_next(struct tfrecord_reader *reader, const uint8_t **record, size_t *size,
                                   struct error *error);

/*
 * Moves to the record at byte `offset` of the unpacked content; in a packed file only forward. Beyond the end there are
 * no records.
 */
bool tfrecord_go_to(struct tfrecord_reader *reader, uint64_t offset, struct error *error);
bool tfrecord_is_packed(const struct tfrecord_reader *reader);

/* Offsets in the unpacked content of the next record, and of the record returned last. */
uint64_t tfrecord_position(const struct tfrecord_reader *reader);
uint64_t tfrecord_offset(const struct tfrecord_reader *reader);
const char *tfrecord_name(const struct tfrecord_reader *reader);

/* --- Frames --- */

/*
 * The frame of each record of a TFRecord file and each event of a tfevents file: length, CRC of the length, the
 * record, its CRC; CRCs masked (base/encoding/crc32c.h), all little-endian.
 * Source: tensorflow/core/lib/io/record_writer.h.
 */

enum { TFRECORD_HEADER = 12, TFRECORD_FOOTER = 4 };

/* Appends the record in its frame to `out`. */
void tfrecord_append(struct proto *out, const void *record, size_t size);

/* The length that a header promises; false if the header's CRC is wrong. */
bool tfrecord_length(const uint8_t header[TFRECORD_HEADER], uint64_t *length);

/* --- Parts of a data set --- */

/* A part of a data set in TFRecord files. */

/* True if files in data_dir match the pattern of the part. */
bool tfrecord_files_exist(bool *exist, const struct config_data *config, enum dataset_part part, struct error *error);

/*
 * Reads all files of the part in the order of their names, one record of each in turn. Up to max_bad_records records
 * that are damaged or lack an image with a label are skipped, each with a warning; one more is an error that names
 * file, position and cause. Examples beyond the overflow's limit stay in the files. Pictures get the config's shape;
 * what it leaves open, the first one decides. encoded: they are stored as pictures, not as pixels.
 */
bool tfrecord_files_read(struct examples *examples, bool *encoded, const struct config_data *config,
                         enum dataset_part part, struct overflow *overflow, struct error *error);

/* The pattern of a part: config->train_files or config->test_files. */
const char *tfrecord_pattern(const struct config_data *config, enum dataset_part part);

#endif
