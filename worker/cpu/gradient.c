/* One batch in the CPU engine: drawn and indexed, then its loss and gradient. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/profile.h"
#include "worker/cpu/engine.h"

/* --- Clipping --- */

/*
 * Squares are summed by row, and every thread adds up the rows' sums in the same order, so that the scale, and with it
 * every bit of the update, does not depend on the number of threads.
 */

void clip_create(struct clip *clip, const struct model *model, double limit)
{
    *clip = (struct clip){.model = model, .limit = limit};
    if (limit == 0.0) {
        return;
    }
    size_t rows = 0;
    for (int v = 0; v < model->variable_count; v++) {
        rows += (size_t)model->variables[v].rows;
    }
    clip->gradient = must_zero(model->float_count, sizeof *clip->gradient, "the gradient to clip: use --clip_norm=0");
    clip->squares = must_zero(rows, sizeof *clip->squares, "the gradient to clip: use --clip_norm=0");
    clip->collector = (struct collector){.model = model, .sum = clip->gradient, .weight = 1.0f, .first = true};
}

void clip_destroy(struct clip *clip)
{
    free(clip->gradient);
    free(clip->squares);
    *clip = (struct clip){0};
}

/* The sink for the batch's gradient, every element of which must arrive. */
static struct gradient_sink clip_sink(struct clip *clip)
{
    return collector_sink(&clip->collector);
}

static int share(int rows, int thread, int threads)
{
    return (int)((int64_t)rows * thread / threads);
}

static float *row_at(const struct clip *clip, const struct variable *variable, int row)
{
    return clip->gradient + variable->offset + (size_t)row * (size_t)variable->stride;
}

/* Next, after a barrier, called by thread `thread` of `threads`; then another barrier. */
static void clip_measure(struct clip *clip, int thread, int threads)
{
    double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        const struct variable *variable = &clip->model->variables[v];
        for (int row = share(variable->rows, thread, threads); row < share(variable->rows, thread + 1, threads);
             row++) {
            const float *values = row_at(clip, variable, row);
            double sum = 0.0;
            for (int i = 0; i < variable->cols; i++) {
                sum += (double)values[i] * (double)values[i];
            }
            squares[row] = sum;
        }
        squares += variable->rows;
    }
}

/* The gradient's scale. Every thread computes it, in the same order. */
static float factor(const struct clip *clip)
{
    double sum = 0.0;
    const double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        for (int row = 0; row < clip->model->variables[v].rows; row++) {
            sum += *squares++;
        }
    }
    double norm = sqrt(sum);
    return norm <= clip->limit ? 1.0f : (float)(clip->limit / norm);
}

/* Rows [row, end) that are all zero, or all nonzero. */
static void hand_run(struct clip *clip, int v, int row, int end, bool zero, float by, const struct gradient_sink *sink)
{
    static const int32_t none[1];
    const struct variable *variable = &clip->model->variables[v];
    for (int i = row; i < end && !zero && by != 1.0f; i++) {
        float *values = row_at(clip, variable, i);
        for (int k = 0; k < variable->cols; k++) {
            values[k] *= by;
        }
    }
    struct gradient_block block = {.variable = v,
                                   .row = row,
                                   .rows = end - row,
                                   .cols = variable->cols,
                                   .values = row_at(clip, variable, row),
                                   .stride = variable->stride,
                                   .present = zero ? none : NULL};
    sink->block(sink->context, &block);
}

/*
 * Finally, passes the thread's rows on to `sink`, zero rows as absent ones. A barrier must follow before the next
 * batch.
 */
static void clip_hand_on(struct clip *clip, int thread, int threads, const struct gradient_sink *sink)
{
    float by = factor(clip);
    const double *squares = clip->squares;
    for (int v = 0; v < clip->model->variable_count; v++) {
        int rows = clip->model->variables[v].rows;
        int end = share(rows, thread + 1, threads);
        for (int row = share(rows, thread, threads); row < end;) {
            int first = row;
            bool zero = squares[row] == 0.0;
            while (row < end && (squares[row] == 0.0) == zero) {
                row++;
            }
            hand_run(clip, v, first, row, zero, by, sink);
        }
        squares += rows;
    }
}

