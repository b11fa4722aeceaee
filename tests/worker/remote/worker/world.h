/*
 * The world around a worker: shards, heartbeats, chief, rollouts, data and the clock are the test's own, and tell what
 * they are asked for.
 */
#ifndef TESTS_WORKER_REMOTE_WORKER_WORLD_H
#define TESTS_WORKER_REMOTE_WORKER_WORLD_H

#include "worker/remote/worker.h"

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/cli/command.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "ps/job/job.h"
#include "tests/worker/remote/story.h"
#include "worker/load.h"
#include "worker/evaluation_part.h"
#include "worker/remote/exchange/preprocessing.h"
#include "worker/remote/exchange/validations.h"
#include "worker/remote/own_rows.h"
#include "worker/remote/worker/internal.h"

enum { PIXELS = 6, CLASSES = 3, IMAGES = 30, BATCH = 4, GENERATION = 3 };

/* --- The world around it --- */

static struct world {
    double now_s;
    int signal;
    int64_t step;              /* of the shards */
    struct push_answer answer; /* but for its step */
    bool stands;               /* pushes make no step */
    int answers;               /* of a pipeline */
    int unasked;               /* rounds that are others' */
    double loss;
    enum exchange_result begun, joined, pushed, refreshed, drained, finished, took, asked, agreed, told_again, awaited,
        validated;               /* then well */
    enum chief_hold_result held; /* then well */
    struct updater_record record;
    struct checkpoint_info says; /* the next checkpoint */
    struct job_status job;
    bool over, fenced, is_rolling, changes, cannot_notify, cannot_load, cannot_compute, cannot_stand_by;
    const char *needs_rejoin, *drift;
    enum live_config_end live_end;
    int rows;           /* of the gradient, so far */
    int fails_in_round; /* a step of a round, counted from 1; 0: none */
    int not_finite_at;  /* likewise: of its loss */
    int signal_after;   /* likewise: then a signal comes */
    int over_after;     /* likewise: then the job is over */
    bool cannot_begin_round, cannot_end_round, streams, cannot_draw, cannot_watch, signals_at_load;
    void (*at_pause)(void);
    void (*at_push)(void);
    bool (*given_up)(void *context);
    bool (*asks_to_rejoin)(void *context, uint32_t generation, double since_s, char why[256]);
    bool (*knows)(void *context, const char *digest);
    void *context;
    double hurried_s;
    uint8_t part[4096]; /* what another worker's validation counted */
    size_t part_size;
} world;

static inline enum exchange_result once(enum exchange_result *end, struct error *error)
{
    const enum exchange_result now = *end;
    *end = EXCHANGE_OK;
    return now == EXCHANGE_OK ? now : (error_set(error, "as the test wants"), now);
}

double __wrap_clock_monotonic_s(void);
void __wrap_clock_pause(double until_s);
bool __wrap_restart_stand_by(void);
void __wrap_threads_give_way(void);
int __wrap_threads_available(void);
void __wrap_notify_ready(const char *status);
void __wrap_notify_stopping(void);
void __wrap_notify_restarting(void);

double __wrap_clock_monotonic_s(void)
{
    return world.now_s;
}

void __wrap_clock_pause(double until_s)
{
    world.now_s = until_s > world.now_s ? until_s : world.now_s;
    if (world.at_pause) {
        world.at_pause();
    }
}

bool __wrap_restart_stand_by(void)
{
    tell("stands by\n");
    return !world.cannot_stand_by;
}

void __wrap_threads_give_way(void)
{
    tell("gives way\n");
}

int __wrap_threads_available(void)
{
    return 2;
}

void __wrap_notify_ready(const char *status)
{
    tell("ready: %s\n", status);
}

void __wrap_notify_stopping(void)
{
    tell("stopping\n");
}

void __wrap_notify_restarting(void)
{
    tell("restarting\n");
}

void signals_catch(void)
{
}

int signals_pending(void)
{
    return world.signal;
}

const char *signals_name(int number)
{
    return number == SIGTERM ? "SIGTERM" : "?";
}

