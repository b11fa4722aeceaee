/*
 * The GPU engine's device against the CPU engine's reference kernels, on awkward sizes: gradients, whole runs of training
 * with every optimizer, logits; the same bits whatever the order in which threads get their turn; what comes of faults.
 *
 * By default on the fake driver (tests/cuda/fake); TEST_LIBCUDA names another, a real one with `make test-gpu`.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka wants the four above first. */
#include <cmocka.h>

#include "cuda/device/device.h"
#include "cuda/device/state.h"
#include "ps/collect.h"
#include "tests/random.h"
#include "worker/engine.h"

/* Where the build brings real kernels, these give way. */
__attribute__((weak)) const unsigned char gpu_kernels[] = {0};

static struct test_random test_seed;

static int below(int bound)
{
    if (bound <= 0) {
        abort();
    }
    return test_random_below(&test_seed, bound);
}

static const char *library(void)
{
    const char *other = getenv("TEST_LIBCUDA");
    return other ? other : "build/san/tests/cuda/fake/libcuda.so.1";
}

static bool is_fake(void)
{
    return getenv("TEST_LIBCUDA") == NULL;
}

static void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

/* ---- a network on both engines ---- */

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    float *parameters;
    struct engine *cpu;
    struct driver *driver;
    struct device *device;
};

static void make_examples(struct fixture *fixture, int count)
{
    int pixels = fixture->model.widths[0];
    struct examples *examples = &fixture->examples;
    *examples = (struct examples){.images = malloc((size_t)count * (size_t)pixels),
                                  .labels = malloc((size_t)count * sizeof(int32_t)),
                                  .count = count,
                                  .height = 1,
                                  .width = pixels,
                                  .classes = fixture->model.widths[fixture->model.layer_count]};
    for (int i = 0; i < count * pixels; i++) {
        examples->images[i] = (uint8_t)(below(100) < 40 ? below(256) : 0);
    }
    for (int i = 0; i < count; i++) {
        examples->labels[i] = below(examples->classes);
        /* Something to learn: the label shows. */
        examples->images[i * pixels + examples->labels[i] % pixels] = 255;
    }
}

static void setup(struct fixture *fixture, const int *layers, int layer_count, int batch, int examples)
{
    memset(fixture, 0, sizeof *fixture);
    struct config_model *model = &fixture->config.model;
    model->layer_count = layer_count;
    memcpy(model->layers, layers, (size_t)layer_count * sizeof *layers);
    model->initializer = INITIALIZER_TRUNCATED_NORMAL;
    model->init_stddev = 0.2;
    model->init_bias = 0.1;
    fixture->config.train = (struct config_train){.learning_rate = 0.05,
                                                  .lr_decay = 1.0,
                                                  .batch_size = batch,
                                                  .micro_batches = 1,
                                                  .num_threads = 1,
                                                  .seed = below(1000),
                                                  .momentum = 0.9,
                                                  .rho = 0.95,
                                                  .beta1 = 0.9,
                                                  .beta2 = 0.999,
                                                  .epsilon = 1e-6,
                                                  .rmsprop_decay = 0.9,
                                                  .rmsprop_momentum = 0.5,
                                                  .adagrad_init = 0.1,
                                                  .cpu_kernels = CPU_KERNELS_REFERENCE};
    model_layout(&fixture->model, model);
    fixture->parameters = calloc(fixture->model.float_count, sizeof(float));
    model_initialise(&fixture->model, model, below(1000), fixture->parameters);
    make_examples(fixture, examples);
}

static struct device_shape shape_of(const struct fixture *fixture)
{
    const struct config_train *train = &fixture->config.train;
    struct device_shape shape = {.layer_count = fixture->model.layer_count,
                                 .activation = (int32_t)fixture->model.activation,
                                 .optimizer = (int32_t)train->optimizer,
                                 .averages = train->ema_decay > 0.0,
                                 .batch_size = train->batch_size,
                                 .micro_batches = train->micro_batches,
                                 .seed = (uint64_t)train->seed,
                                 .label_smoothing = (float)train->label_smoothing,
                                 .dropout = train->dropout,
                                 .clip_norm = train->clip_norm};
    memcpy(shape.widths, fixture->model.widths, sizeof shape.widths);
    return shape;
}

