/*
 * trainer explain: on which columns a table's model relies. A column's values are shuffled among the rows; how much
 * worse the metric gets is the column's importance (Breiman, "Random forests", 2001). A column of categories is
 * shuffled as a whole, and a missing value takes its indicator along. With --row: what each column contributes to the
 * prediction for one row (worker/export/shapley.h).
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/random/sampler.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "worker/data/dataset.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/evaluate.h"
#include "worker/export/background.h"
#include "worker/export/outcome.h"
#include "worker/export/shapley.h"
#include "worker/export/trained.h"

enum { DEFAULT_REPEATS = 5, MOST_REPEATS = 1000 };

struct importance {
    const struct schema_column *column;
    double mean, spread; /* over the repeats: how much worse the metric gets, and its standard deviation */
};

/* Everything that an explanation owns; zeros are safe to release. */
struct explanation {
    struct trained trained;
    struct examples rows;
    struct evaluation evaluation;
    enum metric metric;
    double score; /* of the unchanged rows */
    int repeats;
    float *values, *positions;  /* [rows, DATE_PARTS] of the shuffled column, unshuffled ... */
    int32_t *places;            /* ... [rows] */
    struct importance *columns; /* [count] */
    int count;
};

static void explanation_free(struct explanation *self)
{
    free(self->values);
    free(self->positions);
    free(self->places);
    free(self->columns);
    evaluation_destroy(&self->evaluation);
    examples_free(&self->rows);
    trained_close(&self->trained);
}

/* path: of a file of rows; NULL: the test set of data_dir. */
static bool load(struct explanation *self, const char *path, struct error *error)
{
    const struct config *config = &self->trained.config;
    const struct schema *schema = self->trained.schema;
    if (!(path ? dataset_load_file(&self->rows, path, config, schema, error)
               : dataset_load_test(&self->rows, config, schema, error))) {
        return false;
    }
    const size_t rows = (size_t)self->rows.count;
    const struct evaluation_options options = {.train = &config->train,
                                               .outputs = schema_outputs(schema),
                                               .rows = self->rows.count,
                                               .targets = self->rows.targets,
                                               .schema = schema};
    evaluation_create(&self->evaluation, &options);
    self->evaluation.decision = self->trained.threshold;
    self->evaluation.temperature = self->trained.temperature;
    self->values = must_alloc(rows * DATE_PARTS * sizeof *self->values, "the rows of a column");
    self->positions = must_alloc(rows * DATE_PARTS * sizeof *self->positions, "the rows of a column");
    self->places = must_alloc(rows * sizeof *self->places, "the rows of a column");
    self->columns = must_zero((size_t)schema->count, sizeof *self->columns, "columns");
    return true;
}

static bool measure(struct explanation *self, double *score, struct error *error)
{
    if (!evaluate(&self->evaluation, self->trained.engine, false, &self->rows, error)) {
        return false;
    }
    *score = evaluation_metric(&self->evaluation, self->metric);
    return true;
}

/* Where a column's numbers are in an array with `width` numbers a row. */
static float *numbers_at(float *array, int width, int row, int first)
{
    return array + (size_t)row * (size_t)width + (size_t)first;
}

/* Saves the column. */
static void keep(struct explanation *self, const struct schema_column *column)
{
    const struct examples *rows = &self->rows;
    const size_t numbers = rows->values ? (size_t)schema_numbers(column) : 0;
    const size_t pieces = rows->positions ? (size_t)schema_pieces(column) : 0;
    for (int i = 0; i < rows->count; i++) {
        if (numbers > 0) {
            memcpy(self->values + (size_t)i * numbers, numbers_at(rows->values, rows->numbers, i, column->input),
                   numbers * sizeof(float));
        }
        if (pieces > 0) {
            memcpy(self->positions + (size_t)i * pieces, numbers_at(rows->positions, rows->piecewise, i, column->piece),
                   pieces * sizeof(float));
        }
        if (column->code >= 0) {
            self->places[i] = rows->places[(size_t)i * (size_t)rows->codes + (size_t)column->code];
        }
    }
}

