/*
 * The role of a worker without a network: shards, heartbeats, chief, rollouts and the clock are the test's own, and
 * tell what they are asked for. What it is made of, in which order it joins, steps and takes leave, what it says of
 * itself meanwhile, and what each answer makes it do.
 */
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
    enum push_pull_end begun, joined, pushed, refreshed, drained, held, finished, took, asked, agreed, told_again,
        awaited, validated; /* then well */
    struct chief_record record;
    struct job_news news;
    bool over, fenced, is_rolling, changes, told_all, cannot_load, cannot_compute, cannot_stand_by;
    const char *needs_rejoin, *drift;
    enum live_config_end live_end;
    int rows; /* of the gradient, so far */
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

static enum push_pull_end once(enum push_pull_end *end, struct error *error)
{
    const enum push_pull_end now = *end;
    *end = PUSH_PULL_DONE;
    return now == PUSH_PULL_DONE ? now : (error_set(error, "as the test wants"), now);
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

static void make_examples(struct examples *examples, int count)
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
    make_examples(&dataset->validation, IMAGES); /* the memory of both */
    dataset->train = dataset->validation;
    dataset->validation.count = 0;
    if (test) {
        make_examples(test, IMAGES);
    }
    return !world.cannot_load || error_set(error, "no data");
}

