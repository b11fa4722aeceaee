/*
 * The loop: draw, compute into the outbox, exchange, account. What is due at a step (a log line, a validation) is due
 * once the global step has come to it or past it, for the other workers take their steps in between.
 */
#include "worker/remote/worker.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/notify.h"
#include "base/profile.h"
#include "base/restart.h"
#include "base/signals.h"
#include "worker/data/idx.h"
#include "worker/data/streaming/streaming.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/evaluate.h"
#include "worker/load.h"
#include "worker/plan.h"
#include "worker/remote/chief.h"
#include "worker/remote/data_server.h"
#include "worker/remote/feed.h"
#include "worker/remote/heartbeat.h"
#include "worker/remote/live.h"
#include "worker/remote/outbox.h"
#include "worker/remote/pipeline.h"
#include "worker/remote/push_pull.h"
#include "worker/remote/watch.h"
#include "worker/report.h"
#include "worker/sampler.h"

enum {
    WARM_UP_STEPS = 100,  /* not counted in steps_per_s */
    BAD_STEPS = 10,       /* losses in a row that are not finite, and the chief calls it a failure */
    END_PATIENCE_S = 600, /* for the chief to end a job that has done its last step */
};

static const double VITALS_S = 0.2;

/* Steps and seconds of some stretch of training. */
struct tally {
    double begun_s;
    int64_t local_steps, images, global_step;
    double loss_sum;
};

enum end_reason {
    END_NOT_YET,
    END_LAST_STEP,
    END_TARGET,
    END_PATIENCE,
    END_INTERRUPTED,
    END_BY_OTHERS,
    END_PARTS,
    END_FAILED
};

struct remote_worker {
    struct config config;        /* the command's, with what depends on the data filled in; owns nothing */
    struct config engine_config; /* optimizers are the shards' business: no slots here */
    double begin_s;
    bool is_chief;
    struct dataset dataset;
    struct examples test;  /* chief */
    struct examples share; /* of dataset.train: what this worker draws from; borrows */
    struct model model;
    struct plan plan;
    struct self self;
    struct engine_prelude prelude;
    struct engine *engine;
    struct traffic traffic;
    struct outbox outbox;
    struct push_pull exchange;
    struct pipeline *pipeline; /* NULL: each step waits for its push */
    struct heartbeat *heartbeat;
    struct chief *chief;
    struct live *live;               /* rollouts */
    struct data_server *data_server; /* the chief's with data_sharding chief, or NULL */
    struct feed *feed;               /* the others' with it, or NULL: dataset holds numbers only then, and no images */
    struct watch watch;              /* the chief's */
    struct sampler sampler;
    int32_t *indexes; /* [batch_size] */
    uint8_t *images;  /* [batch_size, pixels], as are the labels [batch_size]: of data that stream, else NULL */
    int32_t *labels;
    int64_t first_draw, local_step, global_step;
    struct tally since_report, since_vitals, all, warm;
    double last_loss;
    uint32_t staleness;
    int64_t dropped; /* gradients that were not used */
    int bad_steps;
    bool joined; /* it has had parameters of this job */
    enum end_reason end;
    struct error error; /* of END_FAILED */
};

/* ---- Beginning ---- */

/* Which images this worker draws from. */
static bool take_share(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    const struct examples *all = &worker->dataset.train;
    int workers = config->cluster.worker_hosts.count, index = config->cluster.task_index;
    worker->share = *all;
    if (config->data.data_sharding == SHARDING_DISJOINT) {
        int first = (int)((int64_t)all->count * index / workers);
        int end = (int)((int64_t)all->count * (index + 1) / workers);
        if (end - first < 1) {
            return error_set(error, "data.data_sharding disjoint: %d images are too few for %d workers", all->count,
                             workers);
        }
        worker->share.count = end - first;
        if (worker->dataset.streaming) {
            streaming_take_share(worker->dataset.streaming, first, end - first);
        } else {
            worker->share.images += (size_t)first * (size_t)all->height * (size_t)all->width;
            worker->share.labels += first;
        }
    }
    worker->sampler = (struct sampler){.seed = (uint64_t)config->train.seed,
                                       .task = (uint32_t)index,
                                       .examples = (uint32_t)worker->share.count,
                                       .batch_size = (uint32_t)config->train.batch_size};
    size_t batch = (size_t)config->train.batch_size;
    worker->indexes = malloc(batch * sizeof *worker->indexes);
    if (worker->dataset.streaming) {
        worker->images = calloc(1, batch * (size_t)config->model.layers[0] + IDX_PADDING);
        worker->labels = malloc(batch * sizeof *worker->labels);
    }
    return (worker->indexes && (!worker->dataset.streaming || (worker->images && worker->labels))) ||
           error_set(error, "not enough memory for a batch");
}

