/* A part of a data set in IDX files with MNIST's names (worker/data/files.h): an images file and a labels file. */
#ifndef WORKER_DATA_IDX_SET_H
#define WORKER_DATA_IDX_SET_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/files.h"
#include "worker/data/source.h"

#define HOW_TO_GET_DATA "`make mnist` fetches MNIST; --data_source=synthetic makes up digits"

/*
 * Reads both files of the part, which must exist and belong together. Images beyond the overflow's limit stay in their
 * file. folder: for errors.
 */
bool idx_set_read(struct examples *examples, const struct data_files *files, enum dataset_part part, const char *folder,
                  struct overflow *overflow, struct error *error);

/*
 * Checks by the headers alone that the test set exists and has images of the training set's size. train_path: for
 * errors.
 */
bool idx_set_check_test(const struct examples *train, const char *train_path, const struct data_files *files,
                        const char *folder, struct error *error);

#endif
