/*
 * Rows on the way from a row of the background to the one in question are computed many at a time. They come in order:
 * of a row of the background, of each of its pairs of orders, there and back; so what each prediction differs from is
 * the one before.
 */
#include "worker/export/shapley.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/sampler.h"
#include "worker/data/table/schema.h"
#include "worker/export/outcome.h"

enum { TOGETHER = 512 /* rows computed at once */ };

const char *shapley_obstacle(const struct trained *trained)
{
    return !trained->schema                         ? "is a model of pictures; columns of tables are explained"
           : outcome_kind(trained) == OUTCOME_ERROR ? "learns its inputs; what predicts a target is explained"
           : schema_features(trained->schema) == 0  ? "has no columns to explain"
                                                    : NULL;
}

/* --- the background --- */

/* Predictions of all rows, [count, predictions]. */
static bool predict(const struct trained *trained, struct engine *engine, const struct examples *rows, double *values,
                    struct error *error)
{
    struct outcome outcome;
    const int predictions = outcome_count(trained);
    float *outputs = malloc((size_t)rows->count * (size_t)predictions * sizeof *outputs);
    if (!outputs || !outcome_create(&outcome, trained)) {
        free(outputs);
        return error_set(error, "out of memory for %d predictions", rows->count);
    }
    const bool done = engine->table->forward(engine, false, rows, 0, rows->count, outputs, error);
    for (int row = 0; done && row < rows->count; row++) {
        outcome_find(trained, outputs, NULL, row, &outcome);
        memcpy(values + (size_t)row * (size_t)predictions, outcome.values, (size_t)predictions * sizeof *values);
    }
    outcome_free(&outcome);
    free(outputs);
    return done;
}

/* Features come first in a schema, without gaps. */
static bool plan(struct shapley *self, int samples)
{
    const int rows = self->background.count;
    self->column_count = schema_features(self->trained->schema);
    self->predictions = outcome_count(self->trained);
    self->outputs = outcome_kind(self->trained) == OUTCOME_CLASS ? 1 : self->predictions;
    const int pairs = (samples + 2 * rows - 1) / (2 * rows);
    self->pairs = pairs < 2 ? 2 : pairs; /* one would leave the error open */
    self->samples = 2 * self->pairs * rows;
    self->seed = (uint64_t)self->trained->config.train.seed;
    self->values = calloc((size_t)rows * (size_t)self->predictions, sizeof *self->values);
    self->means = calloc((size_t)self->predictions, sizeof *self->means);
    return self->values && self->means;
}

bool shapley_make(struct shapley *self, const struct trained *trained, struct examples *background, int samples,
                  struct engine *engine, struct error *error)
{
    *self = (struct shapley){.trained = trained, .background = *background};
    *background = (struct examples){.count = 0};
    if (self->background.count == 0) {
        return error_set(error, "there are no rows to compare with");
    }
    if (!plan(self, samples)) {
        return error_set(error, "out of memory for %d rows to compare with", self->background.count);
    }
    if (!predict(trained, engine, &self->background, self->values, error)) {
        return false;
    }
    for (int row = 0; row < self->background.count; row++) {
        for (int i = 0; i < self->predictions; i++) {
            self->means[i] += self->values[(size_t)row * (size_t)self->predictions + (size_t)i];
        }
    }
    for (int i = 0; i < self->predictions; i++) {
        self->means[i] /= self->background.count;
    }
    return true;
}

void shapley_free(struct shapley *self)
{
    examples_free(&self->background);
    free(self->values);
    free(self->means);
    *self = (struct shapley){.samples = 0};
}

/* --- a row --- */

static size_t cells(const struct shapley *self)
{
    return (size_t)self->outputs * (size_t)self->column_count;
}

int64_t shapley_rows(const struct shapley *self)
{
    return (int64_t)self->samples * self->column_count;
}

double shapley_work(const struct shapley *self)
{
    const struct model *model = &self->trained->model;
    const struct schema *schema = self->trained->schema;
    const int unmet = schema->inputs - schema->dense - schema->codes; /* of a row's categories most are not its own */
    return (double)shapley_rows(self) *
           ((double)model->parameter_count - (double)model->net_count * unmet * model->widths[1]);
}

size_t shapley_kept_bytes(const struct trained *trained, const struct examples *background)
{
    return (size_t)background->count * (examples_bytes(background) + (size_t)outcome_count(trained) * sizeof(double));
}