static bool check_config(const struct config *config, struct error *error)
{
    if (config->train.micro_batches != 1) {
        return error_set(error,
                         "train.micro_batches is %d: workers of a cluster push the gradient of one batch; raise "
                         "train.batch_size instead",
                         config->train.micro_batches);
    }
    size_t batch = batch_bytes((size_t)config->train.batch_size, (size_t)config->model.layers[0]);
    if (config->data.data_sharding == SHARDING_CHIEF && batch > message_max_bulk(MESSAGE_batch)) {
        return error_set(error,
                         "data.data_sharding chief: a batch of %d images is %zu MiB, and a message holds %u: "
                         "lower train.batch_size",
                         config->train.batch_size, batch >> 20, message_max_bulk(MESSAGE_batch) >> 20);
    }
    return true;
}

/* A global step is one batch of one worker; with synchronous training, one of each that is aggregated. */
static void make_plan(struct remote_worker *worker)
{
    struct config *config = &worker->config;
    struct sampler whole = {.examples = (uint32_t)worker->dataset.train.count,
                            .batch_size = (uint32_t)config->train.batch_size};
    struct config counted = *config;
    if (config->cluster.issync) {
        int wanted = config->cluster.replicas_to_aggregate;
        counted.train.micro_batches = wanted > 0 ? wanted : config->cluster.worker_hosts.count;
    }
    plan_begin(&worker->plan, &counted, sampler_epoch_batches(&whole));
    if (config->train.lr_decay_steps == 0) {
        config->train.lr_decay_steps = plan_epoch_end(&worker->plan, 1);
    }
}

static struct engine_options engine_options(struct remote_worker *worker)
{
    worker->engine_config = worker->config;
    worker->engine_config.train.optimizer = OPTIMIZER_SGD;
    if (!worker->is_chief) {
        worker->engine_config.train.ema_decay = 0;
    }
    model_layout(&worker->model, &worker->config.model);
    return (struct engine_options){.model = &worker->model, .config = &worker->engine_config};
}

static bool create_engine(struct remote_worker *worker, struct error *error)
{
    struct engine_options options = engine_options(worker);
    return engine_choose(&worker->engine, &options, &worker->prelude, error);
}

/* Others end the job for a worker, but not for the chief. */
static bool is_over(void *context)
{
    const struct remote_worker *worker = context;
    bool over = worker->is_chief ? heartbeat_is_out(worker->heartbeat) : heartbeat_is_over(worker->heartbeat);
    return over || live_end(worker->live) != LIVE_STAYS;
}

static bool is_unwell(void *context, uint32_t generation, double since_s, char why[256])
{
    const struct remote_worker *worker = context;
    return heartbeat_is_unwell(worker->heartbeat, generation, since_s, why);
}

static bool create_parts(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    char device[128];
    enum dtype dtype = config->cluster.wire_dtype == WIRE_BFLOAT16 ? DTYPE_BFLOAT16 : DTYPE_FLOAT32;
    worker->engine->table->describe(worker->engine, device, sizeof device);
    struct push_pull_options exchange = {.config = config,
                                         .model = &worker->model,
                                         .engine = worker->engine,
                                         .self = &worker->self,
                                         .traffic = &worker->traffic,
                                         .given_up = is_over,
                                         .is_unwell = is_unwell,
                                         .writes_model = worker->is_chief,
                                         .context = worker};
    int depth = config->cluster.pipeline_depth;
    if (!push_pull_create(&worker->exchange, &exchange, error) ||
        !(depth > 0 ? pipeline_create(&worker->pipeline, &worker->exchange, worker->engine, depth, error)
                    : outbox_create(&worker->outbox, &worker->model, dtype, NULL, error)) ||
        !heartbeat_create(&worker->heartbeat, config, &worker->self, &worker->traffic, device, error)) {
        return false;
    }
    return !worker->is_chief || chief_create(&worker->chief,
                                             &(struct chief_options){.config = config,
                                                                     .model = &worker->model,
                                                                     .self = &worker->self,
                                                                     .engine = worker->engine,
                                                                     .dataset = &worker->dataset,
                                                                     .plan = &worker->plan,
                                                                     .traffic = &worker->traffic,
                                                                     .given_up = is_over,
                                                                     .context = worker},
                                             error);
}

/* What depends on how much data there is. */
static bool plan_data(struct remote_worker *worker, struct error *error)
{
    const struct config_train *train = &worker->config.train;
    if ((train->target_accuracy > 0 || train->patience > 0) && worker->dataset.validation.count == 0) {
        return error_set(error, "train.target_accuracy and train.patience are measured on the validation images, and "
                                "data.validation_size is 0: set it to 5000, say");
    }
    make_plan(worker);
    return take_share(worker, error);
}

