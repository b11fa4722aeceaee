/* The same bits in whatever order threads run; state moving in and out; and faults. */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

/* --- the same bits --- */

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

TEST(test_same_seed_same_bits)
{
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

TEST(test_vectors_come_back_as_they_went)
{
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

/* --- faults --- */

/* A NaN weight: the step is not made, and earlier steps stand. */
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

TEST(test_a_loss_that_is_not_finite_stops_before_the_update)
{
    check_not_finite((const int[]){20, 9, 4}, 3);
    check_not_finite((const int[]){20, 4}, 2);
}

/* The learning rate makes the weights diverge within a few steps; steps before the bad one count. */
TEST(test_divergence_is_noticed_in_the_step_of_the_cpu_engine)
{
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

TEST(test_what_is_wrong_with_the_driver_is_said)
{
    assert_load_fails("/nowhere/libcuda.so.1", "no NVIDIA driver");
    if (!is_fake()) {
        return;
    }
    set_number("FAKE_CUDA_DRIVER", 12020);
    assert_load_fails(library(), "supports CUDA 12.2, but the GPU engine needs CUDA 13.0 (driver 580 or newer)");
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

TEST(test_devices_are_listed)
{
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

TEST(test_memory_that_is_not_there_is_said)
{
    struct device_shape shape = {
        .layer_count = 2, .widths = {784, 500, 10}, .batch_size = 100, .micro_batches = 1, .memory_limit = 1 << 20};
    assert_open_fails(&shape, "--gpu_memory_fraction");
    shape.memory_limit = 0;
    if (is_fake()) {
        set_number("FAKE_CUDA_FAIL_ALLOC", 1);
        assert_open_fails(&shape, "is out of memory for the model");
        unsetenv("FAKE_CUDA_FAIL_ALLOC");
        set_number("FAKE_CUDA_MEMORY", 1 << 20);
        assert_open_fails(&shape, "MiB, 1 MiB free");
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

TEST(test_a_lost_device_is_one_error_message)
{
    if (is_fake()) {
        check_lost((const int[]){9, 4, 3}, 1); /* one launch for all steps */
        check_lost((const int[]){9, 40, 3}, 1);
        check_lost((const int[]){9, 40, 3}, 77);
    }
}

/* Less capable devices: no cooperative launches, no pinned memory. */
TEST(test_devices_that_can_do_less)
{
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

/* The device must keep what the store keeps, because checkpoints move between the engines. */
TEST(test_slots_are_the_stores)
{
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
    test_seed = test_random_begin("test_device");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
