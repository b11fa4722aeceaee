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

static const char *type_of(const struct survey_column *column, int64_t rows)
{
    return column->missing == rows ? "empty"
           : is_category(column)   ? "category"
           : column->is_integer    ? "integer"
                                   : "number";
}

static const char *use_of(const struct survey_column *column)
{
    static const char *const names[] = {
        [USE_FEATURE] = "feature", [USE_TARGET] = "target", [USE_WEIGHT] = "weight", [USE_NOTHING] = "ignored"};
    return names[column->use];
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
        if (!is_category(column) && column->numbers.count > 0) {
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

static void put_text(const struct survey *survey, const char *part, int files)
{
    printf("%s: %" PRId64 " rows of %d columns, %d file%s\n", part, survey->rows, survey->count, files,
           files == 1 ? "" : "s");
    printf("  %-24s %-8s %-7s %9s %11s %11s %11s %11s %9s  %s\n", "column", "type", "use", "missing", "min", "mean",
           "max", "std", "distinct", "most frequent");
    for (int i = 0; i < survey->count; i++) {
        const struct survey_column *column = &survey->columns[i];
        const int frequent = most_frequent(column);
        printf("  %-24.24s %-8s %-7s %9" PRId64, column->name, type_of(column, survey->rows), use_of(column),
               column->missing);
        if (!is_category(column) && column->numbers.count > 0) {
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
