/*
 * Moves data between host and device, layer by layer. The arithmetic is that of the CPU engine's reference kernels,
 * which accept any width and alignment, and of ps/store/optimizer_math.h, which the device shares: the faster kernels
 * would exceed the GPU program's limit of 1 MiB, and copying every batch dominates the time anyway.
 *
 * The CPU engine's own passes (worker/cpu/engine.h) can't do this: they compute whole networks, in strips and from an
 * index of a batch's nonzero inputs. Here a single layer stands between two of the device, in the device's layout.
 */
#include "cuda/device/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/kernels.h"
#include "ps/store/optimizer_math.h"

struct host {
    float *vectors[STORE_VECTORS];    /* [float_count]; the parts of the device's layers are unused */
    float *gradient;                  /* likewise */
    float *inputs, *outputs, *deltas; /* [rows, widest]: of a batch, between two layers */
    float *masks, *dropped;           /* likewise; dropout's */
    float *transposed;                /* [float_count]: the weights of one layer */
    float *row;                       /* [widest] */
    int32_t *indexes;                 /* [rows] */
    int32_t *places;                  /* [rows]: 0, 1, 2 ...: the batch is not reordered */
    uint8_t *images;                  /* of the data, if layer 0 is on the host */
};

/* --- its memory --- */

static bool is_host(const struct device *device, int layer)
{
    return (device->network.host_layers >> layer & 1) != 0;
}

/* The range of a layer's variables in the vectors. */
static size_t layer_first(const struct device *device, int layer)
{
    return layer < device->network.layers ? device->network.layer[layer].weights : device->model.float_count;
}

static bool out_of_memory(struct error *error)
{
    return error_set(error, "out of memory for the layers that train.placement has on the CPU: place fewer there");
}

bool host_create(struct device *device, struct error *error)
{
    size_t floats = device->model.float_count, rows = (size_t)device->rows, widest = (size_t)device->shape.widths[0];
    bool done = true;
    if (device->network.host_layers == 0) {
        return true;
    }
    widest = device->network.rows.inputs ? (size_t)device->network.rows.pitch : widest;
    for (int i = 0; i < device->network.layers; i++) {
        size_t pitch = (size_t)device->network.layer[i].pitch;
        widest = pitch > widest ? pitch : widest;
    }
    struct host *host = device->host = calloc(1, sizeof *host);
    if (!host) {
        return out_of_memory(error);
    }
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (memory_keeps(&device->shape, (enum store_vector)v)) {
            host->vectors[v] = calloc(floats, sizeof(float));
            done = done && host->vectors[v];
        }
    }
    host->gradient = calloc(floats, sizeof(float));
    host->inputs = calloc(rows * widest, sizeof(float));
    host->outputs = calloc(rows * widest, sizeof(float));
    host->deltas = calloc(rows * widest, sizeof(float));
    host->masks = calloc(rows * widest, sizeof(float));
    host->dropped = calloc(rows * widest, sizeof(float));
    host->transposed = calloc(floats, sizeof(float));
    host->row = calloc(widest, sizeof(float));
    host->indexes = calloc(rows, sizeof(int32_t));
    host->places = calloc(rows, sizeof(int32_t));
    done = done && host->gradient && host->inputs && host->outputs && host->deltas && host->masks && host->dropped &&
           host->transposed && host->row && host->indexes && host->places;
    for (size_t i = 0; done && i < rows; i++) {
        host->places[i] = (int32_t)i;
    }
    return done || out_of_memory(error);
}

void host_destroy(struct device *device)
{
    struct host *host = device->host;
    if (!host) {
        return;
    }
    for (int v = 0; v < STORE_VECTORS; v++) {
        free(host->vectors[v]);
    }
    free(host->gradient);
    free(host->inputs);
    free(host->outputs);
    free(host->deltas);
    free(host->masks);
    free(host->dropped);
    free(host->transposed);
    free(host->row);
    free(host->indexes);
    free(host->places);
    free(host->images);
    free(host);
    device->host = NULL;
}

bool host_data(struct device *device, const uint8_t *images, int count, struct error *error)
{
    size_t bytes = (size_t)count * (size_t)device->shape.widths[0];
    if (!device->host || !is_host(device, 0) || !images) {
        return true;
    }
    free(device->host->images);
    device->host->images = malloc(bytes);
    if (!device->host->images) {
        return out_of_memory(error);
    }
    memcpy(device->host->images, images, bytes);
    return true;
}

