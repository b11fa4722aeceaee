/*
 * Files with the residual of a worker's gradients (worker/remote/exchange/outbox.h), so that it survives the process,
 * and a job that continues from a checkpoint continues with the residual of that step. Also of the sent model
 * (ps/store/codec.h), whose difference from the parameters is the ps's residual. A process that plays all workers
 * (worker/clients/clients.c) has all their residuals in one file.
 *
 * They lie in the worker's own train_dir: residual-workerW-STEP; the sent model, in the chief's: sent-model-STEP; of
 * all clients: residual-clients-STEP. Of steps at which checkpoints are due the RESIDUAL_FILES_DUE newest are kept, of
 * others the RESIDUAL_FILES_OTHERS newest. A file is 40 bytes (magic, version, worker, global step, floats, CRC-32C of
 * these bytes and of the floats, all little-endian), then the floats in the model's layout.
 */
#ifndef WORKER_REMOTE_EXCHANGE_RESIDUAL_FILES_H
#define WORKER_REMOTE_EXCHANGE_RESIDUAL_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    RESIDUAL_FILES_DUE = 5,    /* a checkpoint reaches the disk a few intervals later */
    RESIDUAL_FILES_OTHERS = 2, /* whether the last push counted is known only after its answer */
    /* Instead of a worker's index: */
    RESIDUAL_FILES_SENT = -1, /* the sent model */
    RESIDUAL_FILES_CLIENTS = -2,
};

struct residual_files {
    const char *folder; /* borrowed, like the floats; "": nothing is kept */
    int worker;
    size_t count;
    int64_t every; /* checkpoints are due at multiples of this step; 0: never */
};

/* Writes or replaces the file of that step, and removes the oldest ones. */
bool residual_files_save(const struct residual_files *files, int64_t step, const float *floats, struct error *error);

/*
 * Loads the newest file of this step or an earlier one; later ones belong to an abandoned run and are removed. *found:
 * its step; -1: there is none. A damaged one, or one of another model, is skipped with a warning.
 */
bool residual_files_load(const struct residual_files *files, int64_t step, float *floats, int64_t *found,
                         struct error *error);

#endif