static bool create_feed(struct remote_worker *worker, struct error *error)
{
    return feed_create(&worker->feed,
                       &(struct feed_options){.config = &worker->config,
                                              .self = &worker->self,
                                              .traffic = &worker->traffic,
                                              .given_up = is_over,
                                              .context = worker},
                       error);
}

static bool open_worker(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    struct member member = {MEMBER_WORKER, config->cluster.task_index};
    const bool by_chief = config->data.data_sharding == SHARDING_CHIEF;
    if (!check_config(config, error) || !self_create(&worker->self, config, member, error)) {
        return false;
    }
    live_hold(&worker->traffic, config);
    if (by_chief && !worker->is_chief) { /* what there is to know about the data is asked once somebody listens */
        return create_engine(worker, error) && create_parts(worker, error) && create_feed(worker, error);
    }
    struct engine_options options = engine_options(worker);
    engine_begin(&worker->prelude, &options); /* a GPU takes its time, and so does the data */
    return load_data(&worker->dataset, worker->is_chief ? &worker->test : NULL, config, error) &&
           plan_data(worker, error) && create_engine(worker, error) && create_parts(worker, error);
}

static void close_worker(struct remote_worker *worker, const char *goodbye)
{
    data_server_destroy(worker->data_server);
    live_destroy(worker->live);
    feed_destroy(worker->feed);
    chief_destroy(worker->chief);
    pipeline_destroy(worker->pipeline);
    push_pull_destroy(&worker->exchange);
    heartbeat_destroy(worker->heartbeat, goodbye);
    outbox_destroy(&worker->outbox);
    engine_prelude_end(&worker->prelude);
    if (worker->engine) {
        worker->engine->table->destroy(worker->engine);
    }
    free(worker->indexes);
    free(worker->images);
    free(worker->labels);
    examples_free(&worker->test);
    dataset_free(&worker->dataset);
    self_destroy(&worker->self);
}

/* ---- Ends ---- */

static void stop(struct remote_worker *worker, enum end_reason end)
{
    if (worker->end == END_NOT_YET) {
        worker->end = end;
    }
}

/* What push_pull or the chief reported; true: go on. */
static bool take_end(struct remote_worker *worker, enum push_pull_end end)
{
    struct job_news news;
    switch (end) {
    case PUSH_PULL_DONE:
        return true;
    case PUSH_PULL_REFUSED:
        stop(worker, END_FAILED);
        return false;
    case PUSH_PULL_AGAIN:
    case PUSH_PULL_STOPPED:
        break;
    }
    if (live_end(worker->live) != LIVE_STAYS) {
        stop(worker, END_PARTS);
    }
    heartbeat_news(worker->heartbeat, &news);
    if (news.refused) {
        error_set(&worker->error, "%s", news.sentence);
        stop(worker, END_FAILED);
    }
    stop(worker, signals_pending() != 0 ? END_INTERRUPTED : END_BY_OTHERS);
    return false;
}

/* ---- Joining ---- */

static void tell_start(struct remote_worker *worker, const struct chief_start *start)
{
    char text[256];
    worker->engine->table->describe(worker->engine, text, sizeof text);
    report_start(&(struct report_start){.config = &worker->config,
                                        .model = &worker->model,
                                        .data = worker->dataset.description,
                                        .engine = text,
                                        .digest = worker->self.digest,
                                        .restored_from = start->restored_from,
                                        .global_step = worker->is_chief ? start->global_step : worker->global_step,
                                        .last_step = worker->plan.last_step,
                                        .keeps_nothing = !worker->is_chief});
}

static void tell_vitals(struct remote_worker *worker, enum member_state state)
{
    char sentence[256] = "";
    double now_s = clock_monotonic_s(), seconds = now_s - worker->since_vitals.begun_s;
    int64_t steps = worker->local_step - worker->since_vitals.local_steps;
    heartbeat_tell(worker->heartbeat,
                   &(struct vitals){.state = state,
                                    .global_step = worker->global_step,
                                    .local_step = worker->local_step,
                                    .steps_per_s = seconds > 0 ? (float)((double)steps / seconds) : 0,
                                    .loss = (float)worker->last_loss,
                                    .staleness = worker->staleness});
    if (state == STATE_TRAINING) {
        live_drift(worker->live, sentence);
        heartbeat_say(worker->heartbeat, sentence);
    }
    worker->since_vitals = (struct tally){.begun_s = now_s, .local_steps = worker->local_step};
}

static struct tally begin_tally(const struct remote_worker *worker)
{
    return (struct tally){
        .begun_s = clock_monotonic_s(), .local_steps = worker->local_step, .global_step = worker->global_step};
}

