/* trainer predict: a model's answers for pictures or for rows of a table. */
#include "worker/export/trained.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/json.h"
#include "worker/data/idx.h"
#include "worker/data/image.h"
#include "worker/data/stream.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"
#include "worker/ensemble.h"
#include "worker/export/background.h"
#include "worker/export/outcome.h"
#include "worker/export/shapley.h"

/* --- Rows of a table --- */

/* Batch by batch, so that a file of any size needs the memory of one batch. The text of the batch's rows is kept. */

enum { BATCH = 256, MOST_INPUT = 1 << 30 /* bytes of standard input */ };

struct prediction {
    const struct trained *trained;
    const struct schema *schema;
    struct engine *engine;
    const struct predict_watch *watch; /* NULL: nobody's */
    struct budget_account *account;    /* of the text below; NULL: not counted */
    FILE *out;
    struct rows *rows;
    bool *replaces; /* [columns]: it is of an earlier prediction */
    struct encoder encoder;
    struct examples examples; /* [BATCH] */
    float *outputs;           /* [BATCH, outputs] */
    bool has_spread;
    float *spreads;                /* [BATCH, outputs], if it is wanted */
    const struct shapley *shapley; /* by which each row is explained; NULL: not */
    struct contributions contributions;
    struct outcome outcome;
    char *text; /* the rows' own columns, a line each */
    size_t text_used, text_capacity;
    int count;       /* rows in the batch */
    int64_t written; /* rows whose predictions are written */
    int bad;
};

/* --- text --- */

static bool append(struct prediction *self, const char *text, size_t size)
{
    if (!self->text || size > self->text_capacity - self->text_used) {
        const size_t capacity = 2 * self->text_capacity + size + 1;
        if (!budget_charge(self->account, capacity - self->text_capacity, NULL)) {
            return false;
        }
        char *larger = realloc(self->text, capacity);
        if (!larger) {
            budget_release(self->account, capacity - self->text_capacity);
            return false;
        }
        self->text = larger;
        self->text_capacity = capacity;
    }
    memcpy(self->text + self->text_used, text, size);
    self->text_used += size;
    return true;
}

/* A field in CSV form. */
static bool append_field(struct prediction *self, const char *text, size_t size, char delimiter)
{
    const bool is_plain = !memchr(text, delimiter, size) && !memchr(text, '"', size) && !memchr(text, '\n', size) &&
                          !memchr(text, '\r', size);
    if (is_plain) {
        return append(self, text, size);
    }
    bool done = append(self, "\"", 1);
    for (size_t i = 0; done && i < size; i++) {
        done = append(self, text + i, 1) && (text[i] != '"' || append(self, "\"", 1));
    }
    return done && append(self, "\"", 1);
}

static bool append_row(struct prediction *self, const struct row *row)
{
    const char delimiter = rows_delimiter(self->rows);
    bool done = true;
    for (int i = 0; done && i < row->count; i++) {
        if (self->replaces[i]) {
            continue;
        }
        char buffer[ROW_NUMBER_TEXT];
        size_t size = row->fields ? row->fields[i].size : 0;
        const char *text = row->fields ? row->fields[i].text : row_text(row, i, buffer, &size);
        done = append_field(self, text, size, delimiter) && append(self, &delimiter, 1);
    }
    return done && append(self, "", 1); /* a zero byte, where the line is truncated again */
}

/* --- predictions --- */

static void put_header(struct prediction *self)
{
    const char delimiter = rows_delimiter(self->rows);
    for (int i = 0; i < rows_columns(self->rows); i++) {
        const char *name = rows_column_name(self->rows, i);
        if (self->replaces[i]) {
            continue;
        }
        csv_put(self->out, "", name, strlen(name), delimiter);
        fputc(delimiter, self->out);
    }
    outcome_put_names(self->trained, self->out, delimiter);
    if (self->has_spread) {
        outcome_put_spread_names(self->trained, self->out, delimiter);
    }
    if (self->shapley) {
        contributions_put_names(self->shapley, self->out, delimiter);
    }
    fputc('\n', self->out);
}

