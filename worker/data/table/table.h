/*
 * Data sets that are tables: files train* and test* in data_dir, with the endings .csv, .tsv, .npy or .npz, followed by
 * .gz if they are packed; or those that train_files and test_files name. All files have the same columns.
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
#include "worker/data/fingerprint.h"
#include "worker/data/names.h"
#include "worker/data/source.h"
#include "worker/data/table/schema.h"
#include "worker/data/table/survey.h"

/* The names of the training files in data_dir. The caller calls names_free, also after a failure. */
bool table_list_train(struct names *names, const struct config *config, struct error *error);

/* True if there are files of the part. */
bool table_files_exist(bool *exist, const struct config *config, enum dataset_part part, struct error *error);

/*
 * Reads the training rows, the held-out ones first, and builds their schema, which must outlive them; unless schema is
 * zeros, it encodes them by that instead, which is also freed on failure. If the rows exceed the overflow's limit, the
 * rest streams. test: receives the rows split off for the test, none if there are test files; NULL: not wanted. After a
 * failure the caller frees only the overflow.
 */
bool table_read_train(struct examples *examples, struct examples *test, struct schema *schema,
                      struct fingerprint *fingerprint, struct overflow *overflow, const struct config *config,
                      struct error *error);

/* Surveys the training rows, and settles the survey. The caller calls survey_free in any case. */
bool table_survey_train(struct survey *survey, const struct config *config, struct error *error);

struct table_options {
    const struct config *config;
    uint64_t limit; /* most bytes for the rows */
};

/* The test rows, encoded by the training schema: from the test files, or those split off the training files. */
bool table_read_test(struct examples *examples, const struct schema *schema, const struct table_options *options,
                     struct error *error);

/* All rows of one file, with their targets. */
bool table_read_file(struct examples *examples, const struct schema *schema, const char *path,
                     const struct table_options *options, struct error *error);

/* Surveys a part's files for display; *files: their number. The caller calls survey_free in any case. */
bool table_survey(struct survey *survey, int *files, enum dataset_part part, const struct config *config,
                  struct error *error);

#endif
