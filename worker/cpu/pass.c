/*
 * Strips and blocks are sized so that one loop's data stays in L1, and each is owned by one thread: the only barrier of
 * a step is the sum of the logits. Zero pixels are skipped by index in both directions, which is why the first layer
 * has its own functions.
 */
#include "worker/cpu/engine.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

enum {
    ALIGN_FLOATS = 16,
    TILE_FLOATS = (KERNEL_BLOCK > KERNEL_STRIP ? KERNEL_BLOCK : KERNEL_STRIP) * KERNEL_STRIP,
    PLACES_AT_ONCE = 64, /* rows of gradients that stay in the L1 cache until they are applied */
};

static void plan_strips(struct strips *strips, int width, const struct kernels *kernels)
{
    int vectors = (width + kernels->lanes - 1) / kernels->lanes;
    int most = kernels->strip_floats / kernels->lanes;
    int count = (vectors + most - 1) / most;
    /* An even number of strips is shared best by two, four ... threads. */
    count += count > 1 && count % 2 != 0 && count < vectors;
    *strips = (struct strips){.width = width,
                              .lanes = kernels->lanes,
                              .vectors = vectors,
                              .count = count,
                              .pitch = (vectors + count - 1) / count * kernels->lanes};
}

/* Rows an odd number of cache lines apart do not fall into the same cache set. */
static int logits_pitch(int classes)
{
    int lines = (classes + ALIGN_FLOATS - 1) / ALIGN_FLOATS;
    return (lines | 1) * ALIGN_FLOATS;
}

static bool takes_rows(const struct network *network)
{
    return examples_are_rows(&network->like);
}

void network_plan(struct network *network, const struct model *model, const struct kernels *kernels,
                  struct dropout dropout, const struct examples *like)
{
    *network = (struct network){.model = model, .kernels = kernels, .layers = model->layer_count, .dropout = dropout};
    for (int l = 0; l < network->layers; l++) {
        plan_strips(&network->strips[l], model->widths[l + 1], kernels);
    }
    if (like && examples_are_rows(like)) {
        network->like = (struct examples){.inputs = like->inputs,
                                          .numbers = like->numbers,
                                          .piecewise = like->piecewise,
                                          .bins = like->bins,
                                          .codes = like->codes};
    }
    network->narrow = model->widths[network->layers] <= KERNEL_NARROW;
    if (network->narrow) {
        network->partials = network->layers > 1   ? network->strips[network->layers - 2].count
                            : takes_rows(network) ? index_rows_block_count(&network->like)
                                                  : index_block_count(model->widths[0]);
    }
    network->first_delta_stride = network->layers > 1 ? network->strips[0].pitch
                                  : network->narrow   ? KERNEL_NARROW
                                                      : logits_pitch(model->widths[1]);
}

static size_t matrix_floats(const struct strips *strips, int capacity)
{
    return (size_t)strips->count * (size_t)strips->pitch * (size_t)capacity;
}

static const struct variable *weights_of(const struct network *network, int layer)
{
    return &network->model->variables[2 * layer];
}

/* Softmax regression has so few outputs that the index by pixel serves both directions. */
static bool is_scattered(const struct network *network)
{
    return network->narrow && network->layers == 1;
}

void network_index_create(const struct network *network, struct batch_index *index, int capacity, bool shared)
{
    if (takes_rows(network)) {
        index_rows_create(index, &network->like, capacity);
    } else {
        const int row_stride = is_scattered(network) ? 0 : weights_of(network, 0)->stride;
        index_create(index, network->kernels, network->model->widths[0], capacity, row_stride,
                     network->first_delta_stride, shared);
    }
}

void network_index_build(const struct network *network, struct batch_index *index, int block,
                         struct index_scratch *scratch, const struct examples *examples, const int32_t *indexes,
                         int count)
{
    if (takes_rows(network)) {
        index_rows_build(index, block, examples, indexes, count);
    } else {
        index_build(index, block, network->kernels, scratch, examples->images, network->model->widths[0], indexes,
                    count);
    }
}

static float *take(float **at, size_t floats)
{
    float *taken = *at;
    *at += (floats + ALIGN_FLOATS - 1) / ALIGN_FLOATS * ALIGN_FLOATS;
    return taken;
}

