/*
 * A worker: draws batches, computes their gradients, pushes them and receives what changed, until the job is over.
 * Worker 0 is also the chief (worker/remote/chief.h).
 */
#ifndef WORKER_REMOTE_WORKER_H
#define WORKER_REMOTE_WORKER_H

#include "base/config.h"

/* Runs worker number config->cluster.task_index. Returns the exit status; errors are logged. */
int remote_worker_run(const struct config *config);

/* --- The index of a worker (place.c) --- */

/*
 * A worker's index if the config gives none (task_index=auto): the one in its certificate; otherwise a free one beyond
 * worker_hosts, which ps 0 reserves for it and assigns again after a restart.
 *
 * ps 0 recognises the worker by its own key (net/credentials.h), or, if it has none, by machine, folder and command
 * line: several workers of a machine that share the fleet's key must differ in one of these.
 */

/* Sets task_index if this is a worker without one. Call it before anything else uses the config. */
bool place_find(struct config *config, struct error *error);

#endif