int signals_exit_status(int number)
{
    return 128 + number;
}

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
    (void)config;
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
    (void)engine;
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
    (void)engine, (void)averaged, (void)error;
    for (int i = 0; i < count * CLASSES; i++) {
        logits[i] = i % CLASSES == examples->labels[first + i / CLASSES];
    }
    return true;
}

static inline void engine_describe(const struct engine *engine, char *text, size_t size)
{
    (void)engine;
    snprintf(text, size, "a fake");
}

static inline void engine_destroy(struct engine *engine)
{
    (void)engine;
    tell("engine goes\n");
}

static const struct engine_table table = {.name = "fake",
                                          .step = engine_step,
                                          .forward = engine_forward,
                                          .describe = engine_describe,
                                          .destroy = engine_destroy};
static struct engine the_engine = {.table = &table};

void engine_begin(struct engine_startup *startup, const struct engine_options *options)
{
    (void)startup;
    tell("engine begins%s\n", options->like ? " with data" : "");
}

void engine_startup_end(struct engine_startup *startup)
{
    (void)startup;
}

bool engine_choose(struct engine **engine, const struct engine_options *options, struct engine_startup *startup,
                   struct error *error)
{
    (void)startup, (void)error;
    tell("engine of %zu floats, %s, averages %g%s%s\n", options->model->float_count,
         options->config->train.optimizer == OPTIMIZER_SGD ? "no slots" : "slots", options->config->train.ema_decay,
         options->like ? ", like the data" : "", options->gives_way ? ", gives way" : "");
    *engine = &the_engine;
    return true;
}

/* --- Steps of a round --- */

static char the_rounds;
static int steps_of_round;

bool local_steps_create(struct local_steps **steps, const struct model *model, struct engine *engine,
                        const struct config_train *train, struct error *error)
{
    (void)model, (void)train, (void)error;
    assert_ptr_equal(engine, &the_engine);
    *steps = (struct local_steps *)(void *)&the_rounds;
    return true;
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
    (void)steps, (void)train;
    steps_of_round = 0;
    tell("round of step %lld\n", (long long)global_step);
    return !world.cannot_begin_round || error_set(error, "it can't be begun");
}

bool local_steps_take(struct local_steps *steps, const struct batch *batch, struct train_result *result,
                      struct error *error)
{
    (void)steps;
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
    (void)steps;
    tell(sink ? "round ends\n" : "round is given up\n");
    if (sink) {
        const float row[20] = {1};
        const struct gradient_block block = {
            .variable = 0, .row = 0, .rows = 1, .cols = 20, .values = row, .stride = 20};
        sink->block(sink->context, &block);
    }
    return !world.cannot_end_round || error_set(error, "it can't be ended");
}

/* --- Shards --- */

bool push_pull_create(struct push_pull *exchange, const struct push_pull_options *options, struct error *error)
{
    (void)error;
    *exchange = (struct push_pull){.config = options->config, .count = options->config->cluster.ps_hosts.count};
    world.given_up = options->given_up;
    world.asks_to_rejoin = options->needs_rejoin;
    world.context = options->context;
    tell("exchange%s\n", options->writes_model ? ", writes the model" : "");
    return true;
}

void push_pull_destroy(struct push_pull *exchange)
{
    (void)exchange;
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
    (void)error;
    tell("awaits the step after %lld\n", (long long)step);
    exchange->global_step = world.step = step + 1;
    return EXCHANGE_OK;
}

bool push_pull_is_asked(const struct push_pull *exchange)
{
    (void)exchange;
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
    struct error error;
    assert_true(evaluation_create(
        evaluation, &(struct evaluation_options){.train = &train, .outputs = CLASSES, .targets = 0}, &error));
}

enum exchange_result validations_tell(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                      size_t size, struct error *error)
{
    struct evaluation all;
    (void)exchange;
    begin_evaluation(&all);
    assert_true(evaluation_part_add(&all, bytes, size, error));
    tell("validated step %lld, %lld examples, %lld right, score %.2f\n", (long long)own->step, (long long)own->examples,
         (long long)all.correct, own->score);
    evaluation_destroy(&all);
    return once(&world.validated, error);
}

