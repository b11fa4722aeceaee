/*
 * The CPU engine as a whole: gradients compared with a plain double-precision network, which itself is checked by
 * finite differences; the same bits with any number of threads; no allocation in a step; losses that are not finite.
 * Every test runs with each set of kernels that the CPU supports.
 */
#include <float.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/worker/network.h"
#include "base/random/dropout.h"
#include "worker/engine.h"
#include "base/random/sampler.h"

static struct test_random test_seed;
static enum cpu_kernels tested;

static int below(int bound)
{
    if (bound <= 0) {
        abort();
    }
    return test_random_below(&test_seed, bound);
}

/* --- a network to test with --- */

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    float *parameters;
    struct engine *engine;
};

static void make_engine(struct fixture *fixture)
{
    struct error error;
    struct engine_options options = {.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
    if (!cpu_engine_create(&fixture->engine, &options, &error)) {
        fail_msg("%s", error.text);
    }
    struct engine *engine = fixture->engine;
    size_t floats = fixture->model.float_count;
    assert_true(engine->table->write(engine, STORE_PARAMETERS, 0, floats, fixture->parameters, &error));
    if (fixture->config.train.ema_decay > 0) {
        assert_true(engine->table->write(engine, STORE_AVERAGES, 0, floats, fixture->parameters, &error));
    }
}

static void remake_engine(struct fixture *fixture, int threads)
{
    fixture->engine->table->destroy(fixture->engine);
    fixture->config.train.num_threads = threads;
    make_engine(fixture);
}

static void setup(struct fixture *fixture, const int *layers, int layer_count, int batch, int examples, int percent)
{
    memset(fixture, 0, sizeof *fixture);
    test_config(&fixture->config, &fixture->model, layers, layer_count, batch);
    fixture->config.model.init_stddev = 0.3;
    fixture->config.train.seed = 5;
    fixture->config.train.rmsprop_decay = fixture->config.train.rmsprop_momentum = 0;
    fixture->config.train.cpu_kernels = tested;
    fixture->parameters = test_parameters(&fixture->config, &fixture->model, below(1000));
    test_examples(&fixture->examples, &fixture->model, examples, percent, &test_seed);
}

static void teardown(struct fixture *fixture)
{
    fixture->engine->table->destroy(fixture->engine);
    free(fixture->examples.images);
    free(fixture->examples.labels);
    free(fixture->parameters);
}

static int random_layers(int *layers)
{
    static const int widths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 99, 100, 129, 200, 300};
    int count = 2 + below(4);
    for (int i = 0; i < count; i++) {
        layers[i] = widths[below((int)(sizeof widths / sizeof *widths))];
    }
    layers[count - 1] = below(2) ? 2 + below(15) : 17 + below(60);
    return count;
}

static void random_fixture(struct fixture *fixture)
{
    static const int batches[] = {1, 2, 7, 16, 99, 100, 101, 128, 129, 300};
    int layers[CONFIG_MAX_LAYERS];
    int count = random_layers(layers);
    int batch = batches[below((int)(sizeof batches / sizeof *batches))];
    setup(fixture, layers, count, batch, batch + below(2 * batch), below(101));
    fixture->model.activation = (enum activation)below(4);
}

/* --- the same network in plain double precision --- */

struct naive {
    const struct fixture *fixture;
    double *parameters;
    double *gradient;
    double loss;
    int correct, doubtful; /* examples; of some, rounding in single precision decides whether they are correct */
};

static double activation_of(enum activation activation, double z)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return z > 0 ? z : 0;
    case ACTIVATION_SIGMOID:
        return 1 / (1 + exp(-z));
    case ACTIVATION_TANH:
        return tanh(z);
    case ACTIVATION_IDENTITY:
        return z;
    }
    return 0;
}

static double derivative_of(enum activation activation, double a)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return a > 0;
    case ACTIVATION_SIGMOID:
        return a * (1 - a);
    case ACTIVATION_TANH:
        return 1 - a * a;
    case ACTIVATION_IDENTITY:
        return 1;
    }
    return 0;
}

enum { MOST_WIDTH = 1024 };

/* Dropout's factor for each unit of each layer, for one image: all ones, until a test changes it. */
static double masks[CONFIG_MAX_LAYERS][MOST_WIDTH];

