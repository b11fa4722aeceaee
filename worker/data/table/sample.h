/*
 * The values of rows, for quantiles: all of them while they fit, then a uniform sample, drawn by row number, so that
 * the same rows give the same sample.
 */
#ifndef WORKER_DATA_TABLE_SAMPLE_H
#define WORKER_DATA_TABLE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

struct sample {
    int columns, capacity; /* capacity: rows; 0: none are kept */
    double *values;        /* [capacity, columns]; NaN: missing */
    uint64_t *numbers;     /* [capacity]: of the rows, from 0 */
    int count;
    int level;     /* one row in 2^level is kept */
    uint64_t next; /* number of the next row */
};

/* Room for about `bytes` of numbers, and at least for 1,024 rows. False if out of memory. */
bool sample_create(struct sample *sample, int columns, uint64_t bytes);
void sample_free(struct sample *sample); /* safe on zeros */

/* Starts over with no rows. */
void sample_clear(struct sample *sample);

/* Where the numbers [columns] of the next row go; NULL: the row is not in the sample. */
double *sample_add(struct sample *sample);

/* The quantiles of a column at `shares`, interpolated linearly as by numpy.quantile; NaN if all values are missing. */
bool sample_quantile(const struct sample *sample, int column, const double *shares, int count, double *quantiles);

/*
 * The edges of a column's bins: at most `bins` of them, of equal counts. Where values are so frequent that several
 * edges would be equal there are fewer; where there are at most bins + 1 different values, each is an edge. edges:
 * [bins + 1], ascending; *count: how many; 0 or 1 means no bins.
 */
bool sample_edges(const struct sample *sample, int column, int bins, double *edges, int *count);

#endif
