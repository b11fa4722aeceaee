/*
 * A device that is the CPU engine, in the GPU engine's process: tests the host side of the GPU engine where there is
 * neither a GPU nor its kernels. It computes bit for bit what local training computes, from what it is given.
 *
 * REFERENCE_FAULT in the environment, "KIND VERB STEP": from that step on (or the next call after it) the verb fails in
 * that way.
 */
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/device/device.h"
#include "ps/store/store.h"
#include "tests/cuda/plain_driver.h"
#include "tests/ps/store/apply.h"
#include "worker/engine.h"
#include "base/random/sampler.h"

struct device {
    struct config config;
    struct model model;
    struct engine *engine;
    struct examples examples;
    struct examples like; /* sizes */
    struct device_shape shape;
    float *vectors[STORE_VECTORS];
    float *gradient;
    int64_t step; /* last trained, for faults */
    bool lost;
};

const struct driver_device plain_devices[] = {{.name = "Reference", .memory_bytes = 1000000}};
const int plain_device_count = 1;

/* --- Faults --- */

static bool misbehave(struct device *device, const char *verb, struct error *error)
{
    char kind[16], when[16];
    long long step;
    const char *fault = getenv("REFERENCE_FAULT");
    if (!fault || sscanf(fault, "%15s %15s %lld", kind, when, &step) != 3 || strcmp(when, verb) != 0 ||
        device->step < step) {
        return true;
    }
    if (strcmp(kind, "hang") == 0) {
        for (;;) {
            pause();
        }
    }
    if (strcmp(kind, "die") == 0) {
        raise(SIGKILL);
    }
    device->lost = strcmp(kind, "lose") == 0;
    return error_set(error, device->lost ? "the device is lost" : "the device has no memory");
}

/* --- Examples --- */

static struct examples like_shape(const struct device_shape *shape)
{
    bool rows = shape->numbers > 0 || shape->codes > 0;
    return (struct examples){.height = rows ? 0 : 1,
                             .width = rows ? 0 : shape->widths[0],
                             .inputs = rows ? shape->widths[0] : 0,
                             .numbers = shape->numbers,
                             .codes = shape->codes,
                             .targets = shape->targets,
                             .is_weighted = shape->weighted != 0};
}

/* As the CPU engine needs them; it does not write to them. */
static struct examples examples_of(const struct device *device, const struct device_examples *from)
{
    struct examples examples = device->like;
    examples.count = from->count;
    memcpy(&examples.images, &from->arrays[DEVICE_IMAGES], sizeof examples.images);
    memcpy(&examples.values, &from->arrays[DEVICE_VALUES], sizeof examples.values);
    memcpy(&examples.places, &from->arrays[DEVICE_PLACES], sizeof examples.places);
    memcpy(&examples.labels, &from->arrays[DEVICE_LABELS], sizeof examples.labels);
    memcpy(&examples.target_values, &from->arrays[DEVICE_TARGETS], sizeof examples.target_values);
    memcpy(&examples.weights, &from->arrays[DEVICE_WEIGHTS], sizeof examples.weights);
    return examples;
}

/* --- Create and destroy --- */

bool device_open(struct device **out, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error)
{
    if (ordinal > 0) {
        return error_set(error, "there is no gpu:%d", ordinal);
    }
    if (shape->memory_limit > 0 && shape->memory_limit < 500000) {
        return error_set(error, "the model needs 500,000 bytes of the device's memory, and may take %llu",
                         (unsigned long long)shape->memory_limit);
    }
    struct device *device = calloc(1, sizeof *device);
    device->shape = *shape;
    struct config_model *model = &device->config.model;
    model->layer_count = shape->layer_count + 1;
    memcpy(model->layers, shape->widths, (size_t)model->layer_count * sizeof model->layers[0]);
    model->activation = (enum activation)shape->activation;
    device->config.train = (struct config_train){.learning_rate = 1,
                                                 .lr_decay = 1,
                                                 .batch_size = shape->batch_size,
                                                 .micro_batches = 1,
                                                 .num_threads = 1,
                                                 .seed = (int64_t)shape->seed,
                                                 .dropout = shape->dropout,
                                                 .clip_norm = shape->clip_norm,
                                                 .loss = (enum loss_kind)shape->loss,
                                                 .huber_delta = (double)shape->huber_delta,
                                                 .quantile = (double)shape->quantile,
                                                 .label_smoothing = (double)shape->label_smoothing};
    model_layout(&device->model, model);
    for (int v = 0; v < STORE_VECTORS; v++) {
        device->vectors[v] = calloc(device->model.float_count, sizeof(float));
    }
    device->gradient = calloc(device->model.float_count, sizeof(float));
    device->like = like_shape(shape);
    struct engine_options options = {.model = &device->model, .config = &device->config, .like = &device->like};
    *out = device;
    return cpu_engine_create(&device->engine, &options, error);
}

void device_close(struct device *device)
{
    if (!device) {
        return;
    }
    device->engine->table->destroy(device->engine);
    for (int v = 0; v < STORE_VECTORS; v++) {
        free(device->vectors[v]);
    }
    free(device->gradient);
    examples_free(&device->examples);
    free(device);
}

const char *device_describe(const struct device *device)
{
    return "the reference";
}

int32_t device_precision(const struct device *device)
{
    return device->shape.precision;
}

bool device_lost(const struct device *device)
{
    return device->lost;
}

/* --- State --- */

