/* trainer inspect and trainer diff: what checkpoint files contain, and how two of them differ. */
#include <assert.h>
#include <cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"
#include "worker/export/trained.h"

/* --- What both share --- */

/*
 * Operands of inspect and diff, and tensors as people want to see them: names, shapes and numbers. Tensors are read
 * piece by piece, so that large models need no more memory than small ones.
 */

enum { TENSOR_SHAPE_TEXT = 96, TENSOR_WALK_MOST = 2 };

struct tensor_place {
    struct checkpoint_file *file;
    const struct safetensors_tensor *tensor;
};

/* pieces[i]: [floats], the next numbers of tensor i; valid during the call. */
typedef void tensor_visit(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t floats);

/* Statistics of a tensor, accumulated in double precision in one pass. */
struct tensor_norms {
    uint64_t count, zeros, not_finite; /* numbers; sums and limits skip those that are not finite */
    double sum, squares, largest;      /* of the numbers, of their squares; the largest magnitude */
    float minimum, maximum;            /* 0 if there are no finite numbers */
};

/* --- Operands and flags --- */

const struct command_flag checkpoint_flags[] = {
    {"json", NULL, "one JSON object"},
    {"checkpoint_key", "FILE", "secret of the checkpoints' digests, if they were written with one"},
    {NULL, NULL, NULL},
};

/*
 * Opens the `count` checkpoints named by the operands, each a file or a folder with its newest; `misuse` is the error
 * if the number of operands is wrong. On COMMAND_DONE the caller closes them; otherwise returns the exit status, after
 * logging.
 */
