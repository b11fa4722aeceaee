/* Device memory: allocated when the device is opened, except the data and, if it is needed, a gradient. */
#include <stdlib.h>
#include <string.h>

#include "cuda/device/state.h"

enum {
    ALIGN = 256,
    EVALUATION_BYTES = 16 << 20, /* examples are evaluated in batches whose matrices take about this much, ... */
    EVALUATION_ROWS = 1024,      /* ... but not more of them than this */
};

int memory_image_stride(int pixels)
{
    int pieces = (pixels + KERNEL_IMAGE_ALIGN - 1) / KERNEL_IMAGE_ALIGN;
    return (pieces | 1) * KERNEL_IMAGE_ALIGN;
}

/* Carves from the block allocated at once; base 0: only adds up. */
struct arena {
    cu_pointer base;
    uint64_t used;
};

static void *place(struct arena *arena, uint64_t count, uint64_t size)
{
    uint64_t at = arena->used;
    arena->used += (count * size + ALIGN - 1) / ALIGN * ALIGN;
    return arena->base ? device_pointer(arena->base + at) : NULL;
}

bool memory_keeps(const struct device_shape *shape, enum store_vector vector)
{
    static const int slots[OPTIMIZER_KINDS] = {
        [OPTIMIZER_SGD] = 0,  [OPTIMIZER_MOMENTUM] = 1, [OPTIMIZER_ADAGRAD] = 1, [OPTIMIZER_ADADELTA] = 2,
        [OPTIMIZER_ADAM] = 2, [OPTIMIZER_RMSPROP] = 2,  [OPTIMIZER_FTRL] = 2};
    switch (vector) {
    case STORE_SLOT0:
        return slots[shape->optimizer] > 0;
    case STORE_SLOT1:
        return slots[shape->optimizer] > 1;
    case STORE_AVERAGES:
        return shape->averages != 0;
    default:
        return true;
    }
}

static void place_layer(struct device *device, struct arena *arena, int number)
{
    struct kernel_layer *layer = &device->network.layer[number];
    const struct variable *weights = &device->model.variables[2 * number];
    uint64_t rows = (uint64_t)device->rows;
    *layer = (struct kernel_layer){.in = weights->rows,
                                   .out = weights->cols,
                                   .stride = weights->stride,
                                   .pitch = (weights->cols + 3) / 4 * 4,
                                   .weights = weights->offset,
                                   .biases = device->model.variables[2 * number + 1].offset};
    layer->activations = place(arena, rows * (uint64_t)layer->pitch, sizeof(float));
    layer->outputs = layer->activations;
    if (device->network.dropout.threshold > 0 && number + 1 < device->network.layers) {
        layer->outputs = place(arena, rows * (uint64_t)layer->pitch, sizeof(float));
    }
    layer->deltas = place(arena, rows * (uint64_t)layer->pitch, sizeof(float));
    layer->below = number > 0 ? layer[-1].activations : device->network.rows.inputs;
    layer->below_trained = number > 0 ? layer[-1].outputs : device->network.rows.inputs;
    layer->below_pitch = number > 0 ? layer[-1].pitch : device->network.rows.pitch;
}

/* Bytes between examples of an array on the device; 0: there is no such array. */
static uint64_t stride_of(const struct device *device, int array)
{
    return array == DEVICE_IMAGES ? (uint64_t)device->network.image_stride
                                  : device_example_bytes(&device->shape, array);
}

/* The arrays for that many examples. */
static void place_examples(const struct device *device, struct arena *arena, uint64_t count,
                           struct kernel_source *source)
{
    void *arrays[DEVICE_ARRAYS];
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        uint64_t stride = stride_of(device, i);
        arrays[i] = stride > 0 ? place(arena, count, stride) : NULL;
    }
    source->images = arrays[DEVICE_IMAGES];
    source->values = arrays[DEVICE_VALUES];
    source->places = arrays[DEVICE_PLACES];
    source->labels = arrays[DEVICE_LABELS];
    source->targets = arrays[DEVICE_TARGETS];
    source->weights = arrays[DEVICE_WEIGHTS];
}

static void place_all(struct device *device, struct arena *arena)
{
    struct kernel_network *network = &device->network;
    uint64_t floats = device->model.float_count;
    uint64_t rows = (uint64_t)device->rows;
    float **vectors[STORE_VECTORS] = {&network->vectors.parameters, &network->vectors.slot0, &network->vectors.slot1,
                                      &network->vectors.averages};
    for (int i = 0; i < STORE_VECTORS; i++) {
        *vectors[i] = memory_keeps(&device->shape, (enum store_vector)i) ? place(arena, floats, sizeof(float)) : NULL;
    }
    network->rows.inputs =
        network->rows.pitch > 0 ? place(arena, rows * (uint64_t)network->rows.pitch, sizeof(float)) : NULL;
    for (int i = 0; i < network->layers; i++) {
        place_layer(device, arena, i);
    }
    network->indexes = place(arena, rows, sizeof(int32_t));
    network->losses = place(arena, rows, sizeof(float));
    network->correct = place(arena, rows, sizeof(int32_t));
    if (network->clip_norm > 0.0) {
        uint64_t sums = 0;
        for (int i = 0; i < device->model.variable_count; i++) {
            sums += (uint64_t)device->model.variables[i].rows;
        }
        network->squares = place(arena, sums, sizeof(double));
        network->collected = network->micro_batches > 1 ? place(arena, floats, sizeof(float)) : NULL;
    }
    network->progress = place(arena, 1, sizeof(struct kernel_progress));
    device->updates = place(arena, DEVICE_UPDATES, 2 * sizeof(struct update));
    network->updates = device->updates;
    place_examples(device, arena, rows, &device->staged);
    if (device->sharded) {
        uint64_t sums = (uint64_t)device->shards.capacity * (uint64_t)network->layer[1].out + 1;
        device->shards.logits = place(arena, SHARD_TURNS * sums, sizeof(uint64_t));
        device->shards.arrived = place(arena, 1, sizeof(uint32_t));
    }
}

