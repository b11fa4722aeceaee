/* A substitute driver for stand-ins of a device: it lists the devices that they define, and pins no memory. */
#ifndef TESTS_CUDA_PLAIN_DRIVER_H
#define TESTS_CUDA_PLAIN_DRIVER_H

#include "cuda/device/driver.h"

/* Defined by the stand-in. PLAIN_NO_DRIVER in the environment: there is no driver at all. */
extern const struct driver_device plain_devices[];
extern const int plain_device_count;

#endif
