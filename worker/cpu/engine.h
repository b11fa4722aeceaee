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

#include "base/threads.h"
#include "ps/store/store.h"
#include "worker/cpu/clip.h"
#include "worker/cpu/pass.h"
#include "worker/data/batch_source.h"
#include "worker/engine.h"

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
