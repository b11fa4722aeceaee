/* A layer placed by name overrides train.device; the others follow it. */
#include "worker/layer_placement.h"

struct layer_placement layer_placement_of(const struct config_train *train, int layers)
{
    struct layer_placement result = {.device = train->device, .gpu = train->device_index};
    uint32_t all = (1u << layers) - 1;
    for (int l = 0; l < layers; l++) {
        int where = train->placement[l];
        if (where >= LAYER_ON_GPU) {
            result.by_hand |= train->device != DEVICE_GPU;
            result.device = DEVICE_GPU;
            result.gpu = where - LAYER_ON_GPU;
        } else if (where == LAYER_ON_CPU || train->device == DEVICE_CPU) {
            result.cpu_layers |= 1u << l;
        }
    }
    if (result.cpu_layers == all) {
        result.device = DEVICE_CPU;
    }
    return result;
}
