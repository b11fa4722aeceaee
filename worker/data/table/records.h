/*
 * TFRecord files of tf.train.Example as rows of numbers: any features, by name.
 *
 * The first intact record defines the columns, in the order of their names: NAME for a feature of one number, NAME.0,
 * NAME.1, ... for a list. Raw bytes are numbers of data.feature_dtype, as tf.decode_raw reads them, and skipped if that
 * is not set. A target may be raw bytes of label_dtype, and if it is one-hot, its column is the place of the 1. A
 * feature that a later record lacks is a missing value there.
 */
#ifndef WORKER_DATA_TABLE_RECORDS_H
#define WORKER_DATA_TABLE_RECORDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/csv.h"

enum { RECORDS_HEAD = 12 /* bytes that tell the format */ };

struct records_reader;

/* Recognised by the first bytes or, since these may be packed, by the name. */
bool records_are_known(const char *name, const void *head, size_t size);

/* data: NULL for the defaults. */
bool records_open(struct records_reader **reader, const char *path, const struct config_data *data,
                  struct error *error);
/* From memory, which must outlive the reader; `name` replaces the path in errors. */
bool records_open_bytes(struct records_reader **reader, const char *name, const void *bytes, size_t size,
                        const struct config_data *data, struct budget_account *account, struct error *error);
void records_close(struct records_reader *reader); /* safe on NULL */

int records_columns(const struct records_reader *reader);
const char *records_column_name(const struct records_reader *reader, int column);
const char *records_name(const struct records_reader *reader);

/* The next row as numbers [columns], NaN where a feature is missing; valid until the next call. */
enum csv_status records_next(struct records_reader *reader, const double **numbers, struct error *error);

/* The number of the record that records_next returned last, from 0. */
uint64_t records_row(const struct records_reader *reader);

#endif
