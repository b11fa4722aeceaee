/* Checkpoints as inspect and diff show them: their names, shapes and numbers. */
#include "worker/export/tensors.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text/json.h"
#include "worker/export/trained.h"

/* --- Operands and flags --- */

const struct command_flag checkpoint_flags[] = {
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count, const char *misuse)
{
    struct error error;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (call->operand_count != count) {
        log_error("%s", misuse);
        return COMMAND_MISUSED;
    }
    for (int i = 0; i < count; i++) {
        const char *operand = call->operands[i];
        const bool is_folder = file_is_folder(operand);
        if (!trained_find(&files[i], is_folder ? "newest" : operand, is_folder ? operand : ".", &error)) {
            log_error("%s", error.text);
            while (i > 0) {
                checkpoint_close(files[--i]);
            }
            return COMMAND_FAILED;
        }
    }
    return COMMAND_DONE;
}

/* --- Names and shapes, for people and for JSON --- */

void tensor_shape_text(const struct safetensors_tensor *tensor, char text[TENSOR_SHAPE_TEXT])
{
    size_t used = (size_t)snprintf(text, TENSOR_SHAPE_TEXT, "[");
    for (int i = 0; i < tensor->dimensions; i++) {
        used +=
            (size_t)snprintf(text + used, TENSOR_SHAPE_TEXT - used, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    }
    snprintf(text + used, TENSOR_SHAPE_TEXT - used, "]");
}

cJSON *tensor_shape_json(const struct safetensors_tensor *tensor)
{
    cJSON *shape = cJSON_CreateArray();
    for (int i = 0; i < tensor->dimensions; i++) {
        json_append(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    }
    return shape;
}

char *tensor_copy_text(const struct safetensors_text *text)
{
    cJSON *string = cJSON_ParseWithLength(text->bytes - 1, text->size + 2); /* with the quotes around it */
    char *copy = cJSON_IsString(string) ? strdup(string->valuestring) : strndup(text->bytes, text->size);
    cJSON_Delete(string);
    return copy;
}

/* --- Numbers --- */

enum { PIECE = 1 << 15 };

/* Through a buffer of fixed size, side by side if several are compared. */
bool tensor_walk(const struct tensor_place *places, int count, tensor_visit *visit, void *context, struct error *error)
{
    const float *pieces[TENSOR_WALK_MOST] = {NULL};
    uint64_t floats = places[0].tensor->size / sizeof(float);
    assert(count >= 1 && count <= TENSOR_WALK_MOST);
    float *memory = malloc((size_t)count * PIECE * sizeof *memory);
    if (!memory) {
        return error_set(error, "%s: out of memory while reading its tensors", checkpoint_path(places[0].file));
    }
    bool done = true;
    for (uint64_t first = 0; first < floats && done; first += PIECE) {
        size_t some = floats - first < PIECE ? (size_t)(floats - first) : PIECE;
        for (int i = 0; i < count && done; i++) {
            float *piece = memory + (size_t)i * PIECE;
            pieces[i] = piece;
            done = checkpoint_read_tensor(places[i].file, places[i].tensor, first, some, piece, error);
        }
        if (done) {
            visit(context, pieces, some);
        }
    }
    free(memory);
    return done;
}

/* --- Statistics --- */

static uint64_t finite_count(const struct tensor_norms *norms)
{
    return norms->count - norms->not_finite;
}

/* Values that are not finite are counted, and left out of sums and limits. */
void tensor_norms_add(struct tensor_norms *norms, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        float value = values[i];
        if (!isfinite(value)) {
            norms->not_finite++;
            norms->count++;
            continue;
        }
        bool first = finite_count(norms) == 0;
        norms->minimum = first || value < norms->minimum ? value : norms->minimum;
        norms->maximum = first || value > norms->maximum ? value : norms->maximum;
        norms->largest = fmax(norms->largest, fabs((double)value));
        norms->zeros += value == 0;
        norms->sum += (double)value;
        norms->squares += (double)value * (double)value;
        norms->count++;
    }
}

double tensor_norms_l2(const struct tensor_norms *norms)
{
    return sqrt(norms->squares);
}

double tensor_norms_mean(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    return count > 0 ? norms->sum / (double)count : 0;
}

double tensor_norms_stddev(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    double mean = tensor_norms_mean(norms);
    return count > 0 ? sqrt(fmax(0, norms->squares / (double)count - mean * mean)) : 0;
}
