/* Arithmetic is in double and rounded once, so that large centres cost no precision. */
#include "worker/data/table/encode.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/text/text.h"

/* --- columns --- */

/* By name only: a number would be found in any file. */
static int find_exactly(const struct rows *rows, const char *name)
{
    for (int i = 0; i < rows_columns(rows); i++) {
        if (strcmp(rows_column_name(rows, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

static bool say_missing(const struct rows *rows, const char *name, struct error *error)
{
    struct suggestion suggestion = {.word = name};
    for (int i = 0; i < rows_columns(rows); i++) {
        suggest_offer(&suggestion, rows_column_name(rows, i));
    }
    if (!rows_has_header(rows) && rows_columns(rows) > 0) {
        return error_set(error, "%s: has no line of column names (data.header), and the model wants a column %.64s",
                         rows_name(rows), name);
    }
    return error_set(error, "%s: has no column %.64s, which the model was trained on%s%.64s%s", rows_name(rows), name,
                     suggestion.best ? "; was it renamed to " : "; add it, empty if need be",
                     suggestion.best ? suggestion.best : "", suggestion.best ? "?" : "");
}

/* Every class is the shortest text of a number. */
static bool classes_are_numbers(const struct schema *schema)
{
    const struct schema_column *target = schema->task == TASK_CLASS ? schema_target(schema, 0) : NULL;
    bool are = target;
    for (int i = 0; are && i < target->categories.count; i++) {
        char buffer[ROW_NUMBER_TEXT];
        size_t size;
        const char *text = dictionary_text(&target->categories, i);
        const struct csv_field field = {.text = text, .size = target->categories.entries[i].size};
        const struct row row = {.fields = &field, .count = 1};
        double number;
        const char *shortest = row_class(&row, 0, buffer, &size);
        are = row_plain_number(&row, 0, &number) == NUMBER_FINITE && size == field.size &&
              memcmp(shortest, text, size) == 0;
    }
    return are;
}

/* The numeric features, cached for plain rows. */
static bool gather_numbers(struct encoder *encoder)
{
    encoder->classes_are_numbers = classes_are_numbers(encoder->schema);
    struct encoder_numbers *numbers = &encoder->numbers;
    const struct schema *schema = encoder->schema;
    const size_t most = (size_t)schema->numbers + 1;
    numbers->from = calloc(most, sizeof *numbers->from);
    numbers->to = calloc(most, sizeof *numbers->to);
    numbers->centers = calloc(most, sizeof *numbers->centers);
    numbers->scales = calloc(most, sizeof *numbers->scales);
    numbers->lows = calloc(most, sizeof *numbers->lows);
    numbers->highs = calloc(most, sizeof *numbers->highs);
    numbers->columns = calloc(most, sizeof(void *));
    if (!numbers->from || !numbers->to || !numbers->columns || !numbers->centers || !numbers->scales ||
        !numbers->lows || !numbers->highs) {
        return false;
    }
    numbers->are_neighbours = true;
    numbers->is_wide = cpu_features_get()->avx2;
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (column->role != SCHEMA_FEATURE || column->kind != SCHEMA_NUMBER) {
            continue;
        }
        const int at = numbers->count++;
        encoder->first_other += encoder->first_other == i && column->code < 0;
        numbers->columns[at] = column;
        numbers->from[at] = encoder->sources[i];
        numbers->to[at] = column->input;
        numbers->centers[at] = column->center;
        numbers->scales[at] = column->scale;
        numbers->lows[at] = column->low;
        numbers->highs[at] = column->high;
        numbers->are_neighbours &= numbers->from[at] == numbers->from[0] + at && numbers->to[at] == numbers->to[0] + at;
    }
    return true;
}

bool encoder_begin(struct encoder *encoder, const struct schema *schema, const struct rows *rows, bool learns,
                   struct error *error)
{
    *encoder = (struct encoder){.schema = schema, .learns = learns};
    encoder->sources = calloc((size_t)schema->count + 1, sizeof *encoder->sources);
    if (!encoder->sources) {
        return error_set(error, "%s: out of memory for %d columns", rows_name(rows), schema->count);
    }
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        encoder->sources[i] = find_exactly(rows, column->name);
        const bool is_needed = column->role == SCHEMA_FEATURE || (column->role == SCHEMA_TARGET && learns);
        if (encoder->sources[i] < 0 && is_needed) {
            return say_missing(rows, column->name, error);
        }
    }
    return gather_numbers(encoder) ||
           error_set(error, "%s: out of memory for %d columns", rows_name(rows), schema->count);
}

bool encoder_begin_direct(struct encoder *encoder, const struct schema *schema, struct error *error)
{
    *encoder = (struct encoder){.schema = schema};
    encoder->sources = calloc((size_t)schema->count + 1, sizeof *encoder->sources);
    if (!encoder->sources) {
        return error_set(error, "out of memory for %d columns", schema->count);
    }
    for (int i = 0, feature = 0; i < schema->count; i++) {
        encoder->sources[i] = schema->columns[i].role == SCHEMA_FEATURE ? feature++ : -1;
    }
    return gather_numbers(encoder) || error_set(error, "out of memory for %d columns", schema->count);
}

void encoder_end(struct encoder *encoder)
{
    free(encoder->sources);
    free(encoder->numbers.columns);
    free(encoder->numbers.from);
    free(encoder->numbers.to);
    free(encoder->numbers.centers);
    free(encoder->numbers.scales);
    free(encoder->numbers.lows);
    free(encoder->numbers.highs);
    encoder->sources = NULL;
    encoder->numbers = (struct encoder_numbers){.count = 0};
}

/* --- memory --- */

struct examples encoder_shape(const struct schema *schema)
{
    struct examples shape = {.inputs = schema->numbers + schema->inputs - schema->dense,
                             .numbers = schema->numbers,
                             .piecewise = schema->piecewise,
                             .bins = schema->bins,
                             .codes = schema->codes,
                             .classes = schema->classes,
                             .targets = schema->targets,
                             .target_means = schema->target_means,
                             .target_scales = schema->target_scales};
    for (int i = 0; i < schema->count; i++) {
        shape.is_weighted |= schema->columns[i].role == SCHEMA_WEIGHT;
    }
    return schema->encoding == ENCODING_PLE ? examples_view(&shape, VIEW_PIECEWISE) : shape;
}

bool encoder_allocate(struct examples *examples, const struct schema *schema, int count, bool learns,
                      struct error *error)
{
    struct examples like = encoder_shape(schema);
    like.is_weighted &= learns;
    if (!examples_create(examples, &like, count)) {
        return error_set(error, "out of memory for %d rows of %d inputs", count, schema->inputs);
    }
    if (!learns) {
        free(examples->labels);
        free(examples->target_values);
        examples->labels = NULL;
        examples->target_values = NULL;
    }
    return true;
}

/* --- rows --- */

static bool say_field(const struct rows *rows, const struct row *row, int source, const char *name, const char *what,
                      struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, source, buffer, &size);
    error_set(error, "column %.64s: \"%.*s\" %s", name, (int)(size < 48 ? size : 48), text, what);
    return row_wrap(rows, row, source, error);
}

/* A usable number; *missing: there is none. */
static bool get_number(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                       const struct row *row, int source, double *number, bool *missing, struct error *error)
{
    const struct column_reading reading = {.notation = &column->notation,
                                           .missing = &encoder->schema->missing,
                                           .has_marks = column->role != SCHEMA_TARGET};
    const enum number_kind kind = row_number(row, source, reading, number);
    *missing = kind == NUMBER_MISSING;
    if (kind == NUMBER_TEXT) {
        return say_field(rows, row, source, column->name,
                         "is not a number, as it was in training; correct it or leave the field empty", error);
    }
    if (kind == NUMBER_INFINITE || (kind == NUMBER_FINITE && fabs(*number) > FLT_MAX)) {
        return say_field(rows, row, source, column->name,
                         kind == NUMBER_INFINITE ? "is not finite; leave the field empty if it is missing"
                                                 : "is beyond float32; scale the column down",
                         error);
    }
    return true;
}

static inline float scaled(double number, double center, double scale)
{
    const double value = (number - center) / scale;
    return (float)(value > FLT_MAX ? FLT_MAX : value < -FLT_MAX ? -FLT_MAX : value);
}

static inline double bounded(double number, double low, double high)
{
    const double raised = number < low ? low : number;
    return raised > high ? high : raised;
}

/* Bins filled, and the share of the next; numbers beyond the outermost edges count as these. */
static float position_of(const double *edges, int count, double number)
{
    int bin = 0, behind = count - 1;
    if (!(number > edges[0])) {
        return 0;
    }
    if (number >= edges[behind]) {
        return (float)behind;
    }
    while (behind - bin > 1) {
        const int middle = (bin + behind) / 2;
        *(number >= edges[middle] ? &bin : &behind) = middle;
    }
    return (float)(bin + (number - edges[bin]) / (edges[bin + 1] - edges[bin]));
}

static inline __attribute__((always_inline)) void scale_neighbours(const struct encoder_numbers *numbers,
                                                                   const double *restrict from, float *restrict to)
{
    const double *centers = numbers->centers, *scales = numbers->scales, *lows = numbers->lows, *highs = numbers->highs;
    for (int i = 0; i < numbers->count; i++) {
        to[i] = scaled(bounded(from[i], lows[i], highs[i]), centers[i], scales[i]);
    }
}

#if defined(__x86_64__)
/* Two at once, with the same bits: most of the time for reading an array is spent here, in divisions. */
__attribute__((target("avx2"))) static void scale_wide(const struct encoder_numbers *numbers, const double *from,
                                                       float *to)
{
    scale_neighbours(numbers, from, to);
}
#endif

/* All numeric features of a plain row. */
static void add_numbers(const struct encoder_numbers *numbers, const double *row, float *restrict values)
{
    const double *centers = numbers->centers, *scales = numbers->scales;
    assert(values);
#if defined(__x86_64__)
    if (numbers->are_neighbours && numbers->is_wide) {
        scale_wide(numbers, row + numbers->from[0], values + numbers->to[0]);
        return;
    }
#endif
    if (numbers->are_neighbours) {
        scale_neighbours(numbers, row + numbers->from[0], values + numbers->to[0]);
        return;
    }
    for (int i = 0; i < numbers->count; i++) {
        const double number = bounded(row[numbers->from[i]], numbers->lows[i], numbers->highs[i]);
        values[numbers->to[i]] = scaled(number, centers[i], scales[i]);
    }
}

/* Those of them that have bins. */
static void add_positions(const struct encoder_numbers *numbers, const double *row, float *positions)
{
    for (int i = 0; i < numbers->count; i++) {
        const struct schema_column *column = numbers->columns[i];
        if (column->piece >= 0) {
            positions[column->piece] = position_of(column->edges, column->edge_count, row[numbers->from[i]]);
        }
    }
}

/*
 * A category's number. Categories that are numbers are the same however they are written: 7 is 7.0 is 7.00, as programs
 * between the data and a request write them differently.
 */
static int find_category(const struct dictionary *categories, const char *text, size_t size)
{
    static const char *const formats[] = {"%.15g", "%.17g", "%.1f", "%.2f", "%.3f"};
    int found = dictionary_find(categories, text, size);
    double number;
    if (found >= 0 || number_parse(text, size, &number) != NUMBER_FINITE) {
        return found;
    }
    for (size_t i = 0; found < 0 && i < sizeof formats / sizeof formats[0]; i++) {
        char other[400]; /* DBL_MAX with three decimals */
        double same;
        const int length = snprintf(other, sizeof other, formats[i], number);
        if (number_parse(other, (size_t)length, &same) == NUMBER_FINITE && same == number) {
            found = dictionary_find(categories, other, (size_t)length);
        }
    }
    return found;
}

/* The position of a category. */
static int32_t find_place(const struct encoder *encoder, const struct schema_column *column, const struct row *row,
                          int source)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, source, buffer, &size);
    if (number_is_missing(text, size) || reading_is_missing(&encoder->schema->missing, text, size)) {
        return column->place + (column->may_miss ? 1 + column->categories.count : 0);
    }
    return column->place + 1 + find_category(&column->categories, text, size);
}