/* Two others found what the chief found; what the first one says of it is damaged on its way, once. */
enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_taker *taker, int *missing, struct error *error)
{
    (void)exchange;
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
    (void)exchange;
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
    return outbox_create(&pipe_line.outbox, &model, (struct outbox_form){DTYPE_FLOAT32, 1}, NULL, error);
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
    (void)pipeline;
    return &pipe_line.outbox;
}

enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error)
{
    (void)pipeline;
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
    (void)pipeline;
    tell("drains\n");
    *answers = world.answers;
    if (*answers > 0) {
        answer_push(pipe_line.exchange, answer);
    }
    return once(&world.drained, error);
}

bool pipeline_load(struct pipeline *pipeline, struct error *error)
{
    (void)pipeline;
    tell("loads the mirror\n");
    return !world.cannot_load || error_set(error, "the engine takes nothing");
}

enum exchange_result preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool *differs,
                                         struct error *error)
{
    (void)exchange, (void)dataset;
    tell("agrees\n");
    *differs = world.agreed == EXCHANGE_FAILED;
    return once(&world.agreed, error);
}

bool own_rows_agree(struct schema **schema, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error)
{
    (void)schema, (void)config, (void)identity, (void)traffic, (void)error;
    tell("agrees on own rows\n");
    return true;
}

enum exchange_result own_rows_tell_again(struct push_pull *exchange, const struct config *config, struct error *error)
{
    (void)exchange, (void)config;
    tell("tells its own rows again\n");
    return once(&world.told_again, error);
}

/* --- Heartbeats --- */

static char the_heartbeat;

bool heartbeat_create(struct heartbeat **heartbeat, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, const char *device, struct error *error)
{
    (void)config, (void)identity, (void)traffic, (void)error;
    tell("heartbeat of %s\n", device);
    *heartbeat = (struct heartbeat *)(void *)&the_heartbeat;
    return true;
}

void heartbeat_destroy(struct heartbeat *heartbeat, const char *message)
{
    if (heartbeat) {
        tell("goodbye: %s\n", message);
    }
}

void heartbeat_set_vitals(struct heartbeat *heartbeat, const struct vitals *vitals)
{
    (void)heartbeat;
    tell("%s at %lld, %lld here, %g/s, loss %g, stale %u\n", member_state_name(vitals->state),
         (long long)vitals->global_step, (long long)vitals->local_step, (double)vitals->steps_per_s,
         (double)vitals->loss, vitals->staleness);
}

void heartbeat_set_message(struct heartbeat *heartbeat, const char *message)
{
    (void)heartbeat;
    tell("says: %s\n", message);
}

void heartbeat_wake(struct heartbeat *heartbeat)
{
    (void)heartbeat;
    world.hurried_s = world.now_s;
}

bool heartbeat_needs_rejoin(struct heartbeat *heartbeat, uint32_t generation, double since_s, char why[256])
{
    (void)heartbeat;
    assert_int_equal(generation, GENERATION);
    assert_true(since_s > 0 && since_s <= world.now_s);
    snprintf(why, 256, "%s", world.needs_rejoin ? world.needs_rejoin : "");
    return world.needs_rejoin;
}

void heartbeat_job_status(struct heartbeat *heartbeat, struct job_status *job)
{
    (void)heartbeat;
    *job = world.job;
}

bool heartbeat_is_over(struct heartbeat *heartbeat)
{
    (void)heartbeat;
    return world.over || world.fenced;
}

bool heartbeat_is_fenced(struct heartbeat *heartbeat)
{
    (void)heartbeat;
    return world.fenced;
}

/* --- The chief --- */

static char the_chief;
static struct checkpoint_info held_record;

bool chief_create(struct chief **chief, const struct chief_options *options, struct error *error)
{
    (void)error;
    assert_ptr_equal(options->given_up, world.given_up);
    assert_ptr_equal(options->context, world.context);
    assert_ptr_equal(options->engine, &the_engine);
    tell("chief, to step %lld\n", (long long)options->plan->last_step);
    *chief = (struct chief *)(void *)&the_chief;
    return true;
}

void chief_destroy(struct chief *chief)
{
    if (chief) {
        tell("chief goes\n");
    }
}

enum exchange_result chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    (void)chief;
    *start = (struct chief_start){.global_step = world.step, .restored_from = "a checkpoint", .record = world.says};
    tell("chief begins\n");
    return once(&world.begun, error);
}

