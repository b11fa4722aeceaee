/*
 * Which rows of a table are held out: by a hash of the row, or of its group, so that neither the order of rows nor of
 * files matters, and the same row is never on both sides; or the latest, by a column of times.
 *
 * A row has a key, and those with the smallest are held out. First every row's key is shown to it, then it is asked
 * about each. By time the test's rows are known only once all times have been seen (split_sample).
 */
#ifndef WORKER_DATA_TABLE_SPLIT_H
#define WORKER_DATA_TABLE_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/sample.h"

struct split {
    int column; /* of the group, or of the time; -1: the whole row */
    bool is_by_time;
    struct sample times; /* of the keys, by time */
    double test_share;   /* 0: there are test files */
    int most;            /* rows to hold out for validation, at most ... */
    bool is_at_most;     /* ... and of fewer than ten times as many a tenth */
    uint64_t *keys;      /* of candidates for validation, the smallest so far */
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

/* Finds the column that the config names in a file. */
bool split_find_column(struct split *split, const struct rows *rows, const struct config *config, struct error *error);

/* test_share, most and is_at_most are set. Also to begin once more. */
void split_begin(struct split *split);

/* The key of a row. Fails if its time is none: a fault of the row. */
bool split_key(const struct split *split, const struct rows *rows, const struct row *row, uint64_t *key,
               struct error *error);

/* The same of all rows that are plain from this one on, side by side; the whole row is what counts (column -1). */
void split_keys(const struct row *row, uint64_t keys[ROWS_MOST_PLAIN]);

/* By time: takes down the key of every row, before all else; then finds the test's share of them. */
bool split_sample(struct split *split, uint64_t key, struct error *error);
bool split_settle_test(struct split *split, struct error *error);

/* Shows it a row. Fails only if out of memory. */
bool split_show(struct split *split, uint64_t key, struct error *error);

/* All rows have been shown. */
bool split_settle(struct split *split, struct error *error);

/* Is a row for the test? Known at once, so that its values are left out of all statistics. */
bool split_is_test(const struct split *split, uint64_t key);
enum dataset_part split_part(const struct split *split, uint64_t key);

#endif