static bool take(struct device *device, cu_pointer *pointer, uint64_t bytes, const char *what, struct error *error)
{
    const struct driver *driver = device->driver;
    size_t left = 0;
    size_t total = 0;
    if (device->allowed != 0 && device->taken + bytes > device->allowed) {
        return error_set(error,
                         "%s of %s would take its share to %llu MiB, but only %llu MiB are allowed: raise "
                         "--gpu_memory_fraction, or choose a smaller model or batch",
                         what, device->about.name, (unsigned long long)(device->taken + bytes) >> 20,
                         (unsigned long long)device->allowed >> 20);
    }
    cu_result result = driver->allocate(pointer, bytes);
    if (result == CU_OUT_OF_MEMORY) {
        *pointer = 0;
        if (driver->memory_info(&left, &total) != CU_SUCCESS) {
            left = 0;
        }
        return error_set(error,
                         "%s is out of memory for %s: needs %llu MiB, %llu MiB free: choose a smaller model or batch, "
                         "stop other programs on it, or use --device=cpu",
                         device->about.name, what, (unsigned long long)(bytes + (1 << 20) - 1) >> 20,
                         (unsigned long long)left >> 20);
    }
    if (result != CU_SUCCESS) {
        *pointer = 0;
        return device_failed(device, "cuMemAlloc", result, error);
    }
    device->taken += bytes;
    return true;
}

bool memory_take(struct device *device, struct error *error)
{
    uint64_t row_bytes = (uint64_t)device->network.rows.pitch * sizeof(float);
    for (int i = 0; i < DEVICE_INPUT_ARRAYS; i++) {
        row_bytes += stride_of(device, i);
    }
    for (int i = 1; i <= device->shape.layer_count; i++) {
        row_bytes += 2 * sizeof(float) * (uint64_t)device->shape.widths[i];
    }
    uint64_t rows = EVALUATION_BYTES / row_bytes;
    rows = rows < 1 ? 1 : rows > EVALUATION_ROWS ? EVALUATION_ROWS : rows;
    device->rows = (int)rows > device->shape.batch_size ? (int)rows : device->shape.batch_size;

    struct arena arena = {0, 0};
    place_all(device, &arena);
    if (!take(device, &device->memory, arena.used, "the model", error)) {
        return false;
    }
    arena = (struct arena){device->memory, 0};
    place_all(device, &arena);
    DEVICE_TRY(device, error, set_bytes, (device->memory, 0, arena.used, device->stream));
    DEVICE_TRY(device, error, host_allocate, ((void **)&device->progress, sizeof *device->progress, 0));
    DEVICE_TRY(device, error, host_allocate,
               ((void **)&device->host_updates, DEVICE_UPDATES * sizeof *device->host_updates, 0));
    if (device->network.image_stride > 0) {
        DEVICE_TRY(device, error, host_allocate,
                   ((void **)&device->host_images, (size_t)device->rows * (size_t)device->network.image_stride, 0));
    }
    const struct kernel_layer *last = &device->network.layer[device->network.layers - 1];
    DEVICE_TRY(device, error, host_allocate,
               ((void **)&device->host_logits, (size_t)device->rows * (size_t)last->pitch * sizeof(float), 0));
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

bool memory_take_gradient(struct device *device, struct error *error)
{
    uint64_t bytes = (uint64_t)device->network.parts * device->model.float_count * sizeof(float);
    if (device->gradient != 0) {
        return true;
    }
    if (!take(device, &device->gradient, bytes, "the gradient", error)) {
        return false;
    }
    device->network.gradient = device_pointer(device->gradient);
    DEVICE_TRY(device, error, set_bytes, (device->gradient, 0, bytes, device->stream));
    return true;
}

void memory_release(struct device *device)
{
    const struct driver *driver = device->driver;
    const cu_pointer taken[] = {device->memory, device->data, device->gradient};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        if (taken[i] != 0) {
            driver->release(taken[i]);
        }
    }
    void *const host[] = {device->progress, device->host_updates, device->host_images, device->host_logits};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) {
        if (host[i]) {
            driver->host_release(host[i]);
        }
    }
    for (int i = 0; i < device->pinned_count; i++) {
        driver->host_unregister(device->pinned[i]);
    }
}

