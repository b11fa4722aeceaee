/* The device's gradients, logits, training runs and loss curves match the CPU engine's, on awkward sizes. */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

/* --- gradients and logits --- */

TEST(test_gradients_are_the_cpu_engines)
{
    for (int i = 0; i < 16; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        open_engines(&fixture);
        check_gradient(&fixture, 1 + below(fixture.config.train.batch_size));
        teardown(&fixture);
    }
}

TEST(test_logits_are_the_cpu_engines)
{
    for (int i = 0; i < 10; i++) {
        struct fixture fixture;
        random_fixture(&fixture);
        fixture.config.train.ema_decay = below(2) ? 0.9 : 0.0;
        open_engines(&fixture);
        check_logits(&fixture);
        teardown(&fixture);
    }
}

/* --- training --- */

TEST(test_training_is_the_cpu_engines)
{
    for (int i = 0; i < 2 * OPTIMIZER_KINDS; i++) {
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

/* Long runs with everything that a run has: the loss curves coincide. */
static void check_curve(const int *layers, int layer_count, int steps, const char *how)
{
    struct fixture fixture;
    setup(&fixture, layers, layer_count, 10, 115); /* an epoch has a short last batch */
    fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
    fixture.config.train.learning_rate = 0.01;
    fixture.config.train.lr_decay = 0.98;
    fixture.config.train.lr_decay_steps = 30;
    fixture.config.train.l2 = 1e-4;
    fixture.config.train.ema_decay = 0.99;
    fixture.config.train.dropout = 0.1;
    open_engines(&fixture);
    assert_non_null(strstr(device_describe(fixture.device), how));
    double first = 0.0;
    double last = 0.0;
    for (int step = 0; step < steps; step += 50) {
        struct error error = {{0}};
        struct device_outcome got;
        struct train_result wanted;
        if (!train_device(&fixture, step, 50, &got, &error)) {
            fail_msg("%s", error.text);
        }
        assert_true(fixture.cpu->table->train(fixture.cpu, 50, &wanted, &error));
        assert_int_equal(got.steps, 50);
        assert_int_equal(got.images, wanted.images);
        assert_true(fabs(got.loss_sum - wanted.loss_sum) <= 2e-3 * wanted.loss_sum);
        first = step == 0 ? got.loss_sum : first;
        last = got.loss_sum;
    }
    assert_true(last < 0.9 * first); /* it has learnt something */
    assert_vectors_close(&fixture, 5e-3);
    teardown(&fixture);
}

TEST(test_loss_curves_follow_the_cpu_engines)
{
    set_number("FAKE_CUDA_SEED", 0);
    check_curve((const int[]){100, 16, 10}, 3, 600, "persistent");
    check_curve((const int[]){100, 24, 12, 10}, 4, 300, "graph");
}

/* Numbers of multiprocessors with which each size of tile is used. */
TEST(test_tiles_of_every_size)
{
    for (int tile = 0; tile < 3; tile++) {
        struct fixture fixture;
        int layers[] = {130, 129, 140};
        set_number("FAKE_CUDA_MULTIPROCESSORS", tile == 0 ? 1000 : tile == 1 ? 9 : 1);
        setup(&fixture, layers, 3, 130, 200);
        open_engines(&fixture);
        train_both(&fixture, 2, 3e-4);
        teardown(&fixture);
    }
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
}

/* Large batches: so many multiprocessors that the gradient is computed in this many parts. */
TEST(test_parts_of_a_batch)
{
    static const struct {
        int multiprocessors, batch, parts;
    } cases[] = {{2, 600, 2}, {3, 600, 3}, {5, 600, 4}, {9, 600, 4}, {1000, 517, 4}, {1, 600, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fixture fixture;
        int layers[] = {40, 20, 7};
        set_number("FAKE_CUDA_MULTIPROCESSORS", cases[i].multiprocessors);
        setup(&fixture, layers, 3, cases[i].batch, cases[i].batch + below(cases[i].batch));
        random_optimizer(&fixture, below(OPTIMIZER_KINDS));
        open_engines(&fixture);
        assert_true(!is_fake() || fixture.device->network.parts == cases[i].parts);
        train_both(&fixture, 3, 3e-4);
        teardown(&fixture);
    }
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
}

int main(void)
{
    test_seed = test_random_begin("test_compute");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
