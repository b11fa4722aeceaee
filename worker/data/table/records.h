/*
 * TFRecord files of tf.train.Example as rows of numbers and texts: any features, by name.
 *
 * The first intact record defines the columns, in the order of their names: NAME for a feature of one number, NAME.0,
 * NAME.1, ... for a list. Bytes are text if they are printable UTF-8. Others are numbers of data.feature_dtype, as
 * tf.decode_raw reads them, and left out if that is not set; if it is set, all bytes are. A target may be raw bytes of
 * label_dtype, and if it is one-hot, its column is the place of the 1. A feature that a later record lacks is a missing
 * value there.
 */
#ifndef WORKER_DATA_TABLE_RECORDS_H
#define WORKER_DATA_TABLE_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/stream.h"
#include "worker/data/table/csv.h"

enum { RECORDS_HEAD = 12 /* bytes that show the format */ };

struct records_reader;

/* Recognised by the first bytes or, since these may be packed, by the name. */
bool records_are_known(const char *name, const void *head, size_t size);

/* data: NULL for the defaults. */
bool records_open(struct records_reader **reader, const struct stream_content *content, const struct config_data *data,
                  struct error *error);
void records_close(struct records_reader *reader); /* safe on NULL */

int records_columns(const struct records_reader *reader);
const char *records_column_name(const struct records_reader *reader, int column);
const char *records_name(const struct records_reader *reader);

/* Features that give no columns: why the one of this number is left out; "" if there are not as many. */
const char *records_left_out(const struct records_reader *reader, int index);

/*
 * The next row, valid until the next call: as numbers [columns], NaN where a feature is missing; if any feature is
 * text, instead as fields, empty where one is missing, and the bytes that stand for the row.
 */
struct records_row {
    const double *numbers;          /* NULL: there are fields */
    const struct csv_field *fields; /* [columns] */
    const char *raw;
    size_t raw_size;
};
enum csv_status records_next(struct records_reader *reader, struct records_row *row, struct error *error);

/* The number of the record that records_next returned last, from 0. */
uint64_t records_row(const struct records_reader *reader);

#endif
