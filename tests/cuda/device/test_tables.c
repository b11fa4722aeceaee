/*
 * Rows of a table, and every loss: the device's results match the CPU engine's. Kernels other than the first layer's
 * input and the last layer's loss are those for images, which other tests try at all sizes.
 */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

static const enum loss_kind losses[] = {LOSS_SOFTMAX, LOSS_SIGMOID, LOSS_MSE, LOSS_MAE, LOSS_HUBER, LOSS_QUANTILE};
enum { LOSSES = sizeof losses / sizeof *losses };

enum inputs { NUMBERS, CATEGORIES, BOTH, INPUTS };

static void set_up_table(struct fixture *fixture, enum loss_kind loss, const int *layers, int layer_count, int batch,
                         int numbers)
{
    struct examples *examples = &fixture->examples;
    struct config_train *train = &fixture->config.train;
    int outputs = layers[layer_count - 1], labels = loss == LOSS_SOFTMAX;
    setup(fixture, layers, layer_count, batch, 1);
    set_activation(fixture, ACTIVATION_TANH);
    train->loss = loss;
    train->huber_delta = 50;
    train->quantile = 0.8;
    train->learning_rate = 0.001;
    train->epsilon = 0.01; /* gradients are large, and so is their rounding error */
    examples_free(examples);
    *examples = (struct examples){.inputs = layers[0],
                                  .numbers = numbers,
                                  .codes = numbers < layers[0] ? 3 : 0,
                                  .classes = labels ? outputs : 0,
                                  .targets = labels ? 0 : outputs,
                                  .is_weighted = below(2)};
    test_rows(examples, batch + below(2 * batch), &test_seed);
    test_wanted(examples, loss, &test_seed);
}

static void random_table(struct fixture *fixture, enum loss_kind loss, enum inputs inputs)
{
    static const int batches[] = {1, 3, 31, 33, 65};
    int layers[CONFIG_MAX_LAYERS], layer_count = random_layers(layers);
    int numbers = inputs == CATEGORIES ? 0 : 1 + below(40);
    layers[0] = numbers + (inputs == NUMBERS ? 0 : 30 + below(100));
    set_up_table(fixture, loss, layers, layer_count, PICK(batches), numbers);
    set_activation(fixture, (enum activation)(ACTIVATION_SIGMOID + below(3)));
    fixture->config.train.label_smoothing = below(2) ? 0.1 : 0.0;
    fixture->config.train.dropout = below(2) ? 0.3 : 0.0;
    fixture->config.train.clip_norm = below(3) == 0 ? 0.2 : 0.0;
    set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
}

TEST(test_gradients_and_outputs_are_the_cpu_engines)
{
    for (int i = 0; i < LOSSES * INPUTS; i++) {
        struct fixture fixture;
        random_table(&fixture, losses[i / INPUTS], (enum inputs)(i % INPUTS));
        fixture.config.train.ema_decay = below(2) ? 0.9 : 0.0;
        open_engines(&fixture);
        assert_non_null(strstr(device_describe(fixture.device), "for rows of a table"));
        check_logits(&fixture);
        check_gradient(&fixture, 1 + below(fixture.config.train.batch_size));
        teardown(&fixture);
    }
}

TEST(test_training_is_the_cpu_engines)
{
    for (int i = 0; i < LOSSES * INPUTS; i++) {
        struct fixture fixture;
        random_table(&fixture, losses[i / INPUTS], (enum inputs)(i % INPUTS));
        random_optimizer(&fixture, i % OPTIMIZER_KINDS);
        fixture.config.train.micro_batches = below(3) == 0 ? 3 : 1;
        open_engines(&fixture);
        train_both(&fixture, 3, 2e-4);
        train_both(&fixture, 1, 4e-4);
        teardown(&fixture);
    }
}

TEST(test_layers_on_the_cpu)
{
    for (int i = 0; i < LOSSES; i++) {
        struct fixture fixture;
        int layers[] = {47, 9, 1 + below(20), 5}, numbers = 1 + below(17);
        set_up_table(&fixture, losses[i], layers, 4, 20, numbers);
        fixture.config.train.placement[0] = i % 2 == 0 ? LAYER_ON_CPU : LAYER_ANYWHERE;
        fixture.config.train.placement[2] = i % 2 == 1 ? LAYER_ON_CPU : LAYER_ANYWHERE;
        open_engines(&fixture);
        train_both(&fixture, 3, 2e-4);
        check_logits(&fixture);
        check_gradient(&fixture, 1 + below(20));
        teardown(&fixture);
    }
}

/* Categories that occur in no row of a batch are unchanged, and rows are wide. */
TEST(test_lazy_updates_of_many_categories)
{
    struct fixture fixture;
    set_up_table(&fixture, LOSS_MSE, (const int[]){3003, 8, 2}, 3, 20, 3);
    fixture.config.train.optimizer = OPTIMIZER_ADAM;
    fixture.config.train.lazy_updates = true;
    fixture.config.train.ema_decay = 0.9;
    open_engines(&fixture);
    train_both(&fixture, 4, 2e-4);
    check_logits(&fixture);
    teardown(&fixture);
}

/* With tensor cores: no further off than the rounding of operands explains. */
TEST(test_rounded_rows)
{
    struct fixture fixture;
    struct error error = {{0}};
    enum { OUTPUTS = 5 };
    set_up_table(&fixture, LOSS_MSE, (const int[]){70, OUTPUTS}, 2, 65, 20);
    fixture.config.train.precision = PRECISION_TF32;
    fixture.config.train.allow_soft_placement = true; /* a real GPU may have no tensor cores */
    open_engines(&fixture);
    size_t floats = (size_t)fixture.examples.count * OUTPUTS;
    float *got = calloc(floats, sizeof *got), *wanted = calloc(floats, sizeof *wanted);
    const struct device_examples examples = arrays_of(&fixture.examples);
    assert_true(device_forward(fixture.device, false, &examples, got, &error));
    assert_true(
        fixture.cpu->table->forward(fixture.cpu, false, &fixture.examples, 0, fixture.examples.count, wanted, &error));
    assert_close("outputs", got, wanted, floats, 0x1p-7);
    assert_true(!is_fake() || memcmp(got, wanted, floats * sizeof *got) != 0);
    free(got);
    free(wanted);
    teardown(&fixture);
}

TEST(test_a_loss_that_is_not_finite_stops_before_the_update)
{
    for (int i = 0; i < LOSSES; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        struct device_outcome outcome;
        set_up_table(&fixture, losses[i], (const int[]){40, 6, 3}, 3, 8, 10);
        open_engines(&fixture);
        size_t floats = fixture.model.float_count;
        float *before = malloc(floats * sizeof *before), *after = malloc(floats * sizeof *after);
        float nan = NAN;
        size_t bias = fixture.model.variables[fixture.model.variable_count - 1].offset;
        assert_true(device_write(fixture.device, STORE_PARAMETERS, bias, 1, &nan, &error));
        assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, before, &error));
        assert_true(train_device(&fixture, 0, 3, &outcome, &error));
        assert_int_equal(outcome.finite, 0);
        assert_int_equal(outcome.steps, 0);
        assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, after, &error));
        assert_memory_equal(before, after, floats * sizeof *after);
        free(before);
        free(after);
        teardown(&fixture);
    }
}

int main(void)
{
    test_seed = test_random_begin("test_tables");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