/* Has the client gone, or been refused memory? */
static bool is_unwanted(const struct prediction *self)
{
    return budget_is_closed(self->account) || budget_refusal(self->account) != BUDGET_FITS;
}

static bool put_batch(struct prediction *self, struct error *error)
{
    struct engine *engine = self->engine;
    if (self->count == 0) {
        return true;
    }
    if (is_unwanted(self)) {
        return error_set(error, "%s: nobody takes the predictions", rows_name(self->rows));
    }
    if (!engine->table->forward(engine, false, &self->examples, 0, self->count, self->outputs, error) ||
        (self->has_spread && !ensemble_spread(engine, &self->examples, 0, self->count, self->spreads, error))) {
        return false;
    }
    if (self->watch) {
        const struct examples batch = examples_part(&self->examples, 0, self->count);
        self->watch->saw(self->watch->context, &batch, self->outputs);
    }
    const char *line = self->text;
    for (int i = 0; i < self->count; i++) {
        fputs(line, self->out);
        line += strlen(line) + 1;
        outcome_find(self->trained, self->outputs, self->examples.target_values, i, &self->outcome);
        outcome_put(self->trained, &self->outcome, self->out, rows_delimiter(self->rows));
        if (self->has_spread) {
            outcome_put_spread(self->trained, &self->outcome, self->spreads, i, self->out, rows_delimiter(self->rows));
        }
        if (self->shapley &&
            !shapley_explain(self->shapley, engine, &self->examples, i, NULL, &self->contributions, error)) {
            return false;
        }
        if (self->shapley) {
            contributions_put(self->shapley, &self->contributions, self->out, rows_delimiter(self->rows));
        }
        fputc('\n', self->out);
    }
    self->text_used = 0;
    self->written += self->count;
    self->count = 0;
    return true;
}

/* --- rows --- */

/* Adds it to the batch, which has room. False: the row is faulty, and the batch as before. */
static bool take_row(struct prediction *self, const struct row *row, struct error *error)
{
    if (!encoder_add(&self->encoder, self->rows, row, &self->examples, self->count, error)) {
        return false;
    }
    const size_t before = self->text_used;
    if (!append_row(self, row)) {
        self->text_used = before; /* no line without its end */
        return error_set(error, "%s: out of memory for a batch of rows", rows_name(self->rows));
    }
    if (self->watch && self->watch->took) {
        self->watch->took(self->watch->context, &self->encoder, row);
    }
    return true;
}

/* Lines of a file that get no prediction. */
static void say_left_out(const struct prediction *self)
{
    char note[ROWS_NOTE];
    rows_note(self->rows, note);
    if (note[0] != '\0' && !self->account) {
        log_warning("%s: %s", rows_name(self->rows), note);
    }
}

static bool predict_all(struct prediction *self, struct error *error)
{
    for (;;) {
        struct row row;
        const enum csv_status status = rows_next(self->rows, &row, error);
        if (status == CSV_END) {
            say_left_out(self);
            return put_batch(self, error);
        }
        if (status == CSV_FAILED) {
            return false;
        }
        if (status == CSV_ROW && take_row(self, &row, error)) {
            if (++self->count == BATCH && !put_batch(self, error)) {
                return false;
            }
            continue;
        }
        if (is_unwanted(self) || self->bad++ >= self->trained->config.data.max_bad_records) {
            return false;
        }
        log_warning("%s; the row is left out", error->text);
    }
}

static bool open_rows(struct rows **rows, const char *path, uint8_t **input, const struct config *config,
                      struct error *error)
{
    size_t size;
    if (strcmp(path, "-") != 0) {
        return rows_open(rows, path, &config->data, error);
    }
    return file_read("/dev/stdin", MOST_INPUT, input, &size, error) &&
           rows_open_bytes(rows, "standard input", *input, size, &config->data, NULL, error);
}