static bool engine_step(struct engine *engine, const struct batch *batch, const struct gradient_sink *sink,
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

static bool engine_forward(struct engine *engine, bool averaged, const struct examples *examples, int first, int count,
                           float *logits, struct error *error)
{
    (void)engine, (void)averaged, (void)error;
    for (int i = 0; i < count * CLASSES; i++) {
        logits[i] = i % CLASSES == examples->labels[first + i / CLASSES];
    }
    return true;
}

static void engine_describe(const struct engine *engine, char *text, size_t size)
{
    (void)engine;
    snprintf(text, size, "a fake");
}

static void engine_destroy(struct engine *engine)
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

enum push_pull_end push_pull_join(struct push_pull *exchange, struct error *error)
{
    exchange->generation = GENERATION;
    exchange->global_step = world.step;
    exchange->joined_s = world.now_s;
    tell("joins\n");
    return once(&world.joined, error);
}

enum push_pull_end push_pull_refresh(struct push_pull *exchange, struct error *error)
{
    exchange->global_step = world.step;
    tell("refreshes\n");
    return once(&world.refreshed, error);
}

enum push_pull_end push_pull_await_step(struct push_pull *exchange, int64_t step, struct error *error)
{
    (void)error;
    tell("awaits the step after %lld\n", (long long)step);
    exchange->global_step = world.step = step + 1;
    return PUSH_PULL_DONE;
}

bool push_pull_is_asked(const struct push_pull *exchange)
{
    (void)exchange;
    return world.unasked == 0;
}

enum push_pull_end push_pull_await_round(struct push_pull *exchange, int64_t after_step, struct error *error)
{
    tell("waits to be asked after step %lld\n", (long long)after_step);
    exchange->global_step = world.step += world.unasked > 0;
    world.unasked -= world.unasked > 0;
    return once(&world.awaited, error);
}

/* --- Validations of all --- */

static void begin_evaluation(struct evaluation *evaluation)
{
    static const struct config_train train;
    struct error error;
    assert_true(evaluation_create(
        evaluation, &(struct evaluation_options){.train = &train, .outputs = CLASSES, .targets = 0}, &error));
}

enum push_pull_end validations_tell(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
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
enum push_pull_end validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                      const struct validations_taker *taker, int *missing, struct error *error)
{
    (void)exchange;
    tell("asks for validations of step %lld for %g s\n", (long long)own->step, wait_s);
    *missing = 1;
    if (world.validated != PUSH_PULL_DONE) {
        return once(&world.validated, error);
    }
    for (int attempt = 0; attempt < 2; attempt++) { /* the connection broke after the first one */
        taker->begin(taker->context);
        taker->take(taker->context, 1, own->examples, 0.25, world.part, world.part_size);
    }
    taker->take(taker->context, 2, own->examples, 0.5, world.part, world.part_size / 2);
    return PUSH_PULL_DONE;
}

/* What is in the gradient: rows of the first variable. */
static void tell_push(const struct outbox *outbox, const struct push_note *note)
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

static void answer_push(struct push_pull *exchange, struct push_answer *answer)
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

enum push_pull_end push_pull_exchange(struct push_pull *exchange, const struct outbox *outbox,
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

enum push_pull_end pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
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

enum push_pull_end pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
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

enum push_pull_end preprocessing_agree(struct push_pull *exchange, const struct dataset *dataset, bool is_chief,
                                       bool *differs, struct error *error)
{
    (void)exchange, (void)dataset;
    assert_false(is_chief);
    tell("agrees\n");
    *differs = world.agreed == PUSH_PULL_REFUSED;
    return once(&world.agreed, error);
}

bool own_rows_agree(struct schema **schema, const struct config *config, const struct identity *identity,
                    struct traffic *traffic, struct error *error)
{
    (void)schema, (void)config, (void)identity, (void)traffic, (void)error;
    tell("agrees on own rows\n");
    return true;
}

enum push_pull_end own_rows_tell_again(struct push_pull *exchange, const struct config *config, struct error *error)
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

void heartbeat_tell(struct heartbeat *heartbeat, const struct vitals *vitals)
{
    (void)heartbeat;
    tell("%s at %lld, %lld here, %g/s, loss %g, stale %u\n", member_state_name(vitals->state),
         (long long)vitals->global_step, (long long)vitals->local_step, (double)vitals->steps_per_s,
         (double)vitals->loss, vitals->staleness);
}

void heartbeat_say(struct heartbeat *heartbeat, const char *message)
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

void heartbeat_news(struct heartbeat *heartbeat, struct job_news *news)
{
    (void)heartbeat;
    *news = world.news;
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

enum push_pull_end chief_begin(struct chief *chief, struct chief_start *start, struct error *error)
{
    (void)chief;
    *start = (struct chief_start){.global_step = world.step, .restored_from = "a checkpoint"};
    tell("chief begins\n");
    return once(&world.begun, error);
}

void chief_note_step(struct chief *chief, int64_t global_step)
{
    (void)chief;
    tell("notes %lld\n", (long long)global_step);
}

enum push_pull_end chief_hold(struct chief *chief, int64_t *global_step, struct checkpoint_info **record,
                              struct error *error)
{
    (void)chief;
    *global_step = world.step;
    *record = &held_record;
    tell("holds\n");
    return once(&world.held, error);
}

void chief_release(struct chief *chief, bool is_best)
{
    (void)chief;
    tell("releases%s\n", is_best ? " the best" : "");
}

enum push_pull_end chief_finish(struct chief *chief, bool ended, int64_t *global_step, struct error *error)
{
    (void)chief;
    *global_step = world.step;
    tell("chief finishes%s\n", ended ? " the job" : "");
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
    return !world.told_all || error_set(error, "ps 1 is gone");
}

void chief_record(struct chief *chief, struct chief_record *record)
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

void live_config_note_joined(struct live_config *live, bool joined)
{
    (void)live;
    tell(joined ? "takes part\n" : "takes no part\n");
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

static char the_server, the_feed;
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

bool batch_fetcher_create(struct batch_fetcher **feed, const struct batch_fetcher_options *options, struct error *error)
{
    (void)error;
    assert_ptr_equal(options->given_up, world.given_up);
    assert_ptr_equal(options->context, world.context);
    *feed = (struct batch_fetcher *)(void *)&the_feed;
    tell("feed\n");
    return true;
}

void batch_fetcher_destroy(struct batch_fetcher *feed)
{
    if (feed) {
        tell("feed goes\n");
    }
}

enum push_pull_end batch_fetcher_ask(struct batch_fetcher *feed, struct batch_fetcher_facts *facts, struct error *error)
{
    (void)feed;
    *facts = (struct batch_fetcher_facts){.train = 44, .validation = 11, .description = "from afar"};
    tell("asks for data\n");
    return once(&world.asked, error);
}

enum push_pull_end batch_fetcher_take(struct batch_fetcher *feed, int64_t number, struct batch *batch,
                                      struct error *error)
{
    static int32_t indexes[BATCH];
    (void)feed;
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

static void load(struct bench *bench, const char *const *flags)
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
    world.news.test_accuracy = NAN;
    world.record.last_checkpoint_step = -1;
    told();
    listen_in();
}

/* Its parts as remote_worker_run makes them; opened. */
static bool begin(struct bench *bench, const char *const *flags, struct error *error)
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

static void end(struct bench *bench)
{
    worker_close(&bench->worker, "bye");
    config_free(&bench->config);
    heard();
}

static bool join(struct bench *bench)
{
    return remote_updater_table.join(&bench->worker.updater, &bench->start);
}

static bool step(struct bench *bench)
{
    return remote_updater_table.step(&bench->worker.updater);
}

/* One that has joined at this step. */
static void begin_joined(struct bench *bench, const char *const *flags, int64_t at)
{
    struct error error;
    if (!begin(bench, flags, &error)) {
        fail_msg("%s", error.text);
    }
    world.step = at;
    assert_true(join(bench));
    told();
}

static const char *const chief_flags[] = {"task_index", "0", NULL};
static const char *const other_flags[] = {"task_index", "2", NULL};
static const char *const sync_flags[] = {"task_index", "0", "issync", "true", NULL};
static const char *const piped_flags[] = {"task_index", "2", "pipeline_depth", "2", NULL};
static const char *const fed_flags[] = {"task_index", "2", "data_sharding", "chief", NULL};

/* What each is made of, and the order in which it goes. */
static void parts_of_a_worker(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, other_flags, &error));
    assert_string_equal(told(), "holds links\nengine begins\nloads data\n"
                                "engine of 672 floats, no slots, averages 0, like the data\n"
                                "exchange\nheartbeat of a fake\n");
    assert_null(bench.worker.training.test);
    assert_int_equal(bench.worker.training.plan.epoch_batches, 8);
    end(&bench);
    assert_string_equal(told(), "exchange goes\ngoodbye: bye\nengine goes\n");
    const char *const all[] = {"task_index", "0", "data_sharding", "chief", "pipeline_depth", "3", "train_steps",
                               "50",         NULL};
    assert_true(begin(&bench, all, &error));
    assert_string_equal(told(), "holds links\nengine begins\nloads data and test\n"
                                "engine of 672 floats, no slots, averages 0.5, like the data\n"
                                "exchange, writes the model\npipeline of 3\nheartbeat of a fake\nchief, to step 50\n");
    assert_ptr_equal(bench.worker.training.test, &bench.worker.test);
    assert_true(worker_begin(&bench.worker));
    assert_string_equal(told(), "rollouts with a chief\nserves 30 images\nready: worker 0 takes part\n");
    end(&bench);
    assert_string_equal(told(), "data server goes\npipeline goes\nrollouts go\nchief goes\nexchange goes\n"
                                "goodbye: bye\nengine goes\n");
}

/* A worker without data learns of the chief how much there is, and plans by that. */
static void data_by_the_chief(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, fed_flags, &error));
    assert_string_equal(told(), "holds links\nengine of 672 floats, no slots, averages 0\nexchange\n"
                                "heartbeat of a fake\nfeed\n");
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts\nready: worker 2 takes part\nsays: waiting for worker 0, which has the data\n"
                                "asks for data\nstarting at 0, 0 here, 0/s, loss nan, stale 0\n"
                                "says: waiting for the model\ntakes no part\njoins\nagrees\nsays: \ntakes part\n"
                                "training at 0, 0 here, 0/s, loss nan, stale 0\nsays: \n");
    assert_int_equal(bench.worker.training.plan.epoch_batches, 11);
    assert_string_equal(bench.worker.dataset.description, "from afar");
    assert_int_equal(bench.worker.dataset.validation.count, 11);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "takes batch 0\ncomputes 4 of task 2, step 0, from -1\n"));
    world.took = PUSH_PULL_REFUSED;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    end(&bench);
    assert_true(was_told("feed goes\nrollouts go"));
    assert_true(begin(&bench, fed_flags, &error));
    world.asked = PUSH_PULL_STOPPED;
    world.over = true;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_BY_OTHERS);
    end(&bench);
}

