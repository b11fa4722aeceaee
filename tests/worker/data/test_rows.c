/*
 * Rows of tables through the CPU engine, with every loss: gradients compared with a plain double-precision network with
 * dense inputs only, which itself is checked by finite differences; the same bits with any number of threads.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "base/kernels.h"
#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/worker/network.h"
#include "worker/engine.h"

enum { MOST_WIDTH = 2048, MOST_LAYERS = 5 };

static const enum loss_kind losses[] = {LOSS_SOFTMAX, LOSS_SIGMOID, LOSS_MSE, LOSS_MAE, LOSS_HUBER, LOSS_QUANTILE};
static struct test_random test_seed;
static enum cpu_kernels tested;

static int below(int bound)
{
    if (bound <= 0) {
        abort();
    }
    return test_random_below(&test_seed, bound);
}

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    float *parameters;
    struct engine *engine;
    int bins[MOST_WIDTH]; /* of encoded numbers */
};

/* --- a table to learn --- */

/* Ones in `codes` columns that divide the positions evenly; some rows lack some. */
static void fill_places(struct examples *examples)
{
    int places = examples->inputs - examples->numbers;
    for (int i = 0; i < examples->count * examples->codes; i++) {
        int code = i % examples->codes;
        int first = (int)((int64_t)places * code / examples->codes);
        int end = (int)((int64_t)places * (code + 1) / examples->codes);
        /* Few of many categories occur: the other categories have no gradient. */
        int kinds = end - first < 40 ? end - first : 40;
        examples->places[i] = below(8) == 0 ? -1 : first + (int)((int64_t)below(kinds) * (end - first) / kinds);
    }
}

static void make_table(struct fixture *fixture, int count, int numbers, int codes, bool weighted)
{
    struct examples *examples = &fixture->examples;
    int outputs = fixture->model.widths[fixture->model.layer_count];
    bool labels = fixture->config.train.loss == LOSS_SOFTMAX;
    *examples = (struct examples){.count = count,
                                  .inputs = fixture->model.widths[0],
                                  .numbers = numbers,
                                  .codes = codes,
                                  .classes = labels ? outputs : 0,
                                  .targets = labels ? 0 : outputs};
    size_t n = (size_t)count;
    examples->values = calloc(n * (size_t)numbers + 1, sizeof(float));
    examples->places = calloc(n * (size_t)codes + 1, sizeof(int32_t));
    examples->labels = labels ? calloc(n, sizeof(int32_t)) : NULL;
    examples->target_values = labels ? NULL : calloc(n * (size_t)outputs, sizeof(float));
    examples->weights = weighted ? calloc(n, sizeof(float)) : NULL;
    for (int i = 0; i < count * numbers; i++) {
        examples->values[i] = 2 * test_random_float(&test_seed);
    }
    fill_places(examples);
    for (int i = 0; i < count; i++) {
        for (int t = 0; t < examples->targets; t++) {
            float value = 2 * test_random_float(&test_seed);
            examples->target_values[i * outputs + t] =
                fixture->config.train.loss == LOSS_SIGMOID ? (float)(value > 0) : value;
        }
        if (labels) {
            examples->labels[i] = below(outputs);
        }
        if (weighted) {
            examples->weights[i] = (float)below(5) / 2;
        }
    }
}

/* Turns the numbers into bins of columns, all of the same width as before. */
static void encode_numbers(struct fixture *fixture)
{
    struct examples *examples = &fixture->examples;
    for (int left = examples->numbers; left > 0; left -= fixture->bins[examples->piecewise++]) {
        const int bins = below(3) == 0 ? 1 : 1 + below(64);
        fixture->bins[examples->piecewise] = bins < left ? bins : left;
    }
    free(examples->values);
    examples->values = NULL;
    examples->numbers = 0;
    examples->bins = fixture->bins;
    examples->positions = calloc((size_t)examples->count * (size_t)examples->piecewise, sizeof(float));
    for (int i = 0; i < examples->count * examples->piecewise; i++) {
        const int bins = fixture->bins[i % examples->piecewise];
        examples->positions[i] =
            below(4) == 0 ? (float)below(bins + 1) : (float)bins * (float)below(1 << 20) / (1 << 20);
    }
}

