/*
 * Answers are computed by plain loops in double, directly from the state being saved: a checkpoint's bytes depend
 * neither on the engine nor on who saves it, and no engine's error is recorded as the truth.
 */
#include "worker/evaluation/kept_rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text/json.h"
#include "base/text/json_writer.h"
#include "worker/ensemble.h"
#include "worker/evaluation/evaluate.h"

enum {
    MOST_ROWS = 64,         /* as in the table of keys */
    MOST_NUMBERS = 1 << 15, /* of all rows together */
};

/* Tolerances of outputs, as shares of the largest one and of float32's error here; and the minimum. */
static const double RELATIVE = 1e-3, ROUNDING = 16, LEAST = 1e-6;
static const double FEW_DIGITS = 100; /* this many times as much in TensorFloat-32 or bfloat16 */

/* --- answers --- */

/* out += x times a row of weights. single: rounded as float32 rounds. */
static inline void add_row(double *out, const float *weights, double x, int cols, bool single)
{
    for (int j = 0; j < cols; j++) {
        const double sum = out[j] + x * (double)weights[j];
        out[j] = single ? (double)(float)sum : sum;
    }
}

static const float *weights_at(const struct model *model, const float *parameters, int layer, int row)
{
    const struct variable *weights = &model->variables[2 * layer];
    return parameters + weights->offset + (size_t)row * (size_t)weights->stride;
}

static void first_layer(const struct model *model, const float *parameters, const struct examples *rows, int row,
                        double *out, bool single)
{
    const int cols = model->widths[1], numbers = examples_are_rows(rows) ? rows->numbers : model->widths[0];
    for (int i = 0; i < numbers; i++) {
        const size_t at = (size_t)row * (size_t)numbers + (size_t)i;
        const float x = rows->images ? (float)rows->images[at] / 255.0F : rows->values[at];
        if (x != 0) {
            add_row(out, weights_at(model, parameters, 0, i), (double)x, cols, single);
        }
    }
    for (int column = 0, input = 0; column < rows->piecewise && numbers == 0; column++) {
        const float position = rows->positions[(size_t)row * (size_t)rows->piecewise + (size_t)column];
        for (int bin = 0; bin < rows->bins[column]; bin++, input++) {
            const double filled = (double)(position - (float)bin);
            if (filled > 0) {
                add_row(out, weights_at(model, parameters, 0, input), filled < 1 ? filled : 1, cols, single);
            }
        }
    }
    const int first = examples_dense(rows);
    for (int i = 0; i < rows->codes; i++) {
        const int32_t place = rows->places[(size_t)row * (size_t)rows->codes + (size_t)i];
        if (place >= 0) {
            add_row(out, weights_at(model, parameters, 0, first + place), 1, cols, single);
        }
    }
}

static double activated(enum activation activation, double z)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return z > 0 ? z : 0;
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-z));
    case ACTIVATION_TANH:
        return tanh(z);
    case ACTIVATION_IDENTITY:
        break;
    }
    return z;
}

/* The rows' outputs at the start of `out`; both are [rows, widest layer]. Each weight is read once. */
static void answer(const struct model *model, const float *parameters, const struct examples *rows, double *out,
                   double *in, bool single)
{
    for (int layer = 0; layer < model->layer_count; layer++) {
        const int units = model->widths[layer], cols = model->widths[layer + 1];
        const float *biases = parameters + model->variables[2 * layer + 1].offset;
        for (int i = 0; layer > 0 && i < rows->count * units; i++) {
            const double value = activated(model->activation, out[i]);
            in[i] = single ? (double)(float)value : value;
        }
        for (int i = 0; i < rows->count * cols; i++) {
            out[i] = (double)biases[i % cols];
        }
        for (int row = 0; layer == 0 && row < rows->count; row++) {
            first_layer(model, parameters, rows, row, out + (size_t)row * (size_t)cols, single);
        }
        for (int i = 0; layer > 0 && i < rows->count * units; i++) {
            const int unit = i / rows->count, row = i % rows->count;
            add_row(out + (size_t)row * (size_t)cols, weights_at(model, parameters, layer, unit),
                    in[(size_t)row * (size_t)units + (size_t)unit], cols, single);
        }
    }
}