/* Lays the buffers out from `memory` on and returns the floats needed. */
static size_t workspace_layout(struct workspace *workspace, const struct network *network, int capacity, bool training,
                               float *memory)
{
    float *at = memory;
    for (int l = 0; l + 1 < network->layers; l++) {
        size_t floats = matrix_floats(&network->strips[l], capacity);
        workspace->activations[l] = (struct matrix){.values = take(&at, floats), .capacity = capacity};
        workspace->outputs[l] = workspace->activations[l];
        if (training && network->dropout.threshold > 0) {
            workspace->outputs[l].values = take(&at, floats);
            workspace->masks[l] = (struct matrix){.values = take(&at, floats), .capacity = capacity};
        }
        if (training) {
            workspace->deltas[l] = (struct matrix){.values = take(&at, floats), .capacity = capacity};
        }
    }
    for (int i = 0; i < (training ? 2 : 1); i++) {
        workspace->partials[i] = take(&at, (size_t)network->partials * (size_t)capacity * KERNEL_NARROW);
    }
    int pitch = logits_pitch(network->model->widths[network->layers]);
    workspace->logits =
        (struct matrix){.values = take(&at, (size_t)pitch * (size_t)capacity), .capacity = capacity, .pitch = pitch};
    workspace->losses = take(&at, (size_t)capacity);
    workspace->correct = (uint8_t *)take(&at, (size_t)capacity);
    return (size_t)(at - memory);
}

static const char activations[] = "activations: choose a smaller --batch_size";

void workspace_create(struct workspace *workspace, const struct network *network, int capacity, bool training)
{
    capacity = round_up(capacity, 2);
    *workspace = (struct workspace){.capacity = capacity};
    _Alignas(64) float none[1];
    size_t floats = workspace_layout(workspace, network, capacity, training, none);
    workspace->memory = must_align(floats * sizeof(float), activations);
    /* The padding of narrower strips is processed too: it is zero. */
    memset(workspace->memory, 0, floats * sizeof(float));
    workspace_layout(workspace, network, capacity, training, workspace->memory);
}

void workspace_destroy(struct workspace *workspace)
{
    free(workspace->memory);
    memset(workspace, 0, sizeof *workspace);
}

void scratch_create(struct scratch *scratch, int capacity)
{
    size_t samples = (size_t)round_up(capacity, ALIGN_FLOATS);
    size_t tile = (size_t)pass_group(capacity) * TILE_FLOATS;
    size_t pack = (size_t)KERNEL_STRIP * KERNEL_STRIP;
    size_t floats = tile + pack + samples * (KERNEL_NARROW + 2);
    scratch->memory = must_align(floats * sizeof(float), activations);
    float *at = scratch->memory;
    scratch->tile = take(&at, tile);
    scratch->pack = take(&at, pack);
    scratch->logits = take(&at, samples * KERNEL_NARROW);
    scratch->losses = take(&at, samples);
    scratch->correct = (uint8_t *)take(&at, samples);
}

void scratch_destroy(struct scratch *scratch)
{
    free(scratch->memory);
    memset(scratch, 0, sizeof *scratch);
}

/* The weight at [row, col]; those to its right follow up to the end of the strip. */
static const float *weight_at(const struct network *network, const float *parameters, int layer, int row, int col)
{
    return parameters + variable_at(weights_of(network, layer), row, col);
}

static const float *biases_of(const struct network *network, const float *parameters, int layer)
{
    return parameters + network->model->variables[2 * layer + 1].offset;
}

/*
 * Adds one pixel block times strip `strip` of layer 0's weights to `out`, for the samples of one chunk. Three ways: a
 * block with few zeros is a dense product; otherwise only nonzero pixels are visited, by sample, or, if the outputs are
 * so few that the index by pixel serves both directions, by pixel.
 */
