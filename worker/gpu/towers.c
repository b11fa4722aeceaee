/* Starts all towers, then collects them in order: devices work at the same time, and the sum has one order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/threads.h"
#include "cuda/client.h"
#include "ps/store/store.h"
#include "worker/data/batch_source.h"
#include "worker/gpu/engine.h"

enum { MAX_TOWERS = 16 };

struct towers;

struct tower {
    struct towers *all;
    struct config config; /* the job's, on this device, without what the host computes */
    struct engine *engine;
    float *gradient;            /* [float_count], of its batch */
    struct batch_source source; /* what it trains on; zeros: it never does */
    uint64_t version;           /* of its parameters, a copy of the store's vector `has` */
    enum store_vector has;
    struct batch batch; /* in progress; count 0: none */
    struct train_result result;
    bool failed;
    struct error error;
};

struct towers {
    struct engine engine;
    struct engine_options options;
    struct store store; /* the parameters themselves */
    uint64_t version;   /* incremented when they change */
    struct pool *pool;
    struct tower towers[MAX_TOWERS];
    int count;
    float *sum; /* [float_count] */
};

static struct towers *of(struct engine *base)
{
    return (struct towers *)base;
}

static int micro_batches(const struct towers *all)
{
    return all->options.config->train.micro_batches;
}

/* --- One tower --- */

/* Sends it the store's parameters, or the averages instead, unless it has them. */
static bool hand_over(struct tower *tower, enum store_vector vector, struct error *error)
{
    struct towers *all = tower->all;
    if (tower->version == all->version && tower->has == vector) {
        return true;
    }
    tower->version = all->version;
    tower->has = vector;
    return tower->engine->table->write(tower->engine, STORE_PARAMETERS, 0, all->options.model->float_count,
                                       all->store.vectors[vector], error);
}

/* Computes its batch's gradient into its memory. */
static void compute(void *context, int thread)
{
    struct tower *tower = &((struct towers *)context)->towers[thread];
    struct collector collector = {
        .model = tower->all->options.model, .sum = tower->gradient, .weight = 1, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    if (tower->batch.count > 0) {
        tower->failed = !hand_over(tower, STORE_PARAMETERS, &tower->error) ||
                        !tower->engine->table->step(tower->engine, &tower->batch, &sink, &tower->result, &tower->error);
    }
}

static void add_to_sum(struct towers *all, const struct tower *tower, float weight, bool first)
{
    struct collector collector = {.model = all->options.model, .sum = all->sum, .weight = weight, .first = first};
    struct gradient_sink sink = collector_sink(&collector);
    gradient_feed(all->options.model, tower->gradient, &sink);
}

/* Runs all towers' batches; the results stay in the towers. */
static bool compute_all(struct towers *all, struct error *error)
{
    pool_run(all->pool, compute, all);
    for (int i = 0; i < all->count; i++) {
        if (all->towers[i].batch.count > 0 && all->towers[i].failed) {
            *error = all->towers[i].error;
            return false;
        }
    }
    return true;
}

/* --- train --- */

/* Adds up the gradients of one step's batches; *loss is their mean. Stops at a loss that is not finite. */
static bool gather_step(struct towers *all, int64_t step, double *loss, struct train_result *result,
                        struct error *error)
{
    int micro = micro_batches(all);
    *loss = 0;
    for (int first = 0; first < micro && result->finite; first += all->count) {
        for (int i = 0; i < all->count; i++) {
            struct tower *tower = &all->towers[i];
            const uint32_t task = tower->source.sampler.task + (uint32_t)(first + i);
            if (!batch_source_draw(&tower->source, task, step, &tower->batch, error)) {
                return false;
            }
        }
        if (!compute_all(all, error)) {
            return false;
        }
        for (int i = 0; i < all->count && result->finite; i++) {
            const struct train_result *one = &all->towers[i].result;
            result->finite = one->finite;
            result->bad_loss = one->bad_loss;
            result->correct += one->finite ? one->correct : 0;
            result->images += one->finite ? one->images : 0;
            *loss += one->last_loss / micro;
            if (one->finite) {
                add_to_sum(all, &all->towers[i], 1.0f / (float)micro, first + i == 0);
            }
        }
    }
    return true;
}

static bool towers_train(struct engine *base, int64_t n, struct train_result *result, struct error *error)
{
    struct towers *all = of(base);
    struct gradient_sink sink = store_sink(&all->store);
    *result = (struct train_result){.finite = true};
    while (result->steps < n) {
        double loss;
        if (!gather_step(all, all->store.global_step, &loss, result, error)) {
            return false;
        }
        if (!result->finite) {
            return true;
        }
        store_begin_step(&all->store);
        gradient_feed(all->options.model, all->sum, &sink);
        store_end_step(&all->store);
        all->version++;
        result->steps++;
        result->last_loss = loss;
        result->loss_sum += loss;
    }
    return true;
}

/* --- step and forward --- */

/* Splits a batch's images among the towers; each part's gradient is weighted by its images. */
static bool towers_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
                        struct train_result *result, struct error *error)
{
    struct towers *all = of(base);
    bool first = true;
    for (int i = 0; i < all->count; i++) {
        int begin = batch->count * i / all->count, end = batch->count * (i + 1) / all->count;
        all->towers[i].batch = *batch;
        all->towers[i].batch.indexes = batch->indexes + begin;
        all->towers[i].batch.count = end - begin;
    }
    if (!compute_all(all, error)) {
        return false;
    }
    *result = (struct train_result){.steps = 1, .finite = true};
    for (int i = 0; i < all->count && result->finite; i++) {
        const struct tower *tower = &all->towers[i];
        float weight = (float)tower->batch.count / (float)batch->count;
        if (tower->batch.count == 0) {
            continue;
        }
        result->finite = tower->result.finite;
        result->bad_loss = tower->result.bad_loss;
        result->correct += tower->result.correct;
        result->images += tower->result.images;
        result->last_loss += (double)weight * tower->result.last_loss;
        if (result->finite) {
            add_to_sum(all, tower, weight, first);
            first = false;
        }
    }
    result->steps = result->finite;
    result->loss_sum = result->last_loss;
    if (result->finite) {
        gradient_feed(all->options.model, all->sum, sink);
    }
    return true;
}

