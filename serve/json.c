/*
 * Converts JSON to rows. Numbers stay text until read by the parser of training's tables, so that a value means the
 * same in a request as in a file.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json.h"
#include "serve/protocol.h"
#include "worker/data/table/number.h"

bool json_open_body(struct json_body *body, struct call *call, size_t size, struct error *error)
{
    const uint8_t *bytes = call->body;
    struct json_place place;
    *body = (struct json_body){.size = size, .call = call};
    if (size == 0) {
        return error_set(error, "the body is empty; docs/serving.md shows requests");
    }
    if (!json_check((const char *)bytes, size, &place, error)) {
        return error_wrap(error, "the body is not JSON: line %d, column %d", place.line, place.column);
    }
    body->root = json_whole((const char *)bytes, size);
    return true;
}

void json_close_body(struct json_body *body)
{
    free(body->texts);
    body->texts = NULL;
}

/* --- scalars --- */

static bool take_text(struct json_body *body, struct json_value value, struct csv_field *field, struct error *error)
{
    *field = (struct csv_field){.text = value.text + 1, .size = (uint32_t)value.size - 2, .column = 1};
    if (!memchr(value.text, '\\', value.size)) {
        return true;
    }
    if (!body->texts && !call_charge(body->call, body->size, error)) {
        return false;
    }
    if (!body->texts && !(body->texts = malloc(body->size))) {
        return error_set(error, "out of memory for its texts");
    }
    field->text = body->texts + body->used;
    field->size = (uint32_t)json_unescape(value, body->texts + body->used);
    body->used += field->size;
    return true;
}

bool json_field(struct json_body *body, struct json_value value, struct csv_field *field, struct error *error)
{
    if (value.kind == JSON_ARRAY && json_length(value) == 1) {
        struct json_walk walk = json_walk(value);
        json_next(&walk, &value);
    }
    switch (value.kind) {
    case JSON_STRING:
        return take_text(body, value, field, error);
    case JSON_NULL:
        *field = (struct csv_field){.text = ""};
        return true;
    case JSON_NUMBER:
    case JSON_TRUE:
    case JSON_FALSE:
        *field = (struct csv_field){.text = value.text, .size = (uint32_t)value.size};
        return true;
    default:
        return error_set(error, "is %s; a value is a number, a text, true, false or null", json_kind_name(value.kind));
    }
}

bool json_text(struct json_value value, char *room, size_t size)
{
    room[0] = '\0';
    if (value.kind != JSON_STRING || value.size > size) {
        return false;
    }
    room[json_unescape(value, room)] = '\0';
    return true;
}

void json_outcome(struct text_buffer *text, const struct outcome *outcome, int index)
{
    const bool is_share = outcome->kind == OUTCOME_CLASS || outcome->kind == OUTCOME_FLAGS;
    json_write_number(text, NULL, is_share ? (double)(float)outcome->values[index] : outcome->values[index]);
}

bool json_count(struct json_value value, int64_t *count)
{
    double number;
    if (value.kind != JSON_NUMBER || number_parse(value.text, value.size, &number) != NUMBER_FINITE ||
        !(number >= 0 && number <= 1 << 30) || number != floor(number)) {
        return false;
    }
    *count = (int64_t)number;
    return true;
}

static bool add_number(struct json_value value, float *values, size_t *count, bool *whole, struct error *error)
{
    double number;
    if (value.kind != JSON_NUMBER || number_parse(value.text, value.size, &number) != NUMBER_FINITE) {
        return error_set(error, "value %zu is %s, not a finite number", *count, json_kind_name(value.kind));
    }
    for (size_t i = 0; *whole && i < value.size; i++) {
        *whole = value.text[i] != '.' && (value.text[i] | 0x20) != 'e';
    }
    values[(*count)++] = (float)number;
    return true;
}

/* A number that starts here must be followed by a valid delimiter. */
static struct json_value number_at(const char *at, const char *end)
{
    const char *behind = at;
    while (behind < end && *behind != ',' && *behind != ']' && *behind > ' ') {
        behind++;
    }
    return (struct json_value){.kind = JSON_NUMBER, .text = at, .size = (size_t)(behind - at)};
}

