/*
 * Arrays of numpy as rows of numbers: .npy (numpy.lib.format, versions 1 to 3) and .npz, a zip archive of them, stored
 * or deflated.
 *
 * An array is [rows, columns] or [rows]. Of an archive all arrays have as many rows, and stand side by side: the
 * columns of X are X.0, X.1, ..., the one of y is y. Types are all of bool, integers and floats, of both byte orders,
 * in C or Fortran order. A .npy file in C order is read as it is used; others are read whole. Rows become doubles in
 * blocks that stay in the cache.
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
    NPY_HEAD = 6 /* bytes that tell the format */,
    NPY_MOST_PLAIN = 512
};

struct npy_reader;

/* By its first NPY_HEAD bytes: is it one of them? */
bool npy_is_known(const void *head, size_t size);

/* The stream is at its beginning, and passes to the reader, also if it fails. head: its first NPY_HEAD bytes. */
bool npy_open(struct npy_reader **reader, struct stream *stream, const uint8_t head[NPY_HEAD], struct error *error);
void npy_close(struct npy_reader *reader); /* safe on NULL */

int npy_columns(const struct npy_reader *reader);
const char *npy_column_name(const struct npy_reader *reader, int column);

/* Arrays of an archive that are no columns are left out: about the last of them, why; "" if there is none. */
const char *npy_left_out(const struct npy_reader *reader);
const char *npy_name(const struct npy_reader *reader);

/* The next row into numbers [columns], which is valid until the next call; *there: there was one. */
bool npy_next(struct npy_reader *reader, const double **numbers, bool *there, struct error *error);

/* Which row npy_next gave last, from 0. */
uint64_t npy_row(const struct npy_reader *reader);

/*
 * How many rows from that one on lie one behind another in memory, with numbers alone that are finite and below 2^127:
 * at most NPY_MOST_PLAIN; 0 if it is none of these itself. npy_skip goes over rows behind it of as many.
 */
int npy_plain(struct npy_reader *reader);
void npy_skip(struct npy_reader *reader, int count);

#endif
