/* Bins are computed once, from the reference; incoming rows are only counted. An empty bin counts as half a row. */
#include "serve/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "worker/data/dataset.h"
#include "worker/data/image.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/metrics.h"
#include "worker/export/background.h"
#include "worker/export/outcome.h"

/* --- columns --- */

static void add_columns(struct drift_watch *drift, const struct schema *schema)
{
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        const bool is_number = column->kind != SCHEMA_CATEGORY;
        const int input = !is_number ? -1 : schema->encoding == ENCODING_PLE ? column->piece : column->input;
        if (column->role == SCHEMA_FEATURE && is_number == (input >= 0)) { /* a number without bins never counts */
            drift->columns[drift->count++] = (struct drift_column){
                .name = column->name,
                .measure = -1,
                .input = input,
                .code = column->code,
                .place = column->place,
            };
        }
    }
}

static void add_measures(struct drift_watch *drift)
{
    static const char *const names[DRIFT_MEASURES] = {"brightness", "contrast", "centre_x", "centre_y"};
    const bool has_sides = drift->trained->shape.height > 1;
    for (int i = 0; i < (has_sides ? DRIFT_MEASURES : DRIFT_CENTRE_X); i++) {
        drift->columns[drift->count++] = (struct drift_column){.name = names[i], .measure = i, .input = -1, .code = -1};
    }
}

