/*
 * The GPU engine's host side over a process whose device is the CPU engine: what it computes, and what a device that
 * fails at any point leaves behind, must be bit for bit what the CPU engine computes alone.
 */
#include "tests/check.h"
#include "worker/gpu/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "ps/store/store.h"
#include "tests/cuda/hung.h"
#include "tests/cuda/program.h"
#include "tests/worker/network.h"

enum { EXAMPLES = 130, BATCH = 32 };

static uint8_t *program;
static size_t program_size;

struct fixture {
    struct config config;
    struct model model;
    struct examples examples;
    struct engine *gpu, *cpu;
};

static struct engine_options options_of(struct fixture *fixture)
{
    return (struct engine_options){.model = &fixture->model, .config = &fixture->config, .train = &fixture->examples};
}

static bool create_gpu(struct fixture *fixture, const char *fault, struct error *error)
{
    struct gpu_client *client;
    struct engine_options options = options_of(fixture);
    setenv("REFERENCE_FAULT", fault, 1);
    bool started =
        gpu_client_start_program(&client, program, program_size, fixture->config.train.gpu_timeout_secs, error);
    unsetenv("REFERENCE_FAULT");
    return started && gpu_engine_begin(client, &options, error) &&
           gpu_engine_create(&fixture->gpu, &options, client, error);
}

static void initialise(struct fixture *fixture, struct engine *engine)
{
    struct error error;
    float *values = test_parameters(&fixture->config, &fixture->model, 3);
    assert_true(engine->table->write(engine, STORE_PARAMETERS, 0, fixture->model.float_count, values, &error));
    if (fixture->config.train.ema_decay > 0) {
        assert_true(engine->table->write(engine, STORE_AVERAGES, 0, fixture->model.float_count, values, &error));
    }
    free(values);
}

/* A small network in both engines. */
static void make(struct fixture *fixture, enum optimizer_kind optimizer)
{
    struct test_random random = {7};
    memset(fixture, 0, sizeof *fixture);
    test_config(&fixture->config, &fixture->model, (const int[]){49, 20, 5}, 3, BATCH);
    struct config_train *train = &fixture->config.train;
    train->optimizer = optimizer;
    train->learning_rate = 0.01;
    train->lr_decay = 0.9;
    train->lr_decay_steps = 3;
    train->micro_batches = 2;
    train->seed = 5;
    train->dropout = 0.2;
    train->clip_norm = 0.1;
    train->label_smoothing = 0.1;
    train->l2 = 1e-3;
    train->ema_decay = 0.9;
    train->allow_soft_placement = true;
    test_examples(&fixture->examples, &fixture->model, EXAMPLES, 40, &random);
}

static void start(struct fixture *fixture, const char *fault)
{
    struct error error;
    struct engine_options options = options_of(fixture);
    if (!create_gpu(fixture, fault, &error) || !cpu_engine_create(&fixture->cpu, &options, &error)) {
        fail_msg("%s", error.text);
    }
    initialise(fixture, fixture->gpu);
    initialise(fixture, fixture->cpu);
}

static void end(struct fixture *fixture)
{
    if (fixture->gpu) {
        fixture->gpu->table->destroy(fixture->gpu);
    }
    if (fixture->cpu) {
        fixture->cpu->table->destroy(fixture->cpu);
    }
    examples_free(&fixture->examples);
}

static void train_both(struct fixture *fixture, int64_t n)
{
    struct error error;
    struct train_result gpu, cpu;
    if (!fixture->gpu->table->train(fixture->gpu, n, &gpu, &error)) {
        fail_msg("%s", error.text);
    }
    assert_true(fixture->cpu->table->train(fixture->cpu, n, &cpu, &error));
    assert_int_equal(gpu.steps, cpu.steps);
    assert_int_equal(gpu.correct, cpu.correct);
    assert_int_equal(gpu.images, cpu.images);
    assert_int_equal(gpu.finite, cpu.finite);
    assert_true(fabs(gpu.loss_sum - cpu.loss_sum) < 1e-9 * fabs(cpu.loss_sum));
    assert_true(fabs(gpu.last_loss - cpu.last_loss) < 1e-9);
    assert_int_equal(fixture->gpu->table->global_step(fixture->gpu), fixture->cpu->table->global_step(fixture->cpu));
}

