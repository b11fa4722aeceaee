/*
 * Plain posts: a file sent by curl --data-binary, answered as `trainer predict` would. For rows (CSV, TSV, NPY) the
 * answer is CSV, the rows followed by the predictions; for pictures (JPEG, PNG, BMP, PGM) it is JSON.
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/text/json.h"
#include "serve/protocol.h"
#include "serve/request_log.h"
#include "worker/data/image.h"
#include "worker/data/table/npy.h"
#include "worker/data/table/rows.h"
#include "worker/export/trained.h"

/* --- Forms --- */

/* Parts are found by their boundary; nothing is copied. */

enum { MOST_BOUNDARY = 70 /* by RFC 2046 */, MOST_HEAD = 8192 };

/* A parameter of a content type, "; name=value" or "; name=\"value\"". False: it is not there, or too long. */
static bool parameter(const char *type, const char *name, char *value, size_t size)
{
    const size_t length = strlen(name);
    for (const char *at = strchr(type, ';'); at; at = strchr(at, ';')) {
        at += 1 + strspn(at + 1, " \t");
        if (strncasecmp(at, name, length) != 0 || at[length] != '=') {
            continue;
        }
        at += length + 1;
        const size_t used = *at == '"' ? strcspn(at + 1, "\"") : strcspn(at, "; \t");
        at += *at == '"';
        if (used == 0 || used >= size) {
            return false;
        }
        memcpy(value, at, used);
        value[used] = '\0';
        return true;
    }
    return false;
}

/* The part from `at` on, after its boundary: its headers, and its content up to the next boundary. */
struct part {
    const char *head, *content;
    size_t head_size, size;
};

/* Finds the next part; *at moves behind it. False: there is none. */
static bool next_part(const char **at, const char *end, const char *boundary, struct part *part)
{
    const size_t length = strlen(boundary);
    const char *begin = *at, *head_end;
    if (end - begin < 2 || memcmp(begin, "\r\n", 2) != 0) { /* "--" ends the form */
        return false;
    }
    head_end = memmem(begin, (size_t)(end - begin), "\r\n\r\n", 4);
    if (!head_end || head_end - begin > MOST_HEAD) {
        return false;
    }
    const char *content = head_end + 4;
    const char *behind = memmem(content - 2, (size_t)(end - content) + 2, boundary, length);
    if (!behind) {
        return false;
    }
    *part = (struct part){.head = begin,
                          .content = content,
                          .head_size = (size_t)(head_end - begin),
                          .size = behind > content ? (size_t)(behind - content) : 0};
    *at = behind + length;
    return true;
}

static bool has_file(const struct part *part)
{
    char head[MOST_HEAD + 1];
    memcpy(head, part->head, part->head_size);
    head[part->head_size] = '\0';
    return strcasestr(head, "filename=") || strcasestr(head, "filename*=");
}

static bool take_file(struct call *call, const char *boundary, struct error *error)
{
    const char *at = (const char *)call->body, *const end = at + call->size;
    const size_t length = strlen(boundary);
    struct part part, chosen = {.head = NULL};
    int files = 0, others = 0;
    /* The first boundary has no line before it if it begins the body. */
    if (call->size >= length - 2 && memcmp(at, boundary + 2, length - 2) == 0) {
        at += length - 2;
    } else {
        const char *first = memmem(at, call->size, boundary, length);
        at = first ? first + length : end;
    }
    while (next_part(&at, end, boundary, &part)) {
        const bool is_file = has_file(&part);
        if (is_file || (files == 0 && others == 0)) {
            chosen = part;
        }
        files += is_file;
        others += !is_file;
    }
    if (files > 1 || (files == 0 && others > 1)) {
        return error_set(error, "the form has %d %s; send one file at a time", files + others,
                         files > 1 ? "files" : "fields and no file");
    }
    if (!chosen.head) {
        return error_set(error, "the form is not complete: no part ends with its boundary");
    }
    call->body = (const uint8_t *)chosen.content;
    call->size = chosen.size;
    return true;
}

/*
 * Sets the call's body to the form's file: the only part with a file's name, or the only part. Other bodies stay. False
 * also if the content type names an encoding of text other than UTF-8.
 */
static bool form_open(struct call *call, struct error *error)
{
    const char *type = http_request_header(call->request, "content-type");
    char text[MOST_BOUNDARY + 1], boundary[MOST_BOUNDARY + 8];
    if (!type) {
        return true;
    }
    if (parameter(type, "charset", text, sizeof text) && strcasecmp(text, "utf-8") != 0 &&
        strcasecmp(text, "utf8") != 0 && strcasecmp(text, "us-ascii") != 0) {
        return call_fault(call, 415, error, "charset=%.40s: text is read as UTF-8; convert it, for instance by iconv",
                          text);
    }
    if (strncasecmp(type, "multipart/form-data", 19) != 0) {
        return true;
    }
    if (!parameter(type, "boundary", text, sizeof text)) {
        return error_set(error, "Content-Type %.64s: has no boundary", type);
    }
    snprintf(boundary, sizeof boundary, "\r\n--%s", text);
    return take_file(call, boundary, error);
}

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
    const struct predict_watch watch = {call->is_kept ? take_row : NULL, see_rows, &onlooker, call->wants_spread};
    const bool done = predict_rows_bytes(&version->trained, version->engines[intake->worker], call->body, call->size,
                                         call->account, &watch, out, error);
    fclose(out);
    text_buffer_free(&onlooker.raw);
    call->is_written = done;
    return done && (!call->text.failed || error_set(error, "out of memory for the answer"));
}

