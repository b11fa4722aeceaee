/*
 * The CPU engine: a team of threads that each own strips of every layer, for good.
 *
 * train() is one run of the team over many steps. Where the network has one hidden layer and few classes, a step has a
 * single barrier: a thread computes its own strips of the hidden layer and what they add to the logits; behind the
 * barrier every thread adds up all logits, does the (small) softmax for itself, and goes on to its own strips' deltas,
 * gradients and updates, and right on to the next step's forward pass of each strip, whose weights are still in its
 * cache. Deeper networks meet once per layer and direction.
 *
 * The next batch is indexed before a step's barrier, so that no thread waits for it:
 *
 *     step q:   draw batch q + 2 | index batch q + 1 | barrier | softmax, backward q, forward q + 1 | step q + 1 ...
 *
 * A fast thread may index q + 2 while a slow one still uses q, hence three indexes; draws live from q - 2 to q + 1:
 * four. Partial sums of q + 1 are written while q's are read: two.
 */
#include "worker/engine.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/profile.h"
#include "base/threads.h"
#include "ps/collect.h"
#include "worker/clip.h"
#include "worker/cpu/pass.h"
#include "worker/data/idx.h"
#include "worker/data/streaming/streaming.h"
#include "worker/sampler.h"

enum { INDEXES = 3, DRAWS = 4 };

/* Which images a batch holds. */
struct draw {
    const uint8_t *images; /* [.., inputs]: what the indexes count in */
    uint8_t *memory;       /* [capacity, inputs], if they stream; else NULL */
    int32_t *indexes;      /* [capacity] */
    int32_t *labels;       /* [capacity] */
    int32_t *places;       /* [capacity]: where they stood before they were put in order */
    int count;
    struct dropout_batch dropout;
};

/* What belongs to one thread of the team. */
struct member {
    struct scratch scratch;
    struct index_scratch index_scratch;
    struct workspace evaluation; /* for KERNEL_CHUNK images of forward() */
    struct batch_index evaluation_index;
    struct store store;         /* the engine's, with a step of its own: threads may be a step apart */
    struct collector collector; /* of the micro-batch under way */
};

struct cpu_engine {
    struct engine engine;
    const struct model *model;
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
    struct draw draws[DRAWS];
    int32_t *drawn;                      /* [batch size]: a batch as the sampler drew it */
    int32_t *streamed_labels, *in_order; /* [batch size], if images stream: 0, 1, 2 ... */
    int32_t *first_of_class;             /* [classes + 1] */
    struct member members[POOL_MAX_THREADS];
    float *gradient; /* [float_count], if there are micro-batches: their sum */
    struct clip clip;
};

/* One call of train or step. */
struct run {
    struct cpu_engine *engine;
    const struct gradient_sink *sink; /* of step; NULL: train */
    int64_t first_step;
    int64_t batches; /* of all steps, micro-batches counted one by one */
    struct train_result *result;
};

/* ---- threads' shares ---- */

static int share_first(const struct cpu_engine *engine, int items, int thread)
{
    return (int)((int64_t)items * thread / engine->threads);
}

/* ---- batches ---- */

static int micro_batches(const struct cpu_engine *engine)
{
    return engine->config->train.micro_batches > 1 ? engine->config->train.micro_batches : 1;
}

/*
 * Takes a batch's images in the order of their labels, so that pairs of them are alike (struct sparse); within a class,
 * in the order they came in.
 */
static void draw_take(struct cpu_engine *engine, struct draw *draw, const int32_t *indexes, int count,
                      const int32_t *labels)
{
    int classes = engine->model->widths[engine->network.layers];
    int32_t *first = engine->first_of_class;
    memset(first, 0, (size_t)(classes + 1) * sizeof *first);
    for (int i = 0; i < count; i++) {
        first[labels[indexes[i]] + 1]++;
    }
    for (int i = 0; i < classes; i++) {
        first[i + 1] += first[i];
    }
    for (int i = 0; i < count; i++) {
        int32_t label = labels[indexes[i]];
        int32_t to = first[label]++;
        draw->indexes[to] = indexes[i];
        draw->labels[to] = label;
        draw->places[to] = i;
    }
    draw->count = count;
}