/* What shards answered: how far the job is. */
static void take_answer(struct remote_worker *worker, const struct push_answer *answer)
{
    worker->global_step = answer->global_step;
    worker->staleness = answer->staleness;
    worker->dropped += answer->stale || answer->not_finite;
    if (answer->over) {
        stop(worker, END_LAST_STEP);
    } else if (answer->not_finite) {
        log_warning("a gradient was refused at global step %lld: it is not finite", (long long)worker->global_step);
    }
}

/* Waits for pushes that are under way, so that the shards can be asked for something else. */
static enum push_pull_end settle(struct remote_worker *worker)
{
    struct push_answer answer;
    int answers = 0;
    enum push_pull_end end =
        worker->pipeline ? pipeline_drain(worker->pipeline, &answer, &answers, &worker->error) : PUSH_PULL_DONE;
    if (answers > 0) {
        take_answer(worker, &answer);
    }
    return end;
}

/* All parameters anew, after the engine was used for something else or looks bad. */
static enum push_pull_end refresh(struct remote_worker *worker)
{
    enum push_pull_end end = settle(worker);
    end = end == PUSH_PULL_DONE ? push_pull_refresh(&worker->exchange, &worker->error) : end;
    if (end == PUSH_PULL_DONE && worker->pipeline && !pipeline_load(worker->pipeline, &worker->error)) {
        end = PUSH_PULL_REFUSED;
    }
    return end;
}

/* Data that comes from the chief: how much there is. */
static bool learn_data(struct remote_worker *worker)
{
    struct feed_facts facts;
    if (!worker->feed) {
        return true;
    }
    heartbeat_say(worker->heartbeat, "waiting for worker 0, who has the data");
    if (!take_end(worker, feed_ask(worker->feed, &facts, &worker->error))) {
        return false;
    }
    worker->dataset.train.count = facts.train;
    worker->dataset.validation.count = facts.validation;
    snprintf(worker->dataset.description, sizeof worker->dataset.description, "%s", facts.description);
    if (!plan_data(worker, &worker->error)) {
        stop(worker, END_FAILED);
        return false;
    }
    return true;
}

/* Summaries come from the chief. */
static bool begin_watch(struct remote_worker *worker)
{
    struct summary_options options = {.config = &worker->config,
                                      .model = &worker->model,
                                      .engine = worker->engine,
                                      .dataset = &worker->dataset,
                                      .digest = worker->self.digest,
                                      .global_step = worker->global_step};
    if (worker->chief && !watch_open(&worker->watch, &options, &worker->traffic, &worker->error)) {
        stop(worker, END_FAILED);
        return false;
    }
    if (worker->chief) {
        chief_watch(worker->chief, worker->watch.summary);
    }
    return true;
}

/* handshake_rules.knows, of those who come for batches. */
static bool knows(void *context, const char *digest)
{
    return live_knows(((struct remote_worker *)context)->live, digest);
}

/*
 * From now on this worker takes part in rollouts, and the chief serves data; config: as the process was started. It is
 * not in training yet, for the rollout may be what lets it join, or keeps it from joining.
 */
static bool begin_rollouts(struct remote_worker *worker, const struct config *config)
{
    const bool serves = worker->is_chief && config->data.data_sharding == SHARDING_CHIEF;
    char text[64];
    if (!live_create(&worker->live, config, &worker->self, worker->chief, &worker->traffic, &worker->error) ||
        (serves && !data_server_create(&worker->data_server, &worker->config, &worker->self, &worker->dataset, knows,
                                       worker, &worker->error))) {
        stop(worker, END_FAILED);
        return false;
    }
    snprintf(text, sizeof text, "worker %d takes part", config->cluster.task_index);
    notify_ready(text); /* it may have to wait for others long, and that is no fault of its own */
    return true;
}

/* Everybody comes in here at the start, and again after the shards were restored. */
static bool join(struct remote_worker *worker, struct chief_start *start)
{
    heartbeat_say(worker->heartbeat, "waiting for the model");
    live_note_joined(worker->live, false);
    settle(worker); /* whatever its end: what was under way belongs to a model that is gone */
    enum push_pull_end end;
    do { /* a ps may be lost again before all have what the chief wrote */
        if (worker->chief && !take_end(worker, chief_begin(worker->chief, start, &worker->error))) {
            return false;
        }
        end = push_pull_join(&worker->exchange, &worker->error);
    } while (end == PUSH_PULL_AGAIN && signals_pending() == 0);
    if (!take_end(worker, end)) {
        return false;
    }
    if (worker->pipeline && !pipeline_load(worker->pipeline, &worker->error)) {
        stop(worker, END_FAILED);
        return false;
    }
    heartbeat_say(worker->heartbeat, "");
    worker->joined = true;
    live_note_joined(worker->live, true);
    worker->global_step = worker->exchange.global_step;
    worker->since_report = begin_tally(worker);
    /* Workers share the steps, so a worker that comes late or comes back goes on about where it would stand. */
    worker->first_draw = worker->global_step / worker->config.cluster.worker_hosts.count - worker->local_step;
    tell_vitals(worker, STATE_TRAINING);
    return true;
}