static void write_all(struct fixture *fixture)
{
    struct error error = {{0}};
    size_t floats = fixture->model.float_count;
    float *values = malloc(floats * sizeof *values);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (store_has_vector(&fixture->config.train, (enum store_vector)vector)) {
            for (size_t i = 0; i < floats; i++) {
                values[i] = vector == STORE_PARAMETERS || vector == STORE_AVERAGES
                                ? fixture->parameters[i]
                                : optimizer_slot_initial(&fixture->config.train, vector - STORE_SLOT0);
            }
            if (!device_write(fixture->device, (enum store_vector)vector, 0, floats, values, &error)) {
                fail_msg("%s", error.text);
            }
            assert_true(fixture->cpu->table->write(fixture->cpu, (enum store_vector)vector, 0, floats, values, &error));
        }
    }
    free(values);
}

static void open_device(struct fixture *fixture)
{
    struct error error = {{0}};
    struct device_shape shape = shape_of(fixture);
    if (!driver_load(&fixture->driver, library(), &error) ||
        !device_open(&fixture->device, fixture->driver, 0, &shape, &error) ||
        !device_data(fixture->device, fixture->examples.images, fixture->examples.labels, fixture->examples.count,
                     &error)) {
        fail_msg("%s", error.text);
    }
}

static void close_device(struct fixture *fixture)
{
    device_close(fixture->device);
    driver_unload(fixture->driver);
    fixture->device = NULL;
    fixture->driver = NULL;
}

static void open_engines(struct fixture *fixture)
{
    struct error error = {{0}};
    struct engine_options options = {.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
    if (!cpu_engine_create(&fixture->cpu, &options, &error)) {
        fail_msg("%s", error.text);
    }
    open_device(fixture);
    write_all(fixture);
}

static void teardown(struct fixture *fixture)
{
    if (fixture->cpu) {
        fixture->cpu->table->destroy(fixture->cpu);
    }
    close_device(fixture);
    free(fixture->examples.images);
    free(fixture->examples.labels);
    free(fixture->parameters);
}

static void set_activation(struct fixture *fixture, enum activation activation)
{
    fixture->config.model.activation = activation;
    fixture->model.activation = activation;
}

/* ---- comparing ---- */

static double largest(const float *values, size_t count)
{
    double most = 0.0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)values[i]));
    }
    return most;
}

static void assert_close(const char *what, const float *got, const float *wanted, size_t count, double tolerance)
{
    double scale = largest(wanted, count) + 1e-6;
    for (size_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)wanted[i]) <= tolerance * scale)) {
            fail_msg("%s: float %zu is %.9g, should be %.9g (largest %.3g)", what, i, (double)got[i], (double)wanted[i],
                     scale);
        }
    }
}

static void assert_vectors_close(struct fixture *fixture, double tolerance)
{
    struct error error = {{0}};
    size_t floats = fixture->model.float_count;
    float *got = malloc(floats * sizeof *got);
    float *wanted = malloc(floats * sizeof *wanted);
    static const char *const names[] = {"parameters", "slot 0", "slot 1", "averages"};
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        if (store_has_vector(&fixture->config.train, (enum store_vector)vector)) {
            assert_true(device_read(fixture->device, (enum store_vector)vector, 0, floats, got, &error));
            assert_true(fixture->cpu->table->read(fixture->cpu, (enum store_vector)vector, 0, floats, wanted, &error));
            assert_close(names[vector], got, wanted, floats, tolerance);
        }
    }
    free(got);
    free(wanted);
}

static bool train_device(struct fixture *fixture, int64_t first, int n, struct device_outcome *outcome,
                         struct error *error)
{
    struct update(*updates)[2] = calloc((size_t)n + 1, sizeof *updates);
    for (int i = 0; i < n; i++) {
        update_prepare(&updates[i][1], &fixture->config.train, first + i);
        updates[i][0] = updates[i][1];
        update_spare_biases(&updates[i][0]);
    }
    bool done = device_train(fixture->device, first, n, (const struct update(*)[2])updates, outcome, error);
    free(updates);
    return done;
}