static bool towers_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                           float *logits, struct error *error)
{
    struct towers *all = of(base);
    struct tower *tower = &all->towers[0];
    return hand_over(tower, averaged ? STORE_AVERAGES : STORE_PARAMETERS, error) &&
           tower->engine->table->forward(tower->engine, false, examples, first, count, logits, error);
}

/* --- State --- */

static bool towers_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                        struct error *error)
{
    (void)error;
    memcpy(values, of(base)->store.vectors[vector] + first, count * sizeof *values);
    return true;
}

static bool towers_write(struct engine *base, enum store_vector vector, size_t first, size_t count, const float *values,
                         struct error *error)
{
    (void)error;
    memcpy(of(base)->store.vectors[vector] + first, values, count * sizeof *values);
    of(base)->version++;
    if (vector == STORE_SLOT0 || vector == STORE_SLOT1) {
        store_restored(&of(base)->store);
    }
    return true;
}

static float *towers_parameters(struct engine *base)
{
    of(base)->version++;
    return of(base)->store.vectors[STORE_PARAMETERS];
}

static int64_t towers_global_step(const struct engine *base)
{
    return ((const struct towers *)base)->store.global_step;
}

static void towers_set_global_step(struct engine *base, int64_t global_step)
{
    of(base)->store.global_step = global_step;
}

static void towers_describe(const struct engine *base, char *text, size_t size)
{
    const struct towers *all = (const struct towers *)base;
    size_t used = (size_t)snprintf(text, size, "%d towers", all->count);
    for (int i = 0; i < all->count && used < size; i++) {
        char one[256];
        const struct engine *engine = all->towers[i].engine;
        engine->table->describe(engine, one, sizeof one);
        used += (size_t)snprintf(text + used, size - used, "%s%s", i == 0 ? ": " : "; ", one);
    }
}

/* --- Creation --- */

static void towers_destroy(struct engine *base)
{
    struct towers *all = of(base);
    pool_destroy(all->pool);
    for (int i = 0; i < all->count; i++) {
        struct tower *tower = &all->towers[i];
        if (tower->engine) {
            tower->engine->table->destroy(tower->engine);
        }
        free(tower->gradient);
        batch_source_destroy(&tower->source);
    }
    store_destroy(&all->store);
    free(all->sum);
    free(all);
}

/* Layers on the CPU only because of train.device stay there even if a tower's device is a GPU. */
static void keep_on_cpu(struct config *tower, const struct config *config)
{
    int layers = config->model.layer_count - 1;
    struct layer_placement placement = layer_placement_of(&config->train, layers);
    for (int l = 0; placement.by_hand && l < layers; l++) {
        if (placement.cpu_layers >> l & 1) {
            tower->train.placement[l] = LAYER_ON_CPU;
        }
    }
}

