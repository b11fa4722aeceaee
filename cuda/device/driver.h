/*
 * libcuda, found at run time: the functions of the driver API that the GPU engine calls, and which devices it shows.
 *
 * Nothing is linked against CUDA. The prototypes are our own, of the driver API's stable part (no cudart), so that no
 * toolkit is needed to compile this. One thread uses a driver.
 */
#ifndef CUDA_DEVICE_DRIVER_H
#define CUDA_DEVICE_DRIVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* What the kernels in the binary need: the driver's CUDA version as cuDriverGetVersion gives it, and in words. */
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
 * Loads the library (NULL: "libcuda.so.1") and initialises it. CUDA_VISIBLE_DEVICES in the environment decides, as the
 * driver reads it, which devices there are. Errors: no such library, one too old (both versions named), no device.
 */
bool driver_load(struct driver **driver, const char *path, struct error *error);
void driver_unload(struct driver *driver); /* after the last device_close; NULL is fine */

int driver_version(const struct driver *driver);      /* 13000: CUDA 13.0 */
int driver_device_count(const struct driver *driver); /* at least 1 */
bool driver_device(const struct driver *driver, int ordinal, struct driver_device *device, struct error *error);

#endif
