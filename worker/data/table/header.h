/* Where a CSV file's column names stand, and what stands around them: titles, comments, units. */
#ifndef WORKER_DATA_TABLE_HEADER_H
#define WORKER_DATA_TABLE_HEADER_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/table/csv.h"

enum { HEADER_NOTE = 200, HEADER_LINE = 60 };

struct csv_header {
    int at;                 /* of the rows that csv_look gives: the one with the names; -1: there is none */
    int data;               /* the first row of data */
    int columns;            /* of a row of data */
    int skipped;            /* fields of the row of names before the first name */
    bool lacks_first;       /* R: the first column, of row names, has no name */
    bool has_comments;      /* the file begins with them */
    int most_empty;         /* empty fields of any of the first rows of data */
    char line[HEADER_LINE]; /* the beginning of the row of names, or of the first row */
    char note[HEADER_NOTE]; /* what is left out: "line 1 (before the names)"; "": nothing */
};

/*
 * Looks at the first rows, which csv_rewind returns to. data: the config's columns and `header`; NULL: no names are
 * known. Fails only if out of memory; header->columns is 0 if there is no row.
 */
bool header_find(struct csv_header *header, struct csv_reader *csv, const struct config_data *data,
                 struct error *error);

/* Looks at the row with that index. */
bool header_look(struct csv_reader *csv, int index, struct csv_row *row);

/* How many of its fields are empty or blank. */
int header_count_empty(const struct csv_row *row);

/* A name without blanks and a comment's sign. */
const char *header_name(const struct csv_field *field, size_t *size);

#endif
