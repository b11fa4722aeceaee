/*
 * Inside the CPU engine: a team of threads that each own strips of every layer, for good.
 *
 * train() is one run of the team over many steps. Where the network has one hidden layer and few classes, a step has a
 * single barrier: a thread computes its own strips of the hidden layer and what they add to the logits; behind the
 * barrier every thread adds up all logits, does the (small) softmax for itself, and goes on to its own strips' deltas,
 * gradients and updates, and right on to the next step's forward pass of each strip (of large batches: of a few strips,
 * pass_group), whose weights are still in its cache. Deeper networks meet once per layer and direction.
 *
 * The next batch is indexed before a step's barrier, so that no thread waits for it:
 *
 *     step q:   draw batch q + 2 | index batch q + 1 | barrier | softmax, backward q, forward q + 1 | step q + 1 ...
 *
 * A fast thread may index q + 2 while a slow one still uses q, hence three indexes; draws live from q - 2 to q + 1:
 * four. Partial sums of q + 1 are written while q's are read: two.
 *
 * draws.c takes and indexes batches, gradient.c computes the loss and gradient of one, train.c runs over many of them, and
 * in evaluate.c each thread has images of its own. `thread` counts within the team.
 */
#ifndef WORKER_CPU_ENGINE_INTERNAL_H
#define WORKER_CPU_ENGINE_INTERNAL_H

#include <stdatomic.h>

#include "base/threads.h"
#include "ps/store/collect.h"
#include "worker/clip.h"
#include "worker/cpu/pass.h"
#include "worker/engine.h"
#include "base/random/sampler.h"

enum { INDEXES = 3, DRAWS = 4 };

/* Which images a batch holds. */
struct sampled_batch {
    const uint8_t *images; /* [.., inputs]: what the indexes count in */
    uint8_t *memory;       /* [capacity, inputs], if they stream; else NULL */
    int32_t *indexes;      /* [capacity] */
    int32_t *labels;       /* [capacity] */
    int32_t *places;       /* [capacity]: where they stood before they were put in order */
    int count;
    atomic_int next_block; /* of its index: the first that no thread has taken on */
    struct dropout_batch dropout;
};

/* What belongs to one thread of the team. */
struct engine_thread {
    struct scratch scratch;
    struct index_scratch index_scratch;
    struct workspace evaluation; /* for KERNEL_CHUNK images of forward() */
    struct batch_index evaluation_index;
    struct store store;         /* the engine's, with a step of its own: threads may be a step apart */
    struct collector collector; /* of the micro-batch under way */
};

struct cpu_engine {
    struct engine engine;
    const struct model *model; /* as the job has it */
    struct model own;          /* the same, laid out as it lies here: layer 0 in panels, one for each strip, where
                                  train() updates it block by block */
    const struct config *config;
    const struct examples *train;
    struct streaming *streaming;
    bool starved; /* data can't be read any more: */
    struct error starved_error;
    struct network network;
    const char *why; /* these kernels */
    struct pool *pool;
    int threads;
    struct store store;
    struct sampler sampler; /* of the first task */
    struct workspace workspace;
    struct batch_index indexes[INDEXES];
    struct sampled_batch draws[DRAWS];
    int32_t *drawn;                      /* [batch size]: a batch as the sampler drew it */
    int32_t *streamed_labels, *in_order; /* [batch size], if images stream: 0, 1, 2 ... */
    int32_t *first_of_class;             /* [classes + 1] */
    struct signature *signatures;        /* [batch size]: a batch while it is put in order */
    uint64_t (*bits)[2];                 /* [examples]: signatures of the whole set, if it is in memory */
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

/* The first of `items` that is this thread's; it has all before the next thread's first. */
static inline int share_first(const struct cpu_engine *engine, int items, int thread)
{
    return (int)((int64_t)items * thread / engine->threads);
}

static inline int micro_batches(const struct cpu_engine *engine)
{
    return engine->config->train.micro_batches > 1 ? engine->config->train.micro_batches : 1;
}

/* ---- draws.c ---- */

/*
 * Takes a batch's images, of draw->images, in the order of their labels; where samples are worked on in pairs (struct
 * sparse), then in such an order that pairs are alike. It depends on the images alone.
 */
void cpu_draw_take(struct cpu_engine *engine, struct sampled_batch *draw, const int32_t *indexes, int count,
                   const int32_t *labels);

/* Takes the signatures of the set that train() draws from. */
bool cpu_take_signatures(struct cpu_engine *engine, struct error *error);

/* Draws batch `number` of a run. One thread at a time. */
void cpu_draw_batch(const struct engine_run *run, int64_t number);

/*
 * Brings share `part` of `parts` of a batch's images into the cache, shortly before they are indexed: they lie scattered
 * in memory, and among so much to compute nobody waits for them.
 */
void cpu_fetch_images(const struct engine_run *run, int64_t number, int part, int parts);

/*
 * Blocks of the index of batch `number`, which is drawn: threads take them one by one, so that who comes late to a
 * barrier finds less left to do. The same block comes out whoever builds it.
 */
void cpu_index_batch(const struct engine_run *run, int64_t number, int thread);

/* ---- gradient.c; each by all threads, each for its own strips. A batch is indexed, and a barrier passed, before ---- */

/* What a thread does of a batch before the first barrier. */
void cpu_forward_begin(const struct engine_run *run, int64_t number, int thread);

/* The rest of the forward pass, and the softmax: returns the mean loss. *upper becomes the deltas of the logits. */
double cpu_forward_finish(const struct engine_run *run, int64_t number, int thread, struct matrix *upper, int *right);

/* The whole backward pass of a batch; `next` >= 0: each group of strips goes straight on to that batch's forward
 * pass. */
void cpu_backward(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
                  const struct gradient_sink *sink, int64_t next);

/* The same where the gradient's norm decides what becomes of it. */
void cpu_backward_clipped(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
                          const struct gradient_sink *sink);

/* ---- train.c, evaluate.c: of the engine's table ---- */

bool cpu_train(struct engine *base, int64_t n, struct train_result *result, struct error *error);
bool cpu_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
              struct train_result *result, struct error *error);
bool cpu_forward(struct engine *base, bool averaged, const uint8_t *images, int count, float *logits,
                 struct error *error);

#endif
