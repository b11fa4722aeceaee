/* One batch forward and backward, by a team of threads. */
#include "base/profile.h"
#include "worker/cpu/engine/internal.h"

/* --- rows of weights that lie far apart --- */

/*
 * A step on one-hot inputs waits for memory more than it computes: for a row of weights for each of them, and for as
 * many of the optimizer's slots. So all rows of a strip are prefetched at once, before the preceding computation: slots
 * and averages that batch `number` is about to change, and the weights with which batch `next` (< 0: none) starts.
 */
static void fetch_places(const struct engine_run *run, int64_t number, int64_t next, int strip)
{
    const struct cpu_engine *engine = run->engine;
    const struct strips *strips = &engine->network.strips[0];
    const int64_t batches[] = {run->sink ? -1 : number, next};
    const enum store_vector vectors[] = {STORE_SLOT0, STORE_PARAMETERS}, ends[] = {STORE_VECTORS, STORE_SLOT0};
    for (int i = 0; i < 2; i++) {
        if (batches[i] >= 0) {
            const struct place_index *places = &engine->indexes[batches[i] % INDEXES].places;
            const struct gradient_block rows = {.variable = 0,
                                                .row = places->first,
                                                .rows = places->count,
                                                .col = strip_col(strips, strip),
                                                .cols = strip_units(strips, strip),
                                                .present = places->present,
                                                .present_count = places->present_count};
            store_fetch(&engine->store, &rows, vectors[i], ends[i]);
        }
    }
}

/* --- the forward pass --- */

static bool is_regression(const struct network *network)
{
    return network->narrow && network->layers == 1;
}

/* The results for each sample of a batch. */
struct judged {
    float *losses;
    uint8_t *correct;
};

/* Softmax cross-entropy of samples [first, end), each with weight `weight`. */
static void softmax_rows(const struct cpu_engine *engine, const struct sampled_batch *draw, const struct matrix *logits,
                         const struct judged *verdict, int first, int end, float weight)
{
    struct softmax softmax = {.rows = end - first,
                              .classes = engine->model->widths[engine->network.layers],
                              .logits = logits->values + (size_t)first * (size_t)logits->pitch,
                              .stride = logits->pitch,
                              .labels = draw->labels + first,
                              .scale = weight / (float)draw->count,
                              .smoothing = (float)engine->config->train.label_smoothing,
                              .losses = verdict->losses + first,
                              .correct = verdict->correct + first};
    engine->network.kernels->softmax(&softmax);
}

/* The same with a loss that is a sum over outputs. */
static void output_rows(const struct cpu_engine *engine, const struct sampled_batch *draw, const struct matrix *outputs,
                        const struct judged *verdict, int first, int end, float weight)
{
    const struct config_train *train = &engine->config->train;
    struct output_loss loss = {.kind = train->loss,
                               .rows = end - first,
                               .targets = engine->targets,
                               .outputs = outputs->values + (size_t)first * (size_t)outputs->pitch,
                               .stride = outputs->pitch,
                               .wanted = draw->wanted + (size_t)first * (size_t)engine->wanted_stride,
                               .wanted_stride = engine->wanted_stride,
                               .scale = weight / (float)draw->count,
                               .smoothing = (float)train->label_smoothing,
                               .huber_delta = (float)train->huber_delta,
                               .quantile = (float)train->quantile,
                               .losses = verdict->losses + first,
                               .correct = verdict->correct + first};
    engine->network.kernels->output_loss(&loss);
}

/* Losses of samples [first, end), whose outputs become deltas. */
static void loss_rows(const struct cpu_engine *engine, const struct sampled_batch *draw, const struct matrix *outputs,
                      const struct judged *verdict, int first, int end)
{
    void (*rows)(const struct cpu_engine *, const struct sampled_batch *, const struct matrix *, const struct judged *,
                 int, int, float) = engine->targets > 0 ? output_rows : softmax_rows;
    if (!draw->is_weighted) {
        rows(engine, draw, outputs, verdict, first, end, 1.0f);
        return;
    }
    for (int i = first; i < end; i++) {
        rows(engine, draw, outputs, verdict, i, i + 1, draw->weights[i]);
        verdict->losses[i] *= draw->weights[i];
    }
}

/* A thread's own view of a packed index, before its first use. */
static void take_view(struct cpu_engine *engine, int64_t number, int thread)
{
    const struct batch_index *index = &engine->indexes[number % INDEXES];
    if (index->packed) {
        index_view_take(&engine->members[thread].views[number % VIEWS], index, engine->network.kernels);
    }
}