/* One example, in a set; what the set lacks is NULL. */
struct encoded {
    float *values, *positions;
    int32_t *places;
};

static void put_place(const struct encoded *to, const struct schema_column *column, int32_t place)
{
    if (column->code >= 0) {
        assert(to->places);
        to->places[column->code] = place;
    }
}

/* The parts of a date. */
static bool add_date(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                     const struct row *row, int source, const struct encoded *to, struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    double time = 0, parts[DATE_PARTS];
    const char *text = row_text(row, source, buffer, &size);
    const bool missing = number_is_mark(text, size) || reading_is_missing(&encoder->schema->missing, text, size);
    if (!missing && !timestamp_read(text, size, column->dates, &time)) {
        return say_field(rows, row, source, column->name,
                         "is not a date as in training; correct it or leave the field empty", error);
    }
    timestamp_parts(time, parts);
    for (int i = 0; i < column->part_count; i++) {
        const struct schema_part *part = &column->parts[i];
        const double value = missing ? part->fill : parts[part->part];
        if (to->values) {
            to->values[column->input + i] = scaled(value, part->center, part->scale);
        }
        if (to->positions) {
            to->positions[column->piece + i] = position_of((double[]){part->low, part->high}, 2, value);
        }
    }
    put_place(to, column, missing ? column->place : -1);
    return true;
}