static void make_masks(const struct fixture *fixture, const struct dropout_batch *batch, int place)
{
    struct dropout dropout = dropout_make((uint64_t)fixture->config.train.seed, fixture->config.train.dropout);
    for (int l = 0; l <= fixture->model.layer_count; l++) {
        for (int i = 0; i < fixture->model.widths[l]; i++) {
            bool hidden = l > 0 && l < fixture->model.layer_count;
            bool drops = hidden && batch && dropout_drops(&dropout, batch, l - 1, place, i);
            masks[l][i] = drops ? 0.0 : hidden && batch ? (double)dropout.scale : 1.0;
        }
    }
}

/*
 * How near a hidden unit came to 0, relative to the terms that it sums. Below EDGE, rounding in single precision
 * decides whether a ReLU is active, and with it every gradient behind it.
 */
static double nearest_edge;
static const double EDGE = 2e-6;

/*
 * The possible error of each unit in single precision, in roundings: the magnitudes of its terms and of its output, and
 * the errors of its inputs. ROUNDINGS of them are more than the additions of one sum come to, as in test_rows. What is
 * exact has none: a sum that is just its bias, a ReLU that is surely inactive.
 */
static double values_off[CONFIG_MAX_LAYERS][MOST_WIDTH];
enum { ROUNDINGS = 8 };

static double output_off(enum activation activation, double z, double output, double sum_off)
{
    const bool is_inactive = activation == ACTIVATION_RELU && z < -ROUNDINGS * (double)FLT_EPSILON * sum_off;
    return is_inactive ? 0 : sum_off + fabs(output);
}

/* The largest sum of a logit's terms: single precision is off by a share of that, and softmax's gradient likewise. */
static double logit_terms;

static void naive_forward(const struct naive *naive, const uint8_t *image, double values[][MOST_WIDTH])
{
    const struct model *model = &naive->fixture->model;
    for (int i = 0; i < model->widths[0]; i++) {
        values[0][i] = (double)((float)image[i] * (1.0f / 255.0f));
    }
    for (int l = 0; l < model->layer_count; l++) {
        const struct variable *weights = &model->variables[2 * l];
        const double *w = naive->parameters + weights->offset;
        const double *biases = naive->parameters + model->variables[2 * l + 1].offset;
        const bool hidden = l + 1 < model->layer_count;
        for (int j = 0; j < weights->cols; j++) {
            double z = biases[j], terms = fabs(z), off = 0;
            for (int i = 0; i < weights->rows; i++) {
                const double factor = masks[l][i] * w[i * weights->stride + j], term = values[l][i] * factor;
                z += term;
                terms += fabs(term);
                off += values_off[l][i] * fabs(factor);
            }
            if (hidden && terms > 0) {
                nearest_edge = fmin(nearest_edge, fabs(z) / terms);
            }
            logit_terms = fmax(logit_terms, hidden ? 0 : terms);
            values[l + 1][j] = hidden ? activation_of(model->activation, z) : z;
            values_off[l + 1][j] = terms + off > fabs(biases[j]) ? terms + off : 0;
            if (hidden) {
                values_off[l + 1][j] = output_off(model->activation, z, values[l + 1][j], values_off[l + 1][j]);
            }
        }
    }
}

/* Is the label so near the largest other logit that rounding decides which of them is larger? */
static bool is_doubtful(const double *logits, const double *off, int classes, int label)
{
    bool is_near = false;
    for (int j = 0; j < classes; j++) {
        const double most = ROUNDINGS * (double)FLT_EPSILON * (off[label] + off[j]);
        if (j != label && logits[j] - logits[label] > most) {
            return false;
        }
        is_near |= j != label && most > 0 && logits[label] - logits[j] <= most;
    }
    return is_near;
}

/* Turns logits into their gradient; returns the cross-entropy. */
static double naive_softmax(double *logits, int classes, int label, double smoothing, int *correct)
{
    int best = 0;
    for (int j = 1; j < classes; j++) {
        best = logits[j] > logits[best] ? j : best;
    }
    double largest = logits[best];
    double sum = 0;
    for (int j = 0; j < classes; j++) {
        sum += exp(logits[j] - largest);
    }
    double loss = log(sum) + largest;
    for (int j = 0; j < classes; j++) {
        double target = (1 - smoothing) * (j == label) + smoothing / classes;
        loss -= target * logits[j];
        logits[j] = exp(logits[j] - largest) / sum - target;
    }
    *correct += best == label;
    return loss;
}