/* Batch `number` of the run; the backward pass adds scratch and sink. */
static struct pass pass_of(struct cpu_engine *engine, int64_t number, int thread)
{
    struct batch_index *index = &engine->indexes[number % INDEXES];
    return (struct pass){.network = &engine->network,
                         .parameters = engine->store.vectors[STORE_PARAMETERS],
                         .index = index->packed ? &engine->members[thread].views[number % VIEWS] : index,
                         .count = engine->draws[number % DRAWS].count,
                         .workspace = &engine->workspace};
}

/* Strips [strip, strip + strips) of the first layer, and their parts of the logits if those come next. */
static void forward_first(const struct engine_run *run, int64_t number, int strip, int strips, int thread)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct pass pass = pass_of(engine, number, thread);
    struct matrix *out = network->layers > 1 ? &engine->workspace.activations[0] : &engine->workspace.logits;
    pass_first(&pass, out, strip, strips);
    for (int i = strip; i < strip + strips; i++) {
        if (network->layers > 1) {
            const struct sampled_batch *draw = &engine->draws[number % DRAWS];
            pass_drop(&pass, 0, &draw->dropout, draw->places, i);
        }
        if (network->narrow && network->layers == 2) {
            pass_partial(&pass, &engine->workspace.outputs[0], engine->workspace.partials[number % 2], i);
        }
    }
}

/*
 * Number of the thread's strips of the first layer, from `strip` on, to process together; one if a strip's rows are
 * prefetched for it.
 */
static int group_of(const struct cpu_engine *engine, int64_t number, int strip, int end)
{
    int group = engine->network.like.codes > 0 ? 1 : pass_group(engine->draws[number % DRAWS].count);
    return group < end - strip ? group : end - strip;
}

/* The part of the logits of softmax regression that one pixel block adds. */
static void forward_regression(const struct engine_run *run, int64_t number, int block, int thread)
{
    struct cpu_engine *engine = run->engine;
    struct pass pass = pass_of(engine, number, thread);
    pass_first_partial(&pass, engine->workspace.partials[number % 2], block);
}

void cpu_forward_begin(const struct engine_run *run, int64_t number, int thread)
{
    PROFILE("forward");
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    if (is_regression(network)) {
        for (int block = thread; block < network->partials; block += engine->threads) {
            forward_regression(run, number, block, thread);
        }
        return;
    }
    take_view(engine, number, thread);
    int end = share_first(engine, network->strips[0].count, thread + 1);
    for (int i = share_first(engine, network->strips[0].count, thread), group; i < end; i += group) {
        group = group_of(engine, number, i, end);
        forward_first(run, number, i, group, thread);
    }
}

/* Layers 1 and up, except for narrow logits. A barrier before each. */
static void forward_layers(const struct engine_run *run, int64_t number, int thread)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct workspace *workspace = &engine->workspace;
    struct pass pass = pass_of(engine, number, thread);
    for (int l = 1; l < network->layers - network->narrow; l++) {
        pool_barrier(engine->pool);
        bool last = l + 1 == network->layers;
        struct matrix *out = last ? &workspace->logits : &workspace->activations[l];
        int strips = network->strips[l].count;
        for (int i = share_first(engine, strips, thread); i < share_first(engine, strips, thread + 1); i++) {
            pass_forward(&pass, l, &workspace->outputs[l - 1], out, i);
            if (!last) {
                const struct sampled_batch *draw = &engine->draws[number % DRAWS];
                pass_drop(&pass, l, &draw->dropout, draw->places, i);
            }
            if (network->narrow && l + 2 == network->layers) {
                pass_partial(&pass, &workspace->outputs[l], workspace->partials[number % 2], i);
            }
        }
    }
}

/* Mean loss, and number correct. Every thread adds these up, in the same order. */
static double mean_loss(const struct judged *verdict, int count, int *right)
{
    double sum = 0.0;
    *right = 0;
    for (int i = 0; i < count; i++) {
        sum += (double)verdict->losses[i];
        *right += verdict->correct[i];
    }
    return sum / count;
}

double cpu_forward_finish(const struct engine_run *run, int64_t number, int thread, struct matrix *upper, int *right)
{
    PROFILE("forward");
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct workspace *workspace = &engine->workspace;
    const struct sampled_batch *draw = &engine->draws[number % DRAWS];
    forward_layers(run, number, thread);
    pool_barrier(engine->pool);
    if (network->narrow) {
        struct scratch *scratch = &engine->members[thread].scratch;
        *upper = (struct matrix){.values = scratch->logits, .capacity = workspace->capacity, .pitch = KERNEL_NARROW};
        struct pass pass = pass_of(engine, number, thread);
        pass_sum(&pass, workspace->partials[number % 2], scratch->logits);
        const struct judged own = {scratch->losses, scratch->correct};
        loss_rows(engine, draw, upper, &own, 0, draw->count);
        return mean_loss(&own, draw->count, right);
    }
    *upper = workspace->logits;
    const struct judged shared = {workspace->losses, workspace->correct};
    loss_rows(engine, draw, upper, &shared, share_first(engine, draw->count, thread),
              share_first(engine, draw->count, thread + 1));
    pool_barrier(engine->pool);
    return mean_loss(&shared, draw->count, right);
}

