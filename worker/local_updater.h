/*
 * Local training: the engine holds the model and trains by itself; its checkpoints are written to train_dir in the
 * background (ps/checkpoint/writer.h).
 *
 * The engine trains in slices that end exactly where something is due, and otherwise last about 50 ms, so that signals
 * and deadlines are noticed in time.
 */
#ifndef WORKER_LOCAL_UPDATER_H
#define WORKER_LOCAL_UPDATER_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/training.h"

/* Locks the config's train_dir for this process; fails if it is in use or not writable. training: borrowed. */
bool local_updater_create(struct updater **updater, struct training *training, struct error *error);

/* Releases train_dir, after finishing any checkpoint in progress. NULL is fine. */
void local_updater_destroy(struct updater *updater);

#endif
