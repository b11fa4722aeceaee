/*
 * CPU towers, which are always available: whatever their number, the bits are those of one engine with micro-batches.
 */
#include "tests/check.h"
#include "worker/gpu/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/store/store.h"
#include "tests/worker/network.h"

enum { EXAMPLES = 130, PIXELS = 49 };

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    struct engine *towers, *one;
};

static struct engine_options options_of(struct fixture *fixture)
{
    return (struct engine_options){.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
}

static void make(struct fixture *fixture, char *towers, int micro_batches)
{
    struct test_random random = {7};
    memset(fixture, 0, sizeof *fixture);
    test_config(&fixture->config, &fixture->model, (const int[]){PIXELS, 20, 5}, 3, 16);
    struct config_train *train = &fixture->config.train;
    train->optimizer = OPTIMIZER_ADAM;
    train->learning_rate = 0.01;
    train->micro_batches = micro_batches;
    train->seed = 5;
    train->dropout = 0.2;
    train->ema_decay = 0.9;
    train->towers = towers;
    train->allow_soft_placement = true;
    test_examples(&fixture->examples, &fixture->model, EXAMPLES, 40, &random);
}

static void start(struct fixture *fixture)
{
    struct error error;
    struct engine_options options = options_of(fixture);
    size_t floats = fixture->model.float_count;
    float *values = test_parameters(&fixture->config, &fixture->model, 3);
    if (!towers_engine_create(&fixture->towers, &options, fixture->config.train.towers, &error) ||
        !cpu_engine_create(&fixture->one, &options, &error)) {
        fail_msg("%s", error.text);
    }
    struct engine *both[] = {fixture->towers, fixture->one};
    for (int i = 0; i < 2; i++) {
        assert_true(both[i]->table->write(both[i], STORE_PARAMETERS, 0, floats, values, &error));
        assert_true(both[i]->table->write(both[i], STORE_AVERAGES, 0, floats, values, &error));
    }
    free(values);
}

static void end(struct fixture *fixture)
{
    if (fixture->towers) {
        fixture->towers->table->destroy(fixture->towers);
        fixture->one->table->destroy(fixture->one);
    }
    examples_free(&fixture->examples);
}

static void train_both(struct fixture *fixture, int64_t n)
{
    struct error error;
    struct train_result towers, one;
    assert_true(fixture->towers->table->train(fixture->towers, n, &towers, &error));
    assert_true(fixture->one->table->train(fixture->one, n, &one, &error));
    assert_int_equal(towers.steps, one.steps);
    assert_int_equal(towers.correct, one.correct);
    assert_int_equal(towers.images, one.images);
    assert_true(fabs(towers.loss_sum - one.loss_sum) < 1e-9 * fabs(one.loss_sum));
}

TEST(any_number_of_towers_gives_the_same_bits)
{
    static char names[][24] = {"cpu", "cpu,cpu", "cpu, cpu,cpu", "cpu,cpu,cpu,cpu,cpu,cpu"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct fixture fixture;
        struct error error;
        make(&fixture, names[i], 6);
        start(&fixture);
        train_both(&fixture, 1);
        train_both(&fixture, 12);
        size_t floats = fixture.model.float_count;
        float *a = calloc(floats, sizeof *a), *b = calloc(floats, sizeof *b);
        for (int v = 0; v < STORE_VECTORS; v++) {
            fixture.towers->table->read(fixture.towers, (enum store_vector)v, 0, floats, a, &error);
            fixture.one->table->read(fixture.one, (enum store_vector)v, 0, floats, b, &error);
            assert_memory_equal(a, b, floats * sizeof *a);
        }
        float logits[2][20 * 5];
        for (int averaged = 1; averaged >= 0; averaged--) {
            assert_true(
                fixture.towers->table->forward(fixture.towers, averaged, &fixture.examples, 0, 20, logits[0], &error));
            assert_true(
                fixture.one->table->forward(fixture.one, averaged, &fixture.examples, 0, 20, logits[1], &error));
            assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        }
        train_both(&fixture, 2); /* with the parameters again */
        free(a);
        free(b);
        end(&fixture);
    }
}

/* A worker's batch is divided; each share's sum is weighted by its images. */
TEST(a_batch_is_shared_out)
{
    static char names[] = "cpu,cpu,cpu";
    struct fixture fixture;
    make(&fixture, names, 3);
    fixture.config.train.dropout = 0; /* it depends on the position in the batch */
    start(&fixture);
    for (int count = 1; count <= 16; count += 5) {
        int32_t indexes[16];
        size_t floats = fixture.model.float_count;
        float *sums[] = {calloc(floats, sizeof(float)), calloc(floats, sizeof(float))};
        struct engine *both[] = {fixture.towers, fixture.one};
        struct train_result results[2];
        for (int i = 0; i < count; i++) {
            indexes[i] = i * 5 + 1;
        }
        for (int i = 0; i < 2; i++) {
            struct error error;
            struct batch batch = {.examples = &fixture.examples, .indexes = indexes, .count = count};
            struct collector collector = {.model = &fixture.model, .sum = sums[i], .weight = 1, .first = true};
            struct gradient_sink sink = collector_sink(&collector);
            assert_true(both[i]->table->step(both[i], &batch, &sink, &results[i], &error));
        }
        for (size_t i = 0; i < floats; i++) {
            assert_true(fabsf(sums[0][i] - sums[1][i]) < 1e-6f);
        }
        assert_int_equal(results[0].correct, results[1].correct);
        assert_int_equal(results[0].images, count);
        assert_true(fabs(results[0].last_loss - results[1].last_loss) < 1e-6);
        free(sums[0]);
        free(sums[1]);
    }
    end(&fixture);
}

TEST(a_loss_that_is_not_finite_stops_it)
{
    static char names[] = "cpu,cpu";
    struct fixture fixture;
    struct error error;
    struct train_result result;
    make(&fixture, names, 2);
    fixture.config.train.optimizer = OPTIMIZER_SGD;
    fixture.config.train.learning_rate = 1e25;
    fixture.config.train.dropout = 0;
    start(&fixture);
    assert_true(fixture.towers->table->train(fixture.towers, 50, &result, &error));
    assert_false(result.finite);
    assert_int_equal(fixture.towers->table->global_step(fixture.towers), result.steps);
    end(&fixture);
}

static void refuse(char *towers, const char *why)
{
    struct fixture fixture;
    struct error error;
    make(&fixture, towers, 3);
    struct engine_options options = options_of(&fixture);
    assert_false(towers_engine_create(&fixture.towers, &options, fixture.config.train.towers, &error));
    assert_string_equal(error.text, why);
    fixture.towers = NULL;
    end(&fixture);
}

TEST(what_makes_no_sense_is_refused)
{
    char two[] = "cpu,cpu", other[] = "cpu,tpu:0,cpu", more[] = "gpu:0x,cpu,cpu", none[] = "";
    refuse(none, "train.towers: no device");
    refuse(two, "train.towers: 2 devices cannot share micro_batches=3 evenly; use --micro_batches=2");
    refuse(other, "train.towers: expected gpu:N or cpu, got 'tpu:0'");
    refuse(more, "train.towers: expected gpu:N or cpu, got 'gpu:0x'");
}

int main(void)
{
    return check_run(NULL, NULL);
}
