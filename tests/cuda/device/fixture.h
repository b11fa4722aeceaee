/*
 * A network on both engines, for the tests of the GPU engine's device: the CPU engine with reference kernels is the
 * standard. By default the device is the fake driver's (tests/cuda/fake); TEST_LIBCUDA names another library, a real
 * driver's with `make test-gpu`.
 */
#ifndef TESTS_CUDA_DEVICE_FIXTURE_H
#define TESTS_CUDA_DEVICE_FIXTURE_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include <cmocka.h>

#include "cuda/device/device.h"
#include "cuda/device/state.h"
#include "ps/store/store.h"
#include "tests/random.h"
#include "tests/worker/network.h"
#include "worker/engine.h"
#include "worker/gpu/engine.h"

/* Used unless the build brings real kernels. */
__attribute__((weak)) const unsigned char gpu_kernels[] = {0};

static struct test_random test_seed;

static inline int below(int bound)
{
    if (bound <= 0) {
        abort();
    }
    return test_random_below(&test_seed, bound);
}

static inline const char *library(void)
{
    const char *other = getenv("TEST_LIBCUDA");
    return other ? other : "build/san/tests/cuda/fake/libcuda.so.1";
}

static inline bool is_fake(void)
{
    return !getenv("TEST_LIBCUDA");
}

static inline void set_number(const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

/* --- a network on both engines --- */

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    float *parameters;
    struct engine *cpu;
    struct driver *driver;
    struct device *device;
};

/* --- activations --- */

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* A bias that keeps all of a unit's sums away from 0: in the widest gap among the middle ones. Sorts them. */
static inline double bias_off_zero(double *sums, int count)
{
    double widest = 1e-3;
    double bias = 0;
    qsort(sums, (size_t)count, sizeof *sums, compare_doubles);
    for (int i = count / 4; i < count - 1 - count / 4; i++) {
        double gap = sums[i + 1] - sums[i];
        if (gap > widest) {
            widest = gap;
            bias = -(sums[i] + sums[i + 1]) / 2;
        }
    }
    return widest > 1e-3 ? bias : 0.1 - sums[0];
}

/*
 * ReLU's derivative jumps at 0, where rounding would decide about whole gradients: chooses the hidden layers' biases so
 * that no image's sums are near it. They hold for one step.
 */
static inline void keep_off_kinks(struct fixture *fixture)
{
    const struct model *model = &fixture->model;
    int count = fixture->examples.count;
    size_t rows = (size_t)count;
    double *sums = malloc(rows * sizeof *sums);
    double *sorted = malloc(rows * sizeof *sorted);
    double *below = malloc(rows * (size_t)model->widths[0] * sizeof *below);
    for (size_t i = 0; i < rows * (size_t)model->widths[0]; i++) {
        below[i] = fixture->examples.images[i] / 255.0;
    }
    for (int l = 0; l + 1 < model->layer_count; l++) {
        size_t in = (size_t)model->widths[l];
        size_t out = (size_t)model->widths[l + 1];
        const struct variable *weights = &model->variables[2 * l];
        float *biases = fixture->parameters + model->variables[2 * l + 1].offset;
        double *above = malloc(rows * out * sizeof *above);
        for (size_t u = 0; u < out; u++) {
            for (size_t i = 0; i < rows; i++) {
                sums[i] = 0;
                for (size_t k = 0; k < in; k++) {
                    sums[i] += below[i * in + k] *
                               (double)fixture->parameters[weights->offset + k * (size_t)weights->stride + u];
                }
            }
            memcpy(sorted, sums, rows * sizeof *sums);
            biases[u] = (float)bias_off_zero(sorted, count);
            for (size_t i = 0; i < rows; i++) {
                above[i * out + u] = fmax(0, sums[i] + (double)biases[u]);
            }
        }
        free(below);
        below = above;
    }
    free(below);
    free(sorted);
    free(sums);
}

/* After the dropout is set, which moves the sums of all hidden layers but the first: then tanh stands in for ReLU. */
static inline void set_activation(struct fixture *fixture, enum activation activation)
{
    bool kinks = activation == ACTIVATION_RELU;
    if (kinks && fixture->config.train.dropout > 0 && fixture->model.layer_count > 2) {
        activation = ACTIVATION_TANH;
    } else if (kinks) {
        keep_off_kinks(fixture);
    }
    fixture->config.model.activation = activation;
    fixture->model.activation = activation;
}