static void configs_that_do_not_fit(void **state)
{
    const char *const micro[] = {"micro_batches", "2", NULL};
    const char *const large[] = {"data_sharding", "chief", "batch_size", "60000", "layers", "65536,3", NULL};
    const char *const few[] = {"data_sharding", "disjoint", "worker_hosts",
                               "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9,a:10,"
                               "a:11,a:12,a:13,a:14,a:15,a:16,a:17,a:18,a:19,a:20,a:21,a:22,a:23,a:24,a:25,a:26,a:27,"
                               "a:28,a:29,a:30,a:31",
                               NULL};
    const char *const *const flags[] = {micro, large, few, chief_flags};
    const char *const texts[] = {"workers of a cluster push the gradient of one batch", "and a message holds",
                                 "30 images are too few for 31 workers", "no data"};
    struct bench bench;
    struct error error;
    (void)state;
    for (int i = 0; i < 4; i++) {
        load(&bench, flags[i]);
        world.cannot_load = i == 3;
        struct remote_worker *worker = &bench.worker;
        *worker = (struct remote_worker){.updater = {.table = &remote_updater_table},
                                         .training = {.updater = &worker->updater},
                                         .launched = &bench.config,
                                         .config = bench.config,
                                         .is_chief = true};
        assert_false(worker_open(worker, &error));
        end(&bench);
        assert_non_null(strstr(error.text, texts[i]));
    }
}

/* Each draws from a part of its own where the config says so; what a batch is follows from task and step. */
static void share_of_the_data(void **state)
{
    const char *const disjoint[] = {"task_index", "2", "data_sharding", "disjoint", NULL};
    struct bench bench;
    (void)state;
    begin_joined(&bench, disjoint, 0);
    assert_int_equal(bench.worker.share.count, 10);
    assert_int_equal(bench.worker.share.images[0], 20);
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "computes 4 of task 2, step 0, from 20\n"));
    end(&bench);
    begin_joined(&bench, other_flags, 0);
    assert_int_equal(bench.worker.share.count, IMAGES);
    struct sampler same = {.seed = (uint64_t)bench.config.train.seed, .task = 2, .examples = IMAGES, .batch_size = 4};
    int32_t wanted[BATCH];
    struct batch batch;
    assert_true(worker_draw(&bench.worker, 0, &batch));
    assert_int_equal(batch.count, sampler_draw(&same, 0, wanted));
    assert_memory_equal(batch.indexes, wanted, sizeof wanted);
    end(&bench);
}

/* The chief sees to it first that there is a model; others wait for it. Again, should a ps be lost meanwhile. */
static void joining(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, chief_flags, &error));
    told();
    world.step = 31;
    world.record.info = (struct checkpoint_info){.global_step = 30, .best_score = 0.75};
    world.joined = PUSH_PULL_AGAIN;
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts with a chief\nready: worker 0 takes part\n"
                                "starting at 0, 0 here, 0/s, loss nan, stale 0\nsays: waiting for the model\n"
                                "takes no part\nchief begins\njoins\nchief begins\njoins\nsays: \ntakes part\n"
                                "training at 31, 0 here, 0/s, loss nan, stale 0\nsays: \n");
    assert_int_equal(bench.start.global_step, 31);
    assert_string_equal(bench.start.restored_from, "a checkpoint");
    assert_true(bench.start.record.best_score == 0.75);
    assert_int_equal(bench.worker.first_draw, 10); /* of three workers, each has drawn as many */
    world.begun = PUSH_PULL_REFUSED;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    end(&bench);
    assert_true(begin(&bench, piped_flags, &error));
    told();
    world.drift = "drifts";
    assert_true(join(&bench));
    assert_string_equal(told(), "rollouts\nready: worker 2 takes part\n"
                                "starting at 0, 0 here, 0/s, loss nan, stale 0\nsays: waiting for the model\n"
                                "takes no part\ndrains\njoins\nagrees\nloads the mirror\nsays: \ntakes part\n"
                                "training at 0, 0 here, 0/s, loss nan, stale 0\nsays: drifts\n");
    world.cannot_load = true;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    world.cannot_load = false;
    world.agreed = PUSH_PULL_AGAIN;
    world.signal = SIGTERM; /* then it is not tried again */
    bench.worker.training.end = TRAINING_GOES_ON;
    told();
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_INTERRUPTED);
    assert_int_equal(times(told(), "joins"), 1);
    end(&bench);
}