/*
 * A batch of images that stream. Where they can't be read any more, an image of zeros stands for them: the team goes on to
 * the end of its run, which then fails as a whole.
 */
static void draw_streamed(struct cpu_engine *engine, struct draw *draw)
{
    static const int32_t nothing = 0;
    int count;
    draw->images = draw->memory;
    if (!engine->starved && streaming_draw(engine->streaming, draw->dropout.task, draw->dropout.step, draw->memory,
                                           engine->streamed_labels, &count, &engine->starved_error)) {
        draw_take(engine, draw, engine->in_order, count, engine->streamed_labels);
        return;
    }
    engine->starved = true;
    memset(draw->memory, 0, (size_t)engine->model->widths[0]);
    draw_take(engine, draw, &nothing, 1, &nothing);
}

static void draw_batch(const struct run *run, int64_t number)
{
    struct cpu_engine *engine = run->engine;
    struct draw *draw = &engine->draws[number % DRAWS];
    struct sampler sampler = engine->sampler;
    sampler.task += (uint32_t)(number % micro_batches(engine));
    draw->dropout = (struct dropout_batch){sampler.task, run->first_step + number / micro_batches(engine)};
    if (engine->streaming) {
        draw_streamed(engine, draw);
        return;
    }
    int count = sampler_draw(&sampler, draw->dropout.step, engine->drawn);
    draw->images = engine->train->images;
    draw_take(engine, draw, engine->drawn, count, engine->train->labels);
}

/*
 * Brings share `part` of `parts` of a batch's images into the cache, shortly before they are indexed: they lie scattered
 * in memory, and among so much to compute nobody waits for them. By loads: a prefetch does nothing for an address that
 * is in no translation buffer.
 */
static void fetch_images(const struct run *run, int64_t number, int part, int parts)
{
    enum { LINE = 64 };
    if (number >= run->batches) {
        return;
    }
    const struct draw *draw = &run->engine->draws[number % DRAWS];
    size_t pixels = (size_t)run->engine->model->widths[0];
    for (int i = (int)((int64_t)draw->count * part / parts); i < (int)((int64_t)draw->count * (part + 1) / parts);
         i++) {
        const uint8_t *image = draw->images + (size_t)draw->indexes[i] * pixels;
        for (size_t at = 0; at < pixels; at += LINE) {
            (void)*(const volatile uint8_t *)(image + at);
        }
    }
}

static void index_batch(const struct run *run, int64_t number, int thread)
{
    PROFILE("index batch");
    struct cpu_engine *engine = run->engine;
    struct batch_index *index = &engine->indexes[number % INDEXES];
    const struct draw *draw = &engine->draws[number % DRAWS];
    for (int block = thread; block < index->block_count; block += engine->threads) {
        index_build(index, block, engine->network.kernels, &engine->members[thread].index_scratch, draw->images,
                    engine->model->widths[0], draw->indexes, draw->count);
    }
}

/* ---- the forward pass ---- */

static bool is_regression(const struct network *network)
{
    return network->narrow && network->layers == 1;
}

static void softmax_rows(const struct cpu_engine *engine, const struct draw *draw, const struct matrix *logits,
                         float *losses, uint8_t *correct, int first, int end)
{
    struct softmax softmax = {.rows = end - first,
                              .classes = engine->model->widths[engine->network.layers],
                              .logits = logits->values + (size_t)first * (size_t)logits->pitch,
                              .stride = logits->pitch,
                              .labels = draw->labels + first,
                              .scale = 1.0f / (float)draw->count,
                              .smoothing = (float)engine->config->train.label_smoothing,
                              .losses = losses + first,
                              .correct = correct + first};
    engine->network.kernels->softmax(&softmax);
}

/* One strip of the first layer, and its part of the logits if these come next. */
static void forward_first(const struct run *run, int64_t number, int strip)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    const float *parameters = engine->store.vectors[STORE_PARAMETERS];
    int count = engine->draws[number % DRAWS].count;
    struct matrix *out = network->layers > 1 ? &engine->workspace.activations[0] : &engine->workspace.logits;
    pass_first(network, parameters, &engine->indexes[number % INDEXES], count, out, strip);
    if (network->layers > 1) {
        const struct draw *draw = &engine->draws[number % DRAWS];
        pass_drop(network, &engine->workspace, 0, &draw->dropout, draw->places, count, strip);
    }
    if (network->narrow && network->layers == 2) {
        pass_partial(network, parameters, &engine->workspace.outputs[0], count, engine->workspace.partials[number % 2],
                     engine->workspace.capacity, strip);
    }
}