/*
 * Adds to a file's error that `written` predictions were written before it: that was before the file's checksum, if it
 * has one, could be verified. Returns false.
 */
static bool add_incomplete(int64_t written, struct error *error)
{
    const size_t used = strlen(error->text);
    if (written > 0) {
        snprintf(error->text + used, sizeof error->text - used,
                 "; the %lld predictions before that are incomplete, and may be of damaged bytes", (long long)written);
    }
    return false;
}

static bool find_replaced(struct prediction *self, struct error *error)
{
    const int columns = rows_columns(self->rows);
    self->replaces = calloc((size_t)columns, sizeof *self->replaces);
    for (int i = 0; self->replaces && i < columns; i++) {
        const char *name = rows_column_name(self->rows, i);
        self->replaces[i] = outcome_is_name(self->trained, name) ||
                            (self->has_spread && outcome_is_spread_name(self->trained, name)) ||
                            (self->shapley && contributions_is_name(self->trained, name));
    }
    return self->replaces || error_set(error, "%s: out of memory for %d columns", rows_name(self->rows), columns);
}

/* All rows that self->rows has; closes them. */
static bool predict_opened(struct prediction *self, struct error *error)
{
    const struct schema *schema = self->schema;
    const size_t outputs = (size_t)schema_outputs(schema);
    bool done = encoder_begin(&self->encoder, schema, self->rows, false, error) &&
                encoder_allocate(&self->examples, schema, BATCH, schema->task == TASK_INPUTS, error) &&
                find_replaced(self, error);
    self->outputs = malloc(BATCH * outputs * sizeof *self->outputs);
    self->spreads = malloc((self->has_spread ? BATCH * outputs : 1) * sizeof *self->spreads);
    if (done && (!self->outputs || !self->spreads || !outcome_create(&self->outcome, self->trained) ||
                 (self->shapley && !contributions_create(&self->contributions, self->shapley)))) {
        done = error_set(error, "out of memory while predicting %zu outputs", outputs);
    }
    if (done) {
        put_header(self);
        done = predict_all(self, error) || add_incomplete(self->written, error);
    }
    free(self->outputs);
    free(self->spreads);
    free(self->replaces);
    outcome_free(&self->outcome);
    contributions_free(&self->contributions);
    free(self->text);
    budget_release(self->account, self->text_capacity);
    examples_free(&self->examples);
    encoder_end(&self->encoder);
    rows_close(self->rows);
    return done;
}

/* What is wanted beside the predictions. */
struct predict_extras {
    bool has_spread;
    const struct shapley *shapley; /* NULL: rows are not explained */
};

/*
 * Reads a file of rows, of any size, and writes a CSV file: the columns as they are, except those of an earlier
 * prediction, then
 *
 *     classes      prediction, and probability_CLASS for each class; of two the second one's probability must reach the
 *                  model's threshold
 *     flags        prediction_TARGET and probability_TARGET for each target
 *     numbers      prediction, or prediction_TARGET for each target; then, of a model with intervals, interval_low and
 *                  interval_high (_TARGET)
 *     the inputs   error: the mean squared difference of what the model makes of them; and flag: 1 where it is above
 *                  the model's threshold, if it has one
 *
 * With has_spread, of an ensemble, follows the standard deviation over its nets, as a measure of doubt:
 *
 *     classes      spread, of the predicted class's probability
 *     flags        spread_TARGET, of each probability
 *     numbers      spread or spread_TARGET, of each number
 *
 * With shapley follows what each column contributes (worker/export/shapley.h).
 *
 * Output written before a damaged place stays, and the error says so. The model must be of a table, and started. path
 * "-": standard input. Up to max_bad_records rows with faults are skipped, each with a warning.
 */
static bool predict_rows(const struct trained *trained, const char *path, const struct predict_extras *extras,
                         FILE *out, struct error *error)
{
    struct prediction self = {.trained = trained,
                              .schema = trained->schema,
                              .engine = trained->engine,
                              .has_spread = extras->has_spread,
                              .shapley = extras->shapley,
                              .out = out};
    uint8_t *input = NULL;
    const bool done = open_rows(&self.rows, path, &input, &trained->config, error) && predict_opened(&self, error);
    free(input);
    return done;
}

