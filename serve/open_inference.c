/*
 * KServe's Open Inference Protocol, version 2, over REST with the binary tensor extension: the body is JSON, or JSON
 * followed by the bytes of tensors, little-endian; Inference-Header-Content-Length tells where the JSON ends.
 * https://github.com/kserve/open-inference-protocol
 *
 * A picture is a row of one tensor, UINT8 0 to 255 or floating-point 0 to 1, flat or [height, width]. Rows of a table
 * are one tensor per column, or a single tensor if all columns are numeric.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/protocol.h"
#include "worker/data/table/schema.h"

enum { MOST_TENSORS = 4096, MOST_ID = 128, MOST_NAME = 256, MOST_OUTPUTS = 4 };

enum type { BOOL, UINT8, UINT16, UINT32, UINT64, INT8, INT16, INT32, INT64, FP32, FP64, BYTES, TYPES };
static const char *const type_names[TYPES] = {"BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8",
                                              "INT16", "INT32", "INT64",  "FP32",   "FP64",   "BYTES"};
static const size_t type_sizes[TYPES] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 4, 8, 0};

/* Values of one input, in JSON or as bytes. */
struct tensor {
    char name[MOST_NAME];
    enum type type;
    int64_t rows;
    size_t width; /* values per row */
    const uint8_t *bytes;
    size_t size;            /* of the bytes; for BYTES each value is its length, 4 bytes, followed by itself */
    float *values;          /* from JSON, if it is all numbers: [rows, width] */
    struct json_value data; /* of JSON */
};

/* The requested outputs, and their form. */
struct inference_form {
    char id[MOST_ID];
    bool all_binary;
    bool chosen[MOST_OUTPUTS], binary[MOST_OUTPUTS];
    bool chooses;
};

/* --- outputs --- */

struct tensor_out {
    const char *name;
    enum type type;
    int width; /* values per row; 0: a scalar */
};

/* A model's outputs: at most MOST_OUTPUTS. */
static int list_outputs(const struct version *version, struct tensor_out outputs[MOST_OUTPUTS])
{
    const struct trained *trained = &version->trained;
    const int count = outcome_count(trained);
    switch (outcome_kind(trained)) {
    case OUTCOME_CLASS:
        outputs[0] = (struct tensor_out){"probabilities", FP32, count};
        outputs[1] = (struct tensor_out){"class", INT64, 0};
        outputs[2] = (struct tensor_out){"label", BYTES, 0};
        return 3;
    case OUTCOME_FLAGS:
        outputs[0] = (struct tensor_out){"probabilities", FP32, count};
        outputs[1] = (struct tensor_out){"flags", INT64, count};
        return 2;
    case OUTCOME_NUMBERS:
        outputs[0] = (struct tensor_out){"predictions", FP64, count};
        return 1;
    case OUTCOME_ERROR:
        outputs[0] = (struct tensor_out){"errors", FP64, 0};
        outputs[1] = (struct tensor_out){"flags", INT64, 0};
        return isnan(trained->threshold) ? 1 : 2;
    }
    return 0;
}

/* --- a request's head --- */

static bool wants_binary(struct json_value parameters, const char *name)
{
    return json_member(parameters, name).kind == JSON_TRUE;
}

static bool read_choice(struct inference_form *form, const struct version *version, struct json_value wanted,
                        struct error *error)
{
    struct tensor_out outputs[MOST_OUTPUTS];
    const int count = list_outputs(version, outputs);
    const struct json_value name = json_member(wanted, "name");
    for (int i = 0; i < count; i++) {
        if (json_is(name, outputs[i].name)) {
            form->chooses = form->chosen[i] = true;
            form->binary[i] = wants_binary(json_member(wanted, "parameters"), "binary_data");
            return true;
        }
    }
    char text[MOST_NAME];
    json_text(name, text, sizeof text);
    return error_set(error, "outputs: there is no %.64s; GET /v2/models/NAME lists them", text);
}

static bool read_form(struct inference_form *form, const struct version *version, struct json_value root,
                      struct error *error)
{
    struct json_walk walk = json_walk(json_member(root, "outputs"));
    struct json_value wanted;
    json_text(json_member(root, "id"), form->id, sizeof form->id);
    form->all_binary = wants_binary(json_member(root, "parameters"), "binary_data_output");
    while (json_next(&walk, &wanted)) {
        if (!read_choice(form, version, wanted, error)) {
            return false;
        }
    }
    return true;
}

