/* What the training loop reports to observers (observe/observe.h); does nothing while observation is off. */
#ifndef WORKER_OBSERVED_H
#define WORKER_OBSERVED_H

#include <stdint.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "ps/job/plan.h"
#include "worker/engine.h"
#include "worker/evaluate.h"
#include "worker/updater.h"

/* Is a setting shown? Of model, training and data those that identify a run, and those not at their defaults. */
bool observed_setting(const struct config_key *key, const char *value);

/*
 * The command line, and the settings in effect. arguments: the program's, which must live as long as the process; NULL:
 * as before. data: a description of what was read; NULL: not known yet.
 */
void observed_about(const struct config *config, char *const *arguments, const char *data);

/*
 * Training begins, or resumes from a checkpoint, at start->global_step. metric: the one that selects the best model.
 * data: as in observed_about.
 */
void observed_start(const struct config *config, const char *data, const char *digest, struct engine *engine,
                    const struct plan *plan, enum metric metric, const struct updater_start *start);

/* Steps are done, the last of them global_step. */
void observed_steps(const struct config *config, const struct plan *plan, int64_t global_step, int64_t local_step,
                    const struct train_result *done, double seconds);

void observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held);

/* The final test. */
void observed_test(const struct evaluation *evaluation, enum metric metric, int64_t global_step);

#endif
