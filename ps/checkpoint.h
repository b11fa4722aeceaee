/*
 * Checkpoints: one safetensors file each, that any safetensors reader opens.
 *
 * Layout: 8 bytes little-endian header length, a JSON header, the tensors (F32, plain row-major, no padding). The
 * header's "__metadata__" holds strings: format, step, seed, config digest and so on, and "digest": BLAKE2b-256 over
 * the whole file with the digest's own 64 characters taken as '0'. A reader verifies it before it uses anything.
 *
 * Files are named "model-<step, 10 digits>.safetensors" in train_dir; "best.safetensors" is the best by validation.
 */
#ifndef PS_CHECKPOINT_H
#define PS_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/model.h"
#include "ps/store.h"

enum { CHECKPOINT_MAX_PATH = 4096 };

/* What a checkpoint knows besides its tensors. */
struct checkpoint_info {
    int64_t global_step;
    int64_t seed;
    double validation_accuracy; /* negative: not measured at this step */
    double best_accuracy; /* best so far, negative: none; with best_step and bad_validations, what patience needs */
    int64_t best_step;
    int bad_validations; /* validations in a row without a new best */
    char config_digest[CONFIG_DIGEST_HEX + 1];
    int64_t fleet_version;
};

/* A consistent copy of an engine's state, taken between two steps; big enough for every vector of the model. */
struct checkpoint_state {
    const struct model *model;
    const struct config_train *train;
    float *vectors[STORE_VECTORS]; /* [model->float_count] each, or NULL */
    void *memory;
};

bool checkpoint_state_create(struct checkpoint_state *state, const struct model *model,
                             const struct config_train *train, struct error *error);
void checkpoint_state_destroy(struct checkpoint_state *state);

/* Writes a checkpoint to `path`, atomically (base/file.h). Any thread. */
bool checkpoint_write(const char *path, const struct checkpoint_state *state, const struct checkpoint_info *info,
                      struct error *error);

/*
 * Reads and verifies one file. Fails, naming the file, if it is torn or altered, or if it does not fit the model or
 * the optimizer: then the error says precisely what differs (layer1/weights is [300,10] there and [500,10] here).
 */
bool checkpoint_read(const char *path, struct checkpoint_state *state, struct checkpoint_info *info,
                     struct error *error);

#endif
