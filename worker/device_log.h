/* What --log_device_placement asks for: which job, task and device holds each variable and runs each operation. */
#ifndef WORKER_DEVICE_LOG_H
#define WORKER_DEVICE_LOG_H

#include "worker/engine.h"

/* device: of the engine, "gpu:0". Nothing unless the config wants it. */
void device_log(const struct engine_options *options, const char *device);

#endif