static bool add_feature(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                        const struct row *row, int source, const struct encoded *to, struct error *error)
{
    if (column->kind == SCHEMA_CATEGORY) {
        put_place(to, column, find_place(encoder, column, row, source));
        return true;
    }
    if (column->kind == SCHEMA_DATE) {
        return add_date(encoder, column, rows, row, source, to, error);
    }
    double number = 0;
    bool missing;
    if (!get_number(encoder, column, rows, row, source, &number, &missing, error)) {
        return false;
    }
    const double value = missing ? column->fill : bounded(number, column->low, column->high);
    if (to->values) {
        to->values[column->input] = scaled(value, column->center, column->scale);
    }
    if (to->positions && column->piece >= 0) {
        to->positions[column->piece] = position_of(column->edges, column->edge_count, value);
    }
    put_place(to, column, missing ? column->place : -1);
    return true;
}

static const char *class_text(const struct encoder *encoder, const struct row *row, int source,
                              char buffer[ROW_NUMBER_TEXT], size_t *size)
{
    return (encoder->classes_are_numbers ? row_class : row_text)(row, source, buffer, size);
}

static bool add_label(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                      const struct row *row, int source, int32_t *label, struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = class_text(encoder, row, source, buffer, &size);
    *label = dictionary_find(&column->categories, text, size);
    if (*label >= 0) {
        return true;
    }
    return say_field(rows, row, source, column->name,
                     number_is_missing(text, size) ? "is no target; remove the row, or fill it in"
                                                   : "is a class that training never saw; correct it, or train with it",
                     error);
}

