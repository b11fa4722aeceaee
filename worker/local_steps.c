/*
 * Updates are made where the engine has its parameters, if those can be written in place; otherwise in a copy, which it
 * gets after every step.
 */
#include "worker/local_steps.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

struct local_steps {
    const struct model *model;
    struct engine *engine;
    struct config_train train; /* of the round: the store's settings */
    struct store store;
    bool in_place; /* the store's parameters are the engine's */
    float *begun;  /* [float_count]: the parameters that the round began with */
    float pull;    /* towards these, in each step */
};

/* The rate is the round's, without counting steps; averages are kept of the shared model. */
static void take_terms(struct local_steps *steps, const struct config_train *train, int64_t global_step)
{
    steps->train = *train;
    steps->train.learning_rate = schedule_learning_rate(train, global_step);
    steps->train.retries = 0;
    steps->train.lr_decay = 1.0;
    steps->train.lr_warmup_steps = steps->train.lr_cosine_steps = 0;
    steps->train.ema_decay = 0.0;
    steps->pull = (float)(steps->train.learning_rate * train->proximal_mu);
}

struct local_steps *local_steps_create(const struct model *model, struct engine *engine,
                                       const struct config_train *train)
{
    struct local_steps *steps = must_zero(1, sizeof *steps, "the steps of a round");
    float *begun = must_zero(model->float_count, sizeof *begun, "the steps of a round");
    *steps = (struct local_steps){.model = model, .engine = engine, .train = *train, .begun = begun};
    steps->train.ema_decay = 0.0;
    store_create(&steps->store, model, &steps->train);
    float *parameters = engine_parameters_in_place(engine);
    if (parameters) {
        steps->in_place = true;
        steps->store.vectors[STORE_PARAMETERS] = parameters;
    }
    return steps;
}

void local_steps_destroy(struct local_steps *steps)
{
    if (steps) {
        store_destroy(&steps->store);
        free(steps->begun);
        free(steps);
    }
}

static bool read_parameters(struct local_steps *steps, struct error *error)
{
    struct engine *engine = steps->engine;
    return steps->in_place || engine->table->read(engine, STORE_PARAMETERS, 0, steps->model->float_count,
                                                  steps->store.vectors[STORE_PARAMETERS], error);
}

static bool write_parameters(struct local_steps *steps, struct error *error)
{
    struct engine *engine = steps->engine;
    return steps->in_place || engine->table->write(engine, STORE_PARAMETERS, 0, steps->model->float_count,
                                                   steps->store.vectors[STORE_PARAMETERS], error);
}

bool local_steps_begin(struct local_steps *steps, const struct config_train *train, int64_t global_step,
                       struct error *error)
{
    take_terms(steps, train, global_step);
    store_forget(&steps->store);
    if (!read_parameters(steps, error)) {
        return false;
    }
    memcpy(steps->begun, steps->store.vectors[STORE_PARAMETERS], steps->model->float_count * sizeof *steps->begun);
    return true;
}

static void pull_rows(const struct local_steps *steps, const struct gradient_block *block)
{
    const struct variable *variable = &steps->model->variables[block->variable];
    for (int row = block->row; row < block->row + block->rows; row++) {
        const size_t first = variable_at(variable, row, block->col);
        const float *restrict begun = steps->begun + first;
        float *restrict now = steps->store.vectors[STORE_PARAMETERS] + first;
        for (int col = 0; col < block->cols; col++) {
            now[col] -= steps->pull * (now[col] - begun[col]);
        }
    }
}

/* The pull and the gradient both use the parameters before this step. */
static void pull_and_apply(void *context, const struct gradient_block *block)
{
    struct local_steps *steps = context;
    pull_rows(steps, block);
    store_apply(&steps->store, block);
}

bool local_steps_take(struct local_steps *steps, const struct batch *batch, struct train_result *result,
                      struct error *error)
{
    struct engine *engine = steps->engine;
    const struct gradient_sink sink = steps->pull > 0.0f
                                          ? (struct gradient_sink){.block = pull_and_apply, .context = steps}
                                          : store_sink(&steps->store);
    struct train_result done;
    store_begin_step(&steps->store);
    if (!engine->table->step(engine, batch, &sink, &done, error)) {
        return false;
    }
    if (!done.finite) {
        result->finite = false;
        result->bad_loss = done.bad_loss;
        return true;
    }
    store_end_step(&steps->store);
    train_result_add(result, &done);
    return write_parameters(steps, error);
}

bool local_steps_end(struct local_steps *steps, const struct gradient_sink *sink, struct error *error)
{
    const float *restrict begun = steps->begun;
    float *restrict now = steps->store.vectors[STORE_PARAMETERS];
    if (sink) {
        for (size_t i = 0; i < steps->model->float_count; i++) {
            now[i] = begun[i] - now[i];
        }
        gradient_feed(steps->model, now, sink);
    }
    memcpy(now, begun, steps->model->float_count * sizeof *now);
    return write_parameters(steps, error);
}