static int checkpoint_operands(const struct command_call *call, struct checkpoint_file **files, int count,
                               const char *misuse)
{
    struct error error;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (call->operand_count != count) {
        log_error("%s", misuse);
        return COMMAND_MISUSED;
    }
    const char *key = command_value(call, "checkpoint_key");
    if (key && !checkpoint_use_key(key, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
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

/* "[784,500]" */
static void tensor_shape_text(const struct safetensors_tensor *tensor, char text[TENSOR_SHAPE_TEXT])
{
    size_t used = (size_t)snprintf(text, TENSOR_SHAPE_TEXT, "[");
    for (int i = 0; i < tensor->dimensions; i++) {
        used +=
            (size_t)snprintf(text + used, TENSOR_SHAPE_TEXT - used, "%s%" PRId64, i > 0 ? "," : "", tensor->shape[i]);
    }
    snprintf(text + used, TENSOR_SHAPE_TEXT - used, "]");
}

static cJSON *tensor_shape_json(const struct safetensors_tensor *tensor)
{
    cJSON *shape = cJSON_CreateArray();
    for (int i = 0; i < tensor->dimensions; i++) {
        json_append(shape, cJSON_CreateNumber((double)tensor->shape[i]));
    }
    return shape;
}

/* A name or value of the header as an unescaped C string, which the caller frees. */
static char *tensor_copy_text(const struct safetensors_text *text)
{
    cJSON *string = cJSON_ParseWithLength(text->bytes - 1, text->size + 2); /* with the quotes around it */
    char *copy = must_have(cJSON_IsString(string) ? strdup(string->valuestring) : strndup(text->bytes, text->size),
                           text->size, "a text");
    cJSON_Delete(string);
    return copy;
}

/* --- Numbers --- */

enum { PIECE = 1 << 15 };

/*
 * Walks `count` (at most TENSOR_WALK_MOST) float32 tensors of one shape in parallel.
 *
 * Through a buffer of fixed size, side by side if several are compared.
 */
static bool tensor_walk(const struct tensor_place *places, int count, tensor_visit *visit, void *context,
                        struct error *error)
{
    const float *pieces[TENSOR_WALK_MOST] = {NULL};
    uint64_t floats = places[0].tensor->size / sizeof(float);
    assert(count >= 1 && count <= TENSOR_WALK_MOST);
    float *memory = must_alloc((size_t)count * PIECE * sizeof *memory, "a part of a tensor");
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
static void tensor_norms_add(struct tensor_norms *norms, const float *values, size_t count)
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

/* The Euclidean norm, the mean, and the standard deviation. */
static double tensor_norms_l2(const struct tensor_norms *norms)
{
    return sqrt(norms->squares);
}

static double tensor_norms_mean(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    return count > 0 ? norms->sum / (double)count : 0;
}

static double tensor_norms_stddev(const struct tensor_norms *norms)
{
    uint64_t count = finite_count(norms);
    double mean = tensor_norms_mean(norms);
    return count > 0 ? sqrt(fmax(0, norms->squares / (double)count - mean * mean)) : 0;
}

/* --- inspect --- */

/* tensor_visit; context: struct tensor_norms. */
static void measure(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t floats)
{
    tensor_norms_add(context, pieces[0], floats);
}

static cJSON *tensor_json(const struct safetensors_tensor *tensor, const struct tensor_norms *norms)
{
    cJSON *object = cJSON_CreateObject();
    char *name = tensor_copy_text(&tensor->name);
    cJSON_AddStringToObject(object, "name", name);
    free(name);
    json_put(object, "shape", tensor_shape_json(tensor));
    cJSON_AddNumberToObject(object, "l2_norm", tensor_norms_l2(norms));
    cJSON_AddNumberToObject(object, "mean", tensor_norms_mean(norms));
    cJSON_AddNumberToObject(object, "stddev", tensor_norms_stddev(norms));
    cJSON_AddNumberToObject(object, "minimum", (double)norms->minimum);
    cJSON_AddNumberToObject(object, "maximum", (double)norms->maximum);
    cJSON_AddNumberToObject(object, "zeros", (double)norms->zeros);
    cJSON_AddNumberToObject(object, "not_finite", (double)norms->not_finite);
    return object;
}

static cJSON *metadata_json(const struct safetensors *tensors)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < tensors->metadata_count; i++) {
        char *key = tensor_copy_text(&tensors->metadata[i].key), *value = tensor_copy_text(&tensors->metadata[i].value);
        cJSON_AddStringToObject(object, key, value);
        free(key);
        free(value);
    }
    return object;
}

/* The file is untrusted. */
static const char *show_text(char *shown, size_t room, const struct safetensors_text *text)
{
    char *copy = tensor_copy_text(text);
    printable(shown, room, copy);
    free(copy);
    return shown;
}

static void show_metadata(const struct safetensors *tensors)
{
    for (int i = 0; i < tensors->metadata_count; i++) {
        char key[128], value[4096];
        show_text(key, sizeof key, &tensors->metadata[i].key);
        if (strcmp(key, "kept_rows") == 0) { /* thousands of numbers */
            printf("%-20s %zu bytes, which --json shows\n", key, tensors->metadata[i].value.size);
        } else {
            printf("%-20s %s\n", key, show_text(value, sizeof value, &tensors->metadata[i].value));
        }
    }
}

static void show_tensor(const struct safetensors_tensor *tensor, const struct tensor_norms *norms)
{
    char name[256], shape[TENSOR_SHAPE_TEXT], bad[48] = "";
    tensor_shape_text(tensor, shape);
    if (norms->not_finite > 0) {
        snprintf(bad, sizeof bad, "  %" PRIu64 " NOT FINITE", norms->not_finite);
    }
    printf("%-40s %-12s %10.4g %11.4g %10.4g %10.4g %10.4g%s\n", show_text(name, sizeof name, &tensor->name), shape,
           tensor_norms_l2(norms), tensor_norms_mean(norms), tensor_norms_stddev(norms), (double)norms->minimum,
           (double)norms->maximum, bad);
}

static bool inspect(struct checkpoint_file *file, bool as_json, struct error *error)
{
    const struct safetensors *tensors = checkpoint_file_tensors(file);
    cJSON *list = as_json ? cJSON_CreateArray() : NULL;
    bool done = true;
    if (!as_json) {
        printf("%-20s %s\n", "file", checkpoint_path(file));
        show_metadata(tensors);
        printf("\n%-40s %-12s %10s %11s %10s %10s %10s\n", "tensor", "shape", "l2 norm", "mean", "stddev", "minimum",
               "maximum");
    }
    for (int i = 0; i < tensors->tensor_count && done; i++) {
        struct tensor_norms norms = {.count = 0};
        done = tensor_walk(&(struct tensor_place){file, &tensors->tensors[i]}, 1, measure, &norms, error);
        if (done && as_json) {
            json_append(list, tensor_json(&tensors->tensors[i], &norms));
        } else if (done) {
            show_tensor(&tensors->tensors[i], &norms);
        }
    }
    if (done && as_json) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "path", checkpoint_path(file));
        cJSON_AddNumberToObject(fields, "global_step", (double)checkpoint_file_info(file)->global_step);
        json_put(fields, "metadata", metadata_json(tensors));
        json_put(fields, "tensors", list);
        log_event("checkpoint", fields, NULL);
        list = NULL;
    }
    cJSON_Delete(list);
    return done;
}

