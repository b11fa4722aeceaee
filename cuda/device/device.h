/*
 * One GPU that trains one model: state, data and kernels on it. It lives in the helper process (cuda/helper), which
 * alone loads the driver; nothing here knows of the process that is served.
 *
 * One thread uses a device. Every failure of the driver is an error of one message that names the call and CUDA's word
 * for it. After a failure that left the device unusable (device_lost) nothing but device_close may be called.
 */
#ifndef CUDA_DEVICE_DEVICE_H
#define CUDA_DEVICE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "cuda/device/driver.h"
#include "ps/store/optimizer.h"
#include "ps/store/store.h"

struct device;

/* What is trained; all of it plain values, so that it can be handed from process to process. */
struct device_shape {
    int32_t layer_count;               /* weight layers */
    int32_t widths[CONFIG_MAX_LAYERS]; /* layer_count + 1 of them */
    int32_t activation;                /* enum activation */
    int32_t optimizer;                 /* enum optimizer_kind */
    int32_t averages;                  /* 0 or 1: moving averages are kept */
    int32_t batch_size;                /* the most images of one batch */
    int32_t micro_batches;             /* how many such batches make a step */
    int32_t precision;                 /* enum precision: what operands of matrix products are rounded to */
    uint32_t host_layers;              /* bit l: layer l is computed by the CPU (host.h) */
    int32_t soft_precision;            /* 1: float32 where the GPU has no tensor cores for that; 0: an error */
    uint32_t first_task;               /* micro-batch i draws as task first_task + i */
    uint64_t seed;
    float label_smoothing;
    double dropout;
    double clip_norm;      /* of a batch's gradient (worker/clip.h); 0: no clipping */
    uint64_t memory_limit; /* bytes it may take on the device; 0: no bound of its own */
};

/*
 * float32: products and sums in float32, by fused multiply-adds. tf32, bfloat16: on tensor cores, which add up in float32
 * what is left of the operands after rounding (cuda/kernels/tensor.cuh); one kernel after the other then, for the
 * persistent one is made of float32 alone.
 */

/* Of one step or many, as worker/engine.h's train_result. */
struct device_outcome {
    int64_t steps, correct, images;
    double loss_sum, last_loss;
    int32_t finite;
    double bad_loss;
};

/*
 * Takes the device and the memory that shape needs, and chooses how it will run (device_describe). ordinal: among those
 * that the driver shows (driver_device_count). Parameters, slots and averages are zero until they are written. driver
 * stays borrowed until device_close.
 */
bool device_open(struct device **device, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error);
void device_close(struct device *device); /* NULL is fine */

/* "NVIDIA H200 (sm_90), driver CUDA 13.0, persistent kernel on 125 multiprocessors, float32" */
const char *device_describe(const struct device *device);

/* The shape's, or float32 in its place (soft_precision). */
int32_t device_precision(const struct device *device);

/* True once a call of the driver failed in a way that no further call can mend. */
bool device_lost(const struct device *device);

/* What train() draws from: images [count, widths[0]] uint8, labels [count]; copied to the device. */
bool device_data(struct device *device, const uint8_t *images, const int32_t *labels, int count, struct error *error);

/* Floats [first, first + count) of one vector, in the layout of ps/store/model.h. */
bool device_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error);
bool device_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error);

/*
 * n steps from first_step on; updates[i]: of step first_step + i, [0] of biases, [1] of weights (ps/store/store.h). Stops
 * before the update of a step whose loss is not finite, as engine_table.train does.
 */
bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error);

/*
 * The gradient of one batch at the present parameters into gradient [float_count], padding zero. images, labels: packed,
 * [count], 1..batch_size of them. ready (may be NULL): how many leading floats of the gradient are final, stored with
 * release order as they become so, for whoever sends them on meanwhile; it must be 0 before the call. gradient and ready
 * may lie in memory that device_share was called for.
 */
bool device_step(struct device *device, const uint8_t *images, const int32_t *labels, int count, uint32_t task,
                 int64_t step, float *gradient, _Atomic uint64_t *ready, struct device_outcome *outcome,
                 struct error *error);

/* Logits [count, classes] of images [count, widths[0]], any count. averaged: with the averages, if they are kept. */
bool device_forward(struct device *device, bool averaged, const uint8_t *images, int count, float *logits,
                    struct error *error);

/* Pins memory of the caller, so that copies from and to it need no stop on the way; a driver that refuses costs speed
 * only. It must stay where it is until device_close. */
void device_share(struct device *device, void *memory, size_t size);

#endif
