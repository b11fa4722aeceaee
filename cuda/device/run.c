/* One GPU that trains one model: opened, trained on, and asked for gradients and logits. */
#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/device/state.h"

/* --- Opening and closing --- */

bool device_lost(const struct device *device)
{
    return device->lost;
}

const char *device_describe(const struct device *device)
{
    return device->description;
}

static const char *precision_name(int32_t precision)
{
    return precision == PRECISION_TF32 ? "tf32" : precision == PRECISION_BFLOAT16 ? "bfloat16" : "float32";
}

int32_t device_precision(const struct device *device)
{
    return device->shape.precision;
}

static bool check_shape(const struct device_shape *shape, struct error *error)
{
    bool fine = shape->layer_count >= 1 && shape->layer_count < CONFIG_MAX_LAYERS && shape->batch_size >= 1 &&
                shape->micro_batches >= 1 && shape->precision >= PRECISION_FLOAT32 &&
                shape->precision <= PRECISION_BFLOAT16 && shape->optimizer >= 0 && shape->optimizer < OPTIMIZER_KINDS &&
                shape->numbers >= 0 && shape->codes >= 0 && shape->targets >= 0;
    for (int i = 0; fine && i <= shape->layer_count; i++) {
        fine = shape->widths[i] >= 1 && shape->widths[i] <= (i == 0 ? CONFIG_MAX_INPUTS : CONFIG_MAX_WIDTH);
    }
    fine = fine && shape->numbers <= shape->widths[0] && shape->codes <= shape->widths[0] &&
           (shape->targets == 0 || shape->targets == shape->widths[shape->layer_count]);
    if (!fine) {
        return error_set(error, "bug: the GPU engine got a model that no config allows");
    }
    return true;
}

/* Tensor cores support these formats since compute capability 8.0. */
static bool choose_precision(struct device *device, struct error *error)
{
    const struct driver_device *about = &device->about;
    struct device_shape *shape = &device->shape;
    if (shape->precision == PRECISION_FLOAT32 || about->major >= 8) {
        return true;
    }
    if (shape->soft_precision) {
        shape->precision = PRECISION_FLOAT32;
        return true;
    }
    return error_set(error,
                     "%s has compute capability %d.%d, and precision %s needs 8.0 or newer: use --precision=float32",
                     about->name, about->major, about->minor, precision_name(shape->precision));
}

static void lay_out(struct device *device)
{
    const struct device_shape *shape = &device->shape;
    const bool rows = shape->numbers > 0 || shape->codes > 0;
    struct config_model config = {.layer_count = shape->layer_count + 1,
                                  .activation = (enum activation)shape->activation};
    memcpy(config.layers, shape->widths, sizeof config.layers);
    model_layout(&device->model, &config);
    device->network = (struct kernel_network){
        .layers = shape->layer_count,
        .activation = shape->activation,
        .precision = shape->precision,
        .host_layers = shape->host_layers,
        .loss = {.kind = shape->loss,
                 .targets = shape->targets,
                 .smoothing = shape->label_smoothing,
                 .huber_delta = shape->huber_delta,
                 .quantile = shape->quantile},
        .rows = {.numbers = shape->numbers, .codes = shape->codes, .pitch = rows ? (shape->widths[0] + 3) / 4 * 4 : 0},
        .micro_batches = shape->micro_batches,
        .clip_norm = shape->clip_norm,
        .dropout = dropout_make(shape->seed, shape->dropout),
        .image_stride = rows ? 0 : memory_image_stride(shape->widths[0])};
}

static bool take_context(struct device *device, struct error *error)
{
    DEVICE_TRY(device, error, context_retain, (&device->context, device->handle));
    DEVICE_TRY(device, error, context_set, (device->context));
    DEVICE_TRY(device, error, stream_create, (&device->stream, CU_STREAM_OWN_ORDER));
    DEVICE_TRY(device, error, stream_create, (&device->copying, CU_STREAM_OWN_ORDER));
    DEVICE_TRY(device, error, event_create, (&device->known, CU_EVENT_WITHOUT_TIMING));
    for (int i = 0; i < DEVICE_CHUNKS; i++) {
        DEVICE_TRY(device, error, event_create, (&device->computed[i], CU_EVENT_WITHOUT_TIMING));
        DEVICE_TRY(device, error, event_create, (&device->copied[i], CU_EVENT_WITHOUT_TIMING));
    }
    return true;
}