static void first_block(const struct pass *pass, const struct index_block *block, int chunk, int strip, float *out,
                        int out_stride)
{
    const struct network *network = pass->network;
    const float *weights = weight_at(network, pass->parameters, 0, block->first, strip_col(&network->strips[0], strip));
    int n = strip_floats(&network->strips[0], strip);
    int stride = weights_of(network, 0)->stride;
    int first = chunk_first(pass->count, chunk);
    int samples = chunk_first(pass->count, chunk + 1) - first;
    if (block->dense) {
        struct gemm gemm = {.m = samples,
                            .n = n,
                            .k = block->count,
                            .a = block->values + (size_t)first * (size_t)block->pitch,
                            .a_row = block->pitch,
                            .a_col = 1,
                            .b = weights,
                            .b_stride = stride,
                            .c = out,
                            .c_stride = out_stride,
                            .accumulate = true};
        network->kernels->gemm(&gemm);
    } else if (is_scattered(network)) {
        struct scatter scatter = {.pairs = (block->present_count + 1) / 2,
                                  .n = n,
                                  .start = block->column_start + (size_t)chunk * (KERNEL_BLOCK / 2 + 1),
                                  .offset = block->column_offset,
                                  .value = block->column_value,
                                  .in = weights,
                                  .in_rows = block->present,
                                  .in_stride = stride,
                                  .out = out};
        network->kernels->scatter(&scatter);
    } else {
        const struct parts *parts = block->row_parts;
        struct sparse sparse = {.pairs = (samples + 1) / 2,
                                .n = n,
                                .order = block->row_order + (size_t)chunk * (KERNEL_CHUNK / 2),
                                .parts = parts ? parts + (size_t)chunk * (KERNEL_CHUNK / 2) : NULL,
                                .start = block->row_start + (size_t)chunk * (KERNEL_CHUNK / 2 + 1),
                                .offset = block->row_offset,
                                .value = block->row_value,
                                .in = weights,
                                .out = out,
                                .out_stride = out_stride,
                                .accumulate = true};
        network->kernels->sparse(&sparse);
    }
}

/* Adds the weights of the one-hot inputs that are 1. */
static void first_places(const struct pass *pass, int chunk, int strip, float *out, int out_stride)
{
    const struct network *network = pass->network;
    const struct place_index *places = &pass->index->places;
    int first = chunk_first(pass->count, chunk);
    struct row_sums sums = {
        .rows = chunk_first(pass->count, chunk + 1) - first,
        .n = strip_floats(&network->strips[0], strip),
        .start = places->row_start + first,
        .index = places->row_place,
        .in = weight_at(network, pass->parameters, 0, places->first, strip_col(&network->strips[0], strip)),
        .in_stride = (size_t)weights_of(network, 0)->stride,
        .out = out,
        .out_stride = out_stride,
        .accumulate = true};
    network->kernels->sum_rows(&sums);
}

/* Adds the bins of encoded numbers. */
static void first_bins(const struct pass *pass, const struct index_block *block, int chunk, int strip, float *out,
                       int out_stride)
{
    const struct network *network = pass->network;
    const struct bin_index *bins = &block->bins;
    int first = chunk_first(pass->count, chunk);
    size_t at = (size_t)first * (size_t)bins->columns;
    struct bin_sums sums = {
        .rows = chunk_first(pass->count, chunk + 1) - first,
        .n = strip_floats(&network->strips[0], strip),
        .columns = bins->columns,
        .first = bins->first,
        .bin = bins->row_bin + at,
        .share = bins->row_share + at,
        .in = weight_at(network, pass->parameters, 0, block->first, strip_col(&network->strips[0], strip)),
        .in_stride = (size_t)weights_of(network, 0)->stride,
        .out = out,
        .out_stride = out_stride};
    network->kernels->sum_bins(&sums);
}

/* For one chunk: pixel blocks [block, end) x strip `strip` of layer 0, starting with its biases if with_bias. */
static void first_blocks(const struct pass *pass, int block, int end, bool with_bias, int chunk, struct matrix *out,
                         int strip)
{
    const struct network *network = pass->network;
    const struct strips *strips = &network->strips[0];
    const float *bias = with_bias ? biases_of(network, pass->parameters, 0) + strip_col(strips, strip) : NULL;
    int stride = strip_stride(out, strips);
    int first = chunk_first(pass->count, chunk);
    int rows = round_up(chunk_first(pass->count, chunk + 1) - first, 2);
    float *z = strip_row(out, strips, strip, first);
    network->kernels->fill(rows, strip_floats(strips, strip), bias, z, stride);
    for (int i = block; i < end; i++) {
        if (index_is_places(pass->index, i)) {
            first_places(pass, chunk, strip, z, stride);
        } else if (pass->index->blocks[i].bins.columns > 0) {
            first_bins(pass, &pass->index->blocks[i], chunk, strip, z, stride);
        } else {
            first_block(pass, &pass->index->blocks[i], chunk, strip, z, stride);
        }
    }
    if (network->layers > 1) {
        network->kernels->activate(network->model->activation, rows * stride, z);
    }
}