/* Trains n steps on both, and compares all that there is to compare. */
static void train_both(struct fixture *fixture, int n, double tolerance)
{
    struct error error = {{0}};
    struct device_outcome got;
    struct train_result wanted;
    int64_t first = fixture->cpu->table->global_step(fixture->cpu);
    if (!train_device(fixture, first, n, &got, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(fixture->cpu->table->train(fixture->cpu, n, &wanted, &error));
    assert_int_equal(got.steps, wanted.steps);
    assert_int_equal(got.images, wanted.images);
    assert_int_equal(got.finite, wanted.finite);
    assert_true(fabs(got.loss_sum - wanted.loss_sum) <= tolerance * wanted.loss_sum);
    assert_true(fabs(got.last_loss - wanted.last_loss) <= 10 * tolerance * (0.01 + wanted.last_loss));
    /* A logit may be largest by less than the rounding. */
    assert_true(llabs(got.correct - wanted.correct) <= 1 + wanted.images / 200);
    assert_vectors_close(fixture, tolerance);
}

/* ---- sizes ---- */

static int pick(const int *of, int count)
{
    return of[below(count)];
}
#define PICK(of) pick(of, (int)(sizeof(of) / sizeof *(of)))

static int random_layers(int *layers)
{
    static const int widths[] = {1, 2, 5, 15, 16, 17, 31, 33, 64, 70};
    static const int inputs[] = {1, 3, 16, 17, 49, 100};
    static const int classes[] = {1, 2, 3, 10, 16, 17, 40};
    int count = 2 + below(4);
    layers[0] = PICK(inputs);
    for (int i = 1; i < count; i++) {
        layers[i] = PICK(widths);
    }
    layers[count - 1] = PICK(classes);
    return count;
}

static void random_fixture(struct fixture *fixture)
{
    static const int batches[] = {1, 2, 3, 31, 33, 65};
    int layers[CONFIG_MAX_LAYERS];
    int count = random_layers(layers);
    int batch = PICK(batches);
    setup(fixture, layers, count, batch, batch + below(2 * batch));
    set_activation(fixture, (enum activation)below(4));
    fixture->config.train.label_smoothing = below(2) ? 0.1 : 0.0;
    fixture->config.train.dropout = below(2) ? 0.3 : 0.0;
    fixture->config.train.clip_norm = below(3) == 0 ? 0.2 : 0.0;
    set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
}

/* ---- gradients and logits ---- */

static void check_gradient(struct fixture *fixture, int count)
{
    struct error error = {{0}};
    size_t floats = fixture->model.float_count;
    size_t pixels = (size_t)fixture->model.widths[0];
    float *wanted = calloc(floats, sizeof *wanted);
    float *got = malloc(floats * sizeof *got);
    uint8_t *images = malloc((size_t)count * pixels);
    int32_t *labels = malloc((size_t)count * sizeof *labels);
    int32_t *indexes = malloc((size_t)count * sizeof *indexes);
    for (int i = 0; i < count; i++) {
        indexes[i] = below(fixture->examples.count);
        memcpy(images + (size_t)i * pixels, fixture->examples.images + (size_t)indexes[i] * pixels, pixels);
        labels[i] = fixture->examples.labels[indexes[i]];
    }
    struct batch batch = {.images = fixture->examples.images,
                          .labels = fixture->examples.labels,
                          .indexes = indexes,
                          .count = count,
                          .task = (uint32_t)below(3),
                          .step = below(100)};
    struct collector collector = {.model = &fixture->model, .sum = wanted, .weight = 1.0f, .first = true};
    struct gradient_sink sink = collector_sink(&collector);
    struct train_result cpu;
    assert_true(fixture->cpu->table->step(fixture->cpu, &batch, &sink, &cpu, &error));

    struct device_outcome gpu;
    _Atomic uint64_t ready = 0;
    memset(got, 0xff, floats * sizeof *got);
    if (below(2)) {
        device_share(fixture->device, got, floats * sizeof *got);
    }
    if (!device_step(fixture->device, images, labels, count, batch.task, batch.step, got, &ready, &gpu, &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(ready, floats);
    assert_int_equal(gpu.steps, 1);
    assert_int_equal(gpu.images, count);
    assert_true(fabs(gpu.last_loss - cpu.last_loss) <= 1e-5 * (1.0 + cpu.last_loss));
    assert_close("gradient", got, wanted, floats, 2e-5);
    close_device(fixture); /* before the memory that it shares goes */
    open_device(fixture);
    free(wanted);
    free(got);
    free(images);
    free(labels);
    free(indexes);
}

static void test_gradients_are_the_cpu_engines(void **state)
{
    (void)state;
    for (int i = 0; i < 25; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        open_engines(&fixture);
        check_gradient(&fixture, 1 + below(fixture.config.train.batch_size));
        teardown(&fixture);
    }
}

static void test_logits_are_the_cpu_engines(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        random_fixture(&fixture);
        fixture.config.train.ema_decay = below(2) ? 0.9 : 0.0;
        open_engines(&fixture);
        int count = fixture.examples.count;
        size_t floats = (size_t)count * (size_t)fixture.examples.classes;
        float *wanted = malloc(floats * sizeof *wanted);
        float *got = malloc(floats * sizeof *got);
        bool averaged = fixture.config.train.ema_decay > 0.0;
        if (!device_forward(fixture.device, averaged, fixture.examples.images, count, got, &error)) {
            fail_msg("%s", error.text);
        }
        assert_true(fixture.cpu->table->forward(fixture.cpu, averaged, fixture.examples.images, count, wanted, &error));
        assert_close("logits", got, wanted, floats, 1e-5);
        free(wanted);
        free(got);
        teardown(&fixture);
    }
}

/* ---- training ---- */

static void random_optimizer(struct fixture *fixture, int kind)
{
    struct config_train *train = &fixture->config.train;
    train->optimizer = (enum optimizer_kind)kind;
    train->nesterov = below(2);
    train->l2 = below(2) ? 0.01 : 0.0;
    train->weight_decay = below(2) ? 0.01 : 0.0;
    train->l1 = kind == OPTIMIZER_FTRL ? 0.001 : 0.0;
    train->ema_decay = below(2) ? 0.9 : 0.0;
}

static void test_training_is_the_cpu_engines(void **state)
{
    (void)state;
    for (int i = 0; i < 3 * OPTIMIZER_KINDS; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        random_optimizer(&fixture, i % OPTIMIZER_KINDS);
        fixture.config.train.micro_batches = below(3) == 0 ? 3 : 1;
        open_engines(&fixture);
        train_both(&fixture, 3, 2e-4);
        train_both(&fixture, 1, 4e-4);
        teardown(&fixture);
    }
}

static void test_sharded_training_is_the_cpu_engines(void **state)
{
    (void)state;
    for (int i = 0; i < 2 * OPTIMIZER_KINDS; i++) {
        static const int widths[] = {1, 3, 4, 9, 16};
        static const int inputs[] = {1, 17, 49, 100};
        static const int batches[] = {1, 3, 33, 65, 129};
        struct fixture fixture;
        int layers[] = {PICK(inputs), PICK(widths), 1 + below(16)};
        int batch = PICK(batches);
        setup(&fixture, layers, 3, batch, batch + below(2 * batch));
        set_activation(&fixture, (enum activation)below(4));
        random_optimizer(&fixture, i % OPTIMIZER_KINDS);
        fixture.config.train.label_smoothing = below(2) ? 0.1 : 0.0;
        fixture.config.train.dropout = below(2) ? 0.3 : 0.0;
        set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
        open_engines(&fixture);
        assert_non_null(strstr(device_describe(fixture.device), "persistent"));
        train_both(&fixture, 5, 3e-4);
        train_both(&fixture, 1, 6e-4);
        teardown(&fixture);
    }
}

/* 300 steps on images of a size like MNIST's, with all that a run has: the curves lie on one another. */
static void check_curve(const int *layers, int layer_count, const char *how)
{
    struct fixture fixture;
    setup(&fixture, layers, layer_count, 20, 110); /* an epoch has a short last batch */
    fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
    fixture.config.train.learning_rate = 0.03;
    fixture.config.train.lr_decay = 0.98;
    fixture.config.train.lr_decay_steps = 6;
    fixture.config.train.l2 = 1e-4;
    fixture.config.train.ema_decay = 0.99;
    fixture.config.train.dropout = 0.1;
    open_engines(&fixture);
    assert_non_null(strstr(device_describe(fixture.device), how));
    double first = 0.0;
    double last = 0.0;
    for (int step = 0; step < 120; step += 20) {
        struct error error = {{0}};
        struct device_outcome got;
        struct train_result wanted;
        if (!train_device(&fixture, step, 20, &got, &error)) {
            fail_msg("%s", error.text);
        }
        assert_true(fixture.cpu->table->train(fixture.cpu, 20, &wanted, &error));
        assert_int_equal(got.steps, 20);
        assert_int_equal(got.images, wanted.images);
        assert_true(fabs(got.loss_sum - wanted.loss_sum) <= 2e-3 * wanted.loss_sum);
        first = step == 0 ? got.loss_sum : first;
        last = got.loss_sum;
    }
    assert_true(last < 0.5 * first); /* it has learnt something */
    assert_vectors_close(&fixture, 5e-3);
    teardown(&fixture);
}

static void test_loss_curves_follow_the_cpu_engines(void **state)
{
    (void)state;
    set_number("FAKE_CUDA_SEED", 0);
    check_curve((const int[]){196, 16, 10}, 3, "persistent");
    check_curve((const int[]){196, 24, 12, 10}, 4, "graph");
}

/* ---- sizes that are special ---- */

/* A batch that comes in several chunks, as little shared memory as that takes; and eight hidden units to a block. */
static void test_shards_of_any_cut(void **state)
{
    (void)state;
    static const struct {
        int inputs, units, batch, shared;
    } cases[] = {{784, 7, 100, 175000}, {784, 7, 100, 140000}, {100, 30, 65, 232448}, {300, 31, 129, 110000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture fixture;
        int layers[] = {cases[i].inputs, cases[i].units, 10};
        set_number("FAKE_CUDA_SHARED", cases[i].shared);
        setup(&fixture, layers, 3, cases[i].batch, 2 * cases[i].batch + 17);
        fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
        fixture.config.train.dropout = below(2) ? 0.3 : 0.0;
        open_engines(&fixture);
        const struct kernel_shards *shards = &fixture.device->shards;
        assert_true(fixture.device->sharded);
        if (is_fake()) {
            assert_int_equal(shards->units, cases[i].units > 16 ? 8 : 4);
            assert_true(shards->chunk < shards->capacity || i == 2);
        }
        train_both(&fixture, 4, 3e-4);
        teardown(&fixture);
    }
    unsetenv("FAKE_CUDA_SHARED");
}

/* So many multiprocessors, or so few, that each size of tile has its turn. */
static void test_tiles_of_every_size(void **state)
{
    (void)state;
    for (int tile = 0; tile < 3; tile++) {
        struct fixture fixture;
        int layers[] = {130, 129, 140};
        set_number("FAKE_CUDA_MULTIPROCESSORS", tile == 0 ? 1000 : tile == 1 ? 9 : 1);
        setup(&fixture, layers, 3, 130, 200);
        set_activation(&fixture, ACTIVATION_TANH);
        open_engines(&fixture);
        train_both(&fixture, 2, 3e-4);
        teardown(&fixture);
    }
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
}

/* ---- the same bits ---- */

static float *trained(const int *layers, int layer_count, uint64_t state, int64_t order, int steps_at_once)
{
    struct fixture fixture;
    struct error error = {{0}};
    test_seed.state = state;
    set_number("FAKE_CUDA_SEED", order);
    setup(&fixture, layers, layer_count, 33, 100);
    fixture.config.train.optimizer = OPTIMIZER_ADAM;
    fixture.config.train.dropout = 0.2;
    open_engines(&fixture);
    size_t floats = fixture.model.float_count;
    float *values = malloc(2 * floats * sizeof *values);
    for (int step = 0; step < 12; step += steps_at_once) {
        struct device_outcome outcome;
        assert_true(train_device(&fixture, step, steps_at_once, &outcome, &error));
    }
    assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, values, &error));
    assert_true(device_read(fixture.device, STORE_SLOT1, 0, floats, values + floats, &error));
    teardown(&fixture);
    return values;
}

static void test_same_seed_same_bits(void **state)
{
    (void)state;
    static const int cases[][4] = {{40, 15, 10, 0}, {40, 20, 11, 10}};
    for (int i = 0; i < 2; i++) {
        uint64_t seed = test_seed.state;
        int count = cases[i][3] ? 4 : 3;
        struct config_model config = {.layer_count = count};
        struct model model;
        memcpy(config.layers, cases[i], sizeof cases[i]);
        model_layout(&model, &config);
        float *wanted = trained(cases[i], count, seed, 0, 12);
        for (int order = 1; order <= 3; order++) {
            float *got = trained(cases[i], count, seed, order, order == 3 ? 4 : 12);
            assert_memory_equal(got, wanted, 2 * model.float_count * sizeof *got);
            free(got);
        }
        free(wanted);
        test_random_next(&test_seed);
    }
    set_number("FAKE_CUDA_SEED", 0);
}

static void test_vectors_come_back_as_they_went(void **state)
{
    (void)state;
    struct fixture fixture;
    struct error error = {{0}};
    setup(&fixture, (const int[]){17, 5, 3}, 3, 4, 8);
    fixture.config.train.optimizer = OPTIMIZER_ADAM;
    fixture.config.train.ema_decay = 0.9;
    open_engines(&fixture);
    size_t floats = fixture.model.float_count;
    float *went = malloc(floats * sizeof *went);
    float *came = malloc(floats * sizeof *came);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (size_t i = 0; i < floats; i++) {
            went[i] = test_random_float(&test_seed);
        }
        size_t cut = 1 + (size_t)below((int)floats - 1);
        assert_true(device_write(fixture.device, (enum store_vector)vector, 0, cut, went, &error));
        assert_true(device_write(fixture.device, (enum store_vector)vector, cut, floats - cut, went + cut, &error));
        assert_true(device_read(fixture.device, (enum store_vector)vector, 0, floats, came, &error));
        assert_memory_equal(went, came, floats * sizeof *went);
        assert_true(device_read(fixture.device, (enum store_vector)vector, cut, 1, came, &error));
        assert_memory_equal(went + cut, came, sizeof *went);
    }
    assert_false(device_read(fixture.device, STORE_PARAMETERS, 1, floats, came, &error));
    assert_non_null(strstr(error.text, "bug"));
    assert_false(device_lost(fixture.device));
    free(went);
    free(came);
    teardown(&fixture);
}

/* ---- what goes wrong ---- */

/* A weight that is no number: the step is not made, and what was done before it stands. */
static void check_not_finite(const int *layers, int layer_count)
{
    struct fixture fixture;
    struct error error = {{0}};
    struct device_outcome outcome;
    setup(&fixture, layers, layer_count, 8, 40);
    open_engines(&fixture);
    size_t floats = fixture.model.float_count;
    float *before = malloc(floats * sizeof *before);
    float *after = malloc(floats * sizeof *after);
    assert_true(train_device(&fixture, 0, 3, &outcome, &error));
    assert_int_equal(outcome.finite, 1);
    float nan = NAN;
    size_t bias = fixture.model.variables[fixture.model.variable_count - 1].offset;
    assert_true(device_write(fixture.device, STORE_PARAMETERS, bias, 1, &nan, &error));
    assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, before, &error));
    assert_true(train_device(&fixture, 3, 3, &outcome, &error));
    assert_int_equal(outcome.finite, 0);
    assert_int_equal(outcome.steps, 0);
    assert_true(isfinite(outcome.bad_loss) == 0);
    assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, after, &error));
    assert_memory_equal(before, after, floats * sizeof *after);
    free(before);
    free(after);
    teardown(&fixture);
}