/* --- inputs --- */

static bool read_shape(struct tensor *tensor, struct json_value shape, struct error *error)
{
    struct json_walk walk = json_walk(shape);
    struct json_value value;
    int64_t side, width = 1;
    tensor->rows = -1;
    for (int i = 0; json_next(&walk, &value); i++) {
        if (!json_count(value, &side)) {
            return error_set(error, "shape: dimension %d is no count", i);
        }
        width *= i > 0 ? side : 1;
        tensor->rows = i == 0 ? side : tensor->rows;
        if (width > 1 << 24) {
            return error_set(error, "shape: a row of more than %d values", 1 << 24);
        }
    }
    tensor->width = (size_t)width;
    return tensor->rows >= 0 || error_set(error, "shape: is missing; it is [rows] or [rows, values, ...]");
}

static bool read_type(struct tensor *tensor, struct json_value value, struct error *error)
{
    char name[32];
    for (int i = 0; i < TYPES; i++) {
        if (json_is(value, type_names[i])) {
            tensor->type = (enum type)i;
            return true;
        }
    }
    return error_set(error, "datatype: %s is none of BOOL, UINT8 to UINT64, INT8 to INT64, FP32, FP64, BYTES",
                     json_text(value, name, sizeof name) ? name : json_kind_name(value.kind));
}

/* Takes its bytes from after the JSON, or its values from within. */
static bool read_data(struct tensor *tensor, struct json_value input, const uint8_t **rest, size_t *left,
                      struct error *error)
{
    const struct json_value binary = json_member(json_member(input, "parameters"), "binary_data_size");
    int64_t size;
    tensor->data = json_member(input, "data");
    if (binary.kind == JSON_NONE) {
        return tensor->data.kind == JSON_ARRAY || error_set(error, "data: is missing, and so is binary_data_size");
    }
    if (!json_count(binary, &size) || (uint64_t)size > *left) {
        return error_set(error, "binary_data_size: is more than the %zu bytes that are left of the body", *left);
    }
    if (tensor->type != BYTES && (uint64_t)size != (uint64_t)tensor->rows * tensor->width * type_sizes[tensor->type]) {
        return error_set(error, "binary_data_size: is %lld, its shape has %lld values of %zu bytes", (long long)size,
                         (long long)tensor->rows * (long long)tensor->width, type_sizes[tensor->type]);
    }
    tensor->bytes = *rest;
    tensor->size = (size_t)size;
    *rest += size;
    *left -= (size_t)size;
    return true;
}

static bool read_tensor(struct tensor *tensor, struct json_value input, const uint8_t **rest, size_t *left,
                        struct error *error)
{
    json_text(json_member(input, "name"), tensor->name, sizeof tensor->name);
    return (read_type(tensor, json_member(input, "datatype"), error) &&
            read_shape(tensor, json_member(input, "shape"), error) && read_data(tensor, input, rest, left, error)) ||
           error_wrap(error, "input %.64s", tensor->name);
}

/* --- values --- */

static double number_at(const struct tensor *tensor, size_t index)
{
    const uint8_t *at = tensor->bytes + index * type_sizes[tensor->type];
    union {
        uint8_t u8;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        int8_t i8;
        int16_t i16;
        int32_t i32;
        int64_t i64;
        float f32;
        double f64;
    } value;
    memcpy(&value, at, type_sizes[tensor->type]);
    switch (tensor->type) {
    case UINT16:
        return value.u16;
    case UINT32:
        return value.u32;
    case UINT64:
        return (double)value.u64;
    case INT8:
        return value.i8;
    case INT16:
        return value.i16;
    case INT32:
        return value.i32;
    case INT64:
        return (double)value.i64;
    case FP32:
        return (double)value.f32;
    case FP64:
        return value.f64;
    default:
        return value.u8;
    }
}

static bool is_floating(enum type type)
{
    return type == FP32 || type == FP64;
}

static bool check_pictures(const struct version *version, const struct tensor *tensor, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(version);
    return (tensor->width == inputs && tensor->type != BYTES) ||
           error_set(error, "input %.64s: rows of %zu values of %s; the model's pictures have %zu numbers",
                     tensor->name, tensor->width, type_names[tensor->type], inputs);
}