void pass_first(const struct pass *pass, struct matrix *out, int strip, int strips)
{
    for (int chunk = 0; chunk < chunk_count(pass->count); chunk++) {
        for (int i = strip; i < strip + strips; i++) {
            first_blocks(pass, 0, pass->index->block_count, true, chunk, out, i);
        }
    }
}

void pass_first_partial(const struct pass *pass, float *partials, int block)
{
    int capacity = pass->workspace->capacity;
    struct matrix out = {.values = partials + (size_t)block * (size_t)capacity * KERNEL_NARROW,
                         .capacity = capacity,
                         .pitch = KERNEL_NARROW};
    for (int strip = 0; strip < pass->network->strips[0].count; strip++) {
        for (int chunk = 0; chunk < chunk_count(pass->count); chunk++) {
            first_blocks(pass, block, block + 1, block == 0, chunk, &out, strip);
        }
    }
}

void pass_forward(const struct pass *pass, int layer, const struct matrix *below, struct matrix *out, int strip)
{
    const struct network *network = pass->network;
    const struct strips *inputs = &network->strips[layer - 1];
    const struct strips *strips = &network->strips[layer];
    int col = strip_col(strips, strip);
    int n = strip_floats(strips, strip);
    int stride = strip_stride(out, strips);
    for (int chunk = 0; chunk < chunk_count(pass->count); chunk++) {
        int first = chunk_first(pass->count, chunk);
        int rows = chunk_first(pass->count, chunk + 1) - first;
        float *z = strip_row(out, strips, strip, first);
        network->kernels->fill(rows, n, biases_of(network, pass->parameters, layer) + col, z, stride);
        for (int i = 0; i < inputs->count; i++) {
            struct gemm gemm = {.m = rows,
                                .n = n,
                                .k = strip_units(inputs, i),
                                .a = strip_row(below, inputs, i, first),
                                .a_row = strip_stride(below, inputs),
                                .a_col = 1,
                                .b = weight_at(network, pass->parameters, layer, strip_col(inputs, i), col),
                                .b_stride = weights_of(network, layer)->stride,
                                .c = z,
                                .c_stride = stride,
                                .accumulate = true};
            network->kernels->gemm(&gemm);
        }
        if (layer + 1 < network->layers) {
            network->kernels->activate(network->model->activation, rows * stride, z);
        }
    }
}

void pass_drop(const struct pass *pass, int layer, const struct dropout_batch *batch, const int32_t *places, int strip)
{
    const struct network *network = pass->network;
    if (network->dropout.threshold == 0) {
        return;
    }
    const struct strips *strips = &network->strips[layer];
    struct drop drop = {.dropout = &network->dropout,
                        .batch = *batch,
                        .layer = layer,
                        .rows = pass->count,
                        .n = strip_floats(strips, strip),
                        .stride = strips->pitch,
                        .first = strip_col(strips, strip),
                        .places = places,
                        .in = strip_row(&pass->workspace->activations[layer], strips, strip, 0),
                        .mask = strip_row(&pass->workspace->masks[layer], strips, strip, 0),
                        .out = strip_row(&pass->workspace->outputs[layer], strips, strip, 0)};
    network->kernels->drop(&drop);
}

