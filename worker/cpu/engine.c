/* The CPU engine: training, evaluation, and its table. */
#include "worker/cpu/engine.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/profile.h"
#include "worker/data/batch_source.h"
#include "worker/data/examples.h"
#include "worker/engine.h"

/* --- Training --- */

/* Runs over batches: many steps with the optimizer, or one whose gradient goes to a sink. */

/* Applies this thread's rows of the sum over all micro-batches. */
static void apply_collected(struct cpu_engine *engine, int thread)
{
    struct engine_thread *member = &engine->members[thread];
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
static struct gradient_sink train_sink(const struct engine_run *run, int64_t number, int thread)
{
    struct cpu_engine *engine = run->engine;
    struct engine_thread *member = &engine->members[thread];
    int micro = micro_batches(engine);
    if (number % micro == 0) {
        member->store.global_step = run->first_step + number / micro;
        store_begin_step(&member->store);
    }
    if (micro == 1) {
        return store_sink(&member->store);
    }
    /* All micro-batches of a step have the same size: that of the step's batch, for every task. */
    member->collector = (struct collector){
        .model = engine->model, .sum = engine->gradient, .weight = 1.0f / (float)micro, .first = number % micro == 0};
    return collector_sink(&member->collector);
}

static void record(const struct engine_run *run, int64_t number, double loss, int right)
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
    const struct engine_run *run = context;
    struct cpu_engine *engine = run->engine;
    int micro = micro_batches(engine);
    bool clips = engine->clip.limit > 0, gathers = clips || micro > 1;
    bool drawer = thread == engine->threads - 1;
    for (int64_t i = 0; drawer && i < 2 && i < run->batches; i++) {
        cpu_draw_batch(run, i);
    }
    pool_barrier(engine->pool);
    cpu_index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    cpu_forward_begin(run, 0, thread);
    for (int64_t q = 0; q < run->batches; q++) {
        if (drawer && q + 2 < run->batches) {
            cpu_draw_batch(run, q + 2);
        }
        if (q + 1 < run->batches) {
            cpu_index_batch(run, q + 1, thread);
        }
        struct matrix upper;
        int right;
        double loss = cpu_forward_finish(run, q, thread, &upper, &right);
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
            cpu_backward_clipped(run, q, upper, thread, &sink);
        } else {
            cpu_backward(run, q, upper, thread, &sink, last || gathers ? -1 : q + 1);
        }
        if (micro > 1 && (q + 1) % micro == 0) {
            apply_collected(engine, thread);
        }
        if (gathers && !last) {
            cpu_forward_begin(run, q + 1, thread);
        }
    }
}