/* The part of the logits of softmax regression that one pixel block adds. */
static void forward_regression(const struct run *run, int64_t number, int block)
{
    struct cpu_engine *engine = run->engine;
    pass_first_partial(&engine->network, engine->store.vectors[STORE_PARAMETERS], &engine->indexes[number % INDEXES],
                       engine->draws[number % DRAWS].count, engine->workspace.partials[number % 2],
                       engine->workspace.capacity, block);
}

/* What a thread does of a batch before the first barrier. */
static void forward_begin(const struct run *run, int64_t number, int thread)
{
    PROFILE("forward");
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    if (is_regression(network)) {
        for (int block = thread; block < network->partials; block += engine->threads) {
            forward_regression(run, number, block);
        }
        return;
    }
    int strips = network->strips[0].count;
    for (int i = share_first(engine, strips, thread); i < share_first(engine, strips, thread + 1); i++) {
        forward_first(run, number, i);
    }
}

/* Layers 1 and up, except for narrow logits. A barrier before each. */
static void forward_layers(const struct run *run, int64_t number, int thread)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct workspace *workspace = &engine->workspace;
    const float *parameters = engine->store.vectors[STORE_PARAMETERS];
    int count = engine->draws[number % DRAWS].count;
    for (int l = 1; l < network->layers - network->narrow; l++) {
        pool_barrier(engine->pool);
        bool last = l + 1 == network->layers;
        struct matrix *out = last ? &workspace->logits : &workspace->activations[l];
        int strips = network->strips[l].count;
        for (int i = share_first(engine, strips, thread); i < share_first(engine, strips, thread + 1); i++) {
            pass_forward(network, parameters, l, &workspace->outputs[l - 1], count, out, i);
            if (!last) {
                const struct draw *draw = &engine->draws[number % DRAWS];
                pass_drop(network, workspace, l, &draw->dropout, draw->places, count, i);
            }
            if (network->narrow && l + 2 == network->layers) {
                pass_partial(network, parameters, &workspace->outputs[l], count, workspace->partials[number % 2],
                             workspace->capacity, i);
            }
        }
    }
}

/* Mean loss, and how many were right. Every thread adds up for itself, in the same order. */
static double mean_loss(const float *losses, const uint8_t *correct, int count, int *right)
{
    double sum = 0.0;
    *right = 0;
    for (int i = 0; i < count; i++) {
        sum += (double)losses[i];
        *right += correct[i];
    }
    return sum / count;
}

/* The rest of the forward pass and the softmax; *upper becomes the deltas of the logits. */
static double forward_finish(const struct run *run, int64_t number, int thread, struct matrix *upper, int *right)
{
    PROFILE("forward");
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct workspace *workspace = &engine->workspace;
    const struct draw *draw = &engine->draws[number % DRAWS];
    forward_layers(run, number, thread);
    pool_barrier(engine->pool);
    if (network->narrow) {
        struct scratch *scratch = &engine->members[thread].scratch;
        *upper = (struct matrix){.values = scratch->logits, .capacity = workspace->capacity, .pitch = KERNEL_NARROW};
        pass_sum(network, workspace->partials[number % 2], workspace->capacity, draw->count, scratch->logits);
        softmax_rows(engine, draw, upper, scratch->losses, scratch->correct, 0, draw->count);
        return mean_loss(scratch->losses, scratch->correct, draw->count, right);
    }
    *upper = workspace->logits;
    softmax_rows(engine, draw, upper, workspace->losses, workspace->correct, share_first(engine, draw->count, thread),
                 share_first(engine, draw->count, thread + 1));
    pool_barrier(engine->pool);
    return mean_loss(workspace->losses, workspace->correct, draw->count, right);
}

/* ---- the backward pass ---- */

