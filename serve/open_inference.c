/*
 * KServe's Open Inference Protocol, version 2, over REST with the binary tensor extension: the body is JSON, or JSON
 * followed by the bytes of tensors, little-endian; Inference-Header-Content-Length says where the JSON ends.
 * https://github.com/kserve/open-inference-protocol
 *
 * A picture is a row of one tensor, flat or [height, width]. Rows of a table are one tensor per column, or a single
 * tensor if all columns are numeric. serve/protocol.h decodes them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/protocol.h"

enum { MOST_TENSORS = 4096, MOST_ID = 128, MOST_NAME = 256, MOST_OUTPUTS = 4 };

/* The requested outputs, and their form. */
struct inference_form {
    char id[MOST_ID];
    bool all_binary;
    bool chosen[MOST_OUTPUTS], binary[MOST_OUTPUTS];
    bool chooses;
};

/* --- outputs --- */

enum out_kind { OUT_ANSWER, OUT_LOW, OUT_HIGH, OUT_SPREAD /* only for requests that ask for it */ };

struct tensor_out {
    const char *name;
    enum tensor_type type;
    int width; /* values per row; 0: a scalar */
    enum out_kind kind;
};

/* All but the spread. */
static int list_predictions(const struct version *version, struct tensor_out outputs[MOST_OUTPUTS])
{
    const struct trained *trained = &version->trained;
    const int count = outcome_count(trained);
    switch (outcome_kind(trained)) {
    case OUTCOME_CLASS:
        outputs[0] = (struct tensor_out){"probabilities", TENSOR_FP32, count, OUT_ANSWER};
        outputs[1] = (struct tensor_out){"class", TENSOR_INT64, 0, OUT_ANSWER};
        outputs[2] = (struct tensor_out){"label", TENSOR_BYTES, 0, OUT_ANSWER};
        return 3;
    case OUTCOME_FLAGS:
        outputs[0] = (struct tensor_out){"probabilities", TENSOR_FP32, count, OUT_ANSWER};
        outputs[1] = (struct tensor_out){"flags", TENSOR_INT64, count, OUT_ANSWER};
        return 2;
    case OUTCOME_NUMBERS:
        outputs[0] = (struct tensor_out){"predictions", TENSOR_FP64, count, OUT_ANSWER};
        outputs[1] = (struct tensor_out){"interval_low", TENSOR_FP64, count, OUT_LOW};
        outputs[2] = (struct tensor_out){"interval_high", TENSOR_FP64, count, OUT_HIGH};
        return outcome_has_intervals(trained) ? 3 : 1;
    case OUTCOME_ERROR:
        outputs[0] = (struct tensor_out){"errors", TENSOR_FP64, 0, OUT_ANSWER};
        outputs[1] = (struct tensor_out){"flags", TENSOR_INT64, 0, OUT_ANSWER};
        return isnan(trained->threshold) ? 1 : 2;
    }
    return 0;
}

/* A model's outputs: at most MOST_OUTPUTS. The spread of an ensemble is the last one. */
static int list_outputs(const struct version *version, struct tensor_out outputs[MOST_OUTPUTS])
{
    const struct trained *trained = &version->trained;
    const int count = list_predictions(version, outputs);
    if (outcome_spread_obstacle(trained)) {
        return count;
    }
    const bool is_of_class = outcome_kind(trained) == OUTCOME_CLASS;
    outputs[count] = (struct tensor_out){"spread", TENSOR_FP64, is_of_class ? 0 : outcome_spreads(trained), OUT_SPREAD};
    return count + 1;
}

/* --- a request's head --- */

static bool wants_binary(struct json_value parameters, const char *name)
{
    return json_member(parameters, name).kind == JSON_TRUE;
}