/* The preprocessing was made anew meanwhile: the rows here are encoded by it, too, by a process that starts again. */
static void joins_a_job_begun_anew(void **state)
{
    const char *const flags[] = {"task_index", "2", "data_sharding", "own", NULL};
    struct schema schema = {0};
    struct bench bench;
    (void)state;
    begin_joined(&bench, flags, 0);
    bench.worker.dataset.schema = &schema;
    assert_true(join(&bench));
    assert_non_null(strstr(told(), "tells its own rows again\njoins\nagrees\n"));
    world.agreed = PUSH_PULL_AGAIN; /* ps 0 is lost again */
    assert_true(join(&bench));
    assert_int_equal(times(told(), "tells its own rows again\njoins\nagrees\n"), 2);
    world.agreed = PUSH_PULL_REFUSED;
    assert_false(join(&bench));
    remote_updater_table.finish(&bench.worker.updater);
    assert_int_equal(bench.worker.training.end, TRAINING_LEAVES);
    assert_int_equal(bench.worker.training.leave_status, RESTART_STATUS);
    assert_int_equal(times(heard_so_far(), "restarting, to encode its rows by the model's preprocessing"), 1);
    world.told_again = PUSH_PULL_REFUSED;
    assert_false(join(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    bench.worker.dataset.schema = NULL; /* pictures mean the same to all */
    bench.worker.training.end = TRAINING_GOES_ON;
    told();
    assert_true(join(&bench));
    assert_false(was_told("own rows"));
    end(&bench);
}

/* On a machine with too many members a worker that has joined gives way to others: once, and only if it can restart. */
static void gives_way(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_true(begin(&bench, other_flags, &error));
        bench.worker.gives_way = true;
        world.cannot_stand_by = i > 0;
        told();
        assert_true(join(&bench));
        assert_true(join(&bench));
        const char *text = told();
        assert_int_equal(times(text, "stands by"), 1);
        assert_int_equal(times(text, "gives way"), i == 0);
        end(&bench);
    }
}

/* A step: draw, compute, push what is there; then count, look for a change, say how it is at times. */
static void steps(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, chief_flags, 10);
    world.answer.staleness = 2;
    assert_true(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 3, from 0\n"
                                "pushes step 10, 0 here, 4 examples, loss 0.5: 20 at 0\nlooks at 11, loss 0.5\n"
                                "notes 11\n");
    assert_true(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 4, from 0\n"
                                "pushes step 11, 1 here, 4 examples, loss 0.5: 20 at 48\nlooks at 12, loss 0.5\n"
                                "training at 12, 2 here, 8/s, loss 0.5, stale 2\nsays: \nnotes 12\n");
    world.changes = true;
    world.drift = "drifts";
    assert_true(step(&bench));
    assert_true(was_told("retimed to 77\nnotes 13"));
    assert_int_equal(bench.worker.training.plan.last_step, 77);
    assert_true(step(&bench));
    assert_true(was_told("training at 14, 4 here, 8/s, loss 0.5, stale 2\nsays: drifts\n"));
    struct summary_cluster summary;
    atomic_store(&bench.worker.traffic.bytes_in, 5);
    atomic_store(&bench.worker.traffic.bytes_out, 6);
    remote_updater_table.summarise(&bench.worker.updater, 4, &summary);
    assert_true(summary.staleness == 2);
    assert_int_equal(summary.dropped_gradients, 0);
    assert_int_equal(summary.bytes_received, 5);
    assert_int_equal(summary.bytes_sent, 6);
    remote_updater_table.summarise(&bench.worker.updater, 4, &summary);
    assert_true(summary.staleness == 0);
    end(&bench);
}

/* What shards answer to a push. */
static void answers_to_a_push(void **state)
{
    struct bench bench;
    struct summary_cluster summary;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    world.answer.stale = true;
    assert_true(step(&bench));
    world.answer = (struct push_answer){.not_finite = true};
    assert_true(step(&bench));
    assert_int_equal(times(heard_so_far(), "a gradient was refused at global step 2: it is not finite"), 1);
    remote_updater_table.summarise(&bench.worker.updater, 2, &summary);
    assert_int_equal(summary.dropped_gradients, 2);
    world.answer = (struct push_answer){.over = true, .not_finite = true};
    told();
    assert_false(step(&bench));
    assert_false(was_told("looks"));
    assert_int_equal(bench.worker.training.end, TRAINING_LAST_STEP);
    assert_int_equal(times(heard_so_far(), "a gradient was refused"), 1);
    assert_int_equal(bench.worker.training.local_step, 2);
    world.cannot_compute = true;
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    assert_string_equal(bench.worker.training.error.text, "the device fails");
    end(&bench);
}

/* How a push that did not go well ends training, by who says what. */
static void ends_of_a_push(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    enum training_end *how = &bench.worker.training.end;
    struct {
        enum push_pull_end end;
        int signal;
        enum live_config_end live;
        bool refused;
        enum training_end wanted;
    } cases[] = {{PUSH_PULL_AGAIN, 0, LIVE_STAYS, false, TRAINING_REJOINS},
                 {PUSH_PULL_AGAIN, SIGTERM, LIVE_STAYS, false, TRAINING_INTERRUPTED},
                 {PUSH_PULL_REFUSED, 0, LIVE_STAYS, false, TRAINING_FAILED},
                 {PUSH_PULL_STOPPED, 0, LIVE_RESTARTS, true, TRAINING_LEAVES},
                 {PUSH_PULL_STOPPED, SIGTERM, LIVE_STAYS, false, TRAINING_INTERRUPTED},
                 {PUSH_PULL_STOPPED, SIGTERM, LIVE_STAYS, true, TRAINING_FAILED},
                 {PUSH_PULL_STOPPED, 0, LIVE_STAYS, false, TRAINING_BY_OTHERS}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *how = TRAINING_GOES_ON;
        world.pushed = cases[i].end;
        world.signal = cases[i].signal;
        world.live_end = cases[i].live;
        world.news.refused = cases[i].refused;
        strcpy(world.news.message, "another process has this place");
        assert_false(step(&bench));
        assert_int_equal(*how, cases[i].wanted);
        assert_int_equal(strcmp(bench.worker.training.error.text, world.news.message) == 0,
                         cases[i].refused && cases[i].live == LIVE_STAYS);
    }
    world.signal = 0;
    end(&bench);
}

