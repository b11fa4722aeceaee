/*
 * Numbers of a table stay or become text until they are read by the parser of training's tables, so that a value means
 * the same in a request as in a file.
 */
#include "serve/protocol.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/data/table/number.h"
#include "worker/data/table/schema.h"

/* --- JSON --- */

bool json_open_body(struct json_body *body, struct call *call, size_t size, struct error *error)
{
    const uint8_t *bytes = call->body;
    struct json_place place;
    *body = (struct json_body){.size = size, .call = call};
    if (size == 0) {
        return error_set(error, "the body is empty; docs/serving.md shows requests");
    }
    const char *type = http_request_header(call->request, "content-type");
    if (type && strncasecmp(type, "multipart/", 10) == 0) {
        return call_fault(call, 415, error,
                          "the body is a form (%.40s); send the JSON itself: curl --data-binary @file.json", type);
    }
    if (!json_check_data((const char *)bytes, size, &place, error)) {
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

static const struct type {
    const char *name;
    uint8_t size; /* bytes; 0: they vary */
    bool is_integer, is_signed;
    int8_t digits;   /* of a float's significand, in bits */
    int16_t least;   /* the exponent of its smallest number */
    uint8_t printed; /* decimal digits that distinguish all its numbers */
} types[TENSOR_TYPES] = {
    [TENSOR_ANY] = {.name = "JSON"},
    [TENSOR_BOOL] = {.name = "BOOL", .size = 1, .is_integer = true},
    [TENSOR_UINT8] = {.name = "UINT8", .size = 1, .is_integer = true},
    [TENSOR_UINT16] = {.name = "UINT16", .size = 2, .is_integer = true},
    [TENSOR_UINT32] = {.name = "UINT32", .size = 4, .is_integer = true},
    [TENSOR_UINT64] = {.name = "UINT64", .size = 8, .is_integer = true},
    [TENSOR_INT8] = {.name = "INT8", .size = 1, .is_integer = true, .is_signed = true},
    [TENSOR_INT16] = {.name = "INT16", .size = 2, .is_integer = true, .is_signed = true},
    [TENSOR_INT32] = {.name = "INT32", .size = 4, .is_integer = true, .is_signed = true},
    [TENSOR_INT64] = {.name = "INT64", .size = 8, .is_integer = true, .is_signed = true},
    [TENSOR_FP16] = {.name = "FP16", .size = 2, .digits = 11, .least = -24, .printed = 5},
    [TENSOR_BF16] = {.name = "BF16", .size = 2, .digits = 8, .least = -133, .printed = 4},
    [TENSOR_FP32] = {.name = "FP32", .size = 4, .digits = 24, .least = -149, .printed = 9},
    [TENSOR_FP64] = {.name = "FP64", .size = 8, .digits = 53, .least = -1074, .printed = 17},
    [TENSOR_BYTES] = {.name = "BYTES"},
};

const char *tensor_type_name(enum tensor_type type)
{
    return types[type].name;
}

size_t tensor_type_size(enum tensor_type type)
{
    return types[type].size;
}

bool tensor_type_find(struct json_value name, enum tensor_type *type)
{
    for (int i = TENSOR_BOOL; i < TENSOR_TYPES; i++) {
        if (json_is(name, types[i].name)) {
            *type = (enum tensor_type)i;
            return true;
        }
    }
    return false;
}

/* --- Numbers --- */

/* A value of a declared type: an integer, or a float. */
struct number {
    bool is_integer, is_negative;
    uint64_t magnitude; /* of an integer */
    double value;
};

static struct number make_integer(bool is_negative, uint64_t magnitude)
{
    return (struct number){.is_integer = true,
                           .is_negative = is_negative && magnitude > 0,
                           .magnitude = magnitude,
                           .value = is_negative ? -(double)magnitude : (double)magnitude};
}

static bool integer_fits(enum tensor_type type, const struct number *number)
{
    if (type == TENSOR_BOOL) {
        return !number->is_negative && number->magnitude <= 1;
    }
    const uint64_t most = types[type].size == 8 ? UINT64_MAX : ((uint64_t)1 << 8 * types[type].size) - 1;
    if (!types[type].is_signed) {
        return !number->is_negative && number->magnitude <= most;
    }
    return number->magnitude <= most / 2 + (number->is_negative ? 1 : 0);
}

/* To the nearest number of the type. */
static double round_to(const struct type *type, double value)
{
    int exponent;
    if (value == 0 || !isfinite(value)) {
        return value;
    }
    frexp(value, &exponent);
    const int unit = exponent - type->digits > type->least ? exponent - type->digits : type->least;
    return ldexp(rint(ldexp(value, -unit)), unit);
}

static double largest(enum tensor_type type)
{
    return type == TENSOR_FP16 ? 65504 : type == TENSOR_BF16 ? 0x1.fep127 : type == TENSOR_FP32 ? FLT_MAX : DBL_MAX;
}

static double from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31  ? (fraction == 0 ? (double)INFINITY : (double)NAN)
                             : exponent == 0 ? ldexp(fraction, -24)
                                             : ldexp(1024 + fraction, exponent - 25);
    return bits >> 15 ? -magnitude : magnitude;
}

static struct number number_of_bytes(enum tensor_type type, const uint8_t *at)
{
    uint64_t bits = 0;
    float single;
    double value;
    for (int i = types[type].size; i-- > 0;) {
        bits = bits << 8 | at[i];
    }
    if (types[type].is_signed && types[type].size > 0) {
        const int shift = 64 - 8 * types[type].size;
        const int64_t number = (int64_t)(bits << shift) >> shift;
        return make_integer(number < 0, number < 0 ? -(uint64_t)number : (uint64_t)number);
    }
    if (types[type].is_integer) {
        return make_integer(false, bits);
    }
    if (type == TENSOR_FP64) {
        memcpy(&value, &bits, sizeof value);
        return (struct number){.value = value};
    }
    if (type == TENSOR_FP16) {
        return (struct number){.value = from_half((uint16_t)bits)};
    }
    const uint32_t word = (uint32_t)(type == TENSOR_BF16 ? bits << 16 : bits);
    memcpy(&single, &word, sizeof single);
    return (struct number){.value = (double)single};
}

/* Digits with an optional sign; false: another form, or beyond 64 bits. */
static bool parse_integer(struct json_value json, struct number *number)
{
    const bool is_negative = json.text[0] == '-';
    uint64_t magnitude = 0;
    for (size_t i = is_negative; i < json.size; i++) {
        const unsigned digit = (unsigned)(json.text[i] - '0');
        if (digit > 9 || __builtin_mul_overflow(magnitude, 10U, &magnitude) ||
            __builtin_add_overflow(magnitude, digit, &magnitude)) {
            return false;
        }
    }
    *number = make_integer(is_negative, magnitude);
    return true;
}

static bool say_unfit(enum tensor_type type, struct json_value json, const char *remedy, struct error *error)
{
    return error_set(error, "is %.*s, which %s cannot hold; %s", (int)(json.size < 40 ? json.size : 40), json.text,
                     types[type].name, remedy);
}

/* A JSON number, NaN and Infinity included, as a value of the type. */
static bool number_of_json(enum tensor_type type, struct json_value json, struct number *number, struct error *error)
{
    double value = 0;
    if (types[type].is_integer && parse_integer(json, number)) {
        return integer_fits(type, number) || say_unfit(type, json, "send a value within its range", error);
    }
    const enum number_kind kind = number_parse(json.text, json.size, &value);
    const bool is_word = json.text[json.size - 1] > '9'; /* NaN or Infinity */
    if (types[type].is_integer) {
        const bool is_whole = kind == NUMBER_FINITE && value == floor(value) && fabs(value) < 0x1p63;
        *number = make_integer(value < 0, is_whole ? (uint64_t)fabs(value) : 0);
        return (is_whole && integer_fits(type, number)) ||
               say_unfit(type, json, "declare FP32 or FP64, or send whole numbers within its range", error);
    }
    if (kind != NUMBER_FINITE) {
        *number = (struct number){.value = kind == NUMBER_MISSING ? (double)NAN : (double)INFINITY};
        return is_word || say_unfit(type, json, "send a smaller number", error);
    }
    *number = (struct number){.value = type == TENSOR_FP64   ? value
                                       : type == TENSOR_FP32 ? (double)(float)value
                                                             : round_to(&types[type], value)};
    return fabs(number->value) <= largest(type) || say_unfit(type, json, "declare FP64, or scale it down", error);
}

/* --- Walking through a tensor --- */

/* The source of a tensor's values, one after another. */
struct reader {
    const struct tensor *tensor;
    const char *at, *end; /* of JSON */
    size_t offset;        /* of the bytes */
    size_t index;         /* of the next value */
    char buffer[ROW_NUMBER_TEXT];
};

static void reader_begin(struct reader *reader, const struct tensor *tensor)
{
    reader->tensor = tensor;
    reader->at = tensor->data.text ? tensor->data.text : "";
    reader->end = reader->at + tensor->data.size;
}

/* The next value of JSON, whatever the nesting; an object is a value. */
static bool next_value(struct reader *reader, struct json_value *value)
{
    const char *at = reader->at, *const end = reader->end;
    while (at < end && (*at == '[' || *at == ']' || *at == ',' || *at <= ' ')) {
        at++;
    }
    reader->at = at;
    if (at == end) {
        return false;
    }
    *value = json_whole(at, (size_t)(end - at));
    reader->at = value->text + value->size;
    reader->index++;
    return true;
}

static bool say_count(struct reader *reader, size_t wanted, struct error *error)
{
    struct json_value value;
    while (next_value(reader, &value)) {
    }
    return error_set(error, "has %zu values, its shape has %zu", reader->index, wanted);
}

/* All values were read, and there are no more. */
static bool reader_ends(struct reader *reader, struct error *error)
{
    const struct tensor *tensor = reader->tensor;
    struct json_value value;
    if (!tensor->bytes) {
        const size_t wanted = reader->index;
        return !next_value(reader, &value) || say_count(reader, wanted, error);
    }
    return tensor->type != TENSOR_BYTES || reader->offset == tensor->size ||
           error_set(error, "has %zu bytes more than its values", tensor->size - reader->offset);
}

/* --- Fields of a table --- */

/* As text that means this number; of a category that training wrote down, as short as it is written. */
static void put_number(enum tensor_type type, const struct number *number, bool is_category,
                       char buffer[ROW_NUMBER_TEXT], struct csv_field *field)
{
    const struct type *known = &types[type];
    int size = 0;
    if (number->is_integer) {
        size = snprintf(buffer, ROW_NUMBER_TEXT, "%s%llu", number->is_negative ? "-" : "",
                        (unsigned long long)number->magnitude);
    } else if (!isnan(number->value)) {
        int digits = is_category ? known->printed - 3 : known->printed;
        do {
            size = snprintf(buffer, ROW_NUMBER_TEXT, "%.*g", digits, number->value);
        } while (digits++ < known->printed && round_to(known, strtod(buffer, NULL)) != number->value);
    }
    *field = (struct csv_field){.text = buffer, .size = (uint32_t)size};
}

/* A truth value is 1 or 0; of a column of texts, the one that training found for it. */
static void put_truth(const struct schema_column *column, bool is_true, struct csv_field *field)
{
    static const char *const words[2][5] = {{"false", "False", "FALSE", "0", "0.0"},
                                            {"true", "True", "TRUE", "1", "1.0"}};
    const char *text = is_true ? "1" : "0";
    for (int i = 0; column->kind == SCHEMA_CATEGORY && i < 5; i++) {
        const char *word = words[is_true][i];
        if (dictionary_find(&column->categories, word, strlen(word)) >= 0) {
            text = word;
            break;
        }
    }
    *field = (struct csv_field){.text = text, .size = (uint32_t)strlen(text)};
}

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

static bool say_kind(enum tensor_type type, struct json_value value, struct error *error)
{
    if (value.kind == JSON_OBJECT || value.kind == JSON_ARRAY || type == TENSOR_ANY) {
        return error_set(error, "is %s; a value is a number, a text, true, false or null", json_kind_name(value.kind));
    }
    return error_set(error, "is %s, which %s cannot hold; %s", json_kind_name(value.kind), types[type].name,
                     value.kind == JSON_NULL     ? "declare FP64 where numbers may be missing"
                     : value.kind == JSON_STRING ? "declare BYTES for texts"
                     : type == TENSOR_BYTES      ? "write it as a text, in quotes"
                                                 : "send numbers, or declare BOOL");
}

/* buffer: room for a number's text; the field may point into it, or into the body. */
static bool field_of_json(struct json_body *body, enum tensor_type type, const struct schema_column *column,
                          struct json_value value, char buffer[ROW_NUMBER_TEXT], struct csv_field *field,
                          struct error *error)
{
    const bool is_open = type == TENSOR_ANY || type == TENSOR_BYTES;
    struct number number;
    if (value.kind == JSON_ARRAY && json_length(value) == 1) { /* a column of [rows, 1] */
        struct json_walk walk = json_walk(value);
        json_next(&walk, &value);
    }
    if (value.kind == JSON_STRING && is_open) {
        return take_text(body, value, field, error);
    }
    if (value.kind == JSON_NULL && !types[type].is_integer) {
        *field = (struct csv_field){.text = ""};
        return true;
    }
    if ((value.kind == JSON_TRUE || value.kind == JSON_FALSE) && (type == TENSOR_ANY || type == TENSOR_BOOL)) {
        put_truth(column, value.kind == JSON_TRUE, field);
        return true;
    }
    if (value.kind != JSON_NUMBER || type == TENSOR_BYTES) {
        return say_kind(type, value, error);
    }
    if (type == TENSOR_ANY) {
        *field = (struct csv_field){.text = value.text, .size = value.text[0] == 'N' ? 0 : (uint32_t)value.size};
        return true;
    }
    if (!number_of_json(type, value, &number, error)) {
        return false;
    }
    if (type == TENSOR_BOOL) {
        put_truth(column, number.magnitude == 1, field);
    } else {
        put_number(type, &number, column->kind == SCHEMA_CATEGORY, buffer, field);
    }
    return true;
}

static bool next_bytes(struct reader *reader, struct csv_field *field, struct error *error)
{
    const struct tensor *tensor = reader->tensor;
    uint32_t size;
    if (tensor->size - reader->offset < sizeof size) {
        return error_set(error, "the bytes end before its length");
    }
    memcpy(&size, tensor->bytes + reader->offset, sizeof size);
    reader->offset += sizeof size;
    if (size > tensor->size - reader->offset) {
        return error_set(error, "%u bytes long, beyond the tensor's end", size);
    }
    *field = (struct csv_field){.text = (const char *)tensor->bytes + reader->offset, .size = size, .column = 1};
    reader->offset += size;
    return true;
}

static bool text_of_bytes(struct reader *reader, struct csv_field *field, struct error *error)
{
    return next_bytes(reader, field, error) &&
           (utf8_check(field->text, field->size) || error_set(error, "is not UTF-8; encode texts as UTF-8"));
}

static bool check_truth(enum tensor_type type, uint8_t byte, struct error *error)
{
    return type != TENSOR_BOOL || byte <= 1 ||
           error_set(error, "is %u, which BOOL cannot hold; send 0 or 1, or declare UINT8", byte);
}

/* The next value as a field of the column. */
static bool next_field(struct json_body *body, struct reader *reader, const struct schema_column *column,
                       char buffer[ROW_NUMBER_TEXT], struct csv_field *field, struct error *error)
{
    const struct tensor *tensor = reader->tensor;
    struct json_value value;
    if (!tensor->bytes) {
        return next_value(reader, &value) ? field_of_json(body, tensor->type, column, value, buffer, field, error)
                                          : say_count(reader, (size_t)tensor->rows * tensor->width, error);
    }
    if (tensor->type == TENSOR_BYTES) {
        return text_of_bytes(reader, field, error);
    }
    const uint8_t *at = tensor->bytes + types[tensor->type].size * reader->index++;
    if (tensor->type == TENSOR_BOOL) {
        put_truth(column, *at == 1, field);
        return check_truth(tensor->type, *at, error);
    }
    const struct number number = number_of_bytes(tensor->type, at);
    put_number(tensor->type, &number, column->kind == SCHEMA_CATEGORY, buffer, field);
    return true;
}

static const struct schema_column *column_at(const struct intake *intake, int column)
{
    return &intake->version->trained.schema->columns[column];
}

/* Finds each column's tensor. readers: [columns] */
static bool find_columns(const struct version *version, const struct tensor *tensors, int count, int columns,
                         struct reader *readers, struct error *error)
{
    for (int i = 0; i < columns; i++) {
        const char *name = intake_column_name(version, i);
        const struct tensor *tensor = NULL;
        for (int j = 0; j < count && !tensor; j++) {
            tensor = json_is(tensors[j].name, name) ? &tensors[j] : NULL;
        }
        if (!tensor) {
            return error_set(error, "column %.64s is not there, and the model was trained on it", name);
        }
        if (tensor->width != 1) {
            return error_set(error, "column %.64s: has %zu values in a row; its shape is [rows] or [rows, 1]", name,
                             tensor->width);
        }
        reader_begin(&readers[i], tensor);
        if (tensor->rows != readers[0].tensor->rows) {
            return error_set(error, "column %.64s: has %lld values, column %.64s has %lld", name,
                             (long long)tensor->rows, intake_column_name(version, 0),
                             (long long)readers[0].tensor->rows);
        }
    }
    return true;
}

static bool add_fields(struct json_body *body, struct intake *intake, int columns, struct reader *readers,
                       bool is_matrix, struct csv_field *fields, struct error *error)
{
    bool done = true;
    for (int64_t row = 0; done && row < readers[0].tensor->rows; row++) {
        for (int i = 0; done && i < columns; i++) {
            struct reader *reader = &readers[is_matrix ? 0 : i];
            done = next_field(body, reader, column_at(intake, i), readers[i].buffer, &fields[i], error) ||
                   error_wrap(error, "row %lld: column %.64s", (long long)row, intake_column_name(intake->version, i));
        }
        done = done && intake_add_fields(intake, fields, row, error);
    }
    for (int i = 0; done && i < (is_matrix ? 1 : columns); i++) {
        done = reader_ends(&readers[i], error) ||
               error_wrap(error, "column %.64s", intake_column_name(intake->version, i));
    }
    return done;
}

bool tensor_add_table(struct json_body *body, struct intake *intake, const struct tensor *tensors, int count,
                      struct error *error)
{
    const int columns = intake_columns(intake->version);
    const bool is_matrix =
        count == 1 && tensors[0].type != TENSOR_BYTES && columns > 1 && tensors[0].width == (size_t)columns;
    struct reader *readers = calloc((size_t)columns + 1, sizeof *readers);
    struct csv_field *fields = calloc((size_t)columns + 1, sizeof *fields);
    bool done = readers && fields ? true : error_set(error, "out of memory for %d columns", columns);
    if (done && is_matrix) {
        reader_begin(&readers[0], &tensors[0]);
    } else if (done) {
        done = find_columns(intake->version, tensors, count, columns, readers, error);
    }
    done = done && (columns < 1 || add_fields(body, intake, columns, readers, is_matrix, fields, error));
    free(readers);
    free(fields);
    return done;
}

/* --- Pictures --- */

static bool is_float(enum tensor_type type)
{
    return types[type].digits > 0;
}

bool tensor_add_picture(struct intake *intake, enum tensor_type type, float *values, int64_t row, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    uint8_t *pixels = (uint8_t *)values; /* in place: a byte overwrites only numbers already read */
    const float most = type == TENSOR_BOOL ? 1 : 255;
    if (type == TENSOR_ANY) {
        return intake_add_undeclared(intake, values, row, error);
    }
    if (is_float(type)) {
        return intake_add_numbers(intake, values, row, error);
    }
    for (size_t i = 0; i < inputs; i++) {
        if (!(values[i] >= 0 && values[i] <= most)) {
            return error_set(error, "row %lld: pixel %zu is %.9g; as %s pixels are 0 to %g", (long long)row, i,
                             (double)values[i], type == TENSOR_BOOL ? "BOOL" : "integers", (double)most);
        }
        pixels[i] = (uint8_t)(type == TENSOR_BOOL ? values[i] * 255 : values[i]);
    }
    return intake_add_bytes(intake, pixels, error);
}

/*
 * Fast path for integers of up to nine digits followed by a comma, as most images are written; leaves the first other
 * value.
 */
static size_t pass_integers(struct reader *reader, float *values, size_t most)
{
    const char *at = reader->at, *const end = reader->end;
    size_t count = 0;
    while (count < most) {
        const char *digit = at;
        uint32_t number = 0;
        for (; digit < end && digit - at < 9 && (unsigned)(*digit - '0') < 10; digit++) {
            number = 10 * number + (uint32_t)(*digit - '0');
        }
        if (digit == at || digit == end || *digit != ',') {
            break;
        }
        values[count++] = (float)number;
        at = digit + 1;
        at += at < end && *at == ' ';
    }
    reader->at = at;
    reader->index += count;
    return count;
}

static bool pixel_of_json(enum tensor_type type, struct json_value json, float *pixel, struct error *error)
{
    struct number number;
    double value;
    if (json.kind == JSON_NULL) {
        *pixel = NAN;
        return !types[type].is_integer || say_kind(type, json, error);
    }
    if ((json.kind == JSON_TRUE || json.kind == JSON_FALSE) && (type == TENSOR_ANY || type == TENSOR_BOOL)) {
        *pixel = json.kind == JSON_TRUE ? 1 : 0;
        return true;
    }
    if (json.kind != JSON_NUMBER) {
        return error_set(error, "is %s, not a number", json_kind_name(json.kind));
    }
    if (type == TENSOR_ANY) {
        const enum number_kind kind = number_parse(json.text, json.size, &value);
        *pixel = kind == NUMBER_FINITE ? (float)value : kind == NUMBER_MISSING ? NAN : INFINITY;
        return true;
    }
    if (!number_of_json(type, json, &number, error)) {
        return false;
    }
    *pixel = (float)number.value;
    return true;
}

/* The next picture's values. *count: how many there were, at most `inputs`. */
static bool pixels_of_json(struct reader *reader, float *values, size_t inputs, size_t *count, struct error *error)
{
    struct json_value value;
    *count = 0;
    while ((*count += pass_integers(reader, values + *count, inputs - *count)) < inputs && next_value(reader, &value)) {
        if (!pixel_of_json(reader->tensor->type, value, &values[*count], error)) {
            return error_wrap(error, "value %zu", reader->index - 1);
        }
        (*count)++;
    }
    return true;
}

static bool pixels_of_bytes(struct reader *reader, float *values, size_t inputs, struct error *error)
{
    const struct tensor *tensor = reader->tensor;
    const size_t size = types[tensor->type].size;
    const uint8_t *at = tensor->bytes + reader->index * size;
    if (tensor->type == TENSOR_FP32) {
        memcpy(values, at, inputs * sizeof *values);
    }
    for (size_t i = 0; tensor->type != TENSOR_FP32 && i < inputs; i++) {
        if (!check_truth(tensor->type, at[i * size], error)) {
            return error_wrap(error, "value %zu", reader->index + i);
        }
        values[i] = (float)number_of_bytes(tensor->type, at + i * size).value;
    }
    reader->index += inputs;
    return true;
}

/* Images that make up a whole batch, in place. False: there is none, or *failed. */
static bool lend_pictures(struct intake *intake, const struct tensor *tensor, bool *failed, struct error *error)
{
    const bool is_aligned = (uintptr_t)tensor->bytes % _Alignof(float) == 0;
    if (!tensor->bytes) {
        return false;
    }
    if (tensor->type == TENSOR_UINT8) {
        return intake_lend_bytes(intake, tensor->bytes, tensor->rows);
    }
    return tensor->type == TENSOR_FP32 && is_aligned &&
           intake_lend_numbers(intake, (const float *)(const void *)tensor->bytes, tensor->rows, failed, error);
}

/* Pictures as in files: of binary tensors their bytes, of JSON base64. */
static bool add_encoded(struct intake *intake, const struct tensor *tensor, struct error *error)
{
    struct reader reader = {.index = 0};
    bool done = true;
    reader_begin(&reader, tensor);
    for (int64_t row = 0; done && row < tensor->rows; row++) {
        struct csv_field field;
        struct json_value value;
        if (tensor->bytes) {
            done = next_bytes(&reader, &field, error) &&
                   intake_add_picture(intake, (const uint8_t *)field.text, field.size, error);
        } else {
            done = next_value(&reader, &value) ? intake_add_base64(intake, value, error)
                                               : say_count(&reader, (size_t)tensor->rows, error);
        }
        done = done || error_wrap(error, "picture %lld", (long long)row);
    }
    return done && reader_ends(&reader, error);
}

bool tensor_add_pictures(struct intake *intake, const struct tensor *tensor, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    struct reader reader = {.index = 0};
    bool done = true, failed = false;
    if (tensor->type == TENSOR_BYTES && tensor->width == 1) {
        return add_encoded(intake, tensor, error);
    }
    if (tensor->width != inputs || tensor->type == TENSOR_BYTES) {
        return error_set(error,
                         "has rows of %zu values of %s; the model's pictures have %zu numbers, or are one value of "
                         "BYTES, a JPEG or PNG",
                         tensor->width, types[tensor->type].name, inputs);
    }
    if (lend_pictures(intake, tensor, &failed, error) || failed) {
        return !failed;
    }
    reader_begin(&reader, tensor);
    for (int64_t row = 0; done && row < tensor->rows; row++) {
        size_t count = inputs;
        if (tensor->bytes && tensor->type == TENSOR_UINT8) {
            done = intake_add_bytes(intake, tensor->bytes + (size_t)row * inputs, error);
            continue;
        }
        done = tensor->bytes ? pixels_of_bytes(&reader, intake->row, inputs, error)
                             : pixels_of_json(&reader, intake->row, inputs, &count, error);
        done = done && (count == inputs || say_count(&reader, (size_t)tensor->rows * inputs, error)) &&
               tensor_add_picture(intake, tensor->type, intake->row, row, error);
    }
    return done && reader_ends(&reader, error);
}

/* --- Rows of JSON --- */

/* A single input may be named, as in TensorFlow Serving: {"images": [...]}, {"images": {"b64": "..."}}. */
static bool unwrap_picture(struct json_value *value, int64_t row, struct error *error)
{
    struct json_walk members = json_walk(*value);
    struct json_value name, other;
    return value->kind != JSON_OBJECT ||
           (json_next_member(&members, &name, value) && !json_next_member(&members, &name, &other)) ||
           error_set(error, "row %lld: a picture is an array of numbers, {\"images\": [...]} or {\"b64\": \"...\"}",
                     (long long)row);
}

/* {"b64": ...}: then the value is what stands there. */
static bool is_base64(struct json_value *value)
{
    const struct json_value text = value->kind == JSON_OBJECT ? json_member(*value, "b64") : *value;
    const bool is_there = value->kind == JSON_OBJECT && text.kind != JSON_NONE;
    *value = is_there ? text : *value;
    return is_there;
}

static bool add_picture(struct intake *intake, struct json_value value, int64_t row, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    const struct tensor one = {.type = TENSOR_ANY, .data = value};
    struct reader reader = {.index = 0};
    size_t count;
    reader_begin(&reader, &one);
    if (!pixels_of_json(&reader, intake->row, inputs, &count, error)) {
        return error_wrap(error, "row %lld", (long long)row);
    }
    if (count < inputs || next_value(&reader, &value)) {
        while (next_value(&reader, &value)) {
        }
        return error_set(error, "row %lld: has %zu values, the model's pictures have %zu", (long long)row, reader.index,
                         inputs);
    }
    return tensor_add_picture(intake, TENSOR_ANY, intake->row, row, error);
}

/* The column of that name; most clients send them in the model's order: the expected one is tried first. -1: none. */
static int column_of_name(const struct version *version, struct json_value name, int expected)
{
    char own[512];
    if (json_is(name, intake_column_name(version, expected))) {
        return expected;
    }
    if (!memchr(name.text, '\\', name.size)) {
        return version_find_column(version, name.text + 1, name.size - 2);
    }
    return name.size <= sizeof own ? version_find_column(version, own, json_unescape(name, own)) : -1;
}

/* Members that are not the model's columns, as the target, are passed over. */
static bool fields_by_name(struct json_body *body, struct intake *intake, struct json_value record, struct error *error)
{
    const int columns = intake_columns(intake->version);
    struct csv_field *fields = intake->row;
    struct json_walk walk = json_walk(record);
    struct json_value name, value;
    int expected = 0;
    for (int i = 0; i < columns; i++) {
        fields[i].text = NULL;
    }
    while (json_next_member(&walk, &name, &value)) {
        const int i = column_of_name(intake->version, name, expected);
        if (i < 0) {
            continue;
        }
        const char *column = intake_column_name(intake->version, i);
        if (fields[i].text) {
            return error_set(error, "column %.64s is there twice", column);
        }
        if (!field_of_json(body, TENSOR_ANY, column_at(intake, i), value, NULL, &fields[i], error)) {
            return error_wrap(error, "column %.64s", column);
        }
        expected = i + 1 < columns ? i + 1 : 0;
    }
    for (int i = 0; i < columns; i++) {
        if (!fields[i].text) {
            return error_set(error, "has no column %.64s, which the model was trained on; null is a missing value",
                             intake_column_name(intake->version, i));
        }
    }
    return true;
}

static bool fields_in_order(struct json_body *body, struct intake *intake, struct json_value record,
                            struct error *error)
{
    const int columns = intake_columns(intake->version);
    struct csv_field *fields = intake->row;
    struct json_walk walk = json_walk(record);
    struct json_value value;
    if (json_length(record) != (size_t)columns) {
        return error_set(error, "has %zu values, the model has %d columns", json_length(record), columns);
    }
    for (int i = 0; json_next(&walk, &value); i++) {
        if (!field_of_json(body, TENSOR_ANY, column_at(intake, i), value, NULL, &fields[i], error)) {
            return error_wrap(error, "column %.64s", intake_column_name(intake->version, i));
        }
    }
    return true;
}

/* An object by column name, or an array in the columns' order. */
static bool add_record(struct json_body *body, struct intake *intake, struct json_value record, int64_t row,
                       struct error *error)
{
    if (!(record.kind == JSON_ARRAY ? fields_in_order : fields_by_name)(body, intake, record, error)) {
        return error_wrap(error, "row %lld", (long long)row);
    }
    return intake_add_fields(intake, intake->row, row, error);
}

static bool add_row(struct json_body *body, struct intake *intake, struct json_value value, int64_t row,
                    struct error *error)
{
    if (version_is_of_pictures(intake->version)) {
        bool is_encoded = is_base64(&value);
        if (!is_encoded && !unwrap_picture(&value, row, error)) {
            return false;
        }
        is_encoded = is_encoded || is_base64(&value);
        return is_encoded ? intake_add_base64(intake, value, error) || error_wrap(error, "row %lld", (long long)row)
                          : add_picture(intake, value, row, error);
    }
    if (value.kind == JSON_OBJECT || value.kind == JSON_ARRAY) {
        return add_record(body, intake, value, row, error);
    }
    if (intake_columns(intake->version) == 1) {
        return (field_of_json(body, TENSOR_ANY, column_at(intake, 0), value, NULL, intake->row, error) ||
                error_wrap(error, "row %lld", (long long)row)) &&
               intake_add_fields(intake, intake->row, row, error);
    }
    return error_set(error, "row %lld: is %s; a row is an object by column, or an array in the columns' order",
                     (long long)row, json_kind_name(value.kind));
}

bool tensor_add_rows(struct json_body *body, struct intake *intake, struct json_value rows, struct error *error)
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
