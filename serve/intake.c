/*
 * Training sees images as bytes. Clients may send numbers: whole levels of grey are treated as bytes, with the same
 * bits; others go through an engine that accepts numbers.
 */
#include "serve/work.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "serve/request_log.h"
#include "worker/data/image.h"
#include "worker/data/table/schema.h"

enum {
    FIRST_ROOM = 64,
    MOST_ROWS = 1 << 20,
    LEAST_LENT = 64,
    CHARGED_TOGETHER = 64,  /* rows */
    GROWTH = 3,             /* a row's copies while its set grows: twice the room, and what is copied to there */
    MOST_KEPT = 1024 * 1024 /* bytes of rows whose memory stays for the next requests */
};

static size_t bytes_of_row(const struct version *version)
{
    const struct schema *schema = version->trained.schema;
    if (!schema) {
        return (size_t)version_inputs(version);
    }
    struct examples shape = encoder_shape(schema);
    shape.targets = schema->task == TASK_INPUTS ? shape.targets : 0;
    return examples_bytes(&shape);
}

bool intake_begin(struct intake *intake, int worker, struct version *version, struct error *error)
{
    if (intake->version_id != version->id) {
        intake_end(intake);
        intake->version = version;
        intake->version_id = version->id;
        intake->row_bytes = bytes_of_row(version);
        intake->inputs = (size_t)version_inputs(version);
        const struct schema *schema = version->trained.schema;
        const size_t row = schema ? ((size_t)schema_features(schema) + 1) * sizeof(struct csv_field)
                                  : (size_t)version_inputs(version) * sizeof(float);
        intake->row = malloc(row);
        if (!intake->row) {
            intake_end(intake);
            return error_set(error, "out of memory for a row");
        }
        if (schema && !encoder_begin_direct(&intake->encoder, schema, error)) {
            intake_end(intake);
            return false;
        }
    }
    intake->worker = worker;
    intake->examples.count = 0;
    intake->wide = false;
    intake->last_wide = -1;
    intake->keeps = false;
    intake->raw.size = 0;
    return true;
}

void intake_end(struct intake *intake)
{
    encoder_end(&intake->encoder);
    examples_free(&intake->examples);
    free(intake->values);
    free(intake->row);
    text_buffer_free(&intake->raw);
    *intake = (struct intake){0};
}

/* --- columns --- */

int intake_columns(const struct version *version)
{
    return schema_features(version->trained.schema);
}

const char *intake_column_name(const struct version *version, int column)
{
    return version->trained.schema->columns[column].name;
}

bool intake_column_is_text(const struct version *version, int column)
{
    return version->trained.schema->columns[column].kind != SCHEMA_NUMBER;
}

void intake_describe_column(struct text_buffer *text, const struct version *version, int column)
{
    enum { MOST_CATEGORIES = 1000 };
    const struct schema_column *from = &version->trained.schema->columns[column];
    if (from->kind == SCHEMA_CATEGORY) {
        json_write_open(text, "categories", '[');
        for (int i = 0; i < from->categories.count && i < MOST_CATEGORIES; i++) {
            json_write_string(text, NULL, dictionary_text(&from->categories, i));
        }
        json_write_close(text, ']');
    } else if (from->center != 0 || from->scale != 1) {
        /* By their center (mean, median), or from the least to the most. */
        const bool is_center = from->center == from->fill;
        json_write_open(text, "typical", '[');
        json_write_number(text, NULL, is_center ? from->center - 2 * from->scale : from->center);
        json_write_number(text, NULL, is_center ? from->center + 2 * from->scale : from->center + from->scale);
        json_write_close(text, ']');
    }
}

/* --- rows --- */

void intake_charge(struct intake *intake, struct budget_account *account)
{
    intake->account = account;
    intake->charged = 0;
    intake->rows = intake->charged_rows = 0;
    intake->first_row = intake->examples.count;
    intake->scale = SCALE_UNKNOWN;
}

static bool charge(struct intake *intake, size_t bytes, struct error *error)
{
    if (!budget_charge(intake->account, bytes, error)) {
        return false;
    }
    intake->charged += intake->account ? bytes : 0;
    return true;
}