/* Gives each row the value of the row that the order assigns to it; order NULL: its own. */
static void deal(struct explanation *self, const struct schema_column *column, const struct sampler_order *order)
{
    const struct examples *rows = &self->rows;
    const size_t numbers = rows->values ? (size_t)schema_numbers(column) : 0;
    const size_t pieces = rows->positions ? (size_t)schema_pieces(column) : 0;
    for (int i = 0; i < rows->count; i++) {
        const uint32_t from = order ? sampler_index(order, (uint32_t)i) : (uint32_t)i;
        if (numbers > 0) {
            memcpy(numbers_at(rows->values, rows->numbers, i, column->input), self->values + (size_t)from * numbers,
                   numbers * sizeof(float));
        }
        if (pieces > 0) {
            memcpy(numbers_at(rows->positions, rows->piecewise, i, column->piece),
                   self->positions + (size_t)from * pieces, pieces * sizeof(float));
        }
        if (column->code >= 0) {
            rows->places[(size_t)i * (size_t)rows->codes + (size_t)column->code] = self->places[from];
        }
    }
}

/* The orders depend on the seed, the column's number among the features, and the repeat. */
static bool explain_column(struct explanation *self, struct importance *importance, struct error *error)
{
    const struct sampler sampler = {.seed = (uint64_t)self->trained.config.train.seed,
                                    .task = (uint32_t)self->count,
                                    .examples = (uint32_t)self->rows.count,
                                    .batch_size = 1};
    const double direction = metric_rises(self->metric) ? 1 : -1;
    double squares = 0;
    bool done = true;
    keep(self, importance->column);
    for (int repeat = 0; done && repeat < self->repeats; repeat++) {
        struct sampler_order order;
        double score = 0;
        sampler_order_make(&order, &sampler, repeat);
        deal(self, importance->column, &order);
        done = measure(self, &score, error);
        const double worse = direction * (self->score - score), from_mean = worse - importance->mean;
        importance->mean += from_mean / (repeat + 1);
        squares += from_mean * (worse - importance->mean);
    }
    importance->spread = sqrt(squares / self->repeats);
    deal(self, importance->column, NULL);
    return done;
}

static int by_importance(const void *a, const void *b)
{
    const struct importance *left = a, *right = b;
    const bool is_tie = left->mean == right->mean;
    return is_tie ? (left->column > right->column) - (left->column < right->column) : left->mean < right->mean ? 1 : -1;
}

static bool explain(struct explanation *self, struct error *error)
{
    const struct schema *schema = self->trained.schema;
    self->metric = evaluation_best_metric(&self->trained.config.train, self->rows.targets);
    if (!measure(self, &self->score, error)) {
        return false;
    }
    if (!isfinite(self->score)) {
        return error_set(error, "%s is not defined on these %d rows; explain with others",
                         config_metric_name(self->metric), self->rows.count);
    }
    for (int i = 0; i < schema->count; i++) {
        if (schema->columns[i].role == SCHEMA_FEATURE) {
            self->columns[self->count] = (struct importance){.column = &schema->columns[i]};
            if (!explain_column(self, &self->columns[self->count], error)) {
                return false;
            }
            self->count++;
        }
    }
    qsort(self->columns, (size_t)self->count, sizeof *self->columns, by_importance);
    return true;
}

/* --- its report --- */

static void report_as_json(const struct explanation *self)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "checkpoint", checkpoint_path(self->trained.file));
    cJSON_AddNumberToObject(fields, "global_step", (double)checkpoint_file_info(self->trained.file)->global_step);
    cJSON_AddNumberToObject(fields, "rows", self->rows.count);
    cJSON_AddNumberToObject(fields, "repeats", self->repeats);
    cJSON_AddStringToObject(fields, "metric", config_metric_name(self->metric));
    cJSON_AddNumberToObject(fields, "score", self->score);
    cJSON *columns = cJSON_AddArrayToObject(fields, "columns");
    for (int i = 0; i < self->count; i++) {
        cJSON *column = cJSON_CreateObject();
        cJSON_AddStringToObject(column, "column", self->columns[i].column->name);
        cJSON_AddNumberToObject(column, "importance", self->columns[i].mean);
        cJSON_AddNumberToObject(column, "spread", self->columns[i].spread);
        json_append(columns, column);
    }
    log_event("explanation", fields, NULL);
}