static void test_a_loss_that_is_not_finite_stops_before_the_update(void **state)
{
    (void)state;
    check_not_finite((const int[]){20, 9, 4}, 3);
    check_not_finite((const int[]){20, 4}, 2);
}

/* The learning rate makes the weights run away within a few steps; whoever came before the bad step counts. */
static void test_divergence_is_noticed_in_the_step_of_the_cpu_engine(void **state)
{
    (void)state;
    struct fixture fixture;
    struct error error = {{0}};
    struct device_outcome got;
    struct train_result wanted;
    setup(&fixture, (const int[]){20, 9, 4, 3}, 4, 8, 40);
    set_activation(&fixture, ACTIVATION_IDENTITY);
    fixture.config.train.learning_rate = 1e12;
    open_engines(&fixture);
    assert_true(train_device(&fixture, 0, 20, &got, &error));
    assert_true(fixture.cpu->table->train(fixture.cpu, 20, &wanted, &error));
    assert_false(wanted.finite);
    assert_int_equal(got.finite, 0);
    assert_int_equal(got.steps, wanted.steps);
    assert_int_equal(got.images, wanted.images);
    teardown(&fixture);
}

static void assert_load_fails(const char *path, const char *part)
{
    struct driver *driver = NULL;
    struct error error = {{0}};
    assert_false(driver_load(&driver, path, &error));
    if (!strstr(error.text, part) || strchr(error.text, '\n')) {
        fail_msg("'%s' lacks '%s'", error.text, part);
    }
}

