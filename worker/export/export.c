/* trainer export: writes a trained model's weights in other programs' formats. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/version.h"
#include "ps/checkpoint/safetensors.h"
#include "worker/export/npz.h"
#include "worker/export/onnx.h"
#include "worker/export/trained.h"
#include "worker/report.h"

enum { MOST_PROPERTIES = 10, TEXT_SIZE = 256 };

/* Metadata of an exported model. */
struct export_facts {
    char step[24], layers[TEXT_SIZE], threshold[32];
    struct onnx_property properties[MOST_PROPERTIES];
    int count;
    const char *preprocessing; /* for a table, borrowed; NULL: images. Stored as a property, too */
};

static void add_fact(struct export_facts *facts, const char *key, const char *value)
{
    facts->properties[facts->count++] = (struct onnx_property){key, value};
}

static void collect_facts(struct export_facts *facts, const struct trained *trained)
{
    const struct model *model = &trained->model;
    const struct checkpoint_info *info = checkpoint_file_info(trained->file);
    size_t used = 0;
    for (int i = 0; i <= model->layer_count; i++) {
        used += (size_t)snprintf(facts->layers + used, TEXT_SIZE - used, "%s%d", i > 0 ? "," : "", model->widths[i]);
    }
    snprintf(facts->step, sizeof facts->step, "%" PRId64, info->global_step);
    facts->count = 0;
    facts->preprocessing = info->preprocessing;
    add_fact(facts, "trainer_version", version_trainer());
    add_fact(facts, "global_step", facts->step);
    add_fact(facts, "layers", facts->layers);
    add_fact(facts, "activation", config_activation_name(model->activation));
    add_fact(facts, "weights", trained->averaged ? "averaged" : "raw");
    add_fact(facts, "config_digest", info->config_digest);
    if (info->preprocessing) {
        add_fact(facts, "loss", config_loss_name(trained->config.train.loss));
    }
    if (info->has_threshold) {
        snprintf(facts->threshold, sizeof facts->threshold, "%.17g", info->threshold);
        add_fact(facts, "threshold", facts->threshold);
    }
    if (info->preprocessing) {
        add_fact(facts, "preprocessing", info->preprocessing);
    }
    if (info->class_names) {
        add_fact(facts, "class_names", info->class_names);
    }
}

static bool export_onnx(const char *path, const struct trained *trained, const struct export_facts *facts,
                        struct error *error)
{
    struct proto proto;
    const struct onnx_model model = {.model = &trained->model,
                                     .parameters = trained->parameters,
                                     .schema = trained->schema,
                                     .threshold = trained->threshold,
                                     .properties = facts->properties,
                                     .property_count = facts->count};
    bool done = onnx_encode(&proto, &model, error) &&
                file_write_atomic(path, &(struct file_part){proto.bytes, proto.size}, 1, error);
    proto_free(&proto);
    return done;
}

static bool export_npz(const char *path, const struct trained *trained, const struct export_facts *facts,
                       struct error *error)
{
    return npz_write(path, &trained->model, trained->parameters, facts->preprocessing, error);
}

/* Values as a header needs them. */
struct escaped_facts {
    char *values[MOST_PROPERTIES];
    size_t size;
};

/* False if out of memory. */
static bool escape_facts(struct escaped_facts *escaped, const struct export_facts *facts)
{
    for (int i = 0; i < facts->count; i++) {
        escaped->values[i] = safetensors_escape(facts->properties[i].value);
        if (!escaped->values[i]) {
            return false;
        }
        escaped->size += strlen(escaped->values[i]);
    }
    return true;
}

static size_t safetensors_header(char *buffer, size_t capacity, const struct model *model,
                                 const struct export_facts *facts, const struct escaped_facts *escaped)
{
    struct safetensors_writer writer;
    safetensors_write_begin(&writer, buffer, capacity);
    safetensors_write_metadata(&writer, "format", "pt"); /* other readers expect it */
    for (int i = 0; i < facts->count; i++) {
        safetensors_write_metadata(&writer, facts->properties[i].key, escaped->values[i]);
    }
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        int64_t shape[2] = {variable->is_weights ? variable->rows : variable->cols, variable->cols};
        safetensors_write_tensor(&writer, variable->name, variable->is_weights ? 2 : 1, shape);
    }
    return safetensors_write_end(&writer);
}

