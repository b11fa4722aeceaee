/* Loads a checkpoint into memory if it fits, or as far as it does. */
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ps/checkpoint/internal.h"

/* --- does it fit --- */

static void shape_text(char *text, size_t size, int dimensions, const int64_t *shape)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < dimensions && used < size; i++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, i > 0 ? "," : "", shape[i]);
    }
    if (used < size) {
        snprintf(text + used, size - used, "]");
    }
}

static bool tensor_fits(const struct checkpoint_file *file, const struct variable *variable, const char *name,
                        struct error *error)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, name);
    if (!tensor) {
        return error_set(error, "%s does not fit: %s is not in it", file->path, name);
    }
    int64_t shape[2];
    int dimensions = checkpoint_tensor_shape(variable, shape);
    if (tensor->dimensions == dimensions && memcmp(tensor->shape, shape, (size_t)dimensions * sizeof *shape) == 0) {
        return true;
    }
    char there[64], here[64];
    shape_text(there, sizeof there, tensor->dimensions, tensor->shape);
    shape_text(here, sizeof here, dimensions, shape);
    return error_set(error, "%s does not fit: %s is %s there and %s here", file->path, name, there, here);
}

/* The first variable that differs, and both lists of layers. */
static bool layers_fit(const struct checkpoint_file *file, const struct model *model, struct error *error)
{
    bool same = true;
    if (file->model.layer_count != model->layer_count + 1) {
        same = error_set(error, "%s does not fit: it has %d layers of weights there and %d here", file->path,
                         file->model.layer_count - 1, model->layer_count);
    }
    for (int i = 0; i < model->variable_count && same; i++) {
        same = tensor_fits(file, &model->variables[i], model->variables[i].name, error);
    }
    if (same) {
        return true;
    }
    struct model there;
    model_layout(&there, &file->model);
    char there_text[METADATA_VALUE], here_text[METADATA_VALUE];
    checkpoint_layers_text(there_text, &there);
    checkpoint_layers_text(here_text, model);
    struct error inner = *error;
    return error_set(error, "%.600s (layers %.150s there, %.150s here): give --layers=%.150s or another --train_dir",
                     inner.text, there_text, here_text, there_text);
}

static bool model_fits(const struct checkpoint_file *file, const struct model *model, struct error *error)
{
    if (!layers_fit(file, model, error)) {
        return false;
    }
    if (file->model.activation != model->activation) {
        const char *there = config_activation_name(file->model.activation);
        return error_set(error,
                         "%s does not fit: activation is %s there and %s here: give --activation=%s or another "
                         "--train_dir",
                         file->path, there, config_activation_name(model->activation), there);
    }
    return true;
}

static bool has_averages(const struct checkpoint_file *file, const struct model *model)
{
    char name[TENSOR_NAME];
    checkpoint_tensor_name(name, &model->variables[0], OPTIMIZER_SGD, STORE_AVERAGES);
    return safetensors_find(&file->tensors, name);
}

static bool optimizer_fits(const struct checkpoint_file *file, const struct checkpoint_state *state,
                           struct error *error)
{
    const char *here = config_optimizer_name(state->train->optimizer);
    if (strcmp(file->optimizer, here) != 0) {
        return error_set(error,
                         "%s does not fit: the optimizer is %s there and %s here: give --optimizer=%s or "
                         "another --train_dir",
                         file->path, file->optimizer, here, file->optimizer);
    }
    bool averages_there = has_averages(file, state->model);
    bool averages_here = state->vectors[STORE_AVERAGES];
    if (averages_there != averages_here) {
        return error_set(error,
                         "%s does not fit: it has %s moving averages and ema_decay is %g here: give %s or "
                         "another --train_dir",
                         file->path, averages_there ? "" : "no", state->train->ema_decay,
                         averages_there ? "the --ema_decay it was trained with" : "--ema_decay=0");
    }
    return true;
}