/* Images that make up a whole batch, in place. False: there is none, or *failed. */
static bool lend_pictures(struct intake *intake, const struct tensor *tensor, bool *failed, struct error *error)
{
    const bool is_aligned = (uintptr_t)tensor->bytes % _Alignof(float) == 0;
    if (!tensor->bytes) {
        return false;
    }
    if (tensor->type == UINT8) {
        return intake_lend_bytes(intake, tensor->bytes, tensor->rows);
    }
    return tensor->type == FP32 && is_aligned &&
           intake_lend_numbers(intake, (const float *)(const void *)tensor->bytes, tensor->rows, failed, error);
}

static bool add_pictures(struct intake *intake, struct tensor *tensor, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    const bool floating = is_floating(tensor->type);
    float *values = intake->row;
    uint8_t *pixels = intake->row; /* in place: a byte overwrites only numbers already read */
    bool done = true, failed = false;
    if (lend_pictures(intake, tensor, &failed, error) || failed) {
        return !failed;
    }
    for (int64_t row = 0; done && row < tensor->rows; row++) {
        const size_t first = (size_t)row * inputs;
        if (tensor->bytes && tensor->type == UINT8) {
            done = intake_add_bytes(intake, tensor->bytes + first, error);
            continue;
        }
        if (tensor->bytes && tensor->type == FP32) {
            memcpy(values, tensor->bytes + first * sizeof *values, inputs * sizeof *values);
            done = intake_add_numbers(intake, values, row, error);
            continue;
        }
        for (size_t i = 0; done && i < inputs; i++) {
            const double value = tensor->bytes ? number_at(tensor, first + i) : (double)tensor->values[first + i];
            if (!floating && !(value >= 0 && value <= 255)) {
                done = error_set(error, "row %lld: pixel %zu is %g; as integers pixels are 0 to 255", (long long)row, i,
                                 value);
            }
            values[i] = (float)value;
        }
        for (size_t i = 0; done && !floating && i < inputs; i++) {
            pixels[i] = (uint8_t)values[i];
        }
        done = done &&
               (floating ? intake_add_numbers(intake, values, row, error) : intake_add_bytes(intake, pixels, error));
    }
    return done;
}

/* The source of a column's values, one after another. */
struct source {
    const struct tensor *tensor;
    struct json_walk walk; /* of JSON */
    size_t offset;         /* of BYTES: where the next one starts */
    char buffer[ROW_NUMBER_TEXT];
};

static bool bytes_at(struct source *source, struct csv_field *field, struct error *error)
{
    const struct tensor *tensor = source->tensor;
    uint32_t size;
    if (tensor->size - source->offset < sizeof size) {
        return error_set(error, "the bytes end before its length");
    }
    memcpy(&size, tensor->bytes + source->offset, sizeof size);
    source->offset += sizeof size;
    if (size > tensor->size - source->offset) {
        return error_set(error, "%u bytes long, beyond the tensor's end", size);
    }
    *field = (struct csv_field){.text = (const char *)tensor->bytes + source->offset, .size = size, .column = 1};
    source->offset += size;
    return true;
}

/* The next value as a field; a number's text is made in the source's buffer. */
static bool field_at(struct json_body *body, struct source *source, int64_t row, struct csv_field *field,
                     struct error *error)
{
    const struct tensor *tensor = source->tensor;
    struct json_value value;
    if (!tensor->bytes) {
        return json_next(&source->walk, &value) && json_field(body, value, field, error);
    }
    if (tensor->type == BYTES) {
        return bytes_at(source, field, error);
    }
    const int size = snprintf(source->buffer, sizeof source->buffer, tensor->type == FP32 ? "%.9g" : "%.17g",
                              number_at(tensor, (size_t)row));
    *field = (struct csv_field){.text = source->buffer, .size = (uint32_t)size};
    return true;
}

