/*
 * Numbers are only parsed and summed; distinct values are counted only for texts and possible classes. A column that
 * turns out to differ from its first rows is surveyed a second time.
 */
#include "worker/data/table/survey.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text/suggest.h"

enum {
    MOST_VALUES = 1 << 20,  /* distinct values counted in a column */
    MOST_BYTES = 1 << 26,   /* of the values of all columns */
    VALUE_BYTES = 48,       /* of a value in addition to its text */
    SAMPLE_BYTES = 1 << 25, /* of the numbers from which quantiles are computed */
    MOST_COMPARED = 64,     /* columns compared with the target, to find leaks */
    TEXT_SHARE = 10,        /* a tenth of texts among numbers makes categories */
};

/* --- beginning --- */

static bool is_listed(const struct string_list *list, const struct rows *rows, int column)
{
    for (int i = 0; i < list->count; i++) {
        if (rows_find_column(rows, list->items[i]) == column) {
            return true;
        }
    }
    return false;
}

/* "a, b, c, ..." */
static void list_columns(const struct rows *rows, char *text, size_t size)
{
    enum { MOST_LISTED = 12 };
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < rows_columns(rows) && used < size; i++) {
        const bool is_more = i == MOST_LISTED;
        used += (size_t)snprintf(text + used, size - used, "%s%.32s", i > 0 ? ", " : "",
                                 is_more ? "..." : rows_column_name(rows, i));
        if (is_more) {
            return;
        }
    }
}

/* Names in the config must be columns. */
static bool check_name(const struct rows *rows, const char *key, const char *name, struct error *error)
{
    if (name[0] == '\0' || rows_find_column(rows, name) >= 0) {
        return true;
    }
    struct suggestion suggestion = {.word = name};
    for (int i = 0; i < rows_columns(rows); i++) {
        suggest_offer(&suggestion, rows_column_name(rows, i));
    }
    char names[400];
    list_columns(rows, names, sizeof names);
    return error_set(error, "data.%s: %s has no column %.64s among its %d (%s)%s%.64s%s", key, rows_name(rows), name,
                     rows_columns(rows), names, suggestion.best ? "; did you mean " : "",
                     suggestion.best ? suggestion.best : "", suggestion.best ? "?" : "");
}

static bool check_names(const struct rows *rows, const char *key, const struct string_list *list, struct error *error)
{
    for (int i = 0; i < list->count; i++) {
        if (!check_name(rows, key, list->items[i], error)) {
            return false;
        }
    }
    return true;
}

bool survey_learns_inputs(const struct config_data *data)
{
    return data->target.count == 1 && strcmp(data->target.items[0], "inputs") == 0;
}

static bool check_config(const struct rows *rows, const struct config_data *data, struct error *error)
{
    return (survey_learns_inputs(data) || check_names(rows, "target", &data->target, error)) &&
           check_names(rows, "features", &data->features, error) && check_names(rows, "ignore", &data->ignore, error) &&
           check_names(rows, "categorical", &data->categorical, error) &&
           check_name(rows, "weight", data->weight, error) && check_name(rows, "group", data->group, error) &&
           check_name(rows, "time", data->time, error);
}

static bool is_column(const struct rows *rows, const char *name, int column)
{
    return name[0] != '\0' && rows_find_column(rows, name) == column;
}

static enum survey_use use_of(const struct rows *rows, int column, const struct config_data *data)
{
    if (is_column(rows, data->weight, column)) {
        return USE_WEIGHT;
    }
    if (!survey_learns_inputs(data) && is_listed(&data->target, rows, column)) {
        return USE_TARGET;
    }
    if (data->features.count > 0) {
        return is_listed(&data->features, rows, column) ? USE_FEATURE : USE_NOTHING;
    }
    const bool is_of_split = is_column(rows, data->group, column) || is_column(rows, data->time, column);
    return is_listed(&data->ignore, rows, column) || is_of_split ? USE_NOTHING : USE_FEATURE;
}

