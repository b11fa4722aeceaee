/*
 * libcuda, loaded at run time: the driver API functions that the GPU engine calls, and the devices.
 *
 * Nothing is linked against CUDA. The prototypes are our own, of the driver API's stable part (no cudart), so that this
 * compiles without a toolkit. One thread uses a driver.
 */
#ifndef CUDA_DEVICE_DRIVER_H
#define CUDA_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* The driver that the embedded kernels need: its CUDA version, as from cuDriverGetVersion, and in words. */
enum { DRIVER_NEEDED_CUDA = 13000 };
#define DRIVER_NEEDED "580"

struct driver;

struct driver_device {
    char name[128];
    char uuid[48]; /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    uint64_t memory_bytes;
    int major, minor; /* compute capability */
    int multiprocessors;
};

/*
 * Loads the library (NULL: "libcuda.so.1") and initialises it. The driver honours CUDA_VISIBLE_DEVICES. Errors: no
 * library, too old (names both versions), no device.
 */
bool driver_load(struct driver **driver, const char *path, struct error *error);
void driver_unload(struct driver *driver); /* after the last device_close; safe on NULL */

int driver_version(const struct driver *driver);      /* 13000: CUDA 13.0 */
int driver_device_count(const struct driver *driver); /* at least 1 */
bool driver_device(const struct driver *driver, int ordinal, struct driver_device *device, struct error *error);

#endif
