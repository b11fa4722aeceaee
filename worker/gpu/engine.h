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

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
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

/* --- Towers (towers.c) --- */

/*
 * Several devices as one engine: "towers", as TensorFlow's tutorials call them. Each has the parameters and computes
 * the gradients of its batches; the host averages them, in the order of the batches, and applies the update. The number
 * of towers changes the speed of a step, not its result: n towers share the train.micro_batches of a step.
 *
 * The host applies the update on purpose. It has all gradients anyway, in memory shared with the devices' processes,
 * and after summing must send every device either the sum or the new parameters, which are no larger. Updating on the
 * devices would save the host's pass over the vectors but no traffic, and all devices would have to keep identical
 * slots and averages. Direct transfers between devices would save traffic, but they are in different processes here,
 * and this cannot be tested without two GPUs.
 *
 * A tower whose device fails continues on the CPU, if train.allow_soft_placement is on.
 */

/* devices: as in train.towers, "gpu:0,gpu:1"; "cpu" is allowed too. Main thread only. */
bool towers_engine_create(struct engine **engine, const struct engine_options *options, const char *devices,
                          struct error *error);

/* --- Where layers are computed, by train.device and train.placement together (devices.c) --- */

struct layer_placement {
    enum device_kind
        device;          /* DEVICE_CPU: no layer is on a GPU; DEVICE_GPU: one must be; DEVICE_AUTO: if there is a GPU */
    int gpu;             /* its index, unless device is DEVICE_CPU */
    uint32_t cpu_layers; /* bit l: layer l of weights is on the CPU, also where there is a GPU */
    bool by_hand;        /* train.placement overrides train.device */
};

/* layers: of weights. */
struct layer_placement layer_placement_of(const struct config_train *train, int layers);

/* The report of --log_device_placement: which job, task and device holds each variable and runs each operation. */

/* device: the engine's, "gpu:0". Does nothing unless the config asks for it. */
void device_log(const struct engine_options *options, const char *device);

#endif
