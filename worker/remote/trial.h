/*
 * A trial of a job's config: a few steps on a copy of the newest checkpoint, in a separate process on this machine, so
 * that a crash does not take this process down.
 */
#ifndef WORKER_REMOTE_TRIAL_H
#define WORKER_REMOTE_TRIAL_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"

/*
 * then: what this process would run with; the trial works in CONFIG.d/trial. Fails if the checkpoint does not fit and
 * nothing of it may be dropped, or if the trial fails; the error quotes its last message. given_up: called several
 * times a second; ends the trial.
 */
bool trial_run(const struct config *then, const char *train_dir, bool may_lose, bool (*given_up)(void *context),
               void *context, struct error *error);

#endif
