/*
 * An ensemble's nets are trained as each would be alone, on the same batches; its answers are the averages of theirs;
 * and nothing depends on the number of threads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/worker/network.h"
#include "worker/ensemble.h"

enum { BATCH = 8, EXAMPLES = 60, STEPS = 30, INPUTS = 40, UNITS = 12, OUTPUTS = 3, NETS = 3 };

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    struct engine *engine;
    float *begun; /* [float_count] */
};

static void set_up(struct fixture *f, int threads, double clip_norm, struct test_random *random)
{
    static const int layers[] = {INPUTS, UNITS, OUTPUTS};
    struct error error;
    memset(f, 0, sizeof *f);
    test_config(&f->config, &f->model, layers, 3, BATCH);
    f->config.model.net_count = NETS;
    f->config.train.optimizer = OPTIMIZER_ADAM;
    f->config.train.clip_norm = clip_norm;
    f->config.train.num_threads = threads;
    model_layout(&f->model, &f->config.model);
    test_examples(&f->examples, &f->model, EXAMPLES, 50, random);
    f->begun = calloc(f->model.float_count, sizeof *f->begun);
    model_initialise(&f->model, &f->config.model, 7, f->begun);
    const struct engine_options options = {.model = &f->model, .config = &f->config, .train = &f->examples};
    assert_true(ensemble_create_on_cpu(&f->engine, &options, &error));
    assert_true(f->engine->table->write(f->engine, STORE_PARAMETERS, 0, f->model.float_count, f->begun, &error));
}

static void tear_down(struct fixture *f)
{
    f->engine->table->destroy(f->engine);
    examples_free(&f->examples);
    free(f->begun);
}

static float *parameters_of(struct engine *engine, size_t count)
{
    struct error error;
    float *values = calloc(count, sizeof *values);
    assert_true(engine->table->read(engine, STORE_PARAMETERS, 0, count, values, &error));
    return values;
}

/* One of its nets, in an engine of its own. */
static struct engine *alone(const struct fixture *f, int net, struct model *one)
{
    const size_t first = model_net(&f->model, net, one);
    const struct engine_options options = {.model = one, .config = &f->config, .train = &f->examples, .net = net};
    struct engine *engine;
    struct error error;
    assert_true(cpu_engine_create(&engine, &options, &error));
    assert_true(engine->table->write(engine, STORE_PARAMETERS, 0, one->float_count, f->begun + first, &error));
    return engine;
}

static void train(struct engine *engine, int64_t steps, struct train_result *result)
{
    struct error error;
    assert_true(engine->table->train(engine, steps, result, &error));
    assert_true(result->finite && result->steps == steps);
}

/* Adds the probabilities that logits mean; squares NULL: only them. */
static void add_probabilities(const float *logits, double *sums, double *squares)
{
    double sum = 0;
    for (int i = 0; i < OUTPUTS; i++) {
        sum += exp((double)logits[i]);
    }
    for (int i = 0; i < OUTPUTS; i++) {
        const double p = exp((double)logits[i]) / sum;
        sums[i] += p;
        if (squares) {
            squares[i] += p * p;
        }
    }
}

/* Its parameters, and its answers to the first examples, whose probabilities' sums it adds. */
static void check_net(struct fixture *f, int net, const float *whole, double *loss, double *sums, double *squares)
{
    struct model one;
    struct train_result result;
    struct error error;
    float logits[EXAMPLES * OUTPUTS];
    struct engine *engine = alone(f, net, &one);
    train(engine, STEPS, &result);
    float *values = parameters_of(engine, one.float_count);
    assert_memory_equal(values, whole + model_net(&f->model, net, &one), one.float_count * sizeof *values);
    assert_true(engine->table->forward(engine, false, &f->examples, 0, EXAMPLES, logits, &error));
    for (int i = 0; i < EXAMPLES; i++) {
        const ptrdiff_t at = (ptrdiff_t)i * OUTPUTS;
        add_probabilities(logits + at, sums + at, squares + at);
    }
    *loss += result.loss_sum / NETS;
    free(values);
    engine->table->destroy(engine);
}