/*
 * Fast path for integers of up to nine digits followed by a comma, as most images are written; returns the position of
 * the first other value.
 */
static const char *add_short_integers(const char *at, const char *end, float *values, size_t most, size_t *count)
{
    while (*count < most) {
        const char *digit = at;
        uint32_t number = 0;
        for (; digit < end && digit - at < 9 && (unsigned)(*digit - '0') < 10; digit++) {
            number = 10 * number + (uint32_t)(*digit - '0');
        }
        if (digit == at || digit == end || *digit != ',') {
            break;
        }
        values[(*count)++] = (float)number;
        at = digit + 1;
        at += at < end && *at == ' ';
    }
    return at;
}

/* One pass over the text, which is valid JSON: the nesting of the numbers does not matter. */
bool json_numbers(struct json_value array, float *values, size_t most, size_t *count, bool *whole, struct error *error)
{
    const char *at = array.text, *end = at + array.size;
    *count = 0;
    *whole = true;
    if (array.kind != JSON_ARRAY) {
        return add_number(array, values, count, whole, error);
    }
    while (at < end) {
        at = add_short_integers(at, end, values, most, count);
        if (*at == '[' || *at == ']' || *at == ',' || *at <= ' ') {
            at++;
            continue;
        }
        const bool is_number = *at == '-' || (*at >= '0' && *at <= '9');
        const struct json_value value = is_number ? number_at(at, end) : json_whole(at, (size_t)(end - at));
        if (is_number && *count == most) {
            return error_set(error, "more than %zu values", most);
        }
        if (!add_number(value, values, count, whole, error)) {
            return false;
        }
        at = value.text + value.size;
    }
    return true;
}

/* --- rows --- */

/* A single input may be named, as in TensorFlow Serving: {"images": [...]}. */
static bool unwrap_picture(struct json_value *value, int64_t row, struct error *error)
{
    struct json_walk members = json_walk(*value);
    struct json_value name, other;
    return value->kind != JSON_OBJECT ||
           (json_next_member(&members, &name, value) && !json_next_member(&members, &name, &other)) ||
           error_set(error, "row %lld: a picture is an array of numbers, or {\"images\": [...]}", (long long)row);
}

/* Numbers written as integers are bytes, others are 0 to 1. */
static bool add_picture(struct intake *intake, struct json_value value, int64_t row, float *values, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    size_t count;
    bool whole;
    if (!json_numbers(value, values, inputs, &count, &whole, error)) {
        return error_wrap(error, "row %lld", (long long)row);
    }
    if (count != inputs) {
        return error_set(error, "row %lld: has %zu values, the model's pictures have %zu", (long long)row, count,
                         inputs);
    }
    if (!whole) {
        return intake_add_numbers(intake, values, row, error);
    }
    uint8_t *pixels = (uint8_t *)values; /* in place: a byte overwrites only numbers already read */
    for (size_t i = 0; i < inputs; i++) {
        const float level = values[i];
        if (level < 0 || level > 255) {
            return error_set(error, "row %lld: pixel %zu is %g; as integers pixels are 0 to 255", (long long)row, i,
                             (double)level);
        }
        pixels[i] = (uint8_t)level;
    }
    return intake_add_bytes(intake, pixels, error);
}

static bool add_object(struct json_body *body, struct intake *intake, struct json_value object, int64_t row,
                       struct csv_field *fields, struct error *error)
{
    const struct version *version = intake->version;
    const int columns = intake_columns(version);
    for (int i = 0; i < columns; i++) {
        const char *name = intake_column_name(version, i);
        const struct json_value value = json_member(object, name);
        if (value.kind == JSON_NONE) {
            return error_set(error,
                             "row %lld: has no column %.64s, which the model was trained on; null is a missing value",
                             (long long)row, name);
        }
        if (!json_field(body, value, &fields[i], error)) {
            return error_wrap(error, "row %lld: column %.64s", (long long)row, name);
        }
    }
    return intake_add_fields(intake, fields, row, error);
}