enum { NAME_COLUMNS = 40 }; /* of a terminal */

/* The widest name, of a terminal's columns. */
static int names_width(const struct importance *columns, int count)
{
    int width = 0, used;
    for (int i = 0; i < count; i++) {
        utf8_fit(columns[i].column->name, NAME_COLUMNS, &used);
        width = used > width ? used : width;
    }
    return width;
}

/* A line for each. */
static void report_columns(const struct importance *columns, int count)
{
    const int width = names_width(columns, count);
    for (int i = 0; i < count; i++) {
        const char *name = columns[i].column->name;
        int used;
        const int size = (int)utf8_fit(name, NAME_COLUMNS, &used);
        log_info("%.*s%*s  %12.6g  +- %.6g", size, name, width - used, "", columns[i].mean, columns[i].spread);
    }
}

static void report(const struct explanation *self)
{
    char number[COUNT_TEXT];
    if (log_format() == LOG_JSON) {
        report_as_json(self);
        return;
    }
    log_info("checkpoint %s, step %s", checkpoint_path(self->trained.file),
             count_text(number, checkpoint_file_info(self->trained.file)->global_step));
    log_info(
        "%s %.6g on %s rows; how much worse it gets if a column is shuffled, mean and standard deviation of %d times:",
        config_metric_name(self->metric), self->score, count_text(number, self->rows.count), self->repeats);
    report_columns(self->columns, self->count);
}

/* --- one row --- */

struct row_explanation {
    const struct trained *trained;
    int64_t number; /* of the row, from 1 */
    int samples;
    struct examples row; /* at `place` */
    int place;
    struct shapley shapley;
    struct contributions found;
};

/* Of a file, or of the test set. The rows to compare with are of the same, unless another file has them. */
static bool load_row(struct row_explanation *self, const char *path, const char *background, struct error *error)
{
    const struct trained *trained = self->trained;
    struct examples rows = {.count = 0};
    bool done;
    if (path) {
        done = background_row(&self->row, trained, path, self->number, error) &&
               (background || background_sample(&rows, trained, path, SHAPLEY_BACKGROUND, path, error));
    } else {
        done = dataset_load_test(&self->row, &trained->config, trained->schema, error) &&
               (self->number <= self->row.count || error_set(error, "the test set has %d rows, and --row=%lld",
                                                             self->row.count, (long long)self->number)) &&
               (background || background_part(&rows, &self->row, SHAPLEY_BACKGROUND, error));
        self->place = (int)self->number - 1;
    }
    done =
        done && (!background || background_sample(&rows, trained, background, SHAPLEY_BACKGROUND, background, error));
    done = done && (background || rows.count > 1 ||
                    error_set(error, "there is a single row, and none to compare it with; give --background=FILE"));
    done = done && shapley_make(&self->shapley, trained, &rows, self->samples, trained->engine, error);
    examples_free(&rows);
    return done &&
           (contributions_create(&self->found, &self->shapley) || error_set(error, "out of memory to explain a row"));
}

static int by_size(const void *a, const void *b)
{
    const struct importance *left = a, *right = b;
    const double here = fabs(left->mean), there = fabs(right->mean);
    return here == there ? (left->column > right->column) - (left->column < right->column) : here < there ? 1 : -1;
}

/* The columns of an output, the most important first; NULL: out of memory. The caller frees them. */
static struct importance *rank(const struct row_explanation *self, int output)
{
    const int count = self->shapley.column_count;
    struct importance *columns = malloc((size_t)count * sizeof *columns);
    for (int i = 0; columns && i < count; i++) {
        const size_t at = (size_t)output * (size_t)count + (size_t)i;
        columns[i] =
            (struct importance){&self->trained->schema->columns[i], self->found.of[at], self->found.errors[at]};
    }
    if (columns) {
        qsort(columns, (size_t)count, sizeof *columns, by_size);
    }
    return columns;
}