/* --- examples --- */

static void pad_images(const struct device *device, const uint8_t *images, int count, uint8_t *padded)
{
    size_t pixels = (size_t)device->shape.widths[0];
    size_t stride = (size_t)device->network.image_stride;
    for (int i = 0; i < count; i++) {
        memcpy(padded + (size_t)i * stride, images + (size_t)i * pixels, pixels);
        memset(padded + (size_t)i * stride + pixels, 0, stride - pixels);
    }
}

bool memory_stage(struct device *device, const struct kernel_source *to, int at, const struct device_examples *examples,
                  struct error *error)
{
    const void *const arrays[DEVICE_ARRAYS] = {to->images, to->values,  to->places,
                                               to->labels, to->targets, to->weights};
    for (int i = 0; i < DEVICE_ARRAYS; i++) {
        const void *from = examples->arrays[i];
        uint64_t stride = stride_of(device, i);
        if (!from || stride == 0) {
            continue;
        }
        if (stride != device_example_bytes(&device->shape, i)) { /* rows of images are padded */
            pad_images(device, from, examples->count, device->host_images);
            from = device->host_images;
        }
        DEVICE_TRY(device, error, copy_to_device,
                   (device_address(arrays[i]) + (uint64_t)at * stride, from, (uint64_t)examples->count * stride,
                    device->stream));
    }
    return true;
}

/* Takes the memory of the training set; that of an earlier one is released. */
static bool take_data(struct device *device, int count, struct error *error)
{
    struct kernel_source *train = &device->train;
    struct arena arena = {0, 0};
    if (device->data != 0) {
        device->driver->release(device->data);
        device->data = 0;
        device->taken -= device->data_bytes;
    }
    place_examples(device, &arena, (uint64_t)count, train);
    device->data_bytes = arena.used;
    if (!take(device, &device->data, arena.used, "the training data", error)) {
        return false;
    }
    *train = (struct kernel_source){.sampler = {.seed = device->shape.seed,
                                                .task = device->shape.first_task,
                                                .examples = (uint32_t)count,
                                                .batch_size = (uint32_t)device->shape.batch_size}};
    arena = (struct arena){device->data, 0};
    place_examples(device, &arena, (uint64_t)count, train);
    return true;
}

bool memory_take_examples(struct device *device, const struct device_examples *examples, struct error *error)
{
    int count = examples->count;
    if (!take_data(device, count, error)) {
        return false;
    }
    for (int first = 0, piece; first < count; first += piece) {
        piece = count - first < device->rows ? count - first : device->rows;
        const struct device_examples part = device_examples_part(&device->shape, examples, first, piece);
        if (!memory_stage(device, &device->train, first, &part, error)) {
            return false;
        }
        DEVICE_TRY(device, error, stream_wait, (device->stream));
    }
    return true;
}

/* --- vectors --- */

static bool vector_at(const struct device *device, enum store_vector vector, size_t first, size_t count, cu_pointer *at,
                      struct error *error)
{
    const struct kernel_vectors *vectors = &device->network.vectors;
    const float *const bases[STORE_VECTORS] = {vectors->parameters, vectors->slot0, vectors->slot1, vectors->averages};
    size_t floats = device->model.float_count;
    if ((int)vector < 0 || vector >= STORE_VECTORS || !bases[vector] || first > floats || count > floats - first) {
        return error_set(error, "bug: floats %zu to %zu of vector %d requested, which this model does not have", first,
                         first + count, (int)vector);
    }
    *at = device_address(bases[vector]) + first * sizeof(float);
    return true;
}

bool memory_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values,
                  struct error *error)
{
    cu_pointer at;
    if (!vector_at(device, vector, first, count, &at, error)) {
        return false;
    }
    if (count > 0) {
        DEVICE_TRY(device, error, copy_to_device, (at, values, count * sizeof *values, device->stream));
        DEVICE_TRY(device, error, stream_wait, (device->stream));
    }
    return true;
}

bool memory_read(struct device *device, enum store_vector vector, size_t first, size_t count, float *values,
                 struct error *error)
{
    cu_pointer at;
    if (!vector_at(device, vector, first, count, &at, error)) {
        return false;
    }
    if (count > 0) {
        DEVICE_TRY(device, error, copy_to_host, (values, at, count * sizeof *values, device->stream));
        DEVICE_TRY(device, error, stream_wait, (device->stream));
    }
    return true;
}

/* --- progress --- */

bool memory_begin(struct device *device, int64_t first_step, struct error *error)
{
    *device->progress = (struct kernel_progress){.first_step = first_step};
    DEVICE_TRY(device, error, copy_to_device,
               (device_address(device->network.progress), device->progress, sizeof *device->progress, device->stream));
    return true;
}

bool memory_fetch_progress(struct device *device, struct error *error)
{
    DEVICE_TRY(device, error, copy_to_host,
               (device->progress, device_address(device->network.progress), sizeof *device->progress, device->stream));
    return true;
}
