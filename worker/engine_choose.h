/* Which engine trains: what --device asks for, and what this machine and this build have. */
#ifndef WORKER_ENGINE_CHOOSE_H
#define WORKER_ENGINE_CHOOSE_H

#include "worker/engine.h"

struct gpu_client;

/* A GPU engine that is starting in the background. All zero: none is. */
struct engine_startup {
    struct gpu_client *client;
};

/*
 * Begins to start what the config will want, so that a GPU is taken while the caller does something else: reads its
 * data, which the options need not have yet. From the main thread; what fails here is tried and told again by
 * engine_choose.
 */
void engine_begin(struct engine_startup *startup, const struct engine_options *options);
void engine_startup_end(
    struct engine_startup *startup); /* if engine_choose was not called; else nothing is left to do */

/*
 * Creates the engine for config->train.device, from what the startup began (NULL: nothing). auto takes the CPU where
 * there is no GPU to use, and says so in one log line; gpu does the same with a warning if train.allow_soft_placement
 * is set, and else fails, saying why; so does auto where train.precision asks for what only a GPU has. train.towers
 * comes before both; a device of theirs that is not there is an error.
 */
bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error);

#endif