void chief_note_step(struct chief *chief, int64_t global_step)
{
    (void)chief;
    tell("notes %lld\n", (long long)global_step);
}

enum chief_hold_result chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                                  struct error *error)
{
    (void)chief;
    *global_step = world.step;
    *record = &held_record;
    tell("holds\n");
    const enum chief_hold_result held = world.held;
    world.held = CHIEF_HELD;
    error_set(error, "as the test wants");
    return held;
}

void chief_release(struct chief *chief, bool is_best)
{
    (void)chief;
    tell("releases%s\n", is_best ? " the best" : "");
}

enum exchange_result chief_save_last(struct chief *chief, int64_t *global_step, struct error *error)
{
    (void)chief;
    *global_step = world.step;
    tell("chief saves\n");
    return once(&world.finished, error);
}

enum exchange_result chief_finish(struct chief *chief, int64_t *global_step, struct error *error)
{
    (void)chief;
    *global_step = world.step;
    tell("chief finishes the job\n");
    return once(&world.finished, error);
}

void chief_retime(struct chief *chief, const struct config_output *output, const struct plan *plan)
{
    (void)chief, (void)output;
    tell("retimed to %lld\n", (long long)plan->last_step);
}

bool chief_end_job(struct chief *chief, bool failed, double test_accuracy, const char *why, struct error *error)
{
    (void)chief;
    tell("job %s, %g: %s\n", failed ? "failed" : "done", test_accuracy, why ? why : "");
    return !world.cannot_notify || error_set(error, "ps 1 is gone");
}

void chief_record(struct chief *chief, struct updater_record *record)
{
    (void)chief;
    *record = world.record;
}

/* --- Rollouts --- */

static char the_live_config;

void live_config_hold(struct traffic *traffic, const struct config *config)
{
    (void)traffic, (void)config;
    tell("holds links\n");
}

bool live_config_create(struct live_config **live, const struct config *config, const struct config_model *model,
                        struct identity *identity, struct chief *chief, struct traffic *traffic, struct error *error)
{
    (void)config, (void)model, (void)identity, (void)traffic, (void)error;
    tell("rollouts%s\n", chief ? " with a chief" : "");
    *live = (struct live_config *)(void *)&the_live_config;
    return true;
}

void live_config_destroy(struct live_config *live)
{
    if (live) {
        tell("rollouts go\n");
    }
}

bool live_config_look(struct live_config *live, struct config *config, int64_t global_step, float loss, bool finite)
{
    (void)live;
    tell("looks at %lld, loss %g%s\n", (long long)global_step, (double)loss, finite ? "" : ", not finite");
    if (world.changes) {
        world.changes = false;
        config->train.train_steps = 77;
        return true;
    }
    return false;
}

void live_config_note_joining(struct live_config *live)
{
    (void)live;
    tell("takes no part\n");
}

void live_config_note_joined(struct live_config *live)
{
    (void)live;
    tell("takes part\n");
}

enum live_config_end live_config_end(struct live_config *live)
{
    return live ? world.live_end : LIVE_STAYS;
}

void live_config_drift(struct live_config *live, char message[256])
{
    (void)live;
    snprintf(message, 256, "%s", world.drift ? world.drift : "");
}

void live_config_show(struct live_config *live, struct board_rollout *shown)
{
    (void)live;
    *shown = (struct board_rollout){0};
}

bool live_config_knows(struct live_config *live, const char *digest)
{
    (void)live;
    return strcmp(digest, "known") == 0;
}

bool live_config_is_rolling(struct live_config *live)
{
    (void)live;
    return world.is_rolling;
}

/* --- Data by the chief --- */

static char the_server, the_fetcher;
static struct examples fed;

bool data_server_create(struct data_server **server, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error)
{
    (void)config, (void)identity, (void)error;
    tell("serves %d images\n", dataset->train.count);
    assert_true(knows(context, "known"));
    assert_false(knows(context, "other"));
    *server = (struct data_server *)(void *)&the_server;
    return true;
}

void data_server_destroy(struct data_server *server)
{
    if (server) {
        tell("data server goes\n");
    }
}

