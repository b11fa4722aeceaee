/* What the training loop reports to observers (observe/observe.h); does nothing while observation is off. */
#ifndef WORKER_OBSERVED_H
#define WORKER_OBSERVED_H

#include <stdint.h>

#include "base/config.h"
#include "ps/job/plan.h"
#include "worker/engine.h"
#include "worker/evaluate.h"
#include "worker/updater.h"

/* Training begins, or resumes from a checkpoint, at start->global_step. metric: the one that selects the best model. */
void observed_start(const struct config *config, const char *digest, struct engine *engine, const struct plan *plan,
                    enum metric metric, const struct updater_start *start);

/* Steps are done, the last of them global_step. */
void observed_steps(const struct config *config, const struct plan *plan, int64_t global_step, int64_t local_step,
                    const struct train_result *done, double seconds);

void observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held);

#endif