/* What is explained: the predicted class, or a target. */
static const char *output_name(const struct row_explanation *self, int output, char buffer[OUTCOME_NAME])
{
    return outcome_name(self->trained, self->shapley.outputs == 1 ? self->found.best : output, buffer);
}

static void report_output_as_json(const struct row_explanation *self, int output, const struct importance *columns,
                                  cJSON *outputs)
{
    char buffer[OUTCOME_NAME];
    const bool is_class = outcome_kind(self->trained) == OUTCOME_CLASS;
    cJSON *one = cJSON_CreateObject();
    cJSON_AddStringToObject(one, is_class ? "class" : "target", output_name(self, output, buffer));
    cJSON_AddNumberToObject(one, outcome_kind(self->trained) == OUTCOME_NUMBERS ? "prediction" : "probability",
                            self->found.values[output]);
    cJSON_AddNumberToObject(one, "mean", self->found.means[output]);
    cJSON *list = cJSON_AddArrayToObject(one, "columns");
    for (int i = 0; i < self->shapley.column_count; i++) {
        cJSON *column = cJSON_CreateObject();
        cJSON_AddStringToObject(column, "column", columns[i].column->name);
        cJSON_AddNumberToObject(column, "contribution", columns[i].mean);
        cJSON_AddNumberToObject(column, "error", columns[i].spread);
        json_append(list, column);
    }
    json_append(outputs, one);
}

static void report_output(const struct row_explanation *self, int output, const struct importance *columns)
{
    char buffer[OUTCOME_NAME], number[COUNT_TEXT];
    const enum outcome_kind kind = outcome_kind(self->trained);
    log_info("row %s: %s %.*s is %.6g; the mean over %d rows is %.6g. What each column contributes to the difference, "
             "and its standard error:",
             count_text(number, self->number), kind == OUTCOME_NUMBERS ? "predicted" : "the probability of", 80,
             output_name(self, output, buffer), self->found.values[output], self->shapley.background.count,
             self->found.means[output]);
    report_columns(columns, self->shapley.column_count);
}

static bool report_row(const struct row_explanation *self, struct error *error)
{
    const bool as_json = log_format() == LOG_JSON;
    cJSON *fields = as_json ? cJSON_CreateObject() : NULL;
    cJSON_AddStringToObject(fields, "checkpoint", checkpoint_path(self->trained->file));
    cJSON_AddNumberToObject(fields, "global_step", (double)checkpoint_file_info(self->trained->file)->global_step);
    cJSON_AddNumberToObject(fields, "row", (double)self->number);
    cJSON_AddNumberToObject(fields, "background_rows", self->shapley.background.count);
    cJSON_AddNumberToObject(fields, "samples", self->shapley.samples);
    cJSON *outputs = as_json ? cJSON_AddArrayToObject(fields, "outputs") : NULL;
    for (int output = 0; output < self->shapley.outputs; output++) {
        struct importance *columns = rank(self, output);
        if (!columns) {
            cJSON_Delete(fields);
            return error_set(error, "out of memory for %d columns", self->shapley.column_count);
        }
        if (as_json) {
            report_output_as_json(self, output, columns, outputs);
        } else {
            report_output(self, output, columns);
        }
        free(columns);
    }
    if (as_json) {
        log_event("contributions", fields, NULL);
    }
    return true;
}

static bool explain_row(struct row_explanation *self, const char *path, const char *background, struct error *error)
{
    const char *obstacle = shapley_obstacle(self->trained);
    const bool done =
        (!obstacle || error_set(error, "%s %s", checkpoint_path(self->trained->file), obstacle)) &&
        load_row(self, path, background, error) &&
        shapley_explain(&self->shapley, self->trained->engine, &self->row, self->place, NULL, &self->found, error) &&
        report_row(self, error);
    contributions_free(&self->found);
    shapley_free(&self->shapley);
    examples_free(&self->row);
    return done;
}

/* --- the command --- */

