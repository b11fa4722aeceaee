/* A part of a data set in TFRecord files. */
#ifndef WORKER_DATA_TFRECORD_FILES_H
#define WORKER_DATA_TFRECORD_FILES_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/source.h"

/* True if files in data_dir match the pattern of the part. */
bool tfrecord_files_exist(bool *exist, const struct config_data *config, enum dataset_part part, struct error *error);

/*
 * Reads all files of the part in the order of their names, one record of each in turn. Up to max_bad_records records
 * that are damaged or lack an image with a label are skipped, each with a warning; one more is an error that names
 * file, position and cause. Examples beyond the overflow's limit stay in the files. Pictures get the config's shape;
 * what it leaves open, the first one decides. encoded: they are stored as pictures, not as pixels.
 */
bool tfrecord_files_read(struct examples *examples, bool *encoded, const struct config_data *config,
                         enum dataset_part part, struct overflow *overflow, struct error *error);

/* The pattern of a part: config->train_files or config->test_files. */
const char *tfrecord_pattern(const struct config_data *config, enum dataset_part part);

#endif
