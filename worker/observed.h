/* What the training loop reports to observers (observe/observe.h); does nothing while observation is off. */
#ifndef WORKER_OBSERVED_H
#define WORKER_OBSERVED_H

#include <stdint.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "ps/job/plan.h"
#include "ps/store/model.h"
#include "worker/engine.h"
#include "worker/evaluation/evaluate.h"
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

/* --- The model --- */

/*
 * The views into the model on the page of a run: for pictures the first layer's weights and the worst mistakes, for
 * tables each column's weight; at most every few seconds. How often which class is taken for which, at each
 * validation. Served on request.
 */

struct schema;

/*
 * evaluation: of these examples by this engine, just now; schema: of a table, or NULL. Training thread only; does
 * nothing while observation is off.
 */
void observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                    const struct examples *examples, const struct schema *schema, int64_t global_step);

#endif