static void make_engine(struct fixture *fixture)
{
    struct error error;
    struct engine_options options = {.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
    if (!cpu_engine_create(&fixture->engine, &options, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(fixture->engine->table->write(fixture->engine, STORE_PARAMETERS, 0, fixture->model.float_count,
                                              fixture->parameters, &error));
}

static void setup(struct fixture *fixture, enum loss_kind loss, const int *layers, int layer_count, int batch)
{
    memset(fixture, 0, sizeof *fixture);
    test_config(&fixture->config, &fixture->model, layers, layer_count, batch);
    fixture->config.model.init_stddev = 0.3;
    fixture->config.train.loss = loss;
    fixture->config.train.huber_delta = 0.7;
    fixture->config.train.quantile = 0.8;
    fixture->config.train.seed = 5;
    fixture->config.train.cpu_kernels = tested;
    fixture->model.activation = ACTIVATION_TANH;
    fixture->parameters = test_parameters(&fixture->config, &fixture->model, below(1000));
}

static void teardown(struct fixture *fixture)
{
    if (fixture->engine) {
        fixture->engine->table->destroy(fixture->engine);
    }
    examples_free(&fixture->examples);
    free(fixture->parameters);
}

/* Numbers as they are or encoded, categories, or both; from a single layer to three; few outputs or many. */
static void random_fixture(struct fixture *fixture, enum loss_kind loss)
{
    static const int widths[] = {1, 2, 7, 8, 17, 33, 64, 100, 129};
    static const int batches[] = {1, 2, 7, 99, 100, 129, 300};
    int numbers = below(4) == 0 ? 0 : below(2) ? 1 + below(20) : 200 + below(300);
    int codes = numbers > 0 && below(3) == 0 ? 0 : 1 + below(6);
    int layers[MOST_LAYERS] = {numbers + (codes > 0 ? codes + below(1000) : 0)};
    int count = 2 + below(3);
    for (int i = 1; i < count; i++) {
        layers[i] = widths[below((int)(sizeof widths / sizeof *widths))];
    }
    layers[count - 1] = loss == LOSS_SOFTMAX ? 2 + below(30) : 1 + below(30);
    int batch = batches[below((int)(sizeof batches / sizeof *batches))];
    setup(fixture, loss, layers, count, batch);
    make_table(fixture, batch + below(2 * batch), numbers, codes, below(2));
    if (numbers > 0 && below(2)) {
        encode_numbers(fixture);
    }
}

/* --- the same network in plain double precision --- */

static double loss_of(const struct config_train *train, double z, double wanted)
{
    double target = wanted + train->label_smoothing * (0.5 - wanted), e = z - wanted, size = fabs(e);
    switch (train->loss) {
    case LOSS_SIGMOID: /* -log(1 - 1 / (1 + exp(-z))) - target * z, without cancellation where z is large */
        return fmax(z, 0) + log1p(exp(-fabs(z))) - target * z;
    case LOSS_MAE:
        return size;
    case LOSS_HUBER:
        return size <= train->huber_delta ? e * e / 2 : train->huber_delta * (size - train->huber_delta / 2);
    case LOSS_QUANTILE:
        return wanted > z ? train->quantile * (wanted - z) : (1 - train->quantile) * (z - wanted);
    default:
        return e * e;
    }
}

/*
 * How near an output came to its target, where the slope jumps there (mae, quantile). Below EDGE, rounding in single
 * precision decides on which side it is, and with it the gradient.
 */
static double nearest_edge;
static const double EDGE = 1e-5;

static void note_edge(const struct config_train *train, double z, double wanted)
{
    if (train->loss == LOSS_MAE || train->loss == LOSS_QUANTILE) {
        nearest_edge = fmin(nearest_edge, fabs(z - wanted) / (1 + fabs(wanted)));
    }
}

static double slope_of(const struct config_train *train, double z, double wanted)
{
    double e = z - wanted, sign = (e > 0) - (e < 0);
    switch (train->loss) {
    case LOSS_SIGMOID:
        return 1 / (1 + exp(-z)) - (wanted + train->label_smoothing * (0.5 - wanted));
    case LOSS_MAE:
        return sign;
    case LOSS_HUBER:
        return fabs(e) <= train->huber_delta ? e : train->huber_delta * sign;
    case LOSS_QUANTILE:
        return e < 0 ? -train->quantile : 1 - train->quantile;
    default:
        return 2 * e;
    }
}

/*
 * Next to each figure is its possible error in single precision, in roundings: the magnitudes of all terms that it
 * sums. A sum may be much smaller than its terms, but its error is not.
 */
struct naive {
    const struct fixture *fixture;
    double *parameters;
    double values[MOST_LAYERS][MOST_WIDTH]; /* of one example: inputs, hidden layers, outputs */
    double deltas[MOST_LAYERS][MOST_WIDTH];
    double values_off[MOST_LAYERS][MOST_WIDTH], deltas_off[MOST_LAYERS][MOST_WIDTH];
    double *gradient_off; /* NULL, or where a gradient's error is added */
};

static void naive_inputs(struct naive *naive, int example)
{
    const struct examples *examples = &naive->fixture->examples;
    memset(naive->values[0], 0, sizeof naive->values[0]);
    for (int i = 0; i < examples->numbers; i++) {
        naive->values[0][i] = (double)examples->values[example * examples->numbers + i];
    }
    for (int column = 0, input = 0; column < examples->piecewise; column++) {
        for (int bin = 0; bin < examples->bins[column]; bin++) {
            const double filled = (double)(examples->positions[example * examples->piecewise + column] - (float)bin);
            naive->values[0][input++] = filled < 0 ? 0 : filled > 1 ? 1 : filled;
        }
    }
    for (int i = 0; i < examples->codes; i++) {
        int32_t place = examples->places[example * examples->codes + i];
        if (place >= 0) {
            naive->values[0][examples_dense(examples) + place] = 1;
        }
    }
}

static void naive_forward(struct naive *naive, int example)
{
    const struct model *model = &naive->fixture->model;
    naive_inputs(naive, example);
    for (int l = 0; l < model->layer_count; l++) {
        const struct variable *weights = &model->variables[2 * l];
        for (int j = 0; j < model->widths[l + 1]; j++) {
            double z = naive->parameters[model->variables[2 * l + 1].offset + (size_t)j], off = fabs(z);
            for (int i = 0; i < model->widths[l]; i++) {
                const double weight = naive->parameters[variable_at(weights, i, j)];
                z += naive->values[l][i] * weight;
                off += (fabs(naive->values[l][i]) + naive->values_off[l][i]) * fabs(weight);
            }
            naive->values[l + 1][j] = l + 1 < model->layer_count ? tanh(z) : z;
            naive->values_off[l + 1][j] = off;
        }
    }
}

/* The loss of one example, and the slopes of its outputs. */
static double naive_loss(struct naive *naive, int example)
{
    const struct fixture *fixture = naive->fixture;
    const struct examples *examples = &fixture->examples;
    int last = fixture->model.layer_count, outputs = fixture->model.widths[last];
    const double *z = naive->values[last];
    double *slopes = naive->deltas[last], *slopes_off = naive->deltas_off[last], loss = 0, sum = 0, most_off = 0;
    for (int j = 0; examples->labels && j < outputs; j++) {
        sum += exp(z[j]);
        most_off = fmax(most_off, naive->values_off[last][j]);
    }
    for (int j = 0; j < outputs; j++) {
        if (examples->labels) {
            double smoothing = fixture->config.train.label_smoothing;
            double target = (j == examples->labels[example]) * (1 - smoothing) + smoothing / outputs;
            loss -= target * log(exp(z[j]) / sum);
            slopes[j] = exp(z[j]) / sum - target;
            slopes_off[j] = most_off + 1;
        } else {
            double wanted = (double)examples->target_values[example * outputs + j];
            note_edge(&fixture->config.train, z[j], wanted);
            loss += loss_of(&fixture->config.train, z[j], wanted) / outputs;
            slopes[j] = slope_of(&fixture->config.train, z[j], wanted) / outputs;
            slopes_off[j] = 2 * (naive->values_off[last][j] + fabs(z[j]) + fabs(wanted) + 1) / outputs;
        }
    }
    return loss;
}

/* Adds a product to a gradient: a unit's output times the slope behind it. */
static void naive_add(struct naive *naive, size_t at, double factor, int l, int i, int j, double *gradient)
{
    const double value = i < 0 ? 1 : naive->values[l][i], value_off = i < 0 ? 0 : naive->values_off[l][i];
    const double delta = naive->deltas[l + 1][j];
    gradient[at] += factor * value * delta;
    if (naive->gradient_off) {
        naive->gradient_off[at] +=
            factor * (fabs(value) * naive->deltas_off[l + 1][j] + (value_off + fabs(value)) * fabs(delta));
    }
}

static void naive_backward(struct naive *naive, double factor, double *gradient)
{
    const struct model *model = &naive->fixture->model;
    for (int l = model->layer_count - 1; l >= 0; l--) {
        const struct variable *weights = &model->variables[2 * l];
        for (int j = 0; j < model->widths[l + 1]; j++) {
            naive_add(naive, model->variables[2 * l + 1].offset + (size_t)j, factor, l, -1, j, gradient);
        }
        for (int i = 0; i < model->widths[l]; i++) {
            double value = naive->values[l][i], delta = 0, off = 0;
            for (int j = 0; j < model->widths[l + 1]; j++) {
                const double weight = naive->parameters[variable_at(weights, i, j)];
                naive_add(naive, variable_at(weights, i, j), factor, l, i, j, gradient);
                delta += naive->deltas[l + 1][j] * weight;
                off += (fabs(naive->deltas[l + 1][j]) + naive->deltas_off[l + 1][j]) * fabs(weight);
            }
            naive->deltas[l][i] = delta * (1 - value * value);
            naive->deltas_off[l][i] = off + fabs(delta) * (1 + 2 * fabs(value) * naive->values_off[l][i]);
        }
    }
}

/* The mean loss of some examples; gradient: NULL, or where it is added. */
static double naive_batch(struct naive *naive, const int32_t *indexes, int count, double *gradient)
{
    const float *weights = naive->fixture->examples.weights;
    double sum = 0;
    for (int i = 0; i < count; i++) {
        double weight = weights ? (double)weights[indexes[i]] : 1;
        naive_forward(naive, indexes[i]);
        sum += weight * naive_loss(naive, indexes[i]);
        if (gradient) {
            naive_backward(naive, weight / count, gradient);
        }
    }
    return sum / count;
}

static struct naive *naive_create(const struct fixture *fixture)
{
    struct naive *naive = calloc(1, sizeof *naive);
    naive->fixture = fixture;
    naive->parameters = calloc(fixture->model.float_count, sizeof(double));
    for (size_t i = 0; i < fixture->model.float_count; i++) {
        naive->parameters[i] = (double)fixture->parameters[i];
    }
    return naive;
}

static void naive_destroy(struct naive *naive)
{
    free(naive->parameters);
    free(naive->gradient_off);
    free(naive);
}

static const int32_t three[] = {0, 3, 1};

/*
 * A network and rows whose outputs are all farther from their targets than a step of 1e-6 of one parameter moves them,
 * which is 1.2e-6 at most (an input of 2 times a weight of 0.6): the loss's slope does not jump between the steps.
 */
static struct naive *far_from_targets(struct fixture *fixture, enum loss_kind loss)
{
    const int layers[] = {12, 9, 4};
    for (int tries = 0; tries < 10000; tries++) {
        setup(fixture, loss, layers, 3, 3);
        fixture->config.train.label_smoothing = 0.1;
        make_table(fixture, 4, 5, 2, true);
        struct naive *naive = naive_create(fixture);
        nearest_edge = INFINITY;
        naive_batch(naive, three, 3, NULL);
        if (nearest_edge > EDGE) {
            return naive;
        }
        naive_destroy(naive);
        teardown(fixture);
    }
    fail_msg("no network is far from its targets");
    return NULL;
}

static void finite_differences_agree_with_the_naive_gradient(void **state)
{
    for (int l = 0; l < 6; l++) {
        struct fixture fixture;
        struct naive *naive = far_from_targets(&fixture, losses[l]);
        double *gradient = calloc(fixture.model.float_count, sizeof(double));
        naive_batch(naive, three, 3, gradient);
        for (int v = 0; v < fixture.model.variable_count; v++) {
            const struct variable *variable = &fixture.model.variables[v];
            for (int round = 0; round < 10; round++) {
                size_t at = variable_at(variable, below(variable->rows), below(variable->cols));
                double before = naive->parameters[at], step = 1e-6;
                naive->parameters[at] = before + step;
                double above = naive_batch(naive, three, 3, NULL);
                naive->parameters[at] = before - step;
                double under = naive_batch(naive, three, 3, NULL);
                naive->parameters[at] = before;
                assert_true(fabs((above - under) / (2 * step) - gradient[at]) < 1e-5);
            }
        }
        free(gradient);
        naive_destroy(naive);
        teardown(&fixture);
    }
}

/* --- the engine --- */

static struct train_result engine_gradient(struct fixture *fixture, const int32_t *indexes, int count, float *gradient)
{
    struct collector collector = {.model = &fixture->model, .sum = gradient, .weight = 1.0f, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    struct batch batch = {.examples = &fixture->examples, .indexes = indexes, .count = count};
    struct train_result result;
    struct error error;
    /* What is not delivered stays NaN and fails the comparison. */
    for (int v = 0; v < fixture->model.variable_count; v++) {
        const struct variable *variable = &fixture->model.variables[v];
        for (int i = 0; i < variable->rows * variable->cols; i++) {
            gradient[variable_at(variable, i / variable->cols, i % variable->cols)] = NAN;
        }
    }
    assert_true(fixture->engine->table->step(fixture->engine, &batch, &sink, &result, &error));
    return result;
}

enum { ROUNDINGS = 8 }; /* of one sum; at most 1 was seen in thousands of networks */

static void check_gradient(struct fixture *fixture, const int32_t *indexes, int count)
{
    size_t floats = fixture->model.float_count;
    struct naive *naive = naive_create(fixture);
    double *expected = calloc(floats, sizeof *expected);
    float *actual = calloc(floats, sizeof *actual);
    nearest_edge = INFINITY;
    naive->gradient_off = calloc(floats, sizeof *naive->gradient_off);
    double loss = naive_batch(naive, indexes, count, expected);
    struct train_result result = engine_gradient(fixture, indexes, count, actual);
    assert_true(result.finite && fabs(result.last_loss - loss) < 1e-5 * (1 + fabs(loss)));
    for (size_t i = 0; i < floats && nearest_edge > EDGE; i++) {
        const double most = ROUNDINGS * (double)FLT_EPSILON * naive->gradient_off[i];
        if (!(fabs(expected[i] - (double)actual[i]) <= most)) {
            fail_msg("%s, float %zu: expected %.9g, got %.9g", config_loss_name(fixture->config.train.loss), i,
                     expected[i], (double)actual[i]);
        }
    }
    free(expected);
    free(actual);
    naive_destroy(naive);
}

static void gradients_of_every_loss(void **state)
{
    for (int round = 0; round < 36; round++) {
        struct fixture fixture;
        int32_t indexes[300];
        random_fixture(&fixture, losses[round % 6]);
        fixture.config.train.label_smoothing = round % 4 == 0 ? 0.2 : 0;
        fixture.config.train.num_threads = 1 + below(3);
        make_engine(&fixture);
        int count = 1 + below(fixture.config.train.batch_size);
        for (int i = 0; i < count; i++) {
            indexes[i] = below(fixture.examples.count);
        }
        check_gradient(&fixture, indexes, count);
        teardown(&fixture);
    }
}

static void forward_passes_of_rows(void **state)
{
    for (int round = 0; round < 12; round++) {
        struct fixture fixture;
        random_fixture(&fixture, losses[round % 6]);
        make_engine(&fixture);
        struct error error;
        int outputs = fixture.model.widths[fixture.model.layer_count], first = below(fixture.examples.count);
        int count = fixture.examples.count - first;
        float *got = calloc((size_t)count * (size_t)outputs, sizeof *got);
        struct naive *naive = naive_create(&fixture);
        assert_true(
            fixture.engine->table->forward(fixture.engine, false, &fixture.examples, first, count, got, &error));
        for (int i = 0; i < count * outputs; i++) {
            if (i % outputs == 0) {
                naive_forward(naive, first + i / outputs);
            }
            double wanted = naive->values[fixture.model.layer_count][i % outputs];
            assert_true(fabs(wanted - (double)got[i]) < 1e-4 * (1 + fabs(wanted)));
        }
        naive_destroy(naive);
        free(got);
        teardown(&fixture);
    }
}

/* Trains with `threads` threads, from the same parameters, into `parameters`. */
static void train_with(struct fixture *fixture, int threads, float *parameters)
{
    struct train_result result;
    struct error error;
    if (fixture->engine) {
        fixture->engine->table->destroy(fixture->engine);
    }
    fixture->config.train.num_threads = threads;
    make_engine(fixture);
    assert_true(fixture->engine->table->train(fixture->engine, 7, &result, &error));
    assert_true(result.finite && result.steps == 7);
    assert_true(fixture->engine->table->read(fixture->engine, STORE_PARAMETERS, 0, fixture->model.float_count,
                                             parameters, &error));
}

static void rows_train_alike_at_any_number_of_threads(void **state)
{
    int moved = 0;
    for (int round = 0; round < 12; round++) {
        struct fixture fixture;
        random_fixture(&fixture, losses[round % 6]);
        fixture.config.train.optimizer = (enum optimizer_kind)below(OPTIMIZER_KINDS);
        fixture.config.train.l2 = round % 3 == 0 ? 1e-3 : 0;
        fixture.config.train.dropout = round % 4 == 0 ? 0.3 : 0;
        fixture.config.train.clip_norm = round % 5 == 0 ? 0.5 : 0;
        fixture.config.train.micro_batches = 1 + round % 2;
        size_t bytes = fixture.model.float_count * sizeof(float);
        float *one = malloc(bytes), *more = malloc(bytes);
        train_with(&fixture, 1, one);
        train_with(&fixture, 2 + below(3), more);
        assert_memory_equal(one, more, bytes);
        moved += memcmp(one, fixture.parameters, bytes) != 0;
        free(one);
        free(more);
        teardown(&fixture);
    }
    /* One class, or units that are all inactive, leave nothing to learn. */
    assert_true(moved >= 6);
}

/* What takes part in no batch is untouched: weights of categories that never occur stay as they were. */
static void a_category_that_never_occurs_stays_as_it_is(void **state)
{
    struct fixture fixture;
    const int layers[] = {3 + 100000, 8, 1};
    setup(&fixture, LOSS_MSE, layers, 3, 50);
    fixture.config.train.optimizer = OPTIMIZER_ADAM;
    make_table(&fixture, 200, 3, 2, false);
    float *after = malloc(fixture.model.float_count * sizeof *after);
    train_with(&fixture, 2, after);
    const struct variable *weights = &fixture.model.variables[0];
    int unchanged = 0;
    for (int row = 0; row < weights->rows; row++) {
        size_t at = variable_at(weights, row, 0);
        bool occurs = row < 3;
        for (int i = 0; i < 400 && !occurs; i++) {
            occurs = fixture.examples.places[i] == row - 3;
        }
        bool same = memcmp(after + at, fixture.parameters + at, sizeof *after * 8) == 0;
        assert_true(occurs || same);
        unchanged += same;
    }
    assert_in_range(unchanged, 100000 - 80, 100000);
    free(after);
    teardown(&fixture);
}

static int run_with(enum cpu_kernels kernels, const char *name)
{
    const struct kernels *found;
    const char *why;
    struct error error;
    tested = kernels;
    if (!kernels_choose(&found, &why, kernels, &error)) {
        print_message("[  SKIPPED ] rows with kernels %s: %s\n", name, error.text);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finite_differences_agree_with_the_naive_gradient),
        cmocka_unit_test(gradients_of_every_loss),
        cmocka_unit_test(forward_passes_of_rows),
        cmocka_unit_test(rows_train_alike_at_any_number_of_threads),
        cmocka_unit_test(a_category_that_never_occurs_stays_as_it_is),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    test_seed = test_random_begin("test_rows");
    return run_with(CPU_KERNELS_REFERENCE, "reference") + run_with(CPU_KERNELS_AVX2, "avx2") +
           run_with(CPU_KERNELS_AVX512, "avx512") + run_with(CPU_KERNELS_NEON, "neon");
}