static void naive_backward(struct naive *naive, double values[][MOST_WIDTH], double *delta, double scale)
{
    const struct model *model = &naive->fixture->model;
    for (int l = model->layer_count - 1; l >= 0; l--) {
        const struct variable *weights = &model->variables[2 * l];
        const double *w = naive->parameters + weights->offset;
        double below_delta[MOST_WIDTH];
        for (int i = 0; i < weights->rows; i++) {
            double sum = 0;
            for (int j = 0; j < weights->cols; j++) {
                naive->gradient[weights->offset + (size_t)(i * weights->stride + j)] +=
                    scale * values[l][i] * masks[l][i] * delta[j];
                sum += delta[j] * w[i * weights->stride + j];
            }
            below_delta[i] = sum * masks[l][i] * derivative_of(model->activation, values[l][i]);
        }
        for (int j = 0; j < weights->cols; j++) {
            naive->gradient[model->variables[2 * l + 1].offset + (size_t)j] += scale * delta[j];
        }
        memcpy(delta, below_delta, sizeof below_delta);
    }
}

static void naive_step(struct naive *naive, const int32_t *indexes, int count, const struct dropout_batch *dropout)
{
    const struct fixture *fixture = naive->fixture;
    static double values[CONFIG_MAX_LAYERS][MOST_WIDTH];
    naive->loss = 0;
    naive->correct = naive->doubtful = 0;
    nearest_edge = INFINITY;
    logit_terms = 0;
    memset(naive->gradient, 0, fixture->model.float_count * sizeof(double));
    for (int s = 0; s < count; s++) {
        make_masks(fixture, dropout, s);
        naive_forward(naive, fixture->examples.images + (size_t)indexes[s] * (size_t)fixture->model.widths[0], values);
        double *delta = values[fixture->model.layer_count];
        const int classes = fixture->examples.classes, label = fixture->examples.labels[indexes[s]];
        naive->doubtful += is_doubtful(delta, values_off[fixture->model.layer_count], classes, label);
        const double smoothing = fixture->config.train.label_smoothing;
        naive->loss += naive_softmax(delta, classes, label, smoothing, &naive->correct) / count;
        naive_backward(naive, values, delta, 1.0 / count);
    }
}

static struct naive naive_create(const struct fixture *fixture)
{
    struct naive naive = {.fixture = fixture};
    naive.parameters = calloc(fixture->model.float_count, sizeof(double));
    naive.gradient = calloc(fixture->model.float_count, sizeof(double));
    for (size_t i = 0; i < fixture->model.float_count; i++) {
        naive.parameters[i] = (double)fixture->parameters[i];
    }
    return naive;
}

static void naive_destroy(struct naive *naive)
{
    free(naive->parameters);
    free(naive->gradient);
}

/* --- tests --- */

static const double STEP = 1e-6;
static const int32_t first_eight[] = {0, 1, 2, 3, 4, 5, 6, 7};

/*
 * A network in which no step of one parameter activates a unit, or deactivates it: a ReLU's slope would change between
 * the two losses. A step moves a sum by STEP times a unit's value, at most 13 (20 pixels and a bias) here, and its
 * terms include a bias of 0.1: 130 steps, relative to them. Behind that, a weight below 1 makes it less.
 */
static struct naive far_from_edges(struct fixture *fixture, enum activation activation)
{
    const int layers[] = {20, 7, 5, 4};
    for (int tries = 0; tries < 10000; tries++) {
        setup(fixture, layers, 4, 8, 8, 50);
        fixture->model.activation = activation;
        struct naive naive = naive_create(fixture);
        naive_step(&naive, first_eight, 8, NULL);
        if (activation != ACTIVATION_RELU || nearest_edge > 200 * STEP) {
            return naive;
        }
        naive_destroy(&naive);
        make_engine(fixture);
        teardown(fixture);
    }
    fail_msg("no network is far from edges");
    return (struct naive){0};
}

