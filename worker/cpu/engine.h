/*
 * Internal to the CPU engine: a team of threads, each of which permanently owns strips of every layer.
 *
 * train() is one run of the team over many steps. With one hidden layer and few classes, a step has a single barrier: a
 * thread computes its own strips of the hidden layer and their part of the logits; after the barrier every thread adds
 * up all logits, computes the (small) softmax itself, continues with its own strips' deltas, gradients and updates, and
 * goes straight on to the next step's forward pass of each strip (with large batches: of a few strips, pass_group),
 * whose weights are still in its cache. Deeper networks have one barrier per layer and direction.
 *
 * The next batch is indexed before a step's barrier, so that no thread has to wait for it:
 *
 *     step q:   draw batch q + 2 | index batch q + 1 | barrier | softmax, backward q, forward q + 1 | step q + 1 ...
 *
 * A fast thread may index q + 2 while a slow one still uses q, so there are three indexes; draws live from q - 2 to q +
 * 1, so there are four. Partial sums of q + 1 are written while those of q are read, so there are two, and so are a
 * thread's own views of packed indexes, since it goes on to q + 1 strip by strip.
 *
 * gradient.c draws and indexes batches and computes the loss and gradient of one; engine.c loops over many, and gives
 * each thread its own images in an evaluation. `thread` counts within the team.
 */
#ifndef WORKER_CPU_ENGINE_H
#define WORKER_CPU_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/kernels.h"
#include "base/threads.h"
#include "ps/store/model.h"
#include "ps/store/store.h"
#include "worker/data/batch_source.h"
#include "worker/data/examples.h"
#include "worker/engine.h"

/* --- Strips --- */

/* The strips of `width` columns. */
struct strips {
    int width;
    int lanes;
    int vectors; /* width / lanes, rounded up */
    int count;
    int pitch; /* floats of the widest strip */
};

/* A matrix [capacity, width], strip after strip, each [capacity, strips' pitch]; or row by row if pitch is not 0. */
struct matrix {
    float *values;
    int capacity;
    int pitch;
};

static inline int strip_col(const struct strips *strips, int strip)
{
    return (int)((int64_t)strip * strips->vectors / strips->count) * strips->lanes;
}

/* Columns of a strip, padding included: a whole number of vectors. */
static inline int strip_floats(const struct strips *strips, int strip)
{
    return strip_col(strips, strip + 1) - strip_col(strips, strip);
}

/* Columns of a strip, without padding. */
static inline int strip_units(const struct strips *strips, int strip)
{
    int end = strip_col(strips, strip + 1);
    return (end < strips->width ? end : strips->width) - strip_col(strips, strip);
}

static inline int strip_stride(const struct matrix *matrix, const struct strips *strips)
{
    return matrix->pitch ? matrix->pitch : strips->pitch;
}

static inline float *strip_row(const struct matrix *matrix, const struct strips *strips, int strip, int row)
{
    if (matrix->pitch) {
        return matrix->values + (size_t)row * (size_t)matrix->pitch + strip_col(strips, strip);
    }
    return matrix->values + ((size_t)strip * (size_t)matrix->capacity + (size_t)row) * (size_t)strips->pitch;
}

/* Samples are processed in chunks of nearly equal size; all but the last have an even number. */
static inline int chunk_count(int samples)
{
    return (samples + KERNEL_CHUNK - 1) / KERNEL_CHUNK;
}

static inline int chunk_first(int samples, int chunk)
{
    int first = (int)((int64_t)chunk * samples / chunk_count(samples));
    return chunk < chunk_count(samples) ? (first + 1) & ~1 : samples;
}

