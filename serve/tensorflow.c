/*
 * TensorFlow Serving's REST interface: "instances" (rows) are answered by "predictions", "inputs" (columns) by
 * "outputs"; :classify takes "examples". Predictions are rows of probabilities. "parameters": {"spread": true} adds the
 * spread of an ensemble.
 * https://www.tensorflow.org/tfx/serving/api_rest
 *
 * And what KServe adds to it: :explain, which takes what :predict does, and answers with "predictions" and
 * "explanations". https://kserve.github.io/website/docs/concepts/architecture/data-plane/v1-protocol
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/protocol.h"

struct tensorflow_form {
    bool by_columns;
    struct contributions *explanations; /* of :explain: [rows] */
    int rows;
};

static bool check_signature(struct json_value name, struct error *error)
{
    static const char *const known[] = {"serving_default", "predict", "classify", "regress"};
    for (int i = 0; i < 4; i++) {
        if (name.kind == JSON_NONE || json_is(name, known[i])) {
            return true;
        }
    }
    return error_set(error, "signature_name: only serving_default exists");
}

/* {"age": [40, 41], "city": ["Ulm", "Bonn"]} */
static bool read_columns(struct call *call, struct intake *intake, struct json_body *body, struct json_value columns,
                         struct error *error)
{
    const size_t count = json_length(columns);
    struct json_walk walk = json_walk(columns);
    if (!call_charge(call, (count + 1) * sizeof(struct tensor), error)) {
        return false;
    }
    struct tensor *tensors = calloc(count + 1, sizeof *tensors);
    bool done = tensors || error_set(error, "out of memory for %zu columns", count);
    for (size_t i = 0; done && i < count; i++) {
        struct tensor *tensor = &tensors[i];
        *tensor = (struct tensor){.type = TENSOR_ANY, .width = 1};
        json_next_member(&walk, &tensor->name, &tensor->data);
        tensor->rows = (int64_t)json_length(tensor->data);
        if (tensor->data.kind != JSON_ARRAY) {
            done = error_set(error, "column %.*s: is %s, not an array of values",
                             (int)(tensor->name.size < 64 ? tensor->name.size : 64), tensor->name.text,
                             json_kind_name(tensor->data.kind));
        }
    }
    done = done && tensor_add_table(body, intake, tensors, (int)count, error);
    free(tensors);
    return done;
}

static bool read_rows(struct call *call, struct intake *intake, struct json_body *body, struct error *error)
{
    struct tensorflow_form *form = call->format;
    const bool classifies =
        call->protocol == &protocol_tensorflow_classify || call->protocol == &protocol_tensorflow_regress;
    const char *rows_name = classifies ? "examples" : "instances";
    struct json_value rows = {.kind = JSON_NONE}, columns = rows, signature = rows, parameters = rows, name, value;
    struct json_walk members = json_walk(body->root); /* a single walk: rows may be long */
    while (body->root.kind == JSON_OBJECT && json_next_member(&members, &name, &value)) {
        if (rows.kind == JSON_NONE && json_is(name, rows_name)) {
            rows = value;
        } else if (columns.kind == JSON_NONE && !classifies && json_is(name, "inputs")) {
            columns = value;
        } else if (signature.kind == JSON_NONE && json_is(name, "signature_name")) {
            signature = value;
        } else if (json_is(name, "parameters")) {
            parameters = value;
        }
    }
    if (!check_signature(signature, error) || !call_ask_spread(call, parameters, error)) {
        return false;
    }
    if ((rows.kind == JSON_NONE) == (columns.kind == JSON_NONE)) {
        return error_set(error, classifies ? "wants \"examples\": [{...}, ...]"
                                           : "wants \"instances\": [...], by row, or \"inputs\": {...}, by column");
    }
    form->by_columns = columns.kind != JSON_NONE;
    if (columns.kind == JSON_OBJECT && !version_is_of_pictures(call->version)) {
        return read_columns(call, intake, body, columns, error);
    }
    if (columns.kind == JSON_OBJECT) { /* images are one column */
        struct json_walk walk = json_walk(columns);
        if (!json_next_member(&walk, &name, &columns)) {
            return error_set(error, "inputs: is empty");
        }
    }
    return tensor_add_rows(body, intake, form->by_columns ? columns : rows, error);
}

static bool read_call(struct call *call, struct intake *intake, struct error *error)
{
    struct json_body body;
    call->format = calloc(1, sizeof(struct tensorflow_form));
    if (!call->format) {
        return error_set(error, "out of memory");
    }
    bool done = json_open_body(&body, call, call->size, error) && read_rows(call, intake, &body, error);
    json_close_body(&body);
    return done;
}

