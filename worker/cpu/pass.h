/*
 * The passes through a network, strip by strip: what a thread computes between two barriers.
 *
 * Layer l has weights [in, out]; its outputs are cut into strips. In the forward pass a strip of a layer needs all
 * strips of the layer below. In the backward pass the owner of strip j of layer l - 1's outputs computes their deltas
 * from rows j of layer l's weights, then the gradient of these rows, which no other thread reads any more. A last layer
 * with few outputs is computed as partial sums over the strips below, added up in strip order; softmax regression, over
 * the pixel blocks.
 *
 * Nothing here knows about threads: callers ensure that a function's inputs are ready.
 */
#ifndef WORKER_CPU_PASS_H
#define WORKER_CPU_PASS_H

#include "base/error.h"
#include "base/kernels.h"
#include "ps/store/model.h"
#include "ps/store/store.h"
#include "worker/cpu/index.h"

enum { NETWORK_MAX_LAYERS = CONFIG_MAX_LAYERS - 1 };

struct network {
    const struct model *model;
    const struct kernels *kernels;
    int layers;                               /* of weights */
    struct strips strips[NETWORK_MAX_LAYERS]; /* of each layer's outputs */
    bool narrow;                              /* the last layer is computed as partial sums: */
    int partials;           /* of the strips below, or of the pixel blocks if there is no layer below; else 0 */
    struct dropout dropout; /* of training */
    struct examples like;   /* the input's shape: only the widths of rows are used; zeros: pictures */
    int first_delta_stride; /* floats from one sample's deltas of layer 0 to the next */
};

/* like: the shape of input rows; NULL: pictures. */
void network_plan(struct network *network, const struct model *model, const struct kernels *kernels,
                  struct dropout dropout, const struct examples *like);

/* An index of batches of up to `capacity` examples for this network. shared: by several threads (index_create). */
void network_index_create(const struct network *network, struct batch_index *index, int capacity, bool shared);

/*
 * Builds one block of it from `count` examples of a set: those at `indexes` or, if that is NULL, the first. Different
 * threads may build different blocks at the same time.
 */
void network_index_build(const struct network *network, struct batch_index *index, int block,
                         struct index_scratch *scratch, const struct examples *examples, const int32_t *indexes,
                         int count);

/* Buffers for batches of up to `capacity` samples, which threads share by strips. */
struct workspace {
    int capacity;
    struct matrix activations[NETWORK_MAX_LAYERS]; /* outputs of the hidden layers ... */
    struct matrix outputs[NETWORK_MAX_LAYERS];     /* ... after dropout; without it, the same */
    struct matrix masks[NETWORK_MAX_LAYERS];       /* dropout's factors; without it, none */
    struct matrix deltas[NETWORK_MAX_LAYERS];      /* their gradients before the activation; none for evaluation */
    float *partials[2];   /* narrow: [network's partials, capacity, KERNEL_NARROW]; steps take turns */
    struct matrix logits; /* row by row; training of narrow networks uses struct scratch's instead */
    float *losses;        /* [capacity] */
    uint8_t *correct;     /* [capacity] */
    void *memory;
};

void workspace_create(struct workspace *workspace, const struct network *network, int capacity, bool training);
void workspace_destroy(struct workspace *workspace);

/* A thread's own memory: a tile of gradients for the sink, and a tile of packed weights. */
struct scratch {
    float *tile;      /* [pass_group(capacity)][KERNEL_STRIP or KERNEL_BLOCK, KERNEL_STRIP] */
    float *pack;      /* [KERNEL_STRIP, KERNEL_STRIP] */
    float *logits;    /* narrow: [capacity, KERNEL_NARROW] */
    float *losses;    /* [capacity] */
    uint8_t *correct; /* [capacity] */
    void *memory;
};

void scratch_create(struct scratch *scratch, int capacity);
void scratch_destroy(struct scratch *scratch);

/*
 * How many strips of layer 0 to process together. A large batch's index exceeds the cache, and is streamed through it
 * once per group. With one chunk of samples it stays in the cache anyway, and so should the data of a strip.
 */
static inline int pass_group(int count)
{
    return chunk_count(count) > 1 ? 4 : 1;
}

/* The arguments that all passes of a batch through a network share. */
struct pass {
    const struct network *network;
    const float *parameters;
    const struct batch_index *index; /* of its images */
    int count;                       /* its samples */
    const struct workspace *workspace;
    struct scratch *scratch;          /* of the calling thread; backward only */
    const struct gradient_sink *sink; /* backward only */
};

/* Outputs (before the activation, if it is the last layer) of layer 0, strips [strip, strip + strips). */
void pass_first(const struct pass *pass, struct matrix *out, int strip, int strips);

/* Narrow, single layer: the contribution of pixel block `block` to the logits; the first block adds the biases too. */
void pass_first_partial(const struct pass *pass, float *partials, int block);

/* Outputs of layer l > 0, strip `strip`, from all outputs below. */
void pass_forward(const struct pass *pass, int layer, const struct matrix *below, struct matrix *out, int strip);

/*
 * Training: applies dropout to the outputs of hidden layer `layer`, strip `strip`. places: of the images in the batch.
 */
void pass_drop(const struct pass *pass, int layer, const struct dropout_batch *batch, const int32_t *places, int strip);

/* Narrow: the contribution of strip `strip` of the last hidden layer to the logits; the first adds the biases too. */
void pass_partial(const struct pass *pass, const struct matrix *below, float *partials, int strip);

/* Narrow: adds up the partial sums into logits [count, KERNEL_NARROW]. */
void pass_sum(const struct pass *pass, const float *partials, float *logits);

/*
 * Strip `strip` of layer - 1's outputs: their deltas, then the gradient of their rows of layer's weights, layer > 0.
 * upper: deltas of layer's outputs.
 */
void pass_backward(const struct pass *pass, int layer, const struct matrix *upper, int strip);

/* The gradient of strip `strip` of layer's biases. */
void pass_biases(const struct pass *pass, int layer, const struct matrix *upper, int strip);

/*
 * The gradient of layer 0's weights: pixel block `block` of column strips [strip, strip + strips), at most
 * pass_group(count) of them. The parameters are only prefetched.
 */
void pass_first_gradient(const struct pass *pass, int block, const struct matrix *upper, int strip, int strips);

#endif