/* The flag's count, from 1 to `most`; 0 if it is none. */
static int parse_count(const char *text, int usual, int most)
{
    char *end;
    if (!text) {
        return usual;
    }
    errno = 0;
    const long number = strtol(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || number < 1 || number > most ? 0 : (int)number;
}

enum { MOST_ROW = 2000000000 };

/* The counts of a call; false, with a word, if one is wrong. */
struct counts {
    int repeats, samples, row; /* row 0: none is asked for */
};

static bool read_counts(struct counts *counts, const struct command_call *call)
{
    const char *row = command_value(call, "row"), *alone[] = {"samples", "background"};
    *counts = (struct counts){
        .repeats = parse_count(command_value(call, "repeats"), DEFAULT_REPEATS, MOST_REPEATS),
        .samples = parse_count(command_value(call, "samples"), SHAPLEY_SAMPLES, SHAPLEY_MOST_SAMPLES),
        .row = row ? parse_count(row, 0, MOST_ROW) : 0,
    };
    if (counts->repeats == 0) {
        log_error("--repeats: must be an integer from 1 to %d", MOST_REPEATS);
    } else if (counts->samples == 0) {
        log_error("--samples: must be an integer from 1 to %d", SHAPLEY_MOST_SAMPLES);
    } else if (row && counts->row == 0) {
        log_error("--row: must be the number of a row, from 1");
    } else if (row && command_value(call, "repeats")) {
        log_error("--repeats shuffles columns, and --row does not; use --samples");
    } else if (!row && (command_value(call, alone[0]) || command_value(call, alone[1]))) {
        log_error("--%s is for the explanation of one row; add --row=N", alone[command_value(call, alone[0]) ? 0 : 1]);
    } else {
        return true;
    }
    return false;
}

static int run_explain(const struct command_call *call)
{
    struct explanation explanation = {.repeats = 0};
    struct trained *trained = &explanation.trained;
    struct counts counts;
    struct error error;
    const char *train_dir = call->operand_count > 0 ? call->operands[0] : call->config->output.train_dir;
    const char *path = call->operand_count > 1 ? call->operands[1] : NULL;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (!read_counts(&counts, call)) {
        return COMMAND_MISUSED;
    }
    explanation.repeats = counts.repeats;
    bool done = trained_open(trained, call->config, command_value(call, "checkpoint"), train_dir,
                             CHECKPOINT_BEST_WEIGHTS, &error);
    if (done && !trained->schema) {
        done = error_set(&error, "%s: is a model of pictures; explain is for the columns of a table",
                         checkpoint_path(trained->file));
    }
    if (counts.row > 0) {
        struct row_explanation row = {.trained = trained, .number = counts.row, .samples = counts.samples};
        done = done && trained_start(trained, &error) &&
               explain_row(&row, path, command_value(call, "background"), &error);
    } else {
        done =
            done && load(&explanation, path, &error) && trained_start(trained, &error) && explain(&explanation, &error);
    }
    if (!done) {
        log_error("%s", error.text);
    } else if (counts.row == 0) {
        report(&explanation);
    }
    explanation_free(&explanation);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (best)"},
    {"repeats", "N", "how often each column is shuffled (5)"},
    {"row", "N", "explain the prediction for row N, from 1, of FILE or of the test rows"},
    {"samples", "N", "with row: in how many orders columns are taken, at least (400)"},
    {"background", "FILE", "with row: the rows to compare it with (those of FILE, or the test rows; at most 100)"},
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

const struct command command_explain = {
    .name = "explain",
    .operands = "[train_dir [FILE]]",
    .max_operands = 2,
    .summary = "rank the columns of a table by their importance to a model, or to one prediction",
    .details =
        "Permutation importance: how much worse the run's metric gets on the test rows, or those of FILE, if a "
        "column's values are shuffled among them; a column of categories is shuffled as a whole. --seed selects other "
        "shuffles. Redundant columns share their importance, or hide it: the model still has the other one. With "
        "--row: "
        "how much each column contributes to the prediction for that row, by Shapley values: the contributions add up "
        "to its difference from the mean prediction for the rows of the background. Of classes it is the probability "
        "of the predicted one. predict --explain does that for each row of a file.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_explain,
};
