/* The driver of a helper without a GPU: one device that always works. */
#include "tests/cuda/plain_driver.h"

#include <stdlib.h>

#include "cuda/device/device.h"

struct driver {
    int unused;
};

static struct driver the_driver;

bool driver_load(struct driver **driver, const char *path, struct error *error)
{
    (void)path;
    if (getenv("PLAIN_NO_DRIVER")) {
        return error_set(error, "there is no driver here");
    }
    *driver = &the_driver;
    return true;
}

void driver_unload(struct driver *driver)
{
    (void)driver;
}

int driver_version(const struct driver *driver)
{
    (void)driver;
    return 13000;
}

int driver_device_count(const struct driver *driver)
{
    (void)driver;
    return plain_device_count;
}

bool driver_device(const struct driver *driver, int ordinal, struct driver_device *device, struct error *error)
{
    (void)driver;
    (void)error;
    *device = plain_devices[ordinal < plain_device_count ? ordinal : plain_device_count - 1];
    return true;
}

void device_share(struct device *device, void *memory, size_t size)
{
    (void)device;
    (void)memory;
    (void)size;
}
