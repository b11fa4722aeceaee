/*
 * The workers' computations: they learn nothing, but gradients show in the parameters what was applied, how often and
 * in which order. In every row of the weights, column w % columns counts worker w's gradients, so that a row's sum is
 * the global step; biases mix parameters, worker and step, so that their bits depend on every step and its order.
 */
#include "tests/simulate/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "ps/store/codec.h"
#include "tests/simulate/exchanges.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"
#include "worker/engine.h"
#include "worker/initial.h"

/* A worker that is told to stop does so after the current step, and is not waited for much longer. */
static const double MOST_STEP_S = 48;

struct odd_engine {
    struct engine base;
    const struct model *model;
    int worker;
    float *parameters;
    double slowness_s;
};

float engine_mix(float parameter, int worker, int draw, int col)
{
    /* With int8 steps workers are sent something else than the parameters; it only matters that all have the same. */
    const float known = setup.int8 && setup.synchronous ? 0 : parameter;
    const float seen = setup.bfloat16 ? bfloat16_widen(bfloat16_round(known)) : known;
    const float mixed = 0.001f * seen + 0.1f * (float)((worker * 7 + draw * 3 + col * 5) % 11) / 7.0f;
    if (setup.int8) { /* multiples of a scale that one of the columns determines */
        return col == 0 ? 1.0f : 1.0f / 127.0f * fminf(rintf(127.0f * mixed), 127.0f);
    }
    /* Without rounding there is no residual for the next push, so that a single process can compute the same. */
    return setup.bfloat16 ? bfloat16_widen(bfloat16_round(mixed)) : mixed;
}

static bool engine_step(struct engine *base, const struct batch *batch, const struct gradient_sink *sink,
                        struct train_result *result, struct error *error)
{
    struct odd_engine *engine = (struct odd_engine *)base;
    const struct variable *weights = &engine->model->variables[0], *biases = &engine->model->variables[1];
    float counts[16 * 16] = {0}, mixed[16];
    thread_block(engine, world.now_s + engine->slowness_s * (0.2 + chance_real()));
    *result = (struct train_result){.steps = 1, .finite = true, .images = batch->count};
    if (setup.diverged) {
        result->finite = false;
        result->bad_loss = NAN;
        return true;
    }
    exchanges_see(engine->worker, batch->step, engine->parameters);
    /* A push holds the sum of the local steps: its chance must not grow with them, or ten in a row end the run. */
    const bool is_bad = chance_of(setup.not_finite / setup.local_steps);
    const int bad_row = is_bad ? (int)chance(2 * (uint64_t)weights->rows) : -1; /* one, of a single shard; or all */
    const bool bad = bad_row >= weights->rows;
    for (int row = 0; row < weights->rows; row++) {
        counts[row * 16 + engine->worker % weights->cols] = bad || row == bad_row ? NAN : -1.0f;
    }
    for (int k = 0; k < biases->cols; k++) {
        float now = engine->parameters[biases->offset + (size_t)k];
        mixed[k] = bad ? NAN : engine_mix(now, engine->worker, batch->indexes[0], k);
    }
    sink->block(sink->context,
                &(struct gradient_block){
                    .variable = 0, .rows = weights->rows, .cols = weights->cols, .values = counts, .stride = 16});
    sink->block(sink->context, &(struct gradient_block){
                                   .variable = 1, .rows = 1, .cols = biases->cols, .values = mixed, .stride = 16});
    return true;
}

static bool engine_forward(struct engine *base, bool averaged, const struct examples *examples, int first, int count,
                           float *logits, struct error *error)
{
    const struct odd_engine *engine = (struct odd_engine *)base;
    const size_t classes = (size_t)engine->model->variables[1].cols;
    float local_steps = 0; /* the steps that the model has seen, on which the right answer depends */
    for (int col = 0; col < engine->model->variables[0].cols; col++) {
        local_steps += engine->parameters[engine->model->variables[0].offset + (size_t)col];
    }
    const int64_t step = lroundf(local_steps / (float)setup.local_steps);
    memset(logits, 0, (size_t)count * classes * sizeof *logits);
    for (int i = 0; i < count; i++) {
        logits[(size_t)i * classes + !engine_is_right(engine->worker, step, first + i)] = 1;
    }
    return true;
}

static bool engine_write(struct engine *base, enum store_vector vector, size_t first, size_t count, const float *values,
                         struct error *error)
{
    if (vector == STORE_PARAMETERS) {
        memcpy(((struct odd_engine *)base)->parameters + first, values, count * sizeof *values);
    }
    return true;
}

static bool engine_read(struct engine *base, enum store_vector vector, size_t first, size_t count, float *values,
                        struct error *error)
{
    memcpy(values, ((struct odd_engine *)base)->parameters + first, count * sizeof *values);
    return true;
}

static float *engine_parameters(struct engine *base)
{
    return ((struct odd_engine *)base)->parameters;
}

static void engine_describe(const struct engine *base, char *text, size_t size)
{
    snprintf(text, size, "simulated");
}

static void engine_destroy(struct engine *base)
{
    free(((struct odd_engine *)base)->parameters);
    free(base);
}

static const struct engine_table table = {
    .name = "simulated",
    .step = engine_step,
    .forward = engine_forward,
    .read = engine_read,
    .write = engine_write,
    .parameters = engine_parameters,
    .describe = engine_describe,
    .destroy = engine_destroy,
};

void engine_begin(struct engine_startup *startup, const struct engine_options *options)
{
}

void engine_startup_end(struct engine_startup *startup)
{
}

bool engine_choose(struct engine **out, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error)
{
    struct odd_engine *engine = calloc(1, sizeof *engine);
    float *parameters = calloc(options->model->float_count, sizeof(float));
    if (!engine || !parameters) {
        free(engine);
        free(parameters);
        return error_set(error, "out of memory for the engine");
    }
    engine->base.table = &table;
    engine->model = options->model;
    engine->worker = options->config->cluster.task_index;
    engine->parameters = parameters;
    engine->slowness_s = fmin(setup.slowness_s[engine->worker] * programs_slowness(world.here), MOST_STEP_S);
    *out = &engine->base;
    return true;
}

bool cpu_engine_create(struct engine **engine, const struct engine_options *options, struct error *error)
{
    return engine_choose(engine, options, NULL, error);
}

static bool make_examples(struct examples *examples, int count, int pixels, struct error *error)
{
    *examples = (struct examples){.images = calloc((size_t)count * (size_t)pixels + 64, 1),
                                  .labels = calloc((size_t)count, sizeof(int32_t)),
                                  .count = count,
                                  .height = 1,
                                  .width = pixels,
                                  .classes = 2};
    return (examples->images && examples->labels) || error_set(error, "out of memory for examples");
}

bool __real_load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error);
bool __wrap_load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error);

/* Tables are read from the machine's disk, by the program's own code; images are all zeros. */
bool __wrap_load_data(struct dataset *dataset, struct examples *test, struct config *config, struct error *error)
{
    if (setup.has_table) {
        return __real_load_data(dataset, test, config, error);
    }
    memset(dataset, 0, sizeof *dataset);
    const int count = setup_examples(config->cluster.task_index), pixels = config->model.layers[0];
    bool done = make_examples(&dataset->train, count, pixels, error);
    if (done) {
        dataset->validation = dataset->train;
        dataset->validation.count = config->output.validate_steps > 0 ? setup_held_out(config->cluster.task_index) : 0;
    } else {
        examples_free(&dataset->train);
    }
    if (done && test && !make_examples(test, count, pixels, error)) {
        examples_free(test);
        dataset_free(dataset);
        done = false;
    }
    return done;
}
