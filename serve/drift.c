/* Bins are found once, from the reference; what comes is only counted. Shares of empty bins count as half a row's. */
#include "serve/drift.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/philox.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/schema.h"
#include "worker/metrics.h"

enum { MOST_READ = 1000000 };

/* --- columns --- */

bool drift_begin(struct drift_watch *drift, const struct trained *trained, struct error *error)
{
    const struct schema *schema = trained->schema;
    *drift = (struct drift_watch){.trained = trained};
    drift->columns = calloc((size_t)schema->count + 1, sizeof *drift->columns);
    if (!drift->columns) {
        return error_set(error, "out of memory for %d columns", schema->count);
    }
    pthread_mutex_init(&drift->mutex, NULL);
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        if (column->role == SCHEMA_FEATURE) {
            drift->columns[drift->count++] = (struct drift_column){
                .name = column->name,
                .input = column->kind == SCHEMA_NUMBER ? column->input : -1,
                .code = column->code,
                .place = column->place,
            };
        }
    }
    drift->columns[drift->count++] = (struct drift_column){.name = "", .input = -1, .code = -1};
    return true;
}

void drift_end(struct drift_watch *drift)
{
    if (drift->columns) {
        pthread_mutex_destroy(&drift->mutex);
    }
    free(drift->columns);
    drift->columns = NULL;
}

static bool is_prediction(const struct drift_watch *drift, const struct drift_column *column)
{
    return column == &drift->columns[drift->count - 1];
}

/* What the predictions of a row are binned by. */
static float prediction_of(const struct drift_watch *drift, const struct examples *examples, const float *outputs,
                           int row)
{
    const struct schema *schema = drift->trained->schema;
    const int width = schema_outputs(schema);
    const float *own = outputs + (size_t)row * (size_t)width;
    if (schema->task == TASK_INPUTS) {
        const float *wanted = examples->target_values + (size_t)row * (size_t)width;
        return (float)metrics_reconstruction_error(own, wanted, width);
    }
    int best = 0;
    for (int i = 1; i < width && schema->task == TASK_CLASS; i++) {
        best = own[i] > own[best] ? i : best;
    }
    return schema->task == TASK_CLASS ? (float)best : own[0];
}

/* A number of a row; NaN: it is missing, or the column has categories. */
static float number_of(const struct drift_watch *drift, const struct drift_column *column,
                       const struct examples *examples, const float *outputs, int row)
{
    if (is_prediction(drift, column)) {
        return prediction_of(drift, examples, outputs, row);
    }
    if (column->input < 0 ||
        (column->code >= 0 && examples->places[(size_t)row * (size_t)examples->codes + (size_t)column->code] >= 0)) {
        return NAN;
    }
    return examples->values[(size_t)row * (size_t)examples->numbers + (size_t)column->input];
}

/* Which category: 0 is what has no place of its own. */
static int category_of(const struct drift_column *column, const struct examples *examples, int row)
{
    const int place = examples->places[(size_t)row * (size_t)examples->codes + (size_t)column->code] - column->place;
    return place < 0 ? 0 : place;
}

static bool has_categories(const struct drift_watch *drift, const struct drift_column *column)
{
    return column->input < 0 && !is_prediction(drift, column);
}

static int bin_of(const struct drift_watch *drift, const struct drift_column *column, const struct examples *examples,
                  const float *outputs, int row)
{
    const bool are_classes = is_prediction(drift, column) && drift->trained->schema->task == TASK_CLASS;
    if (has_categories(drift, column) || are_classes) {
        const int category =
            are_classes ? (int)prediction_of(drift, examples, outputs, row) : category_of(column, examples, row);
        return category < DRIFT_BINS ? category : DRIFT_BINS - 1;
    }
    const float number = number_of(drift, column, examples, outputs, row);
    int bin = 0;
    if (isnan(number)) {
        return DRIFT_PARTS;
    }
    while (bin < DRIFT_PARTS - 1 && number >= column->edges[bin]) {
        bin++;
    }
    return bin;
}

/* --- the reference --- */

static int by_size(const void *one, const void *other)
{
    const float a = *(const float *)one, b = *(const float *)other;
    return (a > b) - (a < b);
}

static void find_edges(struct drift_column *column, float *numbers, int count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, by_size);
    column->least = count > 0 ? numbers[0] : -INFINITY;
    column->most = count > 0 ? numbers[count - 1] : INFINITY;
    for (int i = 1; i < DRIFT_PARTS; i++) {
        column->edges[i - 1] = count > 0 ? numbers[(size_t)count * (size_t)i / DRIFT_PARTS] : 0;
    }
}

static void refer(struct drift_watch *drift, struct drift_column *column, const struct examples *examples,
                  const float *outputs, float *numbers)
{
    int count = 0;
    for (int row = 0; row < examples->count; row++) {
        const float number = number_of(drift, column, examples, outputs, row);
        if (!isnan(number)) {
            numbers[count++] = number;
        }
    }
    find_edges(column, numbers, count);
    for (int row = 0; row < examples->count; row++) {
        column->expected[bin_of(drift, column, examples, outputs, row)]++;
    }
    column->bins = DRIFT_BINS;
}

/* A number below `count`, which is less than 2^24; the same one in each run. */
static uint64_t one_below(uint64_t count)
{
    const struct philox_block drawn = philox(philox_key(count), RANDOM_SHUFFLE, 0, 0, 0);
    return (uint64_t)((double)philox_uniform(drawn.word[0]) * (double)count);
}

