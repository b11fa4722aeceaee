/*
 * Plain posts: a file sent by curl --data-binary, answered as `trainer predict` would. For rows (CSV, TSV, NPY) the
 * answer is CSV, the rows followed by the predictions; for pictures (PNG, BMP, PGM) it is JSON.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/protocol.h"
#include "serve/request_log.h"
#include "worker/data/image.h"
#include "worker/data/table/npy.h"
#include "worker/data/table/rows.h"
#include "worker/export/predict.h"

/* Watches the rows and their predictions. */
struct onlooker {
    struct call *call;
    struct text_buffer raw; /* of a batch, for the log of requests */
};

static void take_row(void *context, const struct encoder *encoder, const struct row *row)
{
    struct onlooker *onlooker = context;
    request_log_row(&onlooker->raw, encoder, row);
}

static void see_rows(void *context, const struct examples *examples, const float *outputs)
{
    struct onlooker *onlooker = context;
    struct call *call = onlooker->call;
    if (!call->is_trial) {
        drift_add(&call->version->drift, examples, outputs);
    }
    if (call->is_kept) {
        const struct text_buffer *raw = &onlooker->raw;
        const struct answers answers = {
            .version = call->version, .outputs = outputs, .wanted = examples->target_values, .count = examples->count};
        request_log_add_rows(call->served->log, raw->bytes, raw->failed ? 0 : raw->size, &answers);
        onlooker->raw.size = 0;
    }
}

/* What is beyond the answer's limit is dropped; predict_rows_bytes soon stops. */
static ssize_t add_text(void *cookie, const char *bytes, size_t size)
{
    struct text_buffer *text = cookie;
    text_buffer_add_bytes(text, bytes, size);
    return (ssize_t)size;
}

/* Rows are answered as they are read. */
static bool read_rows(struct call *call, struct intake *intake, struct error *error)
{
    FILE *out = fopencookie(&call->text, "w", (cookie_io_functions_t){.write = add_text});
    if (!out) {
        return error_set(error, "out of memory for the answer");
    }
    struct version *version = call->version;
    struct onlooker onlooker = {.call = call, .raw = {.account = call->account}};
    const struct predict_watch watch = {call->is_kept ? take_row : NULL, see_rows, &onlooker};
    const bool done = predict_rows_bytes(&version->trained, version->engines[intake->worker], call->body, call->size,
                                         call->account, &watch, out, error);
    fclose(out);
    text_buffer_free(&onlooker.raw);
    call->is_written = done;
    return done && (!call->text.failed || error_set(error, "out of memory for the answer"));
}

static bool read_picture(struct call *call, struct intake *intake, struct error *error)
{
    const int inputs = version_inputs(call->version);
    struct image image;
    if (!call_charge(call, image_memory(call->body, call->size) + (size_t)inputs, error)) {
        return false;
    }
    if (!image_decode(&image, call->body, call->size, error)) {
        return false;
    }
    uint8_t *pixels = malloc((size_t)inputs);
    bool done = pixels ? image_fit_inputs(&image, inputs, pixels, error) && intake_add_bytes(intake, pixels, error)
                       : error_set(error, "out of memory for the picture");
    free(pixels);
    image_free(&image);
    return done;
}

/* Is it an array of floating-point numbers? Its header says so in the first line: {'descr': '<f4', ... */
static bool is_floating(const uint8_t *bytes, size_t size)
{
    char head[128] = "";
    const size_t some = size < sizeof head - 1 ? size : sizeof head - 1;
    for (size_t i = 0; i < some; i++) {
        head[i] = bytes[i] >= ' ' && bytes[i] < 0x7f ? (char)bytes[i] : ' ';
    }
    const char *type = strstr(head, "'descr'");
    type = type ? strchr(type + 7, '\'') : NULL;
    return type && strlen(type) > 2 && (type[1] == 'f' || type[2] == 'f');
}