static int widest(const struct model *model)
{
    int most = 0;
    for (int layer = 1; layer <= model->layer_count; layer++) {
        most = model->widths[layer] > most ? model->widths[layer] : most;
    }
    return most;
}

static int outputs_of(const struct model *model)
{
    return model->widths[model->layer_count];
}

/* The outputs of all nets, averaged, at the start of `out`; False if out of memory. */
static bool answer_all(const struct model *model, const float *parameters, const struct examples *rows,
                       enum loss_kind loss, double *out, double *in, bool single)
{
    const int outputs = outputs_of(model), values = rows->count * outputs;
    if (model->net_count == 1 && model->views[0] == VIEW_RAW) {
        answer(model, parameters, rows, out, in, single);
        return true;
    }
    double *said = malloc(((size_t)model->net_count * (size_t)values + 1) * sizeof *said); /* [rows, nets, outputs] */
    for (int net = 0; said && net < model->net_count; net++) {
        struct model one;
        const size_t first = model_net(model, net, &one);
        const struct examples seen = examples_view(rows, model->views[net]);
        answer(&one, parameters + first, &seen, out, in, single);
        for (int i = 0; i < values; i++) {
            said[((ptrdiff_t)(i / outputs) * model->net_count + net) * outputs + i % outputs] = out[i];
        }
    }
    for (int row = 0; said && row < rows->count; row++) {
        ensemble_average(loss, model->net_count, outputs, said + (ptrdiff_t)row * model->net_count * outputs,
                         out + (ptrdiff_t)row * outputs);
    }
    free(said);
    return said;
}

/* NaN or infinite: the model is unusable. */
static double tolerance_of(const double *outputs, const double *rounded, int count)
{
    double largest = 0, worst = 0;
    for (int i = 0; i < count; i++) {
        largest = fabs(outputs[i]) > largest || isnan(outputs[i]) ? fabs(outputs[i]) : largest;
        worst = fmax(worst, fabs(outputs[i] - rounded[i]));
    }
    return RELATIVE * largest + ROUNDING * worst + LEAST;
}

/* --- writing --- */

static void put_row(struct text_buffer *text, const struct examples *rows, int row, int pixels, const double *outputs,
                    int output_count)
{
    json_write_open(text, NULL, '[');
    json_write_open(text, NULL, '[');
    for (int i = 0; i < pixels; i++) {
        json_write_integer(text, NULL, rows->images[(size_t)row * (size_t)pixels + (size_t)i]);
    }
    for (int i = 0; i < rows->numbers; i++) {
        json_write_number(text, NULL, (double)rows->values[(size_t)row * (size_t)rows->numbers + (size_t)i]);
    }
    for (int i = 0; i < rows->piecewise; i++) {
        json_write_number(text, NULL, (double)rows->positions[(size_t)row * (size_t)rows->piecewise + (size_t)i]);
    }
    json_write_close(text, ']');
    json_write_open(text, NULL, '[');
    for (int i = 0; i < rows->codes; i++) {
        const int32_t place = rows->places[(size_t)row * (size_t)rows->codes + (size_t)i];
        if (place >= 0) {
            json_write_integer(text, NULL, examples_dense(rows) + place);
        }
    }
    json_write_close(text, ']');
    json_write_open(text, NULL, '[');
    for (int i = 0; i < output_count; i++) {
        json_write_number(text, NULL, outputs[i]);
    }
    json_write_close(text, ']');
    json_write_close(text, ']');
}

