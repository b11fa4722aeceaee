/* From the loop's state to the numbers of a board. */
#include "worker/observed.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#include "base/clock.h"
#include "base/text/json_writer.h"
#include "observe/observe.h"
#include "ps/store/optimizer.h"
#include "worker/data/image.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/metrics.h"
#include "worker/export/first_layer.h"

/* --- Command line and settings --- */

bool observed_setting(const struct config_key *key, const char *value)
{
    static const char *const always[] = {"optimizer", "learning_rate", "batch_size", "seed", "layers", "data_dir"};
    const bool is_of_run =
        strcmp(key->section, "model") == 0 || strcmp(key->section, "train") == 0 || strcmp(key->section, "data") == 0;
    const bool is_chosen = strcmp(key->initial, "auto") == 0;
    bool shows = strcmp(value, key->initial) != 0 && !(is_chosen && strcmp(value, "0") == 0);
    if (strcmp(key->name, "lr_decay_steps") == 0) {
        return false; /* filled in, even without a decay */
    }
    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        shows = shows || strcmp(key->name, always[i]) == 0;
    }
    return is_of_run && shows && value[0] != '\0';
}

static void add_settings(struct text_buffer *text, const struct config *config)
{
    json_write_open(text, "settings", '{');
    for (const struct config_key *key = config_keys; key->section; key++) {
        char *value = config_key_chosen_text(key, config);
        if (value && observed_setting(key, value)) {
            json_write_string(text, key->name, value);
        }
        free(value);
    }
    json_write_close(text, '}');
}

/* As a shell reads it. */
static void add_argument(struct text_buffer *line, const char *argument)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
    if (argument[0] != '\0' && argument[strspn(argument, plain)] == '\0') {
        text_buffer_add(line, "%s", argument);
        return;
    }
    text_buffer_add(line, "'");
    for (; *argument != '\0'; argument++) {
        text_buffer_add(line, *argument == '\'' ? "'\\''" : "%c", *argument);
    }
    text_buffer_add(line, "'");
}

static void add_command(struct text_buffer *text, char *const *arguments)
{
    struct text_buffer line = {.bytes = NULL};
    size_t size;
    for (int i = 0; arguments && arguments[i]; i++) {
        text_buffer_add(&line, i > 0 ? " " : "");
        add_argument(&line, arguments[i]);
    }
    text_buffer_add(&line, "%c", 0);
    char *command = text_buffer_take(&line, &size);
    json_write_string(text, "command", arguments ? command : NULL);
    free(command);
}

void observed_about(const struct config *config, char *const *arguments, const char *data)
{
    static char *const *command;
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    if (!observe_is_on()) {
        return;
    }
    command = arguments ? arguments : command;
    json_write_open(&text, NULL, '{');
    add_command(&text, command);
    json_write_string(&text, "data", data);
    add_settings(&text, config);
    json_write_close(&text, '}');
    text_buffer_add(&text, "%c", 0);
    observe_about(text_buffer_take(&text, &size));
}

/* --- The loop --- */

void observed_start(const struct config *config, const char *data, const char *digest, struct engine *engine,
                    const struct plan *plan, enum metric metric, const struct updater_start *start)
{
    const bool has_best = start->record.metric == METRIC_AUTO || start->record.metric == metric;
    char text[BOARD_TEXT];
    if (!observe_is_on()) {
        return;
    }
    observed_about(config, NULL, data);
    engine->table->describe(engine, text, sizeof text);
    observe_run(&(struct observe_start_of_run){
        .engine = text,
        .digest = digest,
        .metric = config_metric_name(metric),
        .metric_rises = metric_rises(metric),
        .layers = config->model.layers,
        .layer_count = config->model.layer_count,
        .global_step = start->global_step,
        .last_step = plan->last_step == INT64_MAX ? -1 : plan->last_step,
        .config_version = config->fleet.version,
        .best_value = has_best ? start->record.best_score : (double)NAN,
        .best_step = start->record.best_step,
        .restored_from = start->restored_from,
    });
}

void observed_steps(const struct config *config, const struct plan *plan, int64_t global_step, int64_t local_step,
                    const struct train_result *done, double seconds)
{
    const struct config_train *train = &config->train;
    if (!observe_is_on()) {
        return;
    }
    const double batches = (double)global_step * (double)plan->batches_per_step;
    observe_steps(&(struct observe_steps){
        .global_step = global_step,
        .local_step = local_step,
        .steps = done->steps,
        .examples = done->images,
        .seconds = seconds,
        .loss_sum = done->loss_sum,
        .epoch = batches / (double)plan->epoch_batches,
        .learning_rate = schedule_learning_rate(train, global_step > 0 ? global_step - 1 : 0),
        .run_examples = (int64_t)(batches * train->batch_size),
    });
}

