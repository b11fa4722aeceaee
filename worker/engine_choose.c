#include "worker/engine_choose.h"

#include "base/log.h"
#include "cuda/probe.h"

bool engine_choose(struct engine **engine, const struct engine_options *options, struct error *error)
{
    const struct config_train *train = &options->config->train;
    if (train->device != DEVICE_CPU) {
        struct gpu_probe probe;
        gpu_probe(&probe);
        const char *also = probe.usable ? "this build has no GPU engine" : probe.reason;
        if (train->device == DEVICE_GPU) {
            return error_set(error, "--device=gpu:%d can't be used: %s; use --device=auto or --device=cpu",
                             train->device_index, also);
        }
        log_info("device     cpu: %s%s%s", also, probe.usable ? ": " : "", probe.usable ? probe.reason : "");
    }
    return cpu_engine_create(engine, options, error);
}
