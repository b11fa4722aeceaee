/* Shows training's survey, extended to all values of all columns. */
#include "worker/data/table/info.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <cJSON.h>

#include "base/log.h"
#include "base/text/json.h"
#include "worker/data/table/survey.h"
#include "worker/data/table/table.h"

enum { MOST_SHOWN = 24 /* bytes of a value */ };

static double deviation(const struct survey_column *column)
{
    return column->numbers.count > 0 ? sqrt(column->numbers.squares / (double)column->numbers.count) : 0;
}

static bool is_category(const struct survey_column *column)
{
    return column->is_category || column->texts > 0;
}

static bool are_dates(const struct survey_column *column)
{
    return column->dates != DATES_AUTO;
}

static const char *type_of(const struct survey_column *column, int64_t rows)
{
    return column->missing == rows ? "empty"
           : are_dates(column)     ? "date"
           : is_category(column)   ? "category"
           : column->is_integer    ? "integer"
                                   : "number";
}

enum { BECOMES = 160 };

static int bins_of(const struct survey_column *column, const struct survey *survey)
{
    double edges[CONFIG_MOST_BINS + 1];
    int count = 0;
    if (!sample_edges(&survey->sample, (int)(column - survey->columns), survey->data->bins, edges, &count)) {
        return 0;
    }
    return count > 1 ? count - 1 : 0;
}

/* What the model gets of a column: "number", "number in 9 bins", "date: month", "category of 4", "left out: empty". */
static void describe_inputs(const struct survey *survey, const struct survey_column *column, char text[BECOMES])
{
    char written[NOTATION_TEXT];
    notation_text(&column->notation, written);
    if (column->use == USE_NOTHING) {
        snprintf(text, BECOMES, "left out: not to be used");
    } else if (column->missing == survey->rows) {
        snprintf(text, BECOMES, "left out: empty");
    } else if (column->is_index) {
        snprintf(text, BECOMES, "left out: it only identifies the rows");
    } else if (are_dates(column)) {
        size_t used = (size_t)snprintf(text, BECOMES, "date");
        for (int i = 0; i < DATE_PARTS; i++) {
            if (column->calendar->maximum[i] > column->calendar->minimum[i]) {
                used +=
                    (size_t)snprintf(text + used, BECOMES - used, "%s%s", used > 4 ? ", " : ": ", date_part_names[i]);
            }
        }
        snprintf(text + used, BECOMES - used, "%s", used > 4 ? "" : ", left out: only one");
    } else if (survey_is_name(column, survey->rows)) {
        snprintf(text, BECOMES, "left out: different in nearly every row");
    } else if (is_category(column)) {
        snprintf(text, BECOMES, "category of %d", column->values.count);
    } else {
        const bool is_encoded = survey->encoding != ENCODING_NONE && column->use == USE_FEATURE;
        const int bins = is_encoded ? bins_of(column, survey) : 0;
        size_t used = (size_t)snprintf(text, BECOMES, "number");
        if (survey->encoding == ENCODING_PLE && is_encoded) {
            used += (size_t)snprintf(text + used, BECOMES - used, " in %d bins", bins);
        }
        if (!notation_is_plain(&column->notation) && used < BECOMES) {
            used += (size_t)snprintf(text + used, BECOMES - used, ": %s", written);
        }
        if (survey->encoding == ENCODING_BOTH && bins > 1 && used < BECOMES) {
            snprintf(text + used, BECOMES - used, ", also in %d bins", bins);
        }
    }
}

static const char *use_of(const struct survey_column *column)
{
    static const char *const names[] = {
        [USE_FEATURE] = "feature", [USE_TARGET] = "target", [USE_WEIGHT] = "weight", [USE_NOTHING] = "ignored"};
    return names[column->use];
}

static bool has_range(const struct survey_column *column)
{
    return !is_category(column) && !are_dates(column) && column->numbers.count > 0;
}

/* The most frequent value; -1: none. */
static int most_frequent(const struct survey_column *column)
{
    const struct dictionary *values = &column->values;
    int best = values->count > 0 ? 0 : -1;
    for (int i = 1; i < values->count; i++) {
        best = values->entries[i].count > values->entries[best].count ? i : best;
    }
    return best;
}