bool predict_rows_bytes(const struct trained *trained, struct engine *engine, const void *bytes, size_t size,
                        struct budget_account *account, const struct predict_watch *watch, FILE *out,
                        struct error *error)
{
    struct prediction self = {.trained = trained,
                              .schema = trained->schema,
                              .engine = engine,
                              .watch = watch,
                              .account = account,
                              .has_spread = watch->has_spread,
                              .out = out};
    return rows_open_bytes(&self.rows, "body", bytes, size, &trained->config.data, account, error) &&
           predict_opened(&self, error);
}

/* --- The command --- */

/*
 * Images are classified. Files are single images, or IDX files of many; their type is detected from the first bytes, so
 * standard input works as well.
 */

enum {
    MOST_FILES = 1 << 20,
    READ_BYTES = 1 << 22,
    HEAD_BYTES = 64,
    DEFAULT_TOP = 3,
    FEW_ROWS = 20, /* to compare with */
};

/* State of one run. */
struct predict {
    struct trained trained;
    int inputs, classes, top, samples;
    bool as_json, has_spread;
    uint8_t *images; /* [BATCH, inputs], plus the padding that vector loads may read */
    float *logits;   /* [BATCH, classes] */
    float *spreads;  /* [BATCH, classes] */
    int *order;      /* [classes] scratch */
    struct outcome outcome;
    int64_t written; /* images of the current file */
};

/* --- output --- */

/* Computes the probabilities of one image of the batch; `order` starts with the classes to show, likeliest first. */
static void rank(struct predict *predict, int index)
{
    const double *probabilities = predict->outcome.values;
    outcome_find(&predict->trained, predict->logits, NULL, index, &predict->outcome);
    for (int c = 0; c < predict->classes; c++) {
        predict->order[c] = c;
    }
    for (int place = 0; place < predict->top; place++) {
        int best = place;
        for (int i = place + 1; i < predict->classes; i++) {
            if (probabilities[predict->order[i]] > probabilities[predict->order[best]]) {
                best = i;
            }
        }
        int class_index = predict->order[best];
        memmove(predict->order + place + 1, predict->order + place, (size_t)(best - place) * sizeof *predict->order);
        predict->order[place] = class_index;
    }
}

/* The class at `place` of the order: its number, and its name if it has one. */
static void add_class(const struct predict *predict, cJSON *fields, int place)
{
    char buffer[OUTCOME_NAME];
    const int class_index = predict->order[place];
    cJSON_AddNumberToObject(fields, "class", class_index);
    if (class_index < predict->trained.classes.count) {
        cJSON_AddStringToObject(fields, "label", outcome_name(&predict->trained, class_index, buffer));
    }
}

/* index: of the image in its file; negative: the file is a single image. spreads: its own. */
static void print_prediction(const struct predict *predict, const char *name, int64_t index, const float *spreads)
{
    if (predict->as_json) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "file", name);
        if (index >= 0) {
            cJSON_AddNumberToObject(fields, "index", (double)index);
        }
        add_class(predict, fields, 0);
        cJSON *top = cJSON_AddArrayToObject(fields, "top");
        for (int i = 0; i < predict->top; i++) {
            cJSON *entry = cJSON_CreateObject();
            add_class(predict, entry, i);
            cJSON_AddNumberToObject(entry, "probability", predict->outcome.values[predict->order[i]]);
            if (predict->has_spread) {
                cJSON_AddNumberToObject(entry, "spread", (double)spreads[predict->order[i]]);
            }
            json_append(top, entry);
        }
        log_event("prediction", fields, NULL);
        return;
    }
    printf("%s", name);
    if (index >= 0) {
        printf("[%lld]", (long long)index);
    }
    for (int i = 0; i < predict->top; i++) {
        char buffer[OUTCOME_NAME];
        printf("%s %s (%.2f%%", i == 0 ? ":" : ",", outcome_name(&predict->trained, predict->order[i], buffer),
               100 * predict->outcome.values[predict->order[i]]);
        if (predict->has_spread) {
            printf(", spread %.2f%%", 100 * (double)spreads[predict->order[i]]);
        }
        printf(")");
    }
    printf("\n");
}