static inline void setup(struct fixture *fixture, const int *layers, int layer_count, int batch, int examples)
{
    memset(fixture, 0, sizeof *fixture);
    test_config(&fixture->config, &fixture->model, layers, layer_count, batch);
    fixture->config.train.seed = below(1000);
    fixture->config.train.epsilon = 1e-6;
    fixture->config.train.cpu_kernels = CPU_KERNELS_REFERENCE;
    fixture->parameters = test_parameters(&fixture->config, &fixture->model, below(1000));
    test_examples(&fixture->examples, &fixture->model, examples, 40, &test_seed);
    test_examples_mark(&fixture->examples);
    set_activation(fixture, ACTIVATION_TANH); /* whose derivative does not jump, however many steps are compared */
}

static inline struct device_examples arrays_of(const struct examples *examples)
{
    return (struct device_examples){.arrays = {[DEVICE_IMAGES] = examples->images,
                                               [DEVICE_VALUES] = examples->values,
                                               [DEVICE_PLACES] = examples->places,
                                               [DEVICE_LABELS] = examples->labels,
                                               [DEVICE_TARGETS] = examples->target_values,
                                               [DEVICE_WEIGHTS] = examples->weights},
                                    .count = examples->count};
}

static inline struct device_shape shape_of(const struct fixture *fixture)
{
    const struct config_train *train = &fixture->config.train;
    struct device_shape shape = {.layer_count = fixture->model.layer_count,
                                 .activation = (int32_t)fixture->model.activation,
                                 .optimizer = (int32_t)train->optimizer,
                                 .averages = train->ema_decay > 0.0,
                                 .batch_size = train->batch_size,
                                 .micro_batches = train->micro_batches,
                                 .precision = (int32_t)train->precision,
                                 .host_layers = layer_placement_of(train, fixture->model.layer_count).cpu_layers,
                                 .soft_precision = train->allow_soft_placement,
                                 .seed = (uint64_t)train->seed,
                                 .numbers = fixture->examples.numbers,
                                 .codes = fixture->examples.codes,
                                 .targets = fixture->examples.targets,
                                 .weighted = fixture->examples.is_weighted,
                                 .loss = (int32_t)train->loss,
                                 .huber_delta = (float)train->huber_delta,
                                 .quantile = (float)train->quantile,
                                 .label_smoothing = (float)train->label_smoothing,
                                 .dropout = train->dropout,
                                 .clip_norm = train->clip_norm};
    memcpy(shape.widths, fixture->model.widths, sizeof shape.widths);
    return shape;
}

static inline void write_all(struct fixture *fixture)
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

static inline void open_device(struct fixture *fixture)
{
    struct error error = {{0}};
    struct device_shape shape = shape_of(fixture);
    const struct device_examples examples = arrays_of(&fixture->examples);
    if (!driver_load(&fixture->driver, library(), &error) ||
        !device_open(&fixture->device, fixture->driver, 0, &shape, &error) ||
        !device_data(fixture->device, &examples, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline void close_device(struct fixture *fixture)
{
    device_close(fixture->device);
    driver_unload(fixture->driver);
    fixture->device = NULL;
    fixture->driver = NULL;
}

static inline void open_engines(struct fixture *fixture)
{
    struct error error = {{0}};
    struct engine_options options = {.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
    if (!cpu_engine_create(&fixture->cpu, &options, &error)) {
        fail_msg("%s", error.text);
    }
    open_device(fixture);
    write_all(fixture);
}

static inline void teardown(struct fixture *fixture)
{
    if (fixture->cpu) {
        fixture->cpu->table->destroy(fixture->cpu);
    }
    close_device(fixture);
    examples_free(&fixture->examples);
    free(fixture->parameters);
}

/* --- comparing --- */

static inline double largest(const float *values, size_t count)
{
    double most = 0.0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)values[i]));
    }
    return most;
}

/* Within a share of the largest of them, or of `least`, the size of their terms where they cancel out. */
static inline void assert_close_by(const char *what, const float *got, const float *wanted, size_t count,
                                   double tolerance, double least)
{
    double scale = fmax(largest(wanted, count), least);
    for (size_t i = 0; i < count; i++) {
        if (!(fabs((double)got[i] - (double)wanted[i]) <= tolerance * scale)) {
            fail_msg("%s: float %zu is %.9g, should be %.9g (largest %.3g)", what, i, (double)got[i], (double)wanted[i],
                     scale);
        }
    }
}

static inline void assert_close(const char *what, const float *got, const float *wanted, size_t count, double tolerance)
{
    assert_close_by(what, got, wanted, count, tolerance, 1e-6);
}

static inline void assert_vectors_close(struct fixture *fixture, double tolerance)
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