bool encoder_knows_class(const struct encoder *encoder, const struct row *row, char *name, size_t room)
{
    const struct schema *schema = encoder->schema;
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    for (int i = 0; schema->task == TASK_CLASS && i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (column->role != SCHEMA_TARGET || encoder->sources[i] < 0) {
            continue;
        }
        const char *text = class_text(encoder, row, encoder->sources[i], buffer, &size);
        if (size > 0 && dictionary_find(&column->categories, text, size) < 0) {
            if (name[0] == '\0') {
                snprintf(name, room, "%.*s", (int)(size < room ? size : room - 1), text);
            }
            return false;
        }
    }
    return true;
}

static bool add_target(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                       const struct row *row, int source, float *value, struct error *error)
{
    double number = 0;
    bool missing;
    if (!get_number(encoder, column, rows, row, source, &number, &missing, error)) {
        return false;
    }
    if (missing) {
        return say_field(rows, row, source, column->name, "is no target; remove the row, or fill it in", error);
    }
    if (encoder->schema->task == TASK_FLAGS && number != 0 && number != 1) {
        return say_field(rows, row, source, column->name, "is neither 0 nor 1, as the targets of training are", error);
    }
    *value = scaled(number, column->center, column->scale);
    return true;
}

static bool add_weight(const struct encoder *encoder, const struct schema_column *column, const struct rows *rows,
                       const struct row *row, int source, float *weight, struct error *error)
{
    double number = 1;
    bool missing = true;
    if (source >= 0 && !get_number(encoder, column, rows, row, source, &number, &missing, error)) {
        return false;
    }
    if (source >= 0 && (missing || number < 0)) {
        return say_field(rows, row, source, column->name, "is no weight; weights are 0 or more", error);
    }
    *weight = (float)number;
    return true;
}