/* Are a column's values counted from the first row on? */
static bool is_collected(const struct survey *survey, const struct survey_column *column)
{
    return column->is_category || survey->counts_all ||
           (column->use == USE_TARGET && (survey->loss == LOSS_AUTO || survey->loss == LOSS_SOFTMAX));
}

void survey_forget(struct survey *survey)
{
    survey->rows = 0;
    survey->bytes = 0;
    sample_clear(&survey->sample);
    uint64_t targets = 0;
    for (int i = 0; i < survey->count && i < MOST_COMPARED; i++) {
        targets |= (uint64_t)(survey->columns[i].use == USE_TARGET) << i;
    }
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        dictionary_free(&column->values);
        *column = (struct survey_column){.name = column->name,
                                         .use = column->use,
                                         .is_category = column->is_category,
                                         .is_number = column->is_number,
                                         .is_collected = is_collected(survey, column),
                                         .is_integer = true,
                                         .same = column->use == USE_FEATURE ? targets : 0,
                                         .minimum = INFINITY,
                                         .maximum = -INFINITY};
    }
}

bool survey_begin(struct survey *survey, const struct rows *rows, const struct config *config, bool counts_all,
                  struct error *error)
{
    const int count = rows_columns(rows);
    *survey = (struct survey){.counts_all = counts_all, .loss = config->train.loss};
    for (int i = 0; rows_left_out(rows, i)[0] != '\0'; i++) {
        log_warning("%s; it is left out", rows_left_out(rows, i));
    }
    if (!check_config(rows, &config->data, error)) {
        return false;
    }
    survey->columns = calloc((size_t)count, sizeof *survey->columns);
    if (!survey->columns) {
        return error_set(error, "%s: out of memory for %d columns", rows_name(rows), count);
    }
    for (int i = 0; i < count; i++) {
        struct survey_column *column = &survey->columns[i];
        column->name = strdup(rows_column_name(rows, i));
        if (!column->name) {
            break;
        }
        survey->count++;
        column->use = use_of(rows, i, &config->data);
        column->is_category = is_listed(&config->data.categorical, rows, i);
    }
    survey_forget(survey);
    if (config->data.scaling == SCALING_ROBUST && !sample_create(&survey->sample, count, SAMPLE_BYTES)) {
        return error_set(error, "%s: out of memory for the quantiles of %d columns", rows_name(rows), count);
    }
    return survey->count == count || error_set(error, "%s: out of memory for %d columns", rows_name(rows), count);
}

void survey_free(struct survey *survey)
{
    for (int i = 0; i < survey->count; i++) {
        free(survey->columns[i].name);
        dictionary_free(&survey->columns[i].values);
    }
    free(survey->columns);
    sample_free(&survey->sample);
    *survey = (struct survey){.count = 0};
}

/* --- rows --- */

static bool say_text(const struct rows *rows, const struct row *row, int column, enum number_kind kind,
                     struct error *error)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, column, buffer, &size);
    const char *name = rows_column_name(rows, column);
    if (kind == NUMBER_MISSING) {
        error_set(
            error,
            "column %.64s: \"%.*s\" is no target among numbers; fill it in, remove the row, or learn each value as "
            "a class (--categorical=%.64s); --max_bad_records=N skips N such rows",
            name, (int)(size < 32 ? size : 32), text, name);
    } else if (kind == NUMBER_INFINITE) {
        error_set(error, "column %.64s: %.*s is not finite; leave the field empty if it is missing", name,
                  (int)(size < 32 ? size : 32), text);
    } else if (kind == NUMBER_FINITE) {
        error_set(error, "column %.64s: %.*s is beyond float32; scale the column down", name,
                  (int)(size < 32 ? size : 32), text);
    } else {
        error_set(error,
                  "column %.64s: \"%.*s\" is not a number, as others in it are; correct it, leave the field empty, or "
                  "name the column with --categorical; --max_bad_records=N skips N such rows",
                  name, (int)(size < 32 ? size : 32), text);
    }
    return row_wrap(rows, row, column, error);
}

