/* Means and deviations are merged like those of chunks (moments.h). Texts of others are checked whole, then added. */
#include "worker/data/table/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/config/keys.h"
#include "base/text/json.h"
#include "worker/data/table/number.h"

static const double MOST_COUNT = 9007199254740992.0; /* 2^53 */

/* --- writing --- */

/* Printed so that it reads back as the same bits. */
static bool put_double(cJSON *object, const char *name, double number)
{
    char text[32];
    config_number_text(number, text);
    return cJSON_AddRawToObject(object, name, text);
}

static bool put_values(cJSON *object, const struct dictionary *values)
{
    cJSON *texts = cJSON_AddArrayToObject(object, "values"), *counts = cJSON_AddArrayToObject(object, "counts");
    bool done = texts && counts;
    for (int i = 0; done && i < values->count; i++) {
        done = cJSON_AddItemToArray(texts, cJSON_CreateString(dictionary_text(values, i))) &&
               cJSON_AddItemToArray(counts, cJSON_CreateNumber((double)values->entries[i].count));
    }
    return done;
}

/* The parts of dates: count, mean, squares, minimum and maximum of each. */
static bool put_dates(cJSON *object, const struct survey_dates *dates)
{
    cJSON *parts = dates ? cJSON_AddArrayToObject(object, "parts") : NULL;
    for (int i = 0; parts && i < DATE_PARTS; i++) {
        cJSON *part = cJSON_CreateObject();
        const struct moments *moments = &dates->parts[i];
        bool done = cJSON_AddNumberToObject(part, "numbers", (double)moments->count);
        if (moments->count > 0) {
            done = done && put_double(part, "mean", moments->mean) && put_double(part, "squares", moments->squares) &&
                   put_double(part, "minimum", dates->minimum[i]) && put_double(part, "maximum", dates->maximum[i]);
        }
        if (!cJSON_AddItemToArray(parts, part) || !done) {
            return false;
        }
    }
    return parts || !dates;
}

static cJSON *column_json(const struct survey_column *column)
{
    cJSON *object = cJSON_CreateObject();
    bool done = cJSON_AddStringToObject(object, "name", column->name) &&
                cJSON_AddBoolToObject(object, "is_category", column->is_category) &&
                cJSON_AddBoolToObject(object, "is_integer", column->is_integer) &&
                cJSON_AddBoolToObject(object, "has_too_many", column->has_too_many) &&
                cJSON_AddNumberToObject(object, "missing", (double)column->missing) &&
                cJSON_AddNumberToObject(object, "texts", (double)column->texts) &&
                cJSON_AddNumberToObject(object, "numbers", (double)column->numbers.count);
    if (column->numbers.count > 0) {
        done = done && put_double(object, "mean", column->numbers.mean) &&
               put_double(object, "squares", column->numbers.squares) &&
               put_double(object, "minimum", column->minimum) && put_double(object, "maximum", column->maximum);
    }
    char written[NOTATION_TEXT];
    notation_text(&column->notation, written);
    done = done && cJSON_AddStringToObject(object, "notation", written) &&
           cJSON_AddNumberToObject(object, "dates", column->dates) && put_dates(object, column->calendar) &&
           put_values(object, &column->values);
    if (!done) {
        cJSON_Delete(object);
        return NULL;
    }
    return object;
}

