/* Batch by batch, so that a file of any size needs the memory of one batch. The text of the batch's rows is kept. */
#include "worker/export/predict_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"
#include "worker/export/outcome.h"
#include "worker/export/outcome_csv.h"

enum { BATCH = 256, MOST_INPUT = 1 << 30 /* bytes of standard input */ };

struct prediction {
    const struct trained *trained;
    const struct schema *schema;
    struct engine *engine;
    const struct predict_watch *watch; /* NULL: nobody's */
    struct budget_account *account;    /* of the text below; NULL: not counted */
    FILE *out;
    struct rows *rows;
    struct encoder encoder;
    struct examples examples; /* [BATCH] */
    float *outputs;           /* [BATCH, outputs] */
    struct outcome outcome;
    char *text; /* the rows' own columns, a line each */
    size_t text_used, text_capacity;
    int count;    /* rows in the batch */
    int64_t told; /* rows whose predictions are written */
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
        csv_put(self->out, "", name, strlen(name), delimiter);
        fputc(delimiter, self->out);
    }
    outcome_put_names(self->trained, self->out, delimiter);
    fputc('\n', self->out);
}

static bool put_batch(struct prediction *self, struct error *error)
{
    struct engine *engine = self->engine;
    if (self->count == 0) {
        return true;
    }
    if (budget_is_closed(self->account) || budget_refusal(self->account) != BUDGET_FITS) {
        return error_set(error, "%s: nobody takes the predictions", rows_name(self->rows));
    }
    if (!engine->table->forward(engine, false, &self->examples, 0, self->count, self->outputs, error)) {
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
        fputc('\n', self->out);
    }
    self->text_used = 0;
    self->told += self->count;
    self->count = 0;
    return true;
}

/* --- rows --- */

static bool take_row(struct prediction *self, const struct row *row, struct error *error)
{
    if (!encoder_add(&self->encoder, self->rows, row, &self->examples, self->count, error)) {
        return false;
    }
    if (!append_row(self, row)) {
        return error_set(error, "%s: out of memory for a batch of rows", rows_name(self->rows));
    }
    if (self->watch && self->watch->took) {
        self->watch->took(self->watch->context, &self->encoder, row);
    }
    return ++self->count < BATCH || put_batch(self, error);
}

static bool predict_all(struct prediction *self, struct error *error)
{
    for (;;) {
        struct row row;
        const enum csv_status status = rows_next(self->rows, &row, error);
        if (status == CSV_END) {
            return put_batch(self, error);
        }
        if (status == CSV_FAILED) {
            return false;
        }
        if (status == CSV_ROW && take_row(self, &row, error)) {
            continue;
        }
        if (self->bad++ >= self->trained->config.data.max_bad_records) {
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

bool predict_doubt(int64_t told, struct error *error)
{
    const size_t used = strlen(error->text);
    if (told > 0) {
        snprintf(error->text + used, sizeof error->text - used,
                 "; the %lld predictions before that are incomplete, and may be of damaged bytes", (long long)told);
    }
    return false;
}

/* All rows that self->rows has; closes them. */
static bool predict_opened(struct prediction *self, struct error *error)
{
    const struct schema *schema = self->schema;
    const size_t outputs = (size_t)schema_outputs(schema);
    bool done = encoder_begin(&self->encoder, schema, self->rows, false, error) &&
                encoder_allocate(&self->examples, schema, BATCH, schema->task == TASK_INPUTS, error);
    self->outputs = malloc(BATCH * outputs * sizeof *self->outputs);
    if (done && (!self->outputs || !outcome_create(&self->outcome, self->trained))) {
        done = error_set(error, "out of memory while predicting %zu outputs", outputs);
    }
    if (done) {
        put_header(self);
        done = predict_all(self, error) || predict_doubt(self->told, error);
    }
    free(self->outputs);
    outcome_free(&self->outcome);
    free(self->text);
    budget_release(self->account, self->text_capacity);
    examples_free(&self->examples);
    encoder_end(&self->encoder);
    rows_close(self->rows);
    return done;
}

bool predict_rows(const struct trained *trained, const char *path, FILE *out, struct error *error)
{
    struct prediction self = {.trained = trained, .schema = trained->schema, .engine = trained->engine, .out = out};
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
                              .out = out};
    return rows_open_bytes(&self.rows, "body", bytes, size, &trained->config.data, account, error) &&
           predict_opened(&self, error);
}