static bool find_sources(const struct version *version, const struct tensor *tensors, int count, struct source *sources,
                         struct error *error)
{
    for (int i = 0; i < intake_columns(version); i++) {
        const char *name = intake_column_name(version, i);
        const struct tensor *tensor = NULL;
        for (int j = 0; j < count && !tensor; j++) {
            tensor = strcmp(tensors[j].name, name) == 0 ? &tensors[j] : NULL;
        }
        if (!tensor) {
            return error_set(error, "column %.64s is not there, and the model was trained on it", name);
        }
        sources[i].tensor = tensor;
        sources[i].walk = json_walk(tensor->data);
        if (tensor->width != 1 || (!tensor->bytes && json_length(tensor->data) != (size_t)tensor->rows)) {
            return error_set(error, "input %.64s: a column's shape is [rows] or [rows, 1], with as many values", name);
        }
        if (tensor->rows != sources[0].tensor->rows) {
            return error_set(error, "input %.64s: has %lld rows, %.64s has %lld", name, (long long)tensor->rows,
                             sources[0].tensor->name, (long long)sources[0].tensor->rows);
        }
    }
    return true;
}

static bool add_columns(struct json_body *body, struct intake *intake, const struct tensor *tensors, int count,
                        struct error *error)
{
    const struct version *version = intake->version;
    const size_t columns = (size_t)intake_columns(version);
    struct source *sources = calloc(columns + 1, sizeof *sources);
    struct csv_field *fields = calloc(columns + 1, sizeof *fields);
    bool done = sources && fields ? find_sources(version, tensors, count, sources, error)
                                  : error_set(error, "out of memory for %zu columns", columns);
    const int64_t rows = done && sources[0].tensor ? sources[0].tensor->rows : 0;
    for (int64_t row = 0; done && row < rows; row++) {
        for (size_t i = 0; done && i < columns; i++) {
            done = field_at(body, &sources[i], row, &fields[i], error) ||
                   error_wrap(error, "row %lld: column %.64s", (long long)row, intake_column_name(version, (int)i));
        }
        done = done && intake_add_fields(intake, fields, row, error);
    }
    free(sources);
    free(fields);
    return done;
}

/* One tensor of all columns. */
static bool add_matrix(struct intake *intake, struct tensor *tensor, struct error *error)
{
    const size_t columns = (size_t)intake_columns(intake->version);
    struct csv_field *fields = calloc(columns + 1, sizeof *fields);
    char(*buffers)[ROW_NUMBER_TEXT] = calloc(columns + 1, sizeof *buffers);
    bool done = fields && buffers ? true : error_set(error, "out of memory for %zu columns", columns);
    for (int64_t row = 0; done && row < tensor->rows; row++) {
        for (size_t i = 0; i < columns; i++) {
            const size_t at = (size_t)row * columns + i;
            const double number = tensor->bytes ? number_at(tensor, at) : (double)tensor->values[at];
            const int size = snprintf(buffers[i], ROW_NUMBER_TEXT, tensor->type == FP64 ? "%.17g" : "%.9g", number);
            fields[i] = (struct csv_field){.text = buffers[i], .size = (uint32_t)size};
        }
        done = intake_add_fields(intake, fields, row, error);
    }
    free(fields);
    free(buffers);
    return done;
}

/* JSON's values as numbers. */
static bool read_values(struct json_body *body, struct tensor *tensor, struct error *error)
{
    const size_t wanted = (size_t)tensor->rows * tensor->width;
    size_t count;
    bool whole;
    if (tensor->bytes) {
        return true;
    }
    if (wanted > (size_t)1 << 28) {
        return error_set(error, "shape: more values than a request may have");
    }
    const size_t possible = tensor->data.size / 2 + 1; /* each is a digit and what follows it */
    const size_t room = wanted < possible ? wanted : possible;
    if (!call_charge(body->call, room * sizeof *tensor->values, error)) {
        return false;
    }
    tensor->values = malloc(room * sizeof *tensor->values + 1);
    if (!tensor->values) {
        return error_set(error, "out of memory for %zu values", wanted);
    }
    return (json_numbers(tensor->data, tensor->values, room, &count, &whole, error) &&
            (count == wanted || error_set(error, "has %zu values, its shape has %zu", count, wanted))) ||
           error_wrap(error, "input %.64s", tensor->name);
}

