/*
 * A trial of a job's config: a few steps of it, on a copy of the newest checkpoint, by a process of its own on this
 * machine. What it does not survive, this process does.
 */
#ifndef WORKER_REMOTE_TRIAL_H
#define WORKER_REMOTE_TRIAL_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"

/*
 * then: what this process would run with; the trial works in CONFIG.d/trial. Fails if the checkpoint does not fit and
 * may not lose what does not, and if the trial ends badly; the error says in its words why. given_up: asked some
 * times a second, ends it.
 */
bool trial_run(const struct config *then, const char *train_dir, bool may_lose, bool (*given_up)(void *context),
               void *context, struct error *error);

#endif
