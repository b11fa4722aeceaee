/* trainer inspect: describes a checkpoint. */
#include <inttypes.h>
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

/* tensor_visit; context: struct tensor_norms. */
static void measure(void *context, const float *const pieces[TENSOR_WALK_MOST], size_t floats)
{
    tensor_norms_add(context, pieces[0], floats);
}

static cJSON *tensor_json(const struct safetensors_tensor *tensor, const struct tensor_norms *norms)
{
    cJSON *object = cJSON_CreateObject();
    char *name = tensor_copy_text(&tensor->name);
    cJSON_AddStringToObject(object, "name", name ? name : "");
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
        if (key && value) {
            cJSON_AddStringToObject(object, key, value);
        }
        free(key);
        free(value);
    }
    return object;
}

/* The file is untrusted. */
static const char *show_text(char *shown, size_t room, const struct safetensors_text *text)
{
    char *copy = tensor_copy_text(text);
    printable(shown, room, copy ? copy : "");
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
    .run = run_inspect,
};