/* Nothing is pushed of a loss that is not finite. Newer parameters may be better; if not, the chief gives up. */
static void loss_that_is_not_finite(void **state)
{
    struct bench bench;
    (void)state;
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin_joined(&bench, is_chief ? chief_flags : other_flags, 5);
        world.loss = INFINITY;
        world.is_rolling = true; /* which handles it */
        for (int i = 1; i <= 12; i++) {
            const double before_s = world.now_s;
            assert_false(step(&bench));
            assert_true(fabs(world.now_s - before_s - 0.01 * i) < 1e-9); /* longer each time */
        }
        const char *text = told();
        assert_int_equal(times(text, "looks at 5, loss nan, not finite\nrefreshes\n"), 12);
        assert_int_equal(times(text, "pushes"), 0);
        assert_int_equal(times(heard_so_far(), "the loss is inf at global step 5: nothing is pushed"), 1);
        assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        world.is_rolling = false;
        assert_false(step(&bench));
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_FAILED : TRAINING_GOES_ON);
        if (is_chief) {
            assert_non_null(strstr(bench.worker.training.error.text, "the loss is inf after step 5"));
        }
        world.loss = 0.5; /* all is well again: counted anew */
        bench.worker.training.end = TRAINING_GOES_ON;
        assert_true(step(&bench));
        world.loss = NAN;
        for (int i = 0; i < 9; i++) {
            assert_false(step(&bench));
            assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        }
        assert_false(step(&bench));
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_FAILED : TRAINING_GOES_ON);
        end(&bench);
    }
}

/* With synchronous steps the others wait for a push: it goes out with nothing in it, and the next step is awaited. */
static void empty_push(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, sync_flags, 5);
    assert_true(step(&bench));
    told();
    world.loss = NAN;
    world.stands = true;
    assert_false(step(&bench));
    assert_string_equal(told(), "computes 4 of task 0, step 6, from 0\nlooks at 6, loss nan, not finite\n"
                                "pushes step 6, 1 here, 1 examples, loss nan: nothing\nawaits the step after 6\n");
    assert_int_equal(bench.worker.training.global_step, 7);
    world.stands = false;
    assert_false(step(&bench));
    assert_string_equal(told(), "computes 2 of task 0, step 7, from 0\nlooks at 7, loss nan, not finite\n"
                                "pushes step 7, 1 here, 1 examples, loss nan: nothing\n");
    assert_int_equal(bench.worker.training.global_step, 8);
    world.stands = true;
    world.pushed = PUSH_PULL_AGAIN;
    assert_false(step(&bench));
    assert_false(was_told("awaits"));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    end(&bench);
}

/* Rounds of some: the chief looks at each step that others make, another worker sleeps until it is asked. */
static void rounds_of_others(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, sync_flags, 5);
    world.unasked = 1;
    assert_true(step(&bench));
    assert_string_equal(told(), "waits to be asked after step 5\nlooks at 6, loss nan\nnotes 6\n");
    assert_int_equal(bench.worker.training.global_step, 6);
    assert_true(step(&bench));
    assert_true(was_told("pushes step 6"));
    world.unasked = 1;
    world.awaited = PUSH_PULL_AGAIN;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    end(&bench);
    const char *const flags[] = {"task_index", "2", "issync", "true", NULL};
    begin_joined(&bench, flags, 5);
    world.unasked = 1;
    assert_true(step(&bench));
    char text[64];
    snprintf(text, sizeof text, "waits to be asked after step %lld\n", (long long)JOB_MAX_STEP);
    assert_true(was_told(text));
    assert_false(was_told("notes"));
    end(&bench);
}

/* Rows of one's own are validated when it is due, and worker 0, who adds all up, is told; no answer ends training. */
static void validates_together(void **state)
{
    const char *const others[] = {"task_index",    "2",   "issync",         "true", "ema_decay", "0",
                                  "data_sharding", "own", "validate_steps", "2",    NULL};
    struct bench bench;
    (void)state;
    begin_joined(&bench, others, 0);
    struct training *training = &bench.worker.training;
    begin_evaluation(&training->evaluation);
    bench.worker.dataset.validation.count = 6; /* they share the memory of those to train on */
    assert_true(step(&bench));
    assert_false(was_told("validated"));
    assert_true(step(&bench));
    assert_non_null(strstr(told(), "validated step 2, 6 examples, 6 right, score 1.00\n"));
    assert_true(step(&bench));
    world.validated = PUSH_PULL_REFUSED;
    assert_true(step(&bench));
    assert_int_equal(times(heard_so_far(), "a validation was not accepted: as the test wants"), 1);
    assert_true(step(&bench));
    world.validated = PUSH_PULL_AGAIN;
    assert_false(step(&bench));
    assert_int_equal(training->end, TRAINING_REJOINS);
    evaluation_destroy(&training->evaluation);
    end(&bench);
}

