/* Sharded training in one cooperative launch matches the CPU engine's training, however the network is divided. */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

TEST(test_sharded_training_is_the_cpu_engines)
{
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

/* --- special sizes --- */

/* A batch that needs several chunks, with as little shared memory as possible; and eight hidden units per block. */
TEST(test_shards_of_any_cut)
{
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
        if (is_fake()) {
            assert_true(fixture.device->sharded);
            assert_int_equal(shards->units, cases[i].units > 16 ? 8 : 4);
            assert_true(shards->chunk < shards->capacity || i == 2);
        }
        train_both(&fixture, 4, 3e-4);
        teardown(&fixture);
    }
    unsetenv("FAKE_CUDA_SHARED");
}

/*
 * Plain gradient descent, which has updates of its own; ReLU, for the one step that its biases are made for. With four
 * and eight units per block, one chunk and several.
 */
TEST(test_one_step_of_plain_descent)
{
    static const struct {
        int inputs, units, classes, batch, shared;
    } cases[] = {{100, 15, 10, 33, 232448}, {784, 7, 15, 100, 140000}, {300, 31, 16, 129, 110000},
                 {49, 9, 1, 512, 232448},   {60, 30, 10, 512, 232448}, {17, 30, 2, 1, 232448}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture fixture;
        int layers[] = {cases[i].inputs, cases[i].units, cases[i].classes};
        set_number("FAKE_CUDA_SHARED", cases[i].shared);
        set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
        setup(&fixture, layers, 3, cases[i].batch, cases[i].batch + below(cases[i].batch));
        set_activation(&fixture, ACTIVATION_RELU);
        open_engines(&fixture);
        assert_true(!is_fake() || fixture.device->sharded);
        train_both(&fixture, 1, 3e-4);
        teardown(&fixture);
    }
    unsetenv("FAKE_CUDA_SHARED");
}

/* 784-500-10 with momentum on GPUs of these sizes: units per block, 0 where kernels run one after another. */
TEST(test_what_fits_where)
{
    static const struct {
        const char *name;
        int multiprocessors, shared, batch, units;
    } cases[] = {{"H100", 132, 232448, 100, 4},    {"A100", 108, 166912, 100, 8},  {"RTX 4090", 128, 101376, 100, 4},
                 {"RTX 3090", 82, 101376, 100, 0}, {"RTX 3090", 82, 101376, 1, 8}, {"T4", 40, 65536, 100, 0}};
    for (size_t i = 0; is_fake() && i < sizeof cases / sizeof *cases; i++) {
        struct fixture fixture;
        set_number("FAKE_CUDA_MULTIPROCESSORS", cases[i].multiprocessors);
        set_number("FAKE_CUDA_SHARED", cases[i].shared);
        setup(&fixture, (const int[]){784, 500, 10}, 3, cases[i].batch, 100);
        fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
        open_device(&fixture);
        int units = fixture.device->sharded ? fixture.device->shards.units : 0;
        if (units != cases[i].units) {
            fail_msg("%s, batch %d: %s", cases[i].name, cases[i].batch, device_describe(fixture.device));
        }
        teardown(&fixture);
    }
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    unsetenv("FAKE_CUDA_SHARED");
}

int main(void)
{
    test_seed = test_random_begin("test_shards");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