/* ---- What is due ---- */

static void report_progress(struct remote_worker *worker)
{
    struct tally *tally = &worker->since_report;
    int64_t steps = worker->local_step - tally->local_steps;
    double seconds = clock_monotonic_s() - tally->begun_s;
    if (steps > 0) {
        report_step(&(struct report_step){
            .worker = worker->config.cluster.task_index,
            .epoch = plan_epoch(&worker->plan, worker->global_step),
            .global_step = worker->global_step,
            .local_step = worker->local_step,
            .loss = tally->loss_sum / (double)steps,
            .learning_rate = schedule_learning_rate(&worker->config.train, worker->global_step - 1),
            .ms_per_batch = 1e3 * seconds / (double)steps,
            .examples_per_s = (double)tally->images / seconds,
        });
    }
    *tally = begin_tally(worker);
}

/* How many times something that is due every `every` steps has been due by now. */
static int64_t times_due(int64_t step, int64_t every)
{
    return every > 0 ? step / every : 0;
}

static int64_t validations_due(const struct plan *plan, int64_t step)
{
    return plan->validate_steps > 0 ? times_due(step, plan->validate_steps)
                                    : step * plan->batches_per_step / plan->epoch_batches;
}

static void validate(struct remote_worker *worker)
{
    double begin_s = clock_monotonic_s();
    enum chief_verdict verdict = chief_validate(worker->chief, &worker->error);
    if (verdict == CHIEF_FAILED) {
        stop(worker, END_FAILED);
        return;
    }
    if (verdict != CHIEF_GO_ON) {
        stop(worker, verdict == CHIEF_TARGET ? END_TARGET : END_PATIENCE);
        return;
    }
    enum push_pull_end end = refresh(worker);
    struct chief_start start;
    if (end == PUSH_PULL_AGAIN) {
        join(worker, &start);
    } else {
        take_end(worker, end);
    }
    worker->since_report.begun_s += clock_monotonic_s() - begin_s;
}

static void do_what_is_due(struct remote_worker *worker, int64_t before)
{
    live_look(worker->live, &worker->config, &worker->plan, worker->global_step, (float)worker->last_loss, true);
    if (times_due(worker->global_step, worker->plan.log_steps) > times_due(before, worker->plan.log_steps)) {
        report_progress(worker);
    }
    if (clock_monotonic_s() - worker->since_vitals.begun_s >= VITALS_S) {
        tell_vitals(worker, STATE_TRAINING);
    }
    if (worker->chief) {
        chief_note_step(worker->chief, worker->global_step);
        watch_look(&worker->watch, before, worker->global_step, worker->dropped);
        if (worker->dataset.validation.count > 0 &&
            validations_due(&worker->plan, worker->global_step) > validations_due(&worker->plan, before)) {
            validate(worker);
        }
    }
}

/* ---- Steps ---- */

static void account(struct remote_worker *worker, const struct train_result *done)
{
    worker->local_step++;
    worker->last_loss = done->last_loss;
    worker->since_report.loss_sum += done->last_loss;
    worker->since_report.images += done->images;
    watch_count(&worker->watch, done, worker->staleness);
    worker->bad_steps = 0;
    if (worker->local_step == WARM_UP_STEPS) {
        worker->warm = begin_tally(worker);
    }
}

/* Others wait for this worker's gradient: one without anything in it, and a loss that says why, tells them not to. */
static enum push_pull_end push_nothing(struct remote_worker *worker)
{
    int64_t step = worker->global_step;
    struct push_answer answer;
    struct push_note note = {.base_step = step, .local_step = worker->local_step, .examples = 1, .loss = NAN};
    outbox_begin(&worker->outbox);
    enum push_pull_end end = push_pull_exchange(&worker->exchange, &worker->outbox, &note, &answer, &worker->error);
    if (end == PUSH_PULL_DONE && answer.global_step == step) {
        end = push_pull_await_step(&worker->exchange, step, &worker->error);
    }
    worker->global_step = worker->exchange.global_step;
    return end;
}

