/* What training begins with: the model's first state, and the data. */
#ifndef WORKER_INITIAL_H
#define WORKER_INITIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/data/dataset.h"

struct dataset;

/*
 * Fills state, created for config's model and optimizer, with the initial state. source: its origin in words, for logs.
 * Fails if train.warm_start names no valid checkpoint, or one of another model: the error then says what differs.
 */
bool initial_state(const struct config *config, struct checkpoint_state *state, char *source, size_t source_size,
                   struct error *error);

/*
 * Loads what fits of a checkpoint of another model or optimizer (checkpoint_load has failed); the rest is initialized
 * as for a new run. A rollout's chief, and the trial before it (worker/remote/trial.c), take over checkpoints by this.
 * lost: a description of the parameters that have no place; "": none.
 */
bool initial_load_fitting(struct checkpoint_file *file, const struct config *config, struct checkpoint_state *state,
                          char *lost, size_t lost_size, struct error *error);

/*
 * True if a run may go on from a checkpoint with these data: they have its preprocessing and classes, and are those it
 * was trained on. *is_new: they are not, but data.new_data is set, or `changes`, as after a rollout. With
 * data_sharding=own any data of the same preprocessing will do: a member's rows come and go.
 */
bool initial_fits(const struct checkpoint_file *file, const struct dataset *dataset, const struct config *config,
                  bool changes, bool *is_new, struct error *error);

/*
 * Fills in the parts of a checkpoint's info that describe the run, whatever it was restored from. Borrows from the
 * data.
 */
void initial_record(struct checkpoint_info *info, const struct config *config, const struct dataset *dataset);

/* --- Data --- */

/* Training and test set, loaded at the same time. */

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
