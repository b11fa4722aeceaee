/* Which engine trains: what --device asks for, and what this machine and this build have. */
#ifndef WORKER_ENGINE_CHOOSE_H
#define WORKER_ENGINE_CHOOSE_H

#include "worker/engine.h"

/*
 * Creates the engine for config->train.device. auto takes the CPU where there is no GPU to use, and says so in one log
 * line; gpu fails there, saying why.
 */
bool engine_choose(struct engine **engine, const struct engine_options *options, struct error *error);

#endif