/* The loss is not finite, so there is nothing to push. Perhaps newer parameters are better. */
static void suffer(struct remote_worker *worker, double loss)
{
    worker->bad_steps++;
    if (worker->bad_steps == 1) {
        log_warning("the loss is %g at global step %lld: nothing is pushed", report_number(loss),
                    (long long)worker->global_step);
    }
    live_look(worker->live, &worker->config, &worker->plan, worker->global_step, NAN, false);
    if (worker->chief && worker->bad_steps >= BAD_STEPS && !live_is_rolling(worker->live)) {
        error_set(&worker->error,
                  "the loss is %g after step %lld at learning rate %g: training stops here; lower --learning_rate and "
                  "start again",
                  report_number(loss), (long long)worker->global_step,
                  schedule_learning_rate(&worker->config.train, worker->global_step));
        stop(worker, END_FAILED);
        return;
    }
    shard_link_pause(clock_monotonic_s() + 0.01 * worker->bad_steps);
    enum push_pull_end end = worker->config.cluster.issync ? push_nothing(worker) : refresh(worker);
    struct chief_start start;
    if (end == PUSH_PULL_AGAIN) {
        join(worker, &start);
    } else {
        take_end(worker, end);
    }
}

/*
 * With synchronous training what a worker draws is a function of the step, as local training's micro-batches do: who
 * comes late or comes back draws what it would have drawn, had it been there.
 */
static int64_t next_draw(const struct remote_worker *worker)
{
    return worker->config.cluster.issync ? worker->global_step : worker->first_draw + worker->local_step;
}

/* From the files. */
static bool draw_streamed(struct remote_worker *worker, int64_t step, struct batch *batch)
{
    *batch = (struct batch){.images = worker->images, .labels = worker->labels, .indexes = worker->indexes};
    if (!streaming_draw(worker->dataset.streaming, worker->sampler.task, step, worker->images, worker->labels,
                        &batch->count, &worker->error)) {
        stop(worker, END_FAILED);
        return false;
    }
    for (int i = 0; i < batch->count; i++) {
        worker->indexes[i] = i;
    }
    return true;
}

static bool draw(struct remote_worker *worker, struct batch *batch)
{
    int64_t step = next_draw(worker);
    bool good = true;
    if (worker->feed) {
        good = take_end(worker, feed_take(worker->feed, step, batch, &worker->error));
    } else if (worker->dataset.streaming) {
        good = draw_streamed(worker, step, batch);
    } else {
        *batch =
            (struct batch){.images = worker->share.images, .labels = worker->share.labels, .indexes = worker->indexes};
        batch->count = sampler_draw(&worker->sampler, step, worker->indexes);
    }
    batch->task = worker->sampler.task;
    batch->step = step;
    return good;
}

/* Computes the gradient of the next batch into the outbox. */
static bool compute(struct remote_worker *worker, struct batch *batch, struct train_result *done)
{
    PROFILE("compute");
    struct outbox *outbox = worker->pipeline ? pipeline_outbox(worker->pipeline) : &worker->outbox;
    struct gradient_sink sink = outbox_sink(outbox);
    if (!draw(worker, batch)) {
        return false;
    }
    outbox_begin(outbox);
    if (!worker->engine->table->step(worker->engine, batch, &sink, done, &worker->error)) {
        stop(worker, END_FAILED);
        return false;
    }
    return true;
}

static enum push_pull_end push(struct remote_worker *worker, const struct push_note *note, struct push_answer *answer,
                               int *answers)
{
    *answers = 1;
    return worker->pipeline ? pipeline_push(worker->pipeline, note, answer, answers, &worker->error)
                            : push_pull_exchange(&worker->exchange, &worker->outbox, note, answer, &worker->error);
}

static void step(struct remote_worker *worker)
{
    struct batch batch;
    struct train_result done;
    struct push_answer answer;
    struct chief_start start;
    int answers;
    int64_t before = worker->global_step;
    if (!compute(worker, &batch, &done)) {
        return;
    }
    if (!done.finite) {
        suffer(worker, done.bad_loss);
        return;
    }
    struct push_note note = {.base_step = worker->global_step,
                             .local_step = worker->local_step,
                             .examples = (uint32_t)batch.count,
                             .loss = (float)done.last_loss};
    enum push_pull_end end = push(worker, &note, &answer, &answers);
    if (end == PUSH_PULL_AGAIN) {
        join(worker, &start);
        return;
    }
    if (!take_end(worker, end)) {
        return;
    }
    if (answers > 0) {
        take_answer(worker, &answer);
        if (answer.over) {
            return;
        }
    }
    account(worker, &done);
    do_what_is_due(worker, before);
}