static bool cpu_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    assert(engine->train && n >= 0);
    *result = (struct train_result){.finite = true};
    struct engine_run run = {.engine = engine,
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
    const struct engine_run *run = context;
    struct cpu_engine *engine = run->engine;
    cpu_index_batch(run, 0, thread);
    pool_barrier(engine->pool);
    cpu_forward_begin(run, 0, thread);
    struct matrix upper;
    int right;
    double loss = cpu_forward_finish(run, 0, thread, &upper, &right);
    if (thread == 0) {
        run->result->finite = isfinite(loss);
        run->result->bad_loss = loss;
    }
    if (isfinite(loss)) {
        if (thread == 0) {
            record(run, 0, loss, right);
        }
        if (engine->clip.limit > 0) {
            cpu_backward_clipped(run, 0, upper, thread, run->sink);
        } else {
            cpu_backward(run, 0, upper, thread, run->sink, -1);
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
    cpu_draw_take(engine, &engine->draws[0], batch);
    struct engine_run run = {.engine = engine, .sink = sink, .batches = 1, .result = result};
    pool_run(engine->pool, step_thread, &run);
    return true;
}

/* --- Evaluation --- */

/* Evaluation: each thread takes chunks of images through the whole network on its own, without barriers. */

struct evaluation_task {
    struct cpu_engine *engine;
    const float *parameters;
    const struct examples *examples;
    int first, count;
    float *logits; /* [count, classes] */
};

/* The next `count` examples from `first` on, counted in the whole set. */
static const float *evaluate_chunk(const struct evaluation_task *evaluation, struct engine_thread *member, int first,
                                   int count, int *pitch)
{
    const struct network *network = &evaluation->engine->network;
    struct workspace *workspace = &member->evaluation;
    const struct examples examples = examples_part(evaluation->examples, first, count);
    const struct pass pass = {.network = network,
                              .parameters = evaluation->parameters,
                              .index = &member->evaluation_index,
                              .count = count,
                              .workspace = workspace};
    for (int i = 0; i < member->evaluation_index.block_count; i++) {
        network_index_build(network, &member->evaluation_index, i, &member->index_scratch, &examples, NULL, count);
    }
    for (int l = 0; l < network->layers; l++) {
        bool last = l + 1 == network->layers;
        struct matrix *out = last ? &workspace->logits : &workspace->activations[l];
        bool partial = last && network->narrow && l > 0;
        int strips = network->strips[partial ? l - 1 : l].count;
        for (int i = 0; i < strips; i++) {
            if (l == 0) {
                pass_first(&pass, out, i, 1);
            } else if (partial) {
                pass_partial(&pass, &workspace->activations[l - 1], workspace->partials[0], i);
            } else {
                pass_forward(&pass, l, &workspace->activations[l - 1], out, i);
            }
        }
        if (partial) {
            pass_sum(&pass, workspace->partials[0], member->scratch.logits);
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
    const struct evaluation_task *evaluation = context;
    struct cpu_engine *engine = evaluation->engine;
    int classes = engine->model->widths[engine->network.layers];
    int chunks = chunk_count(evaluation->count);
    for (int chunk = thread; chunk < chunks; chunk += engine->threads) {
        int first = chunk_first(evaluation->count, chunk);
        int count = chunk_first(evaluation->count, chunk + 1) - first;
        int pitch;
        const float *logits =
            evaluate_chunk(evaluation, &engine->members[thread], evaluation->first + first, count, &pitch);
        for (int i = 0; i < count; i++) {
            memcpy(evaluation->logits + (size_t)(first + i) * (size_t)classes, logits + (size_t)i * (size_t)pitch,
                   (size_t)classes * sizeof *logits);
        }
    }
}

static bool cpu_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                        float *logits, struct error *error)
{
    (void)error;
    struct cpu_engine *engine = (struct cpu_engine *)base;
    struct evaluation_task evaluation = {.engine = engine,
                                         .examples = examples,
                                         .first = first,
                                         .count = count,
                                         .logits = logits,
                                         .parameters =
                                             engine->store.vectors[averaged ? STORE_AVERAGES : STORE_PARAMETERS]};
    assert(evaluation.parameters && examples_are_rows(examples) == examples_are_rows(&engine->network.like));
    if (count > 0) {
        pool_run(engine->pool, evaluate_thread, &evaluation);
    }
    return true;
}

/* --- The engine --- */

/* The CPU engine's state, and its creation; worker/cpu/engine.h explains the computation. */

/* --- state --- */

static bool is_cut(const struct cpu_engine *engine)
{
    return engine->own.variables[0].panels > 1;
}

/*
 * Copies floats [at, at + count) of one variable, counted in the job's layout, to `to` or from `from`, one of which is
 * NULL; in runs of rows that are contiguous in both layouts. Padding never changes: it is read as in any store, and not
 * written.
 */
static void copy_variable(struct cpu_engine *engine, enum store_vector vector, int variable, size_t at, size_t count,
                          float *to, const float *from)
{
    float *own = engine->store.vectors[vector];
    float unmoved = vector == STORE_SLOT0 || vector == STORE_SLOT1
                        ? optimizer_slot_initial(&engine->config->train, (int)(vector - STORE_SLOT0))
                        : 0.0f;
    const struct variable *outside = &engine->model->variables[variable];
    const struct variable *inside = &engine->own.variables[variable];
    for (size_t done = 0, piece; done < count; done += piece) {
        int row = (int)((at + done) / (size_t)outside->stride), col = (int)((at + done) % (size_t)outside->stride);
        bool padding = col >= outside->cols;
        int end = padding ? outside->stride : variable_panel_col(inside, variable_panel(inside, col) + 1);
        end = !padding && end > outside->cols ? outside->cols : end;
        piece = (size_t)(end - col) < count - done ? (size_t)(end - col) : count - done;
        if (padding && to) {
            for (size_t i = 0; i < piece; i++) {
                to[done + i] = unmoved;
            }
        } else if (to) {
            memcpy(to + done, own + variable_at(inside, row, col), piece * sizeof *to);
        } else if (from && !padding) {
            memcpy(own + variable_at(inside, row, col), from + done, piece * sizeof *from);
        }
    }
}

/* Copies floats [first, first + count) of the job's layout from the engine's own to `to`, or into it from `from`. */
static void copy_state(struct engine *base, enum store_vector vector, size_t first, size_t count, float *to,
                       const float *from)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    const struct model *model = engine->model;
    assert(engine->store.vectors[vector]);
    assert(first <= model->float_count && count <= model->float_count - first);
    for (int i = 0; i < model->variable_count; i++) {
        size_t begin = model->variables[i].offset;
        size_t end = i + 1 < model->variable_count ? model->variables[i + 1].offset : model->float_count;
        begin = begin > first ? begin : first;
        end = end < first + count ? end : first + count;
        if (begin < end) {
            copy_variable(engine, vector, i, begin - model->variables[i].offset, end - begin,
                          to ? to + (begin - first) : NULL, from ? from + (begin - first) : NULL);
        }
    }
}

static bool cpu_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                     struct error *error)
{
    (void)error;
    copy_state(base, vector, first, count, values, NULL);
    return true;
}

static bool cpu_write(struct engine *base, enum store_vector vector, size_t first, size_t count, const float *values,
                      struct error *error)
{
    (void)error;
    copy_state(base, vector, first, count, NULL, values);
    if (vector == STORE_SLOT0 || vector == STORE_SLOT1) {
        store_restored(&((struct cpu_engine *)base)->store);
    }
    return true;
}

static float *cpu_parameters(struct engine *base)
{
    struct cpu_engine *engine = (struct cpu_engine *)base;
    return is_cut(engine) ? NULL : engine->store.vectors[STORE_PARAMETERS];
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

/* --- creation --- */

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
        for (int k = 0; k < VIEWS; k++) {
            index_destroy(&engine->members[i].views[k]);
        }
    }
    for (int i = 0; i < INDEXES; i++) {
        index_destroy(&engine->indexes[i]);
    }
    for (int i = 0; i < DRAWS; i++) {
        free(engine->draws[i].indexes);
        free(engine->draws[i].labels);
        free(engine->draws[i].places);
        free(engine->draws[i].weights);
        free(engine->draws[i].wanted);
        batch_source_destroy(&engine->draws[i].source);
    }
    free(engine->first_of_class);
    free(engine->signatures);
    free(engine->bits);
    workspace_destroy(&engine->workspace);
    store_destroy(&engine->store);
    free(engine->gradient);
    clip_destroy(&engine->clip);
    free(engine);
}