void pass_partial(const struct pass *pass, const struct matrix *below, float *partials, int strip)
{
    const struct network *network = pass->network;
    int layer = network->layers - 1;
    const struct strips *inputs = &network->strips[layer - 1];
    float *sums = partials + (size_t)strip * (size_t)pass->workspace->capacity * KERNEL_NARROW;
    network->kernels->fill(pass->count, KERNEL_NARROW, strip == 0 ? biases_of(network, pass->parameters, layer) : NULL,
                           sums, KERNEL_NARROW);
    struct gemm gemm = {.m = pass->count,
                        .n = KERNEL_NARROW,
                        .k = strip_units(inputs, strip),
                        .a = strip_row(below, inputs, strip, 0),
                        .a_row = strip_stride(below, inputs),
                        .a_col = 1,
                        .b = weight_at(network, pass->parameters, layer, strip_col(inputs, strip), 0),
                        .b_stride = weights_of(network, layer)->stride,
                        .c = sums,
                        .c_stride = KERNEL_NARROW,
                        .accumulate = true};
    network->kernels->gemm(&gemm);
}

void pass_sum(const struct pass *pass, const float *partials, float *logits)
{
    const struct network *network = pass->network;
    size_t floats = (size_t)pass->workspace->capacity * KERNEL_NARROW;
    memcpy(logits, partials, (size_t)pass->count * KERNEL_NARROW * sizeof *logits);
    for (int i = 1; i < network->partials; i++) {
        network->kernels->add(pass->count * KERNEL_NARROW, partials + (size_t)i * floats, logits);
    }
}

/* delta of a strip of the layer below = upper delta x (rows of that strip)^T, times the derivative. */
static void backward_delta(const struct pass *pass, int layer, const struct matrix *upper, int strip)
{
    const struct network *network = pass->network;
    const struct strips *lower = &network->strips[layer - 1];
    const struct strips *strips = &network->strips[layer];
    const struct matrix *deltas = &pass->workspace->deltas[layer - 1];
    int n = strip_floats(lower, strip);
    const float *rows = weight_at(network, pass->parameters, layer, strip_col(lower, strip), 0);
    for (int i = 0; i < strips->count; i++) {
        int units = strip_units(strips, i);
        network->kernels->transpose(strip_units(lower, strip), units, rows + strip_col(strips, i),
                                    weights_of(network, layer)->stride, pass->scratch->pack, n);
        struct gemm gemm = {.m = pass->count,
                            .n = n,
                            .k = units,
                            .a = strip_row(upper, strips, i, 0),
                            .a_row = strip_stride(upper, strips),
                            .a_col = 1,
                            .b = pass->scratch->pack,
                            .b_stride = n,
                            .c = strip_row(deltas, lower, strip, 0),
                            .c_stride = lower->pitch,
                            .accumulate = i > 0};
        network->kernels->gemm(&gemm);
    }
    network->kernels->derive(network->model->activation, pass->count * lower->pitch,
                             strip_row(&pass->workspace->activations[layer - 1], lower, strip, 0),
                             strip_row(deltas, lower, strip, 0));
    if (network->dropout.threshold > 0) {
        network->kernels->multiply(pass->count * lower->pitch,
                                   strip_row(&pass->workspace->masks[layer - 1], lower, strip, 0),
                                   strip_row(deltas, lower, strip, 0));
    }
}

/* The gradient of the rows of strip `strip` below x the columns of strip `i` above, through the tile into the sink. */
static void backward_weights(const struct pass *pass, int layer, const struct matrix *upper, int strip, int i)
{
    const struct network *network = pass->network;
    const struct strips *lower = &network->strips[layer - 1];
    const struct strips *strips = &network->strips[layer];
    const struct matrix *outputs = &pass->workspace->outputs[layer - 1];
    int n = strip_floats(strips, i);
    for (int chunk = 0; chunk < chunk_count(pass->count); chunk++) {
        int first = chunk_first(pass->count, chunk);
        struct gemm gemm = {.m = strip_units(lower, strip),
                            .n = n,
                            .k = chunk_first(pass->count, chunk + 1) - first,
                            .a = strip_row(outputs, lower, strip, first),
                            .a_row = 1,
                            .a_col = strip_stride(outputs, lower),
                            .b = strip_row(upper, strips, i, first),
                            .b_stride = strip_stride(upper, strips),
                            .c = pass->scratch->tile,
                            .c_stride = n,
                            .accumulate = chunk > 0};
        network->kernels->gemm(&gemm);
    }
    struct gradient_block block = {.variable = 2 * layer,
                                   .row = strip_col(lower, strip),
                                   .rows = strip_units(lower, strip),
                                   .col = strip_col(strips, i),
                                   .cols = strip_units(strips, i),
                                   .values = pass->scratch->tile,
                                   .stride = n};
    pass->sink->block(pass->sink->context, &block);
}

