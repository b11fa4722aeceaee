/* The shards of a worker's model: pushes, the pipeline, what all agree on, and validations of all. */
#ifndef TESTS_WORKER_REMOTE_WORKER_SHARDS_H
#define TESTS_WORKER_REMOTE_WORKER_SHARDS_H

#include "tests/worker/remote/worker/computing.h"
#include "tests/worker/remote/worker/world.h"
#include "worker/evaluation/validation.h"
#include "worker/remote/exchange/requests.h"
#include "worker/remote/own_rows.h"

/* --- Shards --- */

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error)
{
    *exchange = (struct push_pull){.config = options->config, .count = options->config->cluster.ps_hosts.count};
    world.given_up = options->given_up;
    world.asks_to_rejoin = options->needs_rejoin;
    world.context = options->context;
    tell("exchange%s\n", options->writes_model ? ", writes the model" : "");
    return true;
}

void push_pull_destroy(struct push_pull *exchange)
{
    tell("exchange goes\n");
}

enum exchange_result push_pull_join(struct push_pull *exchange, struct error *error)
{
    exchange->generation = GENERATION;
    exchange->global_step = world.step;
    exchange->joined_s = world.now_s;
    tell("joins\n");
    return once(&world.joined, error);
}

enum exchange_result push_pull_refresh(struct push_pull *exchange, struct error *error)
{
    exchange->global_step = world.step;
    tell("refreshes\n");
    return once(&world.refreshed, error);
}

enum exchange_result push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error)
{
    tell("awaits the step after %lld\n", (long long)step);
    exchange->global_step = world.step = step + 1;
    return EXCHANGE_OK;
}

bool push_pull_is_asked(const struct push_pull *exchange)
{
    return world.unasked == 0;
}

enum exchange_result push_pull_await_round(struct push_pull *exchange, int64_t after_step, struct error *error)
{
    tell("waits to be asked after step %lld\n", (long long)after_step);
    exchange->global_step = world.step += world.unasked > 0;
    world.unasked -= world.unasked > 0;
    return once(&world.awaited, error);
}

/* --- Validations of all --- */

static inline void begin_evaluation(struct evaluation *evaluation)
{
    static const struct config_train train;
    evaluation_create(evaluation, &(struct evaluation_options){.train = &train, .outputs = CLASSES, .targets = 0});
}

enum exchange_result validations_report(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                        size_t size, struct error *error)
{
    struct evaluation all;
    begin_evaluation(&all);
    assert_true(evaluation_part_add(&all, bytes, size, error));
    tell("validated step %lld, %lld examples, %lld right, score %.2f\n", (long long)own->step, (long long)own->examples,
         (long long)all.correct, own->score);
    evaluation_destroy(&all);
    return once(&world.validated, error);
}

/* Two others found what the chief found; what the first one says of it is damaged on its way, once. */
enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_receiver *taker, int *missing, struct error *error)
{
    tell("asks for validations of step %lld for %g s\n", (long long)own->step, wait_s);
    *missing = 1;
    if (world.validated != EXCHANGE_OK) {
        return once(&world.validated, error);
    }
    for (int attempt = 0; attempt < 2; attempt++) { /* the connection broke after the first one */
        taker->begin(taker->context);
        taker->take(taker->context, 1, own->examples, 0.25, world.part, world.part_size);
    }
    taker->take(taker->context, 2, own->examples, 0.5, world.part, world.part_size / 2);
    return EXCHANGE_OK;
}

/* What is in the gradient: rows of the first variable. */
static inline void tell_push(const struct outbox *outbox, const struct push_note *note)
{
    const struct span all = {0, outbox->model->float_count};
    struct outbox_cursor cursor = outbox_open(outbox, &all, 1);
    struct range range;
    const void *floats;
    size_t bytes;
    char rows[128] = "";
    while (outbox_next(&cursor, &range, &floats, &bytes)) {
        snprintf(rows + strlen(rows), sizeof rows - strlen(rows), " %u at %llu", range.count,
                 (unsigned long long)range.first);
    }
    tell("pushes step %lld, %lld here, %u examples, loss %g:%s\n", (long long)note->base_step,
         (long long)note->local_step, note->examples, (double)note->loss, rows[0] ? rows : " nothing");
}

static inline void answer_push(struct push_pull *exchange, struct push_answer *answer)
{
    if (world.at_push) {
        world.at_push();
    }
    world.now_s += 0.125;
    world.step += !world.stands;
    exchange->global_step = world.step;
    *answer = world.answer;
    answer->global_step = world.step;
}

void push_pull_pack(const struct push_pull *exchange, struct outbox *outbox)
{
    const struct span all = {0, outbox->model->float_count};
    outbox_pack(outbox, &all, 1);
    outbox_packed(outbox);
}

enum exchange_result push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
                                        const struct push_note *note, struct push_answer *answer, struct error *error)
{
    tell_push(outbox, note);
    answer_push(exchange, answer);
    return once(&world.pushed, error);
}

static struct {
    struct push_pull *exchange;
    struct outbox outbox;
} pipe_line;

bool pipeline_create(struct pipeline **pipeline, struct push_pull *exchange, struct engine *engine, int depth,
                     struct error *error)
{
    assert_ptr_equal(engine, &the_engine);
    tell("pipeline of %d\n", depth);
    pipe_line.exchange = exchange;
    static struct model model;
    model_layout(&model, &exchange->config->model);
    *pipeline = (struct pipeline *)(void *)&pipe_line;
    outbox_create(&pipe_line.outbox, &model, (struct outbox_form){DTYPE_FLOAT32, 1}, NULL);
    return true;
}

void pipeline_destroy(struct pipeline *pipeline)
{
    if (pipeline) {
        tell("pipeline goes\n");
        outbox_destroy(&pipe_line.outbox);
    }
}

struct outbox *pipeline_outbox(struct pipeline *pipeline)
{
    return &pipe_line.outbox;
}

enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error)
{
    tell_push(&pipe_line.outbox, note);
    *answers = world.answers;
    if (*answers > 0) {
        answer_push(pipe_line.exchange, answer);
    }
    return once(&world.pushed, error);
}

enum exchange_result pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
                                    struct error *error)
{
    tell("drains\n");
    *answers = world.answers;
    if (*answers > 0) {
        answer_push(pipe_line.exchange, answer);
    }
    return once(&world.drained, error);
}

bool pipeline_load(struct pipeline *pipeline, struct error *error)
{
    tell("loads the mirror\n");
    return !world.cannot_load || error_set(error, "the engine takes nothing");
}

enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error)
{
    tell("agrees\n");
    *differs = world.agreed == EXCHANGE_FAILED;
    return once(&world.agreed, error);
}

bool own_rows_agree(struct schema **schema, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error)
{
    tell("agrees on own rows\n");
    return true;
}

enum exchange_result own_rows_resend(struct push_pull *exchange, const struct config *config, struct error *error)
{
    tell("tells its own rows again\n");
    return once(&world.told_again, error);
}

#endif