bool batch_fetcher_create(struct batch_fetcher **fetcher, const struct batch_fetcher_options *options,
                          struct error *error)
{
    (void)error;
    assert_ptr_equal(options->given_up, world.given_up);
    assert_ptr_equal(options->context, world.context);
    *fetcher = (struct batch_fetcher *)(void *)&the_fetcher;
    tell("fetcher\n");
    return true;
}

void batch_fetcher_destroy(struct batch_fetcher *fetcher)
{
    if (fetcher) {
        tell("fetcher goes\n");
    }
}

enum exchange_result batch_fetcher_ask(struct batch_fetcher *fetcher, struct batch_fetcher_facts *facts,
                                       struct error *error)
{
    (void)fetcher;
    *facts = (struct batch_fetcher_facts){.train = 44, .validation = 11, .description = "from afar"};
    tell("asks for data\n");
    return once(&world.asked, error);
}

enum exchange_result batch_fetcher_take(struct batch_fetcher *fetcher, int64_t number, struct batch *batch,
                                        struct error *error)
{
    static int32_t indexes[BATCH];
    (void)fetcher;
    tell("takes batch %lld\n", (long long)number);
    *batch = (struct batch){.examples = &fed, .indexes = indexes, .count = BATCH};
    return once(&world.took, error);
}

/* --- One worker --- */

struct bench {
    struct config config;
    struct remote_worker worker;
    struct updater_start start;
};

static inline void load(struct bench *bench, const char *const *flags)
{
    struct config_setting settings[24] = {{"insecure", "true"},
                                          {"layers", "6,20,3"},
                                          {"ps_hosts", "127.0.0.1:1,127.0.0.1:2"},
                                          {"worker_hosts", "127.0.0.1:3,127.0.0.1:4,127.0.0.1:5"},
                                          {"job_name", "worker"},
                                          {"train_dir", ""},
                                          {"batch_size", "4"},
                                          {"validation_size", "0"},
                                          {"log_steps", "0"},
                                          {"ema_decay", "0.5"},
                                          {"optimizer", "adam"}};
    int count = 11;
    struct error error;
    memset(bench, 0, sizeof *bench);
    for (int i = 0; flags && flags[i]; i += 2) {
        settings[count++] = (struct config_setting){flags[i], flags[i + 1]};
    }
    if (!config_load(&bench->config, NULL, settings, count, &error)) {
        fail_msg("%s", error.text);
    }
    memset(&world, 0, sizeof world);
    world.now_s = 1000;
    world.loss = 0.5;
    world.job.test_accuracy = NAN;
    world.record.last_checkpoint_step = -1;
    told();
    listen_in();
}

/* Its parts as remote_worker_run makes them; opened. */
static inline bool begin(struct bench *bench, const char *const *flags, struct error *error)
{
    load(bench, flags);
    struct remote_worker *worker = &bench->worker;
    *worker = (struct remote_worker){.updater = {.table = &remote_updater_table},
                                     .training = {.updater = &worker->updater, .begun_s = world.now_s},
                                     .launched = &bench->config,
                                     .config = bench->config,
                                     .is_chief = bench->config.cluster.task_index == 0,
                                     .last_loss = NAN};
    return worker_open(worker, error);
}

static inline void end(struct bench *bench)
{
    worker_close(&bench->worker, "bye");
    config_free(&bench->config);
    heard();
}

static inline bool join(struct bench *bench)
{
    return remote_updater_table.join(&bench->worker.updater, &bench->start);
}

static inline bool step(struct bench *bench)
{
    return remote_updater_table.step(&bench->worker.updater);
}

/* One that has joined at this step. */
static inline void begin_joined(struct bench *bench, const char *const *flags, int64_t at)
{
    struct error error;
    if (!begin(bench, flags, &error)) {
        fail_msg("%s", error.text);
    }
    world.step = at;
    assert_true(join(bench));
    told();
}

static const char *const __attribute__((unused)) chief_flags[] = {"task_index", "0", NULL};
static const char *const __attribute__((unused)) other_flags[] = {"task_index", "2", NULL};
static const char *const __attribute__((unused)) sync_flags[] = {"task_index", "0", "issync", "true", NULL};

#endif