static void create_draws(struct cpu_engine *engine, int batch_size)
{
    static const char what[] = "batches: choose a smaller --batch_size";
    const size_t capacity = (size_t)batch_size;
    engine->first_of_class =
        must_zero((size_t)engine->model->widths[engine->network.layers] + 1, sizeof *engine->first_of_class, what);
    engine->signatures = must_zero(capacity, sizeof *engine->signatures, what);
    for (int i = 0; i < DRAWS; i++) {
        engine->draws[i].indexes = must_zero(capacity, sizeof(int32_t), what);
        engine->draws[i].labels = must_zero(capacity, sizeof(int32_t), what);
        engine->draws[i].places = must_zero(capacity, sizeof(int32_t), what);
        engine->draws[i].weights = must_zero(capacity, sizeof(float), what);
        engine->draws[i].wanted = must_zero(capacity * (size_t)engine->wanted_stride + 1, sizeof(float), what);
    }
}

/* The batches that train() draws, several at a time: one is drawn while those before it are still indexed. */
static bool create_sources(struct cpu_engine *engine, const struct engine_options *options, struct error *error)
{
    const struct sampler sampler = {.seed = (uint64_t)options->config->train.seed,
                                    .task = options->first_task,
                                    .examples = options->train ? (uint32_t)options->train->count : 0,
                                    .batch_size = (uint32_t)options->config->train.batch_size};
    bool there = true;
    for (int i = 0; options->train && there && i < DRAWS; i++) {
        there = batch_source_create(&engine->draws[i].source, options->train, options->streaming, &sampler, error);
    }
    return there;
}