static void test_naive_gradient_by_finite_differences(void **state)
{
    for (int round = 0; round < 4; round++) {
        struct fixture fixture;
        struct naive naive = far_from_edges(&fixture, (enum activation)round);
        fixture.config.train.label_smoothing = 0.1 * round;
        for (int check = 0; check < 40; check++) {
            size_t i = (size_t)below((int)fixture.model.float_count);
            naive_step(&naive, first_eight, 8, NULL);
            double gradient = naive.gradient[i];
            double kept = naive.parameters[i];
            naive.parameters[i] = kept + STEP;
            naive_step(&naive, first_eight, 8, NULL);
            double above = naive.loss;
            naive.parameters[i] = kept - STEP;
            naive_step(&naive, first_eight, 8, NULL);
            naive.parameters[i] = kept;
            double measured = (above - naive.loss) / (2 * STEP);
            assert_true(fabs(measured - gradient) < 1e-5 * (1 + fabs(gradient)));
        }
        naive_destroy(&naive);
        make_engine(&fixture);
        teardown(&fixture);
    }
}

static const struct dropout_batch the_batch = {.task = 3, .step = 12345678901};

/* The whole gradient of one batch, as the engine's step delivers it. */
static struct train_result engine_gradient(struct fixture *fixture, const int32_t *indexes, int count, float *gradient)
{
    struct collector collector = {.model = &fixture->model, .sum = gradient, .weight = 1.0f, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    struct batch batch = {.examples = &fixture->examples,
                          .indexes = indexes,
                          .count = count,
                          .task = the_batch.task,
                          .step = the_batch.step};
    struct train_result result;
    struct error error;
    /* What is not delivered stays NaN and fails the comparison. */
    for (int v = 0; v < fixture->model.variable_count; v++) {
        const struct variable *variable = &fixture->model.variables[v];
        for (int i = 0; i < variable->rows * variable->cols; i++) {
            gradient[variable->offset + (size_t)(i / variable->cols * variable->stride + i % variable->cols)] = NAN;
        }
    }
    assert_true(fixture->engine->table->step(fixture->engine, &batch, &sink, &result, &error));
    return result;
}

static void assert_gradient(const struct fixture *fixture, const double *expected, const float *actual)
{
    double largest = 0;
    for (size_t i = 0; i < fixture->model.float_count; i++) {
        largest = fabs(expected[i]) > largest ? fabs(expected[i]) : largest;
    }
    for (size_t i = 0; i < fixture->model.float_count; i++) {
        if (!(fabs(expected[i] - (double)actual[i]) <=
              (2e-5 + 3e-7 * logit_terms) * largest + 1e-7 * (1 + logit_terms))) {
            fail_msg("float %zu: expected %.9g, got %.9g", i, expected[i], (double)actual[i]);
        }
    }
}

static void test_gradient(void **state)
{
    int doubtful = 0, examples = 0;
    for (int round = 0; round < 40; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.dropout = round % 3 == 0 ? below(100) / 100.0 : 0.0;
        fixture.config.train.label_smoothing = round % 4 == 0 ? below(100) / 100.0 : 0.0;
        fixture.config.train.num_threads = 1 + below(4);
        make_engine(&fixture);
        int batch = fixture.config.train.batch_size;
        int count = 1 + below(batch);
        int32_t *indexes = malloc((size_t)batch * sizeof *indexes);
        for (int i = 0; i < count; i++) {
            indexes[i] = below(fixture.examples.count);
        }
        float *gradient = calloc(fixture.model.float_count, sizeof *gradient);
        struct train_result result = engine_gradient(&fixture, indexes, count, gradient);
        struct naive naive = naive_create(&fixture);
        naive_step(&naive, indexes, count, &the_batch);
        assert_true(result.finite);
        assert_int_equal(result.steps, 1);
        assert_int_equal(result.images, count);
        assert_true(abs((int)result.correct - naive.correct) <= naive.doubtful);
        doubtful += naive.doubtful;
        examples += count;
        assert_true(fabs(result.last_loss - naive.loss) < 2e-5 * (1 + naive.loss));
        if (fixture.model.activation != ACTIVATION_RELU || nearest_edge > EDGE) {
            assert_gradient(&fixture, naive.gradient, gradient);
        }
        naive_destroy(&naive);
        free(gradient);
        free(indexes);
        teardown(&fixture);
    }
    assert_true(10 * doubtful <= examples);
}

static double norm_of(const struct fixture *fixture, const float *gradient)
{
    double sum = 0.0;
    for (size_t i = 0; i < fixture->model.float_count; i++) {
        sum += (double)gradient[i] * (double)gradient[i];
    }
    return sqrt(sum);
}

/* All of a gradient is scaled by one factor to the requested norm; one below it is not changed by a bit. */
static void test_clipping_by_norm(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.num_threads = 1 + below(4);
        make_engine(&fixture);
        size_t floats = fixture.model.float_count;
        int count = fixture.config.train.batch_size;
        int32_t *indexes = malloc((size_t)count * sizeof *indexes);
        for (int i = 0; i < count; i++) {
            indexes[i] = below(fixture.examples.count);
        }
        float *whole = calloc(floats, sizeof *whole), *clipped = calloc(floats, sizeof *clipped);
        engine_gradient(&fixture, indexes, count, whole);
        double norm = norm_of(&fixture, whole);
        fixture.config.train.clip_norm = norm * 0.25;
        remake_engine(&fixture, 1 + below(4));
        engine_gradient(&fixture, indexes, count, clipped);
        for (size_t i = 0; i < floats; i++) {
            /* Or by one step of the smallest floats, if these are in play. */
            const double most = fmax(1e-6 * fabs((double)whole[i]), 0x1p-149);
            assert_true(fabs((double)clipped[i] - 0.25 * (double)whole[i]) <= most);
        }
        fixture.config.train.clip_norm = norm * 1.01;
        remake_engine(&fixture, 1 + below(4));
        engine_gradient(&fixture, indexes, count, clipped);
        assert_memory_equal(whole, clipped, floats * sizeof *whole);
        free(whole);
        free(clipped);
        free(indexes);
        teardown(&fixture);
    }
}

