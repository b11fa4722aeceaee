/* Arithmetic is in double, as in evaluation, so that every command says the same about the same row. */
#include "worker/export/outcome.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/data/table/schema.h"
#include "worker/evaluation/calibration.h"
#include "worker/evaluation/metrics.h"

enum outcome_kind outcome_kind(const struct trained *trained)
{
    static const enum outcome_kind kinds[] = {[TASK_CLASS] = OUTCOME_CLASS,
                                              [TASK_FLAGS] = OUTCOME_FLAGS,
                                              [TASK_NUMBERS] = OUTCOME_NUMBERS,
                                              [TASK_INPUTS] = OUTCOME_ERROR};
    return trained->schema ? kinds[trained->schema->task] : OUTCOME_CLASS;
}

const char *outcome_kind_name(const struct trained *trained)
{
    static const char *const names[] = {"probabilities", "probabilities", "predictions", "errors"};
    return names[outcome_kind(trained)];
}

static int units(const struct trained *trained)
{
    return trained->model.widths[trained->model.layer_count];
}

int outcome_count(const struct trained *trained)
{
    return outcome_kind(trained) == OUTCOME_ERROR ? 1 : units(trained);
}

const char *outcome_name(const struct trained *trained, int index, char buffer[OUTCOME_NAME])
{
    if (trained->schema && outcome_kind(trained) != OUTCOME_ERROR) {
        return schema_output_name(trained->schema, index);
    }
    if (!trained->schema && index < trained->classes.count) {
        return trained->classes.items[index];
    }
    snprintf(buffer, OUTCOME_NAME, "%d", index);
    return buffer;
}

bool outcome_create(struct outcome *outcome, const struct trained *trained)
{
    *outcome = (struct outcome){.kind = outcome_kind(trained),
                                .count = outcome_count(trained),
                                .threshold = trained->threshold,
                                .factor = calibration_factor(trained->temperature)};
    outcome->values = calloc((size_t)outcome->count, sizeof *outcome->values);
    return outcome->values;
}

void outcome_free(struct outcome *outcome)
{
    free(outcome->values);
    outcome->values = NULL;
}

static void find_class(const float *outputs, struct outcome *outcome)
{
    double sum = 0;
    outcome->best = 0;
    for (int i = 1; i < outcome->count; i++) {
        outcome->best = outputs[i] > outputs[outcome->best] ? i : outcome->best;
    }
    for (int i = 0; i < outcome->count; i++) {
        outcome->values[i] = exp(outcome->factor * ((double)outputs[i] - (double)outputs[outcome->best]));
        sum += outcome->values[i];
    }
    for (int i = 0; i < outcome->count; i++) {
        outcome->values[i] /= sum;
    }
    if (outcome->count == 2 && !isnan(outcome->threshold)) {
        outcome->best = outcome->values[1] >= outcome->threshold;
    }
}

void outcome_find(const struct trained *trained, const float *outputs, const float *wanted, int row,
                  struct outcome *outcome)
{
    const struct schema *schema = trained->schema;
    const size_t width = (size_t)units(trained);
    outputs += (size_t)row * width;
    switch (outcome->kind) {
    case OUTCOME_CLASS:
        find_class(outputs, outcome);
        break;
    case OUTCOME_FLAGS:
        for (int i = 0; i < outcome->count; i++) {
            outcome->values[i] = 1 / (1 + exp(-outcome->factor * (double)outputs[i]));
        }
        break;
    case OUTCOME_NUMBERS:
        for (int i = 0; i < outcome->count; i++) {
            outcome->values[i] = schema->target_means[i] + schema->target_scales[i] * (double)outputs[i];
        }
        break;
    case OUTCOME_ERROR:
        outcome->values[0] = metrics_reconstruction_error(outputs, wanted + (size_t)row * width, (int)width);
        break;
    }
}

bool outcome_has_intervals(const struct trained *trained)
{
    return outcome_kind(trained) == OUTCOME_NUMBERS && trained->interval.coverage > 0 &&
           trained->interval.targets == outcome_count(trained);
}

double outcome_low(const struct trained *trained, const struct outcome *outcome, int index)
{
    return outcome->values[index] + trained->interval.low[index];
}

double outcome_high(const struct trained *trained, const struct outcome *outcome, int index)
{
    return outcome->values[index] + trained->interval.high[index];
}

bool outcome_flag(const struct outcome *outcome, int index)
{
    if (outcome->kind == OUTCOME_ERROR) {
        return outcome->values[index] > outcome->threshold;
    }
    return outcome->values[index] >= (outcome->count == 1 && !isnan(outcome->threshold) ? outcome->threshold : 0.5);
}

int outcome_spreads(const struct trained *trained)
{
    return outcome_kind(trained) == OUTCOME_CLASS ? 1 : outcome_count(trained);
}

double outcome_spread(const struct trained *trained, const struct outcome *outcome, const float *spreads, int row,
                      int index)
{
    const int which = outcome->kind == OUTCOME_CLASS ? outcome->best : index;
    const double spread = (double)spreads[(size_t)row * (size_t)outcome->count + (size_t)which];
    return outcome->kind == OUTCOME_NUMBERS ? spread * trained->schema->target_scales[index] : spread;
}