/* The first `count` of predict->images; first: the index of the first one, negative for a single image. */
static bool predict_batch(struct predict *predict, const char *name, int count, int64_t first, struct error *error)
{
    struct engine *engine = predict->trained.engine;
    const struct examples examples = {.images = predict->images, .count = count, .height = 1, .width = predict->inputs};
    if (!engine->table->forward(engine, false, &examples, 0, count, predict->logits, error) ||
        (predict->has_spread && !ensemble_spread(engine, &examples, 0, count, predict->spreads, error))) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        rank(predict, i);
        print_prediction(predict, name, first < 0 ? -1 : first + i,
                         predict->spreads + (size_t)i * (size_t)predict->classes);
        predict->written++;
    }
    return true;
}

/* --- reading --- */

static bool predict_picture(struct predict *predict, const char *name, const uint8_t *bytes, size_t size,
                            struct error *error)
{
    const struct image_shape *shape = &predict->trained.shape;
    struct image image;
    if (!image_decode(&image, bytes, size, shape->channels, error)) {
        return error_wrap(error, "%s", name);
    }
    bool fits = image_fit(&image, shape, predict->images, error) || error_wrap(error, "%s", name);
    image_free(&image);
    return fits && predict_batch(predict, name, 1, -1, error);
}

/* The shape of an IDX file's images: [count, height, width], [count, height, width, 3], or [count, pixels]. */
static bool check_images(struct image *image, const struct predict *predict, const struct idx_header *header,
                         const char *name, struct error *error)
{
    const struct image_shape *shape = &predict->trained.shape;
    const int dimensions = header->dimensions;
    if (header->type != IDX_UINT8 || dimensions < 2) {
        return error_set(error, "%s: has type 0x%02x in %d dimensions; images need uint8 (0x08) in 2 to 4", name,
                         (unsigned)header->type, dimensions);
    }
    if (header->elements / header->sizes[0] == (uint64_t)predict->inputs) {
        *image = (struct image){.width = shape->width, .height = shape->height, .channels = shape->channels};
        return true;
    }
    *image = (struct image){.width = (int)header->sizes[dimensions == 2 ? 1 : 2],
                            .height = dimensions == 2 ? 1 : (int)header->sizes[1],
                            .channels = dimensions == 4 ? (int)header->sizes[3] : 1};
    return image->channels == shape->channels ||
           error_set(error, "%s: has images of %d channels, and the model was trained on %dx%d with %d", name,
                     image->channels, shape->height, shape->width, shape->channels);
}

/* The images of an IDX file, `at_once` in `images` at a time: its header may announce more than fit into memory. */
static bool predict_elements(struct predict *predict, struct stream *stream, const struct idx_header *header,
                             struct image image, uint8_t *elements, int at_once, struct error *error)
{
    const int64_t count = header->sizes[0];
    const size_t pixels = (size_t)(header->elements / header->sizes[0]);
    bool done = true;
    for (int64_t first = 0; first < count && done; first += at_once) {
        const int some = count - first < at_once ? (int)(count - first) : at_once;
        done = idx_read_part(stream, elements, (size_t)some * pixels, error);
        for (int i = 0; i < some && done; i++) {
            image.pixels = elements + (size_t)i * pixels;
            done = image_fit(&image, &predict->trained.shape, predict->images + (size_t)i * (size_t)predict->inputs,
                             error) ||
                   error_wrap(error, "%s", stream_name(stream));
        }
        done = done && predict_batch(predict, stream_name(stream), some, first, error);
    }
    return done && idx_read_end(header, stream, error);
}