static void chief_adds_up_validations(void **state)
{
    const char *const flags[] = {"task_index",    "0",   "issync",         "true", "ema_decay", "0",
                                 "data_sharding", "own", "validate_steps", "2",    NULL};
    struct bench bench;
    struct error error;
    struct validators validators;
    (void)state;
    begin_joined(&bench, flags, 0);
    struct training *training = &bench.worker.training;
    begin_evaluation(&training->evaluation);
    struct examples six = bench.worker.dataset.train;
    six.count = 6;
    assert_true(evaluate(&training->evaluation, &the_engine, false, &six, &error));
    assert_true(evaluation_part_room(&training->evaluation) <= sizeof world.part);
    world.part_size = evaluation_part_write(&training->evaluation, world.part);
    struct updater *updater = &bench.worker.updater;
    assert_true(remote_updater_table.gather(updater, 4, METRIC_ACCURACY, &training->evaluation, &validators));
    char wanted[80];
    snprintf(wanted, sizeof wanted, "asks for validations of step 4 for %g s\n", bench.config.cluster.lease_secs);
    assert_string_equal(told(), wanted);
    assert_int_equal(training->evaluation.images, 12);
    assert_int_equal(training->evaluation.correct, 12);
    assert_int_equal(validators.count, 2);
    assert_int_equal(validators.scores[0].worker, 1);
    assert_true(validators.scores[0].score == 0.25);
    assert_int_equal(validators.scores[1].worker, 0);
    assert_int_equal(validators.worst, 1);
    assert_int_equal(validators.missing, 1);
    assert_int_equal(times(heard_so_far(), "the validation of worker 2 does not count"), 1);
    world.validated = PUSH_PULL_REFUSED;
    assert_true(remote_updater_table.gather(updater, 6, METRIC_ACCURACY, &training->evaluation, &validators));
    assert_int_equal(times(heard_so_far(), "the other workers' validations are missing: as the test wants"), 1);
    world.validated = PUSH_PULL_STOPPED;
    assert_false(remote_updater_table.gather(updater, 6, METRIC_ACCURACY, &training->evaluation, &validators));
    evaluation_destroy(&training->evaluation);
    end(&bench);
}

/* Pushes under way are waited for before the shards are asked for something else. */
static void pipelined(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, piped_flags, 0);
    assert_true(step(&bench)); /* no answer yet */
    assert_string_equal(told(), "computes 4 of task 2, step 0, from 0\n"
                                "pushes step 0, 0 here, 4 examples, loss 0.5: 20 at 0\nlooks at 0, loss 0.5\n");
    world.answers = 1;
    assert_true(step(&bench));
    assert_int_equal(bench.worker.training.global_step, 1);
    told();
    remote_updater_table.settle(&bench.worker.updater);
    assert_string_equal(told(), "drains\n");
    assert_int_equal(bench.worker.training.global_step, 2);
    assert_null(strstr(heard_so_far(), "the last gradients were not accepted"));
    world.loss = NAN;
    assert_false(step(&bench));
    assert_non_null(strstr(told(), "drains\nrefreshes\nloads the mirror\n"));
    world.refreshed = PUSH_PULL_AGAIN;
    assert_false(step(&bench));
    assert_null(strstr(told(), "loads the mirror"));
    assert_int_equal(bench.worker.training.end, TRAINING_REJOINS);
    bench.worker.training.end = TRAINING_GOES_ON;
    world.cannot_load = true;
    assert_false(step(&bench));
    assert_int_equal(bench.worker.training.end, TRAINING_FAILED);
    world.drained = PUSH_PULL_REFUSED;
    world.answers = 0;
    remote_updater_table.settle(&bench.worker.updater);
    assert_int_equal(times(heard_so_far(), "the last gradients were not accepted: as the test wants"), 1);
    end(&bench);
}

/* A validation borrows the engine: the next step brings the parameters back first. */
static void validation_borrows_the_engine(void **state)
{
    struct bench bench;
    struct held_model held;
    (void)state;
    begin_joined(&bench, chief_flags, 20);
    struct updater *updater = &bench.worker.updater;
    assert_true(remote_updater_table.hold(updater, &held));
    assert_int_equal(held.global_step, 20);
    assert_ptr_equal(held.record, &held_record);
    remote_updater_table.release(updater, true);
    assert_string_equal(told(), "holds\nreleases the best\n");
    assert_true(step(&bench));
    assert_true(was_told("refreshes\ncomputes"));
    told();
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    assert_true(remote_updater_table.hold(updater, &held));
    remote_updater_table.release(updater, false);
    assert_true(was_told("releases\n"));
    world.refreshed = PUSH_PULL_AGAIN;
    told();
    assert_false(step(&bench));
    assert_string_equal(told(), "refreshes\n");
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_true(join(&bench)); /* which brings them, too */
    told();
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    const enum push_pull_end ends[] = {PUSH_PULL_AGAIN, PUSH_PULL_STOPPED, PUSH_PULL_REFUSED};
    for (int i = 0; i < 3; i++) {
        world.held = ends[i];
        assert_false(remote_updater_table.hold(updater, &held));
        assert_int_equal(bench.worker.training.end, i < 2 ? TRAINING_GOES_ON : TRAINING_FAILED);
    }
    told();
    bench.worker.training.end = TRAINING_GOES_ON;
    assert_true(step(&bench));
    assert_false(was_told("refreshes"));
    end(&bench);
}

/* What of the chief's record the loop is told; others have none. */
static void record_of_the_run(void **state)
{
    struct bench bench;
    struct updater_record record;
    (void)state;
    begin_joined(&bench, other_flags, 0);
    remote_updater_table.record(&bench.worker.updater, &record);
    assert_true(isnan(record.best_score) && isnan(record.threshold));
    assert_int_equal(record.last_checkpoint_step, -1);
    end(&bench);
    begin_joined(&bench, chief_flags, 0);
    world.record = (struct chief_record){.info = {.best_score = 0.5, .best_step = 7, .threshold = 0.25},
                                         .checkpoint_failed = true,
                                         .last_checkpoint = "x",
                                         .last_checkpoint_step = 9};
    remote_updater_table.record(&bench.worker.updater, &record);
    assert_true(record.best_score == 0.5 && isnan(record.threshold) && record.checkpoint_failed);
    assert_int_equal(record.best_step, 7);
    assert_int_equal(record.last_checkpoint_step, 9);
    assert_string_equal(record.last_checkpoint, "x");
    world.record.info.has_threshold = true;
    remote_updater_table.record(&bench.worker.updater, &record);
    assert_true(record.threshold == 0.25);
    end(&bench);
}