static void train(struct remote_worker *worker)
{
    worker->all = begin_tally(worker);
    while (worker->end == END_NOT_YET) {
        if (signals_pending() != 0) {
            stop(worker, END_INTERRUPTED);
        } else if (is_over(worker)) {
            take_end(worker, PUSH_PULL_STOPPED);
        } else if (worker->global_step >= worker->plan.last_step &&
                   (worker->exchange.count == 1 || worker->config.cluster.issync)) {
            stop(worker, END_LAST_STEP);
        } else {
            step(worker);
        }
    }
    if (worker->end != END_FAILED && worker->end != END_PARTS) {
        enum push_pull_end end = settle(worker);
        if (end == PUSH_PULL_REFUSED) {
            log_warning("the last gradients were not taken: %s", worker->error.text);
        }
        report_progress(worker);
    }
}

/* ---- The end of the chief ---- */

static void describe_end(const struct remote_worker *worker, char *text, size_t size)
{
    const struct config_train *train = &worker->config.train;
    if (worker->end == END_TARGET) {
        snprintf(text, size, "validation accuracy %g reached", train->target_accuracy);
    } else if (worker->end == END_PATIENCE) {
        snprintf(text, size, "no better validation %d times in a row", train->patience);
    } else {
        snprintf(text, size, worker->local_step == 0 ? "nothing left to train" : "last step reached");
    }
}

static void report_end(const struct remote_worker *worker, const struct evaluation *test, const struct tally *now,
                       const char *reason)
{
    struct chief_record record;
    const struct tally *from =
        worker->warm.begun_s > 0 && now->begun_s > worker->warm.begun_s ? &worker->warm : &worker->all;
    double seconds = fmax(now->begun_s - from->begun_s, 1e-9);
    chief_record(worker->chief, &record);
    report_done(&(struct report_done){
        .test = test,
        .reason = reason,
        .steps = worker->global_step,
        .local_steps = worker->local_step,
        .epochs =
            (double)worker->global_step * (double)worker->plan.batches_per_step / (double)worker->plan.epoch_batches,
        .steps_per_s = (double)(now->local_steps - from->local_steps) / seconds,
        .global_steps_per_s = (double)(now->global_step - from->global_step) / seconds,
        .seconds = clock_monotonic_s() - worker->begin_s,
        .best_accuracy = record.best_accuracy,
        .best_step = record.best_step,
    });
}

/* *again: a ps has lost the state of the end, and training has to go on from a checkpoint. */
static bool finish_chief(struct remote_worker *worker, bool *again, struct error *error)
{
    char reason[128];
    struct evaluation test;
    struct tally now = begin_tally(worker);
    enum push_pull_end end = chief_finish(worker->chief, true, &worker->global_step, error);
    *again = end == PUSH_PULL_AGAIN;
    if (end != PUSH_PULL_DONE || !evaluation_create(&test, worker->model.widths[worker->model.layer_count], error)) {
        return false;
    }
    bool done = evaluate(&test, worker->engine, worker->config.train.ema_decay > 0, &worker->test, error);
    if (done) {
        struct error trouble;
        describe_end(worker, reason, sizeof reason);
        summary_test(worker->watch.summary, worker->global_step, evaluation_accuracy(&test));
        chief_note_step(worker->chief, worker->global_step);
        if (!chief_end_job(worker->chief, false, evaluation_accuracy(&test), reason, &trouble)) {
            log_warning("not every ps could be told that the job is over: %s", trouble.text);
        }
        report_end(worker, &test, &now, reason);
    }
    evaluation_destroy(&test);
    return done;
}

static int end_status(struct remote_worker *worker)
{
    struct chief_record record;
    chief_record(worker->chief, &record);
    return record.checkpoint_failed ? COMMAND_FAILED : COMMAND_DONE;
}

static int fail(struct remote_worker *worker, const struct error *error)
{
    struct error trouble;
    log_error("%s", error->text);
    /* Before it joined, or where another process is the chief, the job is not ours to end. */
    if (worker->chief && worker->joined && !heartbeat_is_out(worker->heartbeat)) {
        chief_end_job(worker->chief, true, NAN, error->text, &trouble);
    }
    return COMMAND_FAILED;
}

static int interrupted(struct remote_worker *worker)
{
    int number = signals_pending(), status = signals_exit_status(number);
    struct error error;
    struct chief_record record = {0};
    if (worker->chief && worker->joined) {
        if (chief_finish(worker->chief, false, &worker->global_step, &error) != PUSH_PULL_DONE) {
            log_warning("no last checkpoint: %s", error.text);
        }
        chief_record(worker->chief, &record);
        status = record.checkpoint_failed ? COMMAND_FAILED : status;
    }
    report_interrupted(signals_name(number), worker->global_step, record.last_checkpoint);
    return status;
}

/* ---- The end of the others ---- */

/* A rollout ends this process, and not the job. */
static int part(const struct remote_worker *worker)
{
    return live_end(worker->live) == LIVE_STARTS_ANEW ? RESTART_STATUS : COMMAND_DONE;
}

