/*
 * Data sets that are tables: files train* and test* in data_dir, with the endings .csv, .tsv, .npy or .npz, and .gz
 * behind them if they are packed; or those that train_files and test_files name. All files have the same columns.
 *
 * The training files are read twice: once for their types and scales (survey.h, schema.h), and once into memory, or
 * into a temporary file that the rows stream from (spool.h).
 */
#ifndef WORKER_DATA_TABLE_TABLE_H
#define WORKER_DATA_TABLE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/names.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey.h"

/* The names of the training files in data_dir. The caller calls names_free, also after a failure. */
bool table_list_train(struct names *names, const struct config *config, struct error *error);

/* True if there are files of the part. */
bool table_files_exist(bool *exist, const struct config *config, enum dataset_part part, struct error *error);

/*
 * The training rows, those held out first, and the schema that follows from them, which must outlive them; or, unless
 * it is zeros, that they are to be encoded by, which is freed after a failure as well. If they are larger than the
 * overflow's limit, the rest streams. test: where the rows go that are split off for the test; none if there are files
 * for it; NULL: they are not wanted. After a failure only the overflow is the caller's to free.
 */
bool table_read_train(struct examples *examples, struct examples *test, struct schema *schema,
                      struct overflow *overflow, const struct config *config, struct error *error);

/* What is in the columns of the rows to train on, settled. The caller calls survey_free in any case. */
bool table_survey_train(struct survey *survey, const struct config *config, struct error *error);

struct table_options {
    const struct config *config;
    uint64_t limit; /* bytes that the rows may take */
};

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
