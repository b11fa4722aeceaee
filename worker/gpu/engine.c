/* The GPU engine: a gradient passed on while it grows, the copy on the host, and the fallback to the CPU. */
#include "worker/gpu/engine.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/usage.h"
#include "cuda/client.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

/* --- A gradient that grows --- */

/*
 * Passes a gradient that becomes final front to back on to a sink, in blocks of whole rows; a partial row waits for the
 * next floats. If the engine fails halfway, the rest comes from another engine.
 */

struct gradient_stream {
    const struct model *model; /* these three: borrowed */
    const struct gradient_sink *sink;
    const float *gradient; /* [float_count] */
    int variable, row;     /* the first row not yet passed on */
};

/* Number of a variable's rows that are complete within `floats` leading floats. */
static int whole_rows(const struct variable *variable, size_t floats)
{
    size_t width = (size_t)variable->cols, stride = (size_t)variable->stride;
    if (floats < variable->offset + width) {
        return 0;
    }
    size_t rows = (floats - variable->offset - width) / stride + 1;
    return rows < (size_t)variable->rows ? (int)rows : variable->rows;
}

/* `floats` leading floats are final now: passes on every complete row. context: a struct gradient_stream. */
static void gradient_stream_grown(void *context, size_t floats)
{
    struct gradient_stream *feed = context;
    while (feed->variable < feed->model->variable_count) {
        const struct variable *variable = &feed->model->variables[feed->variable];
        int rows = whole_rows(variable, floats);
        if (rows > feed->row) {
            struct gradient_block block = {.variable = feed->variable,
                                           .row = feed->row,
                                           .rows = rows - feed->row,
                                           .cols = variable->cols,
                                           .values = feed->gradient + variable->offset +
                                                     (size_t)feed->row * (size_t)variable->stride,
                                           .stride = variable->stride};
            feed->sink->block(feed->sink->context, &block);
            feed->row = rows;
        }
        if (feed->row < variable->rows) {
            return;
        }
        feed->variable++;
        feed->row = 0;
    }
}

/* Passes on the rows of a block from `first` on, one by one; listed rows count from the block's first. */
static void pass_rows(const struct gradient_stream *feed, const struct gradient_block *block, int first)
{
    static const int32_t nothing[1];
    int next = 0; /* index among the rows that values contains */
    for (int row = 0; row < block->rows; row++) {
        bool present = !block->present || (next < block->present_count && block->present[next] == row);
        if (row >= first) {
            struct gradient_block one = *block;
            one.row = block->row + row;
            one.rows = 1;
            one.present = present ? NULL : nothing;
            one.present_count = 0;
            one.values = block->values + (present ? (size_t)next * (size_t)block->stride : 0);
            feed->sink->block(feed->sink->context, &one);
        }
        next += present;
    }
}

static void pass_on(void *context, const struct gradient_block *block)
{
    const struct gradient_stream *feed = context;
    if (block->variable < feed->variable) {
        return;
    }
    if (block->variable == feed->variable && block->row < feed->row) {
        pass_rows(feed, block, feed->row - block->row);
        return;
    }
    feed->sink->block(feed->sink->context, block);
}

/* A sink for a whole gradient that skips the rows passed on already. The stream must not change meanwhile. */
static struct gradient_sink gradient_stream_rest(struct gradient_stream *feed)
{
    return (struct gradient_sink){.block = pass_on, .context = feed};
}

/* --- The engine --- */

/*
 * The copy: one of the two sets of vectors in shared memory holds the complete state as of kept_step. Writes to the
 * engine go there first, and to the device before it computes next; reads come from there, after a refresh. Between two
 * calls of train it is refreshed whenever that costs at most KEEP_SHARE of the time, which for MNIST-size networks is
 * after every call. A refresh goes into the other set, so that a device that fails halfway damages nothing.
 */

static const double KEEP_SHARE = 0.02;

