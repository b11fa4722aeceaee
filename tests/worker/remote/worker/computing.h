/* A worker's data, its engine, and the steps that it takes by itself in a round. */
#ifndef TESTS_WORKER_REMOTE_WORKER_COMPUTING_H
#define TESTS_WORKER_REMOTE_WORKER_COMPUTING_H

#include "tests/worker/remote/worker/world.h"
#include "worker/initial.h"

/* --- Data and engine --- */

static inline void make_examples(struct examples *examples, int count)
{
    *examples = (struct examples){.count = count, .height = 2, .width = 3, .classes = CLASSES};
    examples->images = calloc((size_t)count, PIXELS);
    examples->labels = calloc((size_t)count, sizeof *examples->labels);
    for (int i = 0; i < count; i++) {
        examples->labels[i] = i % CLASSES;
        examples->images[i * PIXELS] = (uint8_t)i;
    }
}

bool load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error)
{
    tell("loads data%s\n", test ? " and test" : "");
    world.signal = world.signals_at_load ? SIGTERM : world.signal;
    dataset->streaming = world.streams ? (struct streaming *)(void *)&world : NULL;
    make_examples(&dataset->validation, IMAGES); /* the memory of both */
    dataset->train = dataset->validation;
    dataset->validation.count = 0;
    if (test) {
        make_examples(test, IMAGES);
    }
    return !world.cannot_load || error_set(error, "no data");
}

static inline bool engine_step(struct engine *engine, const struct batch *batch, const struct gradient_sink *sink,
                               struct train_result *result, struct error *error)
{
    float row[32] = {1};
    const struct gradient_block block = {
        .variable = 0, .row = world.rows++ % PIXELS, .rows = 1, .cols = 20, .values = row, .stride = 20};
    tell("computes %d of task %u, step %lld, from %d\n", batch->count, batch->task, (long long)batch->step,
         batch->examples->images ? batch->examples->images[0] : -1);
    sink->block(sink->context, &block);
    *result = (struct train_result){.steps = 1,
                                    .images = batch->count,
                                    .loss_sum = world.loss,
                                    .last_loss = world.loss,
                                    .finite = isfinite(world.loss),
                                    .bad_loss = world.loss};
    return !world.cannot_compute || error_set(error, "the device fails");
}

static inline bool engine_forward(struct engine *engine, bool averaged, const struct examples *examples, int first,
                                  int count, float *logits, struct error *error)
{
    for (int i = 0; i < count * CLASSES; i++) {
        logits[i] = i % CLASSES == examples->labels[first + i / CLASSES];
    }
    return true;
}

static inline bool engine_read(struct engine *engine, enum store_vector vector, size_t first, size_t count,
                               float *values, struct error *error)
{
    memset(values, 0, count * sizeof *values);
    return true;
}

static inline void engine_describe(const struct engine *engine, char *text, size_t size)
{
    snprintf(text, size, "a fake");
}

static inline void engine_destroy(struct engine *engine)
{
    tell("engine goes\n");
}

static const struct engine_table table = {.name = "fake",
                                          .step = engine_step,
                                          .forward = engine_forward,
                                          .read = engine_read,
                                          .describe = engine_describe,
                                          .destroy = engine_destroy};
static struct engine the_engine = {.table = &table};

void engine_begin(struct engine_startup *startup, const struct engine_options *options)
{
    tell("engine begins%s\n", options->like ? " with data" : "");
}

void engine_startup_end(struct engine_startup *startup)
{
}

bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error)
{
    tell("engine of %zu floats, %s, averages %g%s%s\n", options->model->float_count,
         options->config->train.optimizer == OPTIMIZER_SGD ? "no slots" : "slots", options->config->train.ema_decay,
         options->like ? ", like the data" : "", options->low_priority ? ", gives way" : "");
    *engine = &the_engine;
    return true;
}

/* --- Steps of a round --- */

static char the_rounds;
static int steps_of_round;

struct local_steps *local_steps_create(const struct model *model, struct engine *engine,
                                       const struct config_train *train)
{
    assert_ptr_equal(engine, &the_engine);
    return (struct local_steps *)(void *)&the_rounds;
}

void local_steps_destroy(struct local_steps *steps)
{
    if (steps) {
        tell("rounds go\n");
    }
}

bool local_steps_begin(struct local_steps *steps, const struct config_train *train, int64_t global_step,
                       struct error *error)
{
    steps_of_round = 0;
    tell("round of step %lld\n", (long long)global_step);
    return !world.cannot_begin_round || error_set(error, "it can't be begun");
}

bool local_steps_take(struct local_steps *steps, const struct batch *batch, struct train_result *result,
                      struct error *error)
{
    steps_of_round++;
    tell("%d of batch %lld\n", batch->count, (long long)batch->step);
    result->finite = steps_of_round != world.not_finite_at;
    result->bad_loss = NAN;
    if (result->finite) {
        result->steps++;
        result->images += batch->count;
        result->loss_sum += steps_of_round;
        result->last_loss = steps_of_round;
    }
    world.signal = steps_of_round == world.signal_after ? SIGTERM : world.signal;
    world.over = world.over || steps_of_round == world.over_after;
    return steps_of_round != world.fails_in_round || error_set(error, "the device fails");
}

bool local_steps_end(struct local_steps *steps, const struct gradient_sink *sink, struct error *error)
{
    tell(sink ? "round ends\n" : "round is given up\n");
    if (sink) {
        const float row[20] = {1};
        const struct gradient_block block = {
            .variable = 0, .row = 0, .rows = 1, .cols = 20, .values = row, .stride = 20};
        sink->block(sink->context, &block);
    }
    return !world.cannot_end_round || error_set(error, "it can't be ended");
}

#endif