static void describe(struct device *device, const char *reason)
{
    const struct driver_device *about = &device->about;
    char how[128];
    if (device->sharded) {
        snprintf(how, sizeof how, "persistent kernel on %d of %d multiprocessors", device->shards.blocks,
                 about->multiprocessors);
    } else {
        snprintf(how, sizeof how, "%s (%s)", device->host ? "single kernels" : "CUDA graph of kernels", reason);
    }
    snprintf(device->description, sizeof device->description, "%s (sm_%d%d), driver for CUDA %d.%d, %s, %s",
             about->name, about->major, about->minor, device->driver->version / 1000,
             device->driver->version % 1000 / 10, how, precision_name(device->shape.precision));
}

/* Products with few tiles do not fill a GPU: then a batch's gradient is computed in parts. */
static bool take_parts(struct device *device, struct error *error)
{
    device->network.parts = launch_gradient_parts(device);
    device->network.part_floats = device->model.float_count;
    return device->network.parts == 1 || memory_take_gradient(device, error);
}

bool device_open(struct device **out, const struct driver *driver, int ordinal, const struct device_shape *shape,
                 struct error *error)
{
    const char *reason = NULL;
    struct device *device = calloc(1, sizeof *device);
    if (!device) {
        return error_set(error, "out of memory for the GPU engine");
    }
    device->driver = driver;
    device->shape = *shape;
    device->allowed = shape->memory_limit;
    if (!check_shape(shape, error) || !driver_device(driver, ordinal, &device->about, error) ||
        !choose_precision(device, error)) {
        free(device);
        return false;
    }
    lay_out(device);
    cu_result result = driver->device_get(&device->handle, ordinal);
    if (result != CU_SUCCESS) {
        (void)device_failed(device, "cuDeviceGet", result, error);
    } else if (take_context(device, error) && launch_load(device, error) && launch_plan(device, &reason, error) &&
               memory_take(device, error) && take_parts(device, error) && host_create(device, error)) {
        describe(device, reason);
        *out = device;
        return true;
    }
    device_close(device);
    return false;
}

void device_close(struct device *device)
{
    if (!device) {
        return;
    }
    /* On a lost device each of these fails; nothing can be done about it. */
    const struct driver *driver = device->driver;
    if (device->stream) {
        driver->stream_wait(device->stream);
    }
    memory_release(device);
    host_destroy(device);
    for (int i = 0; i < DEVICE_GRAPHS; i++) {
        if (device->graphs[i]) {
            driver->graph_exec_destroy(device->graphs[i]);
        }
    }
    for (int i = 0; i < DEVICE_CHUNKS; i++) {
        if (device->computed[i]) {
            driver->event_destroy(device->computed[i]);
        }
        if (device->copied[i]) {
            driver->event_destroy(device->copied[i]);
        }
    }
    if (device->known) {
        driver->event_destroy(device->known);
    }
    if (device->copying) {
        driver->stream_destroy(device->copying);
    }
    if (device->stream) {
        driver->stream_destroy(device->stream);
    }
    if (device->module) {
        driver->module_unload(device->module);
    }
    if (device->context) {
        driver->context_release(device->handle);
    }
    free(device);
}

void device_share(struct device *device, void *memory, size_t size)
{
    int able = 0;
    const struct driver *driver = device->driver;
    if (device->pinned_count == DEVICE_SHARED ||
        driver->device_attribute(&able, CU_ATTRIBUTE_HOST_REGISTER, device->handle) != CU_SUCCESS || !able) {
        return;
    }
    if (driver->host_register(memory, size, 0) == CU_SUCCESS) {
        device->pinned[device->pinned_count++] = memory;
    }
}

/* --- Data and vectors --- */