/* Intersects [first, first + count) with a layer's range, into *from and *floats; false: empty. */
static bool in_common(const struct device *device, int layer, size_t first, size_t count, size_t *from, size_t *floats)
{
    size_t begin = layer_first(device, layer), end = layer_first(device, layer + 1);
    begin = begin > first ? begin : first;
    end = end < first + count ? end : first + count;
    *from = begin;
    *floats = begin < end ? end - begin : 0;
    return is_host(device, layer) && begin < end;
}

void host_write(struct device *device, enum store_vector vector, size_t first, size_t count, const float *values)
{
    size_t from, floats;
    for (int i = 0; device->host && i < device->network.layers; i++) {
        if (in_common(device, i, first, count, &from, &floats)) {
            memcpy(device->host->vectors[vector] + from, values + (from - first), floats * sizeof *values);
        }
    }
}

void host_read(const struct device *device, enum store_vector vector, size_t first, size_t count, float *values)
{
    size_t from, floats;
    for (int i = 0; device->host && i < device->network.layers; i++) {
        if (in_common(device, i, first, count, &from, &floats)) {
            memcpy(values + (from - first), device->host->vectors[vector] + from, floats * sizeof *values);
        }
    }
}

/* --- transfers between host and device --- */

/* rows x pitch floats of one of the network's matrices. */
static bool fetch(struct device *device, float *to, const float *from, int rows, int pitch, struct error *error)
{
    size_t bytes = (size_t)rows * (size_t)pitch * sizeof *to;
    DEVICE_TRY(device, error, copy_to_host, (to, device_address(from), bytes, device->stream));
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

static bool copy_to_device(struct device *device, float *to, const float *from, int rows, int pitch,
                           struct error *error)
{
    size_t bytes = (size_t)rows * (size_t)pitch * sizeof *from;
    DEVICE_TRY(device, error, copy_to_device, (device_address(to), from, bytes, device->stream));
    DEVICE_TRY(device, error, stream_wait, (device->stream)); /* `from` is needed again */
    return true;
}

static bool fetch_progress(struct device *device, struct error *error)
{
    if (!memory_fetch_progress(device, error)) {
        return false;
    }
    DEVICE_TRY(device, error, stream_wait, (device->stream));
    return true;
}

/* Fetches a layer's inputs into host->inputs, [count, *pitch]. */
static bool fetch_inputs(struct device *device, int number, const uint8_t *given, int count, bool training, int *pitch,
                         struct error *error)
{
    struct host *host = device->host;
    size_t pixels = (size_t)device->shape.widths[0];
    const struct kernel_layer *layer = &device->network.layer[number];
    if (layer->below) {
        *pitch = layer->below_pitch;
        return fetch(device, host->inputs, training ? layer->below_trained : layer->below, count, *pitch, error);
    }
    *pitch = (int)pixels;
    if (!given) {
        DEVICE_TRY(
            device, error, copy_to_host,
            (host->indexes, device_address(device->network.indexes), (size_t)count * sizeof(int32_t), device->stream));
        DEVICE_TRY(device, error, stream_wait, (device->stream));
    }
    for (int m = 0; m < count; m++) {
        const uint8_t *image = given ? given + (size_t)m * pixels : host->images + (size_t)host->indexes[m] * pixels;
        kernels_reference.scale((int)pixels, image, host->inputs + (size_t)m * pixels);
    }
    return true;
}

/* Rows begin `pitch` floats apart; what pads them stays zero on the device, too. */
static void clear(const struct kernel_layer *layer, int count, float *values)
{
    memset(values, 0, (size_t)count * (size_t)layer->pitch * sizeof *values);
}

/* Multiplies the outputs, or the deltas, of hidden layer `number` by dropout's factors for this batch, into `to`. */
static void drop(struct device *device, int number, int count, const float *values, float *to)
{
    const struct kernel_layer *layer = &device->network.layer[number];
    struct drop drop = {.dropout = &device->network.dropout,
                        .batch = {device->progress->task, device->progress->step},
                        .layer = number,
                        .rows = count,
                        .n = layer->out,
                        .stride = layer->pitch,
                        .places = device->host->places,
                        .in = values,
                        .mask = device->host->masks,
                        .out = to};
    kernels_reference.drop(&drop);
}

/* --- forward --- */

static bool forward_layer(struct device *device, const struct kernel_network *network, int number, const uint8_t *given,
                          int count, bool training, struct error *error)
{
    struct host *host = device->host;
    const struct kernel_layer *layer = &network->layer[number];
    bool averaged = network->vectors.parameters != device->network.vectors.parameters;
    const float *values = host->vectors[averaged ? STORE_AVERAGES : STORE_PARAMETERS];
    bool last = number + 1 == network->layers, drops = training && !last && network->dropout.threshold > 0;
    int pitch;
    if (!fetch_inputs(device, number, given, count, training, &pitch, error)) {
        return false;
    }
    clear(layer, count, host->outputs);
    kernels_reference.fill(count, layer->out, values + layer->biases, host->outputs, layer->pitch);
    struct gemm gemm = {.m = count,
                        .n = layer->out,
                        .k = layer->in,
                        .a = host->inputs,
                        .a_row = pitch,
                        .a_col = 1,
                        .b = values + layer->weights,
                        .b_stride = layer->stride,
                        .c = host->outputs,
                        .c_stride = layer->pitch,
                        .accumulate = true};
    kernels_reference.gemm(&gemm);
    for (int m = 0; !last && m < count; m++) {
        kernels_reference.activate((enum activation)network->activation, layer->out,
                                   host->outputs + (size_t)m * (size_t)layer->pitch);
    }
    if (drops) {
        clear(layer, count, host->dropped);
        drop(device, number, count, host->outputs, host->dropped);
    }
    return copy_to_device(device, layer->activations, host->outputs, count, layer->pitch, error) &&
           (!drops || copy_to_device(device, layer->outputs, host->dropped, count, layer->pitch, error));
}

bool host_forward(struct device *device, struct kernel_network *network, struct kernel_source *source,
                  const uint8_t *given, int count, bool training, struct error *error)
{
    for (int i = 0; i < network->layers; i++) {
        if (is_host(device, i) ? !forward_layer(device, network, i, given, count, training, error)
                               : !launch_forward_layer(device, network, source, i, count, training, error)) {
            return false;
        }
    }
    return true;
}

/* --- backward --- */

/* The deltas of hidden layer `number` from those of the layer above, which is on the host. */
static bool delta_layer(struct device *device, int number, int count, struct error *error)
{
    struct host *host = device->host;
    const struct kernel_network *network = &device->network;
    const struct kernel_layer *layer = &network->layer[number], *above = layer + 1;
    const float *weights = host->vectors[STORE_PARAMETERS] + above->weights;
    if (!fetch(device, host->inputs, above->deltas, count, above->pitch, error) ||
        !fetch(device, host->outputs, layer->activations, count, layer->pitch, error)) {
        return false;
    }
    clear(layer, count, host->deltas);
    kernels_reference.transpose(above->in, above->out, weights, above->stride, host->transposed, above->in);
    struct gemm gemm = {.m = count,
                        .n = layer->out,
                        .k = above->out,
                        .a = host->inputs,
                        .a_row = above->pitch,
                        .a_col = 1,
                        .b = host->transposed,
                        .b_stride = above->in,
                        .c = host->deltas,
                        .c_stride = layer->pitch};
    kernels_reference.gemm(&gemm);
    if (network->dropout.threshold > 0) {
        drop(device, number, count, host->deltas, host->deltas);
    }
    for (int m = 0; m < count; m++) {
        size_t at = (size_t)m * (size_t)layer->pitch;
        kernels_reference.derive((enum activation)network->activation, layer->out, host->outputs + at,
                                 host->deltas + at);
    }
    return copy_to_device(device, layer->deltas, host->deltas, count, layer->pitch, error);
}

bool host_batch(struct device *device, struct kernel_source *source, const uint8_t *given, struct error *error)
{
    struct kernel_network *network = &device->network;
    if (!launch_draw(device, source, error) || !fetch_progress(device, error)) {
        return false;
    }
    int count = device->progress->count;
    if (!host_forward(device, network, source, given, count, true, error) || !launch_loss(device, source, error) ||
        !fetch_progress(device, error)) {
        return false;
    }
    for (int i = network->layers - 2; !device->progress->stopped && i >= 0; i--) {
        if (is_host(device, i + 1) ? !delta_layer(device, i, count, error) : !launch_delta(device, i, count, error)) {
            return false;
        }
    }
    return true;
}

/* --- gradients and updates --- */

static bool gradient_layer(struct device *device, int number, const uint8_t *given, bool adds, float weight,
                           struct error *error)
{
    struct host *host = device->host;
    const struct kernel_layer *layer = &device->network.layer[number];
    int pitch, count = device->progress->count;
    if (!fetch_inputs(device, number, given, count, true, &pitch, error) ||
        !fetch(device, host->deltas, layer->deltas, count, layer->pitch, error)) {
        return false;
    }
    for (int i = 0; i <= layer->in; i++) {
        bool bias = i == layer->in;
        float *to = host->gradient + (bias ? layer->biases : layer->weights + (size_t)i * (size_t)layer->stride);
        struct gemm gemm = {.m = 1,
                            .n = layer->out,
                            .k = count,
                            .a = host->inputs + i,
                            .a_col = pitch,
                            .b = host->deltas,
                            .b_stride = layer->pitch,
                            .c = host->row};
        if (bias) {
            kernels_reference.column_sums(count, layer->out, host->deltas, layer->pitch, host->row, false);
        } else {
            kernels_reference.gemm(&gemm);
        }
        for (int n = 0; n < layer->out; n++) {
            to[n] = (adds ? to[n] : 0.0f) + weight * host->row[n];
        }
    }
    return true;
}

bool host_gradients(struct device *device, struct kernel_source *source, const uint8_t *given, int mode, float weight,
                    struct error *error)
{
    for (int i = 0; i < device->network.layers; i++) {
        int rows = device->network.layer[i].in + 1;
        if (is_host(device, i) ? !gradient_layer(device, i, given, mode == GRADIENT_ADD, weight, error)
                               : !launch_gradient(device, source, i, 0, rows, mode, weight, error)) {
            return false;
        }
    }
    return true;
}

/* Copies the gradients of all host layers between a vector on the device and the host's own. */
static bool move_gradients(struct device *device, float *vector, bool to_device, struct error *error)
{
    for (int i = 0; i < device->network.layers; i++) {
        size_t first = layer_first(device, i);
        int floats = (int)(layer_first(device, i + 1) - first);
        float *own = device->host->gradient + first;
        if (is_host(device, i) && (to_device ? !copy_to_device(device, vector + first, own, 1, floats, error)
                                             : !fetch(device, own, vector + first, 1, floats, error))) {
            return false;
        }
    }
    return true;
}

bool host_send_gradients(struct device *device, struct error *error)
{
    return move_gradients(device, device->network.gradient, true, error);
}

static void update_layers(struct device *device, float factor)
{
    struct host *host = device->host;
    const struct update *updates = device->host_updates[device->progress->step - device->progress->first_step];
    unsigned mode = optimizer_enter();
    for (int i = 0; i < device->network.layers; i++) {
        const struct kernel_layer *layer = &device->network.layer[i];
        for (int row = 0; is_host(device, i) && row <= layer->in; row++) {
            bool bias = row == layer->in;
            size_t first = bias ? layer->biases : layer->weights + (size_t)row * (size_t)layer->stride;
            for (size_t at = first; at < first + (size_t)layer->out; at++) {
                optimizer_element(&updates[!bias], factor * host->gradient[at], host->vectors[STORE_PARAMETERS],
                                  host->vectors[STORE_SLOT0], host->vectors[STORE_SLOT1], host->vectors[STORE_AVERAGES],
                                  at);
            }
        }
    }
    optimizer_leave(mode);
}

bool host_step(struct device *device, struct error *error)
{
    struct kernel_network *network = &device->network;
    struct kernel_source source = device->train;
    bool clips = network->clip_norm > 0.0, collects = network->micro_batches > 1;
    float share = 1.0f / (float)network->micro_batches;
    for (source.micro = 0; source.micro < network->micro_batches; source.micro++) {
        bool first = source.micro == 0;
        int mode = clips ? GRADIENT_STORE : !collects ? GRADIENT_UPDATE : first ? GRADIENT_STORE : GRADIENT_ADD;
        int how = !collects ? APPLY_CLIPPED : first ? CLIP_COLLECT_FIRST : CLIP_COLLECT;
        if (!host_batch(device, &source, NULL, error)) {
            return false;
        }
        if (device->progress->stopped) {
            return true;
        }
        if (!host_gradients(device, &source, NULL, mode, clips ? 1.0f : share, error) ||
            (clips && (!host_send_gradients(device, error) || !launch_clip(device, how, share, error)))) {
            return false;
        }
    }
    if (collects && !launch_apply(device, clips ? APPLY_COLLECTED : APPLY_GRADIENT, 1.0f, error)) {
        return false;
    }
    if (clips &&
        (collects ? !move_gradients(device, network->collected, false, error) : !fetch_progress(device, error))) {
        return false;
    }
    update_layers(device, clips && !collects ? device->progress->factor : 1.0f);
    return true;
}