static bool read_choice(struct inference_form *form, struct call *call, struct json_value wanted, struct error *error)
{
    struct tensor_out outputs[MOST_OUTPUTS];
    const int count = list_outputs(call->version, outputs);
    const struct json_value name = json_member(wanted, "name");
    for (int i = 0; i < count; i++) {
        if (json_is(name, outputs[i].name)) {
            form->chooses = form->chosen[i] = true;
            call->wants_spread = call->wants_spread || outputs[i].kind == OUT_SPREAD;
            form->binary[i] = wants_binary(json_member(wanted, "parameters"), "binary_data");
            return true;
        }
    }
    char text[MOST_NAME];
    json_text(name, text, sizeof text);
    return error_set(error, "outputs: there is no %.64s; GET /v2/models/NAME lists them", text);
}

static bool read_form(struct inference_form *form, struct call *call, struct json_value root, struct error *error)
{
    struct json_walk walk = json_walk(json_member(root, "outputs"));
    struct json_value wanted;
    json_text(json_member(root, "id"), form->id, sizeof form->id);
    form->all_binary = wants_binary(json_member(root, "parameters"), "binary_data_output");
    while (json_next(&walk, &wanted)) {
        if (!read_choice(form, call, wanted, error)) {
            return false;
        }
    }
    return call_ask_spread(call, json_member(root, "parameters"), error);
}

/* --- inputs --- */

static bool read_shape(struct tensor *tensor, struct json_value shape, struct error *error)
{
    struct json_walk walk = json_walk(shape);
    struct json_value value;
    int64_t side, width = 1;
    tensor->rows = -1;
    if (shape.kind != JSON_ARRAY) {
        return error_set(error, "shape: is %s; it is an array: [rows] or [rows, values, ...]",
                         shape.kind == JSON_NONE ? "missing" : json_kind_name(shape.kind));
    }
    for (int i = 0; json_next(&walk, &value); i++) {
        if (!json_count(value, &side)) {
            return error_set(error, "shape: dimension %d is %.*s; it is a whole number from 0 to %d", i,
                             (int)(value.size < 32 ? value.size : 32), value.text, 1 << 30);
        }
        width *= i > 0 ? side : 1;
        tensor->rows = i == 0 ? side : tensor->rows;
        if (width > 1 << 24) {
            return error_set(error, "shape: a row of more than %d values", 1 << 24);
        }
    }
    tensor->width = (size_t)width;
    return tensor->rows >= 0 || error_set(error, "shape: is empty; it is [rows] or [rows, values, ...]");
}

static bool read_type(struct tensor *tensor, struct json_value value, struct error *error)
{
    char name[32];
    return tensor_type_find(value, &tensor->type) ||
           error_set(error, "datatype: %s; it is BOOL, UINT8 to UINT64, INT8 to INT64, FP16, BF16, FP32, FP64 or BYTES",
                     json_text(value, name, sizeof name) ? name
                     : value.kind == JSON_NONE           ? "is missing"
                                                         : "is not a text");
}

/* Takes its bytes from after the JSON, or its values from within. */
static bool read_data(struct tensor *tensor, struct json_value input, const uint8_t **rest, size_t *left,
                      struct error *error)
{
    const struct json_value binary = json_member(json_member(input, "parameters"), "binary_data_size");
    const size_t each = tensor_type_size(tensor->type);
    int64_t size;
    tensor->data = json_member(input, "data");
    if (binary.kind == JSON_NONE) {
        return tensor->data.kind == JSON_ARRAY ||
               error_set(error, "data: is %s; send an array of values, or bytes with binary_data_size",
                         tensor->data.kind == JSON_NONE ? "missing" : json_kind_name(tensor->data.kind));
    }
    if (!json_count(binary, &size) || (uint64_t)size > *left) {
        return error_set(error, "binary_data_size: is %.*s, and %zu bytes are left of the body",
                         (int)(binary.size < 32 ? binary.size : 32), binary.text, *left);
    }
    if (each > 0 && (uint64_t)size != (uint64_t)tensor->rows * tensor->width * each) {
        return error_set(error, "binary_data_size: is %lld, its shape has %lld values of %zu bytes", (long long)size,
                         (long long)tensor->rows * (long long)tensor->width, each);
    }
    tensor->bytes = *rest;
    tensor->size = (size_t)size;
    *rest += size;
    *left -= (size_t)size;
    return true;
}