/*
 * The chief reports the outcome; until then the shards hold it. *again: one of them lost it, so that the job goes on from
 * a checkpoint, in a generation that this worker has to join.
 */
static int wait_for_end(struct remote_worker *worker, bool *again)
{
    struct job_news news;
    char why[256];
    *again = false;
    double begin_s = clock_monotonic_s(), told_s = begin_s;
    heartbeat_say(worker->heartbeat, "waiting for worker 0 to end the job");
    heartbeat_hurry(worker->heartbeat);
    tell_vitals(worker, STATE_DONE);
    for (;;) {
        double now_s = clock_monotonic_s();
        heartbeat_news(worker->heartbeat, &news);
        if (news.over || news.refused) {
            break;
        }
        if (signals_pending() != 0) {
            return interrupted(worker);
        }
        if (live_end(worker->live) != LIVE_STAYS) {
            return part(worker);
        }
        if (heartbeat_is_unwell(worker->heartbeat, worker->exchange.generation, worker->exchange.joined_s, why)) {
            log_warning("%s; training goes on once the model is there again", why);
            *again = true;
            return COMMAND_FAILED;
        }
        if (now_s - begin_s >= END_PATIENCE_S) {
            log_error("worker 0 did not end the job within %d s of its last step", END_PATIENCE_S);
            return COMMAND_FAILED;
        }
        if (now_s - told_s >= LINK_TOLD_EVERY_S) {
            told_s = now_s;
            log_info("waiting for worker 0 (%s) to end the job, %.0f s", worker->config.cluster.worker_hosts.items[0],
                     now_s - begin_s);
        }
        shard_link_pause(now_s + 0.005);
    }
    if (news.failed || news.refused) {
        log_error("%s", news.sentence[0] != '\0' ? news.sentence : "worker 0 says that the job failed");
        return COMMAND_FAILED;
    }
    if (!worker->chief && !isnan(news.test_accuracy)) {
        log_info("the job is over: test accuracy %.2f%%", 100 * (double)news.test_accuracy);
    }
    return COMMAND_DONE;
}

static int end_worker(struct remote_worker *worker);

/* The end was none. */
static int go_on(struct remote_worker *worker)
{
    struct chief_start start;
    worker->end = END_NOT_YET;
    if (join(worker, &start)) {
        train(worker);
    }
    return end_worker(worker);
}

static int end_worker(struct remote_worker *worker)
{
    struct error error;
    bool again;
    int status;
    if (live_end(worker->live) != LIVE_STAYS) { /* whatever else went wrong on the way out */
        return part(worker);
    }
    switch (worker->end) {
    case END_LAST_STEP:
    case END_TARGET:
    case END_PATIENCE:
        if (!worker->chief) {
            status = wait_for_end(worker, &again);
            return again ? go_on(worker) : status;
        }
        if (finish_chief(worker, &again, &error)) {
            return end_status(worker);
        }
        if (!again || signals_pending() != 0) {
            return fail(worker, &error);
        }
        log_warning("%s; training goes on from the newest checkpoint", error.text);
        return go_on(worker);
    case END_BY_OTHERS:
        status = wait_for_end(worker, &again);
        return again ? go_on(worker) : status;
    case END_INTERRUPTED:
        return interrupted(worker);
    case END_PARTS:
    case END_NOT_YET:
    case END_FAILED:
        break;
    }
    return fail(worker, &worker->error);
}

int remote_worker_run(const struct config *config)
{
    struct remote_worker worker = {.config = *config,
                                   .begin_s = clock_monotonic_s(),
                                   .is_chief = config->cluster.task_index == 0,
                                   .last_loss = NAN};
    struct chief_start start = {0};
    struct error error;
    int status = COMMAND_FAILED;
    if (!config_check_role(config, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (!open_worker(&worker, &error)) {
        log_error("%s", error.text);
    } else {
        if (begin_rollouts(&worker, config) && learn_data(&worker) && join(&worker, &start) && begin_watch(&worker)) {
            tell_start(&worker, &start);
            enum chief_verdict verdict = worker.chief ? chief_verdict(worker.chief) : CHIEF_GO_ON;
            if (verdict != CHIEF_GO_ON) {
                stop(&worker, verdict == CHIEF_TARGET ? END_TARGET : END_PATIENCE);
            }
            train(&worker);
        }
        status = end_worker(&worker);
    }
    if (status == RESTART_STATUS) {
        notify_restarting();
    } else {
        notify_stopping();
    }
    watch_close(&worker.watch, status == COMMAND_DONE);
    close_worker(&worker, status == COMMAND_DONE     ? "done"
                          : status == RESTART_STATUS ? "starts anew in another version of the config"
                                                     : "stopped");
    return status;
}
