/*
 * A worker's half of a round: its steps are those of the optimizer, with FedProx's pull; it delivers what they changed
 * in the parameters, which the engine then gets back. Engines that keep their parameters elsewhere give the same bits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/worker/network.h"
#include "worker/local_steps.h"

enum { BATCH = 8, EXAMPLES = 64, STEPS = 5 };

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    struct engine *engine;
    float *begun; /* [float_count] */
};

static float *hidden(struct engine *engine)
{
    return NULL;
}

/* The CPU's, except that nobody may write into its memory. */
static struct engine_table distant;

static void set_up(struct fixture *f, bool is_distant, struct test_random *random)
{
    static const int layers[] = {40, 12, 5};
    struct error error;
    memset(f, 0, sizeof *f);
    test_config(&f->config, &f->model, layers, 3, BATCH);
    f->config.model.activation = ACTIVATION_TANH; /* smooth: effects of rounding stay small */
    model_layout(&f->model, &f->config.model);
    f->config.train.local_steps = STEPS;
    test_examples(&f->examples, &f->model, EXAMPLES, 50, random);
    f->begun = test_parameters(&f->config, &f->model, 3);
    const struct engine_options options = {.model = &f->model, .config = &f->config};
    assert_true(cpu_engine_create(&f->engine, &options, &error));
    assert_true(f->engine->table->write(f->engine, STORE_PARAMETERS, 0, f->model.float_count, f->begun, &error));
    if (is_distant) {
        distant = *f->engine->table;
        distant.parameters = hidden;
        f->engine->table = &distant;
    }
}

static void tear_down(struct fixture *f)
{
    f->engine->table->destroy(f->engine);
    examples_free(&f->examples);
    free(f->begun);
}

static struct batch batch_of(const struct fixture *f, int step, int32_t indexes[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        indexes[i] = (step * BATCH + i) % EXAMPLES;
    }
    return (struct batch){.examples = &f->examples, .indexes = indexes, .count = BATCH, .step = step};
}

/* The difference of a round; the caller frees it. */
static float *run_round(struct fixture *f)
{
    struct local_steps *steps;
    struct error error;
    struct train_result result = {.finite = true};
    float *differences = calloc(f->model.float_count, sizeof *differences);
    float *after = calloc(f->model.float_count, sizeof *after);
    struct collector collector = {.model = &f->model, .sum = differences, .weight = 1, .first = true};
    const struct gradient_sink sink = collector_sink(&collector);
    steps = local_steps_create(&f->model, f->engine, &f->config.train);
    assert_true(local_steps_begin(steps, &f->config.train, 0, &error));
    for (int i = 0; i < STEPS; i++) {
        int32_t indexes[BATCH];
        const struct batch batch = batch_of(f, i, indexes);
        assert_true(local_steps_take(steps, &batch, &result, &error));
    }
    assert_true(result.finite && result.steps == STEPS && result.images == STEPS * BATCH);
    assert_true(local_steps_end(steps, &sink, &error));
    assert_true(f->engine->table->read(f->engine, STORE_PARAMETERS, 0, f->model.float_count, after, &error));
    assert_memory_equal(after, f->begun, f->model.float_count * sizeof *after);
    local_steps_destroy(steps);
    free(after);
    return differences;
}

/* The same by the formula of plain gradient descent, in double precision but for the gradients. */
static void check_formula(struct fixture *f, const float *differences)
{
    const size_t count = f->model.float_count;
    const double rate = f->config.train.learning_rate, mu = f->config.train.proximal_mu;
    float *now = calloc(count, sizeof *now), *gradient = calloc(count, sizeof *gradient);
    struct error error;
    memcpy(now, f->begun, count * sizeof *now);
    for (int i = 0; i < STEPS; i++) {
        int32_t indexes[BATCH];
        struct train_result result;
        const struct batch batch = batch_of(f, i, indexes);
        struct collector collector = {.model = &f->model, .sum = gradient, .weight = 1, .first = true};
        const struct gradient_sink sink = collector_sink(&collector);
        assert_true(f->engine->table->write(f->engine, STORE_PARAMETERS, 0, count, now, &error));
        assert_true(f->engine->table->step(f->engine, &batch, &sink, &result, &error));
        for (size_t k = 0; k < count; k++) {
            const double w = (double)now[k];
            now[k] = (float)(w - rate * ((double)gradient[k] + mu * (w - (double)f->begun[k])));
        }
    }
    for (size_t k = 0; k < count; k++) {
        assert_true(fabs((double)differences[k] - ((double)f->begun[k] - (double)now[k])) < 1e-5);
    }
    free(now);
    free(gradient);
}

TEST(rounds_are_steps_of_the_optimizer)
{
    struct test_random random = test_random_begin("local steps");
    for (int i = 0; i < 10; i++) {
        struct fixture f;
        set_up(&f, false, &random);
        f.config.train.optimizer = OPTIMIZER_SGD;
        f.config.train.proximal_mu = i % 2 ? 0.5 : 0;
        float *differences = run_round(&f);
        check_formula(&f, differences);
        free(differences);
        tear_down(&f);
    }
}

TEST(it_does_not_matter_where_parameters_lie)
{
    struct test_random random = test_random_begin("places");
    for (int kind = 0; kind < OPTIMIZER_KINDS; kind++) {
        float *differences[2];
        struct test_random same = random;
        size_t bytes = 0;
        for (int i = 0; i < 2; i++) {
            struct fixture f;
            same = random;
            set_up(&f, i == 1, &same);
            f.config.train.optimizer = (enum optimizer_kind)kind;
            f.config.train.proximal_mu = 0.1;
            bytes = f.model.float_count * sizeof(float);
            differences[i] = run_round(&f);
            tear_down(&f);
        }
        random = same;
        assert_memory_equal(differences[0], differences[1], bytes);
        free(differences[0]);
        free(differences[1]);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