size_t shapley_bytes(const struct shapley *self)
{
    return (size_t)(TOGETHER + 1) *
               (examples_bytes(&self->background) + (size_t)self->predictions * (sizeof(float) + sizeof(double))) +
           5 * cells(self) * sizeof(double);
}

bool contributions_create(struct contributions *contributions, const struct shapley *shapley)
{
    const size_t outputs = (size_t)shapley->outputs, count = cells(shapley);
    double *memory = calloc(2 * outputs + 2 * count, sizeof *memory);
    *contributions = (struct contributions){.memory = memory};
    if (memory) {
        contributions->values = memory;
        contributions->means = memory + outputs;
        contributions->of = memory + 2 * outputs;
        contributions->errors = memory + 2 * outputs + count;
    }
    return memory;
}

void contributions_free(struct contributions *contributions)
{
    free(contributions->memory);
    *contributions = (struct contributions){.best = 0};
}

/* What a row's prediction is needed for, on the way from a row of the background to the one in question. */
struct path_step {
    const double *before; /* the first: predictions of the background's row; else NULL */
    int column;           /* that changed last */
    bool ends_pair, ends_row;
};

/* Rows whose predictions are not known yet. */
struct journey {
    const struct shapley *self;
    struct engine *engine;
    const struct shapley_watch *watch;
    struct contributions *contributions;
    struct examples rows; /* [TOGETHER + 1]: the last one is the row in question */
    float *predicted;     /* [TOGETHER, predictions] */
    struct outcome outcome;
    struct path_step *steps; /* [TOGETHER] */
    int count;
    double *previous; /* [outputs]: of the row before */
    double *pair;     /* [outputs, columns]: twice a pair's contributions so far */
    double *sums;     /* likewise, of the pairs of this row of the background ... */
    double *squares;  /* ... and of their squares */
};

static void *array_at(float *values, int width, int row, int first)
{
    return values + (size_t)row * (size_t)width + (size_t)first;
}

/* Row `to` gets a column's value from row `from` of the same set. */
static void take_column(const struct examples *rows, const struct schema_column *column, int to, int from)
{
    const size_t numbers = rows->values ? (size_t)schema_numbers(column) : 0;
    const size_t pieces = rows->positions ? (size_t)schema_pieces(column) : 0;
    if (numbers > 0) {
        memcpy(array_at(rows->values, rows->numbers, to, column->input),
               array_at(rows->values, rows->numbers, from, column->input), numbers * sizeof(float));
    }
    if (pieces > 0) {
        memcpy(array_at(rows->positions, rows->piecewise, to, column->piece),
               array_at(rows->positions, rows->piecewise, from, column->piece), pieces * sizeof(float));
    }
    if (column->code >= 0) {
        rows->places[(size_t)to * (size_t)rows->codes + (size_t)column->code] =
            rows->places[(size_t)from * (size_t)rows->codes + (size_t)column->code];
    }
}

/* The predictions that are explained, of all that a row has. */
static double explained(const struct journey *journey, const double *predictions, int output)
{
    return predictions[journey->self->outputs == 1 ? journey->contributions->best : output];
}

static void settle_pair(struct journey *journey)
{
    for (size_t i = 0; i < cells(journey->self); i++) {
        const double mean = journey->pair[i] / 2;
        journey->sums[i] += mean;
        journey->squares[i] += mean * mean;
        journey->pair[i] = 0;
    }
}

/* Its share of the contributions, and of their variance. */
static void settle_row(struct journey *journey)
{
    const double pairs = journey->self->pairs, rows = journey->self->background.count;
    struct contributions *found = journey->contributions;
    for (size_t i = 0; i < cells(journey->self); i++) {
        const double mean = journey->sums[i] / pairs;
        const double variance = (journey->squares[i] - pairs * mean * mean) / (pairs - 1);
        found->of[i] += mean / rows;
        found->errors[i] += fmax(variance, 0) / pairs / (rows * rows);
        journey->sums[i] = journey->squares[i] = 0;
    }
}

static void settle(struct journey *journey, const struct path_step *step)
{
    for (int output = 0; output < journey->self->outputs; output++) {
        const double now = explained(journey, journey->outcome.values, output);
        if (step->before) {
            journey->previous[output] = explained(journey, step->before, output);
        }
        journey->pair[(size_t)output * (size_t)journey->self->column_count + (size_t)step->column] +=
            now - journey->previous[output];
        journey->previous[output] = now;
    }
    if (step->ends_pair) {
        settle_pair(journey);
    }
    if (step->ends_row) {
        settle_row(journey);
    }
}

