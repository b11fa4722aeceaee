/*
 * The GPU engine: worker/engine.h's table over a process that hosts the device (cuda/client.h).
 *
 * Data, parameters, slots and averages stay on the device while it trains. The host keeps a recent copy of them in
 * shared memory: see "the copy" in engine.c. If the device fails and train.allow_soft_placement is on, the CPU engine
 * takes over from the copy with the same batches: the steps since are repeated, and the caller sees only the delay and
 * one warning. The device is not tried again until the program restarts: it would probably fail under load again, each
 * time at the cost of a timeout. Without soft placement the call fails, and so does every later one.
 */
#ifndef WORKER_GPU_ENGINE_H
#define WORKER_GPU_ENGINE_H

#include "cuda/client.h"
#include "worker/engine.h"

/*
 * Asks the newly started process to open the device (train.device_index), without waiting: this takes some tenths of a
 * second, during which the caller may read its data. options->train may still be NULL if examples are pictures, or if
 * options->like gives their shape.
 */
bool gpu_engine_begin(struct gpu_client *client, const struct engine_options *options, struct error *error);

/* Completes gpu_engine_begin with the same options; takes ownership of the client, even on failure. */
bool gpu_engine_create(struct engine **engine, const struct engine_options *options, struct gpu_client *client,
                       struct error *error);

#endif
