/* libcuda by dlopen and dlsym, with errors that say what to install, update or unset. */
#include "cuda/device/driver.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device/state.h"

/* "cuMemAlloc: out of memory (CUDA_ERROR_OUT_OF_MEMORY)"; returns false. */
static bool driver_failed(const struct driver *driver, const char *call, cu_result result, struct error *error)
{
    const char *name = NULL;
    const char *text = NULL;
    if (driver->error_name(result, &name) != CU_SUCCESS || !name) {
        return error_set(error, "the NVIDIA driver: %s failed with error %d", call, result);
    }
    if (driver->error_string(result, &text) != CU_SUCCESS || !text) {
        text = "no explanation";
    }
    return error_set(error, "the NVIDIA driver: %s: %s (%s)", call, text, name);
}

/* Stores a function's address through an object pointer, as POSIX requires for dlsym. */
static void *find(void *library, const char *symbol)
{
    return dlsym(library, symbol);
}

#define WANTED(name, symbol, parameters) {#symbol, offsetof(struct driver, name)},

static bool find_all(struct driver *driver, struct error *error)
{
    static const struct {
        const char *symbol;
        size_t field;
    } wanted[] = {CUDA_DRIVER_FUNCTIONS(WANTED)};
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        void *found = find(driver->library, wanted[i].symbol);
        if (!found) {
            return error_set(error, "the NVIDIA driver's library lacks %s: reinstall the driver, or use --device=cpu",
                             wanted[i].symbol);
        }
        memcpy((char *)driver + wanted[i].field, &found, sizeof found);
    }
    return true;
}

/* Called first: an older library may lack functions. */
static bool check_version(struct driver *driver, struct error *error)
{
    cu_result (*ask)(int *version);
    void *found = find(driver->library, "cuDriverGetVersion");
    if (!found) {
        return error_set(error, "the NVIDIA driver's library is not libcuda: it lacks cuDriverGetVersion");
    }
    memcpy(&ask, &found, sizeof ask);
    if (ask(&driver->version) != CU_SUCCESS) {
        return error_set(error, "the NVIDIA driver does not report its version: reinstall it, or use --device=cpu");
    }
    if (driver->version < DRIVER_NEEDED_CUDA) {
        return error_set(error,
                         "the NVIDIA driver is too old: it supports CUDA %d.%d, but the GPU engine needs CUDA %d.%d "
                         "(driver " DRIVER_NEEDED " or newer): update the driver, or use --device=cpu",
                         driver->version / 1000, driver->version % 1000 / 10, DRIVER_NEEDED_CUDA / 1000,
                         DRIVER_NEEDED_CUDA % 1000 / 10);
    }
    return true;
}

static bool no_device(struct error *error)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible) {
        return error_set(error,
                         "the NVIDIA driver shows no GPU with CUDA_VISIBLE_DEVICES='%.200s': unset or change it, or "
                         "use --device=cpu",
                         visible);
    }
    return error_set(error, "the NVIDIA driver finds no GPU: use --device=cpu");
}

static bool initialise(struct driver *driver, struct error *error)
{
    cu_result result = driver->init(0);
    if (result == CU_NO_DEVICE) {
        return no_device(error);
    }
    if (result != CU_SUCCESS) {
        return driver_failed(driver, "cuInit", result, error);
    }
    result = driver->device_count(&driver->count);
    if (result != CU_SUCCESS) {
        return driver_failed(driver, "cuDeviceGetCount", result, error);
    }
    return driver->count > 0 || no_device(error);
}

bool driver_load(struct driver **out, const char *path, struct error *error)
{
    struct driver *driver = calloc(1, sizeof *driver);
    if (!driver) {
        return error_set(error, "out of memory while loading the NVIDIA driver");
    }
    driver->library = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver->library) {
        const char *why = dlerror();
        free(driver);
        return error_set(error, "no NVIDIA driver: %s: install it, or use --device=cpu", why ? why : "no libcuda.so.1");
    }
    if (!check_version(driver, error) || !find_all(driver, error) || !initialise(driver, error)) {
        driver_unload(driver);
        return false;
    }
    *out = driver;
    return true;
}

void driver_unload(struct driver *driver)
{
    if (driver) {
        dlclose(driver->library);
        free(driver);
    }
}

int driver_version(const struct driver *driver)
{
    return driver->version;
}

int driver_device_count(const struct driver *driver)
{
    return driver->count;
}

static void format_uuid(const cu_uuid *uuid, char *text, size_t size)
{
    unsigned char b[16];
    memcpy(b, uuid->bytes, sizeof b);
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

bool driver_device(const struct driver *driver, int ordinal, struct driver_device *device, struct error *error)
{
    cu_device handle;
    cu_uuid uuid;
    size_t bytes = 0;
    *device = (struct driver_device){.name = ""};
    if (ordinal < 0 || ordinal >= driver->count) {
        return error_set(error, "there is no gpu:%d: the NVIDIA driver shows %d GPU%s", ordinal, driver->count,
                         driver->count == 1 ? "" : "s");
    }
    cu_result result = driver->device_get(&handle, ordinal);
    if (result == CU_SUCCESS) {
        result = driver->device_name(device->name, (int)sizeof device->name, handle);
    }
    if (result == CU_SUCCESS) {
        result = driver->device_uuid(&uuid, handle);
    }
    if (result == CU_SUCCESS) {
        result = driver->device_memory(&bytes, handle);
    }
    const struct {
        int attribute;
        int *value;
    } wanted[] = {{CU_ATTRIBUTE_MAJOR, &device->major},
                  {CU_ATTRIBUTE_MINOR, &device->minor},
                  {CU_ATTRIBUTE_MULTIPROCESSORS, &device->multiprocessors}};
    for (size_t i = 0; result == CU_SUCCESS && i < sizeof wanted / sizeof *wanted; i++) {
        result = driver->device_attribute(wanted[i].value, wanted[i].attribute, handle);
    }
    if (result != CU_SUCCESS) {
        return driver_failed(driver, "asking for a device's properties", result, error);
    }
    device->memory_bytes = bytes;
    format_uuid(&uuid, device->uuid, sizeof device->uuid);
    return true;
}

bool device_failed(struct device *device, const char *call, cu_result result, struct error *error)
{
    /* Errors that affect only one call. All others, above all a kernel's fault, stay with the context. */
    bool passing = result == CU_OUT_OF_MEMORY || result == CU_INVALID_VALUE || result == CU_NOT_FOUND ||
                   result == CU_NOT_SUPPORTED || result == CU_LAUNCH_OUT_OF_RESOURCES ||
                   result == CU_COOPERATIVE_LAUNCH_TOO_LARGE;
    device->lost = device->lost || !passing;
    char name[64];
    snprintf(name, sizeof name, "%.60s", call);
    (void)driver_failed(device->driver, name, result, error);
    return error_wrap(error, "%s", device->about.name);
}
