/*
 * A device that computes trivial results, fast, and fails on demand: for tests of the processes and of the memory
 * between them. Linked with cuda/helper in place of cuda/device and the driver.
 *
 * Training adds the learning rate of each step's update to every parameter. The gradient of a batch is, at float i, the
 * first image's first pixel plus i. Logits are an image's pixel sum plus the class. The shape's seed selects the fault,
 * which occurs in step FAULT_STEP.
 */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/device/device.h"
#include "tests/cuda/plain_driver.h"
#include "tests/cuda/standin.h"

struct device {
    struct device_shape shape;
    float *vectors[STORE_VECTORS];
    bool lost;
    int examples;
    uint64_t data_sum;
};

const struct driver_device plain_devices[] = {
    {.name = "Stand-in 0", .uuid = "GPU-0", .memory_bytes = 1 << 30, .major = 9, .minor = 0, .multiprocessors = 4},
    {.name = "Stand-in 1", .uuid = "GPU-1", .memory_bytes = 1 << 30, .major = 9, .minor = 1, .multiprocessors = 4},
};
const int plain_device_count = 2;

bool device_open(struct device **out, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error)
{
    (void)driver;
    if (ordinal > 1) {
        return error_set(error, "there is no device %d", ordinal);
    }
    struct device *device = calloc(1, sizeof *device);
    device->shape = *shape;
    for (int v = 0; v < STORE_VECTORS; v++) {
        device->vectors[v] = calloc(STANDIN_FLOATS, sizeof(float));
    }
    *out = device;
    return true;
}

void device_close(struct device *device)
{
    for (int v = 0; device && v < STORE_VECTORS; v++) {
        free(device->vectors[v]);
    }
    free(device);
}

const char *device_describe(const struct device *device)
{
    (void)device;
    return "stand-in";
}

int32_t device_precision(const struct device *device)
{
    return device->shape.precision;
}

bool device_lost(const struct device *device)
{
    return device->lost;
}

bool device_data(struct device *device, const struct device_examples *examples, struct error *error)
{
    const uint8_t *images = examples->arrays[DEVICE_IMAGES];
    const int32_t *labels = examples->arrays[DEVICE_LABELS];
    (void)error;
    device->examples = examples->count;
    for (int i = 0; i < examples->count; i++) {
        device->data_sum += images[(size_t)i * (size_t)device->shape.widths[0]] + (uint64_t)labels[i];
    }
    return true;
}

bool device_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error)
{
    (void)error;
    memcpy(device->vectors[vector] + first, values, count * sizeof *values);
    return true;
}

bool device_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error)
{
    (void)error;
    memcpy(values, device->vectors[vector] + first, count * sizeof *values);
    return true;
}

static bool misbehave(struct device *device, struct error *error)
{
    switch (device->shape.seed) {
    case STANDIN_HANGS:
        for (;;) {
            sleep(1);
        }
    case STANDIN_CRASHES:
        signal(SIGSEGV, SIG_DFL);
        raise(SIGSEGV);
        return true;
    case STANDIN_LOSES:
        device->lost = true;
        return error_set(error, "the device is lost");
    case STANDIN_FAILS:
        return error_set(error, "the device ran out of memory for that");
    case STANDIN_LEAVES:
        _exit(3);
    default:
        return true;
    }
}

bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error)
{
    *outcome = (struct device_outcome){.finite = 1};
    for (int i = 0; i < n; i++) {
        if (first_step + i == STANDIN_FAULT_STEP && !misbehave(device, error)) {
            return false;
        }
        for (size_t k = 0; k < STANDIN_FLOATS; k++) {
            device->vectors[STORE_PARAMETERS][k] += updates[i][1].learning_rate;
        }
        outcome->steps++;
        outcome->images += device->shape.batch_size;
        outcome->loss_sum += (double)device->data_sum;
    }
    return true;
}

bool device_step(struct device *device, const struct device_batch *batch, float *gradient, _Atomic uint64_t *ready,
                 struct device_outcome *outcome, struct error *error)
{
    const uint8_t *images = batch->examples.arrays[DEVICE_IMAGES];
    const int32_t *labels = batch->examples.arrays[DEVICE_LABELS];
    if (batch->step == STANDIN_FAULT_STEP && !misbehave(device, error)) {
        return false;
    }
    for (size_t i = 0; i < STANDIN_FLOATS; i++) {
        gradient[i] = (float)images[0] + (float)i;
        if (ready && i % 16 == 15) {
            atomic_store(ready, i + 1);
        }
    }
    *outcome = (struct device_outcome){.steps = 1, .images = batch->examples.count, .finite = 1, .correct = labels[0]};
    return true;
}

bool device_forward(struct device *device, bool averaged, const struct device_examples *examples, float *outputs,
                    struct error *error)
{
    const uint8_t *images = examples->arrays[DEVICE_IMAGES];
    (void)error;
    int pixels = device->shape.widths[0], classes = device->shape.widths[device->shape.layer_count];
    for (int i = 0; i < examples->count; i++) {
        int sum = averaged ? 1000 : 0;
        for (int p = 0; p < pixels; p++) {
            sum += images[(size_t)i * (size_t)pixels + (size_t)p];
        }
        for (int c = 0; c < classes; c++) {
            outputs[(size_t)i * (size_t)classes + (size_t)c] = (float)(sum + c);
        }
    }
    return true;
}
