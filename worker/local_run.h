/* Training in one process, from the data to the test. */
#ifndef WORKER_LOCAL_RUN_H
#define WORKER_LOCAL_RUN_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "worker/training.h"

/* --- The updater --- */

/*
 * Local training: the engine holds the model and trains by itself; its checkpoints are written to train_dir in the
 * background (ps/checkpoint/writer.h).
 *
 * The engine trains in slices that end exactly where something is due, and otherwise last about 50 ms, so that signals
 * and deadlines are noticed in time.
 */

/* Locks the config's train_dir for this process; fails if it is in use or not writable. training: borrowed. */
bool local_updater_create(struct updater **updater, struct training *training, struct error *error);

/* Releases train_dir, after finishing any checkpoint in progress. NULL is fine. */
void local_updater_destroy(struct updater *updater);

/* What the exit status does not say. */
struct local_outcome {
    bool has_read;     /* the data could be read and used */
    bool has_diverged; /* it failed because the loss was not finite */
};

struct clients_options;

/*
 * clients: with rounds, the workers simulated here. outcome: may be NULL. Returns the exit status; errors are logged.
 */
int local_run(const struct config *config, const struct clients_options *clients, struct local_outcome *outcome);

/*
 * Training that follows a folder of tables (trainer train --follow; worker/follow.c): it learns from new files, and a
 * new model goes into service only if it is better on held-out rows. Returns the exit status, usually that of a signal;
 * reports its own errors.
 */
int follow_run(const struct config *config);

#endif