static void backward_first(const struct run *run, int64_t number, const struct matrix *upper, int strip, int thread,
                           const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    const struct batch_index *index = &engine->indexes[number % INDEXES];
    struct scratch *scratch = &engine->members[thread].scratch;
    int count = engine->draws[number % DRAWS].count;
    for (int block = 0; block < index->block_count; block++) {
        if (strip + 1 == share_first(engine, engine->network.strips[0].count, thread + 1)) {
            fetch_images(run, number + 2, block, index->block_count);
        }
        pass_first_gradient(&engine->network, engine->store.vectors[STORE_PARAMETERS], index, block, upper, count,
                            strip, scratch, sink);
    }
    pass_biases(&engine->network, 0, upper, count, strip, scratch, sink);
}

/* Softmax regression: the threads share the pixel blocks, the first has the biases. */
static void backward_regression(const struct run *run, int64_t number, const struct matrix *upper, int thread,
                                const struct gradient_sink *sink, int64_t next)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct scratch *scratch = &engine->members[thread].scratch;
    int count = engine->draws[number % DRAWS].count;
    for (int block = thread; block < network->partials; block += engine->threads) {
        for (int strip = 0; strip < network->strips[0].count; strip++) {
            pass_first_gradient(network, engine->store.vectors[STORE_PARAMETERS], &engine->indexes[number % INDEXES],
                                block, upper, count, strip, scratch, sink);
            if (block == 0) {
                pass_biases(network, 0, upper, count, strip, scratch, sink);
            }
        }
        fetch_images(run, number + 2, block, network->partials);
        if (next >= 0) {
            forward_regression(run, next, block);
        }
    }
}

/* The biases above layer 1, whose strips nobody else looks at in this phase. */
static void backward_biases(const struct run *run, int64_t number, int layer, const struct matrix *upper, int thread,
                            const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    int strips = engine->network.strips[layer].count;
    int first = share_first(engine, strips, thread);
    int end = share_first(engine, strips, thread + 1);
    if (layer + 1 == engine->network.layers && engine->network.narrow) {
        /* Narrow logits: read with the first strip below, by whoever has that. */
        first = 0;
        end = share_first(engine, engine->network.strips[layer - 1].count, thread + 1) > 0 &&
                      share_first(engine, engine->network.strips[layer - 1].count, thread) == 0
                  ? strips
                  : 0;
    }
    for (int i = first; i < end; i++) {
        pass_biases(&engine->network, layer, upper, engine->draws[number % DRAWS].count, i,
                    &engine->members[thread].scratch, sink);
    }
}

/* The whole backward pass of a batch; `next` >= 0: each strip goes straight on to that batch's forward pass. */
static void backward(const struct run *run, int64_t number, struct matrix upper, int thread,
                     const struct gradient_sink *sink, int64_t next)
{
    PROFILE("backward");
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct workspace *workspace = &engine->workspace;
    if (is_regression(network)) {
        backward_regression(run, number, &upper, thread, sink, next);
        return;
    }
    int count = engine->draws[number % DRAWS].count;
    for (int l = network->layers - 1; l >= 0; l--) {
        const struct matrix *above = l + 1 == network->layers ? &upper : &workspace->deltas[l];
        if (l > 0) {
            backward_biases(run, number, l, above, thread, sink);
        }
        if (l == 0 && network->layers > 1) {
            break; /* done below, together with layer 1 */
        }
        int strips = network->strips[l > 0 ? l - 1 : 0].count;
        for (int i = share_first(engine, strips, thread); i < share_first(engine, strips, thread + 1); i++) {
            if (l > 0) {
                pass_backward(network, engine->store.vectors[STORE_PARAMETERS], l, workspace, above, count, i,
                              &engine->members[thread].scratch, sink);
            }
            if (l <= 1) {
                backward_first(run, number, l == 1 ? &workspace->deltas[0] : above, i, thread, sink);
                if (next >= 0) {
                    forward_first(run, next, i);
                }
            }
        }
        if (l > 1) {
            pool_barrier(engine->pool);
        }
    }
}

/* The same where the gradient's norm decides what becomes of it. */
static void backward_clipped(const struct run *run, int64_t number, struct matrix upper, int thread,
                             const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    struct gradient_sink whole = clip_sink(&engine->clip);
    backward(run, number, upper, thread, &whole, -1);
    pool_barrier(engine->pool);
    clip_measure(&engine->clip, thread, engine->threads);
    pool_barrier(engine->pool);
    clip_hand_on(&engine->clip, thread, engine->threads, sink);
    pool_barrier(engine->pool);
}

