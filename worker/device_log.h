/* The report of --log_device_placement: which job, task and device holds each variable and runs each operation. */
#ifndef WORKER_DEVICE_LOG_H
#define WORKER_DEVICE_LOG_H

#include "worker/engine.h"

/* device: the engine's, "gpu:0". Does nothing unless the config asks for it. */
void device_log(const struct engine_options *options, const char *device);

#endif