static bool say_input(const struct tensor *tensor, struct error *error)
{
    char name[MOST_NAME];
    json_text(tensor->name, name, sizeof name);
    return error_wrap(error, "input %.64s", name);
}

static bool read_tensor(struct tensor *tensor, struct json_value input, const uint8_t **rest, size_t *left,
                        struct error *error)
{
    tensor->name = json_member(input, "name");
    return (read_type(tensor, json_member(input, "datatype"), error) &&
            read_shape(tensor, json_member(input, "shape"), error) && read_data(tensor, input, rest, left, error)) ||
           say_input(tensor, error);
}

static bool add_tensors(struct json_body *body, struct intake *intake, const struct tensor *tensors, int count,
                        struct error *error)
{
    if (count == 0) {
        return error_set(error, "inputs: is missing or empty; it is an array of tensors");
    }
    if (!version_is_of_pictures(intake->version)) {
        return tensor_add_table(body, intake, tensors, count, error);
    }
    return (count == 1 || error_set(error, "inputs: there are %d; pictures are one tensor", count)) &&
           (tensor_add_pictures(intake, &tensors[0], error) || say_input(&tensors[0], error));
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
    done = done && add_tensors(body, intake, tensors, (int)count, error) &&
           (left == 0 || error_set(error, "the body has %zu bytes behind its tensors", left));
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
    bool done = json_open_body(&body, call, json_size, error) && read_form(form, call, body.root, error) &&
                read_inputs(call, &body, intake, json_size, error);
    json_close_body(&body);
    return done;
}

/* --- answers --- */

/* Is it among the answers? */
static bool is_wanted(const struct call *call, const struct tensor_out *output, int index)
{
    const struct inference_form *form = call->format;
    return output->kind == OUT_SPREAD ? call->wants_spread : !form->chooses || form->chosen[index];
}

struct tensor_writer {
    const struct answers *answers;
    const struct trained *trained;
    struct outcome outcome;
    struct text_buffer *binary; /* after the JSON */
};

static void put_number(struct tensor_writer *writer, struct text_buffer *body, double value, bool binary)
{
    if (binary) {
        text_buffer_add_bytes(writer->binary, &value, sizeof value);
    } else {
        json_write_number(body, NULL, value);
    }
}