/* ---- runs ---- */

/* Applies this thread's rows of the sum over all micro-batches. */
static void apply_collected(struct cpu_engine *engine, int thread)
{
    struct member *member = &engine->members[thread];
    pool_barrier(engine->pool);
    for (int i = 0; i < engine->model->variable_count; i++) {
        const struct variable *variable = &engine->model->variables[i];
        int first = share_first(engine, variable->rows, thread);
        struct gradient_block block = {.variable = i,
                                       .row = first,
                                       .rows = share_first(engine, variable->rows, thread + 1) - first,
                                       .cols = variable->cols,
                                       .values = engine->gradient + variable->offset +
                                                 (size_t)first * (size_t)variable->stride,
                                       .stride = variable->stride};
        if (block.rows > 0) {
            store_apply(&member->store, &block);
        }
    }
    pool_barrier(engine->pool);
}

/* The sink for a batch of train(): the thread's own view of the store, or of the sum over micro-batches. */
static struct gradient_sink train_sink(const struct run *run, int64_t number, int thread)
{
    struct cpu_engine *engine = run->engine;
    struct member *member = &engine->members[thread];
    int micro = micro_batches(engine);
    if (number % micro == 0) {
        member->store.global_step = run->first_step + number / micro;
        store_begin_step(&member->store);
    }
    if (micro == 1) {
        return store_sink(&member->store);
    }
    /* All micro-batches of a step have the same size: that of this step's batch of every task. */
    member->collector = (struct collector){
        .model = engine->model, .sum = engine->gradient, .weight = 1.0f / (float)micro, .first = number % micro == 0};
    return collector_sink(&member->collector);
}

static void record(const struct run *run, int64_t number, double loss, int right)
{
    const struct cpu_engine *engine = run->engine;
    struct train_result *result = run->result;
    int micro = micro_batches(engine);
    if (number % micro == 0) {
        result->last_loss = 0.0;
    }
    result->last_loss += run->sink ? loss : loss / micro;
    result->correct += right;
    result->images += engine->draws[number % DRAWS].count;
    if (run->sink || (number + 1) % micro == 0) {
        result->steps++;
        result->loss_sum += result->last_loss;
    }
}

static void train_thread(void *context, int thread)
{
    const struct run *run = context;
    struct cpu_engine *engine = run->engine;
    int micro = micro_batches(engine);
    bool clips = engine->clip.limit > 0, gathers = clips || micro > 1;
    bool drawer = thread == engine->threads - 1;
    for (int64_t i = 0; drawer && i < 2 && i < run->batches; i++) {
        draw_batch(run, i);
    }
    pool_barrier(engine->pool);
    index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    forward_begin(run, 0, thread);
    for (int64_t q = 0; q < run->batches; q++) {
        if (drawer && q + 2 < run->batches) {
            draw_batch(run, q + 2);
        }
        if (q + 1 < run->batches) {
            index_batch(run, q + 1, thread);
        }
        struct matrix upper;
        int right;
        double loss = forward_finish(run, q, thread, &upper, &right);
        if (!isfinite(loss)) {
            if (thread == 0) {
                run->result->finite = false;
                run->result->bad_loss = loss;
            }
            return;
        }
        if (thread == 0) {
            record(run, q, loss, right);
        }
        struct gradient_sink sink = train_sink(run, q, thread);
        bool last = q + 1 == run->batches;
        if (clips) {
            backward_clipped(run, q, upper, thread, &sink);
        } else {
            backward(run, q, upper, thread, &sink, last || gathers ? -1 : q + 1);
        }
        if (micro > 1 && (q + 1) % micro == 0) {
            apply_collected(engine, thread);
        }
        if (gathers && !last) {
            forward_begin(run, q + 1, thread);
        }
    }
}

static bool cpu_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(engine->train && n >= 0);
    *result = (struct train_result){.finite = true};
    struct run run = {.engine = engine,
                      .first_step = engine->store.global_step,
                      .batches = n * micro_batches(engine),
                      .result = result};
    if (n > 0) {
        for (int i = 0; i < engine->threads; i++) {
            engine->members[i].store = engine->store;
        }
        pool_run(engine->pool, train_thread, &run);
        engine->store.global_step += result->steps;
    }
    if (engine->starved) {
        *error = engine->starved_error;
    }
    return !engine->starved;
}