static void check_as_alone(int threads, double clip_norm, struct test_random *random)
{
    struct fixture f;
    struct train_result result;
    struct error error;
    double loss = 0, sums[EXAMPLES * OUTPUTS] = {0}, squares[EXAMPLES * OUTPUTS] = {0}, means[EXAMPLES * OUTPUTS] = {0};
    float logits[EXAMPLES * OUTPUTS], spreads[EXAMPLES * OUTPUTS];
    set_up(&f, threads, clip_norm, random);
    train(f.engine, STEPS, &result);
    float *whole = parameters_of(f.engine, f.model.float_count);
    for (int net = 0; net < NETS; net++) {
        check_net(&f, net, whole, &loss, sums, squares);
    }
    assert_true(fabs(result.loss_sum - loss) <= 1e-9);
    assert_true(f.engine->table->forward(f.engine, false, &f.examples, 0, EXAMPLES, logits, &error));
    assert_true(ensemble_spread(f.engine, &f.examples, 0, EXAMPLES, spreads, &error));
    for (int i = 0; i < EXAMPLES; i++) {
        add_probabilities(logits + (ptrdiff_t)i * OUTPUTS, means + (ptrdiff_t)i * OUTPUTS, NULL);
    }
    for (int i = 0; i < EXAMPLES * OUTPUTS; i++) {
        const double mean = sums[i] / NETS, variance = squares[i] / NETS - mean * mean;
        assert_true(fabs(means[i] - mean) <= 1e-6);
        assert_true(fabs((double)spreads[i] - sqrt(fmax(variance, 0))) <= 1e-5);
    }
    free(whole);
    tear_down(&f);
}

TEST(each_net_is_trained_as_alone_and_answers_are_averages)
{
    struct test_random random = test_random_begin(__func__);
    check_as_alone(1, 0, &random);
    check_as_alone(2, 0, &random);
    check_as_alone(7, 0, &random);
    check_as_alone(2, 0.05, &random);
}

/* A step's gradient is those of the nets, at their places. */
TEST(a_gradient_is_that_of_every_net)
{
    struct test_random random = test_random_begin(__func__);
    struct fixture f;
    struct error error;
    struct train_result result;
    int32_t indexes[BATCH];
    set_up(&f, 2, 0, &random);
    for (int i = 0; i < BATCH; i++) {
        indexes[i] = test_random_below(&random, EXAMPLES);
    }
    const struct batch batch = {.examples = &f.examples, .indexes = indexes, .count = BATCH};
    float *whole = calloc(f.model.float_count, sizeof *whole), *part = calloc(f.model.float_count, sizeof *part);
    struct collector all = {.model = &f.model, .sum = whole, .weight = 1, .first = true};
    const struct gradient_sink sink = collector_sink(&all);
    assert_true(f.engine->table->step(f.engine, &batch, &sink, &result, &error));
    for (int net = 0; net < NETS; net++) {
        struct model one;
        struct engine *engine = alone(&f, net, &one);
        struct collector own = {.model = &one, .sum = part, .weight = 1, .first = true};
        const struct gradient_sink own_sink = collector_sink(&own);
        assert_true(engine->table->step(engine, &batch, &own_sink, &result, &error));
        assert_memory_equal(whole + model_net(&f.model, net, &one), part, one.float_count * sizeof *part);
        engine->table->destroy(engine);
    }
    free(whole);
    free(part);
    tear_down(&f);
}

/* Any part of any vector, across nets, is what was written there. */
TEST(vectors_are_read_and_written_in_parts)
{
    struct test_random random = test_random_begin(__func__);
    struct fixture f;
    struct error error;
    set_up(&f, 1, 0, &random);
    const size_t count = f.model.float_count;
    float *values = calloc(count, sizeof *values);
    for (int k = 0; k < 50; k++) {
        const size_t first = (size_t)test_random_below(&random, (int)count);
        const size_t some = (size_t)test_random_below(&random, (int)(count - first)) + 1;
        assert_true(f.engine->table->read(f.engine, STORE_PARAMETERS, first, some, values, &error));
        assert_memory_equal(values, f.begun + first, some * sizeof *values);
        for (size_t i = 0; i < some; i++) {
            f.begun[first + i] *= 2; /* padding stays zero */
        }
        assert_true(f.engine->table->write(f.engine, STORE_PARAMETERS, first, some, f.begun + first, &error));
    }
    free(values);
    tear_down(&f);
}

/* Of averages: what they mean, at extremes too. */
TEST(averages_are_of_probabilities)
{
    const double numbers[] = {1, 5, 3, 7}, logits[] = {800, -800, -800, 800}, odds[] = {40, -900};
    const double broken[] = {NAN, 0, 1, 2};
    double average[2];
    ensemble_average(LOSS_MSE, 2, 2, numbers, average);
    assert_true(average[0] == 2 && average[1] == 6);
    ensemble_average(LOSS_SOFTMAX, 2, 2, logits, average);
    assert_true(fabs(average[0] - log(0.5)) <= 1e-12);
    assert_true(fabs(average[1] - log(0.5)) <= 1e-12);
    ensemble_average(LOSS_SIGMOID, 2, 1, odds, average);
    assert_true(fabs(average[0]) <= 1e-12);
    ensemble_average(LOSS_SOFTMAX, 2, 2, broken, average);
    assert_true(isnan(average[0]));
}

int main(void)
{
    return check_run(NULL, NULL);
}