void pass_backward(const struct pass *pass, int layer, const struct matrix *upper, int strip)
{
    backward_delta(pass, layer, upper, strip);
    for (int i = 0; i < pass->network->strips[layer].count; i++) {
        backward_weights(pass, layer, upper, strip, i);
    }
}

void pass_biases(const struct pass *pass, int layer, const struct matrix *upper, int strip)
{
    const struct network *network = pass->network;
    const struct strips *strips = &network->strips[layer];
    network->kernels->column_sums(pass->count, strip_floats(strips, strip), strip_row(upper, strips, strip, 0),
                                  strip_stride(upper, strips), pass->scratch->tile, false);
    struct gradient_block block = {.variable = 2 * layer + 1,
                                   .row = 0,
                                   .rows = 1,
                                   .col = strip_col(strips, strip),
                                   .cols = strip_units(strips, strip),
                                   .values = pass->scratch->tile,
                                   .stride = strip_floats(strips, strip)};
    pass->sink->block(pass->sink->context, &block);
}

/* Through the tile into the sink: rows of one block of pixels. */
static void emit_first(const struct pass *pass, const struct index_block *pixels, int strip, const float *tile)
{
    const struct strips *strips = &pass->network->strips[0];
    struct gradient_block block = {.variable = 0,
                                   .row = pixels->first,
                                   .rows = pixels->count,
                                   .col = strip_col(strips, strip),
                                   .cols = strip_units(strips, strip),
                                   .values = tile,
                                   .stride = strip_floats(strips, strip),
                                   .present = pixels->dense ? NULL : pixels->present,
                                   .present_count = pixels->dense ? pixels->count : pixels->present_count};
    pass->sink->block(pass->sink->context, &block);
}

/*
 * The rows of the weights that the sink is about to update, to prefetch during the last products before that; NULL if
 * there is more than one chunk, because later chunks would evict them again.
 */
static const float *changed_soon(const struct pass *pass, const struct index_block *block, int strip)
{
    const struct network *network = pass->network;
    return chunk_count(pass->count) > 1
               ? NULL
               : weight_at(network, pass->parameters, 0, block->first, strip_col(&network->strips[0], strip));
}

/* The contribution of one chunk to a tile, for all pixels of a dense block. */
static void first_gradient_dense(const struct pass *pass, const struct index_block *block, const struct matrix *upper,
                                 int chunk, int strip, float *tile)
{
    const struct network *network = pass->network;
    const struct strips *strips = &network->strips[0];
    int n = strip_floats(strips, strip);
    int first = chunk_first(pass->count, chunk);
    struct gemm gemm = {.m = block->count,
                        .n = n,
                        .k = chunk_first(pass->count, chunk + 1) - first,
                        .a = block->values + (size_t)first * (size_t)block->pitch,
                        .a_row = 1,
                        .a_col = block->pitch,
                        .b = strip_row(upper, strips, strip, first),
                        .b_stride = strip_stride(upper, strips),
                        .c = tile,
                        .c_stride = n,
                        .accumulate = chunk > 0,
                        .ahead = changed_soon(pass, block, strip),
                        .ahead_stride = weights_of(network, 0)->stride};
    network->kernels->gemm(&gemm);
}

/* The same for a sparse block: only the present pixels. */
static void first_gradient_sparse(const struct pass *pass, const struct index_block *block, const struct matrix *upper,
                                  int chunk, int strip, float *tile)
{
    const struct network *network = pass->network;
    const struct strips *strips = &network->strips[0];
    int n = strip_floats(strips, strip);
    const struct parts *parts = block->column_parts;
    struct sparse sparse = {.pairs = (block->present_count + 1) / 2,
                            .n = n,
                            .order = block->column_order + (size_t)chunk * (KERNEL_BLOCK / 2),
                            .parts = parts ? parts + (size_t)chunk * (KERNEL_BLOCK / 2) : NULL,
                            .start = block->column_start + (size_t)chunk * (KERNEL_BLOCK / 2 + 1),
                            .offset = block->column_offset,
                            .value = block->column_value,
                            .in = strip_row(upper, strips, strip, chunk_first(pass->count, chunk)),
                            .out = tile,
                            .out_stride = n,
                            .accumulate = chunk > 0,
                            .ahead = changed_soon(pass, block, strip),
                            .ahead_rows = block->present,
                            .ahead_stride = weights_of(network, 0)->stride};
    network->kernels->sparse(&sparse);
}

