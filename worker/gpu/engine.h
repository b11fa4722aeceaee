/*
 * The GPU engine: worker/engine.h's table over a process that hosts the device (cuda/client.h).
 *
 * Data, parameters, slots and averages stay on the device while it trains. The host keeps a copy of them in the memory
 * that it shares with that process, as of some step not long ago: see "the copy" in engine.c. Should the device fail, the
 * CPU engine takes over from there with the same batches, if train.allow_soft_placement lets it: what was trained since
 * is trained again, and whoever drives the engine sees nothing but the time it takes and one warning. The device is not
 * tried again before the program is: what failed under load would do so again, at the price of a timeout each time.
 * Without soft placement the call fails, and so does every later one.
 */
#ifndef WORKER_GPU_ENGINE_H
#define WORKER_GPU_ENGINE_H

#include "cuda/client.h"
#include "worker/engine.h"

/*
 * Has the process, which was just started, take the device (train.device_index of those that the driver shows), without
 * waiting: that takes some tenths of a second, in which the caller may read its data. options->train may still be missing.
 */
bool gpu_engine_begin(struct gpu_client *client, const struct engine_options *options, struct error *error);

/* Takes ownership of what was begun with the same options, also where it fails. */
bool gpu_engine_create(struct engine **engine, const struct engine_options *options, struct gpu_client *client,
                       struct error *error);

#endif
