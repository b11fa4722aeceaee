/*
 * Kernel parameters: plain C structs that gcc and nvcc lay out alike. Pointers are device pointers.
 *
 * The parameters, slots and averages are flat vectors in the layout of ps/store/model.h. A batch's matrices have one
 * row per example, `pitch` floats apart.
 */
#ifndef CUDA_KERNELS_PARAMS_H
#define CUDA_KERNELS_PARAMS_H

#include <stdint.h>

#include "base/config/kinds.h"
#include "ps/store/optimizer.h"
#include "base/random/dropout.h"
#include "base/random/sampler.h"

enum {
    KERNEL_LAYERS = CONFIG_MAX_LAYERS - 1,
    KERNEL_IMAGE_ALIGN =
        16, /* images are padded to an odd multiple of this, so that 16-byte reads have no bank conflicts */
    KERNEL_WARP = 32,
    KERNEL_BLOCK_THREADS = 256, /* of kernels other than matrix products and sharded training */
};

#define FLOAT_2_23 0x4b000000u /* 2^23 as a float */

struct kernel_layer {
    int32_t in, out;
    int32_t stride;             /* floats from one row of weights to the next */
    int32_t pitch;              /* floats from one row of the matrices below to the next */
    uint64_t weights, biases;   /* where they begin in the vectors */
    float *activations;         /* [batch, out]: hidden layers' outputs; the last layer's, before the loss */
    float *outputs;             /* after dropout; without it, the same memory */
    float *deltas;              /* [batch, out]: gradients of the pre-activations */
    const float *below;         /* [batch, in]: what it reads, the layer below's activations; NULL: images */
    const float *below_trained; /* the same in training: after dropout */
    int32_t below_pitch, padding;
};

struct kernel_vectors {
    float *parameters, *slot0, *slot1, *averages; /* NULL: none */
};

/* The progress of a call of train or step, kept on the device and read by the host at its end. */
struct kernel_progress {
    int64_t first_step; /* set by the host, which zeroes the rest */
    int64_t step;       /* current */
    uint32_t task;      /* of the current batch */
    int32_t count;      /* its images */
    int32_t stopped;    /* the loss was not finite: later kernels do nothing */
    uint32_t ticket;    /* blocks that have finished a kernel; returns to 0 */
    int64_t steps, correct, images;
    double loss_sum, last_loss, bad_loss;
    float factor; /* clipping factor of the batch's gradient */
    int32_t padding;
};

/* The loss on the last layer's outputs. */
struct kernel_loss {
    int32_t kind;    /* enum loss_kind, of target values */
    int32_t targets; /* per example; 0: it has a label, and softmax */
    float smoothing, huber_delta, quantile;
};

/* Rows of a table are written out as a matrix, batch by batch, which the first layer reads. */
struct kernel_rows {
    int32_t numbers, codes;
    int32_t pitch; /* floats from one row to the next */
    float *inputs; /* [batch, inputs]; NULL: pictures */
};

/* A network and its working memory; passed to every kernel by value. */
struct kernel_network {
    int32_t layers;
    int32_t activation; /* enum activation */
    int32_t precision;  /* enum precision, of the matrix products */
    struct kernel_loss loss;
    struct kernel_rows rows;
    int32_t micro_batches;
    struct kernel_layer layer[KERNEL_LAYERS];
    struct kernel_vectors vectors;
    float *gradient; /* [parts][part_floats], a part each of [float_count]; padding is never written */
    uint64_t part_floats;
    float *collected; /* [float_count]: sum over micro-batches, if gradients are clipped first */
    double *squares;  /* [rows of all variables]: sums of squares of the gradient's rows */
    double clip_norm; /* 0: no clipping */
    struct dropout dropout;
    int32_t image_stride; /* bytes */
    int32_t parts;        /* of the gradient, each from a part of the batch; 1 unless updates follow at once */
    uint32_t host_layers; /* bit l: layer l is on the host (cuda/device/host.c) */
    int32_t *indexes;     /* [batch]: examples of the current batch */
    float *losses;        /* [batch] */
    int32_t *correct;     /* [batch]: 0 or 1 */
    struct kernel_progress *progress;
    const struct update *updates; /* [steps][2], from first_step on */
};

/* Examples, array by array (enum device_array; NULL where there is none), and how to form a batch. */
struct kernel_source {
    const uint8_t *images; /* [examples, image_stride] */
    const float *values;   /* [examples, numbers] */
    const int32_t *places; /* [examples, codes] */
    const int32_t *labels; /* [examples] */
    const float *targets;  /* [examples, targets] */
    const float *weights;  /* [examples] */
    struct sampler sampler;
    int32_t given; /* not 0: the batch is the first `given` examples, in order; 0: the sampler draws it */
    int32_t micro; /* which of the step's batches */
};

/* What a kernel does with a gradient. */
enum kernel_gradient {
    GRADIENT_UPDATE, /* update the parameters at once */
    GRADIENT_STORE,  /* store weight x gradient in the network's gradient, or in a part of it */
    GRADIENT_ADD,    /* add weight x gradient to it */
};

/* What a pass over the whole network's gradient does. */
enum kernel_apply {
    APPLY_GRADIENT,     /* update the parameters */
    APPLY_PARTS,        /* add up the parts, then update */
    APPLY_CLIPPED,      /* clip, then update */
    APPLY_COLLECTED,    /* update from the collected sum */
    CLIP_COLLECT_FIRST, /* clip, then start the collected sum with weight x gradient */
    CLIP_COLLECT,       /* clip, then add weight x gradient to it */
    CLIP_IN_PLACE,      /* clip in place */
};

/* Output tiles of matrix products; square. TILE_TENSOR: for every precision but float32. */
enum kernel_tile { TILE_SMALL, TILE_MEDIUM, TILE_LARGE, TILE_TENSOR, TILES };

/*
 * Tile sides, and dynamic shared memory per block (cuda/kernels/dense.cuh). Threads: KERNEL_BLOCK_THREADS.
 */
enum {
    KERNEL_SMALL_TILE = 32,
    KERNEL_SMALL_BYTES = 36864,
    KERNEL_MEDIUM_TILE = 64,
    KERNEL_MEDIUM_BYTES = 17408,
    KERNEL_LARGE_TILE = 128,
    KERNEL_LARGE_BYTES = 32768,
    KERNEL_TENSOR_TILE = 64,
    KERNEL_TENSOR_BYTES = 18432,
    TENSOR_DEPTH = 16, /* of one instruction, or two */
};

#endif
