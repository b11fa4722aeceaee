/* Where a new run begins: at what the initializer draws, or at another run's parameters (train.warm_start). */
#ifndef WORKER_INITIAL_H
#define WORKER_INITIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"

struct dataset;

/*
 * Fills state, created for config's model and optimizer, with where a new run begins. source: in words, for logs. Fails
 * if train.warm_start names no good checkpoint, or one of another model: then the error says what differs.
 */
bool initial_state(const struct config *config, struct checkpoint_state *state, char *source, size_t source_size,
                   struct error *error);

/*
 * Loads what fits of a checkpoint that is of another model or optimizer (checkpoint_load has failed); the rest is as
 * where a new run begins. A rollout's chief and the trial before it (worker/remote/trial.h) take a checkpoint over so.
 * lost: in words, which parameters there is no room for; "": none.
 */
bool initial_load_fitting(struct checkpoint_file *file, const struct config *config, struct checkpoint_state *state,
                          char *lost, size_t lost_size, struct error *error);

/* Does a checkpoint go by the preprocessing and the classes of these data? */
bool initial_fits(const struct checkpoint_file *file, const struct dataset *dataset, struct error *error);

/* What the checkpoints of a run say about it, whatever it was restored from. Borrows from the data. */
void initial_record(struct checkpoint_info *info, const struct config *config, const struct dataset *dataset);

#endif
