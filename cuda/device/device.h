/*
 * One GPU that trains one model: state, data and kernels on it. It lives in the helper process (cuda/helper), the only
 * one that loads the driver; nothing here knows about the client process.
 *
 * One thread uses a device. Every failure of the driver is an error that names the call and CUDA's error. After a
 * failure that left the device unusable (device_lost) nothing but device_close may be called.
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

/* The model and how to train it; plain values only, so that it can be passed between processes. */
struct device_shape {
    int32_t layer_count;               /* weight layers */
    int32_t widths[CONFIG_MAX_LAYERS]; /* layer_count + 1 of them */
    int32_t activation;                /* enum activation */
    int32_t optimizer;                 /* enum optimizer_kind */
    int32_t averages;                  /* 1: keep moving averages */
    int32_t batch_size;                /* largest batch, in images */
    int32_t micro_batches;             /* batches per step */
    int32_t precision;                 /* enum precision: rounding of matrix operands */
    uint32_t host_layers;              /* bit l: layer l is computed by the CPU (host.c) */
    int32_t soft_precision;            /* 1: fall back to float32 on GPUs without tensor cores for it; 0: fail */
    uint32_t first_task;               /* micro-batch i draws as task first_task + i */
    uint64_t seed;
    int32_t numbers, codes; /* of rows, as in worker/data/examples.h; both 0: pictures */
    int32_t targets;        /* target values per example; 0: a label */
    int32_t weighted;       /* 1: examples have weights */
    int32_t loss;           /* enum loss_kind, of target values; labels have softmax */
    float huber_delta, quantile;
    float label_smoothing;
    double dropout;
    double clip_norm;      /* of a batch's gradient (worker/cpu/engine.h); 0: no clipping */
    uint64_t memory_limit; /* bytes it may use on the device; 0: no limit */
};

/* The arrays that examples consist of. A shape has either pictures or rows, and either labels or target values. */
enum device_array {
    DEVICE_IMAGES,  /* uint8 [count, widths[0]] */
    DEVICE_VALUES,  /* float [count, numbers]: of rows, the first inputs */
    DEVICE_PLACES,  /* int32 [count, codes]: of rows, which inputs after the numbers are 1; -1: none */
    DEVICE_LABELS,  /* int32 [count] */
    DEVICE_TARGETS, /* float [count, targets] */
    DEVICE_WEIGHTS, /* float [count] */
    DEVICE_ARRAYS
};

/* The arrays that a forward pass reads come first. */
enum { DEVICE_INPUT_ARRAYS = DEVICE_LABELS };

/* Bytes of one example in an array; 0: the shape has no such array. */
static inline uint64_t device_example_bytes(const struct device_shape *shape, int array)
{
    const bool rows = shape->numbers > 0 || shape->codes > 0;
    const uint64_t bytes[DEVICE_ARRAYS] = {[DEVICE_IMAGES] = rows ? 0 : (uint64_t)shape->widths[0],
                                           [DEVICE_VALUES] = (uint64_t)shape->numbers * sizeof(float),
                                           [DEVICE_PLACES] = (uint64_t)shape->codes * sizeof(int32_t),
                                           [DEVICE_LABELS] = shape->targets > 0 ? 0 : sizeof(int32_t),
                                           [DEVICE_TARGETS] = (uint64_t)shape->targets * sizeof(float),
                                           [DEVICE_WEIGHTS] = shape->weighted ? sizeof(float) : 0};
    return bytes[array];
}

/* Examples of a shape, borrowed: its arrays, packed; NULL where it has none. A forward pass takes only the inputs. */
struct device_examples {
    const void *arrays[DEVICE_ARRAYS];
    int count;
};

/* Examples [first, first + count) in the same memory. */
static inline struct device_examples device_examples_part(const struct device_shape *shape,
                                                          const struct device_examples *examples, int first, int count)
{
    struct device_examples part = {.count = count};
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        const char *array = examples->arrays[i];
        part.arrays[i] = array ? array + (uint64_t)first * device_example_bytes(shape, i) : NULL;
    }
    return part;
}

/*
 * float32: products and sums in float32, by fused multiply-adds. tf32, bfloat16: tensor cores multiply rounded operands
 * and accumulate in float32 (cuda/kernels/dense.cuh), as separate kernels, since the persistent one is float32 only.
 */

/* The outcome of one or more steps, as worker/engine.h's train_result. */
struct device_outcome {
    int64_t steps, correct, images;
    double loss_sum, last_loss;
    int32_t finite;
    double bad_loss;
};

/*
 * Opens the device, allocates the memory that the shape needs, and chooses how to run (device_describe). ordinal: below
 * driver_device_count. Parameters, slots and averages start at zero. driver is borrowed until device_close.
 */
bool device_open(struct device **device, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error);
void device_close(struct device *device); /* safe on NULL */

/* "NVIDIA H200 (sm_90), driver CUDA 13.0, persistent kernel on 125 multiprocessors, float32" */
const char *device_describe(const struct device *device);

/* The precision in use: the shape's, or float32 instead (soft_precision). */
int32_t device_precision(const struct device *device);

/* True once a driver call has failed permanently. */
bool device_lost(const struct device *device);

/* The training set, all of the shape's arrays; copied to the device. */
bool device_data(struct device *device, const struct device_examples *examples, struct error *error);

/* Reads or writes floats [first, first + count) of one vector, in the layout of ps/store/model.h. */
bool device_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error);
bool device_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error);

/*
 * Trains n steps from first_step; updates[i]: of step first_step + i, [0] of biases, [1] of weights (ps/store/store.h).
 * Stops before the update of a step whose loss is not finite, as engine_table.train does.
 */
bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error);

/* A batch that the host drew, borrowed. */
struct device_batch {
    struct device_examples examples; /* 1..batch_size of them */
    uint32_t task;                   /* dropout's task number */
    int64_t step;
};

/*
 * Computes the gradient of one batch at the current parameters into gradient [float_count], padding zero. ready (may be
 * NULL): number of leading floats of the gradient that are final, stored with release order as it grows, so that they
 * can be sent meanwhile; must be 0 before the call. gradient and ready may lie in memory passed to device_share.
 */
bool device_step(struct device *device, const struct device_batch *batch, float *gradient, _Atomic uint64_t *ready,
                 struct device_outcome *outcome, struct error *error);

/*
 * Computes the last layer's outputs, [count, widths[layer_count]], before any loss, of any number of examples, of which
 * only the inputs are read. averaged: with the moving averages, if kept.
 */
bool device_forward(struct device *device, bool averaged, const struct device_examples *examples, float *outputs,
                    struct error *error);

/*
 * Pins the caller's memory, so that copies need no staging; a driver that refuses only costs speed. The memory must
 * stay valid until device_close.
 */
void device_share(struct device *device, void *memory, size_t size);

#endif
