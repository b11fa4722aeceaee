/*
 * The best model of a run so far, for the final test, and for going back to after a divergence. Before the first
 * validation of local training it is the model that training began with. A copy lies in memory, unless the model is
 * large and train_dir has it.
 *
 * The training thread's.
 */
#ifndef WORKER_GOOD_MODEL_H
#define WORKER_GOOD_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/engine.h"

struct good_model {
    struct config_train train;     /* by which the state is kept; owns nothing */
    struct checkpoint_state state; /* memory NULL: it is on disk only */
    struct checkpoint_info record; /* as it was then. Its texts are not valid */
    int64_t global_step;           /* its step */
    bool is_there, is_best;        /* is_best: by a validation */
};

/* True if the model may well lie in memory once more. */
bool good_model_is_small(const struct model *model, const struct config_train *train);

/*
 * Allocates the memory. whole: with the optimizer's slots, so that training can go on from it; otherwise only what a
 * test needs. model is borrowed.
 */
void good_model_create(struct good_model *good, const struct model *model, const struct config_train *train, bool whole);
void good_model_destroy(struct good_model *good); /* also fine on zeros */

/* Copies what is in the engine, or only notes that it is the best. */
bool good_model_keep(struct good_model *good, struct engine *engine, const struct checkpoint_info *record,
                     int64_t global_step, bool is_best, struct error *error);

/*
 * The best model of the run that has this record, from the checkpoint that an earlier process kept of it in train_dir.
 * Nothing changes if that is another one, or can't be read.
 */
void good_model_recall(struct good_model *good, const struct checkpoint_info *record, const char *train_dir);

/* Copies it into a state with the same vectors. */
void good_model_copy(const struct good_model *good, struct checkpoint_state *state);

/* Puts it into the engine, from memory. */
bool good_model_put(const struct good_model *good, struct engine *engine, struct error *error);

#endif