static void assert_same_state(struct fixture *fixture)
{
    struct error error;
    size_t floats = fixture->model.float_count;
    float *gpu = calloc(floats, sizeof *gpu), *cpu = calloc(floats, sizeof *cpu);
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (!store_has_vector(&fixture->config.train, (enum store_vector)v)) {
            continue;
        }
        if (!fixture->gpu->table->read(fixture->gpu, (enum store_vector)v, 0, floats, gpu, &error)) {
            fail_msg("%s", error.text);
        }
        assert_true(fixture->cpu->table->read(fixture->cpu, (enum store_vector)v, 0, floats, cpu, &error));
        assert_memory_equal(gpu, cpu, floats * sizeof *gpu);
    }
    free(gpu);
    free(cpu);
}

static const char *description(struct fixture *fixture)
{
    static char text[256];
    fixture->gpu->table->describe(fixture->gpu, text, sizeof text);
    return text;
}

TEST(computes_what_the_cpu_computes)
{
    for (int optimizer = 0; optimizer < OPTIMIZER_KINDS; optimizer++) {
        struct fixture fixture;
        make(&fixture, (enum optimizer_kind)optimizer);
        start(&fixture, "none");
        assert_string_equal(description(&fixture), "gpu:0: the reference");
        train_both(&fixture, 1);
        train_both(&fixture, 7);
        assert_same_state(&fixture);
        train_both(&fixture, 3);
        assert_same_state(&fixture);
        end(&fixture);
    }
}

TEST(many_steps_are_several_commands)
{
    struct fixture fixture;
    make(&fixture, OPTIMIZER_SGD);
    fixture.config.train.micro_batches = 1;
    fixture.config.train.batch_size = 1;
    start(&fixture, "none");
    train_both(&fixture, 2 * PROTOCOL_UPDATES + 1);
    assert_same_state(&fixture);
    end(&fixture);
}

/* Parts of a vector that were written are there at the next step, whatever was trained in between. */
TEST(writes_are_seen)
{
    struct fixture fixture;
    struct error error;
    float values[40];
    make(&fixture, OPTIMIZER_ADAM);
    start(&fixture, "none");
    train_both(&fixture, 5);
    for (int i = 0; i < 40; i++) {
        values[i] = (float)i / 40;
    }
    struct engine *both[] = {fixture.gpu, fixture.cpu};
    size_t biases = fixture.model.variables[1].offset, row = (size_t)fixture.model.variables[0].stride;
    for (int i = 0; i < 2; i++) {
        assert_true(both[i]->table->write(both[i], STORE_PARAMETERS, biases, 20, values, &error));
        assert_true(both[i]->table->write(both[i], STORE_PARAMETERS, row, 10, values, &error));
        assert_true(both[i]->table->write(both[i], STORE_SLOT1, biases, 20, values, &error));
        both[i]->table->set_global_step(both[i], 100);
    }
    assert_same_state(&fixture);
    train_both(&fixture, 5);
    assert_same_state(&fixture);
    /* In place, as a worker's pulls are; a CPU engine that trains by itself may have another layout than the job's. */
    memcpy(fixture.gpu->table->parameters(fixture.gpu) + biases, values, 20 * sizeof *values);
    assert_true(fixture.cpu->table->write(fixture.cpu, STORE_PARAMETERS, biases, 20, values, &error));
    train_both(&fixture, 5);
    assert_same_state(&fixture);
    end(&fixture);
}