/* --- Drawing and indexing --- */

/* Prepares batches for the team: draws their images, and indexes their nonzero pixels. */

/* Pairing similar images pays off only with at least this many strips of columns. */
static bool is_paired(const struct cpu_engine *engine)
{
    enum { FROM_STRIPS = 4, FROM_PIXELS = 64 };
    return !examples_are_rows(&engine->network.like) && engine->indexes[0].row_stride != 0 &&
           engine->network.strips[0].count >= FROM_STRIPS && engine->model->widths[0] >= FROM_PIXELS;
}

/* 16 times 8 pixels of the middle three quarters: the rest is mostly empty. */
static void take_signature(const uint8_t *image, int pixels, uint64_t bits[2])
{
    enum { PIECES = 16 };
    const uint64_t low = 0x7F7F7F7F7F7F7F7F;
    bits[0] = bits[1] = 0;
    for (int i = 0; i < PIECES; i++) {
        uint64_t piece;
        memcpy(&piece, image + pixels / 8 + i * (pixels / 4 * 3) / PIECES, sizeof piece);
        uint64_t zero = ~(((piece & low) + low) | piece | low); /* the highest bit of each byte that is zero */
        bits[i / 8] |= zero >> i % 8;
    }
}

static void take_signatures(void *context, int thread)
{
    struct cpu_engine *engine = context;
    int pixels = engine->model->widths[0], end = share_first(engine, engine->train->count, thread + 1);
    for (int i = share_first(engine, engine->train->count, thread); i < end; i++) {
        take_signature(engine->train->images + (size_t)i * (size_t)pixels, pixels, engine->bits[i]);
    }
}

void cpu_take_signatures(struct cpu_engine *engine)
{
    if (engine->train && !engine->draws[0].source.streaming && is_paired(engine)) {
        engine->bits = must_zero((size_t)engine->train->count, sizeof *engine->bits, "16 bytes for each image");
        pool_run(engine->pool, take_signatures, engine);
    }
}

/* For image `index` of a draw. */
static void signature_of(const struct cpu_engine *engine, const struct sampled_batch *draw, int32_t index,
                         uint64_t bits[2])
{
    size_t pixels = (size_t)engine->model->widths[0];
    if (engine->bits && draw->examples->images == engine->train->images) {
        memcpy(bits, engine->bits[index], sizeof engine->bits[index]);
    } else {
        take_signature(draw->examples->images + (size_t)index * pixels, (int)pixels, bits);
    }
}

/* Rows stay as they are drawn: nothing would be gained by another order. */
static void take_as_drawn(struct cpu_engine *engine, struct sampled_batch *draw, const int32_t *indexes, int count)
{
    const struct examples *examples = draw->examples;
    size_t targets = (size_t)engine->targets;
    for (int i = 0; i < count; i++) {
        size_t from = (size_t)indexes[i];
        draw->places[i] = i;
        draw->indexes[i] = indexes[i];
        if (targets > 0) {
            memcpy(draw->wanted + (size_t)i * (size_t)engine->wanted_stride, examples->target_values + from * targets,
                   targets * sizeof(float));
        } else {
            draw->labels[i] = examples->labels[from];
        }
        if (examples->weights) {
            draw->weights[i] = examples->weights[from];
        }
    }
    draw->is_weighted = examples->weights;
}

/* Sorts by label, with similar ones side by side. */
static void take_in_order(struct cpu_engine *engine, struct sampled_batch *draw, const int32_t *indexes, int count)
{
    const int32_t *labels = draw->examples->labels;
    int classes = engine->model->widths[engine->network.layers];
    int32_t *first = engine->first_of_class;
    memset(first, 0, (size_t)(classes + 1) * sizeof *first);
    for (int i = 0; i < count; i++) {
        first[labels[indexes[i]] + 1]++;
    }
    for (int i = 0; i < classes; i++) {
        first[i + 1] += first[i];
    }
    bool paired = is_paired(engine);
    for (int i = 0; i < count; i++) {
        struct signature *signature = &engine->signatures[first[labels[indexes[i]]]++];
        signature->place = i;
        if (paired) {
            signature_of(engine, draw, indexes[i], signature->bits);
        }
    }
    if (paired) {
        engine->network.kernels->pair(count, engine->signatures);
    }
    for (int i = 0; i < count; i++) {
        int32_t place = engine->signatures[i].place;
        draw->places[i] = place;
        draw->indexes[i] = indexes[place];
        draw->labels[i] = labels[indexes[place]];
    }
}

