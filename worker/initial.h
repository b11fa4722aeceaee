/* The initial state of a new run: drawn by the initializer, or another run's parameters (train.warm_start). */
#ifndef WORKER_INITIAL_H
#define WORKER_INITIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"

struct dataset;

/*
 * Fills state, created for config's model and optimizer, with the initial state. source: its origin in words, for logs.
 * Fails if train.warm_start names no valid checkpoint, or one of another model: the error then says what differs.
 */
bool initial_state(const struct config *config, struct checkpoint_state *state, char *source, size_t source_size,
                   struct error *error);

/*
 * Loads what fits of a checkpoint of another model or optimizer (checkpoint_load has failed); the rest is initialized
 * as for a new run. A rollout's chief, and the trial before it (worker/remote/trial.h), take over checkpoints by this.
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

#endif