char *figures_text(const struct survey *survey)
{
    cJSON *root = cJSON_CreateObject();
    bool done = cJSON_AddNumberToObject(root, "rows", (double)survey->rows);
    cJSON *columns = done ? cJSON_AddArrayToObject(root, "columns") : NULL;
    for (int i = 0; columns && done && i < survey->count; i++) {
        done = survey->columns[i].use == USE_NOTHING || cJSON_AddItemToArray(columns, column_json(&survey->columns[i]));
    }
    char *text = columns && done ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

/* --- merging: twice over the text, first without changing anything --- */

struct merge {
    struct survey *survey;
    bool is_applied; /* the second time */
    bool is_short;   /* of memory */
    int64_t rows;    /* there */
    char *scratch;   /* room for any string of the text */
};

static bool is_true(struct json_value object, const char *name)
{
    return json_member(object, name).kind == JSON_TRUE;
}

static bool to_double(struct json_value value, double *number)
{
    return value.kind == JSON_NUMBER && number_parse(value.text, value.size, number) == NUMBER_FINITE;
}

static bool read_double(struct json_value object, const char *name, double *number)
{
    return to_double(json_member(object, name), number);
}

/* A count that can be added to earlier ones. */
static bool to_count(double number, int64_t before, int64_t *count)
{
    const bool fits = number >= 0 && number <= MOST_COUNT - (double)before && number == floor(number);
    *count = fits ? (int64_t)number : 0;
    return fits;
}

static bool read_count(struct json_value object, const char *name, int64_t before, int64_t *count)
{
    double number;
    return read_double(object, name, &number) && to_count(number, before, count);
}

static bool add_moments(const struct merge *merge, struct moments *to, double *least, double *most,
                        struct json_value object)
{
    struct moments moments = *to;
    int64_t count;
    double mean, squares, minimum, maximum;
    if (!read_count(object, "numbers", moments.count, &count)) {
        return false;
    }
    if (count == 0) {
        return true;
    }
    if (!read_double(object, "mean", &mean) || !read_double(object, "squares", &squares) || squares < 0 ||
        !read_double(object, "minimum", &minimum) || !read_double(object, "maximum", &maximum) || minimum > maximum) {
        return false;
    }
    const double n = (double)count, before = (double)moments.count, all = before + n;
    const double difference = mean - moments.mean;
    moments.squares += squares + difference * difference * before * n / all;
    moments.mean += difference * n / all;
    moments.count += count;
    if (merge->is_applied) {
        *to = moments;
        *least = fmin(*least, minimum);
        *most = fmax(*most, maximum);
    }
    return isfinite(moments.mean) && isfinite(moments.squares); /* numbers may be too far apart for these */
}

static bool add_numbers(const struct merge *merge, struct survey_column *column, struct json_value object)
{
    return add_moments(merge, &column->numbers, &column->minimum, &column->maximum, object);
}

static bool add_dates(const struct merge *merge, struct survey_dates *dates, struct json_value object)
{
    const struct json_value parts = json_member(object, "parts");
    struct json_walk walk = json_walk(parts);
    struct json_value part;
    int i = 0;
    for (; parts.kind == JSON_ARRAY && json_next(&walk, &part); i++) {
        if (!dates || i == DATE_PARTS ||
            !add_moments(merge, &dates->parts[i], &dates->minimum[i], &dates->maximum[i], part)) {
            return false;
        }
    }
    return !dates || i == DATE_PARTS;
}

/* Numbers and dates are written alike on all machines. */
static bool check_writing(const struct survey_column *column, struct json_value object, struct error *error)
{
    char here[NOTATION_TEXT];
    int64_t dates;
    notation_text(&column->notation, here);
    if (!json_is(json_member(object, "notation"), here)) {
        return error_set(
            error,
            "column %.64s: its numbers are written otherwise on some workers than here (%.64s); write them "
            "in one way, or set --decimal",
            column->name, here);
    }
    return (read_count(object, "dates", 0, &dates) && dates == (int64_t)column->dates) ||
           error_set(error, "column %.64s: its dates are of another order on some workers, or no dates; set --dates",
                     column->name);
}

/* The same as counting each row's value. */
static bool add_value(struct merge *merge, struct survey_column *column, struct json_value text, int64_t times)
{
    const bool has_stopped = column->has_too_many && !column->is_collected;
    if (!merge->is_applied || has_stopped) {
        return true;
    }
    const size_t size = json_unescape(text, merge->scratch);
    merge->is_short = !survey_count(merge->survey, column, merge->scratch, size, times);
    return !merge->is_short;
}

static bool add_values(struct merge *merge, struct survey_column *column, struct json_value object)
{
    const struct json_value values = json_member(object, "values"), counts = json_member(object, "counts");
    struct json_walk walk = json_walk(values), beside = json_walk(counts);
    struct json_value text, count;
    int64_t all = 0;
    while (json_next(&walk, &text)) {
        double number;
        int64_t times;
        if (text.kind != JSON_STRING || !json_next(&beside, &count) || !to_double(count, &number) ||
            !to_count(number, 0, &times) || times < 1 || times > merge->rows - all ||
            !add_value(merge, column, text, times)) {
            return false;
        }
        all += times;
    }
    return values.kind == JSON_ARRAY;
}

static bool is_text(bool is_category, int64_t texts)
{
    return is_category || texts > 0;
}

/* A column contains numbers or categories on all machines, or is empty. */
static bool kinds_agree(const struct survey_column *column, bool is_category, int64_t texts, int64_t numbers,
                        struct error *error)
{
    const bool has_any = column->is_category || column->texts + column->numbers.count > 0;
    if (!has_any || texts + numbers == 0 ||
        is_text(column->is_category, column->texts) == is_text(is_category, texts)) {
        return true;
    }
    return error_set(error,
                     "column %.64s has texts on some workers, and numbers alone on others; if these are categories, "
                     "name it with --categorical",
                     column->name);
}

static bool has_name(const struct merge *merge, const struct survey_column *column, struct json_value name,
                     struct error *error)
{
    const bool is_string = name.kind == JSON_STRING;
    const size_t size = is_string ? json_unescape(name, merge->scratch) : 0;
    merge->scratch[size] = '\0';
    return (is_string && strcmp(merge->scratch, column->name) == 0) ||
           error_set(error, "column %.64s is %.64s there; all workers' files have the same columns", column->name,
                     is_string ? merge->scratch : "nothing");
}

static bool add_column(struct merge *merge, struct survey_column *column, struct json_value object, struct error *error)
{
    const bool is_category = is_true(object, "is_category");
    int64_t missing, texts, numbers;
    if (!has_name(merge, column, json_member(object, "name"), error)) {
        return false;
    }
    if (!read_count(object, "missing", column->missing, &missing) ||
        !read_count(object, "texts", column->texts, &texts) ||
        !read_count(object, "numbers", column->numbers.count, &numbers)) {
        return error_set(error, "column %.64s: its figures are damaged, or too many", column->name);
    }
    if (!kinds_agree(column, is_category, texts, numbers, error) ||
        (texts + numbers > 0 && column->texts + column->numbers.count > 0 && !check_writing(column, object, error))) {
        return false;
    }
    if (merge->is_applied) {
        column->missing += missing;
        column->texts += texts;
        column->is_category |= is_category;
        column->has_too_many |= is_true(object, "has_too_many");
        column->is_integer &= is_true(object, "is_integer");
        column->same = 0; /* a column equal to the target in these rows need not be so in the others */
    }
    return (add_numbers(merge, column, object) && (numbers == 0 || add_dates(merge, column->calendar, object)) &&
            add_values(merge, column, object)) ||
           error_set(error, "column %.64s: its figures are damaged, or too many for this machine", column->name);
}

static bool add_columns(struct merge *merge, struct json_value columns, struct error *error)
{
    struct survey *survey = merge->survey;
    struct json_walk walk = json_walk(columns);
    struct json_value object;
    for (int i = 0; i < survey->count; i++) {
        if (survey->columns[i].use == USE_NOTHING) {
            continue;
        }
        if (!json_next(&walk, &object)) {
            return error_set(error, "column %.64s is missing there", survey->columns[i].name);
        }
        if (!add_column(merge, &survey->columns[i], object, error)) {
            return false;
        }
    }
    return !json_next(&walk, &object) || error_set(error, "there are more columns there");
}

enum figures_result figures_merge(struct survey *survey, const char *text, struct error *error)
{
    const size_t size = strlen(text);
    struct merge merge = {.survey = survey, .scratch = malloc(size + 1)};
    struct json_place place;
    if (!merge.scratch) {
        error_set(error, "out of memory for another worker's figures");
        return FIGURES_NO_MEMORY;
    }
    bool done = json_check_bytes(text, size, &place, error);
    const struct json_value root = done ? json_whole(text, size) : (struct json_value){.kind = JSON_NONE};
    done = (done && read_count(root, "rows", survey->rows, &merge.rows)) ||
           error_set(error, "its figures are damaged, or of too many rows");
    done = done && add_columns(&merge, json_member(root, "columns"), error);
    merge.is_applied = done;
    done = done && add_columns(&merge, json_member(root, "columns"), error);
    survey->rows += done ? merge.rows : 0;
    free(merge.scratch);
    if (merge.is_short) {
        error_set(error, "out of memory for another worker's figures");
    }
    return done ? FIGURES_MERGED : merge.is_short ? FIGURES_NO_MEMORY : FIGURES_REFUSED;
}