/* Floats [first, end) of a vector; first == end: none. */
struct stretch {
    size_t first, end;
};

struct gpu_engine {
    struct engine engine;
    struct engine_options options;
    struct examples like;      /* the options': sizes */
    struct gpu_client *client; /* NULL: the CPU took over */
    struct engine *cpu;        /* set since then */
    struct device_shape shape;
    const struct gpu_areas *areas;
    char device[16]; /* "gpu:0" */
    char description[300];
    int64_t global_step;
    int kept; /* which set is the copy */
    int64_t kept_step;
    bool fresh;                           /* the copy is current; then kept_step is global_step */
    double kept_at_s;                     /* when it was made... */
    double keep_s;                        /* ...and how long that took */
    struct stretch unsent[STORE_VECTORS]; /* of the copy: not on the device yet */
};

static struct gpu_engine *of(struct engine *base)
{
    return (struct gpu_engine *)base;
}

static const struct config_train *train_config(const struct gpu_engine *engine)
{
    return &engine->options.config->train;
}

/* --- The copy --- */

static float *copy_of(const struct gpu_engine *engine, int vector)
{
    return engine->areas->vectors[engine->kept][vector];
}

/* Refreshes the copy. */
static bool refresh_copy(struct gpu_engine *engine, struct error *error)
{
    int other = 1 - engine->kept;
    double begin_s = clock_monotonic_s();
    if (engine->fresh) {
        return true;
    }
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (engine->areas->vectors[other][v] && !gpu_client_read(engine->client, other, (enum store_vector)v, 0,
                                                                 engine->options.model->float_count, error)) {
            return false;
        }
    }
    engine->kept = other;
    engine->kept_step = engine->global_step;
    engine->fresh = true;
    engine->kept_at_s = clock_monotonic_s();
    engine->keep_s = engine->kept_at_s - begin_s;
    return true;
}

static bool keep_if_due(struct gpu_engine *engine, struct error *error)
{
    bool due = KEEP_SHARE * (clock_monotonic_s() - engine->kept_at_s) >= engine->keep_s;
    return !due || refresh_copy(engine, error);
}

static void mark_unsent(struct gpu_engine *engine, enum store_vector vector, size_t first, size_t count)
{
    struct stretch *unsent = &engine->unsent[vector];
    bool none = unsent->first == unsent->end;
    unsent->first = none || first < unsent->first ? first : unsent->first;
    unsent->end = none || first + count > unsent->end ? first + count : unsent->end;
}

/* Sends the device what was written since it last computed. */
static bool flush_writes(struct gpu_engine *engine, struct error *error)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        struct stretch *unsent = &engine->unsent[v];
        if (unsent->first < unsent->end && !gpu_client_write(engine->client, engine->kept, (enum store_vector)v,
                                                             unsent->first, unsent->end - unsent->first, error)) {
            return false;
        }
        *unsent = (struct stretch){0, 0};
    }
    return true;
}

/* --- The CPU takes over --- */

static bool copy_to_cpu(struct gpu_engine *engine, struct engine *cpu, struct error *error)
{
    if (!engine_put_vectors(cpu, engine->areas->vectors[engine->kept], engine->options.model->float_count, error)) {
        return false;
    }
    cpu->table->set_global_step(cpu, engine->kept_step);
    return true;
}

/* Repeats the steps that the copy lacks. */
static bool catch_up(struct gpu_engine *engine, struct engine *cpu, struct error *error)
{
    struct train_result again;
    int64_t steps = engine->global_step - engine->kept_step;
    return steps == 0 || cpu->table->train(cpu, steps, &again, error);
}

/*
 * Called after a device failure described by `error`. True if the CPU has taken over, with the state of this step;
 * otherwise `error` becomes a complete message.
 */
