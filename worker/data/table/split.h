/*
 * Which rows of a table are held out: by a hash of the row, or of its group, so that neither the order of rows nor of
 * files matters, and the same row is never on both sides.
 *
 * First every row is shown to it, then it is asked about each.
 */
#ifndef WORKER_DATA_TABLE_SPLIT_H
#define WORKER_DATA_TABLE_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/rows.h"

struct split {
    int column;        /* of the group; -1: the whole row */
    double test_share; /* 0: there are test files */
    int most;          /* rows to hold out for validation, at most ... */
    bool is_at_most;   /* ... and of fewer than ten times as many a tenth */
    uint64_t *keys;    /* of candidates for validation, the smallest so far */
    int64_t key_count, key_capacity;
    uint64_t limit; /* rows with smaller keys are candidates */
    int64_t rows;   /* shown, without those for the test */
    int64_t test_rows;
    uint64_t test_limit; /* rows with smaller keys are for the test */
    uint64_t validation_limit;
    int validation_rows;
};

/* Zeroed structs may be freed. */
void split_free(struct split *split);

/* column, test_share, most and is_at_most are set. Also to begin once more. */
void split_begin(struct split *split);

/* Shows it a row. Fails only if out of memory. */
bool split_show(struct split *split, const struct row *row, struct error *error);

/* All rows have been shown. */
bool split_settle(struct split *split, struct error *error);

/* Is a row for the test, by hash? Known at once, so that its values are left out of all statistics. */
bool split_is_test(const struct split *split, const struct row *row);
enum dataset_part split_part(const struct split *split, const struct row *row);

#endif
