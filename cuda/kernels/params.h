/*
 * What the host hands to kernels: plain C that gcc and nvcc lay out alike. Pointers are the device's.
 *
 * The parameters, slots and averages are flat vectors in the layout of ps/store/model.h. A batch's matrices have one row for an
 * image, `pitch` floats apart.
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
    KERNEL_IMAGE_ALIGN = 16, /* an image's bytes are padded to an odd multiple: 16-byte reads meet no bank twice */
    KERNEL_WARP = 32,
    KERNEL_BLOCK_THREADS = 256, /* of the kernels that are no matrix product, sharded training apart */
};

struct kernel_layer {
    int32_t in, out;
    int32_t stride;           /* floats from one row of weights to the next */
    int32_t pitch;            /* floats from one row of the matrices below to the next */
    uint64_t weights, biases; /* where they begin in the vectors */
    float *activations;       /* [batch, out]: hidden layers' outputs; the last layer's logits */
    float *outputs;           /* what dropout leaves of them; without it, the same memory */
    float *deltas;            /* [batch, out]: gradients of what the activation was applied to */
};

struct kernel_vectors {
    float *parameters, *slot0, *slot1, *averages; /* NULL: none */
};

/* What a call of train or step has come to, kept on the device and read by the host at its end. */
struct kernel_progress {
    int64_t first_step; /* set by the host, as all else is to zero */
    int64_t step;       /* the one under way */
    uint32_t task;      /* of the batch under way */
    int32_t count;      /* its images */
    int32_t stopped;    /* the loss was not finite: nothing more is done */
    uint32_t ticket;    /* blocks that are through with a kernel; returns to 0 */
    int64_t steps, correct, images;
    double loss_sum, last_loss, bad_loss;
    float factor; /* that the batch's gradient is clipped by */
    int32_t padding;
};

/* A network and the memory that it works in; handed to every kernel by value. */
struct kernel_network {
    int32_t layers;
    int32_t activation; /* enum activation */
    int32_t precision;  /* enum precision, of the matrix products */
    float smoothing;
    int32_t micro_batches;
    struct kernel_layer layer[KERNEL_LAYERS];
    struct kernel_vectors vectors;
    float *gradient;  /* [float_count]; padding is never written */
    float *collected; /* [float_count]: of micro-batches, where gradients are clipped first */
    double *squares;  /* [rows of all variables]: sums of squares of the gradient's rows */
    double clip_norm; /* 0: no clipping */
    struct dropout dropout;
    int32_t image_stride; /* bytes */
    uint32_t host_layers; /* bit l: parameters of layer l are not here, but the host's (cuda/device/host.c) */
    int32_t *indexes;     /* [batch]: images of the batch under way */
    float *losses;        /* [batch] */
    int32_t *correct;     /* [batch]: 0 or 1 */
    struct kernel_progress *progress;
    const struct update *updates; /* [steps][2], from first_step on */
};

/* Images and their labels, and how a batch is made of them. */
struct kernel_source {
    const uint8_t *images; /* [examples, image_stride] */
    const int32_t *labels;
    struct sampler sampler;
    int32_t given; /* not 0: the batch is the first so many, in order; else the sampler draws it */
    int32_t micro; /* which of the step's batches */
};

/* What becomes of a gradient. */
enum kernel_gradient {
    GRADIENT_UPDATE, /* it updates the parameters at once */
    GRADIENT_STORE,  /* weight x it goes into the network's gradient */
    GRADIENT_ADD,    /* the same is added there */
};

/* What the gradient of the whole network is passed through for. */
enum kernel_apply {
    APPLY_GRADIENT,     /* it updates the parameters */
    APPLY_CLIPPED,      /* clipped, it does */
    APPLY_COLLECTED,    /* what was collected does */
    CLIP_COLLECT_FIRST, /* clipped, weight x it becomes what is collected */
    CLIP_COLLECT,       /* clipped, weight x it is added to that */
    CLIP_IN_PLACE,      /* it is clipped where it is */
};

/* Tiles of output that the kernels of matrix products work on; they are square. TILE_TENSOR: unless precision is float32. */
enum kernel_tile { TILE_SMALL, TILE_MEDIUM, TILE_LARGE, TILE_TENSOR, TILES };

/* Their sides, and dynamic shared memory of a block: cuda/kernels/gemm.cuh and tensor.cuh. Its threads: KERNEL_BLOCK_THREADS. */
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