static bool recover_at(struct gpu_engine *engine, int64_t step, struct error *error)
{
    struct error failure = *error;
    struct engine *cpu = NULL;
    if (!train_config(engine)->allow_soft_placement) {
        return error_set(error, "%s failed at step %lld: %s; set train.allow_soft_placement to continue on the CPU",
                         engine->device, (long long)step, failure.text);
    }
    log_warning("%s failed at step %lld: %s; continuing on the CPU", engine->device, (long long)step, failure.text);
    bool done = cpu_engine_create(&cpu, &engine->options, error) && copy_to_cpu(engine, cpu, error) &&
                catch_up(engine, cpu, error);
    if (!done) {
        if (cpu) {
            cpu->table->destroy(cpu);
        }
        return false;
    }
    gpu_client_stop(engine->client);
    engine->client = NULL;
    engine->areas = NULL;
    engine->cpu = cpu;
    device_log(&engine->options, "cpu:0");
    return true;
}

static bool recover(struct gpu_engine *engine, struct error *error)
{
    return recover_at(engine, engine->global_step, error);
}

/* --- train --- */

static void prepare_updates(struct gpu_engine *engine, int64_t first_step, int steps)
{
    struct update(*updates)[2] = gpu_client_updates(engine->client);
    for (int i = 0; i < steps; i++) {
        update_prepare(&updates[i][1], train_config(engine), first_step + i);
        updates[i][0] = updates[i][1];
        update_spare_biases(&updates[i][0]);
    }
}

static struct train_result result_of(const struct device_outcome *outcome)
{
    return (struct train_result){.steps = outcome->steps,
                                 .loss_sum = outcome->loss_sum,
                                 .last_loss = outcome->last_loss,
                                 .correct = outcome->correct,
                                 .images = outcome->images,
                                 .finite = outcome->finite != 0,
                                 .bad_loss = outcome->bad_loss};
}

/* At most n steps in one command. */
static bool train_some(struct gpu_engine *engine, int64_t n, struct train_result *result, struct error *error)
{
    int steps = n < PROTOCOL_UPDATES ? (int)n : PROTOCOL_UPDATES;
    struct device_outcome outcome;
    prepare_updates(engine, engine->global_step, steps);
    if (!flush_writes(engine, error) ||
        !gpu_client_train(engine->client, engine->global_step, steps, &outcome, error)) {
        return false;
    }
    outcome.steps = outcome.steps < 0 ? 0 : outcome.steps > steps ? steps : outcome.steps;
    engine->fresh &= outcome.steps == 0;
    engine->global_step += outcome.steps;
    const struct train_result done = result_of(&outcome);
    train_result_add(result, &done);
    return true;
}

static bool train_on_cpu(struct gpu_engine *engine, int64_t n, struct train_result *result, struct error *error)
{
    struct train_result more;
    if (!engine->cpu->table->train(engine->cpu, n, &more, error)) {
        return false;
    }
    train_result_add(result, &more);
    return true;
}

static bool gpu_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct gpu_engine *engine = of(base);
    *result = (struct train_result){.finite = true};
    while (engine->client && result->finite && result->steps < n) {
        int64_t before = result->steps;
        if (!train_some(engine, n - before, result, error) && !recover(engine, error)) {
            return false;
        }
        assert(!engine->client || !result->finite || result->steps > before);
    }
    if (engine->client) {
        return keep_if_due(engine, error) || recover(engine, error);
    }
    return result->steps == n || train_on_cpu(engine, n - result->steps, result, error);
}

/* --- Examples --- */

/* In the device's format. */
static struct device_examples arrays_of(const struct examples *examples)
{
    return (struct device_examples){.arrays = {[DEVICE_IMAGES] = examples->images,
                                               [DEVICE_VALUES] = examples->values,
                                               [DEVICE_PLACES] = examples->places,
                                               [DEVICE_LABELS] = examples->labels,
                                               [DEVICE_TARGETS] = examples->target_values,
                                               [DEVICE_WEIGHTS] = examples->weights},
                                    .count = examples->count};
}