/* The dense inputs used for computing, ones and all. */
static void copy_inputs(const struct schema *schema, const float *values, const int32_t *places, float *targets)
{
    memset(targets, 0, (size_t)schema->inputs * sizeof *targets);
    if (schema->numbers > 0) {
        memcpy(targets, values, (size_t)schema->numbers * sizeof *targets);
    }
    for (int i = 0; i < schema->codes; i++) {
        if (places[i] >= 0) {
            targets[schema->numbers + places[i]] = 1;
        }
    }
}

bool encoder_add(const struct encoder *encoder, const struct rows *rows, const struct row *row,
                 struct examples *examples, int index, struct error *error)
{
    const struct schema *schema = encoder->schema;
    const struct examples one = examples_part(examples, index, 1);
    const struct encoded to = {.values = one.values, .positions = one.positions, .places = one.places};
    float *targets = examples->target_values ? examples->target_values + (size_t)index * (size_t)schema->targets : NULL;
    bool done = true;
    if (examples->weights) {
        examples->weights[index] = 1; /* unless a column says otherwise */
    }
    const bool is_plain = row->plain > 0 && encoder->numbers.count > 0 && schema->missing.count == 0;
    if (is_plain) {
        if (to.values) {
            add_numbers(&encoder->numbers, row->numbers, to.values);
        }
        if (to.positions) {
            add_positions(&encoder->numbers, row->numbers, to.positions);
        }
    }
    for (int i = is_plain ? encoder->first_other : 0; done && i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        const int source = encoder->sources[i];
        if (column->role == SCHEMA_FEATURE && column->kind == SCHEMA_NUMBER && is_plain) {
            put_place(&to, column, -1);
        } else if (column->role == SCHEMA_FEATURE) {
            done = add_feature(encoder, column, rows, row, source, &to, error);
        } else if (column->role == SCHEMA_TARGET && examples->labels) {
            done = add_label(encoder, column, rows, row, source, &examples->labels[index], error);
        } else if (column->role == SCHEMA_TARGET && targets) {
            done = add_target(encoder, column, rows, row, source, &targets[column->input], error);
        } else if (column->role == SCHEMA_WEIGHT && examples->weights) {
            done = add_weight(encoder, column, rows, row, source, &examples->weights[index], error);
        }
    }
    if (done && targets && schema->task == TASK_INPUTS) {
        copy_inputs(schema, to.values, to.places, targets);
    }
    return done;
}
