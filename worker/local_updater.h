/*
 * Local training: the engine holds the model and trains by itself, and checkpoints go from there into train_dir,
 * written in the background (ps/checkpoint/writer.h).
 *
 * The engine trains in slices that end exactly where something is due, and otherwise last about 50 ms, so that signals
 * and clocks are looked at in time.
 */
#ifndef WORKER_LOCAL_UPDATER_H
#define WORKER_LOCAL_UPDATER_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/training.h"

/* Takes the config's train_dir for this process: fails if it is in use or can't be written. training: borrowed. */
bool local_updater_create(struct updater **updater, struct training *training, struct error *error);

/* Lets go of train_dir; a checkpoint that is being written is finished first. NULL is fine. */
void local_updater_destroy(struct updater *updater);

#endif