/* Packs the batch into shared memory. */
static void put_batch(const struct gpu_engine *engine, const struct batch *batch)
{
    const struct device_examples examples = arrays_of(batch->examples);
    for (int array = 0; array < DEVICE_ARRAYS; array++) {
        size_t bytes = (size_t)device_example_bytes(&engine->shape, array);
        const char *from = examples.arrays[array];
        char *to = engine->areas->arrays[array];
        for (int i = 0; bytes > 0 && i < batch->count; i++) {
            memcpy(to + (size_t)i * bytes, from + (size_t)batch->indexes[i] * bytes, bytes);
        }
    }
}

/* Copies the inputs of examples into shared memory. */
static void put_inputs(const struct gpu_engine *engine, const struct device_examples *examples)
{
    for (int array = 0; array < DEVICE_INPUT_ARRAYS; array++) {
        size_t bytes = (size_t)examples->count * (size_t)device_example_bytes(&engine->shape, array);
        if (bytes > 0) {
            memcpy(engine->areas->arrays[array], examples->arrays[array], bytes);
        }
    }
}

/* --- step --- */

static bool step_on_gpu(struct gpu_engine *engine, const struct batch *batch, struct gradient_stream *feed,
                        struct train_result *result, struct error *error)
{
    struct device_outcome outcome;
    if (!flush_writes(engine, error)) {
        return false;
    }
    put_batch(engine, batch);
    if (!gpu_client_step(engine->client, batch->count, batch->task, batch->step, gradient_stream_grown, feed, &outcome,
                         error)) {
        return false;
    }
    const struct train_result done = result_of(&outcome);
    *result = (struct train_result){.finite = true};
    train_result_add(result, &done);
    return true;
}

static bool gpu_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
                     struct train_result *result, struct error *error)
{
    struct gpu_engine *engine = of(base);
    if (!engine->client) {
        return engine->cpu->table->step(engine->cpu, batch, sink, result, error);
    }
    struct gradient_stream feed = {.model = engine->options.model, .sink = sink, .gradient = engine->areas->gradient};
    if (step_on_gpu(engine, batch, &feed, result, error)) {
        return true;
    }
    if (!recover_at(engine, batch->step, error)) {
        return false;
    }
    struct gradient_sink rest = gradient_stream_rest(&feed);
    return engine->cpu->table->step(engine->cpu, batch, &rest, result, error);
}

/* --- forward --- */

static bool forward_on_gpu(struct gpu_engine *engine, bool averaged, const struct device_examples *examples,
                           float *logits, struct error *error)
{
    const struct model *model = engine->options.model;
    size_t outputs = (size_t)model->widths[model->layer_count];
    int most = engine->areas->most_examples;
    bool done = flush_writes(engine, error);
    for (int first = 0; done && first < examples->count; first += most) {
        int some = examples->count - first < most ? examples->count - first : most;
        const struct device_examples part = device_examples_part(&engine->shape, examples, first, some);
        put_inputs(engine, &part);
        done = gpu_client_forward(engine->client, averaged, some, error);
        if (done) {
            memcpy(logits + (size_t)first * outputs, engine->areas->outputs, (size_t)some * outputs * sizeof *logits);
        }
    }
    return done;
}

static bool gpu_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                        float *logits, struct error *error)
{
    struct gpu_engine *engine = of(base);
    const struct device_examples all = arrays_of(examples);
    const struct device_examples some = device_examples_part(&engine->shape, &all, first, count);
    if (engine->client && forward_on_gpu(engine, averaged, &some, logits, error)) {
        return true;
    }
    if (engine->client && !recover(engine, error)) {
        return false;
    }
    return engine->cpu->table->forward(engine->cpu, averaged, examples, first, count, logits, error);
}

/* --- State --- */