/* The type of an array's numbers, as far as it matters for pictures. */
static enum tensor_type type_of(const struct rows *rows)
{
    const char kind = rows_number_kind(rows);
    return kind == 'f' ? TENSOR_FP64 : kind == 'b' ? TENSOR_BOOL : kind == '\0' ? TENSOR_ANY : TENSOR_INT64;
}

static bool add_picture(struct intake *intake, const struct row *row, enum tensor_type type, struct error *error)
{
    const int inputs = version_inputs(intake->version);
    float *values = intake->row;
    if (row->count != inputs) {
        return error_set(error, "row %llu: has %d values, the model's pictures have %d", (unsigned long long)row->line,
                         row->count, inputs);
    }
    for (int i = 0; i < inputs; i++) {
        values[i] = (float)row->numbers[i];
    }
    return tensor_add_picture(intake, type, values, (int64_t)row->line, error);
}

/* NumPy's array of pictures, a row each. */
static bool read_array(struct call *call, struct intake *intake, struct error *error)
{
    call->is_array = true;
    struct rows *rows;
    struct row row;
    if (!rows_open_bytes(&rows, "body", call->body, call->size, NULL, call->account, error)) {
        return false;
    }
    const enum tensor_type type = type_of(rows);
    enum csv_status status = CSV_ROW;
    bool done = true;
    while (done && (status = rows_next(rows, &row, error)) == CSV_ROW) {
        done = add_picture(intake, &row, type, error);
    }
    rows_close(rows);
    return done && status == CSV_END;
}

/* Bodies that begin like JSON and are JSON belong to another route. */
static bool is_json(const struct call *call)
{
    const char *text = (const char *)call->body;
    struct json_place place;
    struct error ignored;
    size_t at = 0;
    while (at < call->size && strchr(" \t\r\n", text[at])) {
        at++;
    }
    return at < call->size && (text[at] == '{' || text[at] == '[') &&
           json_check_data(text, call->size, &place, &ignored);
}

/* Is it what this model was trained on? If not, the error says what to send where. */
static bool check_kind(struct call *call, struct error *error)
{
    const bool is_array = npy_is_known(call->body, call->size), is_picture = image_is_known(call->body, call->size);
    const char *type = http_request_header(call->request, "content-type");
    const bool wants_pictures = version_is_of_pictures(call->version);
    if (call->size == 0) {
        return error_set(error, "the body is empty; post a file: curl --data-binary @new.csv");
    }
    if (is_json(call)) {
        return call_fault(call, 415, error, "the body is JSON; post it to /v1/models/%s:predict or /v2/models/%s/infer",
                          call->served->name, call->served->name);
    }
    if (type && strncasecmp(type, "application/x-www-form-urlencoded", 33) == 0 && !is_array && !is_picture &&
        (wants_pictures || !memchr(call->body, '\n', call->size))) {
        return call_fault(call, 415, error,
                          "the body came as a form without line breaks: curl -d drops them; send the file as it is, by "
                          "curl --data-binary @FILE or curl -F file=@FILE");
    }
    if (!wants_pictures && is_picture) {
        return error_set(error,
                         "the body is a picture, and the model was trained on a table; send CSV, TSV, NPY or NPZ");
    }
    return !wants_pictures || is_array || is_picture ||
           error_set(error,
                     "the body is no picture (PNG, BMP, PGM) and no array (NPY) of them, and the model was trained on "
                     "pictures");
}

/* ?spread=true */
static bool read_query(struct call *call, struct error *error)
{
    char text[8] = "";
    const char *obstacle = outcome_spread_obstacle(&call->version->trained);
    if (!http_request_parameter(call->request, "spread", text, sizeof text) || strcmp(text, "false") == 0) {
        return true;
    }
    call->wants_spread = strcmp(text, "true") == 0;
    if (!call->wants_spread) {
        return error_set(error, "spread=%s: is not true or false", text);
    }
    return !obstacle || error_set(error, "spread: %s %s", call->served->name, obstacle);
}

static bool read_call(struct call *call, struct intake *intake, struct error *error)
{
    if (!read_query(call, error) || !form_open(call, error) || !check_kind(call, error)) {
        return false;
    }
    if (!version_is_of_pictures(call->version)) {
        return read_rows(call, intake, error);
    }
    if (npy_is_known(call->body, call->size)) {
        return read_array(call, intake, error);
    }
    if (!image_is_known(call->body, call->size)) {
        return error_set(error, "the body is no picture (JPEG, PNG, BMP, PGM) and no array (NPY) of them, and the "
                                "model was trained on pictures");
    }
    return intake_add_picture(intake, call->body, call->size, error) || error_wrap(error, "the body");
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
        if (answers->spreads) {
            json_write_number(body, "spread", outcome_spread(trained, &outcome, answers->spreads, i, 0));
        }
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