static void compare_gradients(struct fixture *fixture, float *sums[2])
{
    struct error error;
    int32_t indexes[] = {5, 99, 3, 3, 17};
    struct engine *both[] = {fixture->gpu, fixture->cpu};
    for (int i = 0; i < 2; i++) {
        struct batch batch = {.examples = &fixture->examples, .indexes = indexes, .count = 5, .task = 3, .step = 12};
        /* It adds up repeated blocks. */
        struct collector collector = {.model = &fixture->model, .sum = sums[i], .weight = 1, .first = false};
        struct gradient_sink sink = collector_sink(&collector);
        struct train_result result;
        memset(sums[i], 0, fixture->model.float_count * sizeof(float));
        if (!both[i]->table->step(both[i], &batch, &sink, &result, &error)) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(result.images, 5);
        assert_true(result.finite);
    }
    assert_memory_equal(sums[0], sums[1], fixture->model.float_count * sizeof(float));
}

static bool hangs(const char *fault)
{
    return strncmp(fault, "hang", 4) == 0;
}

TEST(gradients_are_the_same)
{
    static const char *const faults[] = {"none", "die step 0", "fail step 0", "lose step 0", "hang step 0"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct fixture fixture;
        make(&fixture, OPTIMIZER_SGD);
        start(&fixture, faults[i]);
        float *sums[] = {calloc(fixture.model.float_count, 4), calloc(fixture.model.float_count, 4)};
        next_hangs = hangs(faults[i]);
        compare_gradients(&fixture, sums);
        compare_gradients(&fixture, sums);
        assert_int_equal(strncmp(description(&fixture), "CPU", 3) == 0, i > 0);
        free(sums[0]);
        free(sums[1]);
        end(&fixture);
    }
}

TEST(forward_is_the_same)
{
    enum { COUNT = 2500 };
    struct fixture fixture;
    struct error error;
    uint8_t *images = calloc(COUNT * 49 + 64, 1);
    for (int i = 0; i < COUNT * 49; i++) {
        images[i] = (uint8_t)(i % 253);
    }
    const struct examples examples = {.images = images, .count = COUNT, .height = 7, .width = 7};
    float *logits[] = {calloc(COUNT * 5, sizeof(float)), calloc(COUNT * 5, sizeof(float))};
    static const char *const faults[] = {"none", "die forward 8"};
    for (int f = 0; f < 2; f++) {
        make(&fixture, OPTIMIZER_ADAM);
        start(&fixture, faults[f]);
        train_both(&fixture, 9);
        for (int averaged = 0; averaged < 2; averaged++) {
            assert_true(fixture.gpu->table->forward(fixture.gpu, averaged, &examples, 0, COUNT, logits[0], &error));
            assert_true(fixture.cpu->table->forward(fixture.cpu, averaged, &examples, 0, COUNT, logits[1], &error));
            assert_memory_equal(logits[0], logits[1], COUNT * 5 * sizeof(float));
        }
        end(&fixture);
    }
    free(images);
    free(logits[0]);
    free(logits[1]);
}

/* All arrays that examples may have are sent: numbers, categories, target values and weights. */
static void make_rows(struct fixture *fixture)
{
    struct test_random random = {11};
    make(fixture, OPTIMIZER_ADAM);
    examples_free(&fixture->examples);
    fixture->config.train.loss = LOSS_HUBER;
    fixture->config.train.huber_delta = 50;
    fixture->examples = (struct examples){.inputs = 49, .numbers = 9, .codes = 4, .targets = 5, .is_weighted = true};
    test_rows(&fixture->examples, EXAMPLES, &random);
    test_wanted(&fixture->examples, LOSS_HUBER, &random);
}

