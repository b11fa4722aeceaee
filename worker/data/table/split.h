/*
 * Which rows of a table are held out: by a hash of the row or of its group, so that neither the order of rows nor of
 * files matters, and the same row never lands on both sides; or the latest rows, by a column of times.
 *
 * Each row has a key, and the rows with the smallest keys are held out. First the split sees every row's key, then it
 * can be asked about each. By time, the test rows are known only after all times have been seen (split_sample).
 *
 * What was seen may change the choice (split_revise), so that all rows must be shown again:
 *
 * - Where equal rows are common, as in a table of a few categories, the second occurrence of a row has a key of its
 *   own, and so on: otherwise the test would be of a few kinds of rows, which training never saw.
 * - A class keeps its row of the largest key for training.
 * - There is a test row even if all keys are too large.
 */
#ifndef WORKER_DATA_TABLE_SPLIT_H
#define WORKER_DATA_TABLE_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/sample.h"

/* How many rows have a hash in common, and of a class which keys. */
struct tally_entry {
    uint64_t hash;
    int64_t rows; /* 0: a free slot */
    uint64_t smallest, largest, largest_validation;
    char name[24]; /* of a class */
};

struct key_tally {
    struct tally_entry *slots; /* [capacity], a power of two */
    int count, capacity;
    int64_t rows, most; /* of all, and of the most frequent hash */
    bool is_over;       /* there were too many hashes; those that came late are not counted */
};

struct split {
    int column; /* of the group, or of the time; -1: the whole row */
    bool is_by_time;
    enum table_dates dates;
    bool is_fixed;      /* by content alone, whatever the rows: files that come in rounds */
    bool by_occurrence; /* equal rows have different keys */
    bool has_classes;   /* the target is of classes */
    int target;         /* column of what may be classes; -1: none */
    struct key_tally kinds, classes;
    uint64_t smallest;                /* key of all */
    uint64_t test_floor;              /* smaller keys are for the test, whatever its share */
    uint64_t *kept, *kept_validation; /* keys of rows that stay in training, in order */
    int kept_count, kept_validation_count;
    struct sample times; /* of the keys, by time */
    double test_share;   /* 0: there are test files */
    int most;            /* rows to hold out for validation, at most ... */
    int percent;         /* ... and this share of the rows; 0: as many as that */
    int fold, folds;     /* or which part of how many, from 1; 0: by number */
    uint64_t *keys;      /* of candidates for validation, the smallest so far */
    int64_t key_count, key_capacity;
    uint64_t limit;  /* rows with smaller keys are candidates */
    int64_t rows;    /* shown, without those for the test */
    uint64_t digest; /* of all rows shown (worker/data/fingerprint.h) */
    int64_t test_rows;
    uint64_t test_limit; /* rows with smaller keys are for the test */
    uint64_t validation_limit;
    int validation_rows;
};

/* Zeroed structs may be freed. */
void split_free(struct split *split);

/* Finds the column that the config names in a file. */
bool split_find_column(struct split *split, const struct rows *rows, const struct config *config, struct error *error);

/* test_share, most and percent must be set. May be called again to start over, with what split_revise decided. */
void split_begin(struct split *split);

/* Call it before each later pass over the rows that asks for their keys: occurrences are counted from the first row. */
void split_rewind(struct split *split);

/* The key of a row, to be asked for once a pass. Fails if its time is invalid: a fault of the row. */
bool split_key(struct split *split, const struct rows *rows, const struct row *row, uint64_t *key, struct error *error);

/* The same for all plain rows from this one on, interleaved; hashes whole rows (column -1). */
void split_keys(struct split *split, const struct row *row, uint64_t keys[ROWS_MOST_PLAIN]);

/* By time: records the key of every row, before all else; then finds the test's share of them. */
bool split_sample(struct split *split, uint64_t key, struct error *error);
bool split_settle_test(struct split *split, struct error *error);

/* Adds a row by its key. Fails only if out of memory. */
bool split_show(struct split *split, const struct row *row, uint64_t key, struct error *error);

/*
 * Call it after all rows have been shown. has_classes: the target is one of classes. *again: other rows are to be held
 * out, so that all must be shown again, after split_begin; twice at most.
 */
bool split_revise(struct split *split, bool has_classes, bool *again, struct error *error);

/* Call it after that. */
bool split_settle(struct split *split, struct error *error);

/* True if a row is for the test. Known before split_settle, so that its values stay out of all statistics. */
bool split_is_test(const struct split *split, uint64_t key);
enum dataset_part split_part(const struct split *split, uint64_t key);

/* Logs which classes have too few rows to be held out. */
void split_report(const struct split *split);

#endif