bool drift_begin(struct drift_watch *drift, const struct trained *trained, struct error *error)
{
    const struct schema *schema = trained->schema;
    const int most = schema ? schema->count : DRIFT_MEASURES;
    *drift = (struct drift_watch){.trained = trained};
    drift->columns = calloc((size_t)most + 1, sizeof *drift->columns);
    if (!drift->columns) {
        return error_set(error, "out of memory for %d columns", most);
    }
    pthread_mutex_init(&drift->mutex, NULL);
    if (schema) {
        add_columns(drift, schema);
    } else {
        add_measures(drift);
    }
    drift->columns[drift->count++] = (struct drift_column){.name = "", .measure = -1, .input = -1, .code = -1};
    if (outcome_kind(trained) == OUTCOME_CLASS && outcome_count(trained) <= DRIFT_BINS) {
        drift->classes = outcome_count(trained);
    }
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

static int outputs_of(const struct drift_watch *drift)
{
    return drift->trained->model.widths[drift->trained->model.layer_count];
}

/* The value by which a row's predictions are binned. */
static float prediction_of(const struct drift_watch *drift, const struct examples *examples, const float *outputs,
                           int row)
{
    const enum outcome_kind kind = outcome_kind(drift->trained);
    const int width = outputs_of(drift);
    const float *own = outputs + (size_t)row * (size_t)width;
    if (kind == OUTCOME_ERROR) {
        const float *wanted = examples->target_values + (size_t)row * (size_t)width;
        return (float)metrics_reconstruction_error(own, wanted, width);
    }
    int best = 0;
    for (int i = 1; i < width && kind == OUTCOME_CLASS; i++) {
        best = own[i] > own[best] ? i : best;
    }
    return kind == OUTCOME_CLASS ? (float)best : own[0];
}

/* Sums of whole numbers, so that the order of additions does not matter. */
static float measure_of(enum drift_measure measure, const uint8_t *pixels, const struct image_shape *shape)
{
    const int channels = shape->channels, width = shape->width * channels, count = shape->height * width;
    const int side = measure == DRIFT_CENTRE_X ? shape->width : shape->height;
    uint64_t sum = 0, squares = 0, moment = 0;
    for (int y = 0; y < shape->height; y++) {
        uint64_t line = 0, places = 0;
        for (int x = 0; x < width; x++) {
            const uint32_t pixel = pixels[(size_t)y * (size_t)width + (size_t)x];
            line += pixel;
            squares += pixel * pixel;
            places += pixel * (uint32_t)(x / channels);
        }
        sum += line;
        moment += measure == DRIFT_CENTRE_X ? places : line * (uint64_t)y;
    }
    const double mean = (double)sum / count;
    switch (measure) {
    case DRIFT_BRIGHTNESS:
        return (float)(mean / 255);
    case DRIFT_CONTRAST:
        return (float)(sqrt(fmax(0, (double)squares / count - mean * mean)) / 255);
    default:
        return sum > 0 ? (float)((double)moment / (double)sum / side) : NAN;
    }
}

/* A number of a row; NaN: missing, or the column has categories. */
static float number_of(const struct drift_watch *drift, const struct drift_column *column,
                       const struct examples *examples, const float *outputs, int row)
{
    if (is_prediction(drift, column)) {
        return prediction_of(drift, examples, outputs, row);
    }
    if (column->measure >= 0) {
        const struct image_shape *shape = &drift->trained->shape;
        return measure_of((enum drift_measure)column->measure, examples->images + (size_t)row * image_values(shape),
                          shape);
    }
    if (column->input < 0 ||
        (column->code >= 0 && examples->places[(size_t)row * (size_t)examples->codes + (size_t)column->code] >= 0)) {
        return NAN;
    }
    return examples->values ? examples->values[(size_t)row * (size_t)examples->numbers + (size_t)column->input]
                            : examples->positions[(size_t)row * (size_t)examples->piecewise + (size_t)column->input];
}

/* The category's index: 0 for those without one of their own. */
static int category_of(const struct drift_column *column, const struct examples *examples, int row)
{
    const int place = examples->places[(size_t)row * (size_t)examples->codes + (size_t)column->code] - column->place;
    return place < 0 ? 0 : place;
}

static bool has_categories(const struct drift_watch *drift, const struct drift_column *column)
{
    return column->input < 0 && column->measure < 0 && !is_prediction(drift, column);
}

static int bin_of(const struct drift_watch *drift, const struct drift_column *column, const struct examples *examples,
                  const float *outputs, int row)
{
    const bool are_classes = is_prediction(drift, column) && outcome_kind(drift->trained) == OUTCOME_CLASS;
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

static bool compute(struct drift_watch *drift, struct engine *engine, const struct examples *examples,
                    struct error *error)
{
    const size_t width = (size_t)outputs_of(drift), count = (size_t)examples->count;
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

/* Images of a data set as they are measured. */
struct gallery {
    int inputs;
    const char *path;
    uint64_t seen;
    struct examples examples; /* [DRIFT_WINDOW] */
};

static bool begin_gallery(void *context, const struct examples *shape, struct error *error)
{
    struct gallery *gallery = context;
    const struct examples like = {.height = shape->height, .width = shape->width, .channels = shape->channels};
    if (shape->height * shape->width != gallery->inputs) {
        return error_set(error, "%s: has pictures of %dx%d, and the model was trained on %d values", gallery->path,
                         shape->height, examples_columns(shape), gallery->inputs);
    }
    const bool done = examples_create(&gallery->examples, &like, DRIFT_WINDOW);
    gallery->examples.count = 0;
    return done || error_set(error, "out of memory for %d pictures", DRIFT_WINDOW);
}

static void show_gallery(void *context, const uint8_t *images, const int32_t *labels, int count)
{
    struct gallery *gallery = context;
    struct examples *examples = &gallery->examples;
    const size_t size = (size_t)gallery->inputs;
    (void)labels;
    for (int i = 0; i < count; i++, gallery->seen++) {
        const uint64_t at = gallery->seen < DRIFT_WINDOW ? gallery->seen : background_draw(gallery->seen + 1);
        if (at < DRIFT_WINDOW) {
            memcpy(examples->images + at * size, images + (size_t)i * size, size);
            examples->count += examples->count < DRIFT_WINDOW;
        }
    }
}

static bool refer_pictures(struct drift_watch *drift, const char *path, struct engine *engine, struct error *error)
{
    char folder[DATA_MAX_PATH];
    struct gallery gallery = {.inputs = drift->trained->model.widths[0], .path = path};
    struct config config = drift->trained->config;
    struct dataset_origin origin;
    const struct dataset_visitor visitor = {begin_gallery, show_gallery, &gallery};
    if (snprintf(folder, sizeof folder, "%s", path) >= (int)sizeof folder || !file_exists(path)) {
        return error_set(error, "%s: is not there; --reference names a data_dir of pictures", path);
    }
    config.data.data_dir = folder;
    config.data.data_source = DATA_AUTO;
    config.origins = NULL; /* this data_dir is not the config's */
    bool done = dataset_visit(&origin, DATASET_TRAIN, &config, &visitor, error) ||
                error_wrap(error, "--reference names a folder of pictures");
    if (done && gallery.examples.count == 0) {
        done = error_set(error, "%s: has no pictures to train on; --reference names a data_dir", path);
    }
    done = done && compute(drift, engine, &gallery.examples, error);
    examples_free(&gallery.examples);
    return done;
}

bool drift_refer(struct drift_watch *drift, const char *path, struct engine *engine, struct examples *rows,
                 struct error *error)
{
    drift->has_reference = drift->trained->schema
                               ? background_sample(rows, drift->trained, path, DRIFT_WINDOW, "--reference", error) &&
                                     compute(drift, engine, rows, error)
                               : refer_pictures(drift, path, engine, error);
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
        if (drift->classes > 0) {
            drift->predicted[(int)prediction_of(drift, examples, outputs, row)]++;
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

struct drift_class drift_class(struct drift_watch *drift, int index)
{
    pthread_mutex_lock(&drift->mutex);
    const struct drift_column *column = &drift->columns[drift->count - 1];
    double there = 0;
    for (int i = 0; i < column->bins; i++) {
        there += column->expected[i];
    }
    const struct drift_class class = {.count = drift->predicted[index],
                                      .expected = there > 0 ? column->expected[index] / there : NAN};
    pthread_mutex_unlock(&drift->mutex);
    return class;
}

uint64_t drift_rows(struct drift_watch *drift)
{
    pthread_mutex_lock(&drift->mutex);
    const uint64_t rows = drift->rows;
    pthread_mutex_unlock(&drift->mutex);
    return rows;
}