const char *outcome_spread_obstacle(const struct trained *trained)
{
    return trained->model.net_count < 2
               ? "is a single net, and a spread needs several: train it with --ensemble=raw:2 or the like"
           : outcome_kind(trained) == OUTCOME_ERROR ? "learns its inputs, whose error has no spread"
                                                    : NULL;
}

/* --- As columns of a CSV file --- */

/* The only place that defines the names of prediction columns and their number of digits. */

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

/* Behind all predictions. */
static void put_interval_names(const struct trained *trained, FILE *out, char delimiter)
{
    const int outputs = schema_outputs(trained->schema);
    for (int i = 0; outcome_has_intervals(trained) && i < outputs; i++) {
        if (outputs == 1) {
            fprintf(out, "%cinterval_low%cinterval_high", delimiter, delimiter);
            continue;
        }
        fputc(delimiter, out);
        put_name(out, "interval_low_", trained->schema, i, delimiter);
        fputc(delimiter, out);
        put_name(out, "interval_high_", trained->schema, i, delimiter);
    }
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
        put_interval_names(trained, out, delimiter);
        break;
    case TASK_INPUTS:
        fputs("error", out);
        if (!isnan(trained->threshold)) {
            fprintf(out, "%cflag", delimiter);
        }
        break;
    }
}

bool outcome_is_name(const struct trained *trained, const char *name)
{
    const struct schema *schema = trained->schema;
    static const char *const prefixes[] = {"prediction_", "probability_", "interval_low_", "interval_high_"};
    const bool has_intervals = outcome_has_intervals(trained);
    const size_t count = sizeof prefixes / sizeof prefixes[0] - (has_intervals ? 0 : 2);
    for (int i = 0; i < schema->count; i++) {
        if (schema->columns[i].role == SCHEMA_FEATURE && strcmp(schema->columns[i].name, name) == 0) {
            return false; /* the model needs it */
        }
    }
    if (schema->task == TASK_INPUTS) {
        return strcmp(name, "error") == 0 || (!isnan(trained->threshold) && strcmp(name, "flag") == 0);
    }
    bool is = strcmp(name, "prediction") == 0 ||
              (has_intervals && (strcmp(name, "interval_low") == 0 || strcmp(name, "interval_high") == 0));
    for (size_t p = 0; p < count && !is; p++) {
        const size_t size = strlen(prefixes[p]);
        for (int i = 0; i < schema_outputs(schema) && strncmp(name, prefixes[p], size) == 0 && !is; i++) {
            is = strcmp(name + size, schema_output_name(schema, i)) == 0;
        }
    }
    return is;
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
    for (int i = 0; outcome_has_intervals(trained) && i < outcome->count; i++) {
        fprintf(out, "%c%.9g%c%.9g", delimiter, outcome_low(trained, outcome, i), delimiter,
                outcome_high(trained, outcome, i));
    }
    if (outcome->kind == OUTCOME_ERROR && !isnan(outcome->threshold)) {
        fprintf(out, "%c%d", delimiter, outcome_flag(outcome, 0));
    }
}

/* Each target has its own, unless there is one; of classes it is that of the predicted one. */
static bool has_one_spread(const struct trained *trained)
{
    return trained->schema->task == TASK_CLASS ||
           (trained->schema->task == TASK_NUMBERS && schema_outputs(trained->schema) == 1);
}

void outcome_put_spread_names(const struct trained *trained, FILE *out, char delimiter)
{
    const bool is_one = has_one_spread(trained);
    for (int i = 0; i < (is_one ? 1 : schema_outputs(trained->schema)); i++) {
        fputc(delimiter, out);
        if (is_one) {
            fputs("spread", out);
        } else {
            put_name(out, "spread_", trained->schema, i, delimiter);
        }
    }
}

void outcome_put_spread(const struct trained *trained, const struct outcome *outcome, const float *spreads, int row,
                        FILE *out, char delimiter)
{
    for (int i = 0; i < outcome_spreads(trained); i++) {
        fprintf(out, "%c%.4g", delimiter, outcome_spread(trained, outcome, spreads, row, i));
    }
}

bool outcome_is_spread_name(const struct trained *trained, const char *name)
{
    static const char prefix[] = "spread_";
    bool is = has_one_spread(trained) && strcmp(name, "spread") == 0;
    const bool is_prefixed = !has_one_spread(trained) && strncmp(name, prefix, sizeof prefix - 1) == 0;
    for (int i = 0; is_prefixed && i < schema_outputs(trained->schema) && !is; i++) {
        is = strcmp(name + sizeof prefix - 1, schema_output_name(trained->schema, i)) == 0;
    }
    for (int i = 0; is && i < trained->schema->count; i++) {
        const struct schema_column *column = &trained->schema->columns[i];
        is = column->role != SCHEMA_FEATURE || strcmp(column->name, name) != 0; /* the model needs it */
    }
    return is;
}
