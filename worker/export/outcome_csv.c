/* The only place that defines the names of prediction columns and their number of digits. */
#include "worker/export/outcome_csv.h"

#include <math.h>
#include <string.h>

#include "worker/data/table/schema.h"

void csv_put(FILE *out, const char *prefix, const char *text, size_t size, char delimiter)
{
    const bool is_plain = !memchr(text, delimiter, size) && !memchr(text, '"', size) && !memchr(text, '\n', size) &&
                          !memchr(text, '\r', size);
    if (is_plain) {
        fputs(prefix, out);
        fwrite(text, 1, size, out);
        return;
    }
    fputc('"', out);
    fputs(prefix, out);
    for (size_t i = 0; i < size; i++) {
        fputs(text[i] == '"' ? "\"" : "", out);
        fputc(text[i], out);
    }
    fputc('"', out);
}

static void put_name(FILE *out, const char *prefix, const struct schema *schema, int output, char delimiter)
{
    const char *name = schema_output_name(schema, output);
    csv_put(out, prefix, name, strlen(name), delimiter);
}

void outcome_put_names(const struct trained *trained, FILE *out, char delimiter)
{
    const struct schema *schema = trained->schema;
    const int outputs = schema_outputs(schema);
    const char between[] = {delimiter, '\0'};
    switch (schema->task) {
    case TASK_CLASS:
        fputs("prediction", out);
        for (int i = 0; i < outputs; i++) {
            fputs(between, out);
            put_name(out, "probability_", schema, i, delimiter);
        }
        break;
    case TASK_FLAGS:
        for (int i = 0; i < outputs; i++) {
            fputs(i > 0 ? between : "", out);
            put_name(out, "prediction_", schema, i, delimiter);
            fputs(between, out);
            put_name(out, "probability_", schema, i, delimiter);
        }
        break;
    case TASK_NUMBERS:
        if (outputs == 1) {
            fputs("prediction", out);
        }
        for (int i = 0; outputs > 1 && i < outputs; i++) {
            fputs(i > 0 ? between : "", out);
            put_name(out, "prediction_", schema, i, delimiter);
        }
        break;
    case TASK_INPUTS:
        fputs("error", out);
        if (!isnan(trained->threshold)) {
            fprintf(out, "%cflag", delimiter);
        }
        break;
    }
}

static void put_class(const struct trained *trained, const struct outcome *outcome, FILE *out, char delimiter)
{
    put_name(out, "", trained->schema, outcome->best, delimiter);
    for (int i = 0; i < outcome->count; i++) {
        fprintf(out, "%c%.7g", delimiter, outcome->values[i]);
    }
}

void outcome_put(const struct trained *trained, const struct outcome *outcome, FILE *out, char delimiter)
{
    const char between[] = {delimiter, '\0'};
    if (outcome->kind == OUTCOME_CLASS) {
        put_class(trained, outcome, out, delimiter);
        return;
    }
    for (int i = 0; i < outcome->count; i++) {
        fputs(i > 0 ? between : "", out);
        if (outcome->kind == OUTCOME_FLAGS) {
            fprintf(out, "%d%c%.7g", outcome_flag(outcome, i), delimiter, outcome->values[i]);
        } else {
            fprintf(out, "%.9g", outcome->values[i]);
        }
    }
    if (outcome->kind == OUTCOME_ERROR && !isnan(outcome->threshold)) {
        fprintf(out, "%c%d", delimiter, outcome_flag(outcome, 0));
    }
}