static void test_forward(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.num_threads = 1 + below(4);
        fixture.config.train.ema_decay = 0.9;
        fixture.config.train.dropout = below(2) * 0.5; /* only training knows it */
        make_engine(&fixture);
        int classes = fixture.examples.classes;
        int count = 1 + below(fixture.examples.count);
        float *logits = malloc((size_t)(count * classes) * sizeof *logits);
        struct error error;
        assert_true(
            fixture.engine->table->forward(fixture.engine, round % 2, &fixture.examples, 0, count, logits, &error));
        struct naive naive = naive_create(&fixture);
        static double values[CONFIG_MAX_LAYERS][MOST_WIDTH];
        for (int i = 0; i < count; i++) {
            make_masks(&fixture, NULL, i);
            naive_forward(&naive, fixture.examples.images + i * fixture.model.widths[0], values);
            /*
             * Deep linear networks have logits in the hundreds, some of which come out near zero by cancellation: their
             * rounding errors are relative to the large ones.
             */
            const double *expected = values[fixture.model.layer_count];
            double largest = 0.0;
            for (int j = 0; j < classes; j++) {
                largest = fmax(largest, fabs(expected[j]));
            }
            for (int j = 0; j < classes; j++) {
                assert_true(fabs(expected[j] - (double)logits[i * classes + j]) < 1e-5 * (1 + largest));
            }
        }
        naive_destroy(&naive);
        free(logits);
        teardown(&fixture);
    }
}

/* Everything that can be compared after some steps. */
static float *state_after(struct fixture *fixture, int steps, struct train_result *result)
{
    struct error error;
    struct engine *engine = fixture->engine;
    size_t floats = fixture->model.float_count;
    float *state = calloc(floats * STORE_VECTORS, sizeof *state);
    assert_true(engine->table->train(engine, steps, result, &error));
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        bool there = vector == STORE_PARAMETERS || (vector == STORE_AVERAGES && fixture->config.train.ema_decay > 0) ||
                     (vector <= STORE_SLOT1 && vector - STORE_SLOT0 < optimizer_slots(fixture->config.train.optimizer));
        if (there) {
            assert_true(engine->table->read(engine, (enum store_vector)vector, 0, floats,
                                            state + (size_t)vector * floats, &error));
        }
    }
    return state;
}