/* --- answers --- */

static void put_row(struct text_buffer *body, const struct answers *answers, int row, struct outcome *outcome)
{
    const struct trained *trained = &answers->version->trained;
    outcome_find(trained, answers->outputs, answers->wanted, row, outcome);
    if (outcome->count == 1) {
        json_outcome(body, outcome, 0);
        return;
    }
    json_write_open(body, NULL, '[');
    for (int i = 0; i < outcome->count; i++) {
        json_outcome(body, outcome, i);
    }
    json_write_close(body, ']');
}

/* ["cat", 0.8], ["dog", 0.2] */
static void put_classes(struct text_buffer *body, const struct answers *answers, int row, struct outcome *outcome)
{
    const struct trained *trained = &answers->version->trained;
    outcome_find(trained, answers->outputs, answers->wanted, row, outcome);
    json_write_open(body, NULL, '[');
    for (int i = 0; i < outcome->count; i++) {
        char name[OUTCOME_NAME];
        json_write_open(body, NULL, '[');
        json_write_string(body, NULL, outcome_name(trained, i, name));
        json_outcome(body, outcome, i);
        json_write_close(body, ']');
    }
    json_write_close(body, ']');
}

/* As a prediction is a number, or several. */
static void put_spread(struct text_buffer *body, const struct answers *answers, int row, struct outcome *outcome)
{
    const struct trained *trained = &answers->version->trained;
    const int count = outcome_spreads(trained);
    outcome_find(trained, answers->outputs, answers->wanted, row, outcome);
    if (count > 1) {
        json_write_open(body, NULL, '[');
    }
    for (int i = 0; i < count; i++) {
        json_write_number(body, NULL, outcome_spread(trained, outcome, answers->spreads, row, i));
    }
    if (count > 1) {
        json_write_close(body, ']');
    }
}

/* [low, high], or an array of these for several targets. */
static void put_interval(struct text_buffer *body, const struct answers *answers, int row, struct outcome *outcome)
{
    const struct trained *trained = &answers->version->trained;
    outcome_find(trained, answers->outputs, answers->wanted, row, outcome);
    if (outcome->count > 1) {
        json_write_open(body, NULL, '[');
    }
    for (int i = 0; i < outcome->count; i++) {
        json_write_open(body, NULL, '[');
        json_write_number(body, NULL, outcome_low(trained, outcome, i));
        json_write_number(body, NULL, outcome_high(trained, outcome, i));
        json_write_close(body, ']');
    }
    if (outcome->count > 1) {
        json_write_close(body, ']');
    }
}

typedef void put_one(struct text_buffer *body, const struct answers *answers, int row, struct outcome *outcome);

static void put_list(struct text_buffer *body, const struct answers *answers, const char *name, put_one *put,
                     struct outcome *outcome)
{
    json_write_open(body, name, '[');
    for (int row = 0; row < answers->count; row++) {
        put(body, answers, row, outcome);
    }
    json_write_close(body, ']');
}

/* How sure the predictions are, as far as it is known or wanted. */
static void put_doubts(struct text_buffer *body, const struct answers *answers, struct outcome *outcome)
{
    if (outcome_has_intervals(&answers->version->trained)) {
        put_list(body, answers, "intervals", put_interval, outcome);
    }
    if (answers->spreads) {
        put_list(body, answers, "spread", put_spread, outcome);
    }
}

/* {"name": [row, row, ...]} */
static const char *write_rows(struct text_buffer *body, const struct answers *answers, const char *name, put_one *put)
{
    struct outcome outcome;
    if (!outcome_create(&outcome, &answers->version->trained)) {
        body->failed = true;
        return NULL;
    }
    json_write_open(body, NULL, '{');
    put_list(body, answers, name, put, &outcome);
    put_doubts(body, answers, &outcome);
    json_write_close(body, '}');
    outcome_free(&outcome);
    return "application/json";
}

static const char *write_predictions(struct call *call, const struct answers *answers, struct text_buffer *body,
                                     char headers[512])
{
    const struct tensorflow_form *form = call->format;
    (void)headers;
    return write_rows(body, answers, form->by_columns ? "outputs" : "predictions", put_row);
}

/* "results" is TensorFlow Serving's actual name, despite its documentation. */
static const char *write_classes(struct call *call, const struct answers *answers, struct text_buffer *body,
                                 char headers[512])
{
    (void)call, (void)headers;
    return write_rows(body, answers, "results", put_classes);
}

