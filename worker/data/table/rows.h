/*
 * Rows of a table in a file, whatever its format: text fields of a CSV file, the numbers of a NumPy array (of two
 * dimensions, or one for a single column), or TFRecords' features, as numbers unless some are text.
 *
 * Used by one thread. Errors about a row begin with its place: "FILE:LINE:COLUMN: ..." or "FILE: row N, column M: ...".
 */
#ifndef WORKER_DATA_TABLE_ROWS_H
#define WORKER_DATA_TABLE_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/budget.h"
#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/csv.h"
#include "worker/data/table/notation.h"
#include "worker/data/table/number.h"

enum { ROW_NUMBER_TEXT = 32, ROWS_MOST_PLAIN = 512 };

/* One of fields and numbers is NULL. Valid until the next row. */
struct row {
    const struct csv_field *fields; /* [count] */
    const double *numbers;          /* [count]; NaN: missing */
    int count;
    uint64_t line; /* of a text file, from 1; of an array its row, from 0 */
    const void *raw;
    size_t raw_size; /* bytes that stand for the whole row */
    /*
     * For numbers: how many rows, from this one on, are contiguous and hold only numbers that are finite and below
     * 2^127, so that they fit into float32; at most ROWS_MOST_PLAIN. 0: this row has others, or was not checked.
     */
    int plain;
};

struct rows;

/*
 * A .csv, .tsv, .npy, .npz or .tfrecord file, recognised by its content; gzip is unpacked. data: whether a text file
 * has a header, and what numbers a TFRecord's raw bytes are; NULL for the defaults. account: what reading bytes takes
 * is charged there; NULL: nowhere.
 */
bool rows_open(struct rows **rows, const char *path, const struct config_data *data, struct error *error);
bool rows_open_bytes(struct rows **rows, const char *name, const void *bytes, size_t size,
                     const struct config_data *data, struct budget_account *account, struct error *error);
void rows_close(struct rows *rows); /* safe on NULL */

/* Rows that are damaged are CSV_BAD, as in worker/data/table/csv.h. */
enum csv_status rows_next(struct rows *rows, struct row *row, struct error *error);

/* Skips `count` of the `plain` rows that follow the row returned last. */
void rows_skip(struct rows *rows, int count);

/* Row `index` of the `plain` ones that start with this one. */
struct row row_behind(const struct row *row, int index);

/* Column names: those of the header, or else numbers from 0. */
int rows_columns(const struct rows *rows);
const char *rows_column_name(const struct rows *rows, int column);
char rows_number_kind(const struct rows *rows); /* of an array (worker/data/table/npy.h); else '\0' */
bool rows_has_header(const struct rows *rows);
char rows_delimiter(const struct rows *rows); /* of a text file; "," of others */
const char *rows_name(const struct rows *rows);
/* Arrays of an archive, or features of records, that are no columns: why this one; "" if there are not as many. */
const char *rows_left_out(const struct rows *rows, int index);
bool rows_is_text(const struct rows *rows);
bool rows_has_blanks(const struct rows *rows);        /* instead of delimiters */
bool rows_lacks_first_name(const struct rows *rows);  /* the header has names, but none for the first column */
const char *rows_first_line(const struct rows *rows); /* the beginning of a text file's header, or first row */

/* What was left out of a text file so far, such as titles, for people; "": nothing. */
enum { ROWS_NOTE = 640 };
void rows_note(const struct rows *rows, char note[ROWS_NOTE]);

/* The column with this name, or of this number ("-1": the last one); -1 if there is none. */
int rows_find_column(const struct rows *rows, const char *name);

/* How a column's numbers are written, and the texts that stand for missing values (may be NULL). */
struct column_reading {
    const struct notation *notation;
    const struct string_list *missing;
    bool has_marks; /* the usual marks of missing values in numbers count as such (number_is_mark) */
};

/* Whether a text is one of them. */
bool reading_is_missing(const struct string_list *missing, const char *text, size_t size);

/* A field as a number, and as text (which may be put into `buffer`). */
enum number_kind row_number(const struct row *row, int column, struct column_reading reading, double *value);
/* The same of a plain number. */
enum number_kind row_plain_number(const struct row *row, int column, double *value);
const char *row_text(const struct row *row, int column, char buffer[ROW_NUMBER_TEXT], size_t *size);

/* The same of a class: a number is the shortest text of its value, since 1, 1.0 and 01 are one class. */
const char *row_class(const struct row *row, int column, char buffer[ROW_NUMBER_TEXT], size_t *size);

/* Prefixes the error with the place of a field; returns false. rows NULL: the row is not from a file. */
bool row_wrap(const struct rows *rows, const struct row *row, int column, struct error *error);

#endif