static bool gpu_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                     struct error *error)
{
    struct gpu_engine *engine = of(base);
    if (engine->client && !refresh_copy(engine, error) && !recover(engine, error)) {
        return false;
    }
    if (!engine->client) {
        return engine->cpu->table->read(engine->cpu, vector, first, count, values, error);
    }
    memcpy(values, copy_of(engine, (int)vector) + first, count * sizeof *values);
    return true;
}

static bool gpu_write(struct engine *base, enum store_vector vector, size_t first, size_t count, const float *values,
                      struct error *error)
{
    struct gpu_engine *engine = of(base);
    if (engine->client && !refresh_copy(engine, error) && !recover(engine, error)) {
        return false;
    }
    if (!engine->client) {
        return engine->cpu->table->write(engine->cpu, vector, first, count, values, error);
    }
    memcpy(copy_of(engine, (int)vector) + first, values, count * sizeof *values);
    mark_unsent(engine, vector, first, count);
    return true;
}

/*
 * From the copy: only workers ask, which never call train, so it is fresh. If it is not and cannot be refreshed, the
 * next step reports the device's failure.
 */
static float *gpu_parameters(struct engine *base)
{
    struct gpu_engine *engine = of(base);
    struct error error;
    if (engine->client && !refresh_copy(engine, &error)) {
        recover(engine, &error);
    }
    if (!engine->client) {
        return engine->cpu->table->parameters(engine->cpu);
    }
    mark_unsent(engine, STORE_PARAMETERS, 0, engine->options.model->float_count);
    return copy_of(engine, STORE_PARAMETERS);
}

static int64_t gpu_global_step(const struct engine *base)
{
    const struct gpu_engine *engine = (const struct gpu_engine *)base;
    return engine->client ? engine->global_step : engine->cpu->table->global_step(engine->cpu);
}

static void gpu_set_global_step(struct engine *base, int64_t global_step)
{
    struct gpu_engine *engine = of(base);
    if (!engine->client) {
        engine->cpu->table->set_global_step(engine->cpu, global_step);
        return;
    }
    /* Set together with parameters, so the copy belongs to that step. */
    engine->global_step = global_step;
    engine->kept_step = engine->fresh ? global_step : engine->kept_step;
}

static void gpu_describe(const struct engine *base, char *text, size_t size)
{
    const struct gpu_engine *engine = (const struct gpu_engine *)base;
    if (!engine->client) {
        engine->cpu->table->describe(engine->cpu, text, size);
    } else {
        snprintf(text, size, "%s: %s", engine->device, engine->description);
    }
}

/* --- Creation --- */

static void gpu_destroy(struct engine *base)
{
    struct gpu_engine *engine = of(base);
    if (!engine) {
        return;
    }
    if (engine->cpu) {
        engine->cpu->table->destroy(engine->cpu);
    }
    gpu_client_stop(engine->client);
    free(engine);
}

/* The format of examples; for an engine that only computes outputs, without targets. */
static void shape_examples(struct device_shape *shape, const struct engine_options *options)
{
    const struct examples *like = options->like ? options->like : options->train;
    if (like && examples_are_rows(like)) {
        shape->numbers = like->numbers;
        shape->codes = like->codes;
    }
    if (like && !options->only_forward) {
        shape->targets = like->targets;
        shape->weighted = like->is_weighted || like->weights;
    }
}

static struct device_shape shape_of(const struct engine_options *options)
{
    const struct config_train *train = &options->config->train;
    struct device_shape shape = {
        .layer_count = options->model->layer_count,
        .activation = (int32_t)options->model->activation,
        .optimizer = (int32_t)train->optimizer,
        .averages = train->ema_decay > 0,
        .batch_size = train->batch_size,
        .micro_batches = train->micro_batches,
        .precision = (int32_t)train->precision,
        .host_layers = layer_placement_of(train, options->model->layer_count).cpu_layers,
        .soft_precision = train->allow_soft_placement,
        .first_task = options->first_task,
        .seed = (uint64_t)train->seed,
        .loss = (int32_t)train->loss,
        .huber_delta = (float)train->huber_delta,
        .quantile = (float)train->quantile,
        .label_smoothing = (float)train->label_smoothing,
        .dropout = train->dropout,
        .clip_norm = train->clip_norm,
    };
    for (int i = 0; i <= options->model->layer_count; i++) {
        shape.widths[i] = options->model->widths[i];
    }
    shape_examples(&shape, options);
    return shape;
}