static void step_thread(void *context, int thread)
{
    const struct run *run = context;
    struct cpu_engine *engine = run->engine;
    index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    forward_begin(run, 0, thread);
    struct matrix upper;
    int right;
    double loss = forward_finish(run, 0, thread, &upper, &right);
    if (thread == 0) {
        run->result->finite = isfinite(loss);
        run->result->bad_loss = loss;
    }
    if (isfinite(loss)) {
        if (thread == 0) {
            record(run, 0, loss, right);
        }
        if (engine->clip.limit > 0) {
            backward_clipped(run, 0, upper, thread, run->sink);
        } else {
            backward(run, 0, upper, thread, run->sink, -1);
        }
    }
}

static bool cpu_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
                     struct train_result *result, struct error *error)
{
    (void)error;
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(batch->count >= 1 && batch->count <= engine->config->train.batch_size);
    *result = (struct train_result){.finite = true};
    engine->draws[0].images = batch->images;
    draw_take(engine, &engine->draws[0], batch->indexes, batch->count, batch->labels);
    engine->draws[0].dropout = (struct dropout_batch){batch->task, batch->step};
    struct run run = {.engine = engine, .sink = sink, .batches = 1, .result = result};
    pool_run(engine->pool, step_thread, &run);
    return true;
}

/* ---- evaluation: each thread takes chunks of images through the whole network by itself ---- */

struct evaluation {
    struct cpu_engine *engine;
    const float *parameters;
    const uint8_t *images;
    int count;
    float *logits; /* [count, classes] */
};

static const float *evaluate_chunk(const struct evaluation *evaluation, struct member *member, const uint8_t *images,
                                   int count, int *pitch)
{
    const struct network *network = &evaluation->engine->network;
    struct workspace *workspace = &member->evaluation;
    for (int i = 0; i < member->evaluation_index.block_count; i++) {
        index_build(&member->evaluation_index, i, network->kernels, &member->index_scratch, images,
                    network->model->widths[0], NULL, count);
    }
    for (int l = 0; l < network->layers; l++) {
        bool last = l + 1 == network->layers;
        struct matrix *out = last ? &workspace->logits : &workspace->activations[l];
        bool partial = last && network->narrow && l > 0;
        int strips = network->strips[partial ? l - 1 : l].count;
        for (int i = 0; i < strips; i++) {
            if (l == 0) {
                pass_first(network, evaluation->parameters, &member->evaluation_index, count, out, i);
            } else if (partial) {
                pass_partial(network, evaluation->parameters, &workspace->activations[l - 1], count,
                             workspace->partials[0], workspace->capacity, i);
            } else {
                pass_forward(network, evaluation->parameters, l, &workspace->activations[l - 1], count, out, i);
            }
        }
        if (partial) {
            pass_sum(network, workspace->partials[0], workspace->capacity, count, member->scratch.logits);
            *pitch = KERNEL_NARROW;
            return member->scratch.logits;
        }
    }
    *pitch = workspace->logits.pitch;
    return workspace->logits.values;
}

static void evaluate_thread(void *context, int thread)
{
    PROFILE("evaluate");
    const struct evaluation *evaluation = context;
    struct cpu_engine *engine = evaluation->engine;
    int classes = engine->model->widths[engine->network.layers];
    int chunks = chunk_count(evaluation->count);
    for (int chunk = thread; chunk < chunks; chunk += engine->threads) {
        int first = chunk_first(evaluation->count, chunk);
        int count = chunk_first(evaluation->count, chunk + 1) - first;
        int pitch;
        const float *logits =
            evaluate_chunk(evaluation, &engine->members[thread],
                           evaluation->images + (size_t)first * (size_t)engine->model->widths[0], count, &pitch);
        for (int i = 0; i < count; i++) {
            memcpy(evaluation->logits + (size_t)(first + i) * (size_t)classes, logits + (size_t)i * (size_t)pitch,
                   (size_t)classes * sizeof *logits);
        }
    }
}