/* Whether there is an end in sight, and whose word counts for whom. */
static void looks_for_the_end(void **state)
{
    const char *const one_ps[] = {"task_index", "2", "ps_hosts", "127.0.0.1:1", "train_steps", "20", NULL};
    const char *const two_ps[] = {"task_index", "2", "train_steps", "20", NULL};
    const char *const sync[] = {"task_index", "2", "train_steps", "20", "issync", "true", NULL};
    const char *const *const flags[] = {one_ps, two_ps, sync};
    struct bench bench;
    (void)state;
    for (int i = 0; i < 3; i++) {
        begin_joined(&bench, flags[i], 19);
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, TRAINING_GOES_ON);
        bench.worker.training.global_step = 20;
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, i == 1 ? TRAINING_GOES_ON : TRAINING_LAST_STEP);
        end(&bench);
    }
    for (int is_chief = 0; is_chief < 2; is_chief++) {
        begin_joined(&bench, is_chief ? chief_flags : other_flags, 0);
        char why[256];
        assert_false(world.given_up(world.context));
        world.over = true; /* the chief ends the job itself */
        assert_int_equal(world.given_up(world.context), !is_chief);
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, is_chief ? TRAINING_GOES_ON : TRAINING_BY_OTHERS);
        world.over = false;
        world.fenced = true;
        assert_true(world.given_up(world.context));
        world.fenced = false;
        world.live_end = LIVE_LEAVES;
        assert_true(world.given_up(world.context));
        bench.worker.training.end = TRAINING_GOES_ON;
        remote_updater_table.look_for_end(&bench.worker.updater);
        assert_int_equal(bench.worker.training.end, TRAINING_LEAVES);
        world.needs_rejoin = "ps 1 has no model";
        assert_true(world.asks_to_rejoin(world.context, GENERATION, 1, why));
        assert_string_equal(why, "ps 1 has no model");
        end(&bench);
    }
}

/* --- The end --- */

static int pauses;

static void after_a_while(void)
{
    world.news.over = ++pauses == 5000;
}

static void after_some_pauses(void)
{
    pauses++;
    if (pauses == 3) {
        world.needs_rejoin = "ps 1 has no model";
    }
}

static void signal_after_some(void)
{
    world.signal = ++pauses == 3 ? SIGTERM : 0;
}

static void restart_after_some(void)
{
    world.live_end = ++pauses == 3 ? LIVE_RESTARTS : LIVE_STAYS;
}

static enum training_end finish(struct bench *bench, enum training_end how)
{
    bench->worker.training.end = how;
    pauses = 0;
    told();
    remote_updater_table.finish(&bench->worker.updater);
    return bench->worker.training.end;
}

/* A worker that has done its last step waits for the chief's word. */
static void waits_for_the_end(void **state)
{
    struct bench bench;
    (void)state;
    begin_joined(&bench, other_flags, 9);
    struct training *training = &bench.worker.training;
    world.at_pause = after_a_while; /* 25 s */
    world.news.test_accuracy = 0.9876f;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_BY_OTHERS);
    assert_string_equal(told(), "says: waiting for worker 0 to end the job\n"
                                "done at 9, 0 here, 0/s, loss nan, stale 0\n");
    assert_true(world.hurried_s > 0);
    assert_int_equal(times(heard_so_far(), "waiting for worker 0 (127.0.0.1:3) to end the job, "), 2);
    assert_int_equal(times(heard_so_far(), "to end the job, 10 s"), 1);
    assert_int_equal(times(heard_so_far(), "to end the job, 20 s"), 1);
    assert_int_equal(times(heard_so_far(), "the job is over: test accuracy 98.76%"), 1);
    world.news.test_accuracy = NAN;
    world.at_pause = NULL;
    assert_int_equal(finish(&bench, TRAINING_BY_OTHERS), TRAINING_BY_OTHERS);
    assert_int_equal(times(heard_so_far(), "the job is over"), 1);
    world.news.failed = true;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    assert_string_equal(training->error.text, "worker 0 says that the job failed");
    world.news = (struct job_news){.refused = true, .message = "no place here"};
    assert_int_equal(finish(&bench, TRAINING_PATIENCE), TRAINING_FAILED);
    assert_string_equal(training->error.text, "no place here");
    world.news = (struct job_news){.known = true};
    world.at_pause = after_some_pauses;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_REJOINS);
    assert_int_equal(pauses, 3);
    world.needs_rejoin = NULL;
    world.at_pause = signal_after_some;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_INTERRUPTED);
    world.signal = 0;
    world.at_pause = restart_after_some;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_LEAVES);
    assert_int_equal(training->leave_status, RESTART_STATUS);
    world.live_end = LIVE_STAYS;
    world.at_pause = NULL;
    const double begun_s = world.now_s;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_FAILED);
    assert_non_null(strstr(training->error.text, "worker 0 did not end the job within 600 s"));
    assert_true(world.now_s - begun_s >= 600 && world.now_s - begun_s < 600.1);
    end(&bench);
}