static bool predict_stream(struct predict *predict, struct stream *stream, struct error *error)
{
    struct idx_header header;
    struct image image;
    if (!idx_read_header(&header, stream, error) ||
        !check_images(&image, predict, &header, stream_name(stream), error)) {
        return false;
    }
    const uint64_t pixels = header.elements / header.sizes[0];
    if (pixels > IMAGE_MAX_PIXELS) {
        return error_set(error, "%s: its images have %llu pixels; the limit is %d", stream_name(stream),
                         (unsigned long long)pixels, IMAGE_MAX_PIXELS);
    }
    const uint64_t fitting = READ_BYTES / pixels;
    const int at_once = fitting < 1 ? 1 : fitting > BATCH ? BATCH : (int)fitting;
    uint8_t *elements = malloc((size_t)at_once * (size_t)pixels + EXAMPLES_PADDING);
    bool done = elements ? predict_elements(predict, stream, &header, image, elements, at_once, error)
                         : error_set(error, "%s: out of memory for its images", stream_name(stream));
    free(elements);
    return done;
}

static bool predict_bytes(struct predict *predict, const char *name, const uint8_t *bytes, size_t size,
                          struct error *error)
{
    if (image_is_known(bytes, size)) {
        return predict_picture(predict, name, bytes, size, error);
    }
    struct stream *stream;
    if (!stream_open_bytes(&stream, name, bytes, size, error)) {
        return false;
    }
    bool done = predict_stream(predict, stream, error);
    stream_close(stream);
    return done;
}

static bool predict_file(struct predict *predict, const char *path, struct error *error)
{
    uint8_t head[HEAD_BYTES], *bytes;
    size_t size;
    bool is_input = strcmp(path, "-") == 0, done;
    const size_t head_size = is_input ? 0 : file_head(path, head, sizeof head);
    if (is_input || image_is_known(head, head_size)) {
        if (!file_read(is_input ? "/dev/stdin" : path, IMAGE_MAX_FILE, &bytes, &size, error)) {
            return false;
        }
        done = predict_bytes(predict, is_input ? "standard input" : path, bytes, size, error);
        free(bytes);
        return done;
    }
    struct stream *stream;
    const bool is_packed = head_size >= 2 && head[0] == 0x1F && head[1] == 0x8B;
    if ((!is_packed && signature_say(path, head, head_size, error)) || !stream_open_file(&stream, path, error)) {
        return false;
    }
    done = predict_stream(predict, stream, error);
    stream_close(stream);
    return done;
}

/* --- the command --- */

static bool open_predict(struct predict *predict, const struct command_call *call, const char *train_dir,
                         struct error *error)
{
    if (!trained_open(&predict->trained, call->config, command_value(call, "checkpoint"), train_dir,
                      CHECKPOINT_BEST_WEIGHTS, error) ||
        !trained_start(&predict->trained, error)) {
        return false;
    }
    const struct checkpoint_file *file = predict->trained.file;
    const struct model *model = &predict->trained.model;
    predict->has_spread = command_switch(call, "spread");
    const char *obstacle = predict->has_spread ? outcome_spread_obstacle(&predict->trained) : NULL;
    if (obstacle) {
        return error_set(error, "--spread: %s %s", checkpoint_path(file), obstacle);
    }
    if (command_switch(call, "explain") && !predict->trained.schema) {
        return error_set(error, "%s %s", checkpoint_path(file), shapley_obstacle(&predict->trained));
    }
    fprintf(stderr, "predicts by %s, step %lld\n", checkpoint_path(file), /* standard output is for predictions */
            (long long)checkpoint_file_info(file)->global_step);
    predict->inputs = model->widths[0];
    predict->classes = model->widths[model->layer_count];
    predict->top = predict->top < predict->classes ? predict->top : predict->classes;
    const size_t outputs = (size_t)BATCH * (size_t)predict->classes;
    predict->images = must_zero((size_t)BATCH * (size_t)predict->inputs + EXAMPLES_PADDING, 1, "a batch of pictures");
    predict->logits = must_zero(outputs, sizeof *predict->logits, "predictions");
    predict->spreads = must_zero(outputs, sizeof *predict->spreads, "predictions");
    predict->order = must_zero((size_t)predict->classes, sizeof *predict->order, "predictions");
    return outcome_create(&predict->outcome, &predict->trained) ||
           error_set(error, "out of memory while predicting %d classes", predict->classes);
}