static int run_inspect(const struct command_call *call)
{
    struct checkpoint_file *file;
    struct error error;
    int status = checkpoint_operands(
        call, &file, 1,
        "inspect needs a checkpoint: a file, or a training folder, of which the newest checkpoint is used");
    if (status != COMMAND_DONE) {
        return status;
    }
    bool done = inspect(file, command_switch(call, "json"), &error);
    if (!done) {
        log_error("%s", error.text);
    }
    checkpoint_close(file);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

const struct command command_inspect = {
    .name = "inspect",
    .operands = "CHECKPOINT",
    .max_operands = 1,
    .summary = "describe a checkpoint: step, config, digest, tensors with their shapes and norms",
    .details = "CHECKPOINT is a file, or a training folder, of which the newest checkpoint is used. The digest is "
               "verified before anything is printed.",
    .flags = checkpoint_flags,
    .confine = CONFINE_READER,
    .run = run_inspect,
};

/* --- diff --- */

/* NaN and infinity become null, since JSON has neither. */
static void add_number(cJSON *object, const char *name, double value)
{
    if (isfinite(value)) {
        cJSON_AddNumberToObject(object, name, value);
    } else {
        cJSON_AddNullToObject(object, name);
    }
}

/* The difference between two tensors of the same shape. */
struct difference {
    uint64_t count, unequal; /* elements; those with different bits */
    double largest;          /* |a - b| */
    double squares;          /* sum of (a - b)^2 */
    struct tensor_norms norms;
};

/* tensor_visit; context: struct difference. */
static void compare(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t count)
{
    struct difference *difference = context;
    const float *a = pieces[0], *b = pieces[1];
    for (size_t i = 0; i < count; i++) {
        double apart = (double)a[i] - (double)b[i];
        difference->unequal += memcmp(&a[i], &b[i], sizeof a[i]) != 0;
        if (isfinite(apart)) {
            difference->largest = fmax(difference->largest, fabs(apart));
            difference->squares += apart * apart;
        }
    }
    difference->count += count;
    tensor_norms_add(&difference->norms, a, count);
}

static bool same_shape(const struct safetensors_tensor *a, const struct safetensors_tensor *b)
{
    return a->dimensions == b->dimensions && memcmp(a->shape, b->shape, (size_t)a->dimensions * sizeof *a->shape) == 0;
}

/* Names and texts of files, which are untrusted, made printable. */
enum { NAME_TEXT = 256, VALUE_TEXT = 4096 };

/* The output, as text or JSON lists. */
struct diff_output {
    bool as_json;
    cJSON *tensors, *metadata;
    int unequal; /* tensors that differ or are missing */
};

static void print_missing(struct diff_output *output, const char *name, const char *where)
{
    output->unequal++;
    if (output->as_json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", name);
        cJSON_AddStringToObject(object, "only_in", where);
        json_append(output->tensors, object);
    } else {
        char shown[NAME_TEXT];
        printf("%-40s only in %s\n", printable(shown, sizeof shown, name), where);
    }
}

static void print_shapes(struct diff_output *output, const char *name, const struct safetensors_tensor *a,
                         const struct safetensors_tensor *b)
{
    char left[TENSOR_SHAPE_TEXT], right[TENSOR_SHAPE_TEXT];
    tensor_shape_text(a, left);
    tensor_shape_text(b, right);
    output->unequal++;
    if (output->as_json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", name);
        json_put(object, "shape_a", tensor_shape_json(a));
        json_put(object, "shape_b", tensor_shape_json(b));
        json_append(output->tensors, object);
    } else {
        char shown[NAME_TEXT];
        printf("%-40s is %s in A and %s in B\n", printable(shown, sizeof shown, name), left, right);
    }
}

static void print_difference(struct diff_output *output, const char *name, const struct difference *difference)
{
    double apart = sqrt(difference->squares), norm = tensor_norms_l2(&difference->norms);
    double relative = norm > 0 ? apart / norm : apart > 0 ? INFINITY : 0;
    char shown[NAME_TEXT];
    printable(shown, sizeof shown, name);
    output->unequal += difference->unequal > 0;
    if (output->as_json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", name);
        cJSON_AddNumberToObject(object, "elements", (double)difference->count);
        cJSON_AddNumberToObject(object, "unequal", (double)difference->unequal);
        add_number(object, "largest_difference", difference->largest);
        add_number(object, "l2_difference", apart);
        add_number(object, "relative_difference", relative);
        json_append(output->tensors, object);
    } else if (difference->unequal == 0) {
        printf("%-40s the same\n", shown);
    } else {
        printf("%-40s %" PRIu64 " of %" PRIu64 " differ, largest %.4g, l2 norm %.4g (%.4g of A's)\n", shown,
               difference->unequal, difference->count, difference->largest, apart, relative);
    }
}

static void print_metadata(struct diff_output *output, const char *key, const char *a, const char *b)
{
    if (output->as_json) {
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "key", key);
        json_put(object, "a", a ? cJSON_CreateString(a) : cJSON_CreateNull());
        json_put(object, "b", b ? cJSON_CreateString(b) : cJSON_CreateNull());
        json_append(output->metadata, object);
    } else {
        char shown[NAME_TEXT], left[VALUE_TEXT], right[VALUE_TEXT];
        printf("%-40s %s in A, %s in B\n", printable(shown, sizeof shown, key),
               printable(left, sizeof left, a ? a : "missing"), printable(right, sizeof right, b ? b : "missing"));
    }
}