void cpu_draw_take(struct cpu_engine *engine, struct sampled_batch *draw, const struct batch *batch)
{
    draw->examples = batch->examples;
    draw->dropout = (struct dropout_batch){batch->task, batch->step};
    if (examples_are_rows(batch->examples)) {
        take_as_drawn(engine, draw, batch->indexes, batch->count);
    } else {
        take_in_order(engine, draw, batch->indexes, batch->count);
    }
    draw->count = batch->count;
    atomic_store_explicit(&draw->next_block, 0, memory_order_relaxed);
}

/*
 * If examples can't be read any more, the first one of earlier ones replaces them: the team finishes its run, which
 * then fails as a whole.
 */
void cpu_draw_batch(const struct engine_run *run, int64_t number)
{
    struct cpu_engine *engine = run->engine;
    struct sampled_batch *draw = &engine->draws[number % DRAWS];
    struct batch_source *source = &draw->source;
    const uint32_t task = source->sampler.task + (uint32_t)(number % micro_batches(engine));
    const int64_t step = run->first_step + number / micro_batches(engine);
    struct batch batch = {
        .examples = &source->streamed, .indexes = source->indexes, .count = 1, .task = task, .step = step};
    if (!engine->starved && !batch_source_draw(source, task, step, &batch, &engine->starved_error)) {
        engine->starved = true; /* written only if so: other threads read what lies beside it */
    }
    batch.count = engine->starved ? 1 : batch.count;
    cpu_draw_take(engine, draw, &batch);
}

static void fetch(const void *memory, size_t bytes)
{
    enum { LINE = 64 };
    for (size_t at = 0; at < bytes; at += LINE) {
        __builtin_prefetch((const char *)memory + at, 0, 2);
    }
}

/*
 * Prefetches share `part` of `parts` of a batch's images shortly before they are indexed: they are scattered in memory,
 * and their latency hides behind computation.
 *
 * Into the L2 cache, because L1 has no room; by prefetches, which do not stall what follows.
 */
static void cpu_fetch_images(const struct engine_run *run, int64_t number, int part, int parts)
{
    if (number >= run->batches) {
        return;
    }
    const struct sampled_batch *draw = &run->engine->draws[number % DRAWS];
    const struct examples *examples = draw->examples;
    size_t pixels = (size_t)run->engine->model->widths[0];
    for (int i = (int)((int64_t)draw->count * part / parts); i < (int)((int64_t)draw->count * (part + 1) / parts);
         i++) {
        size_t index = (size_t)draw->indexes[i];
        if (examples_are_rows(examples)) {
            fetch(examples->values + index * (size_t)examples->numbers, (size_t)examples->numbers * sizeof(float));
            fetch(examples->positions + index * (size_t)examples->piecewise,
                  (size_t)examples->piecewise * sizeof(float));
            fetch(examples->places + index * (size_t)examples->codes, (size_t)examples->codes * sizeof(int32_t));
        } else {
            fetch(examples->images + index * pixels, pixels);
        }
    }
}

void cpu_index_batch(const struct engine_run *run, int64_t number, int thread)
{
    PROFILE("index batch");
    struct cpu_engine *engine = run->engine;
    struct batch_index *index = &engine->indexes[number % INDEXES];
    struct sampled_batch *draw = &engine->draws[number % DRAWS];
    for (int block;
         (block = atomic_fetch_add_explicit(&draw->next_block, 1, memory_order_relaxed)) < index->block_count;) {
        network_index_build(&engine->network, index, block, &engine->members[thread].index_scratch, draw->examples,
                            draw->indexes, draw->count);
    }
}

/* --- Loss and gradient --- */

/* One batch forward and backward, by a team of threads. */

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