static void test_same_bits_at_any_thread_count(void **state)
{
    static const int threads[] = {2, 3, 4, 7};
    for (int round = 0; round < 15; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        struct config_train *train = &fixture.config.train;
        train->optimizer = (enum optimizer_kind)below(5);
        train->learning_rate = 0.001; /* at 0.01, wide linear networks diverge within seven steps */
        train->micro_batches = 1 + below(3);
        train->l2 = below(2) ? 1e-3 : 0.0;
        train->ema_decay = below(2) ? 0.9 : 0.0;
        train->dropout = below(2) ? 0.3 : 0.0;
        train->clip_norm = below(2) ? 0.2 : 0.0;
        make_engine(&fixture);
        struct train_result expected_result;
        float *expected = state_after(&fixture, 7, &expected_result);
        assert_int_equal(expected_result.steps, 7);
        for (int i = 0; i < 4; i++) {
            remake_engine(&fixture, threads[i]);
            struct train_result result;
            float *actual = state_after(&fixture, 7, &result);
            assert_memory_equal(expected, actual, STORE_VECTORS * fixture.model.float_count * sizeof *expected);
            assert_true(result.loss_sum == expected_result.loss_sum);
            assert_int_equal(result.correct, expected_result.correct);
            assert_int_equal(fixture.engine->table->global_step(fixture.engine), 7);
            free(actual);
        }
        free(expected);
        teardown(&fixture);
    }
}

/* Seven steps in one call, or in three: the same; and the step counter leads to the same batches. */
static void test_calls_of_train_join_up(void **state)
{
    for (int round = 0; round < 5; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.num_threads = 2;
        make_engine(&fixture);
        struct train_result result;
        float *expected = state_after(&fixture, 7, &result);
        remake_engine(&fixture, 2);
        free(state_after(&fixture, 3, &result));
        free(state_after(&fixture, 0, &result));
        assert_int_equal(result.steps, 0);
        float *actual = state_after(&fixture, 4, &result);
        assert_memory_equal(expected, actual, STORE_VECTORS * fixture.model.float_count * sizeof *expected);
        free(expected);
        free(actual);
        teardown(&fixture);
    }
}

/* A step of micro-batches is the result of step() for each of them, weighted, summed in order and then applied. */
static void test_micro_batches(void **state)
{
    enum { MICRO = 3, STEPS = 9 };
    const int layers[] = {50, 33, 10};
    struct fixture fixture;
    setup(&fixture, layers, 3, 20, 90, 30);
    fixture.config.train.micro_batches = MICRO;
    fixture.config.train.num_threads = 2;
    fixture.config.train.dropout = 0.25;
    fixture.config.train.clip_norm = 0.5;
    make_engine(&fixture);
    struct train_result result;
    float *actual = state_after(&fixture, STEPS, &result);

    struct error error;
    struct store store;
    size_t floats = fixture.model.float_count;
    store_create(&store, &fixture.model, &fixture.config.train);
    memcpy(store.vectors[STORE_PARAMETERS], fixture.parameters, floats * sizeof(float));
    float *sum = calloc(floats, sizeof *sum);
    for (int step = 0; step < STEPS; step++) {
        for (uint32_t i = 0; i < MICRO; i++) {
            struct sampler sampler = {.seed = 5, .task = i, .examples = 90, .batch_size = 20};
            int32_t indexes[20];
            int count = sampler_draw(&sampler, step, indexes);
            assert_int_equal(count, step % 5 == 4 ? 10 : 20);
            struct collector collector = {.model = &fixture.model, .sum = sum, .weight = 1.0f / MICRO, .first = i == 0};
            struct gradient_sink sink = collector_sink(&collector);
            struct batch batch = {
                .examples = &fixture.examples, .indexes = indexes, .count = count, .task = i, .step = step};
            struct engine *engine = fixture.engine;
            assert_true(
                engine->table->write(engine, STORE_PARAMETERS, 0, floats, store.vectors[STORE_PARAMETERS], &error));
            assert_true(engine->table->step(engine, &batch, &sink, &result, &error));
        }
        store_begin_step(&store);
        for (int v = 0; v < fixture.model.variable_count; v++) {
            const struct variable *variable = &fixture.model.variables[v];
            struct gradient_block block = {.variable = v,
                                           .rows = variable->rows,
                                           .cols = variable->cols,
                                           .values = sum + variable->offset,
                                           .stride = variable->stride};
            store_apply(&store, &block);
        }
        store_end_step(&store);
    }
    assert_memory_equal(store.vectors[STORE_PARAMETERS], actual, floats * sizeof(float));
    store_destroy(&store);
    free(sum);
    free(actual);
    teardown(&fixture);
}