bool device_data(struct device *device, const struct device_examples *examples, struct error *error)
{
    if (!memory_take_examples(device, examples, error) ||
        !host_data(device, examples->arrays[DEVICE_IMAGES], examples->count, error)) {
        return false;
    }
    /* The graphs hold the old pointers. */
    for (int i = 0; i < DEVICE_GRAPHS; i++) {
        if (device->graphs[i]) {
            device->driver->graph_exec_destroy(device->graphs[i]);
            device->graphs[i] = NULL;
        }
    }
    return true;
}

bool device_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error)
{
    if (!memory_write(device, vector, first, count, values, error)) {
        return false;
    }
    host_write(device, vector, first, count, values);
    return true;
}

bool device_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error)
{
    if (!memory_read(device, vector, first, count, values, error)) {
        return false;
    }
    host_read(device, vector, first, count, values);
    return true;
}

/* --- One step --- */

/*
 * One batch from the host: its gradient, copied back in pieces while the rest is still being computed; and its logits.
 */

enum { LAYER_PIECES = 4 }; /* of the first layer's gradient, which is most of it */

/* Floats [.., end) of the gradient are computed once an event has fired. */
struct pieces {
    uint64_t end[DEVICE_CHUNKS];
    int count;
};

/* Puts the host's batch on the device as if it had been drawn there. */
static bool stage(struct device *device, const struct device_examples *examples, uint32_t task, struct error *error)
{
    device->staged.given = examples->count;
    device->staged.micro = 0;
    device->staged.sampler.task = task;
    return memory_stage(device, &device->staged, 0, examples, error);
}

/* Computes some rows of a layer's gradient (0: already computed), and queues the copy of floats up to `end`. */
static bool send_piece(struct device *device, struct pieces *pieces, int layer, int first, int rows, uint64_t end,
                       float *gradient, struct error *error)
{
    int piece = pieces->count++;
    uint64_t begin = piece > 0 ? pieces->end[piece - 1] : 0;
    assert(pieces->count <= DEVICE_CHUNKS);
    pieces->end[piece] = end;
    if (rows > 0 && !launch_gradient(device, &device->staged, layer, first, rows, GRADIENT_STORE, 1.0f, error)) {
        return false;
    }
    DEVICE_TRY(device, error, event_record, (device->computed[piece], device->stream));
    DEVICE_TRY(device, error, stream_wait_event, (device->copying, device->computed[piece], 0));
    DEVICE_TRY(device, error, copy_to_host,
               (gradient + begin, device->gradient + begin * sizeof *gradient, (end - begin) * sizeof *gradient,
                device->copying));
    DEVICE_TRY(device, error, event_record, (device->copied[piece], device->copying));
    return true;
}

/* All layers from the first on, in memory order: all deltas are known by now. */
static bool send_gradient(struct device *device, struct pieces *pieces, float *gradient, struct error *error)
{
    bool clips = device->network.clip_norm > 0.0; /* which needs the whole gradient first */
    if (clips && (!launch_gradients(device, &device->staged, GRADIENT_STORE, 1.0f, error) ||
                  !launch_clip(device, CLIP_IN_PLACE, 1.0f, error))) {
        return false;
    }
    for (int i = 0; i < device->network.layers; i++) {
        const struct kernel_layer *layer = &device->network.layer[i];
        int tile = launch_gradient_rows(device, i);
        int rows = i == 0 ? (layer->in / LAYER_PIECES / tile + 1) * tile : layer->in + 1;
        for (int first = 0; first <= layer->in; first += rows) {
            bool last = first + rows > layer->in;
            int some = last ? layer->in + 1 - first : rows;
            uint64_t end = !last ? layer->weights + (uint64_t)(first + rows) * (uint64_t)layer->stride
                           : i + 1 < device->network.layers ? layer[1].weights
                                                            : device->model.float_count;
            if (!send_piece(device, pieces, i, first, clips ? 0 : some, end, gradient, error)) {
                return false;
            }
        }
    }
    return true;
}