static const char *write_numbers(struct call *call, const struct answers *answers, struct text_buffer *body,
                                 char headers[512])
{
    (void)call, (void)headers;
    return write_rows(body, answers, "results", put_row);
}

static bool read_regression(struct call *call, struct intake *intake, struct error *error)
{
    return (outcome_kind(&call->version->trained) == OUTCOME_NUMBERS ||
            error_set(error, "%s predicts no numbers; use :predict or :classify", call->served->name)) &&
           read_call(call, intake, error);
}

/* --- :explain --- */

/* Of the explanations of a request: a worker is busy with them for a minute at most, or so. */
enum { MOST_COMPUTED = 1 << 20 /* rows */ };
static const double MOST_WORK = 0x1p40; /* rows times weights */

static bool check_count(struct call *call, int rows, struct error *error)
{
    const struct shapley *shapley = &call->version->shapley;
    const int most = (int)fmin(MOST_COMPUTED / (double)shapley_rows(shapley), MOST_WORK / shapley_work(shapley));
    if (most == 0) {
        return error_set(error,
                         "%s is too large to be explained here: %d columns, each %d times, and %zu weights; use "
                         "trainer predict --explain",
                         call->served->name, shapley->column_count, shapley->samples,
                         call->version->trained.model.parameter_count);
    }
    return rows <= most || call_fault(call, 413, error,
                                      "there are %d rows to explain; of this model's, with %d columns and %zu weights, "
                                      "send at most %d at a time",
                                      rows, shapley->column_count, call->version->trained.model.parameter_count, most);
}

static bool read_questions(struct call *call, struct intake *intake, struct error *error)
{
    const struct shapley *shapley = &call->version->shapley;
    const char *obstacle = shapley_obstacle(&call->version->trained);
    if (obstacle) {
        return error_set(error, "%s %s", call->served->name, obstacle);
    }
    if (shapley->samples == 0) {
        return error_set(error,
                         "%s has no rows to compare with: start trainer serve with --reference=FILE, of training's "
                         "rows, say, or train with --kept_rows",
                         call->served->name);
    }
    if (!read_call(call, intake, error)) {
        return false;
    }
    struct tensorflow_form *form = call->format;
    form->rows = intake->examples.count - intake->first_row;
    const size_t each = sizeof(struct contributions) +
                        2 * ((size_t)shapley->column_count + 1) * (size_t)shapley->outputs * sizeof(double);
    if (!check_count(call, form->rows, error) ||
        !call_charge(call, shapley_bytes(shapley) + (size_t)form->rows * each, error)) {
        form->rows = 0;
        return false;
    }
    form->explanations = calloc((size_t)form->rows + 1, sizeof *form->explanations);
    form->rows = form->explanations ? form->rows : 0;
    return form->explanations || error_set(error, "out of memory for the explanations of %d rows", form->rows);
}

static bool explanation_goes_on(void *context, struct error *error)
{
    return call_goes_on(context, error);
}

static bool explain(struct call *call, struct engine *engine, const struct examples *rows, struct error *error)
{
    const struct shapley_watch watch = {explanation_goes_on, call};
    const struct shapley *shapley = &call->version->shapley;
    const struct tensorflow_form *form = call->format;
    for (int row = 0; row < form->rows; row++) {
        if (!contributions_create(&form->explanations[row], shapley)) {
            return error_set(error, "out of memory for the explanations of %d rows", form->rows);
        }
        if (!shapley_explain(shapley, engine, rows, row, &watch, &form->explanations[row], error)) {
            return false;
        }
    }
    if (!call->is_trial) {
        atomic_fetch_add(&call->served->counts.explained, (uint64_t)form->rows);
    }
    return true;
}

static void forget_explanations(struct call *call)
{
    const struct tensorflow_form *form = call->format;
    for (int row = 0; form && row < form->rows; row++) {
        contributions_free(&form->explanations[row]);
    }
    if (form) {
        free(form->explanations);
    }
}

static void put_columns(struct text_buffer *body, const struct shapley *shapley, const char *name, const double *values)
{
    json_write_open(body, name, '{');
    for (int i = 0; i < shapley->column_count; i++) {
        json_write_number(body, shapley->trained->schema->columns[i].name, values[i]);
    }
    json_write_close(body, '}');
}