static void close_predict(struct predict *predict)
{
    free(predict->images);
    free(predict->logits);
    free(predict->spreads);
    free(predict->order);
    outcome_free(&predict->outcome);
    trained_close(&predict->trained);
}

/* The flag's count, from 1 to `most`; 0 if it is none. */
static int parse_count(const char *text, int usual, int most)
{
    char *end;
    errno = 0;
    long number = text ? strtol(text, &end, 10) : usual;
    return text && (errno != 0 || end == text || *end != '\0' || number < 1 || number > most) ? 0 : (int)number;
}

/* False, with a word, if a flag is wrong. */
static bool check_flags(const struct predict *predict, const struct command_call *call, int first)
{
    const bool is_explained = command_switch(call, "explain");
    if (predict->top == 0) {
        log_error("--top_k: must be an integer from 1 to 65536");
    } else if (predict->samples == 0) {
        log_error("--samples: must be an integer from 1 to %d", SHAPLEY_MOST_SAMPLES);
    } else if (!is_explained && (command_value(call, "samples") || command_value(call, "background"))) {
        log_error("--%s says how to explain predictions; add --explain",
                  command_value(call, "samples") ? "samples" : "background");
    } else if (call->operand_count == first) {
        log_error("predict needs images or a table after its model: `trainer predict RUN FILE`, or - for standard "
                  "input");
    } else {
        return true;
    }
    return false;
}

/* By the rows of a file, or by those in the checkpoint. */
static bool prepare_to_explain(struct shapley *shapley, const struct predict *predict, const struct command_call *call,
                               struct error *error)
{
    const struct trained *trained = &predict->trained;
    const char *path = command_value(call, "background"), *obstacle = shapley_obstacle(trained);
    struct examples rows = {.count = 0};
    const bool done = (!obstacle || error_set(error, "%s %s", checkpoint_path(trained->file), obstacle)) &&
                      (path ? background_sample(&rows, trained, path, SHAPLEY_BACKGROUND, path, error)
                            : background_kept(&rows, trained, error)) &&
                      (rows.count > 0 || error_set(error,
                                                   "%s keeps no rows to compare with (--kept_rows); --explain needs "
                                                   "--background=FILE, of training's rows, say",
                                                   checkpoint_path(trained->file)));
    if (done && rows.count < FEW_ROWS) {
        log_warning("contributions are compared with only %d rows; give --background=FILE, of training's rows, say, "
                    "or train with --kept_rows=64",
                    rows.count);
    }
    if (done) {
        return shapley_make(shapley, trained, &rows, predict->samples, trained->engine, error);
    }
    examples_free(&rows);
    return false;
}

static bool predict_file_of_rows(struct predict *predict, const struct command_call *call, const char *path, FILE *out,
                                 struct error *error)
{
    struct shapley shapley = {.samples = 0};
    const bool is_explained = command_switch(call, "explain");
    const struct predict_extras extras = {predict->has_spread, is_explained ? &shapley : NULL};
    const bool done = (!is_explained || prepare_to_explain(&shapley, predict, call, error)) &&
                      predict_rows(&predict->trained, path, &extras, out, error);
    shapley_free(&shapley);
    return done;
}