/*
 * The gradients of the one-hot inputs `begin` to `end` of those present, at most a tile of rows: the sums of the deltas
 * of the samples where they are 1. What is handed over extends to the next present one.
 */
static void places_gradient(const struct pass *pass, int begin, int end, const struct matrix *upper, int strip)
{
    const struct place_index *places = &pass->index->places;
    const struct strips *strips = &pass->network->strips[0];
    int n = strip_floats(strips, strip);
    int row = begin == 0 ? 0 : places->present[begin];
    int behind = end == places->present_count ? places->count : places->present[end];
    int32_t present[PLACES_AT_ONCE];
    for (int i = begin; i < end; i++) {
        present[i - begin] = places->present[i] - row;
    }
    struct row_sums sums = {.rows = end - begin,
                            .n = n,
                            .start = places->column_start + begin,
                            .index = places->column_sample,
                            .in = strip_row(upper, strips, strip, 0),
                            .in_stride = (size_t)strip_stride(upper, strips),
                            .out = pass->scratch->tile,
                            .out_stride = n};
    pass->network->kernels->sum_rows(&sums);
    struct gradient_block block = {.variable = 0,
                                   .row = places->first + row,
                                   .rows = behind - row,
                                   .col = strip_col(strips, strip),
                                   .cols = strip_units(strips, strip),
                                   .values = pass->scratch->tile,
                                   .stride = n,
                                   .present = present,
                                   .present_count = end - begin};
    pass->sink->block(pass->sink->context, &block);
}

/* The gradient of all bins of a block. */
static void bins_gradient(const struct pass *pass, const struct index_block *block, const struct matrix *upper,
                          int strip)
{
    const struct strips *strips = &pass->network->strips[0];
    const struct bin_index *bins = &block->bins;
    int n = strip_floats(strips, strip);
    struct bin_gradients gradients = {.n = n,
                                      .columns = bins->columns,
                                      .first = bins->first,
                                      .start = bins->column_start,
                                      .row = bins->column_sample,
                                      .share = bins->column_share,
                                      .in = strip_row(upper, strips, strip, 0),
                                      .in_stride = (size_t)strip_stride(upper, strips),
                                      .out = pass->scratch->tile,
                                      .out_stride = n};
    pass->network->kernels->bin_gradient(&gradients);
    emit_first(pass, block, strip, pass->scratch->tile);
}

void pass_first_gradient(const struct pass *pass, int number, const struct matrix *upper, int strip, int strips)
{
    const struct index_block *block = &pass->index->blocks[number];
    assert(strips <= pass_group(pass->count));
    if (index_is_places(pass->index, number)) {
        int present = pass->index->places.present_count;
        for (int i = strip; i < strip + strips; i++) {
            for (int begin = 0; begin == 0 || begin < present; begin += PLACES_AT_ONCE) {
                int end = present - begin < PLACES_AT_ONCE ? present : begin + PLACES_AT_ONCE;
                places_gradient(pass, begin, end, upper, i);
            }
        }
        return;
    }
    for (int i = strip; block->bins.columns > 0 && i < strip + strips; i++) {
        bins_gradient(pass, block, upper, i);
    }
    if (block->bins.columns > 0) {
        return;
    }
    for (int chunk = 0; chunk < chunk_count(pass->count); chunk++) {
        for (int i = 0; i < strips; i++) {
            float *tile = pass->scratch->tile + i * TILE_FLOATS;
            if (block->dense) {
                first_gradient_dense(pass, block, upper, chunk, strip + i, tile);
            } else {
                first_gradient_sparse(pass, block, upper, chunk, strip + i, tile);
            }
        }
    }
    for (int i = 0; i < strips; i++) {
        emit_first(pass, block, strip + i, pass->scratch->tile + i * TILE_FLOATS);
    }
}