bool gpu_engine_begin(struct gpu_client *client, const struct engine_options *options, struct error *error)
{
    const struct config_train *train = &options->config->train;
    struct device_shape shape = shape_of(options);
    int gpu = layer_placement_of(train, options->model->layer_count).gpu;
    return gpu_client_open_begin(client, gpu, &shape, train->gpu_memory_fraction, options->model->float_count, error);
}

static bool finish_opening(struct gpu_engine *engine, struct error *error)
{
    const struct engine_options *options = &engine->options;
    engine->areas = gpu_client_areas(engine->client);
    for (int i = 0; i < DEVICE_ARRAYS; i++) { /* the format of examples was known at the start */
        assert(!engine->areas->arrays[i] == (device_example_bytes(&engine->shape, i) == 0));
    }
    if (!gpu_client_open_end(engine->client, error)) {
        return false;
    }
    if (options->train) {
        const struct device_examples examples = arrays_of(options->train);
        if (!gpu_client_data(engine->client, &examples, error)) {
            return false;
        }
    }
    process_watch_gpus(gpu_use_seconds);
    snprintf(engine->device, sizeof engine->device, "gpu:%d",
             layer_placement_of(&options->config->train, options->model->layer_count).gpu);
    snprintf(engine->description, sizeof engine->description, "%s", gpu_client_description(engine->client));
    if (gpu_client_precision(engine->client) != (int)options->config->train.precision) {
        log_warning("%s computes in %s: it has no tensor cores for --precision=%s", engine->device,
                    config_precision_name((enum precision)gpu_client_precision(engine->client)),
                    config_precision_name(options->config->train.precision));
    }
    return true;
}

static const struct engine_table gpu_table = {
    .name = "gpu",
    .train = gpu_train,
    .step = gpu_step,
    .forward = gpu_forward,
    .read = gpu_read,
    .write = gpu_write,
    .parameters = gpu_parameters,
    .global_step = gpu_global_step,
    .set_global_step = gpu_set_global_step,
    .describe = gpu_describe,
    .destroy = gpu_destroy,
};

/* As in a new store: slots at their initial values, everything else zero, like the device's vectors. */
static void initialise_slots(struct gpu_engine *engine)
{
    size_t floats = engine->options.model->float_count;
    for (int slot = 0; slot < optimizer_slots(train_config(engine)->optimizer); slot++) {
        float initial = optimizer_slot_initial(train_config(engine), slot);
        float *values = copy_of(engine, STORE_SLOT0 + slot);
        for (size_t i = 0; i < floats; i++) {
            values[i] = initial;
        }
        mark_unsent(engine, (enum store_vector)(STORE_SLOT0 + slot), 0, floats);
    }
}

bool gpu_engine_create(struct engine **out, const struct engine_options *options, struct gpu_client *client,
                       struct error *error)
{
    struct gpu_engine *engine = must_zero(1, sizeof *engine, "the GPU engine");
    engine->engine.table = &gpu_table;
    engine->client = client;
    engine->options = *options;
    if (options->like) {
        engine->like = *options->like;
        engine->options.like = &engine->like; /* for a CPU engine that takes over after the caller's is gone */
    }
    engine->shape = shape_of(options);
    engine->fresh = true;
    if (!finish_opening(engine, error)) {
        gpu_destroy(&engine->engine);
        return false;
    }
    initialise_slots(engine);
    *out = &engine->engine;
    return true;
}