static bool add_tensors(struct json_body *body, struct intake *intake, struct tensor *tensors, int count,
                        struct error *error)
{
    const struct version *version = intake->version;
    if (count == 0) {
        return error_set(error, "inputs: is missing or empty");
    }
    if (version_is_of_pictures(version)) {
        return (count == 1 || error_set(error, "inputs: there are %d; pictures are one tensor", count)) &&
               check_pictures(version, &tensors[0], error) && read_values(body, &tensors[0], error) &&
               add_pictures(intake, &tensors[0], error);
    }
    const bool is_matrix = count == 1 && tensors[0].type != BYTES && intake_columns(version) > 1 &&
                           tensors[0].width == (size_t)intake_columns(version);
    return is_matrix ? read_values(body, &tensors[0], error) && add_matrix(intake, &tensors[0], error)
                     : add_columns(body, intake, tensors, count, error);
}

/* json_size: where the tensors' bytes start. */
static bool read_inputs(struct call *call, struct json_body *body, struct intake *intake, size_t json_size,
                        struct error *error)
{
    const struct json_value inputs = json_member(body->root, "inputs");
    struct json_walk walk = json_walk(inputs);
    struct json_value input;
    const uint8_t *rest = call->body + json_size;
    size_t left = call->size - json_size;
    const size_t count = inputs.kind == JSON_ARRAY ? json_length(inputs) : 0;
    if (count > MOST_TENSORS) {
        return error_set(error, "inputs: more than %d", MOST_TENSORS);
    }
    if (!call_charge(call, (count + 1) * sizeof(struct tensor), error)) {
        return false;
    }
    struct tensor *tensors = calloc(count + 1, sizeof *tensors);
    bool done = tensors || error_set(error, "out of memory for %zu inputs", count);
    for (size_t i = 0; done && i < count && json_next(&walk, &input); i++) {
        done = read_tensor(&tensors[i], input, &rest, &left, error);
    }
    done = done && add_tensors(body, intake, tensors, (int)count, error);
    for (size_t i = 0; tensors && i < count; i++) {
        free(tensors[i].values);
    }
    free(tensors);
    return done;
}

static bool read_call(struct call *call, struct intake *intake, struct error *error)
{
    const char *length = http_request_header(call->request, "inference-header-content-length");
    size_t json_size = call->size;
    struct json_body body;
    if (length) {
        char *end;
        const unsigned long long said = strtoull(length, &end, 10);
        if (*end != '\0' || said > call->size) {
            return error_set(error, "Inference-Header-Content-Length: %.32s; the body has %zu bytes", length,
                             call->size);
        }
        json_size = (size_t)said;
    }
    struct inference_form *form = call->format = calloc(1, sizeof *form);
    if (!form) {
        return error_set(error, "out of memory");
    }
    bool done = json_open_body(&body, call, json_size, error) && read_form(form, call->version, body.root, error) &&
                read_inputs(call, &body, intake, json_size, error);
    json_close_body(&body);
    return done;
}

/* --- answers --- */

struct tensor_writer {
    const struct answers *answers;
    const struct trained *trained;
    struct outcome outcome;
    struct text_buffer *binary; /* after the JSON */
};

static void put_value(struct tensor_writer *writer, struct text_buffer *body, const struct tensor_out *output,
                      int index, bool binary)
{
    const struct outcome *outcome = &writer->outcome;
    if (output->type == BYTES) {
        char name[OUTCOME_NAME];
        const char *label = outcome_name(writer->trained, outcome->best, name);
        const uint32_t size = (uint32_t)strlen(label);
        if (binary) {
            text_buffer_add_bytes(writer->binary, &size, sizeof size);
            text_buffer_add_bytes(writer->binary, label, size);
        } else {
            json_write_string(body, NULL, label);
        }
    } else if (output->type == INT64) {
        const int64_t value = outcome->kind == OUTCOME_CLASS ? outcome->best : outcome_flag(outcome, index);
        if (binary) {
            text_buffer_add_bytes(writer->binary, &value, sizeof value);
        } else {
            json_write_integer(body, NULL, value);
        }
    } else if (!binary) {
        json_outcome(body, outcome, index);
    } else if (output->type == FP32) {
        const float value = (float)outcome->values[index];
        text_buffer_add_bytes(writer->binary, &value, sizeof value);
    } else {
        text_buffer_add_bytes(writer->binary, &outcome->values[index], sizeof outcome->values[index]);
    }
}

