/*
 * Layers that train.placement puts on the CPU (cuda/device/host.c): results match the CPU engine's, and neither side
 * touches the other's layers.
 */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

/* Some of the layers, but not all. */
static void place_some(struct fixture *fixture)
{
    int layers = fixture->model.layer_count;
    uint32_t mask = layers > 1 ? 1 + (uint32_t)below((1 << layers) - 2) : 0;
    for (int l = 0; l < layers; l++) {
        fixture->config.train.placement[l] = mask >> l & 1 ? LAYER_ON_CPU : LAYER_ANYWHERE;
    }
}

TEST(test_gradients_and_logits_are_the_cpu_engines)
{
    for (int i = 0; i < 12; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        place_some(&fixture);
        fixture.config.train.ema_decay = below(2) ? 0.9 : 0.0;
        open_engines(&fixture);
        check_logits(&fixture);
        check_gradient(&fixture, 1 + below(fixture.config.train.batch_size));
        teardown(&fixture);
    }
}

TEST(test_training_is_the_cpu_engines)
{
    for (int i = 0; i < 2 * OPTIMIZER_KINDS; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        random_optimizer(&fixture, i % OPTIMIZER_KINDS);
        place_some(&fixture);
        fixture.config.train.micro_batches = below(2) == 0 ? 3 : 1;
        open_engines(&fixture);
        train_both(&fixture, 3, 2e-4);
        train_both(&fixture, 1, 4e-4);
        teardown(&fixture);
    }
}

/* Fills the device's copy of a layer's parameters with NaN; or checks that they still are. */
static void spoil(struct fixture *fixture, int layer, bool check)
{
    struct device *device = fixture->device;
    const struct kernel_layer *variables = &device->network.layer[layer];
    size_t floats = (size_t)variables->in * (size_t)variables->stride;
    cu_pointer at = device_address(device->network.vectors.parameters + variables->weights);
    uint32_t *words = malloc(floats * sizeof *words);
    if (!check) {
        assert_int_equal(device->driver->set_bytes(at, 0xff, floats * sizeof *words, device->stream), CU_SUCCESS);
    } else {
        assert_int_equal(device->driver->copy_to_host(words, at, floats * sizeof *words, device->stream), CU_SUCCESS);
    }
    assert_int_equal(device->driver->stream_wait(device->stream), CU_SUCCESS);
    for (size_t i = 0; check && i < floats; i++) {
        assert_int_equal(words[i], UINT32_MAX);
    }
    free(words);
}

TEST(test_the_device_has_no_part_in_them)
{
    for (int layer = 0; layer < 3; layer++) {
        struct fixture fixture;
        setup(&fixture, (const int[]){20, 9, 8, 4}, 4, 8, 40);
        fixture.config.train.optimizer = OPTIMIZER_ADAM;
        fixture.config.train.clip_norm = layer == 1 ? 0.1 : 0;
        fixture.config.train.placement[layer] = LAYER_ON_CPU;
        open_engines(&fixture);
        assert_non_null(strstr(device_describe(fixture.device), "with layers on the CPU"));
        spoil(&fixture, layer, false);
        train_both(&fixture, 5, 2e-4);
        spoil(&fixture, layer, true);
        teardown(&fixture);
    }
}

TEST(test_a_loss_that_is_not_finite_stops_before_the_update)
{
    struct fixture fixture;
    struct error error = {{0}};
    struct device_outcome outcome;
    setup(&fixture, (const int[]){20, 9, 4}, 3, 8, 40);
    fixture.config.train.placement[0] = LAYER_ON_CPU;
    open_engines(&fixture);
    size_t floats = fixture.model.float_count;
    float *before = malloc(floats * sizeof *before), *after = malloc(floats * sizeof *after);
    float nan = NAN;
    assert_true(device_write(fixture.device, STORE_PARAMETERS, fixture.model.variables[1].offset, 1, &nan, &error));
    set_activation(&fixture, ACTIVATION_IDENTITY);
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

int main(void)
{
    test_seed = test_random_begin("test_host");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
