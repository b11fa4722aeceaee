/*
 * Data sets that are tables: files train* and test* in data_dir, with the endings .csv, .tsv, .npy or .npz, and .gz
 * behind them if they are packed; or those that train_files and test_files name. All files have the same columns.
 *
 * The training files are read twice: once for their types and scales (survey.h, schema.h), and once into memory.
 */
#ifndef WORKER_DATA_TABLE_TABLE_H
#define WORKER_DATA_TABLE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey.h"

/* True if there are files of the part. */
bool table_files_exist(bool *exist, const struct config *config, enum dataset_part part, struct error *error);

/* The training rows, those held out first, of which there are *held_out; and the schema that follows from them. */
struct table_options {
    const struct config *config;
    uint64_t limit;  /* bytes that the rows may take */
    int held_out;    /* rows to hold out ... */
    bool is_at_most; /* ... at most, and of fewer a tenth */
};
bool table_read_train(struct examples *examples, int *held_out, struct schema *schema,
                      const struct table_options *options, struct error *error);

/* The rows to test with, by the schema of training: of the test files, or those that training left out. */
bool table_read_test(struct examples *examples, const struct schema *schema, const struct table_options *options,
                     struct error *error);

/* All rows of one file, with their targets. */
bool table_read_file(struct examples *examples, const struct schema *schema, const char *path,
                     const struct table_options *options, struct error *error);

/* What is in the columns of a part's files, for people; *files: how many. The caller calls survey_free in any case. */
bool table_survey(struct survey *survey, int *files, enum dataset_part part, const struct config *config,
                  struct error *error);

#endif
