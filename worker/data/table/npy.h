/*
 * Arrays of numpy as rows of numbers: .npy (numpy.lib.format, versions 1 to 3) and .npz, a zip archive of them, stored
 * or deflated.
 *
 * An array is [rows, columns] or [rows]. All arrays of an archive have the same number of rows and are placed side by
 * side: the columns of X are X.0, X.1, ..., that of y, [rows] or [rows, 1], is y. Types are bool, integers and floats
 * of all sizes, in both byte orders, in C or Fortran order. A .npy file in C order is streamed; others are read whole.
 * Rows are converted to doubles in blocks that fit the cache.
 *
 * An archive's members must be apart from each other and from its directory, and as large as both of their headers say:
 * so that it unpacks to at most 1,032 times its size, however it is made. All that it needs is charged to the stream
 * before it is allocated.
 */
#ifndef WORKER_DATA_TABLE_NPY_H
#define WORKER_DATA_TABLE_NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/stream.h"

enum {
    NPY_MAX_HEADER = 1 << 16,
    NPY_MAX_COLUMNS = 1 << 17,
    NPY_HEAD = 6 /* bytes that show the format */,
    NPY_MOST_PLAIN = 512,
    NPY_COLUMN_NAME = 144
};

struct npy_reader;

/* True if the first NPY_HEAD bytes are those of .npy or .npz. */
bool npy_is_known(const void *head, size_t size);

/*
 * The stream must be at its beginning; ownership passes to the reader, even on failure. head: its first NPY_HEAD bytes.
 */
bool npy_open(struct npy_reader **reader, struct stream *stream, const uint8_t head[NPY_HEAD], struct error *error);
void npy_close(struct npy_reader *reader); /* safe on NULL */

int npy_columns(const struct npy_reader *reader);
/* Written into `name`, and returned. */
const char *npy_column_name(const struct npy_reader *reader, int column, char name[NPY_COLUMN_NAME]);

/* Arrays of an archive that are not columns are skipped: the reason for this one; "" if there are not as many. */
const char *npy_left_out(const struct npy_reader *reader, int index);
/* 'b', 'i', 'u' or 'f', as numpy calls the kind of all its numbers; '\0': it has several. */
char npy_kind(const struct npy_reader *reader);
const char *npy_name(const struct npy_reader *reader);

/* The next row as numbers [columns], valid until the next call; *there: whether there was one. */
bool npy_next(struct npy_reader *reader, const double **numbers, bool *there, struct error *error);

/* The number of the row that npy_next returned last, from 0. */
uint64_t npy_row(const struct npy_reader *reader);

/*
 * How many rows, from that one on, are contiguous in memory and hold only numbers that are finite and below 2^127: at
 * most NPY_MOST_PLAIN; 0 if that row itself does not. npy_skip skips the following rows among these.
 */
int npy_plain(struct npy_reader *reader);
void npy_skip(struct npy_reader *reader, int count);

#endif
