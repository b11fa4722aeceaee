/*
 * Layers of an open device that the host computes: train.placement has them on the CPU. Their parameters, slots and
 * averages are in the host's memory alone; their passes and their update run on the thread that uses the device, by plain
 * loops. All other layers are the device's. Between the two, activations and deltas are copied with every batch, and the
 * host waits for them: a placement by hand is for trying out and for comparing, not for speed.
 *
 * What the CPU computes is float32, whatever the device's precision.
 */
#ifndef CUDA_DEVICE_HOST_H
#define CUDA_DEVICE_HOST_H

#include "cuda/device/state.h"

/* For device->network.host_layers, if there are any; device->host stays NULL otherwise. After memory_take. */
bool host_create(struct device *device, struct error *error);
void host_destroy(struct device *device);

/* What train() draws from, for a first layer that is the host's; copied. [count, widths[0]] */
bool host_data(struct device *device, const uint8_t *images, int count, struct error *error);

/* Floats [first, first + count) of a vector: those of the host's layers, to or from values. */
void host_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values);
void host_read(const struct device *device, enum store_vector vector, size_t first, size_t count, float *values);

/* The forward pass of `count` images that have been drawn; given: these, packed; NULL: those drawn from the data. */
bool host_forward(struct device *device, struct kernel_network *network, struct kernel_source *source,
                  const uint8_t *given, int count, bool training, struct error *error);

/* From the draw to the deltas of all layers; then device->progress is known. */
bool host_batch(struct device *device, struct kernel_source *source, const uint8_t *given, struct error *error);

/* The gradients of all layers: the device's as launch_gradient's mode says, the host's likewise into memory of its own. */
bool host_gradients(struct device *device, struct kernel_source *source, const uint8_t *given, int mode, float weight,
                    struct error *error);

/* Brings the host's gradients to the others on the device. */
bool host_send_gradients(struct device *device, struct error *error);

/* One whole step of training. */
bool host_step(struct device *device, struct error *error);

#endif