/* --- the backward pass --- */

static struct pass backward_of(struct cpu_engine *engine, int64_t number, int thread, const struct gradient_sink *sink)
{
    struct pass pass = pass_of(engine, number, thread);
    pass.scratch = &engine->members[thread].scratch;
    pass.sink = sink;
    return pass;
}

static void backward_first(const struct engine_run *run, int64_t number, const struct matrix *upper, int strip,
                           int strips, int thread, const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    struct pass pass = backward_of(engine, number, thread, sink);
    for (int block = 0; block < pass.index->block_count; block++) {
        if (strip + strips == share_first(engine, engine->network.strips[0].count, thread + 1)) {
            cpu_fetch_images(run, number + 2, block, pass.index->block_count);
        }
        pass_first_gradient(&pass, block, upper, strip, strips);
    }
    for (int i = strip; i < strip + strips; i++) {
        pass_biases(&pass, 0, upper, i);
    }
}

/* Softmax regression: the threads share the pixel blocks, the first one has the biases. */
static void backward_regression(const struct engine_run *run, int64_t number, const struct matrix *upper, int thread,
                                const struct gradient_sink *sink, int64_t next)
{
    struct cpu_engine *engine = run->engine;
    const struct network *network = &engine->network;
    struct pass pass = backward_of(engine, number, thread, sink);
    for (int block = thread; block < network->partials; block += engine->threads) {
        for (int strip = 0; strip < network->strips[0].count; strip++) {
            pass_first_gradient(&pass, block, upper, strip, 1);
            if (block == 0) {
                pass_biases(&pass, 0, upper, strip);
            }
        }
        cpu_fetch_images(run, number + 2, block, network->partials);
        if (next >= 0) {
            forward_regression(run, next, block, thread);
        }
    }
}

/* The biases above layer 1, whose strips no other thread reads in this phase. */
static void backward_biases(const struct engine_run *run, int64_t number, int layer, const struct matrix *upper,
                            int thread, const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    struct pass pass = backward_of(engine, number, thread, sink);
    int strips = engine->network.strips[layer].count;
    int first = share_first(engine, strips, thread);
    int end = share_first(engine, strips, thread + 1);
    if (layer + 1 == engine->network.layers && engine->network.narrow) {
        /* Narrow logits: computed together with the first strip below, by its owner. */
        first = 0;
        end = share_first(engine, engine->network.strips[layer - 1].count, thread + 1) > 0 &&
                      share_first(engine, engine->network.strips[layer - 1].count, thread) == 0
                  ? strips
                  : 0;
    }
    for (int i = first; i < end; i++) {
        pass_biases(&pass, layer, upper, i);
    }
}

void cpu_backward(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
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
    if (next >= 0) {
        take_view(engine, next, thread);
    }
    struct pass pass = backward_of(engine, number, thread, sink);
    for (int l = network->layers - 1; l >= 0; l--) {
        const struct matrix *above = l + 1 == network->layers ? &upper : &workspace->deltas[l];
        if (l > 0) {
            backward_biases(run, number, l, above, thread, sink);
        }
        if (l == 0 && network->layers > 1) {
            break; /* done below, together with layer 1 */
        }
        int strips = network->strips[l > 0 ? l - 1 : 0].count;
        int end = share_first(engine, strips, thread + 1);
        for (int i = share_first(engine, strips, thread), group; i < end; i += group) {
            group = group_of(engine, number, i, end);
            if (l <= 1 && network->like.codes > 0) {
                fetch_places(run, number, next, i);
            }
            for (int strip = i; l > 0 && strip < i + group; strip++) {
                pass_backward(&pass, l, above, strip);
            }
            if (l <= 1) {
                backward_first(run, number, l == 1 ? &workspace->deltas[0] : above, i, group, thread, sink);
                if (next >= 0) {
                    forward_first(run, next, i, group, thread);
                }
            }
        }
        if (l > 1) {
            pool_barrier(engine->pool);
        }
    }
}

void cpu_backward_clipped(const struct engine_run *run, int64_t number, struct matrix upper, int thread,
                          const struct gradient_sink *sink)
{
    struct cpu_engine *engine = run->engine;
    struct gradient_sink whole = clip_sink(&engine->clip);
    cpu_backward(run, number, upper, thread, &whole, -1);
    pool_barrier(engine->pool);
    clip_measure(&engine->clip, thread, engine->threads);
    pool_barrier(engine->pool);
    clip_hand_on(&engine->clip, thread, engine->threads, sink);
    pool_barrier(engine->pool);
}