/* For another row. */
static bool charge_row(struct intake *intake, struct error *error)
{
    if (budget_is_closed(intake->account)) {
        return error_set(error, "the client has gone");
    }
    if (intake->rows++ < intake->charged_rows) {
        return true;
    }
    const int more = intake->charged_rows == 0                 ? 1
                     : intake->charged_rows < CHARGED_TOGETHER ? intake->charged_rows
                                                               : CHARGED_TOGETHER;
    intake->charged_rows += more;
    return charge(intake, (size_t)more * GROWTH * intake->row_bytes, error);
}

static bool grow(struct intake *intake, struct error *error)
{
    struct examples *examples = &intake->examples;
    const struct version *version = intake->version;
    const struct schema *schema = version->trained.schema;
    if (!charge_row(intake, error)) {
        return false;
    }
    if (examples->count < intake->room) {
        return true;
    }
    if (intake->room >= MOST_ROWS) {
        return error_set(error, "more than %d rows in one request; send fewer at a time", MOST_ROWS);
    }
    const int room = intake->room > 0 ? 2 * intake->room : FIRST_ROOM;
    struct examples larger;
    const struct examples like = {.height = 1, .width = version_inputs(version)};
    if (schema && !encoder_allocate(&larger, schema, room, schema->task == TASK_INPUTS, error)) {
        return false;
    }
    if (!schema && !examples_create(&larger, &like, room)) {
        return error_set(error, "out of memory for %d rows", room);
    }
    if (intake->room > 0) {
        examples_copy(&larger, 0, examples, 0, examples->count);
    }
    larger.count = examples->count;
    examples_free(examples);
    *examples = larger;
    intake->room = room;
    return true;
}

bool intake_add_fields(struct intake *intake, const struct csv_field *fields, int64_t row, struct error *error)
{
    if (!grow(intake, error)) {
        return false;
    }
    const struct row one = {.fields = fields, .count = intake_columns(intake->version), .line = (uint64_t)row};
    if (intake->keeps && !charge(intake, GROWTH * request_log_row_bytes(&one), error)) {
        return false;
    }
    if (!encoder_add(&intake->encoder, NULL, &one, &intake->examples, intake->examples.count, error)) {
        return false;
    }
    intake->examples.count++;
    if (intake->keeps) {
        request_log_row(&intake->raw, &intake->encoder, &one);
    }
    return true;
}

static uint8_t *picture_at(struct intake *intake, int index)
{
    return intake->examples.images + (size_t)index * (size_t)version_inputs(intake->version);
}

/* From now on all images are kept as numbers, too. */
static bool widen(struct intake *intake, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    if (intake->wide_room < intake->room) {
        const size_t more = (size_t)(intake->room - intake->wide_room) * inputs * sizeof(float);
        if (!budget_charge_for(intake->account, intake->shared, more, error)) {
            return false;
        }
        float *values = realloc(intake->values, (size_t)intake->room * inputs * sizeof *values);
        if (!values) {
            return error_set(error, "out of memory for %d rows", intake->room);
        }
        intake->values = values;
        intake->wide_room = intake->room;
    }
    for (size_t i = 0; !intake->wide && i < (size_t)intake->examples.count * inputs; i++) {
        intake->values[i] = (float)intake->examples.images[i] / 255.0F;
    }
    intake->wide = true;
    return true;
}

bool intake_add_bytes(struct intake *intake, const uint8_t *pixels, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    if (!grow(intake, error) || (intake->wide && !widen(intake, error))) {
        return false;
    }
    memcpy(picture_at(intake, intake->examples.count), pixels, inputs);
    for (size_t i = 0; intake->wide && i < inputs; i++) {
        intake->values[(size_t)intake->examples.count * inputs + i] = (float)pixels[i] / 255.0F;
    }
    intake->examples.count++;
    return true;
}