static bool vectors_fit(const struct checkpoint_file *file, const struct checkpoint_state *state, struct error *error)
{
    int wanted = 0;
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (int i = 0; i < state->model->variable_count && state->vectors[vector]; i++, wanted++) {
            char name[TENSOR_NAME];
            checkpoint_tensor_name(name, &state->model->variables[i], state->train->optimizer,
                                   (enum store_vector)vector);
            if (!tensor_fits(file, &state->model->variables[i], name, error)) {
                return false;
            }
        }
    }
    if (file->tensors.tensor_count != wanted) {
        return error_set(error, "%s does not fit: it has %d tensors, %d are needed here", file->path,
                         file->tensors.tensor_count, wanted);
    }
    return true;
}

/* --- loading --- */

/* Takes whole rows by the chunk and spreads them over the padded ones. */
static bool load_tensor(struct checkpoint_file *file, const char *name, const struct variable *variable, float *values,
                        struct error *error)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, name);
    size_t row_bytes = (size_t)variable->cols * sizeof(float);
    int most = (int)(CHUNK_BYTES / row_bytes);
    uint64_t offset = tensor->offset;
    for (int row = 0; row < variable->rows;) {
        int rows = variable->rows - row < most ? variable->rows - row : most;
        if (!checkpoint_read_at(file, file->chunk, (size_t)rows * row_bytes, offset, error)) {
            return false;
        }
        for (int i = 0; i < rows; i++) {
            memcpy(values + (size_t)(row + i) * (size_t)variable->stride, file->chunk + (size_t)i * row_bytes,
                   row_bytes);
        }
        offset += (uint64_t)rows * row_bytes;
        row += rows;
    }
    return true;
}

static bool load_vector(struct checkpoint_file *file, const struct model *model, enum optimizer_kind kind,
                        enum store_vector vector, float padding, float *values, struct error *error)
{
    for (size_t i = 0; i < model->float_count; i++) {
        values[i] = padding;
    }
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        char name[TENSOR_NAME];
        checkpoint_tensor_name(name, variable, kind, vector);
        if (!load_tensor(file, name, variable, values + variable->offset, error)) {
            return false;
        }
    }
    return true;
}

bool checkpoint_load(struct checkpoint_file *file, struct checkpoint_state *state, struct error *error)
{
    if (!model_fits(file, state->model, error) || !optimizer_fits(file, state, error) ||
        !vectors_fit(file, state, error)) {
        return false;
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        bool is_slot = vector == STORE_SLOT0 || vector == STORE_SLOT1;
        if (!state->vectors[vector]) {
            continue;
        }
        float padding = is_slot ? optimizer_slot_initial(state->train, vector - STORE_SLOT0) : 0.0f;
        if (!load_vector(file, state->model, state->train->optimizer, (enum store_vector)vector, padding,
                         state->vectors[vector], error)) {
            return false;
        }
    }
    return true;
}

/* --- Loading what fits --- */

