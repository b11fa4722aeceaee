/* Where the layers of a model are computed, by train.device and train.placement together. */
#ifndef WORKER_LAYER_PLACEMENT_H
#define WORKER_LAYER_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct layer_placement {
    enum device_kind
        device;          /* DEVICE_CPU: no layer is on a GPU; DEVICE_GPU: one must be; DEVICE_AUTO: if there is a GPU */
    int gpu;             /* its index, unless device is DEVICE_CPU */
    uint32_t cpu_layers; /* bit l: layer l of weights is on the CPU, also where there is a GPU */
    bool by_hand;        /* train.placement overrides train.device */
};

/* layers: of weights. */
struct layer_placement layer_placement_of(const struct config_train *train, int layers);

#endif
