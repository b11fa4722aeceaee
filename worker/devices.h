/* The devices that compute a model: which layers are where, and the log of that. */
#ifndef WORKER_DEVICES_H
#define WORKER_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "worker/engine.h"

/* --- Where layers are computed --- */

/* Where the layers of a model are computed, by train.device and train.placement together. */

struct layer_placement {
    enum device_kind
        device;          /* DEVICE_CPU: no layer is on a GPU; DEVICE_GPU: one must be; DEVICE_AUTO: if there is a GPU */
    int gpu;             /* its index, unless device is DEVICE_CPU */
    uint32_t cpu_layers; /* bit l: layer l of weights is on the CPU, also where there is a GPU */
    bool by_hand;        /* train.placement overrides train.device */
};

/* layers: of weights. */
struct layer_placement layer_placement_of(const struct config_train *train, int layers);

/* --- The log of --log_device_placement --- */

/* The report of --log_device_placement: which job, task and device holds each variable and runs each operation. */

/* device: the engine's, "gpu:0". Does nothing unless the config asks for it. */
void device_log(const struct engine_options *options, const char *device);

#endif