static void note_lost(char *lost, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void note_lost(char *lost, size_t size, const char *format, ...)
{
    size_t used = strlen(lost);
    va_list arguments;
    if (used + 3 < size) {
        used += (size_t)snprintf(lost + used, size - used, "%s", used > 0 ? "; " : "");
        va_start(arguments, format);
        vsnprintf(lost + used, size - used, format, arguments);
        va_end(arguments);
    }
}

/* Decides about one variable's parameters: *fits, and if not, why they are lost. */
static void weigh_variable(const struct checkpoint_file *file, const struct variable *variable, bool *fits, char *lost,
                           size_t size)
{
    const struct safetensors_tensor *tensor = safetensors_find(&file->tensors, variable->name);
    struct error ignored;
    char there[64], here[64];
    int64_t shape[2];
    *fits = tensor && tensor_fits(file, variable, variable->name, &ignored);
    if (tensor && !*fits) {
        shape_text(there, sizeof there, tensor->dimensions, tensor->shape);
        shape_text(here, sizeof here, checkpoint_tensor_shape(variable, shape), shape);
        note_lost(lost, size, "%s %s, which would be %s", variable->name, there, here);
    }
}

/* Variables of the file that the model lacks. */
static void weigh_layers(const struct checkpoint_file *file, const struct model *model, char *lost, size_t size)
{
    struct model there;
    model_layout(&there, &file->model);
    for (int i = model->variable_count; i < there.variable_count; i++) {
        note_lost(lost, size, "%s, for which there is no layer", there.variables[i].name);
    }
    if (there.variable_count < model->variable_count) {
        note_lost(lost, size, "the order of layers: %d of weights there and %d here", there.layer_count,
                  model->layer_count);
    }
}

/* One variable of one vector: from the file, or its initial value. */
static bool load_fitting(struct checkpoint_file *file, struct checkpoint_state *state, int vector,
                         const struct variable *variable, bool fits, struct error *error)
{
    char name[TENSOR_NAME];
    struct error ignored;
    float *values = state->vectors[vector] + variable->offset;
    checkpoint_tensor_name(name, variable, state->train->optimizer, (enum store_vector)vector);
    if (fits && safetensors_find(&file->tensors, name) && tensor_fits(file, variable, name, &ignored)) {
        return load_tensor(file, name, variable, values, error);
    }
    if (vector == STORE_AVERAGES) {
        assert(state->vectors[STORE_PARAMETERS]);
        memcpy(values, state->vectors[STORE_PARAMETERS] + variable->offset,
               (size_t)variable->rows * (size_t)variable->stride * sizeof *values);
    }
    return true;
}

bool checkpoint_load_fitting(struct checkpoint_file *file, struct checkpoint_state *state, char *lost, size_t size,
                             struct error *error)
{
    const struct model *model = state->model;
    lost[0] = '\0';
    for (int slot = STORE_SLOT0; slot <= STORE_SLOT1; slot++) {
        for (size_t i = 0; state->vectors[slot] && i < model->float_count; i++) {
            state->vectors[slot][i] = optimizer_slot_initial(state->train, slot - STORE_SLOT0);
        }
    }
    for (int i = 0; i < model->variable_count; i++) {
        bool fits;
        weigh_variable(file, &model->variables[i], &fits, lost, size);
        for (int vector = 0; vector < STORE_VECTORS; vector++) {
            if (state->vectors[vector] && !load_fitting(file, state, vector, &model->variables[i], fits, error)) {
                return false;
            }
        }
    }
    weigh_layers(file, model, lost, size);
    if (file->model.activation != model->activation) {
        note_lost(lost, size, "what was learnt with activation %s, which would be %s",
                  config_activation_name(file->model.activation), config_activation_name(model->activation));
    }
    return true;
}

/* --- parts --- */

bool checkpoint_load_parameters(struct checkpoint_file *file, const struct model *model, enum checkpoint_weights which,
                                float *values, bool *averaged, struct error *error)
{
    if (!model_fits(file, model, error)) {
        return false;
    }
    bool averages = which != CHECKPOINT_RAW && has_averages(file, model);
    if (which == CHECKPOINT_AVERAGED && !averages) {
        return error_set(error, "%s: has no moving averages (it was trained with ema_decay=0): take its raw weights",
                         file->path);
    }
    for (int i = 0; i < model->variable_count && averages; i++) {
        char name[TENSOR_NAME];
        checkpoint_tensor_name(name, &model->variables[i], OPTIMIZER_SGD, STORE_AVERAGES);
        if (!tensor_fits(file, &model->variables[i], name, error)) {
            return false;
        }
    }
    if (averaged) {
        *averaged = averages;
    }
    return load_vector(file, model, OPTIMIZER_SGD, averages ? STORE_AVERAGES : STORE_PARAMETERS, 0.0f, values, error);
}

bool checkpoint_read_tensor(struct checkpoint_file *file, const struct safetensors_tensor *tensor, uint64_t first,
                            size_t count, float *values, struct error *error)
{
    assert(first <= tensor->size / sizeof *values && count <= tensor->size / sizeof *values - first);
    return checkpoint_read_at(file, values, count * sizeof *values, tensor->offset + first * sizeof *values, error);
}