/* With host layers: everything at once. */
static bool gather_gradient(struct device *device, const uint8_t *images, struct pieces *pieces, float *gradient,
                            struct error *error)
{
    return (device->progress->stopped ||
            (host_gradients(device, &device->staged, images, GRADIENT_STORE, 1.0f, error) &&
             host_send_gradients(device, error) &&
             (device->network.clip_norm <= 0.0 || launch_clip(device, CLIP_IN_PLACE, 1.0f, error)))) &&
           send_piece(device, pieces, 0, 0, 0, device->model.float_count, gradient, error);
}

bool device_step(struct device *device, const struct device_batch *batch, float *gradient, _Atomic uint64_t *ready,
                 struct device_outcome *outcome, struct error *error)
{
    assert(batch->examples.count >= 1 && batch->examples.count <= device->shape.batch_size);
    struct kernel_network *network = &device->network;
    const uint8_t *images = batch->examples.arrays[DEVICE_IMAGES];
    struct pieces pieces = {.count = 0};
    int micro_batches = network->micro_batches;
    *outcome = (struct device_outcome){.finite = 1};
    if (!memory_take_gradient(device, error) || !stage(device, &batch->examples, batch->task, error) ||
        !memory_begin(device, batch->step, error)) {
        return false;
    }
    network->micro_batches = 1; /* the caller decides what to do with this batch */
    bool launched = (device->host ? host_batch(device, &device->staged, images, error)
                                  : launch_batch(device, &device->staged, error)) &&
                    memory_fetch_progress(device, error);
    network->micro_batches = micro_batches;
    if (!launched) {
        return false;
    }
    DEVICE_TRY(device, error, event_record, (device->known, device->stream));
    if (device->host ? !gather_gradient(device, images, &pieces, gradient, error)
                     : !send_gradient(device, &pieces, gradient, error)) {
        return false;
    }
    DEVICE_TRY(device, error, event_wait, (device->known));
    const struct kernel_progress *progress = device->progress;
    *outcome = (struct device_outcome){.steps = progress->steps,
                                       .correct = progress->correct,
                                       .images = progress->images,
                                       .loss_sum = progress->loss_sum,
                                       .last_loss = progress->last_loss,
                                       .finite = !progress->stopped,
                                       .bad_loss = progress->bad_loss};
    for (int i = 0; i < pieces.count; i++) {
        DEVICE_TRY(device, error, event_wait, (device->copied[i]));
        if (ready && outcome->finite) {
            atomic_store_explicit(ready, pieces.end[i], memory_order_release);
        }
    }
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

/* Drops the padding of the rows. */
static bool fetch_outputs(struct device *device, const struct kernel_layer *last, int count, float *outputs,
                          struct error *error)
{
    size_t row = (size_t)last->out * sizeof *outputs;
    size_t pitch = (size_t)last->pitch * sizeof *outputs;
    cu_pointer from = device_address(last->activations);
    DEVICE_TRY(device, error, copy_to_host, (device->host_logits, from, (size_t)count * pitch, device->stream));
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    for (int i = 0; i < count; i++) {
        memcpy((char *)outputs + (size_t)i * row, (const char *)device->host_logits + (size_t)i * pitch, row);
    }
    return true;
}

bool device_forward(struct device *device, bool averaged, const struct device_examples *examples, float *outputs,
                    struct error *error)
{
    struct kernel_network network = device->network;
    const struct kernel_layer *last = &network.layer[network.layers - 1];
    if (averaged && network.vectors.averages) {
        network.vectors.parameters = network.vectors.averages;
    }
    for (int first = 0; first < examples->count;) {
        int some = examples->count - first < device->rows ? examples->count - first : device->rows;
        const struct device_examples part = device_examples_part(&device->shape, examples, first, some);
        if (!stage(device, &part, 0, error) || !memory_begin(device, 0, error) ||
            !launch_draw(device, &device->staged, error) ||
            (device->host
                 ? !host_forward(device, &network, &device->staged, part.arrays[DEVICE_IMAGES], some, false, error)
                 : !launch_forward(device, &network, &device->staged, some, false, error))) {
            return false;
        }
        if (!fetch_outputs(device, last, some, outputs + (size_t)first * (size_t)last->out, error)) {
            return false;
        }
        first += some;
    }
    return true;
}

/* --- Training --- */

/* Many steps without the host: one cooperative launch, or CUDA graphs of one or more steps. */

static const int graph_steps[DEVICE_GRAPHS] = {DEVICE_GRAPH_STEPS, 1};

static bool record_steps(struct device *device, int steps, struct error *error)
{
    for (int i = 0; i < steps; i++) {
        if (!launch_step(device, error)) {
            return false;
        }
    }
    return true;
}

static bool make_graph(struct device *device, int which, struct error *error)
{
    const struct driver *driver = device->driver;
    cu_graph graph = NULL;
    if (device->graphs[which]) {
        return true;
    }
    DEVICE_TRY(device, error, capture_begin, (device->stream, CU_CAPTURE_THREAD_LOCAL));
    bool recorded = record_steps(device, graph_steps[which], error);
    cu_result result = driver->capture_end(device->stream, &graph);
    if (!recorded || result != CU_SUCCESS) {
        if (graph) {
            driver->graph_destroy(graph);
        }
        return recorded ? device_failed(device, "cuStreamEndCapture", result, error) : false;
    }
    result = driver->graph_instantiate(&device->graphs[which], graph, 0);
    driver->graph_destroy(graph);
    if (result != CU_SUCCESS) {
        device->graphs[which] = NULL;
        return device_failed(device, "cuGraphInstantiate", result, error);
    }
    return true;
}

static bool launch_graphs(struct device *device, int steps, struct error *error)
{
    for (int which = 0; which < DEVICE_GRAPHS; which++) {
        for (; steps >= graph_steps[which]; steps -= graph_steps[which]) {
            if (!make_graph(device, which, error)) {
                return false;
            }
            DEVICE_TRY(device, error, graph_launch, (device->graphs[which], device->stream));
        }
    }
    return true;
}

/* Step by step, with the CPU's part in each. */
static bool step_with_host(struct device *device, int steps, struct error *error)
{
    device->progress->stopped = 0;
    for (int i = 0; i < steps && !device->progress->stopped; i++) {
        if (!host_step(device, error)) {
            return false;
        }
    }
    return true;
}

/* At most DEVICE_UPDATES steps. */
static bool train_some(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                       struct error *error)
{
    memcpy(device->host_updates, updates, (size_t)n * sizeof *updates);
    if (!memory_begin(device, first_step, error)) {
        return false;
    }
    DEVICE_TRY(device, error, copy_to_device,
               (device_address(device->updates), device->host_updates, (size_t)n * sizeof *updates, device->stream));
    if (device->host      ? !step_with_host(device, n, error)
        : device->sharded ? !launch_sharded(device, n, error)
                          : !launch_graphs(device, n, error)) {
        return false;
    }
    if (!memory_fetch_progress(device, error)) {
        return false;
    }
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

bool device_train(struct device *device, int64_t first_step, int n, const struct update (*updates)[2],
                  struct device_outcome *outcome, struct error *error)
{
    assert(device->data != 0 && n >= 0);
    *outcome = (struct device_outcome){.finite = 1};
    bool gathers = device->network.micro_batches > 1 || device->network.clip_norm > 0.0;
    if (gathers && !memory_take_gradient(device, error)) {
        return false;
    }
    for (int done = 0; done < n && outcome->finite;) {
        int some = n - done < DEVICE_UPDATES ? n - done : DEVICE_UPDATES;
        if (!train_some(device, first_step + done, some, updates + done, error)) {
            return false;
        }
        const struct kernel_progress *progress = device->progress;
        outcome->steps += progress->steps;
        outcome->correct += progress->correct;
        outcome->images += progress->images;
        outcome->loss_sum += progress->loss_sum;
        if (progress->steps > 0) {
            outcome->last_loss = progress->last_loss;
        }
        if (progress->stopped) {
            outcome->finite = 0;
            outcome->bad_loss = progress->bad_loss;
        }
        done += some;
    }
    return true;
}