static bool add_picture(struct intake *intake, const struct row *row, bool floating, float *values, struct error *error)
{
    const int inputs = version_inputs(intake->version);
    uint8_t *pixels = (uint8_t *)values; /* in place: a byte overwrites only numbers already read */
    if (row->count != inputs) {
        return error_set(error, "row %llu: has %d values, the model's pictures have %d", (unsigned long long)row->line,
                         row->count, inputs);
    }
    for (int i = 0; i < inputs; i++) {
        const double value = row->numbers[i];
        if (!floating && !(value >= 0 && value <= 255)) {
            return error_set(error, "row %llu: pixel %d is %g; as integers pixels are 0 to 255",
                             (unsigned long long)row->line, i, value);
        }
        values[i] = (float)value;
    }
    if (floating) {
        return intake_add_numbers(intake, values, (int64_t)row->line, error);
    }
    for (int i = 0; i < inputs; i++) {
        pixels[i] = (uint8_t)values[i];
    }
    return intake_add_bytes(intake, pixels, error);
}

/* NumPy's array of pictures, a row each. */
static bool read_array(struct call *call, struct intake *intake, struct error *error)
{
    call->is_array = true;
    const bool floating = is_floating(call->body, call->size);
    struct rows *rows;
    struct row row;
    if (!rows_open_bytes(&rows, "body", call->body, call->size, NULL, call->account, error)) {
        return false;
    }
    float *values = malloc((size_t)version_inputs(call->version) * sizeof *values);
    enum csv_status status = CSV_ROW;
    bool done = values || error_set(error, "out of memory for a picture");
    while (done && (status = rows_next(rows, &row, error)) == CSV_ROW) {
        done = add_picture(intake, &row, floating, values, error);
    }
    free(values);
    rows_close(rows);
    return done && status == CSV_END;
}

static bool read_call(struct call *call, struct intake *intake, struct error *error)
{
    if (!version_is_of_pictures(call->version)) {
        return read_rows(call, intake, error);
    }
    if (npy_is_known(call->body, call->size)) {
        return read_array(call, intake, error);
    }
    if (!image_is_known(call->body, call->size)) {
        return error_set(error, "the body is no picture (PNG, BMP, PGM) and no array (NPY) of them, and the model was "
                                "trained on pictures");
    }
    return read_picture(call, intake, error);
}

/* A single image; those of an array are in "predictions". */
static void put_picture(struct text_buffer *body, const struct trained *trained, const struct outcome *outcome)
{
    char buffer[OUTCOME_NAME];
    json_write_integer(body, "class", outcome->best);
    if (outcome->best < trained->classes.count) {
        json_write_string(body, "label", outcome_name(trained, outcome->best, buffer));
    }
    json_write_open(body, "probabilities", '[');
    for (int i = 0; i < outcome->count; i++) {
        json_outcome(body, outcome, i);
    }
    json_write_close(body, ']');
}

static const char *write_answer(struct call *call, const struct answers *answers, struct text_buffer *body,
                                char headers[512])
{
    const struct trained *trained = &answers->version->trained;
    struct outcome outcome;
    (void)headers;
    if (call->is_written) {
        return "text/csv; charset=utf-8";
    }
    if (!outcome_create(&outcome, trained)) {
        body->failed = true;
        return NULL;
    }
    json_write_open(body, NULL, '{');
    json_write_string(body, "model", call->served->name);
    json_write_integer(body, "version", answers->version->number);
    if (call->is_array) {
        json_write_open(body, "predictions", '[');
    }
    for (int i = 0; i < answers->count; i++) {
        outcome_find(trained, answers->outputs, answers->wanted, i, &outcome);
        if (call->is_array) {
            json_write_open(body, NULL, '{');
        }
        put_picture(body, trained, &outcome);
        if (call->is_array) {
            json_write_close(body, '}');
        }
    }
    if (call->is_array) {
        json_write_close(body, ']');
    }
    json_write_close(body, '}');
    outcome_free(&outcome);
    return "application/json";
}

const struct protocol protocol_plain = {.read = read_call, .write = write_answer};