static void put_output(struct tensor_writer *writer, struct text_buffer *body, const struct tensor_out *output,
                       bool binary)
{
    const struct answers *answers = writer->answers;
    const size_t before = writer->binary->size;
    json_write_open(body, NULL, '{');
    json_write_string(body, "name", output->name);
    json_write_string(body, "datatype", type_names[output->type]);
    json_write_open(body, "shape", '[');
    json_write_integer(body, NULL, answers->count);
    if (output->width > 0) {
        json_write_integer(body, NULL, output->width);
    }
    json_write_close(body, ']');
    if (!binary) {
        json_write_open(body, "data", '[');
    }
    for (int row = 0; row < answers->count; row++) {
        outcome_find(writer->trained, answers->outputs, answers->wanted, row, &writer->outcome);
        for (int i = 0; i < (output->width > 0 ? output->width : 1); i++) {
            put_value(writer, body, output, i, binary);
        }
    }
    if (!binary) {
        json_write_close(body, ']');
    } else {
        json_write_open(body, "parameters", '{');
        json_write_integer(body, "binary_data_size", (int64_t)(writer->binary->size - before));
        json_write_close(body, '}');
    }
    json_write_close(body, '}');
}

static const char *write_answer(struct call *call, const struct answers *answers, struct text_buffer *body,
                                char headers[512])
{
    const struct inference_form *form = call->format;
    struct tensor_out outputs[MOST_OUTPUTS];
    struct tensor_writer writer = {.answers = answers, .trained = &answers->version->trained, .binary = &call->tail};
    const int count = list_outputs(answers->version, outputs);
    char number[24];
    if (!outcome_create(&writer.outcome, writer.trained)) {
        body->failed = true;
        return NULL;
    }
    snprintf(number, sizeof number, "%lld", (long long)answers->version->number);
    json_write_open(body, NULL, '{');
    json_write_string(body, "model_name", call->served->name);
    json_write_string(body, "model_version", number);
    if (form->id[0] != '\0') {
        json_write_string(body, "id", form->id);
    }
    json_write_open(body, "outputs", '[');
    for (int i = 0; i < count; i++) {
        if (!form->chooses || form->chosen[i]) {
            put_output(&writer, body, &outputs[i],
                       form->chooses ? form->binary[i] || form->all_binary : form->all_binary);
        }
    }
    json_write_close(body, ']');
    json_write_close(body, '}');
    outcome_free(&writer.outcome);
    if (call->tail.size == 0 && !call->tail.failed) {
        return "application/json";
    }
    snprintf(headers, 512, "Inference-Header-Content-Length: %zu\r\n", body->size);
    return "application/octet-stream";
}

const struct protocol protocol_open_inference = {.read = read_call, .write = write_answer};

/* --- metadata --- */

static void put_tensor(struct text_buffer *text, const char *name, enum type type, int width)
{
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", name);
    json_write_string(text, "datatype", type_names[type]);
    json_write_open(text, "shape", '[');
    json_write_integer(text, NULL, -1);
    if (width > 0) {
        json_write_integer(text, NULL, width);
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

void open_inference_describe(struct text_buffer *text, const struct served *served, const struct version *version)
{
    struct tensor_out outputs[MOST_OUTPUTS];
    const int count = list_outputs(version, outputs);
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)version->number);
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", served->name);
    json_write_open(text, "versions", '[');
    json_write_string(text, NULL, number);
    json_write_close(text, ']');
    json_write_string(text, "platform", "trainer");
    json_write_open(text, "inputs", '[');
    if (version_is_of_pictures(version)) {
        put_tensor(text, "images", UINT8, version_inputs(version));
    }
    for (int i = 0; !version_is_of_pictures(version) && i < intake_columns(version); i++) {
        put_tensor(text, intake_column_name(version, i), intake_column_is_text(version, i) ? BYTES : FP64, 0);
    }
    json_write_close(text, ']');
    json_write_open(text, "outputs", '[');
    for (int i = 0; i < count; i++) {
        put_tensor(text, outputs[i].name, outputs[i].type, outputs[i].width);
    }
    json_write_close(text, ']');
    if (outcome_kind(&version->trained) != OUTCOME_ERROR) {
        char name[OUTCOME_NAME];
        json_write_open(text, "parameters", '{');
        json_write_open(text, "labels", '[');
        for (int i = 0; i < outcome_count(&version->trained); i++) {
            json_write_string(text, NULL, outcome_name(&version->trained, i, name));
        }
        json_write_close(text, ']');
        json_write_close(text, '}');
    }
    json_write_close(text, '}');
}
