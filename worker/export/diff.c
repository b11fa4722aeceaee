/* trainer diff: compares two checkpoints. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "base/text/json.h"
#include "base/text/printable.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/safetensors.h"
#include "worker/export/tensors.h"

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

static void say_missing(struct diff_output *output, const char *name, const char *where)
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

static void say_shapes(struct diff_output *output, const char *name, const struct safetensors_tensor *a,
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

static void say_difference(struct diff_output *output, const char *name, const struct difference *difference)
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

static void say_metadata(struct diff_output *output, const char *key, const char *a, const char *b)
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
        const struct safetensors_text *there = key ? safetensors_metadata(other, key) : NULL;
        if (key && (only_missing ? !there : !equal_text(&from->metadata[i].value, there))) {
            char *here_text = tensor_copy_text(&from->metadata[i].value),
                 *there_text = there ? tensor_copy_text(there) : NULL;
            say_metadata(output, key, only_missing ? NULL : here_text, only_missing ? here_text : there_text);
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
        const struct safetensors_tensor *other = name ? safetensors_find(b, name) : NULL;
        const struct tensor_place places[2] = {{files[0], &a->tensors[i]}, {files[1], other}};
        struct difference difference = {.count = 0};
        if (!name) {
            done = error_set(error, "out of memory while comparing");
        } else if (!other) {
            say_missing(output, name, "A");
        } else if (!same_shape(&a->tensors[i], other)) {
            say_shapes(output, name, &a->tensors[i], other);
        } else if ((done = tensor_walk(places, 2, compare, &difference, error))) {
            say_difference(output, name, &difference);
        }
        free(name);
    }
    for (int i = 0; i < b->tensor_count && done; i++) {
        char *name = tensor_copy_text(&b->tensors[i].name);
        if (name && !safetensors_find(a, name)) {
            say_missing(output, name, "B");
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
    .run = run_diff,
};
