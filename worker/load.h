/* Training and test set, loaded at the same time. */
#ifndef WORKER_LOAD_H
#define WORKER_LOAD_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/dataset.h"

/*
 * Loads the dataset and, unless test is NULL, the test set in parallel on another core, so that a missing or broken
 * file is found before training, not after it. Sets layers that follow from the data in the config. A table's test set
 * is loaded after the training set, whose schema it needs; without test files, and with data.test_share 0, it stays
 * empty. With train.warm_start, a table's rows are encoded as in the
 * run that the new one starts from; with data.new_data, as in the run that goes on. Pass a zeroed dataset; the caller
 * frees what was loaded, even on failure.
 */
bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error);

#endif