static bool add_array(struct json_body *body, struct intake *intake, struct json_value array, int64_t row,
                      struct csv_field *fields, struct error *error)
{
    const size_t columns = (size_t)intake_columns(intake->version), there = json_length(array);
    struct json_walk walk = json_walk(array);
    struct json_value value;
    if (there != columns) {
        return error_set(error, "row %lld: has %zu values, the model has %zu columns", (long long)row, there, columns);
    }
    for (int i = 0; json_next(&walk, &value); i++) {
        if (!json_field(body, value, &fields[i], error)) {
            return error_wrap(error, "row %lld: column %.64s", (long long)row, intake_column_name(intake->version, i));
        }
    }
    return intake_add_fields(intake, fields, row, error);
}

static bool add_row(struct json_body *body, struct intake *intake, struct json_value value, int64_t row,
                    struct error *error)
{
    void *room = intake->row;
    if (version_is_of_pictures(intake->version)) {
        return unwrap_picture(&value, row, error) && add_picture(intake, value, row, room, error);
    }
    if (value.kind == JSON_OBJECT) {
        return add_object(body, intake, value, row, room, error);
    }
    if (value.kind == JSON_ARRAY) {
        return add_array(body, intake, value, row, room, error);
    }
    if (intake_columns(intake->version) == 1) {
        return json_field(body, value, room, error) && intake_add_fields(intake, room, row, error);
    }
    return error_set(error, "row %lld: is %s; a row is an object by column, or an array in the columns' order",
                     (long long)row, json_kind_name(value.kind));
}

bool json_add_rows(struct json_body *body, struct intake *intake, struct json_value rows, struct error *error)
{
    struct json_walk walk = json_walk(rows);
    struct json_value row;
    if (rows.kind != JSON_ARRAY) {
        return error_set(error, "the rows are %s, not an array", json_kind_name(rows.kind));
    }
    bool done = true;
    for (int64_t i = 0; done && json_next(&walk, &row); i++) {
        done = add_row(body, intake, row, i, error);
    }
    return done;
}

/* --- columns --- */

static bool begin_columns(const struct version *version, struct json_value object, struct json_walk *columns,
                          size_t *rows, struct error *error)
{
    for (int i = 0; i < intake_columns(version); i++) {
        const char *name = intake_column_name(version, i);
        const struct json_value values = json_member(object, name);
        if (values.kind != JSON_ARRAY) {
            return error_set(error,
                             values.kind == JSON_NONE ? "column %.64s is not there, and the model was trained on it"
                                                      : "column %.64s: is no array of values",
                             name);
        }
        const size_t count = json_length(values);
        columns[i] = json_walk(values);
        if (i > 0 && count != *rows) {
            return error_set(error, "column %.64s: has %zu values, column %.64s has %zu", name, count,
                             intake_column_name(version, 0), *rows);
        }
        *rows = count;
    }
    return true;
}

bool json_add_columns(struct json_body *body, struct intake *intake, struct json_value object, struct error *error)
{
    const struct version *version = intake->version;
    const size_t count = (size_t)intake_columns(version);
    struct json_walk *columns = calloc(count + 1, sizeof *columns);
    struct csv_field *fields = calloc(count + 1, sizeof *fields);
    size_t rows = 0;
    bool done = columns && fields ? begin_columns(version, object, columns, &rows, error)
                                  : error_set(error, "out of memory for %zu columns", count);
    for (size_t row = 0; done && row < rows; row++) {
        for (size_t i = 0; done && i < count; i++) {
            struct json_value value;
            json_next(&columns[i], &value);
            done = json_field(body, value, &fields[i], error) ||
                   error_wrap(error, "row %zu: column %.64s", row, intake_column_name(version, (int)i));
        }
        done = done && intake_add_fields(intake, fields, (int64_t)row, error);
    }
    free(columns);
    free(fields);
    return done;
}