static inline bool train_device(struct fixture *fixture, int64_t first, int n, struct device_outcome *outcome,
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

/* Trains n steps on both, and compares everything. */
static inline void train_both(struct fixture *fixture, int n, double tolerance)
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
    /* A small loss is a difference of large logits: the rounding is theirs. */
    assert_true(fabs(got.loss_sum - wanted.loss_sum) <= tolerance * (0.01 * n + wanted.loss_sum));
    assert_true(fabs(got.last_loss - wanted.last_loss) <= 10 * tolerance * (0.01 + wanted.last_loss));
    /* The largest logit may lead by less than the rounding. */
    assert_true(llabs(got.correct - wanted.correct) <= 1 + wanted.images / 200);
    assert_vectors_close(fixture, tolerance);
}

/* --- sizes --- */

static inline int pick(const int *of, int count)
{
    return of[below(count)];
}
#define PICK(of) pick(of, (int)(sizeof(of) / sizeof *(of)))

static inline int random_layers(int *layers)
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

static inline void random_fixture(struct fixture *fixture)
{
    static const int batches[] = {1, 2, 3, 31, 33, 65};
    int layers[CONFIG_MAX_LAYERS];
    int count = random_layers(layers);
    int batch = PICK(batches);
    setup(fixture, layers, count, batch, batch + below(2 * batch));
    fixture->config.train.label_smoothing = below(2) ? 0.1 : 0.0;
    fixture->config.train.dropout = below(2) ? 0.3 : 0.0;
    set_activation(fixture, (enum activation)below(4));
    fixture->config.train.clip_norm = below(3) == 0 ? 0.2 : 0.0;
    set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
}

static inline void random_optimizer(struct fixture *fixture, int kind)
{
    struct config_train *train = &fixture->config.train;
    if (fixture->model.activation == ACTIVATION_RELU) {
        set_activation(fixture, ACTIVATION_TANH); /* several steps are compared */
    }
    train->optimizer = (enum optimizer_kind)kind;
    train->nesterov = below(2);
    train->l2 = below(2) ? 0.01 : 0.0;
    train->weight_decay = below(2) ? 0.01 : 0.0;
    train->l1 = kind == OPTIMIZER_FTRL ? 0.001 : 0.0;
    train->ema_decay = below(2) ? 0.9 : 0.0;
}

/* --- logits, and one gradient --- */

/* The logits of all examples on both engines, from the averages where there are any. */
static inline void check_logits(struct fixture *fixture)
{
    struct error error = {{0}};
    int count = fixture->examples.count;
    size_t floats = (size_t)count * (size_t)fixture->model.widths[fixture->model.layer_count];
    const struct device_examples examples = arrays_of(&fixture->examples);
    float *wanted = malloc(floats * sizeof *wanted), *got = malloc(floats * sizeof *got);
    bool averaged = fixture->config.train.ema_decay > 0.0;
    if (!device_forward(fixture->device, averaged, &examples, got, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(fixture->cpu->table->forward(fixture->cpu, averaged, &fixture->examples, 0, count, wanted, &error));
    assert_close_by("logits", got, wanted, floats, 1e-5, 0.1); /* the weights' size: terms may cancel out */
    free(wanted);
    free(got);
}

static inline void check_gradient(struct fixture *fixture, int count)
{
    struct error error = {{0}};
    size_t floats = fixture->model.float_count;
    float *wanted = calloc(floats, sizeof *wanted);
    float *got = malloc(floats * sizeof *got);
    int32_t *indexes = malloc((size_t)count * sizeof *indexes);
    struct examples drawn;
    assert_true(examples_create(&drawn, &fixture->examples, count));
    for (int i = 0; i < count; i++) {
        indexes[i] = below(fixture->examples.count);
        examples_copy(&drawn, i, &fixture->examples, indexes[i], 1);
    }
    struct batch batch = {.examples = &fixture->examples,
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
    const struct device_batch packed = {.examples = arrays_of(&drawn), .task = batch.task, .step = batch.step};
    if (!device_step(fixture->device, &packed, got, &ready, &gpu, &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(ready, floats);
    assert_int_equal(gpu.steps, 1);
    assert_int_equal(gpu.images, count);
    assert_true(fabs(gpu.last_loss - cpu.last_loss) <= 1e-5 * (1.0 + cpu.last_loss));
    /* An output's delta is a probability less 1 or 0: however small, it is rounded like 1. */
    assert_close_by("gradient", got, wanted, floats, 2e-5, FLT_EPSILON / 2e-5);
    close_device(fixture); /* before the memory that it shares is freed */
    open_device(fixture);
    free(wanted);
    free(got);
    examples_free(&drawn);
    free(indexes);
}

#endif