static inline int round_up(int n, int multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* --- The index --- */

/*
 * A batch's input, indexed for the first layer. For pictures, their nonzero pixels: the first layer's forward pass
 * walks them by sample, its weight gradient by pixel, both in pairs (struct sparse). Pixels are cut into blocks small
 * enough that a block's frequently used rows of a strip's weights stay in the L1 cache. A block with too many nonzero
 * pixels for skipping zeros to pay is kept as a dense matrix instead. For rows, the numbers as dense blocks or, if
 * they are encoded, as bins by sample and by bin; and which one-hot inputs are 1.
 */

/* The encoded numbers of a block of rows, for kernels' bin_sums and bin_gradients. */
struct bin_index {
    int column, columns; /* the first of the block, and how many; 0: the block has none */
    int32_t *first;      /* [columns + 1]: their bins within the block */
    /* By sample: [capacity, columns] */
    int32_t *row_bin;
    float *row_share;
    /* By bin: */
    uint32_t *column_start; /* [bins + 1] */
    int32_t *column_sample; /* ascending for each bin */
    float *column_share;
};

struct index_block {
    int first, count; /* pixels; first + i is pixel i of the block */
    int pitch;        /* count, rounded up to 16 */
    size_t capacity;  /* entries by sample, and as many by pixel */
    bool dense;
    float *values; /* dense: [samples, pitch], 0..1 */
    struct bin_index bins;

    /* Sparse: the pixels of the block that are set in any sample, ascending. */
    int present_count;
    int32_t present[KERNEL_BLOCK + 1];
    /* Pairs of samples, chunk by chunk, counted from the chunk's first (a last one may be unpaired): */
    uint8_t *row_order;      /* [chunks][KERNEL_CHUNK / 2]: pairs by number of entries */
    struct parts *row_parts; /* [chunks][KERNEL_CHUNK / 2]: how they are divided; NULL: they are not */
    uint32_t *row_start;     /* [chunks][KERNEL_CHUNK / 2 + 1]: the entries of each pair ... */
    uint32_t *row_offset;    /* ... pixels of the block that are set in one of the two, x row_stride in bytes ... */
    float *row_value;        /* ... and both values, 0..1 */
    uint32_t *row_packed;    /* the same, as pack_parts writes it, if they are divided */
    /* Pairs of present pixels, chunk by chunk (a last one may be unpaired): */
    uint8_t *column_order;      /* [chunks][KERNEL_BLOCK / 2]: pairs by number of entries */
    struct parts *column_parts; /* [chunks][KERNEL_BLOCK / 2]: how they are divided; NULL: they are not */
    uint32_t *column_start;     /* [chunks][KERNEL_BLOCK / 2 + 1]: the entries of each pair ... */
    uint32_t *column_offset; /* ... samples of the chunk in which one of the two is set, x column_stride in bytes ... */
    float *column_value;     /* ... and both values */
    uint32_t *column_packed; /* the same, packed */
    uint32_t row_entries, column_entries; /* of all chunks */
};

/* The one-hot inputs of rows: which of them are 1. */
struct place_index {
    int first, count; /* inputs; place i is input first + i */
    int codes;        /* most ones of a sample; 0: there are no such inputs */
    /* By sample: */
    uint32_t *row_start; /* [capacity + 1]: the ones of each ... */
    int32_t *row_place;  /* ... by place */
    /* By input: the places that are 1 in any sample, ascending. */
    int present_count;
    int32_t *present;
    uint32_t *column_start;  /* [present_count + 1]: the ones of each ... */
    int32_t *column_sample;  /* ... by sample, ascending */
    uint64_t *keys, *sorted; /* scratch of building */
};

struct batch_index {
    int capacity;      /* samples */
    int row_stride;    /* floats from one pixel's weights to the next; 0: only pixels are indexed, not samples */
    int column_stride; /* floats from one sample's deltas to the next */
    int block_count;
    bool packed; /* offsets and values exist only in threads' own views */
    struct index_block *blocks;
    struct place_index places; /* rows: the last block, if there are one-hot inputs; all others are dense or bins */
    void *memory;
};

static inline bool index_is_places(const struct batch_index *index, int block)
{
    return index->places.codes > 0 && block == index->block_count - 1;
}

/* A thread's scratch memory to build blocks. */
struct index_scratch {
    uint8_t *bytes;      /* [chunks, KERNEL_CHUNK, KERNEL_BLOCK] */
    uint8_t *transposed; /* [KERNEL_BLOCK, KERNEL_CHUNK] */
    void *memory;
};

/* Number of blocks that images are cut into. */
int index_block_count(int pixels);

/*
 * For batches of up to `capacity` images; the strides are those of struct batch_index. shared: by several threads; the
 * index is then packed if pairs are divided and all views fit the threads' caches.
 */
void index_create(struct batch_index *index, const struct kernels *kernels, int pixels, int capacity, int row_stride,
                  int column_stride, bool shared);
void index_destroy(struct batch_index *index);

/*
 * A thread's own view of packed indexes of the same layout. If threads share no cache, a line that one writes and
 * another reads costs far more than computing its content: so only a third of the bytes is shared, from which each
 * thread computes offsets and values for itself. index_destroy frees it.
 */
void index_view_create(struct batch_index *view, const struct batch_index *index);
/* Unpacks an index that has been built; valid until it is built again. */
void index_view_take(struct batch_index *view, const struct batch_index *index, const struct kernels *kernels);

void index_scratch_create(struct index_scratch *scratch, int capacity);
void index_scratch_destroy(struct index_scratch *scratch);

/*
 * Builds one block from `count` images (of `pixels` bytes each) of a set: images[indexes[i]], or images[i] if indexes
 * is NULL. Different threads may build different blocks at the same time.
 */
void index_build(struct batch_index *index, int block, const struct kernels *kernels, struct index_scratch *scratch,
                 const uint8_t *images, int pixels, const int32_t *indexes, int count);

/* --- Rows --- */

/* Number of blocks for rows of this shape. */
int index_rows_block_count(const struct examples *like);

/* For batches of up to `capacity` rows of this shape; index_destroy frees it. */
void index_rows_create(struct batch_index *index, const struct examples *like, int capacity);

/* Builds one block from `count` rows of a set, those at `indexes` or, if that is NULL, the first. */
void index_rows_build(struct batch_index *index, int block, const struct examples *examples, const int32_t *indexes,
                      int count);

/* --- Passes --- */

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

/* --- Clipping --- */

/*
 * Gradient clipping by norm, as tf.clip_by_global_norm over all variables: where the norm of a batch's whole gradient
 * is above `limit`, all of it is multiplied by limit / norm (Pascanu et al., "On the difficulty of training recurrent
 * neural networks", ICML 2013). The gradient is that of the cross-entropy; L2's share comes later, with the optimizer.
 *
 * Clipping needs the whole gradient before it can pass any of it on. So it is a sink that collects; then, between
 * barriers of the team, every thread measures its share of the rows, and every thread passes its share on. The result
 * has the same bits at any number of threads.
 */

struct clip {
    const struct model *model; /* borrowed */
    double limit;              /* 0: no clipping, and no memory */
    float *gradient;           /* [float_count] */
    double *squares;           /* per row of all variables: the sum of its squares */
    struct collector collector;
};

/* Memory: 4 bytes per float of the model, 8 per row. */
void clip_create(struct clip *clip, const struct model *model, double limit);
void clip_destroy(struct clip *clip); /* fine on zeros */

enum { INDEXES = 3, DRAWS = 4, VIEWS = 2 };

/* Which examples a batch holds. */
struct sampled_batch {
    struct batch_source source;      /* what train() draws it from; else zeros */
    const struct examples *examples; /* which the indexes refer to */
    int32_t *indexes;                /* [capacity] */
    int32_t *labels;                 /* [capacity] */
    int32_t *places;                 /* [capacity]: positions before reordering */
    float *wanted;                   /* [capacity, wanted_stride]: target values; NULL: labels */
    float *weights;                  /* [capacity] */
    bool is_weighted;
    int count;
    atomic_int next_block; /* the next block of its index that no thread has claimed */
    struct dropout_batch dropout;
};

/* Per thread of the team. */
struct engine_thread {
    struct scratch scratch;
    struct index_scratch index_scratch;
    struct batch_index views[VIEWS]; /* of the batches in progress, if indexes are packed */
    struct workspace evaluation;     /* for KERNEL_CHUNK images of forward() */
    struct batch_index evaluation_index;
    struct store store;         /* the engine's, with its own step: threads may be a step apart */
    struct collector collector; /* of the current micro-batch */
};

struct cpu_engine {
    struct engine engine;
    const struct model *model; /* in the job's layout */
    struct model own; /* in the engine's layout: layer 0 in panels, one per strip, if train() updates it by blocks */
    const struct config *config;
    const struct examples *train;
    bool starved; /* data cannot be read any more: */
    struct error starved_error;
    struct network network;
    const char *why; /* why these kernels were chosen */
    struct pool *pool;
    int threads;
    struct store store;
    struct workspace workspace;
    struct batch_index indexes[INDEXES];
    struct sampled_batch draws[DRAWS];
    int targets;                  /* target values of an example; 0: it has a label */
    int wanted_stride;            /* targets, rounded up */
    int32_t *first_of_class;      /* [classes + 1] */
    struct signature *signatures; /* [batch size]: scratch for putting a batch in order */
    uint64_t (*bits)[2];          /* [examples]: signatures of the whole set, if in memory */
    struct engine_thread members[POOL_MAX_THREADS];
    float *gradient; /* [float_count], if there are micro-batches: their sum */
    struct clip clip;
};

/* One call of train or step. */
struct engine_run {
    struct cpu_engine *engine;
    const struct gradient_sink *sink; /* of step; NULL: train */
    int64_t first_step;
    int64_t batches; /* of all steps, micro-batches counted one by one */
    struct train_result *result;
};

/* The first of `items` that belongs to this thread; its last is before the next thread's first. */
static inline int share_first(const struct cpu_engine *engine, int items, int thread)
{
    return (int)((int64_t)items * thread / engine->threads);
}

static inline int micro_batches(const struct cpu_engine *engine)
{
    return engine->config->train.micro_batches > 1 ? engine->config->train.micro_batches : 1;
}

/*
 * Sorts a batch's images by label; if samples are processed in pairs (struct sparse), also so that the two of a pair
 * are similar. The order depends on the images alone. Records whose batch it is, for dropout.
 */
void cpu_draw_take(struct cpu_engine *engine, struct sampled_batch *draw, const struct batch *batch);

/* Computes the signatures of the training set. */
void cpu_take_signatures(struct cpu_engine *engine);

/* Draws batch `number` of a run. Called by one thread at a time. */
void cpu_draw_batch(const struct engine_run *run, int64_t number);

/*
 * Builds blocks of the index of batch `number`, which has been drawn. Threads claim them one by one, so that a thread
 * that is late to a barrier finds less left to do. The result does not depend on which thread builds a block.
 */
void cpu_index_batch(const struct engine_run *run, int64_t number, int thread);

/* --- gradient.c: called by all threads, each for its own strips, when the batch is indexed and a barrier passed --- */

/* A thread's part of a batch before the first barrier. */
void cpu_forward_begin(const struct engine_run *run, int64_t number, int thread);

/* The rest of the forward pass, and the softmax; returns the mean loss. Sets *upper to the deltas of the logits. */
double cpu_forward_finish(const struct engine_run *run, int64_t number, int thread, struct matrix *upper, int *right);

/* The whole backward pass of a batch; `next` >= 0: each group of strips continues with that batch's forward pass. */
void cpu_backward(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
                  const struct gradient_sink *sink, int64_t next);

/* The same with clipping, where the norm of the whole gradient is needed first. */
void cpu_backward_clipped(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
                          const struct gradient_sink *sink);

#endif
