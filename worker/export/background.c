/* A reservoir: row n takes the place of an earlier one with probability most / n. */
#include "worker/export/background.h"

#include "base/random/philox.h"
#include "worker/data/table/encode.h"
#include "worker/data/table/rows.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/kept_rows.h"

/* An open file. */
struct row_file {
    const char *what;
    struct rows *rows;
    struct encoder encoder;
};

static bool row_file_begin(struct row_file *self, const struct trained *trained, const char *path, struct error *error)
{
    self->encoder = (struct encoder){.schema = trained->schema};
    error->text[0] = '\0';
    return rows_open(&self->rows, path, &trained->config.data, error) &&
           encoder_begin(&self->encoder, trained->schema, self->rows, false, error);
}

static void row_file_end(struct row_file *self)
{
    encoder_end(&self->encoder);
    rows_close(self->rows);
}

uint64_t background_draw(uint64_t count)
{
    const struct philox_block drawn = philox(philox_key(count), RANDOM_SHUFFLE, 0, 0, 0);
    const uint64_t bits = (uint64_t)drawn.word[0] << 32 | drawn.word[1];
    return (uint64_t)((double)(bits >> 11) * 0x1p-53 * (double)count);
}

/* Into [0, most); place `most` is for one that may turn out to be faulty. */
static bool sample(struct row_file *self, struct examples *examples, int most, struct error *error)
{
    uint64_t read = 0;
    struct row row;
    examples->count = 0;
    for (;;) {
        const enum csv_status status = rows_next(self->rows, &row, error);
        if (status == CSV_END) {
            break;
        }
        if (status == CSV_FAILED) {
            return false;
        }
        const uint64_t at = read < (uint64_t)most ? read : background_draw(read + 1);
        if (status != CSV_ROW || at >= (uint64_t)most) {
            read += status == CSV_ROW;
            continue;
        }
        if (encoder_add(&self->encoder, self->rows, &row, examples, most, error)) {
            examples_copy(examples, (int)at, examples, most, 1);
            examples->count += examples->count < most;
            read++;
        }
    }
    return examples->count > 0 || error_wrap(error, "%s has no row that the model can read", self->what);
}

bool background_sample(struct examples *rows, const struct trained *trained, const char *path, int most,
                       const char *what, struct error *error)
{
    const struct schema *schema = trained->schema;
    struct row_file file = {.what = what};
    *rows = (struct examples){.count = 0};
    const bool done = row_file_begin(&file, trained, path, error) &&
                      encoder_allocate(rows, schema, most + 1, schema->task == TASK_INPUTS, error) &&
                      sample(&file, rows, most, error);
    row_file_end(&file);
    return done;
}

static bool find(struct row_file *self, struct examples *examples, int64_t number, struct error *error)
{
    struct row row;
    for (int64_t at = 1;; at++) {
        const enum csv_status status = rows_next(self->rows, &row, error);
        if (status == CSV_END) {
            return error_set(error, "%s: has %lld rows, and --row=%lld", rows_name(self->rows), (long long)at - 1,
                             (long long)number);
        }
        if (status == CSV_FAILED || (status != CSV_ROW && at == number)) {
            return false;
        }
        if (at == number) {
            return encoder_add(&self->encoder, self->rows, &row, examples, 0, error);
        }
    }
}

bool background_row(struct examples *row, const struct trained *trained, const char *path, int64_t number,
                    struct error *error)
{
    const struct schema *schema = trained->schema;
    struct row_file file = {.what = path};
    *row = (struct examples){.count = 0};
    const bool done = row_file_begin(&file, trained, path, error) &&
                      encoder_allocate(row, schema, 1, schema->task == TASK_INPUTS, error) &&
                      find(&file, row, number, error);
    row_file_end(&file);
    return done;
}

/* The column whose places include this one. */
static const struct schema_column *column_at(const struct schema *schema, int32_t place)
{
    const struct schema_column *found = NULL;
    for (int i = 0; i < schema->count; i++) {
        const struct schema_column *column = &schema->columns[i];
        found = column->code >= 0 && column->place <= place ? column : found; /* places ascend */
    }
    return found;
}

/* A checkpoint lists only the places that a row has: each goes to its column's own. False: a column has two. */
static bool assign_places(struct examples *rows, const struct schema *schema)
{
    bool fit = true;
    for (int row = 0; row < rows->count; row++) {
        int32_t *places = rows->places + (size_t)row * (size_t)rows->codes;
        for (int i = rows->codes; fit && i-- > 0;) { /* from the last: none moves to the left */
            const int32_t place = places[i];
            const struct schema_column *column = place >= 0 ? column_at(schema, place) : NULL;
            places[i] = -1;
            fit = !column || (column->code >= i && places[column->code] < 0);
            if (fit && column) {
                places[column->code] = place;
            }
        }
    }
    return fit;
}

bool background_kept(struct examples *rows, const struct trained *trained, struct error *error)
{
    const struct examples like = encoder_shape(trained->schema);
    const bool done =
        kept_rows_read(checkpoint_file_info(trained->file)->kept_rows, &trained->model, &like, rows, error) &&
        (!rows->places || assign_places(rows, trained->schema) ||
         error_set(error, "kept_rows: a row has two categories of one column"));
    return done || error_wrap(error, "%s", checkpoint_path(trained->file));
}

bool background_part(struct examples *rows, const struct examples *from, int most, struct error *error)
{
    const int count = from->count < most ? from->count : most;
    if (!examples_create(rows, from, count)) {
        return error_set(error, "out of memory for %d rows", count);
    }
    for (int i = 0; i < count; i++) {
        examples_copy(rows, i, from, (int)((int64_t)i * from->count / count), 1);
    }
    return true;
}