static bool export_safetensors(const char *path, const struct trained *trained, const struct export_facts *facts,
                               struct error *error)
{
    const struct model *model = &trained->model;
    size_t rows = 0;
    for (int i = 0; i < model->variable_count; i++) {
        rows += (size_t)model->variables[i].rows;
    }
    struct escaped_facts escaped = {.size = 0};
    const bool is_escaped = escape_facts(&escaped, facts);
    const size_t capacity = SAFETENSORS_USUAL_HEADER + escaped.size;
    char *header = malloc(capacity);
    struct file_part *parts = malloc((rows + 1) * sizeof *parts);
    bool done = header && parts && is_escaped;
    if (!done) {
        error_set(error, "%s: out of memory while writing it", path);
    } else {
        int count = 0;
        parts[count++] = (struct file_part){header, safetensors_header(header, capacity, model, facts, &escaped)};
        for (int i = 0; i < model->variable_count; i++) {
            const struct variable *variable = &model->variables[i];
            for (int row = 0; row < variable->rows; row++) {
                const float *values = trained->parameters + variable->offset + (size_t)row * (size_t)variable->stride;
                parts[count++] = (struct file_part){values, (size_t)variable->cols * sizeof *values};
            }
        }
        done = file_write_atomic(path, parts, count, error);
    }
    free(parts);
    free(header);
    for (int i = 0; i < facts->count; i++) {
        free(escaped.values[i]);
    }
    return done;
}

static const struct {
    const char *name;
    bool (*write)(const char *path, const struct trained *trained, const struct export_facts *facts,
                  struct error *error);
} formats[] = {{"onnx", export_onnx}, {"safetensors", export_safetensors}, {"npz", export_npz}};

enum { FORMATS = sizeof formats / sizeof formats[0] };

/* The format by name, or by the file's extension if none was given; FORMATS if unknown. */
static int find_format(const char *name, const char *path)
{
    const char *dot = strrchr(path, '.');
    const char *wanted = name ? name : dot ? dot + 1 : "";
    int format = 0;
    while (format < FORMATS && strcmp(formats[format].name, wanted) != 0) {
        format++;
    }
    return format;
}

static bool find_weights(const char *name, enum checkpoint_weights *which)
{
    *which = CHECKPOINT_BEST_WEIGHTS;
    if (name && strcmp(name, "raw") == 0) {
        *which = CHECKPOINT_RAW;
    } else if (name && strcmp(name, "averaged") == 0) {
        *which = CHECKPOINT_AVERAGED;
    } else if (name) {
        return false;
    }
    return true;
}

static int run_export(const struct command_call *call)
{
    const char *path = command_value(call, "out");
    const char *wanted = call->operand_count > 0 ? call->operands[0] : NULL;
    enum checkpoint_weights which;
    struct trained trained = {0};
    struct export_facts facts;
    struct error error;
    if (!path || path[0] == '\0') {
        log_error("export needs --out=FILE, the file to write");
        return COMMAND_MISUSED;
    }
    int format = find_format(command_value(call, "format"), path);
    if (format == FORMATS) {
        log_error("--format: must be onnx, safetensors or npz, or --out must have that extension");
        return COMMAND_MISUSED;
    }
    if (!find_weights(command_value(call, "weights"), &which)) {
        log_error("--weights: must be raw or averaged, not \"%.64s\"", command_value(call, "weights"));
        return COMMAND_MISUSED;
    }
    bool done = trained_open(&trained, call->config, wanted, call->config->output.train_dir, which, &error);
    if (done) {
        collect_facts(&facts, &trained);
        done = formats[format].write(path, &trained, &facts, &error);
    }
    if (!done) {
        log_error("%s", error.text);
    } else {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "path", path);
        cJSON_AddStringToObject(fields, "format", formats[format].name);
        cJSON_AddStringToObject(fields, "checkpoint", checkpoint_path(trained.file));
        cJSON_AddStringToObject(fields, "weights", trained.averaged ? "averaged" : "raw");
        cJSON_AddNumberToObject(fields, "global_step", (double)checkpoint_file_info(trained.file)->global_step);
        log_event("export", fields, "%s: the %s weights of %s, step %s", path, trained.averaged ? "averaged" : "raw",
                  checkpoint_path(trained.file), facts.step);
    }
    trained_close(&trained);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag flags[] = {
    {"out", "FILE", "the file to write; without --format, its extension selects the format"},
    {"format", "NAME", "onnx, safetensors or npz"},
    {"weights", "WHICH", "raw or averaged (averaged if the checkpoint has moving averages)"},
    {NULL, NULL, NULL},
};

const struct command command_export = {
    .name = "export",
    .operands = "[CHECKPOINT]",
    .max_operands = 1,
    .summary = "export a trained model as ONNX, safetensors or numpy's npz",
    .details =
        "CHECKPOINT is a file or a training folder, of which the best checkpoint is used; default: --train_dir. The "
        "ONNX model takes "
        "\"images\", float32 [batch, inputs] of pixels divided by 255, and returns \"logits\" and \"probabilities\"; "
        "for tables it takes the raw columns, [batch, 1] each, float64 or text, and returns what predict does. The "
        "other formats hold each layer's weights [in, out] and biases [out], and a table's preprocessing as JSON.",
    .flags = flags,
    .takes_config = true,
    .run = run_export,
};