/* Rows of the file, each with the same chance to be kept. */
static bool read_rows(struct rows *rows, const struct encoder *encoder, struct examples *examples, struct error *error)
{
    uint64_t read = 0;
    struct row row;
    examples->count = 0;
    while (read < MOST_READ) {
        const enum csv_status status = rows_next(rows, &row, error);
        if (status == CSV_END) {
            break;
        }
        if (status == CSV_FAILED) {
            return false;
        }
        const uint64_t at = read < DRIFT_WINDOW ? read : one_below(read + 1);
        if (status != CSV_ROW || at >= DRIFT_WINDOW) {
            read += status == CSV_ROW;
            continue;
        }
        if (encoder_add(encoder, rows, &row, examples, DRIFT_WINDOW, error)) { /* behind the others: it may fail */
            examples_copy(examples, (int)at, examples, DRIFT_WINDOW, 1);
            examples->count += examples->count < DRIFT_WINDOW;
            read++;
        }
    }
    return examples->count > 0 || error_wrap(error, "--reference has no row that the model can read");
}

static bool compute(struct drift_watch *drift, struct engine *engine, const struct examples *examples,
                    struct error *error)
{
    const size_t width = (size_t)schema_outputs(drift->trained->schema), count = (size_t)examples->count;
    float *outputs = malloc(count * width * sizeof *outputs), *numbers = malloc(count * sizeof *numbers);
    bool done = outputs && numbers ? engine->table->forward(engine, false, examples, 0, examples->count, outputs, error)
                                   : error_set(error, "out of memory for %zu rows", count);
    for (size_t i = 0; done && i < count * width; i++) {
        done = isfinite(outputs[i]) ||
               error_set(error, "gives %g for row %zu of --reference; it has diverged", (double)outputs[i], i / width);
    }
    for (int i = 0; done && i < drift->count; i++) {
        refer(drift, &drift->columns[i], examples, outputs, numbers);
    }
    free(outputs);
    free(numbers);
    return done;
}

bool drift_refer(struct drift_watch *drift, const char *path, struct engine *engine, struct error *error)
{
    const struct schema *schema = drift->trained->schema;
    struct rows *rows = NULL;
    struct encoder encoder = {.schema = schema};
    struct examples examples = {.count = 0};
    error->text[0] = '\0';
    drift->has_reference = rows_open(&rows, path, drift->trained->config.data.header, error) &&
                           encoder_begin(&encoder, schema, rows, false, error) &&
                           encoder_allocate(&examples, schema, DRIFT_WINDOW + 1, schema->task == TASK_INPUTS, error) &&
                           read_rows(rows, &encoder, &examples, error) && compute(drift, engine, &examples, error);
    examples_free(&examples);
    encoder_end(&encoder);
    rows_close(rows);
    return drift->has_reference;
}

/* --- what comes --- */

static void count_row(struct drift_watch *drift, struct drift_column *column, const struct examples *examples,
                      const float *outputs, int row)
{
    if (has_categories(drift, column)) {
        column->unknown += category_of(column, examples, row) == 0;
    } else if (column->bins > 0) {
        const float number = number_of(drift, column, examples, outputs, row);
        column->outside += number < column->least || number > column->most;
    }
    if (column->bins > 0) {
        column->seen[drift->window][bin_of(drift, column, examples, outputs, row)]++;
    }
}

void drift_add(struct drift_watch *drift, const struct examples *examples, const float *outputs)
{
    pthread_mutex_lock(&drift->mutex);
    for (int row = 0; row < examples->count; row++) {
        if (drift->windowed == DRIFT_WINDOW) {
            drift->window = !drift->window;
            drift->windowed = 0;
            for (int i = 0; i < drift->count; i++) {
                memset(drift->columns[i].seen[drift->window], 0, sizeof drift->columns[i].seen[0]);
            }
        }
        for (int i = 0; i < drift->count; i++) {
            count_row(drift, &drift->columns[i], examples, outputs, row);
        }
        drift->windowed++;
        drift->rows++;
    }
    pthread_mutex_unlock(&drift->mutex);
}

static double stability(const struct drift_column *column)
{
    double there = 0, here = 0, sum = 0;
    for (int i = 0; i < column->bins; i++) {
        there += column->expected[i];
        here += (double)column->seen[0][i] + column->seen[1][i];
    }
    if (there == 0 || here == 0) {
        return NAN;
    }
    for (int i = 0; i < column->bins; i++) {
        const double expected = column->expected[i], seen = (double)column->seen[0][i] + column->seen[1][i];
        const double p = (expected > 0 ? expected : 0.5) / there, q = (seen > 0 ? seen : 0.5) / here;
        sum += expected > 0 || seen > 0 ? (q - p) * log(q / p) : 0;
    }
    return sum;
}

struct drift_state drift_state(struct drift_watch *drift, int index)
{
    pthread_mutex_lock(&drift->mutex);
    const struct drift_column *column = &drift->columns[index];
    const struct drift_state state = {
        .name = column->name, .index = stability(column), .unknown = column->unknown, .outside = column->outside};
    pthread_mutex_unlock(&drift->mutex);
    return state;
}

uint64_t drift_rows(struct drift_watch *drift)
{
    pthread_mutex_lock(&drift->mutex);
    const uint64_t rows = drift->rows;
    pthread_mutex_unlock(&drift->mutex);
    return rows;
}
