/* A checkpoint is opened, and so verified, at each request: it may be gone by the next one. */
#include "worker/export/first_layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text/json_writer.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"

enum {
    MOST_UNITS = 64,       /* shown */
    LEAST_SIDE = 4,        /* images with fewer pixels a side are not shown */
    MOST_FLOATS = 1 << 24, /* limit of a layer to read */
};

/* The side of the images that the tensor's units look at; 0: not square images. */
static int side_of(const struct checkpoint_file *file, const struct safetensors_tensor *tensor)
{
    if (!tensor || tensor->dimensions != 2 || checkpoint_file_info(file)->preprocessing || tensor->shape[1] < 1 ||
        tensor->shape[0] > MOST_FLOATS / tensor->shape[1]) {
        return 0;
    }
    const int side = (int)lround(sqrt((double)tensor->shape[0]));
    return side >= LEAST_SIDE && (int64_t)side * side == tensor->shape[0] ? side : 0;
}

static const struct safetensors_tensor *first_layer(const struct checkpoint_file *file)
{
    return safetensors_find(checkpoint_file_tensors(file), "layer0/weights");
}

/* NULL: there is no such checkpoint now. */
static struct checkpoint_file *open_newest(const char *folder, bool is_table)
{
    struct checkpoint_file *file = NULL;
    struct error error;
    if (!checkpoint_folder_find(folder, &file, &error)) {
        return NULL;
    }
    const bool is_of_table = file && checkpoint_file_info(file)->preprocessing;
    const bool fits = file && (is_table ? is_of_table : side_of(file, first_layer(file)) > 0);
    if (!fits) {
        checkpoint_close(file);
        return NULL;
    }
    return file;
}

static bool is_known(const char *folder, bool is_table)
{
    struct checkpoint_file *file = open_newest(folder, is_table);
    const bool known = file;
    checkpoint_close(file);
    return known;
}

bool first_layer_is_known(const char *folder)
{
    return is_known(folder, false);
}

bool first_layer_has_columns(const char *folder)
{
    return is_known(folder, true);
}

void first_layer_write(struct text_buffer *text, const float *weights, int units, int height, int width)
{
    const int inputs = height * width;
    json_write_open(text, NULL, '{');
    json_write_integer(text, "height", height);
    json_write_integer(text, "width", width);
    json_write_open(text, "units", '[');
    for (int unit = 0; unit < units && unit < MOST_UNITS; unit++) {
        json_write_open(text, NULL, '{');
        json_write_open(text, "values", '[');
        for (int i = 0; i < inputs; i++) {
            const double weight = (double)weights[(size_t)i * (size_t)units + (size_t)unit];
            text_buffer_add(text, "%s%.3g", i > 0 ? "," : "", isfinite(weight) ? weight : 0.0);
        }
        text->follows = true;
        json_write_close(text, ']');
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}

bool first_layer_json(void *context, char **json, size_t *size)
{
    struct checkpoint_file *file = open_newest(context, false);
    struct error error;
    if (!file) {
        return false;
    }
    const struct safetensors_tensor *tensor = first_layer(file);
    const int inputs = (int)tensor->shape[0], units = (int)tensor->shape[1];
    const size_t count = (size_t)inputs * (size_t)units;
    float *weights = malloc(count * sizeof *weights);
    struct text_buffer text = {.bytes = NULL};
    const bool done = weights && checkpoint_read_tensor(file, tensor, 0, count, weights, &error);
    if (done) {
        const int side = side_of(file, tensor);
        first_layer_write(&text, weights, units, side, side);
    }
    free(weights);
    checkpoint_close(file);
    *json = text_buffer_take(&text, size);
    return *json;
}

/* The mean square of each input's weights; NULL: not the first layer of such a table. The caller frees it. */
static double *read_squares(struct checkpoint_file *file, const struct schema *schema)
{
    const struct safetensors_tensor *tensor = first_layer(file);
    struct error error;
    if (!tensor || tensor->dimensions != 2 || tensor->shape[0] != schema->inputs || tensor->shape[1] < 1 ||
        tensor->shape[0] > MOST_FLOATS / tensor->shape[1]) {
        return NULL;
    }
    const int units = (int)tensor->shape[1];
    float *row = malloc((size_t)units * sizeof *row);
    double *squares = calloc((size_t)schema->inputs, sizeof *squares);
    bool done = row && squares;
    for (int i = 0; done && i < schema->inputs; i++) {
        done = checkpoint_read_tensor(file, tensor, (size_t)i * (size_t)units, (size_t)units, row, &error);
        squares[i] = done ? column_weights_square(row, units) : 0;
    }
    free(row);
    if (!done) {
        free(squares);
        return NULL;
    }
    return squares;
}

bool first_layer_columns(void *context, char **json, size_t *size)
{
    struct checkpoint_file *file = open_newest(context, true);
    struct schema schema = {.count = 0};
    struct text_buffer text = {.bytes = NULL};
    struct error error;
    if (!file) {
        return false;
    }
    const bool parsed = schema_parse(&schema, checkpoint_file_info(file)->preprocessing, &error);
    double *squares = parsed ? read_squares(file, &schema) : NULL;
    struct weighed_column *columns = squares ? calloc(COLUMN_WEIGHTS_MOST, sizeof *columns) : NULL;
    if (columns) {
        column_weights_write(&text, columns, column_weights(columns, &schema, squares));
    }
    free(columns);
    free(squares);
    schema_free(&schema);
    checkpoint_close(file);
    *json = text_buffer_take(&text, size);
    return *json;
}

/* --- Columns' weights --- */

/* Inputs are scaled alike, so that their weights can be compared; of a column's categories one is set at a time. */

double column_weights_square(const float *row, int units)
{
    double sum = 0;
    for (int i = 0; i < units; i++) {
        sum += (double)row[i] * (double)row[i];
    }
    return sum / units;
}

static double weight_of(const struct schema *schema, const struct schema_column *column, const double *squares)
{
    const int places = column->categories.count;
    double sum = 0;
    const int numbers = schema_numbers(column);
    if (numbers > 0) {
        for (int i = 0; i < numbers && column->input >= 0 && column->input + i < schema->inputs; i++) {
            sum += squares[column->input + i];
        }
        return sqrt(sum / numbers);
    }
    const int first = schema->numbers + column->place;
    for (int i = 0; i < places && column->place >= 0 && first + i < schema->inputs; i++) {
        sum += squares[first + i];
    }
    return places > 0 ? sqrt(sum / places) : 0;
}

int column_weights(struct weighed_column *columns, const struct schema *schema, const double *squares)
{
    double all = 0;
    int count = 0;
    for (int i = 0; i < schema->count && count < COLUMN_WEIGHTS_MOST; i++) {
        if (schema->columns[i].role == SCHEMA_FEATURE) {
            snprintf(columns[count].name, sizeof columns[count].name, "%.63s", schema->columns[i].name);
            columns[count].share = weight_of(schema, &schema->columns[i], squares);
            all += columns[count++].share;
        }
    }
    for (int i = 0; i < count && all > 0; i++) {
        columns[i].share /= all;
    }
    return count;
}

void column_weights_write(struct text_buffer *text, const struct weighed_column *columns, int count)
{
    json_write_open(text, NULL, '{');
    json_write_open(text, "columns", '[');
    for (int i = 0; i < count; i++) {
        json_write_open(text, NULL, '{');
        json_write_string(text, "name", columns[i].name);
        json_write_number(text, "importance", columns[i].share);
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_close(text, '}');
}
