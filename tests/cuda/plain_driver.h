/* A driver that is none, for stand-ins of a device: it shows what they say there is, and pins no memory. */
#ifndef TESTS_CUDA_PLAIN_DRIVER_H
#define TESTS_CUDA_PLAIN_DRIVER_H

#include "cuda/device/driver.h"

/* Of the stand-in. PLAIN_NO_DRIVER in the environment: there is no driver at all. */
extern const struct driver_device plain_devices[];
extern const int plain_device_count;

#endif