/* Rows go to one CSV file, or to standard output. */
static bool predict_tables(struct predict *predict, const struct command_call *call, int first, struct error *error)
{
    const char *path = command_value(call, "out");
    if (predict->as_json || call->operand_count - first > 1) {
        return error_set(error, predict->as_json ? "the model is of a table, whose predictions are CSV; omit --json"
                                                 : "the model is of a table, and predicts one file at a time");
    }
    struct file_draft draft;
    if (!path) {
        return predict_file_of_rows(predict, call, call->operands[first], stdout, error) &&
               ((fflush(stdout) == 0 && !ferror(stdout)) ||
                file_error(error, "standard output", "cannot be written", errno));
    }
    if (!file_output_begin(&draft, path, 0666, error) || !file_draft_stream(&draft, error)) {
        return false;
    }
    if (!predict_file_of_rows(predict, call, call->operands[first], draft.stream, error)) {
        file_draft_drop(&draft);
        return false;
    }
    return file_draft_end(&draft, false, error);
}

/* Is the first operand the model, a training folder or a checkpoint, and not what to predict? */
static bool begins_with_model(const struct command_call *call)
{
    static const char ending[] = ".safetensors";
    if (call->operand_count == 0) {
        return false;
    }
    const char *path = call->operands[0];
    const size_t length = strlen(path);
    const bool has_model = command_value(call, "checkpoint") || call->config->output.train_dir[0] != '\0';
    return file_is_folder(path) || (!has_model && strcmp(path, "-") != 0) ||
           (length >= sizeof ending && strcmp(path + length - (sizeof ending - 1), ending) == 0);
}

static int run_predict(const struct command_call *call)
{
    struct predict predict = {
        .top = parse_count(command_value(call, "top_k"), DEFAULT_TOP, CONFIG_MAX_WIDTH),
        .samples = parse_count(command_value(call, "samples"), SHAPLEY_SAMPLES, SHAPLEY_MOST_SAMPLES),
    };
    struct error error;
    int status = COMMAND_FAILED;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    } else {
        log_setup(log_format(), LOG_WARNING); /* no line about the device chosen */
    }
    predict.as_json = log_format() == LOG_JSON;
    const int first = begins_with_model(call);
    const char *train_dir = first == 1 ? call->operands[0] : call->config->output.train_dir;
    if (!check_flags(&predict, call, first)) {
        return COMMAND_MISUSED;
    }
    if (!open_predict(&predict, call, train_dir, &error)) {
        log_error("%s", error.text);
        goto out;
    }
    status = COMMAND_DONE;
    if (predict.trained.schema) {
        if (!predict_tables(&predict, call, first, &error)) {
            log_error("%s", error.text);
            status = COMMAND_FAILED;
        }
        goto out;
    }
    for (int i = first; i < call->operand_count; i++) {
        predict.written = 0;
        if (!predict_file(&predict, call->operands[i], &error)) {
            add_incomplete(predict.written, &error);
            log_error("%s", error.text);
            status = COMMAND_FAILED; /* continue with the other files */
        }
    }
out:
    close_predict(&predict);
    return status;
}

static const struct command_flag flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (best)"},
    {"top_k", "N", "number of classes to show per image, most likely first (3)"},
    {"json", NULL, "one JSON object per image"},
    {"spread", NULL, "how far the nets of an ensemble differ, as a standard deviation: a measure of doubt"},
    {"explain", NULL, "for tables: how much each column contributes to each prediction (Shapley values)"},
    {"samples", "N", "with explain: in how many orders columns are taken, at least (400)"},
    {"background", "FILE", "with explain: the rows to compare with (those kept in the model; at most 100)"},
    {"out", "FILE", "for tables: the CSV file to write (standard output)"},
    {NULL, NULL, NULL},
};

const struct command command_predict = {
    .name = "predict",
    .operands = "[train_dir] FILE...",
    .max_operands = MOST_FILES,
    .summary = "predict with a trained model: classes of images, or a table's target",
    .details =
        "FILE is a JPEG, PNG, BMP or PGM picture, or an IDX file of images, plain or .gz; - is standard input. A "
        "picture of another size than those of training is scaled to it; for a model of digits it is scaled and "
        "centred like MNIST's, and inverted if it is dark on light. For a model of tables FILE is a table, whose "
        "columns are found by name; the output is that table "
        "with the predictions as further columns. The model comes from train_dir or --checkpoint.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_predict,
};