static bool cpu_forward(struct engine *base, bool averaged, const uint8_t *images, int count, float *logits,
                        struct error *error)
{
    (void)error;
    struct cpu_engine *engine = (struct cpu_engine *)base;
    struct evaluation evaluation = {.engine = engine,
                                    .images = images,
                                    .count = count,
                                    .logits = logits,
                                    .parameters = engine->store.vectors[averaged ? STORE_AVERAGES : STORE_PARAMETERS]};
    assert(evaluation.parameters);
    if (count > 0) {
        pool_run(engine->pool, evaluate_thread, &evaluation);
    }
    return true;
}

/* ---- state ---- */

static float *state_at(struct engine *base, enum store_vector vector, size_t first, size_t count)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(engine->store.vectors[vector]);
    assert(first <= engine->model->float_count && count <= engine->model->float_count - first);
    return engine->store.vectors[vector] + first;
}

static bool cpu_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                     struct error *error)
{
    (void)error;
    memcpy(values, state_at(base, vector, first, count), count * sizeof *values);
    return true;
}

static bool cpu_write(struct engine *base, enum store_vector vector, size_t first, size_t count, const float *values,
                      struct error *error)
{
    (void)error;
    memcpy(state_at(base, vector, first, count), values, count * sizeof *values);
    if (vector == STORE_SLOT0 || vector == STORE_SLOT1) {
        store_restored(&((struct cpu_engine *)base)->store);
    }
    return true;
}

static float *cpu_parameters(struct engine *base)
{
    return ((struct cpu_engine *)base)->store.vectors[STORE_PARAMETERS];
}

static int64_t cpu_global_step(const struct engine *base)
{
    return ((const struct cpu_engine *)base)->store.global_step;
}

static void cpu_set_global_step(struct engine *base, int64_t global_step)
{
    ((struct cpu_engine *)base)->store.global_step = global_step;
}

static void cpu_describe(const struct engine *base, char *text, size_t size)
{
    const struct cpu_engine *engine = (const struct cpu_engine *)base;
    snprintf(text, size, "CPU, %s kernels (%s), %d thread%s (%s)", engine->network.kernels->name, engine->why,
             engine->threads, engine->threads == 1 ? "" : "s",
             engine->config->train.num_threads > 0 ? "as asked" : "all CPUs of this process");
}

/* ---- creation ---- */

static void cpu_destroy(struct engine *base)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    if (!engine) {
        return;
    }
    pool_destroy(engine->pool);
    for (int i = 0; i < POOL_MAX_THREADS; i++) {
        scratch_destroy(&engine->members[i].scratch);
        index_scratch_destroy(&engine->members[i].index_scratch);
        workspace_destroy(&engine->members[i].evaluation);
        index_destroy(&engine->members[i].evaluation_index);
    }
    for (int i = 0; i < INDEXES; i++) {
        index_destroy(&engine->indexes[i]);
    }
    for (int i = 0; i < DRAWS; i++) {
        free(engine->draws[i].indexes);
        free(engine->draws[i].labels);
        free(engine->draws[i].places);
        free(engine->draws[i].memory);
    }
    free(engine->drawn);
    free(engine->streamed_labels);
    free(engine->in_order);
    free(engine->first_of_class);
    workspace_destroy(&engine->workspace);
    store_destroy(&engine->store);
    free(engine->gradient);
    clip_destroy(&engine->clip);
    free(engine);
}

static bool create_draws(struct cpu_engine *engine, int capacity, struct error *error)
{
    engine->drawn = calloc((size_t)capacity, sizeof *engine->drawn);
    engine->first_of_class =
        calloc((size_t)engine->model->widths[engine->network.layers] + 1, sizeof *engine->first_of_class);
    if (!engine->drawn || !engine->first_of_class) {
        return error_set(error, "no memory for batches of %d images: choose a smaller --batch_size", capacity);
    }
    for (int i = 0; i < DRAWS; i++) {
        engine->draws[i].indexes = calloc((size_t)capacity, sizeof(int32_t));
        engine->draws[i].labels = calloc((size_t)capacity, sizeof(int32_t));
        engine->draws[i].places = calloc((size_t)capacity, sizeof(int32_t));
        if (!engine->draws[i].indexes || !engine->draws[i].labels || !engine->draws[i].places) {
            return error_set(error, "no memory for batches of %d images: choose a smaller --batch_size", capacity);
        }
    }
    return true;
}