/* The chief saves and ends the job; a rollout's end goes before everything, and a signal saves only what is there. */
static void chief_takes_leave(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    begin_joined(&bench, chief_flags, 9);
    struct training *training = &bench.worker.training;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_LAST_STEP);
    assert_string_equal(told(), "chief finishes the job\n");
    world.step = 12;
    assert_int_equal(finish(&bench, TRAINING_PATIENCE), TRAINING_PATIENCE);
    assert_int_equal(training->global_step, 12);
    world.finished = PUSH_PULL_AGAIN;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_REJOINS);
    assert_int_equal(times(heard_so_far(), "training continues from the newest checkpoint"), 1);
    world.finished = PUSH_PULL_AGAIN;
    world.signal = SIGTERM;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    world.finished = PUSH_PULL_REFUSED;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_string_equal(told(), "chief finishes\n");
    assert_int_equal(times(heard_so_far(), "no last checkpoint"), 0);
    world.finished = PUSH_PULL_STOPPED;
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_int_equal(times(heard_so_far(), "no last checkpoint: as the test wants"), 1);
    world.signal = 0;
    const enum training_end others[] = {TRAINING_REJOINS, TRAINING_LEAVES, TRAINING_FAILED};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(finish(&bench, others[i]), others[i]);
        assert_string_equal(told(), "");
    }
    world.live_end = LIVE_LEAVES;
    assert_int_equal(finish(&bench, TRAINING_FAILED), TRAINING_LEAVES);
    assert_int_equal(training->leave_status, COMMAND_DONE);
    assert_string_equal(told(), "");
    end(&bench);
    assert_true(begin(&bench, chief_flags, &error)); /* which has not joined: nothing of it is there to save */
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_string_equal(told(), "");
    end(&bench);
}

/* The job's end is told by the chief alone, if it has had part in it and no other has taken its place. */
static void concludes(void **state)
{
    struct bench bench;
    struct error error;
    (void)state;
    assert_true(begin(&bench, chief_flags, &error));
    told();
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "");
    world.step = 9;
    assert_true(join(&bench));
    told();
    remote_updater_table.conclude(&bench.worker.updater, false, 0.5, "all is well");
    assert_string_equal(told(), "notes 9\njob done, 0.5: all is well\n");
    world.told_all = true;
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "notes 9\njob failed, nan: it failed\n");
    assert_int_equal(times(heard_so_far(), "not every ps could be notified"), 0);
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_int_equal(times(heard_so_far(), "not every ps could be notified that the job is over: ps 1 is gone"), 1);
    told();
    world.fenced = true;
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "");
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_true(was_told("job done"));
    end(&bench);
    begin_joined(&bench, other_flags, 0);
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_string_equal(told(), "");
    end(&bench);
}

/* --- The role --- */

static void end_at_three(void)
{
    if (world.step == 2) {
        world.over = world.news.over = true;
    }
}

static void restart_at_three(void)
{
    if (world.step == 2) {
        world.live_end = LIVE_RESTARTS;
    }
}

static void signal_at_three(void)
{
    if (world.step == 2) {
        world.signal = SIGTERM;
    }
}

/* From start to end; and what those who look on are told. */
static void whole_runs(void **state)
{
    void (*const at_push[])(void) = {end_at_three, restart_at_three, signal_at_three};
    const char *const goodbyes[] = {"stopping\n", "restarting\n", "stopping\n"};
    const char *const words[] = {"goodbye: done\n", "goodbye: starts again\n", "goodbye: stopped\n"};
    const int statuses[] = {COMMAND_DONE, RESTART_STATUS, 128 + SIGTERM};
    struct bench bench;
    (void)state;
    for (int i = 0; i < 3; i++) {
        load(&bench, other_flags);
        world.at_push = at_push[i];
        const int status = remote_worker_run(&bench.config);
        heard();
        assert_int_equal(status, statuses[i]);
        assert_int_equal(world.step, 3);
        assert_true(was_told(goodbyes[i]));
        assert_true(was_told(words[i]));
        assert_int_equal(was_told("gives way"), 1); /* five members and two processors */
        config_free(&bench.config);
    }
    const char *const chief[] = {"task_index", "0",           "train_steps",  "3",
                                 "ps_hosts",   "127.0.0.1:1", "worker_hosts", "127.0.0.1:2,127.0.0.1:3,10.0.0.1:1",
                                 NULL};
    load(&bench, chief);
    assert_int_equal(remote_worker_run(&bench.config), COMMAND_DONE);
    heard();
    assert_true(was_told("chief finishes the job\n"));
    assert_true(was_told("job done, 1: "));
    assert_false(was_told("gives way")); /* three here, and one elsewhere */
    config_free(&bench.config);
    load(&bench, other_flags);
    world.cannot_load = true;
    assert_int_equal(remote_worker_run(&bench.config), COMMAND_FAILED);
    assert_non_null(strstr(heard(), "no data"));
    config_free(&bench.config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_of_a_worker),
        cmocka_unit_test(data_by_the_chief),
        cmocka_unit_test(configs_that_do_not_fit),
        cmocka_unit_test(share_of_the_data),
        cmocka_unit_test(joining),
        cmocka_unit_test(joins_a_job_begun_anew),
        cmocka_unit_test(gives_way),
        cmocka_unit_test(steps),
        cmocka_unit_test(answers_to_a_push),
        cmocka_unit_test(ends_of_a_push),
        cmocka_unit_test(loss_that_is_not_finite),
        cmocka_unit_test(empty_push),
        cmocka_unit_test(rounds_of_others),
        cmocka_unit_test(validates_together),
        cmocka_unit_test(chief_adds_up_validations),
        cmocka_unit_test(pipelined),
        cmocka_unit_test(validation_borrows_the_engine),
        cmocka_unit_test(record_of_the_run),
        cmocka_unit_test(looks_for_the_end),
        cmocka_unit_test(waits_for_the_end),
        cmocka_unit_test(chief_takes_leave),
        cmocka_unit_test(concludes),
        cmocka_unit_test(whole_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