/* The one that decides comes first. Returns how many there are. */
static int list_metrics(const struct evaluation *evaluation, enum metric metric,
                        struct board_metric metrics[BOARD_METRICS])
{
    int count = 0;
    for (int i = 0; i < METRICS && count < BOARD_METRICS; i++) {
        const enum metric each = (enum metric)(((int)metric + i) % METRICS);
        const double value = each == METRIC_AUTO || !metric_applies(each, evaluation->loss_kind)
                                 ? (double)NAN
                                 : evaluation_metric(evaluation, each);
        if (!isnan(value)) {
            snprintf(metrics[count].name, sizeof metrics[count].name, "%s", config_metric_name(each));
            metrics[count++].value = value;
        }
    }
    return count;
}

void observed_test(const struct evaluation *evaluation, enum metric metric, int64_t global_step)
{
    struct board_metric metrics[BOARD_METRICS] = {{.value = 0}};
    if (observe_is_on()) {
        observe_test(global_step, metrics, list_metrics(evaluation, metric, metrics));
    }
}

void observed_validation(const struct evaluation *evaluation, enum metric metric, const struct held_model *held)
{
    struct board_metric metrics[BOARD_METRICS] = {{.value = 0}};
    if (!observe_is_on()) {
        return;
    }
    const int count = list_metrics(evaluation, metric, metrics);
    observe_validation(&(struct observe_validation){.global_step = held->global_step,
                                                    .metrics = metrics,
                                                    .metric_count = count,
                                                    .best_value = held->record->best_score,
                                                    .best_step = held->record->best_step});
}

/* --- The model --- */

/*
 * The training thread copies numbers, of a bounded size, under a lock; the server's thread converts them to JSON on
 * request, which takes longer.
 */

enum {
    MOST_UNITS = 64,
    MOST_WEIGHTS = 64 * 1024, /* floats that are kept */
    MOST_PIXELS = 256 * 1024, /* bytes of mistakes that are kept */
    MOST_CLASSES = 64,        /* of which counts are kept */
    ROW_FLOATS = 16 * 1024,   /* that are read at once */
};

static const double PERIOD_S = 5;

static struct {
    pthread_mutex_t mutex; /* guards what follows */
    int height, width;     /* of images */
    float *weights;        /* [height x width, units] */
    int units;
    uint8_t *pixels; /* [mistakes, height x width] */
    struct {
        char label[32], predicted[32];
        double confidence;
    } mistakes[EVALUATION_WORST];
    int mistake_count;
    struct weighed_column *columns; /* [column_count] */
    int column_count;
    struct {
        char name[32];
        int64_t examples, correct;
    } classes[MOST_CLASSES];
    int64_t confusions[MOST_CLASSES * MOST_CLASSES]; /* [class_count (true), class_count (predicted)] */
    int class_count;                                 /* 0: not known */
    int64_t classes_step;
    double taken_s; /* used by the training thread only, as the next: */
    struct api_extras extras;
} self = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* --- As JSON, on the server's thread --- */

static bool take(struct text_buffer *text, char **json, size_t *size)
{
    *json = text_buffer_take(text, size);
    return *json;
}

static bool weights_json(void *context, char **json, size_t *size)
{
    struct text_buffer text = {.bytes = NULL};
    (void)context;
    pthread_mutex_lock(&self.mutex);
    if (self.weights && self.units > 0) {
        first_layer_write(&text, self.weights, self.units, self.height, self.width);
    }
    pthread_mutex_unlock(&self.mutex);
    return take(&text, json, size);
}

static void write_mistake(struct text_buffer *text, int i, char *base64, size_t room)
{
    const size_t bytes = (size_t)self.height * (size_t)self.width;
    json_write_open(text, NULL, '{');
    json_write_string(text, "label", self.mistakes[i].label);
    json_write_string(text, "predicted", self.mistakes[i].predicted);
    json_write_number(text, "confidence", self.mistakes[i].confidence);
    json_write_string(
        text, "pixels",
        sodium_bin2base64(base64, room, self.pixels + (size_t)i * bytes, bytes, sodium_base64_VARIANT_ORIGINAL));
    json_write_close(text, '}');
}

static bool mistakes_json(void *context, char **json, size_t *size)
{
    struct text_buffer text = {.bytes = NULL};
    (void)context;
    pthread_mutex_lock(&self.mutex);
    const size_t room =
        sodium_base64_ENCODED_LEN((size_t)self.height * (size_t)self.width, sodium_base64_VARIANT_ORIGINAL);
    char *base64 = self.pixels ? malloc(room) : NULL;
    if (base64) {
        json_write_open(&text, NULL, '{');
        json_write_integer(&text, "height", self.height);
        json_write_integer(&text, "width", self.width);
        json_write_open(&text, "mistakes", '[');
        for (int i = 0; i < self.mistake_count; i++) {
            write_mistake(&text, i, base64, room);
        }
        json_write_close(&text, ']');
        json_write_close(&text, '}');
    }
    free(base64);
    pthread_mutex_unlock(&self.mutex);
    return take(&text, json, size);
}