static bool is_fault(enum number_kind kind, double number)
{
    return kind == NUMBER_TEXT || kind == NUMBER_INFINITE || (kind == NUMBER_FINITE && fabs(number) > FLT_MAX);
}

/*
 * Too many values. If that already determines what the column is (a text without which the model does better, a target
 * that is no class), they are discarded.
 */
static void stop_counting(struct survey *survey, struct survey_column *column)
{
    column->has_too_many = true;
    if (column->is_category || survey->counts_all || survey->loss == LOSS_SOFTMAX) {
        return;
    }
    column->is_collected = false;
    survey->bytes -= column->bytes;
    column->bytes = 0;
    dictionary_free(&column->values);
}

bool survey_count(struct survey *survey, struct survey_column *column, const char *text, size_t size, int64_t times)
{
    const int before = column->values.count;
    if ((before >= MOST_VALUES || survey->bytes >= MOST_BYTES) && dictionary_find(&column->values, text, size) < 0) {
        stop_counting(survey, column);
        return true;
    }
    const int number = dictionary_add(&column->values, text, size);
    if (number < 0) {
        return false;
    }
    column->values.entries[number].count += times - 1;
    if (column->values.count > before) {
        column->bytes += size + VALUE_BYTES;
        survey->bytes += size + VALUE_BYTES;
    }
    return true;
}

static bool count_value(struct survey *survey, struct survey_column *column, const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const bool is_class = column->use == USE_TARGET && !column->is_category;
    const char *text = (is_class ? row_class : row_text)(row, index, buffer, &size);
    return survey_count(survey, column, text, size, 1);
}

static bool is_with_decimal_comma(const char *text, size_t size)
{
    size_t at = size > 0 && (*text == '-' || *text == '+'), digits = 0, commas = 0;
    for (; at < size && (isdigit((unsigned char)text[at]) || (text[at] == ',' && digits > 0 && commas == 0)); at++) {
        commas += text[at] == ',';
        digits += text[at] != ',';
    }
    return at == size && commas == 1 && text[size - 1] != ',';
}

static void note_fault(struct survey_column *column, const struct rows *rows, const struct row *row, int index,
                       enum number_kind kind)
{
    struct error error;
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, index, buffer, &size);
    column->texts += kind == NUMBER_TEXT;
    column->marks += kind == NUMBER_MISSING;
    column->commas += kind == NUMBER_TEXT && is_with_decimal_comma(text, size);
    column->infinite += kind == NUMBER_INFINITE || kind == NUMBER_FINITE;
    if (column->first_text[0] == '\0') {
        say_text(rows, row, index, kind, &error);
        memcpy(column->first_text, error.text, sizeof column->first_text - 1);
        column->first_text[sizeof column->first_text - 1] = '\0';
    }
}

/* A number as target that has more integer values than there can be classes, or is not an integer, is not a class. */
static bool is_no_class(const struct survey_column *column)
{
    return column->use == USE_TARGET && (!column->is_integer || column->values.count > CONFIG_MAX_WIDTH) &&
           column->texts == 0;
}

static bool is_empty(const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    return !row->fields || (row_text(row, index, buffer, &size), size == 0);
}

bool survey_add_value(struct survey *survey, const struct rows *rows, const struct row *row, int index, double *kept)
{
    struct survey_column *column = &survey->columns[index];
    double number = 0;
    const enum number_kind kind = row_number(row, index, &number);
    const bool is_mark = kind == NUMBER_MISSING && column->use == USE_TARGET && !is_empty(row, index);
    if (kind == NUMBER_MISSING && !is_mark) {
        column->missing++;
        return true;
    }
    if (is_mark || is_fault(kind, number)) {
        note_fault(column, rows, row, index, kind);
        column->is_collected |=
            (is_mark || kind == NUMBER_TEXT) && column->numbers.count + column->numbers.in_chunk == 0;
    } else {
        moments_add(&column->numbers, number);
        if (kept) {
            *kept = number;
        }
        column->is_integer = column->is_integer && number == trunc(number);
        column->minimum = number < column->minimum ? number : column->minimum;
        column->maximum = number > column->maximum ? number : column->maximum;
    }
    if (column->is_collected && is_no_class(column)) {
        stop_counting(survey, column);
    }
    return !column->is_collected || count_value(survey, column, row, index);
}

