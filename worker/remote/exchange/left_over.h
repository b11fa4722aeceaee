/*
 * What a worker's gradients have left behind (worker/remote/exchange/outbox.h), in files: so that it survives the
 * process, and a job that goes on from a checkpoint goes on with what had been left behind at that step. Likewise what
 * workers were told (ps/store/told.h), whose difference from the parameters is what the ps have left behind. A process
 * that plays all workers (worker/clients/small_messages.h) has what each has left behind in one file.
 *
 * They lie in the worker's own train_dir: left-over-workerW-STEP; the chief's: told-STEP; of all clients:
 * left-over-clients-STEP. Of steps that checkpoints are due at, the LEFT_OVER_DUE newest are kept, of others the
 * LEFT_OVER_OTHERS newest. A file is 40 bytes (magic, version, worker, global step, floats, CRC-32C of these bytes and
 * of the floats, all little-endian), then the floats in the model's layout.
 */
#ifndef WORKER_REMOTE_EXCHANGE_LEFT_OVER_H
#define WORKER_REMOTE_EXCHANGE_LEFT_OVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    LEFT_OVER_DUE = 5,    /* a checkpoint is on disk a few of its turns later */
    LEFT_OVER_OTHERS = 2, /* whether the last push counted is not known before its answer */
    /* Instead of a worker's number: */
    LEFT_OVER_TOLD = -1,
    LEFT_OVER_CLIENTS = -2,
};

struct left_over {
    const char *folder; /* borrowed, as the floats are; "": nothing is kept */
    int worker;
    size_t count;
    int64_t every; /* checkpoints are due at multiples of this step; 0: never */
};

/* Replaces the file of that step, and removes the oldest ones. */
bool left_over_save(const struct left_over *files, int64_t step, const float *floats, struct error *error);

/*
 * The newest that is of no later step; later ones are of a future that will not be, and are removed. *found: its step;
 * -1: there is none. One that is damaged, or of another model, is passed over with a warning.
 */
bool left_over_load(const struct left_over *files, int64_t step, float *floats, int64_t *found, struct error *error);

#endif
