/*
 * Layers of an open device that train.placement puts on the CPU. Their parameters, slots and averages are only in host
 * memory; their passes and updates run on the thread that uses the device, as plain loops. All other layers run on the
 * device. Activations and deltas are copied between the two with every batch, and the host waits for them: manual
 * placement is for experiments and comparisons, not for speed.
 *
 * The CPU computes in float32, whatever the device's precision.
 */
#ifndef CUDA_DEVICE_HOST_H
#define CUDA_DEVICE_HOST_H

#include "cuda/device/state.h"

/* Sets up device->network.host_layers; device->host stays NULL if there are none. After memory_take. */
bool host_create(struct device *device, struct error *error);
void host_destroy(struct device *device);

/* The training images, for a first layer on the host; copied. [count, widths[0]]; NULL: rows of a table. */
bool host_data(struct device *device, const uint8_t *images, int count, struct error *error);

/* Copies the host layers' part of floats [first, first + count) of a vector to or from values. */
void host_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values);
void host_read(const struct device *device, enum store_vector vector, size_t first, size_t count, float *values);

/*
 * The forward pass of `count` examples. given: the images, packed; NULL: those drawn from the training set, or table
 * rows that the device has written out.
 */
bool host_forward(struct device *device, struct kernel_network *network, struct kernel_source *source,
                  const uint8_t *given, int count, bool training, struct error *error);

/* From the draw to the deltas of all layers; sets device->progress. */
bool host_batch(struct device *device, struct kernel_source *source, const uint8_t *given, struct error *error);

/* The gradients of all layers: the device's by launch_gradient's mode, the host's likewise into its own memory. */
bool host_gradients(struct device *device, struct kernel_source *source, const uint8_t *given, int mode, float weight,
                    struct error *error);

/* Copies the host's gradients to the others on the device. */
bool host_send_gradients(struct device *device, struct error *error);

/* One whole step of training. */
bool host_step(struct device *device, struct error *error);

#endif