static void test_a_loss_that_is_not_finite_stops_before_the_update(void **state)
{
    static const int shapes[][4] = {{30, 10, 0, 0}, {30, 20, 10, 0}, {30, 20, 40, 0}, {30, 20, 20, 10}};
    for (int i = 0; i < 4; i++) {
        int count = shapes[i][2] == 0 ? 2 : shapes[i][3] == 0 ? 3 : 4;
        struct fixture fixture;
        setup(&fixture, shapes[i], count, 10, 40, 50);
        fixture.config.train.num_threads = 3;
        fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
        const struct variable *last = &fixture.model.variables[fixture.model.variable_count - 1];
        fixture.parameters[last->offset] = NAN;
        make_engine(&fixture);
        struct train_result result;
        float *after = state_after(&fixture, 5, &result);
        assert_false(result.finite);
        assert_true(isnan(result.bad_loss));
        assert_int_equal(result.steps, 0);
        assert_int_equal(fixture.engine->table->global_step(fixture.engine), 0);
        assert_memory_equal(fixture.parameters, after, fixture.model.float_count * sizeof *after);
        free(after);
        teardown(&fixture);
    }
}

static void test_training_learns(void **state)
{
    const int layers[] = {64, 32, 4};
    struct fixture fixture;
    setup(&fixture, layers, 3, 32, 200, 20);
    for (int i = 0; i < 200; i++) {
        /* The class is the position of the bright spot. */
        memset(fixture.examples.images + i * 64 + 16 * fixture.examples.labels[i], 255, 8);
    }
    fixture.config.train.num_threads = 2;
    make_engine(&fixture);
    struct train_result result;
    free(state_after(&fixture, 300, &result));
    free(state_after(&fixture, 20, &result));
    assert_true(result.correct > result.images * 9 / 10);
    teardown(&fixture);
}

/* --- allocations: AddressSanitizer's hooks count them --- */

int __sanitizer_install_malloc_and_free_hooks(void (*allocated)(const volatile void *, size_t),
                                              void (*freed)(const volatile void *)) __attribute__((weak));

static atomic_int allocations;

static void count_allocation(const volatile void *memory, size_t size)
{
    atomic_fetch_add(&allocations, 1);
}

static void ignore_free(const volatile void *memory)
{
}

static void test_steps_allocate_nothing(void **state)
{
    if (!__sanitizer_install_malloc_and_free_hooks) {
        print_message("no AddressSanitizer to count allocations with\n");
        skip();
    }
    static bool installed;
    if (!installed) {
        assert_int_not_equal(__sanitizer_install_malloc_and_free_hooks(count_allocation, ignore_free), 0);
        installed = true;
    }
    const int layers[] = {100, 30, 20, 10};
    struct fixture fixture;
    setup(&fixture, layers, 4, 20, 90, 30);
    fixture.config.train.micro_batches = 2;
    fixture.config.train.num_threads = 2;
    make_engine(&fixture);
    struct train_result result;
    struct error error;
    float logits[90 * 10];
    /* By the end of a run all threads have started, which also allocates. */
    assert_true(fixture.engine->table->train(fixture.engine, 1, &result, &error));
    int before = atomic_load(&allocations);
    assert_true(before > 0);
    assert_true(fixture.engine->table->train(fixture.engine, 20, &result, &error));
    assert_true(fixture.engine->table->forward(fixture.engine, false, &fixture.examples, 0, 90, logits, &error));
    assert_int_equal(atomic_load(&allocations), before);
    teardown(&fixture);
}

