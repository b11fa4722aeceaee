/*
 * Numbers are only parsed and summed; distinct values are counted only for texts and possible classes. A column that
 * turns out to differ from its first rows is surveyed a second time.
 */
#include "worker/data/table/survey.h"

#include <ctype.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/text/suggest.h"

enum {
    STRIP = 4,              /* neighbouring columns summed side by side */
    MOST_VALUES = 1 << 20,  /* distinct values counted in a column */
    MOST_BYTES = 1 << 26,   /* of the values of all columns */
    VALUE_BYTES = 48,       /* of a value in addition to its text */
    SAMPLE_BYTES = 1 << 25, /* of the numbers from which quantiles are computed */
    MOST_COMPARED = 64,     /* columns compared with the target, to find leaks */
    MOST_CLASSES_SURE = 20, /* this few integers are classes */
    MOST_CLASSES = 1000,    /* more are not... */
    ROWS_PER_CLASS = 20,    /* ...unless each has this many rows */
    MOST_IDS = 1000,        /* more texts, each in hardly more than one row, are row names */
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
    return error_set(error, "data.%s: %s has no column %.64s among its %d%s%.64s%s", key, rows_name(rows), name,
                     rows_columns(rows), suggestion.best ? "; did you mean " : "; `trainer data info` lists them",
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

static bool learns_inputs(const struct config_data *data)
{
    return data->target.count == 1 && strcmp(data->target.items[0], "inputs") == 0;
}

static bool check_config(const struct rows *rows, const struct config_data *data, struct error *error)
{
    return (learns_inputs(data) || check_names(rows, "target", &data->target, error)) &&
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
    if (!learns_inputs(data) && is_listed(&data->target, rows, column)) {
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

static void forget(struct survey *survey)
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
    if (rows_left_out(rows)[0] != '\0') {
        log_warning("%s; it is left out", rows_left_out(rows));
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
    forget(survey);
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
    if (kind == NUMBER_INFINITE) {
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

/* Counts a value: false if out of memory. */
static bool count_value(struct survey *survey, struct survey_column *column, const struct row *row, int index)
{
    char buffer[ROW_NUMBER_TEXT];
    size_t size;
    const char *text = row_text(row, index, buffer, &size);
    const int before = column->values.count;
    if ((before >= MOST_VALUES || survey->bytes >= MOST_BYTES) && dictionary_find(&column->values, text, size) < 0) {
        stop_counting(survey, column);
        return true;
    }
    const bool done = dictionary_add(&column->values, text, size) >= 0;
    if (column->values.count > before) {
        column->bytes += size + VALUE_BYTES;
        survey->bytes += size + VALUE_BYTES;
    }
    return done;
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
    column->commas += kind == NUMBER_TEXT && is_with_decimal_comma(text, size);
    column->infinite += kind != NUMBER_TEXT;
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

/* *kept: where the number goes if the row is in the sample; otherwise NULL. */
static bool add_value(struct survey *survey, const struct rows *rows, const struct row *row, int index, double *kept)
{
    struct survey_column *column = &survey->columns[index];
    double number = 0;
    const enum number_kind kind = row_number(row, index, &number);
    if (kind == NUMBER_MISSING) {
        column->missing++;
        return true;
    }
    if (is_fault(kind, number)) {
        note_fault(column, rows, row, index, kind);
        column->is_collected |= kind == NUMBER_TEXT && column->numbers.count + column->numbers.in_chunk == 0;
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
            !add_value(survey, rows, row, i, kept ? &kept[i] : NULL)) {
            return error_set(error, "%s: out of memory for the values of column %.64s", rows_name(rows), column->name);
        }
    }
    return true;
}

/* --- rows of plain numbers --- */

/* Adjacent columns; what moments_add and add_value do, in the same order for each. */
struct strip {
    double shift[STRIP], sum[STRIP], squares[STRIP], minimum[STRIP], maximum[STRIP];
};

static inline __attribute__((always_inline)) void add_rows(struct strip *strip, const double *numbers, size_t stride,
                                                           const int *places, int count, int width)
{
    struct strip sums = *strip;
    for (int i = 0; i < count; i++) {
        const double *row = numbers + (size_t)places[i] * stride;
        for (int j = 0; j < width; j++) {
            const double difference = row[j] - sums.shift[j];
            sums.sum[j] += difference;
            sums.squares[j] += difference * difference;
            sums.minimum[j] = row[j] < sums.minimum[j] ? row[j] : sums.minimum[j];
            sums.maximum[j] = row[j] > sums.maximum[j] ? row[j] : sums.maximum[j];
        }
    }
    *strip = sums;
}

/* Columns [first, first + width), those before `begin` being done already. Every chunk ends with the rows. */
static void add_strip(struct survey *survey, int first, int begin, int width, const double *numbers, const int *places,
                      int count)
{
    struct strip strip = {0};
    struct survey_column *columns = survey->columns + first;
    const double *at = numbers + first;
    for (int i = 0; i < width; i++) {
        const struct moments *moments = &columns[i].numbers;
        const bool begins = moments->in_chunk == 0;
        strip.shift[i] = begins ? at[(size_t)places[0] * (size_t)survey->count + (size_t)i] : moments->shift;
        strip.sum[i] = begins ? 0 : moments->sum;
        strip.squares[i] = begins ? 0 : moments->sum_squares;
        strip.minimum[i] = columns[i].minimum;
        strip.maximum[i] = columns[i].maximum;
    }
    if (width == STRIP) {
        add_rows(&strip, at, (size_t)survey->count, places, count, STRIP);
    } else {
        add_rows(&strip, at, (size_t)survey->count, places, count, width);
    }
    for (int i = begin - first; i < width; i++) {
        struct survey_column *column = &columns[i];
        if (!column->is_summed) {
            continue;
        }
        column->numbers.shift = strip.shift[i];
        column->numbers.sum = strip.sum[i];
        column->numbers.sum_squares = strip.squares[i];
        column->minimum = strip.minimum[i];
        column->maximum = strip.maximum[i];
        column->numbers.in_chunk += count;
        if (column->numbers.in_chunk == MOMENTS_CHUNK) {
            moments_settle(&column->numbers);
        }
    }
}

/* Rows until a column's chunk is full. */
static int rows_of_chunks(const struct survey *survey, int most)
{
    for (int i = 0; i < survey->count; i++) {
        const int left = MOMENTS_CHUNK - survey->columns[i].numbers.in_chunk;
        most = survey->columns[i].is_summed && left < most ? left : most;
    }
    return most;
}

static void sum_columns(struct survey *survey, const double *numbers, const int *places, int count)
{
    for (int done = 0, some; done < count; done += some) {
        some = rows_of_chunks(survey, count - done);
        for (int i = 0; i < survey->count; i += STRIP) {
            const bool fits = i + STRIP <= survey->count;
            const int first = fits || survey->count < STRIP ? i : survey->count - STRIP;
            const int width = survey->count < STRIP ? survey->count : STRIP;
            add_strip(survey, first, i, width, numbers, places + done, some);
        }
    }
}

static void find_fractions(struct survey *survey, const double *numbers, const int *places, int count)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        for (int j = 0; j < count && column->is_integer && column->is_summed; j++) {
            const double number = numbers[(size_t)places[j] * (size_t)survey->count + (size_t)i];
            column->is_integer = number == trunc(number);
        }
    }
}

static void compare_plain(struct survey *survey, const double *row)
{
    for (int i = 0; i < survey->count; i++) {
        for (uint64_t left = survey->columns[i].same; left != 0; left &= left - 1) {
            const int target = __builtin_ctzll(left);
            if (row[i] != row[target]) {
                survey->columns[i].same &= ~((uint64_t)1 << target);
            }
        }
    }
}

static void keep_plain(struct survey *survey, const double *row)
{
    double *kept = sample_add(&survey->sample);
    for (int i = 0; kept && i < survey->count; i++) {
        const bool counts = survey->columns[i].use != USE_NOTHING || survey->counts_all;
        kept[i] = counts ? row[i] : (double)NAN;
    }
}

/* Columns that are not summed: their values are counted one by one. */
static bool collect_plain(struct survey *survey, const struct rows *rows, const struct row *row, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        if (!column->is_summed && (column->use != USE_NOTHING || survey->counts_all) &&
            !add_value(survey, rows, row, i, NULL)) {
            return error_set(error, "%s: out of memory for the values of column %.64s", rows_name(rows), column->name);
        }
    }
    return true;
}

/* The work for each single row, if any. */
static bool add_singly(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                       int count, struct error *error)
{
    bool compares = false, collects = false;
    const bool keeps = survey->sample.capacity > 0;
    for (int i = 0; i < survey->count; i++) {
        compares |= survey->columns[i].same != 0;
        collects |= survey->columns[i].is_collected;
    }
    for (int i = 0; (compares || collects || keeps) && i < count; i++) {
        const struct row one = row_behind(row, places[i]);
        if (keeps) {
            keep_plain(survey, one.numbers);
        }
        if (compares) {
            compare_plain(survey, one.numbers);
        }
        if (collects && !collect_plain(survey, rows, &one, error)) {
            return false;
        }
    }
    return true;
}

bool survey_add_plain(struct survey *survey, const struct rows *rows, const struct row *row, const int *places,
                      int count, struct error *error)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        column->is_summed = !column->is_collected && (column->use != USE_NOTHING || survey->counts_all);
    }
    survey->rows += count;
    if (!add_singly(survey, rows, row, places, count, error)) {
        return false;
    }
    sum_columns(survey, row->numbers, places, count);
    find_fractions(survey, row->numbers, places, count);
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
        if (must_be && kind == NUMBER_MISSING) {
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
    if (column->is_category || column->texts + column->infinite == 0 || (numbers == 0 && column->infinite == 0)) {
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
        forget(survey);
    }
    return true;
}

/* --- the schema --- */

static bool survey_is_class(const struct survey_column *column, int64_t rows)
{
    const int count = column->values.count;
    if (column->is_category || column->numbers.count == 0) {
        return true;
    }
    return column->is_integer && !column->has_too_many &&
           (count <= MOST_CLASSES_SURE || (count <= MOST_CLASSES && (int64_t)count * ROWS_PER_CLASS <= rows));
}

static bool is_text(const struct survey_column *column)
{
    return column->is_category || column->texts > 0;
}

static bool is_flag(const struct survey_column *column)
{
    return !is_text(column) && column->is_integer && column->minimum >= 0 && column->maximum <= 1;
}

/* By median and quartiles, like scikit-learn's RobustScaler. */
static bool find_robust_scale(struct schema_column *to, const struct survey *survey, int column)
{
    static const double shares[] = {0.25, 0.5, 0.75};
    double quantiles[3];
    if (!sample_quantile(&survey->sample, column, shares, 3, quantiles)) {
        return false;
    }
    if (!isnan(quantiles[1])) {
        to->fill = to->center = quantiles[1];
        to->scale = quantiles[2] > quantiles[0] ? quantiles[2] - quantiles[0] : 1;
    }
    return true;
}

static void find_scale(struct schema_column *to, const struct survey_column *from, enum table_scaling scaling)
{
    const double count = (double)from->numbers.count;
    to->fill = from->numbers.count > 0 ? from->numbers.mean : 0;
    if (from->numbers.count == 0 || from->minimum == from->maximum || scaling == SCALING_NONE) {
        to->center = scaling == SCALING_NONE ? 0 : to->fill;
        return;
    }
    if (scaling == SCALING_MINMAX) {
        to->center = from->minimum;
        to->scale = from->maximum - from->minimum;
    } else {
        to->center = from->numbers.mean;
        to->scale = sqrt(from->numbers.squares / count);
    }
}

/* A text that is different in nearly every row: a name, not a category. */
static bool is_id(const struct survey_column *column, int64_t rows)
{
    return column->texts > 0 && !column->is_category &&
           (column->has_too_many || (column->values.count > MOST_IDS && 2 * (int64_t)column->values.count > rows));
}

/* Columns that are useless, or too good. */
static void warn_of(const struct survey_column *column, const struct survey *survey, const char *name)
{
    const bool is_constant = is_text(column) ? column->values.count < 2 : column->minimum == column->maximum;
    if (is_constant && column->missing == 0) {
        log_warning("%s: column %.64s has only one value and teaches nothing", name, column->name);
    } else if (column->same != 0) {
        log_warning("%s: column %.64s equals the target %.64s in every row, which the model will copy; if it is not "
                    "known when predicting, leave it out (--ignore=%.64s)",
                    name, column->name, survey->columns[__builtin_ctzll(column->same)].name, column->name);
    }
}

/* As categories they would be the more useless the more there are. */
static void warn_of_commas(const struct survey_column *column, const char *name)
{
    if (column->commas > 0 && 2 * column->commas > column->texts) {
        log_warning(
            "%s: column %.64s seems to hold numbers with a decimal comma, which are texts here; write them with "
            "a point (pandas.read_csv(..., decimal=\",\").to_csv())",
            name, column->name);
    }
}

static bool add_feature(struct schema *schema, struct survey_column *column, const struct survey *survey,
                        const struct config_data *data, const char *name)
{
    warn_of_commas(column, name);
    if (column->missing == survey->rows) {
        log_warning("%s: column %.64s is empty; it is left out", name, column->name);
        return true;
    }
    if (is_id(column, survey->rows)) {
        log_warning(
            "%s: column %.64s has a different text in nearly every row; it is left out (--categorical=%.64s keeps it)",
            name, column->name, column->name);
        return true;
    }
    const bool is_category = is_text(column);
    warn_of(column, survey, name);
    struct schema_column *added =
        schema_add(schema, column->name, SCHEMA_FEATURE, is_category ? SCHEMA_CATEGORY : SCHEMA_NUMBER);
    if (!added) {
        return false;
    }
    added->may_miss = column->missing > 0;
    if (is_category) {
        added->categories = column->values;
        column->values = (struct dictionary){.count = 0};
        return dictionary_settle(&added->categories, data->category_min);
    }
    find_scale(added, column, data->scaling);
    return data->scaling != SCALING_ROBUST || find_robust_scale(added, survey, (int)(column - survey->columns));
}

static bool add_target(struct schema *schema, struct survey_column *column, const char *name)
{
    const bool is_class = schema->task == TASK_CLASS;
    warn_of_commas(column, name);
    struct schema_column *added =
        schema_add(schema, column->name, SCHEMA_TARGET, is_class ? SCHEMA_CATEGORY : SCHEMA_NUMBER);
    if (!added) {
        return false;
    }
    if (is_class) {
        added->categories = column->values;
        column->values = (struct dictionary){.count = 0};
        return dictionary_settle(&added->categories, 1);
    }
    if (schema->task == TASK_NUMBERS) {
        find_scale(added, column, SCALING_STANDARD);
    }
    return true;
}

/* A summary of the targets. */
struct targets {
    const struct survey_column *first;
    int count, flags, texts;
};

static struct targets look_at_targets(const struct survey *survey)
{
    struct targets targets = {.count = 0};
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        if (column->use == USE_TARGET) {
            targets.first = targets.first ? targets.first : column;
            targets.count++;
            targets.flags += is_flag(column);
            targets.texts += is_text(column);
        }
    }
    return targets;
}

/* The configured loss, or the one that suits the targets. */
static enum schema_task task_of(const struct targets *targets, int64_t rows, enum loss_kind loss)
{
    switch (loss) {
    case LOSS_SOFTMAX:
        return TASK_CLASS;
    case LOSS_SIGMOID:
        return TASK_FLAGS;
    case LOSS_MSE:
    case LOSS_MAE:
    case LOSS_HUBER:
    case LOSS_QUANTILE:
        return TASK_NUMBERS;
    case LOSS_AUTO:
        break;
    }
    if (targets->count == 1) {
        return survey_is_class(targets->first, rows) ? TASK_CLASS : TASK_NUMBERS;
    }
    return targets->flags == targets->count ? TASK_FLAGS : TASK_NUMBERS;
}

static bool check_task(const struct targets *targets, enum schema_task task, const char *name, struct error *error)
{
    const struct survey_column *first = targets->first;
    if (task == TASK_CLASS && targets->count > 1) {
        return error_set(error, "data.target: loss softmax learns one target, and %d are named", targets->count);
    }
    if (task == TASK_CLASS && (first->has_too_many || first->values.count > CONFIG_MAX_WIDTH)) {
        return error_set(error, "%s: the target %.64s has more than %d classes; is it a number (--loss=mse)?", name,
                         first->name, CONFIG_MAX_WIDTH);
    }
    if (task == TASK_CLASS && first->values.count < 2) {
        return error_set(error, "%s: the target %.64s has %d value%s; there is nothing to learn with fewer than 2",
                         name, first->name, first->values.count, first->values.count == 1 ? "" : "s");
    }
    if (task == TASK_FLAGS && targets->flags < targets->count) {
        return error_set(error, "%s: loss sigmoid needs targets of 0 and 1, and not all are", name);
    }
    if (task == TASK_NUMBERS && targets->texts > 0) {
        return error_set(error, "%s: a target is text, and this loss (or several targets) needs numbers", name);
    }
    return true;
}

static bool choose_task(const struct survey *survey, const struct config *config, const char *name,
                        enum schema_task *task, struct error *error)
{
    const struct targets targets = look_at_targets(survey);
    const enum loss_kind loss = config->train.loss;
    if (learns_inputs(&config->data)) {
        *task = TASK_INPUTS;
        return (loss != LOSS_SOFTMAX && loss != LOSS_SIGMOID) ||
               error_set(error, "data.target: loss %s cannot learn the inputs; leave it out, or use mse",
                         config_loss_name(loss));
    }
    if (targets.count == 0) {
        return error_set(error, "%s: is a table, but the column to learn is not set; name it with --target", name);
    }
    *task = task_of(&targets, survey->rows, loss);
    return check_task(&targets, *task, name, error);
}

/* Adds the columns of one use. */
static bool add_columns(struct schema *schema, struct survey *survey, enum survey_use use, const struct config *config,
                        const char *name)
{
    for (int i = 0; i < survey->count; i++) {
        struct survey_column *column = &survey->columns[i];
        bool done = true;
        if (column->use == use) {
            done = use == USE_FEATURE  ? add_feature(schema, column, survey, &config->data, name)
                   : use == USE_TARGET ? add_target(schema, column, name)
                                       : !!schema_add(schema, column->name, SCHEMA_WEIGHT, SCHEMA_NUMBER);
        }
        if (!done) {
            return false;
        }
    }
    return true;
}

bool survey_schema(struct survey *survey, const struct config *config, const char *name, struct schema *schema,
                   struct error *error)
{
    *schema = (struct schema){.count = 0};
    bool done = choose_task(survey, config, name, &schema->task, error);
    if (done) {
        done = add_columns(schema, survey, USE_FEATURE, config, name) &&
               add_columns(schema, survey, USE_TARGET, config, name) &&
               add_columns(schema, survey, USE_WEIGHT, config, name);
        done = done || error_set(error, "%s: out of memory for its columns", name);
        done = done && (schema_finish(schema, error) || error_wrap(error, "%s", name));
    }
    if (!done) {
        schema_free(schema);
    }
    return done;
}