/* Parses "gpu:0,gpu:1" into the towers' configs. */
static bool read_devices(struct towers *all, const char *devices, struct error *error)
{
    const struct config *config = all->options.config;
    for (const char *at = devices; *at != '\0';) {
        struct tower *tower = &all->towers[all->count];
        int length = (int)strcspn(at, ", "), used = 0;
        if (all->count == MAX_TOWERS) {
            return error_set(error, "train.towers: more than %d devices", MAX_TOWERS);
        }
        *tower = (struct tower){.all = all, .config = *config};
        tower->config.train.optimizer = OPTIMIZER_SGD;
        tower->config.train.ema_decay = 0;
        tower->config.train.micro_batches = 1;
        keep_on_cpu(&tower->config, config);
        tower->config.train.device = DEVICE_GPU;
        if (length == 3 && strncmp(at, "cpu", 3) == 0) {
            tower->config.train.device = DEVICE_CPU;
        } else if (sscanf(at, "gpu:%2d%n", &tower->config.train.device_index, &used) != 1 || used != length ||
                   tower->config.train.device_index < 0) {
            return error_set(error, "train.towers: expected gpu:N or cpu, got '%.*s'", length, at);
        }
        all->count++;
        at += length;
        at += strspn(at, ", ");
    }
    if (all->count == 0) {
        return error_set(error, "train.towers: no device");
    }
    if (micro_batches(all) % all->count != 0) {
        return error_set(error, "train.towers: %d devices cannot share micro_batches=%d evenly; use --micro_batches=%d",
                         all->count, micro_batches(all), all->count);
    }
    return true;
}

static bool create_source(struct tower *tower, struct error *error)
{
    const struct engine_options *options = &tower->all->options;
    const struct sampler sampler = {.seed = (uint64_t)options->config->train.seed,
                                    .task = options->first_task,
                                    .examples = options->train ? (uint32_t)options->train->count : 0,
                                    .batch_size = (uint32_t)options->config->train.batch_size};
    return !options->train || batch_source_create(&tower->source, options->train, options->streaming, &sampler, error);
}

static bool create_tower(struct tower *tower, struct error *error)
{
    struct towers *all = tower->all;
    struct engine_options options = {.model = all->options.model,
                                     .config = &tower->config,
                                     .like = all->options.like ? all->options.like : all->options.train};
    struct gpu_client *client;
    tower->gradient = must_zero(options.model->float_count, sizeof *tower->gradient, "a tower's gradient");
    if (!create_source(tower, error)) {
        return false;
    }
    if (tower->config.train.device == DEVICE_CPU) {
        return cpu_engine_create(&tower->engine, &options, error);
    }
    if (!gpu_client_start(&client, tower->config.train.gpu_timeout_secs, error)) {
        return false;
    }
    if (!gpu_engine_begin(client, &options, error)) {
        gpu_client_stop(client);
        return false;
    }
    return gpu_engine_create(&tower->engine, &options, client, error) ||
           error_wrap(error, "tower gpu:%d", tower->config.train.device_index);
}

static bool create_parts(struct towers *all, const char *devices, struct error *error)
{
    const struct config *config = all->options.config;
    all->sum = must_zero(all->options.model->float_count, sizeof *all->sum, "the sum of the towers' gradients");
    store_create(&all->store, all->options.model, &config->train);
    if (!read_devices(all, devices, error) || !pool_create(&all->pool, all->count, error)) {
        return false;
    }
    for (int i = 0; i < all->count; i++) {
        if (!create_tower(&all->towers[i], error)) {
            return false;
        }
    }
    return true;
}

static const struct engine_table towers_table = {
    .name = "towers",
    .train = towers_train,
    .step = towers_step,
    .forward = towers_forward,
    .read = towers_read,
    .write = towers_write,
    .parameters = towers_parameters,
    .global_step = towers_global_step,
    .set_global_step = towers_set_global_step,
    .describe = towers_describe,
    .destroy = towers_destroy,
};

bool towers_engine_create(struct engine **out, const struct engine_options *options, const char *devices,
                          struct error *error)
{
    struct towers *all = must_zero(1, sizeof *all, "towers");
    all->engine.table = &towers_table;
    all->options = *options;
    all->version = 1;
    if (!create_parts(all, devices, error)) {
        towers_destroy(&all->engine);
        return false;
    }
    *out = &all->engine;
    return true;
}