TEST(rows_of_a_table_are_trained_on_too)
{
    static const char *const faults[] = {"none", "die train 5", "lose step 12", "die forward 8"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct fixture fixture;
        struct error error;
        make_rows(&fixture);
        start(&fixture, faults[i]);
        train_both(&fixture, 3);
        train_both(&fixture, 6);
        assert_same_state(&fixture);
        float *sums[] = {calloc(fixture.model.float_count, 4), calloc(fixture.model.float_count, 4)};
        compare_gradients(&fixture, sums);
        float logits[2][100 * 5];
        struct engine *both[] = {fixture.gpu, fixture.cpu};
        for (int k = 0; k < 2; k++) {
            assert_true(both[k]->table->forward(both[k], true, &fixture.examples, 30, 100, logits[k], &error));
        }
        assert_memory_equal(logits[0], logits[1], sizeof logits[0]);
        assert_int_equal(strncmp(description(&fixture), "CPU", 3) == 0, i > 0);
        free(sums[0]);
        free(sums[1]);
        end(&fixture);
    }
}

/* Wherever and however it fails: nothing is lost, nothing trained twice. */
TEST(the_cpu_takes_over)
{
    static const char *const faults[] = {"die train 0",   "die train 13", "hang train 13", "lose train 30",
                                         "fail train 25", "die read 14",  "lose read 22",  "die write 14"};
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct fixture fixture;
        make(&fixture, OPTIMIZER_MOMENTUM);
        start(&fixture, faults[i]);
        for (int n = 1; n <= 8; n++) {
            next_hangs = hangs(faults[i]) && n == 5; /* steps 10 to 14 */
            train_both(&fixture, n);
        }
        assert_same_state(&fixture);
        initialise(&fixture, fixture.gpu);
        initialise(&fixture, fixture.cpu);
        train_both(&fixture, 3);
        assert_same_state(&fixture);
        assert_int_equal(strncmp(description(&fixture), "CPU", 3), 0);
        end(&fixture);
    }
}

TEST(without_soft_placement_it_ends)
{
    struct fixture fixture;
    struct error error;
    struct train_result result;
    make(&fixture, OPTIMIZER_SGD);
    fixture.config.train.allow_soft_placement = false;
    start(&fixture, "lose train 3");
    assert_true(fixture.gpu->table->train(fixture.gpu, 3, &result, &error));
    assert_false(fixture.gpu->table->train(fixture.gpu, 3, &result, &error));
    assert_string_equal(error.text, "gpu:0 failed at step 3: the device is lost; set train.allow_soft_placement to "
                                    "continue on the CPU");
    assert_false(fixture.gpu->table->train(fixture.gpu, 3, &result, &error));
    end(&fixture);
}

TEST(a_loss_that_is_not_finite_is_told)
{
    struct fixture fixture;
    struct error error;
    struct train_result result;
    make(&fixture, OPTIMIZER_SGD);
    fixture.config.train.learning_rate = 1e20;
    fixture.config.train.dropout = 0;
    start(&fixture, "none");
    assert_true(fixture.gpu->table->train(fixture.gpu, 50, &result, &error));
    assert_false(result.finite);
    assert_true(isfinite(result.bad_loss) == 0);
    assert_true(result.steps < 50);
    assert_int_equal(fixture.gpu->table->global_step(fixture.gpu), result.steps);
    end(&fixture);
}

TEST(what_is_not_there_is_a_clause)
{
    struct fixture fixture;
    struct error error;
    make(&fixture, OPTIMIZER_SGD);
    fixture.config.train.device_index = 1;
    assert_false(create_gpu(&fixture, "none", &error));
    assert_string_equal(error.text, "there is no gpu:1");
    fixture.config.train.device_index = 0;
    fixture.config.train.gpu_memory_fraction = 0.25;
    assert_false(create_gpu(&fixture, "none", &error));
    assert_string_equal(error.text, "the model needs 500,000 bytes of the device's memory, and may take 250000");
    fixture.gpu = NULL;
    end(&fixture);
}

int main(void)
{
    log_setup(LOG_TEXT, LOG_ERROR);
    program = program_read("reference_process", &program_size);
    if (!program) {
        return 1;
    }
    int failed = check_run(NULL, NULL);
    free(program);
    return failed;
}