static void test_what_is_wrong_with_the_driver_is_said(void **state)
{
    (void)state;
    assert_load_fails("/nowhere/libcuda.so.1", "no NVIDIA driver");
    if (!is_fake()) {
        return;
    }
    set_number("FAKE_CUDA_DRIVER", 12020);
    assert_load_fails(library(), "supports CUDA 12.2, and the GPU engine needs CUDA 13.0 (driver 580 or newer)");
    unsetenv("FAKE_CUDA_DRIVER");
    set_number("FAKE_CUDA_DEVICES", 0);
    assert_load_fails(library(), "finds no GPU");
    set_number("FAKE_CUDA_DEVICES", 2);
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    assert_load_fails(library(), "CUDA_VISIBLE_DEVICES='7'");
    unsetenv("CUDA_VISIBLE_DEVICES");
    set_number("FAKE_CUDA_INIT", 803);
    assert_load_fails(library(), "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
    unsetenv("FAKE_CUDA_INIT");
    unsetenv("FAKE_CUDA_DEVICES");
}

static void test_devices_are_listed(void **state)
{
    (void)state;
    struct driver *driver = NULL;
    struct driver_device device;
    struct error error = {{0}};
    set_number("FAKE_CUDA_DEVICES", 3);
    setenv("CUDA_VISIBLE_DEVICES", "2,GPU-fa4e0000-0000-0000-0000-000000000000", 1);
    if (is_fake()) {
        assert_true(driver_load(&driver, library(), &error));
        assert_int_equal(driver_device_count(driver), 2);
        assert_int_equal(driver_version(driver), 13000);
        assert_true(driver_device(driver, 0, &device, &error));
        assert_string_equal(device.name, "Fake GPU 2");
        assert_string_equal(device.uuid, "GPU-fa4e0000-0000-0000-0000-000000000002");
        assert_int_equal(device.memory_bytes, 1 << 30);
        assert_int_equal(device.major, 9);
        assert_true(driver_device(driver, 1, &device, &error));
        assert_string_equal(device.name, "Fake GPU 0");
        assert_false(driver_device(driver, 2, &device, &error));
        assert_non_null(strstr(error.text, "gpu:2"));
        driver_unload(driver);
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("FAKE_CUDA_DEVICES");
}

static void assert_open_fails(const struct device_shape *shape, const char *part)
{
    struct driver *driver = NULL;
    struct device *device = NULL;
    struct error error = {{0}};
    assert_true(driver_load(&driver, library(), &error));
    assert_false(device_open(&device, driver, 0, shape, &error));
    if (!strstr(error.text, part) || strchr(error.text, '\n')) {
        fail_msg("'%s' lacks '%s'", error.text, part);
    }
    driver_unload(driver);
}

static void test_memory_that_is_not_there_is_said(void **state)
{
    (void)state;
    struct device_shape shape = {
        .layer_count = 2, .widths = {784, 500, 10}, .batch_size = 100, .micro_batches = 1, .memory_limit = 1 << 20};
    assert_open_fails(&shape, "--gpu_memory_fraction");
    shape.memory_limit = 0;
    shape.precision = DEVICE_TF32;
    assert_open_fails(&shape, "float32");
    shape.precision = DEVICE_FLOAT32;
    if (is_fake()) {
        set_number("FAKE_CUDA_FAIL_ALLOC", 1);
        assert_open_fails(&shape, "has no memory for the model");
        unsetenv("FAKE_CUDA_FAIL_ALLOC");
        set_number("FAKE_CUDA_MEMORY", 1 << 20);
        assert_open_fails(&shape, "MiB are needed, 1 MiB are free");
        unsetenv("FAKE_CUDA_MEMORY");
    }
}

static void check_lost(const int *layers, int launch)
{
    struct fixture fixture;
    struct error error = {{0}};
    struct device_outcome outcome;
    set_number("FAKE_CUDA_LOSE_AT", launch);
    setup(&fixture, layers, 3, 4, 8);
    open_engines(&fixture);
    assert_false(train_device(&fixture, 0, 20, &outcome, &error));
    assert_non_null(strstr(error.text, "Fake GPU 0: "));
    assert_non_null(strstr(error.text, "CUDA_ERROR_LAUNCH_FAILED"));
    assert_null(strchr(error.text, '\n'));
    assert_true(device_lost(fixture.device));
    teardown(&fixture);
    unsetenv("FAKE_CUDA_LOSE_AT");
}

static void test_a_lost_device_is_an_error_of_one_sentence(void **state)
{
    (void)state;
    if (is_fake()) {
        check_lost((const int[]){9, 4, 3}, 1); /* one launch for all steps */
        check_lost((const int[]){9, 40, 3}, 1);
        check_lost((const int[]){9, 40, 3}, 77);
    }
}

/* Devices that can do less: no cooperative launches, no pinned memory. */
static void test_devices_that_can_do_less(void **state)
{
    (void)state;
    struct fixture fixture;
    set_number("FAKE_CUDA_COOPERATIVE", 0);
    set_number("FAKE_CUDA_REGISTER", 0);
    setup(&fixture, (const int[]){9, 4, 3}, 3, 4, 8);
    open_engines(&fixture);
    if (is_fake()) {
        assert_non_null(strstr(device_describe(fixture.device), "no cooperative launch"));
    }
    train_both(&fixture, 3, 2e-4);
    check_gradient(&fixture, 3);
    teardown(&fixture);
    unsetenv("FAKE_CUDA_COOPERATIVE");
    unsetenv("FAKE_CUDA_REGISTER");
}

/* What the device keeps must be what the store keeps: checkpoints move between the engines. */
static void test_slots_are_the_stores(void **state)
{
    (void)state;
    for (int kind = 0; kind < OPTIMIZER_KINDS; kind++) {
        for (int averages = 0; averages < 2; averages++) {
            struct config_train train = {.optimizer = (enum optimizer_kind)kind, .ema_decay = averages ? 0.9 : 0.0};
            struct device_shape shape = {.optimizer = kind, .averages = averages};
            for (int vector = 0; vector < STORE_VECTORS; vector++) {
                assert_int_equal(memory_keeps(&shape, (enum store_vector)vector),
                                 store_has_vector(&train, (enum store_vector)vector));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_the_cpu_engines),
        cmocka_unit_test(test_logits_are_the_cpu_engines),
        cmocka_unit_test(test_training_is_the_cpu_engines),
        cmocka_unit_test(test_sharded_training_is_the_cpu_engines),
        cmocka_unit_test(test_loss_curves_follow_the_cpu_engines),
        cmocka_unit_test(test_shards_of_any_cut),
        cmocka_unit_test(test_tiles_of_every_size),
        cmocka_unit_test(test_same_seed_same_bits),
        cmocka_unit_test(test_vectors_come_back_as_they_went),
        cmocka_unit_test(test_a_loss_that_is_not_finite_stops_before_the_update),
        cmocka_unit_test(test_divergence_is_noticed_in_the_step_of_the_cpu_engine),
        cmocka_unit_test(test_what_is_wrong_with_the_driver_is_said),
        cmocka_unit_test(test_devices_are_listed),
        cmocka_unit_test(test_memory_that_is_not_there_is_said),
        cmocka_unit_test(test_a_lost_device_is_an_error_of_one_sentence),
        cmocka_unit_test(test_devices_that_can_do_less),
        cmocka_unit_test(test_slots_are_the_stores),
    };
    test_seed = test_random_begin("test_device");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
