/* trainer export: a trained model's weights in other programs' formats. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/cli/commands.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/version.h"
#include "net/bytes.h"
#include "ps/checkpoint/safetensors.h"
#include "ps/store/model.h"
#include "worker/export/onnx.h"
#include "worker/export/trained.h"
#include "worker/report.h"

/* --- NumPy --- */

/*
 * Parameters as numpy's .npz: an uncompressed zip archive with one .npy file per variable, named as in checkpoints, and
 * written in one piece. Formats: numpy.lib.format, version 1.0; PKWARE's APPNOTE.TXT.
 */

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "floats are written as they are in memory");

enum {
    LOCAL_HEADER = 30,
    CENTRAL_HEADER = 46,
    END_RECORD = 22,
    NAME_SIZE = 32,
    NPY_HEADER = 128, /* magic, version, length, description: a multiple of 64 */
    VERSION = 20,     /* zip version needed to extract */
    DATE = 0x21,      /* 1 January 1980: the same parameters give the same file */
};

#define MOST_BYTES ((uint64_t)0xFFF00000) /* limit of a zip archive without the 64-bit extension */

static const uint8_t npy_magic[8] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0};
static const uint8_t local_magic[4] = {'P', 'K', 3, 4}, central_magic[4] = {'P', 'K', 1, 2};
static const uint8_t end_magic[4] = {'P', 'K', 5, 6};

struct zip_entry {
    char name[NAME_SIZE];
    uint8_t local[LOCAL_HEADER + NAME_SIZE], npy[NPY_HEADER], central[CENTRAL_HEADER + NAME_SIZE];
    uint32_t crc, size, offset;
};

/* "{'descr': '<f4', ...}" in its frame. */
static void make_npy_header(uint8_t header[NPY_HEADER], const char *type, const char *shape)
{
    memset(header, ' ', NPY_HEADER);
    memcpy(header, npy_magic, sizeof npy_magic);
    put_le16(header + 8, NPY_HEADER - 10);
    int used = snprintf((char *)header + 10, NPY_HEADER - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                        type, shape);
    header[10 + used] = ' ';
    header[NPY_HEADER - 1] = '\n';
}

/* The 26 bytes, from the version on, that local headers and directory entries share. */
static void put_facts(uint8_t *bytes, const struct zip_entry *entry)
{
    memset(bytes, 0, 26);
    put_le16(bytes, VERSION);
    put_le16(bytes + 8, DATE);
    put_le32(bytes + 10, entry->crc);
    put_le32(bytes + 14, entry->size);
    put_le32(bytes + 18, entry->size);
    put_le16(bytes + 22, (uint16_t)strlen(entry->name));
}

/* Name, checksum, size and offset are known. */
static void make_records(struct zip_entry *entry, uint32_t offset)
{
    entry->offset = offset;
    memcpy(entry->local, local_magic, sizeof local_magic);
    put_facts(entry->local + 4, entry);
    memcpy(entry->local + LOCAL_HEADER, entry->name, strlen(entry->name));
    memset(entry->central, 0, CENTRAL_HEADER);
    memcpy(entry->central, central_magic, sizeof central_magic);
    put_le16(entry->central + 4, VERSION);
    put_facts(entry->central + 6, entry);
    put_le32(entry->central + 42, offset);
    memcpy(entry->central + CENTRAL_HEADER, entry->name, strlen(entry->name));
}

static void make_entry(struct zip_entry *entry, const struct variable *variable, const float *values, uint32_t offset)
{
    char shape[48];
    size_t row_bytes = (size_t)variable->cols * sizeof *values;
    snprintf(shape, sizeof shape, variable->is_weights ? "(%d, %d)" : "(%d,)",
             variable->is_weights ? variable->rows : variable->cols, variable->cols);
    snprintf(entry->name, sizeof entry->name, "%s.npy", variable->name);
    make_npy_header(entry->npy, "<f4", shape);
    uLong crc = crc32(crc32(0, NULL, 0), entry->npy, NPY_HEADER);
    for (int row = 0; row < variable->rows; row++) {
        crc = crc32(crc, (const Bytef *)(values + (size_t)row * (size_t)variable->stride), (uInt)row_bytes);
    }
    entry->crc = (uint32_t)crc;
    entry->size = (uint32_t)(NPY_HEADER + (size_t)variable->rows * row_bytes);
    make_records(entry, offset);
}

static void make_text_entry(struct zip_entry *entry, const char *text, uint32_t offset)
{
    char type[24];
    size_t size = strlen(text);
    snprintf(type, sizeof type, "|S%zu", size);
    snprintf(entry->name, sizeof entry->name, "preprocessing.npy");
    make_npy_header(entry->npy, type, "()");
    uLong crc = crc32(crc32(0, NULL, 0), entry->npy, NPY_HEADER);
    entry->crc = (uint32_t)crc32(crc, (const Bytef *)text, (uInt)size);
    entry->size = (uint32_t)(NPY_HEADER + size);
    make_records(entry, offset);
}

static void make_end(uint8_t end[END_RECORD], int entries, uint32_t directory_bytes, uint32_t directory_at)
{
    memset(end, 0, END_RECORD);
    memcpy(end, end_magic, sizeof end_magic);
    put_le16(end + 8, (uint16_t)entries);
    put_le16(end + 10, (uint16_t)entries);
    put_le32(end + 12, directory_bytes);
    put_le32(end + 16, directory_at);
}