static void put_value(struct tensor_writer *writer, struct text_buffer *body, const struct tensor_out *output, int row,
                      int index, bool binary)
{
    const struct outcome *outcome = &writer->outcome;
    if (output->kind == OUT_LOW) {
        put_number(writer, body, outcome_low(writer->trained, outcome, index), binary);
    } else if (output->kind == OUT_HIGH) {
        put_number(writer, body, outcome_high(writer->trained, outcome, index), binary);
    } else if (output->kind == OUT_SPREAD) {
        put_number(writer, body, outcome_spread(writer->trained, outcome, writer->answers->spreads, row, index),
                   binary);
    } else if (output->type == TENSOR_BYTES) {
        char name[OUTCOME_NAME];
        const char *label = outcome_name(writer->trained, outcome->best, name);
        const uint32_t size = (uint32_t)strlen(label);
        if (binary) {
            text_buffer_add_bytes(writer->binary, &size, sizeof size);
            text_buffer_add_bytes(writer->binary, label, size);
        } else {
            json_write_string(body, NULL, label);
        }
    } else if (output->type == TENSOR_INT64) {
        const int64_t value = outcome->kind == OUTCOME_CLASS ? outcome->best : outcome_flag(outcome, index);
        if (binary) {
            text_buffer_add_bytes(writer->binary, &value, sizeof value);
        } else {
            json_write_integer(body, NULL, value);
        }
    } else if (!binary) {
        json_outcome(body, outcome, index);
    } else if (output->type == TENSOR_FP32) {
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
    json_write_string(body, "datatype", tensor_type_name(output->type));
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
            put_value(writer, body, output, row, i, binary);
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
        if (is_wanted(call, &outputs[i], i)) {
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

static void put_tensor(struct text_buffer *text, const char *name, enum tensor_type type, int width)
{
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", name);
    json_write_string(text, "datatype", tensor_type_name(type));
    json_write_open(text, "shape", '[');
    json_write_integer(text, NULL, -1);
    if (width > 0) {
        json_write_integer(text, NULL, width);
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

/* Of pictures: height, width and channels, and how others are fitted. */
static void put_shape(struct text_buffer *text, const struct image_shape *shape)
{
    if (shape->height > 0) {
        json_write_open(text, "image_shape", '[');
        json_write_integer(text, NULL, shape->height);
        json_write_integer(text, NULL, shape->width);
        json_write_integer(text, NULL, shape->channels);
        json_write_close(text, ']');
        json_write_string(text, "image_fit", shape->digits ? "digits" : "scale");
    }
}

/* Names of outputs, and what was seen in a table's columns. */
static void put_parameters(struct text_buffer *text, const struct version *version)
{
    const bool has_labels = outcome_kind(&version->trained) != OUTCOME_ERROR;
    char name[OUTCOME_NAME];
    json_write_open(text, "parameters", '{');
    json_write_string(text, "digest", version->digest);
    put_shape(text, &version->trained.shape);
    if (has_labels) {
        json_write_open(text, "labels", '[');
        for (int i = 0; i < outcome_count(&version->trained); i++) {
            json_write_string(text, NULL, outcome_name(&version->trained, i, name));
        }
        json_write_close(text, ']');
    }
    if (!version_is_of_pictures(version)) {
        json_write_open(text, "columns", '[');
        for (int i = 0; i < intake_columns(version); i++) {
            json_write_open(text, NULL, '{');
            json_write_string(text, "name", intake_column_name(version, i));
            intake_describe_column(text, version, i);
            json_write_close(text, '}');
        }
        json_write_close(text, ']');
    }
    json_write_close(text, '}');
}

/* All inputs and outputs, as `put` writes one. */
static void put_tensors(struct text_buffer *text, const struct version *version,
                        void (*put)(struct text_buffer *text, const char *name, enum tensor_type type, int width),
                        const char *inputs, const char *outputs_name)
{
    struct tensor_out outputs[MOST_OUTPUTS];
    const int count = list_outputs(version, outputs);
    json_write_open(text, inputs, '[');
    if (version_is_of_pictures(version)) {
        put(text, "images", TENSOR_UINT8, version_inputs(version));
    }
    for (int i = 0; !version_is_of_pictures(version) && i < intake_columns(version); i++) {
        put(text, intake_column_name(version, i), intake_column_is_text(version, i) ? TENSOR_BYTES : TENSOR_FP64, 0);
    }
    json_write_close(text, ']');
    json_write_open(text, outputs_name, '[');
    for (int i = 0; i < count; i++) {
        put(text, outputs[i].name, outputs[i].type, outputs[i].width);
    }
    json_write_close(text, ']');
}

void open_inference_describe(struct text_buffer *text, const struct served *served, const struct version *version)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)version->number);
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", served->name);
    json_write_open(text, "versions", '[');
    json_write_string(text, NULL, number);
    json_write_close(text, ']');
    json_write_string(text, "platform", "trainer");
    put_tensors(text, version, put_tensor, "inputs", "outputs");
    put_parameters(text, version);
    json_write_close(text, '}');
}

/* A model's configuration as Triton's clients read it. */
static void put_config(struct text_buffer *text, const char *name, enum tensor_type type, int width)
{
    char kind[16];
    snprintf(kind, sizeof kind, "TYPE_%s", type == TENSOR_BYTES ? "STRING" : tensor_type_name(type));
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", name);
    json_write_string(text, "data_type", kind);
    json_write_open(text, "dims", '[');
    json_write_integer(text, NULL, -1);
    if (width > 0) {
        json_write_integer(text, NULL, width);
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

void open_inference_configure(struct text_buffer *text, const struct served *served, const struct version *version)
{
    json_write_open(text, NULL, '{');
    json_write_string(text, "name", served->name);
    json_write_string(text, "platform", "trainer");
    json_write_string(text, "backend", "trainer");
    json_write_integer(text, "max_batch_size", 0); /* the first dimension is part of each shape */
    put_tensors(text, version, put_config, "input", "output");
    json_write_close(text, '}');
}