/* Memory for the batches of images that stream, with what vector loads may read beyond. */
static bool create_streamed(struct cpu_engine *engine, int capacity, struct error *error)
{
    size_t bytes = (size_t)capacity * (size_t)engine->model->widths[0] + IDX_PADDING;
    if (!engine->streaming) {
        return true;
    }
    engine->streamed_labels = calloc((size_t)capacity, sizeof *engine->streamed_labels);
    engine->in_order = calloc((size_t)capacity, sizeof *engine->in_order);
    bool there = engine->streamed_labels && engine->in_order;
    for (int i = 0; i < DRAWS; i++) {
        engine->draws[i].memory = calloc(1, bytes);
        there = there && engine->draws[i].memory;
    }
    for (int i = 0; there && i < capacity; i++) {
        engine->in_order[i] = i;
    }
    return there || error_set(error, "no memory for batches of %d images: choose a smaller --batch_size", capacity);
}

static bool create_members(struct cpu_engine *engine, int capacity, struct error *error)
{
    int most = capacity > KERNEL_CHUNK ? capacity : KERNEL_CHUNK;
    for (int i = 0; i < engine->threads; i++) {
        struct member *member = &engine->members[i];
        if (!scratch_create(&member->scratch, most, error) ||
            !index_scratch_create(&member->index_scratch, most, error) ||
            !workspace_create(&member->evaluation, &engine->network, KERNEL_CHUNK, false, error) ||
            !network_index_create(&engine->network, &member->evaluation_index, KERNEL_CHUNK, error)) {
            return false;
        }
    }
    return true;
}

static bool create_gradient(struct cpu_engine *engine, struct error *error)
{
    if (micro_batches(engine) > 1) {
        engine->gradient = calloc(engine->model->float_count, sizeof(float));
        if (!engine->gradient) {
            return error_set(error, "no memory to add up the gradients of micro-batches: use --micro_batches=1");
        }
    }
    return true;
}

static bool create_parts(struct cpu_engine *engine, struct error *error)
{
    const struct config_train *train = &engine->config->train;
    const struct kernels *kernels;
    if (!kernels_choose(&kernels, &engine->why, train->cpu_kernels, error)) {
        return false;
    }
    network_plan(&engine->network, engine->model, kernels, dropout_make((uint64_t)train->seed, train->dropout));
    engine->threads = train->num_threads > 0 ? train->num_threads : threads_available();
    engine->threads = engine->threads > POOL_MAX_THREADS ? POOL_MAX_THREADS : engine->threads;
    int capacity = train->batch_size;
    for (int i = 0; i < INDEXES; i++) {
        if (!network_index_create(&engine->network, &engine->indexes[i], capacity, error)) {
            return false;
        }
    }
    return pool_create(&engine->pool, engine->threads, error) &&
           store_create(&engine->store, engine->model, train, error) &&
           workspace_create(&engine->workspace, &engine->network, capacity, true, error) &&
           create_draws(engine, capacity, error) && create_streamed(engine, capacity, error) &&
           create_members(engine, capacity, error) && create_gradient(engine, error) &&
           clip_create(&engine->clip, engine->model, train->clip_norm, error);
}

static const struct engine_table cpu_table = {
    .name = "cpu",
    .train = cpu_train,
    .step = cpu_step,
    .forward = cpu_forward,
    .read = cpu_read,
    .write = cpu_write,
    .parameters = cpu_parameters,
    .global_step = cpu_global_step,
    .set_global_step = cpu_set_global_step,
    .describe = cpu_describe,
    .destroy = cpu_destroy,
};

bool cpu_engine_create(struct engine **out, const struct engine_options *options, struct error *error)
{
    struct cpu_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        return error_set(error, "no memory for the CPU engine");
    }
    engine->engine.table = &cpu_table;
    engine->model = options->model;
    engine->config = options->config;
    engine->train = options->train;
    engine->streaming = options->streaming;
    engine->sampler = (struct sampler){.seed = (uint64_t)options->config->train.seed,
                                       .task = options->first_task,
                                       .examples = options->train ? (uint32_t)options->train->count : 0,
                                       .batch_size = (uint32_t)options->config->train.batch_size};
    if (!create_parts(engine, error)) {
        cpu_destroy(&engine->engine);
        return false;
    }
    *out = &engine->engine;
    return true;
}