/* All parts of the file, in order; entries: one more than variables. Returns how many. */
static int list_parts(const struct model *model, const float *parameters, const char *text, struct zip_entry *entries,
                      uint8_t end[END_RECORD], struct file_part *parts)
{
    int count = 0, entry_count = model->variable_count;
    uint32_t at = 0, directory = 0;
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        const float *values = parameters + variable->offset;
        struct zip_entry *entry = &entries[i];
        make_entry(entry, variable, values, at);
        parts[count++] = (struct file_part){entry->local, LOCAL_HEADER + strlen(entry->name)};
        parts[count++] = (struct file_part){entry->npy, NPY_HEADER};
        for (int row = 0; row < variable->rows; row++) {
            parts[count++] = (struct file_part){values + (size_t)row * (size_t)variable->stride,
                                                (size_t)variable->cols * sizeof *values};
        }
        at += (uint32_t)(LOCAL_HEADER + strlen(entry->name)) + entry->size;
    }
    if (text) {
        struct zip_entry *entry = &entries[entry_count++];
        make_text_entry(entry, text, at);
        parts[count++] = (struct file_part){entry->local, LOCAL_HEADER + strlen(entry->name)};
        parts[count++] = (struct file_part){entry->npy, NPY_HEADER};
        parts[count++] = (struct file_part){text, strlen(text)};
        at += (uint32_t)(LOCAL_HEADER + strlen(entry->name)) + entry->size;
    }
    for (int i = 0; i < entry_count; i++) {
        size_t size = CENTRAL_HEADER + strlen(entries[i].name);
        parts[count++] = (struct file_part){entries[i].central, size};
        directory += (uint32_t)size;
    }
    make_end(end, entry_count, directory, at);
    parts[count++] = (struct file_part){end, END_RECORD};
    return count;
}

/*
 * Writes the file atomically (base/file.h). parameters: [model->float_count] in the model's layout. preprocessing: a
 * text stored as an additional array of bytes; NULL: none.
 */
static bool npz_write(const char *path, const struct model *model, const float *parameters, const char *preprocessing,
                      struct error *error)
{
    uint8_t end[END_RECORD];
    size_t rows = 0;
    for (int i = 0; i < model->variable_count; i++) {
        rows += (size_t)model->variables[i].rows;
    }
    if (model->parameter_count * sizeof *parameters + (preprocessing ? strlen(preprocessing) : 0) > MOST_BYTES) {
        return error_set(
            error,
            "%s: the model has %zu MiB of parameters, but an npz file holds at most 4 GiB; use --format=safetensors",
            path, model->parameter_count * sizeof *parameters >> 20);
    }
    const size_t most = rows + (size_t)3 * (size_t)model->variable_count + 5;
    struct zip_entry *entries = must_zero((size_t)model->variable_count + 1, sizeof *entries, "an archive's entries");
    struct file_part *parts = must_alloc(most * sizeof *parts, "an archive's parts");
    const int count = list_parts(model, parameters, preprocessing, entries, end, parts);
    const bool done = file_write_atomic(path, parts, count, error);
    free(parts);
    free(entries);
    return done;
}

/* --- The command --- */

/* trainer export: writes a trained model's weights in other programs' formats. */

enum { MOST_PROPERTIES = 14 };

/* Metadata of an exported model. */
struct export_facts {
    char step[24], layers[MODEL_UNITS_TEXT], ensemble[64], threshold[32], temperature[32], shape[48];
    char interval[INTERVAL_TEXT];
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
    facts->count = 0;
    char units[MODEL_UNITS_TEXT];
    model_units_text(&trained->config.model, units);
    snprintf(facts->layers, sizeof facts->layers, "%s", units);
    if (model->net_count > 1) {
        model_ensemble_text(model, facts->ensemble, sizeof facts->ensemble);
        add_fact(facts, "ensemble", facts->ensemble);
    }
    snprintf(facts->step, sizeof facts->step, "%" PRId64, info->global_step);
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
    if (info->temperature > 0) {
        snprintf(facts->temperature, sizeof facts->temperature, "%.17g", info->temperature);
        add_fact(facts, "temperature", facts->temperature);
    }
    if (info->interval.coverage > 0) {
        checkpoint_interval_text(&info->interval, facts->interval);
        add_fact(facts, "interval", facts->interval);
    }
    if (info->preprocessing) {
        add_fact(facts, "preprocessing", info->preprocessing);
    }
    if (trained->shape.height > 0) {
        snprintf(facts->shape, sizeof facts->shape, "%d,%d,%d", trained->shape.height, trained->shape.width,
                 trained->shape.channels);
        add_fact(facts, "image_shape", facts->shape);
        add_fact(facts, "image_fit", trained->shape.digits ? "digits" : "scale");
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
                                     .temperature = trained->temperature,
                                     .interval = &trained->interval,
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

static void escape_facts(struct escaped_facts *escaped, const struct export_facts *facts)
{
    for (int i = 0; i < facts->count; i++) {
        escaped->values[i] = must_have(safetensors_escape(facts->properties[i].value), 0, "a header");
        escaped->size += strlen(escaped->values[i]);
    }
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
    escape_facts(&escaped, facts);
    const size_t capacity = SAFETENSORS_USUAL_HEADER + escaped.size;
    char *header = must_alloc(capacity, "a header");
    struct file_part *parts = must_alloc((rows + 1) * sizeof *parts, "a file's parts");
    int count = 0;
    parts[count++] = (struct file_part){header, safetensors_header(header, capacity, model, facts, &escaped)};
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        for (int row = 0; row < variable->rows; row++) {
            const float *values = trained->parameters + variable->offset + (size_t)row * (size_t)variable->stride;
            parts[count++] = (struct file_part){values, (size_t)variable->cols * sizeof *values};
        }
    }
    const bool done = file_write_atomic(path, parts, count, error);
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
    .confine = CONFINE_READER,
    .run = run_export,
};