static bool columns_json(void *context, char **json, size_t *size)
{
    struct text_buffer text = {.bytes = NULL};
    (void)context;
    pthread_mutex_lock(&self.mutex);
    if (self.column_count > 0) {
        column_weights_write(&text, self.columns, self.column_count);
    }
    pthread_mutex_unlock(&self.mutex);
    return take(&text, json, size);
}

static bool classes_json(void *context, char **json, size_t *size)
{
    struct text_buffer text = {.bytes = NULL};
    (void)context;
    pthread_mutex_lock(&self.mutex);
    json_write_open(&text, NULL, '{');
    json_write_integer(&text, "step", self.classes_step);
    json_write_open(&text, "classes", '[');
    for (int i = 0; i < self.class_count; i++) {
        json_write_open(&text, NULL, '{');
        json_write_string(&text, "name", self.classes[i].name);
        json_write_integer(&text, "examples", self.classes[i].examples);
        json_write_integer(&text, "correct", self.classes[i].correct);
        json_write_open(&text, "predicted", '[');
        for (int k = 0; k < self.class_count; k++) {
            json_write_integer(&text, NULL, self.confusions[i * self.class_count + k]);
        }
        json_write_close(&text, ']');
        json_write_close(&text, '}');
    }
    json_write_close(&text, ']');
    json_write_close(&text, '}');
    pthread_mutex_unlock(&self.mutex);
    return take(&text, json, size);
}

/* --- Numbers, on the training thread --- */

/* Processes one row of the first layer: an input's weights. */
typedef void take_row(void *context, int input, const float *row, int units);

static bool walk_first_layer(struct engine *engine, const struct model *model, take_row *each, void *context)
{
    const struct variable *variable = &model->variables[0];
    const size_t stride = (size_t)variable->stride;
    const int at_once = stride > ROW_FLOATS ? 1 : (int)(ROW_FLOATS / stride);
    struct error error;
    float *rows = malloc((size_t)at_once * stride * sizeof *rows);
    bool done = rows;
    for (int first = 0; done && first < variable->rows; first += at_once) {
        const int count = variable->rows - first < at_once ? variable->rows - first : at_once;
        done = engine->table->read(engine, STORE_PARAMETERS, variable->offset + (size_t)first * stride,
                                   (size_t)count * stride, rows, &error);
        for (int i = 0; done && i < count; i++) {
            each(context, first + i, rows + (size_t)i * stride, variable->cols);
        }
    }
    free(rows);
    return done;
}

/* Of a pixel's colours the mean is shown. */
struct kept_weights {
    float *weights; /* [pixels, units], begins as zeros */
    int units, channels;
};

static void keep_row(void *context, int input, const float *row, int units)
{
    const struct kept_weights *kept = context;
    float *sums = kept->weights + (size_t)(input / kept->channels) * (size_t)kept->units;
    (void)units;
    for (int i = 0; i < kept->units; i++) {
        sums[i] += row[i] / (float)kept->channels;
    }
}

static void take_weights(struct engine *engine, const struct model *model, const struct examples *examples)
{
    const int inputs = model->variables[0].rows, most = MOST_WEIGHTS / inputs;
    int units = model->variables[0].cols < MOST_UNITS ? model->variables[0].cols : MOST_UNITS;
    units = units < most ? units : most;
    struct kept_weights kept = {.units = units, .channels = examples_channels(examples)};
    const int pixels = examples->height * examples_columns(examples);
    kept.weights = units > 0 && inputs == pixels * kept.channels
                       ? calloc((size_t)pixels * (size_t)units, sizeof *kept.weights)
                       : NULL;
    if (kept.weights && walk_first_layer(engine, model, keep_row, &kept)) {
        pthread_mutex_lock(&self.mutex);
        float *old = self.weights;
        self.weights = kept.weights;
        self.units = units;
        pthread_mutex_unlock(&self.mutex);
        kept.weights = old;
    }
    free(kept.weights);
}

/* A picture, of colours their luma. */
static void copy_grey(uint8_t *to, const struct examples *examples, int example, size_t pixels)
{
    const size_t channels = (size_t)examples_channels(examples);
    const uint8_t *from = examples->images + (size_t)example * pixels * channels;
    for (size_t i = 0; i < pixels; i++, from += channels) {
        to[i] = channels == 1 ? from[0] : image_luma(from[0], from[1], from[2]);
    }
}