static void put_json(const struct survey *survey, const char *part, int files)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "part", part);
    cJSON_AddStringToObject(fields, "source", "table");
    cJSON_AddNumberToObject(fields, "files", files);
    cJSON_AddNumberToObject(fields, "rows", (double)survey->rows);
    if (survey->note[0] != '\0') {
        cJSON_AddStringToObject(fields, "note", survey->note);
    }
    cJSON *columns = cJSON_AddArrayToObject(fields, "columns");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const int frequent = most_frequent(column);
        cJSON *object = cJSON_CreateObject();
        cJSON_AddStringToObject(object, "name", column->name);
        cJSON_AddStringToObject(object, "type", type_of(column, survey->rows));
        cJSON_AddStringToObject(object, "use", use_of(column));
        cJSON_AddNumberToObject(object, "missing", (double)column->missing);
        cJSON_AddNumberToObject(object, "distinct", column->values.count);
        char becomes[BECOMES];
        describe_inputs(survey, column, becomes);
        cJSON_AddStringToObject(object, "becomes", becomes);
        if (column->doubt[0] != '\0') {
            cJSON_AddStringToObject(object, "doubt", column->doubt);
        }
        cJSON *examples = cJSON_AddArrayToObject(object, "examples");
        for (int j = 0; j < SURVEY_EXAMPLES && column->examples[j][0] != '\0'; j++) {
            json_append(examples, cJSON_CreateString(column->examples[j]));
        }
        if (has_range(column)) {
            cJSON_AddNumberToObject(object, "min", column->minimum);
            cJSON_AddNumberToObject(object, "mean", column->numbers.mean);
            cJSON_AddNumberToObject(object, "max", column->maximum);
            cJSON_AddNumberToObject(object, "std", deviation(column));
        }
        if (frequent >= 0) {
            cJSON_AddStringToObject(object, "most_frequent", dictionary_text(&column->values, frequent));
            cJSON_AddNumberToObject(object, "most_frequent_rows", (double)column->values.entries[frequent].count);
        }
        json_append(columns, object);
    }
    log_event("data", fields, NULL);
}

static void put_readings(const struct survey *survey)
{
    printf("  %-24s %-44s %s\n", "column", "becomes", "examples");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        char becomes[BECOMES];
        describe_inputs(survey, column, becomes);
        printf("  %-24.24s %-44s", column->name, column->use == USE_TARGET ? "target" : becomes);
        for (int j = 0; j < SURVEY_EXAMPLES && column->examples[j][0] != '\0'; j++) {
            printf("%s %s", j > 0 ? " |" : "", column->examples[j]);
        }
        printf("\n");
        if (column->doubt[0] != '\0') {
            printf("  %-24s in doubt: %s\n", "", column->doubt);
        }
    }
}

static void put_text(const struct survey *survey, const char *part, int files)
{
    printf("%s: %" PRId64 " rows of %d columns, %d file%s\n", part, survey->rows, survey->count, files,
           files == 1 ? "" : "s");
    if (survey->note[0] != '\0') {
        printf("  %s\n", survey->note);
    }
    printf("  %-24s %-8s %-7s %9s %11s %11s %11s %11s %9s  %s\n", "column", "type", "use", "missing", "min", "mean",
           "max", "std", "distinct", "most frequent");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const int frequent = most_frequent(column);
        printf("  %-24.24s %-8s %-7s %9" PRId64, column->name, type_of(column, survey->rows), use_of(column),
               column->missing);
        if (has_range(column)) {
            printf(" %11.5g %11.5g %11.5g %11.5g", column->minimum, column->numbers.mean, column->maximum,
                   deviation(column));
        } else {
            printf(" %11s %11s %11s %11s", "", "", "", "");
        }
        printf(" %8d%s", column->values.count, column->has_too_many ? "+" : " ");
        if (frequent >= 0) {
            printf("  %.*s (%" PRId64 ")", MOST_SHOWN, dictionary_text(&column->values, frequent),
                   column->values.entries[frequent].count);
        }
        printf("\n");
    }
    put_readings(survey);
}

bool table_info(enum dataset_part part, bool *there, const struct config *config, struct error *error)
{
    struct survey survey = {.count = 0};
    int files = 0;
    if (!table_files_exist(there, config, part, error)) {
        return false;
    }
    const bool done = !*there || table_survey(&survey, &files, part, config, error);
    if (done && *there) {
        const char *name = part == DATASET_TEST ? "test" : "training";
        if (log_format() == LOG_JSON) {
            put_json(&survey, name, files);
        } else {
            put_text(&survey, name, files);
        }
    }
    survey_free(&survey);
    return done;
}
