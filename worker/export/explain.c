/*
 * trainer explain: on which columns a table's model relies. A column's values are shuffled among the rows; how much
 * worse the metric gets is the column's importance (Breiman, "Random forests", 2001). A column of categories is
 * shuffled as a whole, and a missing value takes its indicator along.
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

/* --- the command --- */

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

static void report(const struct explanation *self)
{
    char number[COUNT_TEXT];
    int width = 0, used;
    if (log_format() == LOG_JSON) {
        report_as_json(self);
        return;
    }
    for (int i = 0; i < self->count; i++) {
        utf8_fit(self->columns[i].column->name, NAME_COLUMNS, &used);
        width = used > width ? used : width;
    }
    log_info("checkpoint %s, step %s", checkpoint_path(self->trained.file),
             count_text(number, checkpoint_file_info(self->trained.file)->global_step));
    log_info(
        "%s %.6g on %s rows; how much worse it gets if a column is shuffled, mean and standard deviation of %d times:",
        config_metric_name(self->metric), self->score, count_text(number, self->rows.count), self->repeats);
    for (int i = 0; i < self->count; i++) {
        const char *name = self->columns[i].column->name;
        const int size = (int)utf8_fit(name, NAME_COLUMNS, &used);
        log_info("%.*s%*s  %12.6g  +- %.6g", size, name, width - used, "", self->columns[i].mean,
                 self->columns[i].spread);
    }
}

/* 0 if the text is not a count. */
static int parse_repeats(const char *text)
{
    char *end;
    if (!text) {
        return DEFAULT_REPEATS;
    }
    errno = 0;
    const long number = strtol(text, &end, 10);
    return errno != 0 || end == text || *end != '\0' || number < 1 || number > MOST_REPEATS ? 0 : (int)number;
}

static int run_explain(const struct command_call *call)
{
    struct explanation explanation = {.repeats = parse_repeats(command_value(call, "repeats"))};
    struct trained *trained = &explanation.trained;
    struct error error;
    const char *train_dir = call->operand_count > 0 ? call->operands[0] : call->config->output.train_dir;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (explanation.repeats == 0) {
        log_error("--repeats: must be an integer from 1 to %d", MOST_REPEATS);
        return COMMAND_MISUSED;
    }
    bool done = trained_open(trained, call->config, command_value(call, "checkpoint"), train_dir,
                             CHECKPOINT_BEST_WEIGHTS, &error);
    if (done && !trained->schema) {
        done = error_set(&error, "%s: is a model of pictures; explain is for the columns of a table",
                         checkpoint_path(trained->file));
    }
    done = done && load(&explanation, call->operand_count > 1 ? call->operands[1] : NULL, &error) &&
           trained_start(trained, &error) && explain(&explanation, &error);
    if (done) {
        report(&explanation);
    } else {
        log_error("%s", error.text);
    }
    explanation_free(&explanation);
    return done ? COMMAND_DONE : COMMAND_FAILED;
}

static const struct command_flag flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (best)"},
    {"repeats", "N", "how often each column is shuffled (5)"},
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

const struct command command_explain = {
    .name = "explain",
    .operands = "[train_dir [FILE]]",
    .max_operands = 2,
    .summary = "rank the columns of a table by their importance to a model",
    .details =
        "Permutation importance: how much worse the run's metric gets on the test rows, or those of FILE, if a "
        "column's values are shuffled among them; a column of categories is shuffled as a whole. --seed selects other "
        "shuffles. Redundant columns share their importance, or hide it: the model still has the other one.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_explain,
};