bool intake_add_picture(struct intake *intake, const uint8_t *bytes, size_t size, struct error *error)
{
    const struct image_shape *shape = &intake->version->trained.shape;
    struct image image;
    struct image_head head;
    bool more;
    if (!image_examine(&head, bytes, size, &more, error)) {
        return false;
    }
    const size_t needs = image_memory(bytes, size) + image_fit_memory(head.height, shape) + image_values(shape);
    if (!budget_charge(intake->account, needs, error)) {
        return false;
    }
    uint8_t *pixels = malloc(image_values(shape));
    bool done = pixels ? image_decode(&image, bytes, size, shape->channels, error)
                       : error_set(error, "out of memory for the picture");
    if (done) {
        done = image_fit(&image, shape, pixels, error) && intake_add_bytes(intake, pixels, error);
        image_free(&image);
    }
    free(pixels);
    budget_release(intake->account, needs);
    return done;
}

bool intake_add_base64(struct intake *intake, struct json_value text, struct error *error)
{
    if (text.kind != JSON_STRING) {
        return error_set(error, "b64 is %s, not a text", json_kind_name(text.kind));
    }
    const size_t room = text.size + 1;
    size_t size;
    if (!budget_charge(intake->account, 2 * room, error)) {
        return false;
    }
    char *base64 = malloc(2 * room);
    uint8_t *bytes = (uint8_t *)base64 + room;
    bool done = base64 || error_set(error, "out of memory for the picture");
    done = done && (sodium_base642bin(bytes, room, base64, json_unescape(text, base64), "\r\n", &size, NULL,
                                      sodium_base64_VARIANT_ORIGINAL) == 0 ||
                    sodium_base642bin(bytes, room, base64, json_unescape(text, base64), "\r\n", &size, NULL,
                                      sodium_base64_VARIANT_URLSAFE_NO_PADDING) == 0 ||
                    error_set(error, "b64 is not base64"));
    done = done && (intake_add_picture(intake, bytes, size, error) || error_wrap(error, "its picture"));
    free(base64);
    budget_release(intake->account, 2 * room);
    return done;
}

/* Numbers as levels of grey; *whole: they are exact. */
static bool to_levels(const float *pixels, size_t inputs, uint8_t *levels, int64_t row, bool *whole,
                      struct error *error)
{
    bool good = true, same = true;
    for (size_t i = 0; i < inputs; i++) {
        good &= pixels[i] >= 0 && pixels[i] <= 1;
    }
    for (size_t i = 0; !good && i < inputs; i++) {
        if (!(pixels[i] >= 0 && pixels[i] <= 1)) {
            return isnan(pixels[i])
                       ? error_set(error,
                                   "row %lld: pixel %zu is missing (null or NaN); a picture needs all its pixels",
                                   (long long)row, i)
                       : error_set(error,
                                   "row %lld: pixel %zu is %.9g; as floating-point numbers pixels are 0 to 1: divide "
                                   "levels of grey by 255, or send them as UINT8",
                                   (long long)row, i, (double)pixels[i]);
        }
    }
    for (size_t i = 0; i < inputs; i++) {
        levels[i] = (uint8_t)(int)(pixels[i] * 255.0F + 0.5F);
        same &= fabsf(pixels[i] - (float)levels[i] / 255.0F) <= 0x1p-22F;
    }
    *whole = same;
    return true;
}

bool intake_add_numbers(struct intake *intake, const float *pixels, int64_t row, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    bool whole;
    if (!grow(intake, error) ||
        !to_levels(pixels, inputs, picture_at(intake, intake->examples.count), row, &whole, error)) {
        return false;
    }
    if (!whole || intake->wide) {
        if (!widen(intake, error)) {
            return false;
        }
        memcpy(intake->values + (size_t)intake->examples.count * inputs, pixels, inputs * sizeof *pixels);
        intake->last_wide = whole ? intake->last_wide : intake->examples.count;
    }
    intake->examples.count++;
    return true;
}

/* All pictures of this request so far are of zeros and ones: these are levels of grey after all. */
static void take_as_levels(struct intake *intake)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    for (size_t i = (size_t)intake->first_row * inputs; i < (size_t)intake->examples.count * inputs; i++) {
        intake->examples.images[i] = intake->examples.images[i] > 0 ? 1 : 0;
        if (intake->wide) {
            intake->values[i] = (float)intake->examples.images[i] / 255.0F;
        }
    }
}

