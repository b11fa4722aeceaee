/* Training and test set, loaded at the same time. */
#ifndef WORKER_LOAD_H
#define WORKER_LOAD_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/dataset.h"

/*
 * Loads the dataset and, unless test is NULL, the test set beside it, on another core: so that a missing or broken file
 * is found before the training and not after it. Layers that follow from the data are set in the config. Rows of a
 * table are tested by the training set's schema: its test set comes after it. With train.warm_start a table's rows are
 * encoded as those of the run that the new one begins with. The dataset is zeros; what was loaded is the caller's to
 * free, also if it fails.
 */
bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error);

#endif