/* Of the predicted class, or of one target. */
static void put_explanation(struct text_buffer *body, const struct shapley *shapley, const struct contributions *found,
                            int output)
{
    const bool is_class = outcome_kind(shapley->trained) == OUTCOME_CLASS;
    const size_t first = (size_t)output * (size_t)shapley->column_count;
    char name[OUTCOME_NAME];
    json_write_open(body, NULL, '{');
    json_write_string(body, is_class ? "class" : "target",
                      outcome_name(shapley->trained, is_class ? found->best : output, name));
    json_write_number(body, outcome_kind(shapley->trained) == OUTCOME_NUMBERS ? "prediction" : "probability",
                      found->values[output]);
    json_write_number(body, "mean", found->means[output]);
    put_columns(body, shapley, "contributions", found->of + first);
    put_columns(body, shapley, "errors", found->errors + first);
    json_write_close(body, '}');
}

static const char *write_explanations(struct call *call, const struct answers *answers, struct text_buffer *body,
                                      char headers[512])
{
    const struct shapley *shapley = &answers->version->shapley;
    const struct tensorflow_form *form = call->format;
    struct outcome outcome;
    (void)headers;
    if (!outcome_create(&outcome, &answers->version->trained)) {
        body->failed = true;
        return NULL;
    }
    json_write_open(body, NULL, '{');
    put_list(body, answers, "predictions", put_row, &outcome);
    put_doubts(body, answers, &outcome);
    json_write_open(body, "explanations", '[');
    for (int row = 0; row < form->rows; row++) {
        if (shapley->outputs > 1) {
            json_write_open(body, NULL, '[');
        }
        for (int output = 0; output < shapley->outputs; output++) {
            put_explanation(body, shapley, &form->explanations[row], output);
        }
        if (shapley->outputs > 1) {
            json_write_close(body, ']');
        }
    }
    json_write_close(body, ']');
    json_write_integer(body, "background_rows", shapley->background.count);
    json_write_integer(body, "samples", shapley->samples);
    json_write_close(body, '}');
    outcome_free(&outcome);
    return "application/json";
}

const struct protocol protocol_tensorflow_explain = {
    .read = read_questions, .compute = explain, .write = write_explanations, .forget = forget_explanations};
const struct protocol protocol_tensorflow_regress = {.read = read_regression, .write = write_numbers};
const struct protocol protocol_tensorflow_predict = {.read = read_call, .write = write_predictions};
const struct protocol protocol_tensorflow_classify = {.read = read_call, .write = write_classes};

/* --- metadata --- */

static void put_shape(struct text_buffer *text, int size)
{
    json_write_open(text, "tensor_shape", '{');
    json_write_open(text, "dim", '[');
    for (int i = 0; i < (size > 0 ? 2 : 1); i++) {
        char number[16];
        snprintf(number, sizeof number, "%d", i == 0 ? -1 : size);
        json_write_open(text, NULL, '{');
        json_write_string(text, "size", number);
        json_write_string(text, "name", "");
        json_write_close(text, '}');
    }
    json_write_close(text, ']');
    json_write_bool(text, "unknown_rank", false);
    json_write_close(text, '}');
}

static void put_tensor(struct text_buffer *text, const char *name, const char *type, int size)
{
    json_write_name(text, name);
    json_write_open(text, NULL, '{');
    json_write_string(text, "dtype", type);
    put_shape(text, size);
    json_write_string(text, "name", name);
    json_write_close(text, '}');
}

void tensorflow_describe(struct text_buffer *text, const struct served *served, const struct version *version)
{
    char number[24];
    snprintf(number, sizeof number, "%lld", (long long)version->number);
    json_write_open(text, NULL, '{');
    json_write_open(text, "model_spec", '{');
    json_write_string(text, "name", served->name);
    json_write_string(text, "signature_name", "");
    json_write_string(text, "version", number);
    json_write_close(text, '}');
    json_write_open(text, "metadata", '{');
    json_write_open(text, "signature_def", '{');
    json_write_open(text, "signature_def", '{');
    json_write_open(text, "serving_default", '{');
    json_write_string(text, "method_name", "tensorflow/serving/predict");
    json_write_open(text, "inputs", '{');
    if (version_is_of_pictures(version)) {
        put_tensor(text, "images", "DT_FLOAT", version_inputs(version));
    }
    for (int i = 0; !version_is_of_pictures(version) && i < intake_columns(version); i++) {
        put_tensor(text, intake_column_name(version, i), intake_column_is_text(version, i) ? "DT_STRING" : "DT_DOUBLE",
                   0);
    }
    json_write_close(text, '}');
    json_write_open(text, "outputs", '{');
    put_tensor(text, outcome_kind_name(&version->trained), "DT_FLOAT", outcome_count(&version->trained));
    for (int i = 0; i < 6; i++) {
        json_write_close(text, '}');
    }
}
