/*
 * The residual of a worker's gradients (worker/remote/exchange/outbox.h) in files: so that it survives the process, and
 * a job that goes on from a checkpoint goes on with the residual of that step. Likewise the sent model
 * (ps/store/sent_model.h), whose difference from the parameters is the residual of the ps. A process that plays all
 * workers (worker/clients/small_messages.h) has the residuals of all in one file.
 *
 * They lie in the worker's own train_dir: left-over-workerW-STEP; the sent model, in the chief's: told-STEP; of all
 * clients: left-over-clients-STEP (so residuals and the sent model were called once; names on disk, the magic among
 * them, do not change). Of steps that checkpoints are due at, the RESIDUAL_FILES_DUE newest are kept, of others the
 * RESIDUAL_FILES_OTHERS newest. A file is 40 bytes (magic, version, worker, global step, floats, CRC-32C of these bytes
 * and of the floats, all little-endian), then the floats in the model's layout.
 */
#ifndef WORKER_REMOTE_EXCHANGE_RESIDUAL_FILES_H
#define WORKER_REMOTE_EXCHANGE_RESIDUAL_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    RESIDUAL_FILES_DUE = 5,    /* a checkpoint is on disk a few of its turns later */
    RESIDUAL_FILES_OTHERS = 2, /* whether the last push counted is not known before its answer */
    /* Instead of a worker's number: */
    RESIDUAL_FILES_SENT = -1, /* the sent model */
    RESIDUAL_FILES_CLIENTS = -2,
};

struct residual_files {
    const char *folder; /* borrowed, as the floats are; "": nothing is kept */
    int worker;
    size_t count;
    int64_t every; /* checkpoints are due at multiples of this step; 0: never */
};

/* Replaces the file of that step, and removes the oldest ones. */
bool residual_files_save(const struct residual_files *files, int64_t step, const float *floats, struct error *error);

/*
 * The newest that is of no later step; later ones are of a future that will not be, and are removed. *found: its step;
 * -1: there is none. One that is damaged, or of another model, is passed over with a warning.
 */
bool residual_files_load(const struct residual_files *files, int64_t step, float *floats, int64_t *found,
                         struct error *error);

#endif