static void create_members(struct cpu_engine *engine, int capacity)
{
    int most = capacity > KERNEL_CHUNK ? capacity : KERNEL_CHUNK;
    for (int i = 0; i < engine->threads; i++) {
        struct engine_thread *member = &engine->members[i];
        scratch_create(&member->scratch, most);
        index_scratch_create(&member->index_scratch, most);
        workspace_create(&member->evaluation, &engine->network, KERNEL_CHUNK, false);
        network_index_create(&engine->network, &member->evaluation_index, KERNEL_CHUNK, false);
        for (int k = 0; k < VIEWS && engine->indexes[0].packed; k++) {
            index_view_create(&member->views[k], &engine->indexes[0]);
        }
    }
}

static bool create_parts(struct cpu_engine *engine, const struct engine_options *options, struct error *error)
{
    const struct examples *like = options->like ? options->like : options->train;
    const struct config_train *train = &engine->config->train;
    const struct kernels *kernels;
    if (!kernels_choose(&kernels, &engine->why, train->cpu_kernels, error)) {
        return false;
    }
    engine->own = *engine->model;
    network_plan(&engine->network, &engine->own, kernels,
                 dropout_make(dropout_seed((uint64_t)train->seed, options->net), train->dropout), like);
    engine->targets = like ? like->targets : 0;
    engine->wanted_stride = round_up(engine->targets, MODEL_ROW_ALIGN);
    /* Updates layer 0's weights in strips of columns, with threads side by side. */
    if (engine->train && engine->network.layers > 1 && micro_batches(engine) == 1 && !(train->clip_norm > 0.0)) {
        model_set_panels(&engine->own, 0, engine->network.strips[0].count, kernels->lanes);
    }
    engine->threads = train->num_threads > 0 ? train->num_threads : threads_available();
    engine->threads = engine->threads > POOL_MAX_THREADS ? POOL_MAX_THREADS : engine->threads;
    int capacity = train->batch_size;
    for (int i = 0; i < INDEXES; i++) {
        network_index_create(&engine->network, &engine->indexes[i], capacity, engine->threads > 1);
    }
    store_create(&engine->store, &engine->own, train);
    workspace_create(&engine->workspace, &engine->network, capacity, true);
    create_draws(engine, capacity);
    create_members(engine, capacity);
    clip_create(&engine->clip, engine->model, train->clip_norm);
    if (micro_batches(engine) > 1) {
        engine->gradient = must_zero(engine->model->float_count, sizeof(float),
                                     "the sum of the gradients of micro-batches: use --micro_batches=1");
    }
    if (!pool_create(&engine->pool, engine->threads, error) || !create_sources(engine, options, error)) {
        return false;
    }
    cpu_take_signatures(engine);
    return true;
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
    struct cpu_engine *engine = must_zero(1, sizeof *engine, "the CPU engine");
    engine->engine.table = &cpu_table;
    engine->model = options->model;
    engine->config = options->config;
    engine->train = options->train;
    if (!create_parts(engine, options, error)) {
        cpu_destroy(&engine->engine);
        return false;
    }
    if (options->low_priority) {
        pool_give_way(engine->pool);
    }
    *out = &engine->engine;
    return true;
}

/* The parameters; for each net a chunk of samples' indexes for each input, and their activations for each unit. */
size_t cpu_engine_most_bytes(const struct model *model)
{
    enum { INPUT = 48 * KERNEL_CHUNK, UNIT = 8 * KERNEL_CHUNK, REST = 1 << 20 };
    size_t bytes = model->float_count * sizeof(float);
    for (int net = 0; net < model->net_count; net++) {
        bytes += (size_t)model->variables[2 * model->layer_count * net].rows * INPUT + REST;
        for (int l = 0; l < model->layer_count; l++) {
            bytes += (size_t)model->widths[l + 1] * UNIT;
        }
    }
    return bytes;
}