bool device_data(struct device *device, const struct device_examples *examples, struct error *error)
{
    const struct examples from = examples_of(device, examples);
    if (!examples_create(&device->examples, &device->like, examples->count)) {
        return error_set(error, "out of memory");
    }
    examples_copy(&device->examples, 0, &from, 0, examples->count);
    return true;
}

bool device_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error)
{
    memcpy(device->vectors[vector] + first, values, count * sizeof *values);
    return misbehave(device, "write", error);
}

bool device_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error)
{
    /* A failing device may leave anything. */
    memset(values, 0x7f, count * sizeof *values);
    if (vector == STORE_SLOT0 && !misbehave(device, "read", error)) {
        return false;
    }
    memcpy(values, device->vectors[vector] + first, count * sizeof *values);
    return true;
}

/* --- Work --- */

static bool load(struct device *device, bool averaged, struct error *error)
{
    return device->engine->table->write(device->engine, STORE_PARAMETERS, 0, device->model.float_count,
                                        device->vectors[averaged ? STORE_AVERAGES : STORE_PARAMETERS], error);
}

static void apply(struct device *device, const struct update (*update)[2])
{
    bool has[STORE_VECTORS] = {true, optimizer_slots((enum optimizer_kind)device->shape.optimizer) > 0,
                               optimizer_slots((enum optimizer_kind)device->shape.optimizer) > 1,
                               device->shape.averages != 0};
    for (int i = 0; i < device->model.variable_count; i++) {
        const struct variable *variable = &device->model.variables[i];
        for (int row = 0; row < variable->rows; row++) {
            size_t at = variable->offset + (size_t)row * (size_t)variable->stride;
            float *places[STORE_VECTORS];
            for (int v = 0; v < STORE_VECTORS; v++) {
                places[v] = has[v] ? device->vectors[v] + at : NULL;
            }
            apply_update(&(*update)[variable->is_weights], (size_t)variable->cols, device->gradient + at, places[0],
                         places[1], places[2], places[3]);
        }
    }
}

static bool train_step(struct device *device, int64_t step, const struct update (*update)[2],
                       struct device_outcome *outcome, struct error *error)
{
    int micro = device->shape.micro_batches;
    double loss = 0;
    int32_t *indexes = calloc((size_t)device->shape.batch_size, sizeof *indexes);
    bool done = load(device, false, error);
    for (int i = 0; done && i < micro && outcome->finite; i++) {
        struct sampler sampler = {.seed = device->shape.seed,
                                  .task = device->shape.first_task + (uint32_t)i,
                                  .examples = (uint32_t)device->examples.count,
                                  .batch_size = (uint32_t)device->shape.batch_size};
        struct collector collector = {
            .model = &device->model, .sum = device->gradient, .weight = 1.0f / (float)micro, .first = i == 0};
        struct gradient_sink sink = collector_sink(&collector);
        struct batch batch = {.examples = &device->examples,
                              .indexes = indexes,
                              .count = sampler_draw(&sampler, step, indexes),
                              .task = sampler.task,
                              .step = step};
        struct train_result result;
        done = device->engine->table->step(device->engine, &batch, &sink, &result, error);
        outcome->finite = done && result.finite;
        outcome->bad_loss = result.bad_loss;
        outcome->correct += result.correct;
        outcome->images += result.images;
        loss += result.last_loss / micro;
    }
    free(indexes);
    if (done && outcome->finite) {
        apply(device, update);
        outcome->steps++;
        outcome->last_loss = loss;
        outcome->loss_sum += loss;
    }
    return done;
}

bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error)
{
    *outcome = (struct device_outcome){.finite = 1};
    for (int i = 0; i < n && outcome->finite; i++) {
        device->step = first_step + i;
        if (!misbehave(device, "train", error) || !train_step(device, first_step + i, &updates[i], outcome, error)) {
            return false;
        }
    }
    return true;
}

bool device_step(struct device *device, const struct device_batch *batch, float *gradient, _Atomic uint64_t *ready,
                 struct device_outcome *outcome, struct error *error)
{
    struct collector collector = {.model = &device->model, .sum = device->gradient, .weight = 1, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    int32_t indexes[4096];
    struct train_result result;
    const struct examples examples = examples_of(device, &batch->examples);
    struct batch drawn = {
        .examples = &examples, .indexes = indexes, .count = examples.count, .task = batch->task, .step = batch->step};
    for (int i = 0; i < examples.count; i++) {
        indexes[i] = i;
    }
    device->step = batch->step;
    if (!load(device, false, error) || !device->engine->table->step(device->engine, &drawn, &sink, &result, error)) {
        return false;
    }
    *outcome = (struct device_outcome){.steps = result.steps,
                                       .correct = result.correct,
                                       .images = result.images,
                                       .loss_sum = result.loss_sum,
                                       .last_loss = result.last_loss,
                                       .finite = result.finite,
                                       .bad_loss = result.bad_loss};
    for (size_t i = 0; result.finite && i < device->model.float_count; i++) {
        gradient[i] = device->gradient[i];
        if (i % 500 == 499) {
            atomic_store(ready, i + 1);
        }
        if (i == device->model.float_count / 2 && !misbehave(device, "step", error)) {
            return false;
        }
    }
    return true;
}

bool device_forward(struct device *device, bool averaged, const struct device_examples *examples, float *outputs,
                    struct error *error)
{
    const struct examples inputs = examples_of(device, examples);
    return misbehave(device, "forward", error) && load(device, averaged, error) &&
           device->engine->table->forward(device->engine, false, &inputs, 0, inputs.count, outputs, error);
}