bool intake_add_undeclared(struct intake *intake, float *pixels, int64_t row, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    uint8_t *levels = (uint8_t *)pixels;  /* in place: a byte overwrites only numbers already read */
    size_t part = inputs, level = inputs; /* where the last fraction is, and the last number above 1 */
    for (size_t i = 0; i < inputs; i++) {
        part = pixels[i] == floorf(pixels[i]) ? part : i;
        level = pixels[i] > 1 ? i : level;
    }
    const enum intake_scale scale = level < inputs ? SCALE_LEVELS : part < inputs ? SCALE_UNIT : SCALE_UNKNOWN;
    if ((level < inputs && part < inputs) ||
        (scale != SCALE_UNKNOWN && intake->scale != SCALE_UNKNOWN && scale != intake->scale)) {
        const size_t shown = level < inputs ? level : part;
        return isnan(pixels[part < inputs ? part : level])
                   ? intake_add_numbers(intake, pixels, row, error)
                   : error_set(error,
                               "row %lld: pixel %zu is %.9g, and others are %s; all pixels of a request are 0 to 1, or "
                               "all are whole levels of grey, 0 to 255",
                               (long long)row, shown, (double)pixels[shown], level < inputs ? "fractions" : "above 1");
    }
    if (scale == SCALE_LEVELS && intake->scale == SCALE_UNKNOWN) {
        take_as_levels(intake);
    }
    intake->scale = scale != SCALE_UNKNOWN ? scale : intake->scale;
    if (intake->scale != SCALE_LEVELS) {
        return intake_add_numbers(intake, pixels, row, error);
    }
    for (size_t i = 0; i < inputs; i++) {
        if (!(pixels[i] >= 0 && pixels[i] <= 255)) {
            return error_set(error, "row %lld: pixel %zu is %.9g; as integers pixels are 0 to 255", (long long)row, i,
                             (double)pixels[i]);
        }
        levels[i] = (uint8_t)pixels[i];
    }
    return intake_add_bytes(intake, levels, error);
}

bool intake_lend_bytes(struct intake *intake, const uint8_t *pixels, int64_t rows)
{
    if (!intake->may_lend || rows < LEAST_LENT || rows > MOST_ROWS) {
        return false;
    }
    intake->lent = (struct examples){.count = (int)rows,
                                     .images = (uint8_t *)(uintptr_t)pixels,
                                     .height = 1,
                                     .width = version_inputs(intake->version)};
    return true;
}

/*
 * Levels of grey are needed in any case: the model may accept numbers, but drift and the log of requests use grey
 * levels.
 */
bool intake_lend_numbers(struct intake *intake, const float *pixels, int64_t rows, bool *failed, struct error *error)
{
    const size_t inputs = (size_t)version_inputs(intake->version);
    bool whole, all = true;
    *failed = false;
    if (!intake->may_lend || rows < LEAST_LENT || intake->wide) {
        return false;
    }
    for (int64_t row = 0; row < rows; row++) {
        if (!grow(intake, error) || !to_levels(pixels + (size_t)row * inputs, inputs,
                                               picture_at(intake, intake->examples.count), row, &whole, error)) {
            *failed = true;
            return false;
        }
        all &= whole;
        intake->examples.count++;
    }
    intake->lent_numbers = all ? NULL : pixels;
    return true;
}

void intake_shrink(struct intake *intake)
{
    if ((size_t)intake->room * intake->row_bytes > MOST_KEPT) {
        examples_free(&intake->examples);
        intake->examples = (struct examples){.count = 0};
        intake->room = 0;
    }
    if ((size_t)intake->wide_room * intake->inputs * sizeof *intake->values > MOST_KEPT) {
        free(intake->values);
        intake->values = NULL;
        intake->wide_room = 0;
    }
    if (intake->raw.room > MOST_KEPT) {
        text_buffer_free(&intake->raw);
    }
}

void intake_cut(struct intake *intake, int count)
{
    intake->examples.count = count;
}