static void test_describe(void **state)
{
    const int layers[] = {10, 3};
    struct fixture fixture;
    setup(&fixture, layers, 2, 4, 8, 30);
    make_engine(&fixture);
    char text[200];
    fixture.engine->table->describe(fixture.engine, text, sizeof text);
    assert_non_null(strstr(text, "1 thread"));
    assert_non_null(strstr(text, "kernels"));
    teardown(&fixture);
}

/*
 * What is written reads back, for any range and layout; what surrounds it does not change, and padding stays as it is.
 */
static void check_vector(struct fixture *fixture, enum store_vector vector)
{
    struct error error;
    const struct engine_table *table = fixture->engine->table;
    size_t floats = fixture->model.float_count;
    float *expected = calloc(floats, sizeof *expected), *values = calloc(floats, sizeof *values);
    unsigned char *padding = calloc(floats, 1);
    assert_true(expected && values && padding);
    for (int i = 0; i < fixture->model.variable_count; i++) {
        const struct variable *variable = &fixture->model.variables[i];
        for (size_t at = 0; at < (size_t)variable->rows * (size_t)variable->stride; at++) {
            padding[variable->offset + at] = at % (size_t)variable->stride >= (size_t)variable->cols;
        }
    }
    assert_true(table->read(fixture->engine, vector, 0, floats, expected, &error));
    for (int i = 0; i < 20; i++) {
        size_t first = (size_t)below((int)floats), count = (size_t)below((int)(floats - first) + 1);
        for (size_t at = first; at < first + count; at++) {
            expected[at] = padding[at] ? expected[at] : test_random_float(&test_seed) + 2.0f;
        }
        assert_true(table->write(fixture->engine, vector, first, count, expected + first, &error));
        first = (size_t)below((int)floats), count = (size_t)below((int)(floats - first) + 1);
        memset(values, 0xff, floats * sizeof *values);
        assert_true(table->read(fixture->engine, vector, first, count, values, &error));
        assert_memory_equal(values, expected + first, count * sizeof *values);
    }
    free(expected);
    free(values);
    free(padding);
}

static void test_state_goes_in_and_out_in_the_jobs_layout(void **state)
{
    for (int round = 0; round < 20; round++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.optimizer = below(2) ? OPTIMIZER_ADAM : OPTIMIZER_ADAGRAD;
        fixture.config.train.ema_decay = below(2) ? 0.9 : 0.0;
        make_engine(&fixture);
        for (int vector = 0; vector < STORE_VECTORS; vector++) {
            if (store_has_vector(&fixture.config.train, (enum store_vector)vector)) {
                check_vector(&fixture, (enum store_vector)vector);
            }
        }
        teardown(&fixture);
    }
}

static int run_with(enum cpu_kernels kernels, const char *name)
{
    tested = kernels;
    struct fixture fixture;
    const int layers[] = {4, 2};
    setup(&fixture, layers, 2, 1, 1, 50);
    struct error error;
    struct engine_options options = {.model = &fixture.model, .config = &fixture.config};
    if (!cpu_engine_create(&fixture.engine, &options, &error)) {
        print_message("[  SKIPPED ] engine with kernels %s: %s\n", name, error.text);
        free(fixture.examples.images);
        free(fixture.examples.labels);
        free(fixture.parameters);
        return 0;
    }
    teardown(&fixture);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_naive_gradient_by_finite_differences),
        cmocka_unit_test(test_gradient),
        cmocka_unit_test(test_clipping_by_norm),
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_state_goes_in_and_out_in_the_jobs_layout),
        cmocka_unit_test(test_same_bits_at_any_thread_count),
        cmocka_unit_test(test_calls_of_train_join_up),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_a_loss_that_is_not_finite_stops_before_the_update),
        cmocka_unit_test(test_training_learns),
        cmocka_unit_test(test_steps_allocate_nothing),
        cmocka_unit_test(test_describe),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    test_seed = test_random_begin("test_engine");
    return run_with(CPU_KERNELS_REFERENCE, "reference") + run_with(CPU_KERNELS_AVX2, "avx2") +
           run_with(CPU_KERNELS_AVX512, "avx512") + run_with(CPU_KERNELS_NEON, "neon");
}
