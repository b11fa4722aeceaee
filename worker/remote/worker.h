/*
 * A worker: draws batches, computes their gradients, pushes them and receives what changed, until the job is over.
 * Worker 0 is also the chief (worker/remote/chief.h).
 */
#ifndef WORKER_REMOTE_WORKER_H
#define WORKER_REMOTE_WORKER_H

#include "base/config.h"

/* Runs worker number config->cluster.task_index. Returns the exit status; errors are logged. */
int remote_worker_run(const struct config *config);

#endif
