/* Opens and closes a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device/host.h"
#include "cuda/device/state.h"

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

bool device_lost(const struct device *device)
{
    return device->lost;
}

const char *device_describe(const struct device *device)
{
    return device->description;
}

static const char *precision_name(int32_t precision)
{
    return precision == PRECISION_TF32 ? "tf32" : precision == PRECISION_BFLOAT16 ? "bfloat16" : "float32";
}

int32_t device_precision(const struct device *device)
{
    return device->shape.precision;
}

static bool check_shape(const struct device_shape *shape, struct error *error)
{
    bool fine = shape->layer_count >= 1 && shape->layer_count < CONFIG_MAX_LAYERS && shape->batch_size >= 1 &&
                shape->micro_batches >= 1 && shape->precision >= PRECISION_FLOAT32 &&
                shape->precision <= PRECISION_BFLOAT16 && shape->optimizer >= 0 && shape->optimizer < OPTIMIZER_KINDS &&
                shape->numbers >= 0 && shape->codes >= 0 && shape->targets >= 0;
    for (int i = 0; fine && i <= shape->layer_count; i++) {
        fine = shape->widths[i] >= 1 && shape->widths[i] <= (i == 0 ? CONFIG_MAX_INPUTS : CONFIG_MAX_WIDTH);
    }
    fine = fine && shape->numbers <= shape->widths[0] && shape->codes <= shape->widths[0] &&
           (shape->targets == 0 || shape->targets == shape->widths[shape->layer_count]);
    if (!fine) {
        return error_set(error, "bug: the GPU engine got a model that no config allows");
    }
    return true;
}

/* Tensor cores support these formats since compute capability 8.0. */
static bool choose_precision(struct device *device, struct error *error)
{
    const struct driver_device *about = &device->about;
    struct device_shape *shape = &device->shape;
    if (shape->precision == PRECISION_FLOAT32 || about->major >= 8) {
        return true;
    }
    if (shape->soft_precision) {
        shape->precision = PRECISION_FLOAT32;
        return true;
    }
    return error_set(error,
                     "%s has compute capability %d.%d, and precision %s needs 8.0 or newer: use --precision=float32",
                     about->name, about->major, about->minor, precision_name(shape->precision));
}

static void lay_out(struct device *device)
{
    const struct device_shape *shape = &device->shape;
    const bool rows = shape->numbers > 0 || shape->codes > 0;
    struct config_model config = {.layer_count = shape->layer_count + 1,
                                  .activation = (enum activation)shape->activation};
    memcpy(config.layers, shape->widths, sizeof config.layers);
    model_layout(&device->model, &config);
    device->network = (struct kernel_network){
        .layers = shape->layer_count,
        .activation = shape->activation,
        .precision = shape->precision,
        .host_layers = shape->host_layers,
        .loss = {.kind = shape->loss,
                 .targets = shape->targets,
                 .smoothing = shape->label_smoothing,
                 .huber_delta = shape->huber_delta,
                 .quantile = shape->quantile},
        .rows = {.numbers = shape->numbers, .codes = shape->codes, .pitch = rows ? (shape->widths[0] + 3) / 4 * 4 : 0},
        .micro_batches = shape->micro_batches,
        .clip_norm = shape->clip_norm,
        .dropout = dropout_make(shape->seed, shape->dropout),
        .image_stride = rows ? 0 : memory_image_stride(shape->widths[0])};
}

static bool take_context(struct device *device, struct error *error)
{
    DEVICE_TRY(device, error, context_retain, (&device->context, device->handle));
    DEVICE_TRY(device, error, context_set, (device->context));
    DEVICE_TRY(device, error, stream_create, (&device->stream, CU_STREAM_OWN_ORDER));
    DEVICE_TRY(device, error, stream_create, (&device->copying, CU_STREAM_OWN_ORDER));
    DEVICE_TRY(device, error, event_create, (&device->known, CU_EVENT_WITHOUT_TIMING));
    for (int i = 0; i < DEVICE_CHUNKS; i++) {
        DEVICE_TRY(device, error, event_create, (&device->computed[i], CU_EVENT_WITHOUT_TIMING));
        DEVICE_TRY(device, error, event_create, (&device->copied[i], CU_EVENT_WITHOUT_TIMING));
    }
    return true;
}

static void describe(struct device *device, const char *reason)
{
    const struct driver_device *about = &device->about;
    char how[160];
    if (device->sharded) {
        snprintf(how, sizeof how, "persistent kernel on %d of %d multiprocessors", device->shards.blocks,
                 about->multiprocessors);
    } else {
        snprintf(how, sizeof how, "%s (%s)", device->host ? "single kernels" : "CUDA graph of kernels", reason);
    }
    snprintf(device->description, sizeof device->description, "%s (sm_%d%d), driver for CUDA %d.%d, %s, %s",
             about->name, about->major, about->minor, device->driver->version / 1000,
             device->driver->version % 1000 / 10, how, precision_name(device->shape.precision));
}

bool device_open(struct device **out, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error)
{
    const char *reason = NULL;
    struct device *device = calloc(1, sizeof *device);
    if (!device) {
        return error_set(error, "out of memory for the GPU engine");
    }
    device->driver = driver;
    device->shape = *shape;
    device->allowed = shape->memory_limit;
    if (!check_shape(shape, error) || !driver_device(driver, ordinal, &device->about, error) ||
        !choose_precision(device, error)) {
        free(device);
        return false;
    }
    lay_out(device);
    cu_result result = driver->device_get(&device->handle, ordinal);
    if (result != CU_SUCCESS) {
        (void)device_failed(device, "cuDeviceGet", result, error);
    } else if (take_context(device, error) && launch_load(device, error) && launch_plan(device, &reason, error) &&
               memory_take(device, error) && host_create(device, error)) {
        describe(device, reason);
        *out = device;
        return true;
    }
    device_close(device);
    return false;
}

void device_close(struct device *device)
{
    if (!device) {
        return;
    }
    /* On a lost device each of these fails; nothing can be done about it. */
    const struct driver *driver = device->driver;
    if (device->stream) {
        driver->stream_wait(device->stream);
    }
    memory_release(device);
    host_destroy(device);
    for (int i = 0; i < DEVICE_GRAPHS; i++) {
        if (device->graphs[i]) {
            driver->graph_exec_destroy(device->graphs[i]);
        }
    }
    for (int i = 0; i < DEVICE_CHUNKS; i++) {
        if (device->computed[i]) {
            driver->event_destroy(device->computed[i]);
        }
        if (device->copied[i]) {
            driver->event_destroy(device->copied[i]);
        }
    }
    if (device->known) {
        driver->event_destroy(device->known);
    }
    if (device->copying) {
        driver->stream_destroy(device->copying);
    }
    if (device->stream) {
        driver->stream_destroy(device->stream);
    }
    if (device->module) {
        driver->module_unload(device->module);
    }
    if (device->context) {
        driver->context_release(device->handle);
    }
    free(device);
}

void device_share(struct device *device, void *memory, size_t size)
{
    int able = 0;
    const struct driver *driver = device->driver;
    if (device->pinned_count == DEVICE_SHARED ||
        driver->device_attribute(&able, CU_ATTRIBUTE_HOST_REGISTER, device->handle) != CU_SUCCESS || !able) {
        return;
    }
    if (driver->host_register(memory, size, 0) == CU_SUCCESS) {
        device->pinned[device->pinned_count++] = memory;
    }
}
