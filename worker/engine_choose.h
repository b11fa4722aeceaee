/* Chooses the engine: by --device, and by what this machine and this build have. */
#ifndef WORKER_ENGINE_CHOOSE_H
#define WORKER_ENGINE_CHOOSE_H

#include "worker/engine.h"

struct gpu_client;

/* A GPU engine that is starting in the background. All zero: none. */
struct engine_startup {
    struct gpu_client *client;
};

/*
 * Begins to start the engine that the config asks for, so that a GPU is opened while the caller does other work, such
 * as reading the data, which the options need not have yet. Main thread only. If it fails, engine_choose tries again
 * and reports the error.
 */
void engine_begin(struct engine_startup *startup, const struct engine_options *options);
void engine_startup_end(
    struct engine_startup *startup); /* if engine_choose was not called; otherwise there is nothing left to do */

/*
 * Creates the engine for config->train.device, from what engine_begin started (NULL: nothing). auto falls back to the
 * CPU if no GPU is usable, with one log line; gpu does so with a warning if train.allow_soft_placement is set, and
 * fails otherwise, as auto does if only a GPU has train.precision. train.towers overrides both; a missing device in it
 * is an error.
 */
bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error);

#endif