/* Computes those that have gathered. */
static bool arrive(struct journey *journey, struct error *error)
{
    struct engine *engine = journey->engine;
    const struct shapley_watch *watch = journey->watch;
    if (watch && !watch->goes_on(watch->context, error)) {
        return false;
    }
    if (journey->count > 0 &&
        !engine->table->forward(engine, false, &journey->rows, 0, journey->count, journey->predicted, error)) {
        return false;
    }
    for (int i = 0; i < journey->count; i++) {
        outcome_find(journey->self->trained, journey->predicted, NULL, i, &journey->outcome);
        settle(journey, &journey->steps[i]);
    }
    journey->count = 0;
    return true;
}

/* One order of columns, from row `from` of the background to the row in question. */
static bool walk(struct journey *journey, int from, const struct sampler_order *order, bool is_back, bool is_last,
                 struct error *error)
{
    const struct shapley *self = journey->self;
    for (int at = 0; at < self->column_count; at++) {
        const bool is_end = at + 1 == self->column_count;
        const int here = journey->count, before = here > 0 ? here - 1 : TOGETHER - 1; /* a computed set stays */
        const int column = (int)sampler_index(order, (uint32_t)(is_back ? self->column_count - 1 - at : at));
        if (at == 0) {
            examples_copy(&journey->rows, here, &self->background, from, 1);
        } else {
            examples_copy(&journey->rows, here, &journey->rows, before, 1);
        }
        take_column(&journey->rows, &self->trained->schema->columns[column], here, TOGETHER);
        journey->steps[here] = (struct path_step){
            .before = at == 0 ? self->values + (size_t)from * (size_t)self->predictions : NULL,
            .column = column,
            .ends_pair = is_end && is_back,
            .ends_row = is_end && is_last,
        };
        journey->count++;
        if (journey->count == TOGETHER && !arrive(journey, error)) {
            return false;
        }
    }
    return true;
}

static bool walk_all(struct journey *journey, struct error *error)
{
    const struct shapley *self = journey->self;
    bool done = true;
    for (int from = 0; done && from < self->background.count; from++) {
        const struct sampler sampler = {
            .seed = self->seed, .task = (uint32_t)from, .examples = (uint32_t)self->column_count, .batch_size = 1};
        for (int pair = 0; done && pair < self->pairs; pair++) {
            struct sampler_order order;
            sampler_order_make(&order, &sampler, pair);
            done = walk(journey, from, &order, false, false, error) &&
                   walk(journey, from, &order, true, pair + 1 == self->pairs, error);
        }
    }
    return done && arrive(journey, error);
}

static bool journey_begin(struct journey *journey, const struct examples *examples, int row, struct error *error)
{
    const struct shapley *self = journey->self;
    const size_t outputs = (size_t)self->outputs, count = cells(self);
    double *memory = calloc(outputs + 3 * count, sizeof *memory);
    journey->previous = memory;
    journey->predicted = malloc((size_t)TOGETHER * (size_t)self->predictions * sizeof *journey->predicted);
    journey->steps = calloc(TOGETHER, sizeof *journey->steps);
    if (!memory || !journey->predicted || !journey->steps || !outcome_create(&journey->outcome, self->trained) ||
        !examples_create(&journey->rows, &self->background, TOGETHER + 1)) {
        return error_set(error, "out of memory to explain a row");
    }
    journey->pair = memory + outputs;
    journey->sums = journey->pair + count;
    journey->squares = journey->sums + count;
    examples_copy(&journey->rows, TOGETHER, examples, row, 1);
    return true;
}

static void journey_end(struct journey *journey)
{
    free(journey->previous);
    free(journey->predicted);
    free(journey->steps);
    outcome_free(&journey->outcome);
    examples_free(&journey->rows);
}

/* The row's own prediction, which says what is explained. */
static bool begin(struct journey *journey, struct error *error)
{
    const struct shapley *self = journey->self;
    struct contributions *found = journey->contributions;
    const size_t count = cells(self);
    memset(found->of, 0, count * sizeof *found->of);
    memset(found->errors, 0, count * sizeof *found->errors);
    if (!journey->engine->table->forward(journey->engine, false, &journey->rows, TOGETHER, 1, journey->predicted,
                                         error)) {
        return false;
    }
    outcome_find(self->trained, journey->predicted, NULL, 0, &journey->outcome);
    found->best = journey->outcome.kind == OUTCOME_CLASS ? journey->outcome.best : 0;
    for (int output = 0; output < self->outputs; output++) {
        found->values[output] = explained(journey, journey->outcome.values, output);
        found->means[output] = explained(journey, self->means, output);
    }
    return true;
}

