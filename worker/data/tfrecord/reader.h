/*
 * The records of one TFRecord file, plain, gzip or zlib (told by the first bytes). Every CRC is checked.
 *
 * A damaged record does not end the file: the reader goes on at the next place where a header's CRC is right.
 */
#ifndef WORKER_DATA_TFRECORD_READER_H
#define WORKER_DATA_TFRECORD_READER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { TFRECORD_MAX_RECORD = 1 << 26 }; /* bytes; a header that promises more counts as damaged */

enum tfrecord_status {
    TFRECORD_RECORD,
    TFRECORD_END,
    TFRECORD_DAMAGED, /* one record; the error says which file, where, and what is wrong. The next call goes on */
    TFRECORD_FAILED,  /* for good: the file can't be read or unpacked */
};

struct tfrecord_reader;

bool tfrecord_open(struct tfrecord_reader **reader, const char *path, struct error *error);

/* From memory, which must outlive the reader. */
bool tfrecord_open_bytes(struct tfrecord_reader **reader, const char *name, const void *bytes, size_t size,
                         struct error *error);
void tfrecord_close(struct tfrecord_reader *reader); /* NULL is fine */

/* *record: [*size], until the next call. */
enum tfrecord_status tfrecord_next(struct tfrecord_reader *reader, const uint8_t **record, size_t *size,
                                   struct error *error);

/*
 * Goes on with the record at byte `offset` of the unpacked content; in a packed file at or behind where the reader is.
 * Beyond the end there are no records.
 */
bool tfrecord_go_to(struct tfrecord_reader *reader, uint64_t offset, struct error *error);
bool tfrecord_is_packed(const struct tfrecord_reader *reader);

/* Where the next record begins, and where the record that was returned last begins, in the unpacked content. */
uint64_t tfrecord_position(const struct tfrecord_reader *reader);
uint64_t tfrecord_offset(const struct tfrecord_reader *reader);
const char *tfrecord_name(const struct tfrecord_reader *reader);

#endif