static bool are_same(const struct row *row, int a, int b)
{
    char buffers[2][ROW_NUMBER_TEXT];
    size_t sizes[2];
    double left, right;
    const char *one = row_text(row, a, buffers[0], &sizes[0]), *other = row_text(row, b, buffers[1], &sizes[1]);
    return (sizes[0] == sizes[1] && memcmp(one, other, sizes[0]) == 0) ||
           (row_number(row, a, &left) == NUMBER_FINITE && row_number(row, b, &right) == NUMBER_FINITE && left == right);
}

/* The targets to which a feature is still equal. */
static void compare_with_targets(struct survey_column *column, const struct row *row, int index)
{
    for (uint64_t left = column->same; left != 0; left &= left - 1) {
        const int target = __builtin_ctzll(left);
        if (!are_same(row, index, target)) {
            column->same &= ~((uint64_t)1 << target);
        }
    }
}

bool survey_add(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    double *kept = survey->sample.capacity > 0 ? sample_add(&survey->sample) : NULL;
    survey->rows++;
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        if (kept) {
            kept[i] = (double)NAN;
        }
        if (column->same != 0) {
            compare_with_targets(column, row, i);
        }
        if ((column->use != USE_NOTHING || survey->counts_all) &&
            !survey_add_value(survey, rows, row, i, kept ? &kept[i] : NULL)) {
            return error_set(error, "%s: out of memory for the values of column %.64s", rows_name(rows), column->name);
        }
    }
    return true;
}

bool survey_accepts(const struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const bool must_be = column->use == USE_TARGET || column->use == USE_WEIGHT;
        if (column->use == USE_NOTHING || (!column->is_number && !must_be)) {
            continue;
        }
        double number = 0;
        const enum number_kind kind = row_number(row, i, &number);
        const bool is_mark = column->use == USE_TARGET && !column->is_number && !is_empty(row, i);
        if (must_be && kind == NUMBER_MISSING && !is_mark) {
            error_set(error, "column %.64s: is empty; a row needs its %s: fill it in, or remove the row", column->name,
                      column->use == USE_TARGET ? "target" : "weight");
            return row_wrap(rows, row, i, error);
        }
        if ((column->is_number || column->use == USE_WEIGHT) && is_fault(kind, number)) {
            return say_text(rows, row, i, kind, error);
        }
    }
    return true;
}

/* --- after the rows --- */

/* Text among numbers: categories, or errors? */
static bool decide_mixed(struct survey_column *column, bool skips_faults, bool *again, struct error *error)
{
    const int64_t numbers = column->numbers.count;
    const int64_t faults = column->texts + column->infinite + column->marks;
    if (column->is_category || faults == 0 || (numbers == 0 && column->infinite == 0)) {
        return true;
    }
    if (column->texts > 0 && TEXT_SHARE * column->texts >= numbers + column->texts) {
        column->is_category = *again = true;
        return true;
    }
    if (!skips_faults) {
        return error_set(error, "%s", column->first_text);
    }
    column->is_number = *again = true;
    return true;
}

bool survey_settle(struct survey *survey, bool skips_faults, bool *again, struct error *error)
{
    *again = false;
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        moments_settle(&column->numbers);
        if (column->use != USE_NOTHING && !decide_mixed(column, skips_faults, again, error)) {
            return false;
        }
    }
    if (*again) {
        survey_forget(survey);
    }
    return true;
}