static char *write_rows(const struct model *model, const float *parameters, const struct examples *rows,
                        enum loss_kind loss)
{
    const size_t room = (size_t)rows->count * (size_t)widest(model);
    const int outputs = outputs_of(model), pixels = rows->images ? model->widths[0] : 0;
    double *memory = malloc(3 * room * sizeof *memory);
    struct text_buffer text = {0};
    if (!memory) {
        return NULL;
    }
    double *exact = memory, *rounded = memory + room, *scratch = memory + 2 * room;
    if (!answer_all(model, parameters, rows, loss, exact, scratch, false) ||
        !answer_all(model, parameters, rows, loss, rounded, scratch, true)) {
        free(memory);
        return NULL;
    }
    const double tolerance = tolerance_of(exact, rounded, rows->count * outputs);
    json_write_open(&text, NULL, '[');
    json_write_number(&text, NULL, tolerance);
    for (int row = 0; row < rows->count; row++) {
        put_row(&text, rows, row, pixels, exact + (size_t)row * (size_t)outputs, outputs);
    }
    json_write_close(&text, ']');
    text_buffer_add_bytes(&text, "", 1);
    free(memory);
    if (!isfinite(tolerance)) {
        text_buffer_free(&text);
    }
    size_t size;
    return text_buffer_take(&text, &size);
}

/* A group is a patient or a customer more often than not: their rows are for nobody else. */
static int rows_to_keep(const struct config *config)
{
    enum { USUAL = 4 };
    const int rows = config->output.kept_rows;
    return rows != CONFIG_AUTO ? rows : config->data.group[0] != '\0' ? 0 : USUAL;
}

char *kept_rows_write(const struct config *config, const struct dataset *dataset, const struct examples *test,
                      const struct checkpoint_state *state)
{
    const float *averages = state->vectors[STORE_AVERAGES];
    const bool has_validation = dataset->validation.count > 0;
    const struct examples *source = has_validation ? &dataset->validation : test;
    if (config->data.data_sharding == SHARDING_OWN || !source || source->count == 0 ||
        (!source->images && !source->values && !source->positions && !source->places)) {
        return NULL;
    }
    const int inputs = source->images ? state->model->widths[0] : source->numbers + source->piecewise + source->codes;
    const int most = MOST_NUMBERS / (inputs + outputs_of(state->model));
    int count = rows_to_keep(config);
    count = count < source->count ? count : source->count;
    count = count < most ? count : most;
    if (count == 0) {
        return NULL;
    }
    const struct examples rows = examples_part(source, 0, count);
    return write_rows(state->model, averages ? averages : state->vectors[STORE_PARAMETERS], &rows,
                      evaluation_loss(&config->train, rows.targets));
}

/* --- checking --- */

struct expected_rows {
    double tolerance;
    struct examples rows;
    float *outputs; /* [rows.count, outputs of the model] */
};

static bool next_number(struct json_walk *walk, double *number)
{
    struct json_value value;
    if (!json_next(walk, &value) || value.kind != JSON_NUMBER) {
        return false;
    }
    *number = strtod(value.text, NULL); /* stops at the next character: the checked text ends with a zero byte */
    return isfinite(*number);
}

static bool read_inputs(struct examples *rows, int row, int inputs, struct json_value values)
{
    struct json_walk walk = json_walk(values);
    double number;
    if (values.kind != JSON_ARRAY || json_length(values) != (size_t)inputs) {
        return false;
    }
    for (int i = 0; i < inputs; i++) {
        if (!next_number(&walk, &number) || (rows->images && !(number >= 0 && number <= 255))) {
            return false;
        }
        if (rows->images) {
            rows->images[(size_t)row * (size_t)inputs + (size_t)i] = (uint8_t)number;
        } else if (i < rows->numbers) {
            rows->values[(size_t)row * (size_t)rows->numbers + (size_t)i] = (float)number;
        } else if (number >= 0 && number <= rows->bins[i - rows->numbers]) {
            rows->positions[(size_t)row * (size_t)rows->piecewise + (size_t)(i - rows->numbers)] = (float)number;
        } else {
            return false;
        }
    }
    return true;
}

/* In ascending order: each at most once. */
static bool read_places(struct examples *rows, int row, struct json_value places)
{
    struct json_walk walk = json_walk(places);
    const size_t count = json_length(places);
    const int first = examples_dense(rows);
    double number, least = first;
    if (places.kind != JSON_ARRAY || count > (size_t)rows->codes) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (!next_number(&walk, &number) || number < least || number >= rows->inputs || number != floor(number)) {
            return false;
        }
        rows->places[(size_t)row * (size_t)rows->codes + i] = (int32_t)number - first;
        least = number + 1;
    }
    return true;
}