static bool equal_text(const struct safetensors_text *a, const struct safetensors_text *b)
{
    return a && b && a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

/* Lists keys of `from` that differ in `other` or, with only_missing, are missing there. */
static void diff_metadata(struct diff_output *output, const struct safetensors *from, const struct safetensors *other,
                          bool only_missing)
{
    for (int i = 0; i < from->metadata_count; i++) {
        char *key = tensor_copy_text(&from->metadata[i].key);
        const struct safetensors_text *there = safetensors_metadata(other, key);
        if (only_missing ? !there : !equal_text(&from->metadata[i].value, there)) {
            char *here_text = tensor_copy_text(&from->metadata[i].value),
                 *there_text = there ? tensor_copy_text(there) : NULL;
            print_metadata(output, key, only_missing ? NULL : here_text, only_missing ? here_text : there_text);
            free(here_text);
            free(there_text);
        }
        free(key);
    }
}

static bool diff_tensors(struct diff_output *output, struct checkpoint_file *const files[2], struct error *error)
{
    const struct safetensors *a = checkpoint_file_tensors(files[0]), *b = checkpoint_file_tensors(files[1]);
    bool done = true;
    for (int i = 0; i < a->tensor_count && done; i++) {
        char *name = tensor_copy_text(&a->tensors[i].name);
        const struct safetensors_tensor *other = safetensors_find(b, name);
        const struct tensor_place places[2] = {{files[0], &a->tensors[i]}, {files[1], other}};
        struct difference difference = {.count = 0};
        if (!other) {
            print_missing(output, name, "A");
        } else if (!same_shape(&a->tensors[i], other)) {
            print_shapes(output, name, &a->tensors[i], other);
        } else if ((done = tensor_walk(places, 2, compare, &difference, error))) {
            print_difference(output, name, &difference);
        }
        free(name);
    }
    for (int i = 0; i < b->tensor_count && done; i++) {
        char *name = tensor_copy_text(&b->tensors[i].name);
        if (!safetensors_find(a, name)) {
            print_missing(output, name, "B");
        }
        free(name);
    }
    return done;
}

static bool diff(struct diff_output *output, struct checkpoint_file *const files[2], struct error *error)
{
    const struct safetensors *a = checkpoint_file_tensors(files[0]), *b = checkpoint_file_tensors(files[1]);
    if (output->as_json) {
        output->tensors = cJSON_CreateArray();
        output->metadata = cJSON_CreateArray();
    } else {
        printf("A %s\nB %s\n\n", checkpoint_path(files[0]), checkpoint_path(files[1]));
    }
    diff_metadata(output, a, b, false);
    diff_metadata(output, b, a, true);
    bool done = diff_tensors(output, files, error);
    if (done && output->as_json) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "a", checkpoint_path(files[0]));
        cJSON_AddStringToObject(fields, "b", checkpoint_path(files[1]));
        cJSON_AddBoolToObject(fields, "same_tensors", output->unequal == 0);
        json_put(fields, "metadata", output->metadata);
        json_put(fields, "tensors", output->tensors);
        log_event("diff", fields, NULL);
        return true;
    }
    cJSON_Delete(output->tensors);
    cJSON_Delete(output->metadata);
    return done;
}

static int run_diff(const struct command_call *call)
{
    struct checkpoint_file *files[2];
    struct diff_output output = {.as_json = command_switch(call, "json")};
    struct error error;
    int status = checkpoint_operands(
        call, files, 2,
        "diff needs two checkpoints: files, or training folders, of which the newest checkpoint is used");
    if (status != COMMAND_DONE) {
        return status;
    }
    bool done = diff(&output, files, &error);
    if (!done) {
        log_error("%s", error.text);
    }
    checkpoint_close(files[0]);
    checkpoint_close(files[1]);
    return done && output.unequal == 0 ? COMMAND_DONE : COMMAND_FAILED;
}

const struct command command_diff = {
    .name = "diff",
    .operands = "A B",
    .max_operands = 2,
    .summary = "compare two checkpoints: tensors and metadata",
    .details = "A and B are files, or training folders, of which the newest checkpoint is used. The exit status is 0 "
               "if all tensors are bit-identical, else 1.",
    .flags = checkpoint_flags,
    .confine = CONFINE_READER,
    .run = run_diff,
};
