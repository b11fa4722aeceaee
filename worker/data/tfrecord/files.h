/* A part of a data set in TFRecord files. */
#ifndef WORKER_DATA_TFRECORD_FILES_H
#define WORKER_DATA_TFRECORD_FILES_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/streaming/overflow.h"
#include "worker/data/examples.h"

/* True if files in data_dir match the pattern of the part. */
bool tfrecord_files_exist(bool *exist, const struct config_data *config, enum dataset_part part, struct error *error);

/*
 * Reads all files of the part, one record of each in turn, in the order of their names. Records that are damaged or hold
 * no image with a label are passed over, up to max_bad_records of them, with one warning for each; one more is an error
 * that names file, place and cause. What is more than the overflow's limit stays in the files.
 */
bool tfrecord_files_read(struct examples *examples, const struct config_data *config, enum dataset_part part,
                         struct overflow *overflow, struct error *error);

/* The pattern of a part: config->train_files or config->test_files. */
const char *tfrecord_pattern(const struct config_data *config, enum dataset_part part);

#endif