static void take_mistakes(const struct evaluation *evaluation, const struct examples *examples)
{
    const size_t bytes = (size_t)examples->height * (size_t)examples_columns(examples);
    const int most = (int)(MOST_PIXELS / bytes);
    const int count = evaluation->worst_count < most ? evaluation->worst_count : most;
    pthread_mutex_lock(&self.mutex);
    if (!self.pixels) {
        self.pixels = malloc((size_t)(most < EVALUATION_WORST ? most : EVALUATION_WORST) * bytes);
    }
    self.mistake_count = self.pixels ? count : 0;
    for (int i = 0; i < self.mistake_count; i++) {
        const struct mistake *worst = &evaluation->worst[i];
        char text[EVALUATION_NAME];
        snprintf(self.mistakes[i].label, sizeof self.mistakes[i].label, "%.31s",
                 evaluation_name(evaluation, examples->labels[worst->example], text));
        snprintf(self.mistakes[i].predicted, sizeof self.mistakes[i].predicted, "%.31s",
                 evaluation_name(evaluation, worst->predicted, text));
        self.mistakes[i].confidence = worst->confidence;
        copy_grey(self.pixels + (size_t)i * bytes, examples, worst->example, bytes);
    }
    pthread_mutex_unlock(&self.mutex);
}

static void add_square(void *context, int input, const float *row, int units)
{
    ((double *)context)[input] = column_weights_square(row, units);
}

static void take_columns(struct engine *engine, const struct model *model, const struct schema *schema)
{
    double *squares = calloc((size_t)model->variables[0].rows, sizeof *squares);
    struct weighed_column *columns = calloc(COLUMN_WEIGHTS_MOST, sizeof *columns);
    if (squares && columns && schema->inputs == model->variables[0].rows &&
        walk_first_layer(engine, model, add_square, squares)) {
        const int count = column_weights(columns, schema, squares);
        pthread_mutex_lock(&self.mutex);
        struct weighed_column *old = self.columns;
        self.columns = columns;
        self.column_count = count;
        pthread_mutex_unlock(&self.mutex);
        columns = old;
    }
    free(columns);
    free(squares);
}

/* Of a binary model's one score: no and yes. */
static void name_class(const struct evaluation *evaluation, int class, char name[32])
{
    char text[EVALUATION_NAME];
    if (evaluation->classes > 0) {
        snprintf(name, 32, "%.31s", evaluation_name(evaluation, class, text));
    } else {
        snprintf(name, 32, "%s%.27s", class == 0 ? "not " : "", evaluation_name(evaluation, 0, text));
    }
}

static bool take_classes(const struct evaluation *evaluation, int64_t step)
{
    const int count = evaluation->classes > 0 ? evaluation->classes : evaluation_is_binary(evaluation) ? 2 : 0;
    if (count == 0 || count > MOST_CLASSES || !evaluation->confusions) {
        return false;
    }
    pthread_mutex_lock(&self.mutex);
    self.class_count = count;
    self.classes_step = step;
    memcpy(self.confusions, evaluation->confusions, (size_t)count * (size_t)count * sizeof *self.confusions);
    for (int i = 0; i < count; i++) {
        name_class(evaluation, i, self.classes[i].name);
        self.classes[i].correct = self.confusions[i * count + i];
        self.classes[i].examples = 0;
        for (int k = 0; k < count; k++) {
            self.classes[i].examples += self.confusions[i * count + k];
        }
    }
    pthread_mutex_unlock(&self.mutex);
    return true;
}

/* Weights, mistakes or columns, which take longer. */
static void take_views(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                       const struct examples *examples, const struct schema *schema)
{
    if (schema) {
        take_columns(engine, model, schema);
        self.extras.make[EXTRA_COLUMNS] = self.column_count > 0 ? columns_json : NULL;
    } else if (!examples_are_rows(examples)) {
        self.height = examples->height;
        self.width = examples_columns(examples);
        take_weights(engine, model, examples);
        self.extras.make[EXTRA_WEIGHTS] = self.weights ? weights_json : NULL;
        if (examples->images && examples->labels) {
            take_mistakes(evaluation, examples);
            self.extras.make[EXTRA_MISTAKES] = mistakes_json;
        }
    }
}

void observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                    const struct examples *examples, const struct schema *schema, int64_t global_step)
{
    const double now_s = clock_monotonic_s();
    if (!observe_is_on()) {
        return;
    }
    self.extras.make[EXTRA_CLASSES] = take_classes(evaluation, global_step) ? classes_json : NULL;
    if (self.taken_s == 0 || now_s >= self.taken_s + PERIOD_S) {
        self.taken_s = now_s;
        take_views(evaluation, engine, model, examples, schema);
    }
    observe_extras(&self.extras);
}