bool shapley_explain(const struct shapley *self, struct engine *engine, const struct examples *examples, int row,
                     const struct shapley_watch *watch, struct contributions *contributions, struct error *error)
{
    struct journey journey = {.self = self, .engine = engine, .watch = watch, .contributions = contributions};
    const bool done =
        journey_begin(&journey, examples, row, error) && begin(&journey, error) && walk_all(&journey, error);
    journey_end(&journey);
    for (size_t i = 0; done && i < cells(self); i++) {
        contributions->errors[i] = sqrt(contributions->errors[i]);
    }
    return done;
}

/* --- as columns of a CSV file --- */

static const char mean_name[] = "explanation_mean", error_name[] = "explanation_error", prefix[] = "contribution_";
static const char mean_prefix[] = "explanation_mean_", error_prefix[] = "explanation_error_"; /* of several targets */

static void put_name(const struct shapley *self, FILE *out, char delimiter, const char *what, int output,
                     const char *column)
{
    const char *target = self->outputs > 1 ? schema_output_name(self->trained->schema, output) : "";
    const char *between = target[0] != '\0' && column[0] != '\0' ? "_" : "";
    const size_t room = strlen(target) + strlen(between) + strlen(column) + 1;
    char *text = malloc(room);
    fputc(delimiter, out);
    if (text) {
        snprintf(text, room, "%s%s%s", target, between, column);
        csv_put(out, what, text, room - 1, delimiter);
        free(text);
    }
}

void contributions_put_names(const struct shapley *self, FILE *out, char delimiter)
{
    const bool is_one = self->outputs == 1;
    for (int output = 0; output < self->outputs; output++) {
        put_name(self, out, delimiter, is_one ? mean_name : mean_prefix, output, "");
        for (int i = 0; i < self->column_count; i++) {
            put_name(self, out, delimiter, prefix, output, self->trained->schema->columns[i].name);
        }
        put_name(self, out, delimiter, is_one ? error_name : error_prefix, output, "");
    }
}

void contributions_put(const struct shapley *self, const struct contributions *found, FILE *out, char delimiter)
{
    for (int output = 0; output < self->outputs; output++) {
        double worst = 0;
        fprintf(out, "%c%.9g", delimiter, found->means[output]);
        for (int i = 0; i < self->column_count; i++) {
            const size_t at = (size_t)output * (size_t)self->column_count + (size_t)i;
            fprintf(out, "%c%.9g", delimiter, found->of[at]);
            worst = fmax(worst, found->errors[at]);
        }
        fprintf(out, "%c%.3g", delimiter, worst);
    }
}

/* The rest of a text after its beginning; NULL: it begins otherwise. */
static const char *after(const char *text, const char *beginning)
{
    const size_t length = strlen(beginning);
    return text && strncmp(text, beginning, length) == 0 ? text + length : NULL;
}

static bool is_feature(const struct schema *schema, const char *name)
{
    bool is = false;
    for (int i = 0; name && !is && i < schema_features(schema); i++) {
        is = strcmp(schema->columns[i].name, name) == 0;
    }
    return is;
}

/* What contributions_put_names writes of one of several targets. */
static bool is_of_target(const struct schema *schema, const char *name, const char *target)
{
    const char *mean = after(after(name, mean_prefix), target), *error = after(after(name, error_prefix), target);
    return (mean && mean[0] == '\0') || (error && error[0] == '\0') ||
           is_feature(schema, after(after(after(name, prefix), target), target[0] != '\0' ? "_" : ""));
}

bool contributions_is_name(const struct trained *trained, const char *name)
{
    const struct schema *schema = trained->schema;
    const int outputs = outcome_kind(trained) == OUTCOME_CLASS ? 1 : outcome_count(trained);
    bool is = outputs == 1 && (strcmp(name, mean_name) == 0 || strcmp(name, error_name) == 0 ||
                               is_feature(schema, after(name, prefix)));
    for (int output = 0; outputs > 1 && !is && output < outputs; output++) {
        is = is_of_target(schema, name, schema_output_name(schema, output));
    }
    for (int i = 0; is && i < schema->count; i++) {
        is = strcmp(schema->columns[i].name, name) != 0;
    }
    return is;
}