static bool read_row(struct expected_rows *kept, int row, int inputs, int outputs, struct json_value parts)
{
    struct json_walk walk = json_walk(parts), answers;
    struct json_value values, places, expected;
    double number;
    if (!json_next(&walk, &values) || !json_next(&walk, &places) || !json_next(&walk, &expected) ||
        !read_inputs(&kept->rows, row, inputs, values) || !read_places(&kept->rows, row, places) ||
        json_length(expected) != (size_t)outputs) {
        return false;
    }
    answers = json_walk(expected);
    for (int i = 0; i < outputs; i++) {
        if (!next_number(&answers, &number)) {
            return false;
        }
        kept->outputs[(size_t)row * (size_t)outputs + (size_t)i] = (float)number;
    }
    return true;
}

static bool read_kept(struct expected_rows *kept, const char *text, const struct model *model,
                      const struct examples *like, struct error *error)
{
    const struct examples shape =
        examples_are_rows(like) ? *like : (struct examples){.height = 1, .width = model->widths[0]};
    const int inputs = examples_are_rows(like) ? like->numbers + like->piecewise : model->widths[0],
              outputs = outputs_of(model);
    const size_t size = strlen(text);
    struct json_place place;
    struct error why;
    if (!json_check(text, size, &place, &why)) {
        return error_set(error, "kept_rows: %s", why.text);
    }
    const struct json_value whole = json_whole(text, size);
    const size_t length = json_length(whole), count = length > 0 ? length - 1 : 0;
    struct json_walk walk = json_walk(whole);
    struct json_value row;
    bool reads = count <= MOST_ROWS && next_number(&walk, &kept->tolerance) && kept->tolerance >= 0;
    kept->outputs = malloc((count * (size_t)outputs + 1) * sizeof *kept->outputs);
    if (!reads) {
        return error_set(error, "kept_rows: is not in this program's format");
    }
    if (!kept->outputs || !examples_create(&kept->rows, &shape, (int)count)) {
        return error_set(error, "out of memory for the rows that it keeps");
    }
    kept->rows.count = (int)count;
    for (int i = 0; reads && i < kept->rows.count; i++) {
        reads = json_next(&walk, &row) && read_row(kept, i, inputs, outputs, row);
    }
    return reads || error_set(error, "kept_rows: do not fit its model");
}

static bool compare(const struct expected_rows *kept, const float *got, int outputs, double tolerance,
                    struct error *error)
{
    for (int i = 0; i < kept->rows.count * outputs; i++) {
        const double here = (double)got[i], there = (double)kept->outputs[i];
        if (!(fabs(here - there) <= tolerance)) {
            return error_set(error,
                             "stored row %d gives %g for output %d, but gave %g when it was saved: the file was "
                             "altered, or this machine computes wrongly",
                             i / outputs, here, i % outputs, there);
        }
    }
    return true;
}

bool kept_rows_check(const char *text, const struct model *model, const struct examples *like, enum precision precision,
                     struct engine *engine, int *count, struct error *error)
{
    struct expected_rows kept = {0};
    const int outputs = outputs_of(model);
    *count = 0;
    if (!text) {
        return true;
    }
    bool done = read_kept(&kept, text, model, like, error);
    float *got = done ? malloc(((size_t)kept.rows.count * (size_t)outputs + 1) * sizeof *got) : NULL;
    if (done && !got) {
        done = error_set(error, "out of memory for the rows that it keeps");
    }
    const double tolerance = kept.tolerance * (precision == PRECISION_FLOAT32 ? 1 : FEW_DIGITS);
    done =
        done &&
        (kept.rows.count == 0 || engine->table->forward(engine, false, &kept.rows, 0, kept.rows.count, got, error)) &&
        compare(&kept, got, outputs, tolerance, error);
    *count = done ? kept.rows.count : 0;
    free(got);
    free(kept.outputs);
    examples_free(&kept.rows);
    return done;
}

bool kept_rows_read(const char *text, const struct model *model, const struct examples *like, struct examples *rows,
                    struct error *error)
{
    struct expected_rows kept = {0};
    const bool done = !text || read_kept(&kept, text, model, like, error);
    free(kept.outputs);
    *rows = kept.rows;
    return done;
}
