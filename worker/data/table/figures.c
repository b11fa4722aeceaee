/* Means and deviations are merged like those of chunks (moments.h). */
#include "worker/data/table/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/config/keys.h"

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

/* --- merging --- */

static bool is_true(const cJSON *object, const char *name)
{
    return cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(object, name));
}

static bool read_double(const cJSON *object, const char *name, double *number)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    *number = cJSON_IsNumber(item) ? item->valuedouble : (double)NAN;
    return isfinite(*number);
}

/* A count that can be added to earlier ones. */
static bool to_count(double number, int64_t before, int64_t *count)
{
    const bool fits = number >= 0 && number <= MOST_COUNT - (double)before && number == floor(number);
    *count = fits ? (int64_t)number : 0;
    return fits;
}

static bool read_count(const cJSON *object, const char *name, int64_t before, int64_t *count)
{
    double number;
    return read_double(object, name, &number) && to_count(number, before, count);
}

static bool add_moments(struct moments *moments, double *least, double *most, const cJSON *object)
{
    int64_t count;
    double mean, squares, minimum, maximum;
    if (!read_count(object, "numbers", moments->count, &count)) {
        return false;
    }
    if (count == 0) {
        return true;
    }
    if (!read_double(object, "mean", &mean) || !read_double(object, "squares", &squares) || squares < 0 ||
        !read_double(object, "minimum", &minimum) || !read_double(object, "maximum", &maximum) || minimum > maximum) {
        return false;
    }
    const double n = (double)count, before = (double)moments->count, all = before + n;
    const double difference = mean - moments->mean;
    moments->squares += squares + difference * difference * before * n / all;
    moments->mean += difference * n / all;
    moments->count += count;
    *least = fmin(*least, minimum);
    *most = fmax(*most, maximum);
    return isfinite(moments->mean) && isfinite(moments->squares); /* numbers may be too far apart for these */
}

static bool add_numbers(struct survey_column *column, const cJSON *object)
{
    return add_moments(&column->numbers, &column->minimum, &column->maximum, object);
}

static bool add_dates(struct survey_dates *dates, const cJSON *object)
{
    const cJSON *part;
    int i = 0;
    cJSON_ArrayForEach(part, cJSON_GetObjectItemCaseSensitive(object, "parts"))
    {
        if (!dates || i == DATE_PARTS || !add_moments(&dates->parts[i], &dates->minimum[i], &dates->maximum[i], part)) {
            return false;
        }
        i++;
    }
    return !dates || i == DATE_PARTS;
}

/* Numbers and dates are written alike on all machines. */
static bool check_writing(const struct survey_column *column, const cJSON *object, struct error *error)
{
    char here[NOTATION_TEXT];
    const char *there = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, "notation"));
    int64_t dates;
    notation_text(&column->notation, here);
    if (!there || strcmp(here, there) != 0) {
        return error_set(
            error,
            "column %.64s: its numbers are written otherwise on some workers (%.64s and %.64s); write them "
            "in one way, or set --decimal",
            column->name, here, there ? there : "unknown");
    }
    return (read_count(object, "dates", 0, &dates) && dates == (int64_t)column->dates) ||
           error_set(error, "column %.64s: its dates are of another order on some workers, or no dates; set --dates",
                     column->name);
}

static bool add_values(struct survey_column *column, const cJSON *object)
{
    const cJSON *texts = cJSON_GetObjectItemCaseSensitive(object, "values"), *text;
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(object, "counts");
    count = cJSON_IsArray(count) ? count->child : NULL;
    cJSON_ArrayForEach(text, texts)
    {
        int64_t times;
        if (!cJSON_IsString(text) || !count || !cJSON_IsNumber(count)) {
            return false;
        }
        const int number = dictionary_add(&column->values, text->valuestring, strlen(text->valuestring));
        if (number < 0 || !to_count(count->valuedouble, column->values.entries[number].count - 1, &times) ||
            times < 1) {
            return false;
        }
        column->values.entries[number].count += times - 1;
        count = count->next;
    }
    return cJSON_IsArray(texts);
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

static bool add_column(struct survey_column *column, const cJSON *object, struct error *error)
{
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(object, "name");
    const bool is_category = is_true(object, "is_category");
    int64_t missing, texts, numbers;
    if (!cJSON_IsString(name) || strcmp(name->valuestring, column->name) != 0) {
        return error_set(error, "column %.64s is %.64s there; all workers' files have the same columns", column->name,
                         cJSON_IsString(name) ? name->valuestring : "nothing");
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
    column->missing += missing;
    column->texts += texts;
    column->is_category |= is_category;
    column->has_too_many |= is_true(object, "has_too_many");
    column->is_integer &= is_true(object, "is_integer");
    column->same = 0; /* a column equal to the target in these rows need not be so in the others */
    return (add_numbers(column, object) && (numbers == 0 || add_dates(column->calendar, object)) &&
            add_values(column, object)) ||
           error_set(error, "column %.64s: its figures are damaged, or too many for this machine", column->name);
}

static bool add_columns(struct survey *survey, const cJSON *columns, struct error *error)
{
    const cJSON *object = cJSON_IsArray(columns) ? columns->child : NULL;
    for (int i = 0; i < survey->count; i++) {
        if (survey->columns[i].use == USE_NOTHING) {
            continue;
        }
        if (!object) {
            return error_set(error, "column %.64s is missing there", survey->columns[i].name);
        }
        if (!add_column(&survey->columns[i], object, error)) {
            return false;
        }
        object = object->next;
    }
    return !object || error_set(error, "there are more columns there");
}

bool figures_merge(struct survey *survey, const char *text, struct error *error)
{
    cJSON *root = cJSON_Parse(text);
    int64_t rows;
    bool done = read_count(root, "rows", survey->rows, &rows) ||
                error_set(error, "its figures are damaged, or of too many rows");
    done = done && add_columns(survey, cJSON_GetObjectItemCaseSensitive(root, "columns"), error);
    survey->rows += done ? rows : 0;
    cJSON_Delete(root);
    return done;
}
