/* A worker's parts, and what its steps share. */
#include "worker/remote/remote_worker.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/notify.h"
#include "base/process/signals.h"
#include "net/channel.h"
#include "observe/observe.h"
#include "ps/job/plan.h"
#include "ps/store/model.h"
#include "worker/data/batch_source.h"
#include "worker/data/streaming.h"
#include "worker/initial.h"
#include "worker/remote/own_rows.h"
#include "worker/remote/shard_link.h"

/* --- Answers of the shards --- */

/* What stops training, and what the loop takes from the shards' answers. */

bool worker_take_end(struct remote_worker *worker, enum exchange_result end)
{
    struct training *training = &worker->training;
    struct job_status job;
    switch (end) {
    case EXCHANGE_OK:
        return true;
    case EXCHANGE_FAILED:
        return training_fail(training);
    case EXCHANGE_REJOIN:
        if (signals_pending() == 0) {
            return training_stop(training, TRAINING_REJOINS);
        }
        break;
    case EXCHANGE_STOPPED:
        break;
    }
    if (live_config_end(worker->live) != LIVE_STAYS) {
        return training_stop(training, TRAINING_LEAVES);
    }
    heartbeat_job_status(worker->heartbeat, &job);
    if (job.refused) {
        error_set(&training->error, "%s", job.message);
        return training_fail(training);
    }
    return training_stop(training, signals_pending() != 0 ? TRAINING_INTERRUPTED : TRAINING_BY_OTHERS);
}

void worker_update_vitals(struct remote_worker *worker, enum member_state state)
{
    const struct training *training = &worker->training;
    char message[256] = "";
    double now_s = clock_monotonic_s(), seconds = now_s - worker->vitals_s;
    int64_t steps = training->local_step - worker->vitals_step;
    heartbeat_set_vitals(worker->heartbeat,
                         &(struct vitals){.state = state,
                                          .global_step = training->global_step,
                                          .local_step = training->local_step,
                                          .steps_per_s = seconds > 0 ? (float)((double)steps / seconds) : 0,
                                          .loss = (float)worker->last_loss,
                                          .staleness = worker->staleness});
    if (state == STATE_TRAINING) {
        live_config_drift(worker->live, message);
        heartbeat_set_message(worker->heartbeat, message);
    }
    worker->vitals_s = now_s;
    worker->vitals_step = training->local_step;
}

bool worker_has_diverged(struct remote_worker *worker, int bad_steps, const char *what, double value)
{
    enum { MOST_BAD_STEPS = 10 };
    struct training *training = &worker->training;
    if (!worker->chief || bad_steps < MOST_BAD_STEPS || live_config_is_rolling(worker->live)) {
        return false;
    }
    training_diverges(training, what, value, training->global_step);
    return true;
}

void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer)
{
    struct training *training = &worker->training;
    training->global_step = answer->global_step;
    worker->staleness = answer->staleness;
    worker->dropped += answer->stale || answer->not_finite;
    if (!answer->stale) {
        worker->refused_steps = answer->not_finite ? worker->refused_steps + 1 : 0;
    }
    if (answer->over) {
        training_stop(training, TRAINING_LAST_STEP);
    } else if (answer->not_finite) {
        log_warning("a gradient was refused at global step %lld: it is not finite", (long long)training->global_step);
        worker_has_diverged(worker, worker->refused_steps, "the gradient", NAN);
    }
}

enum exchange_result worker_settle(struct remote_worker *worker)
{
    struct push_answer answer;
    int answers = 0;
    enum exchange_result end =
        worker->pipeline ? pipeline_drain(worker->pipeline, &answer, &answers, &worker->training.error) : EXCHANGE_OK;
    if (answers > 0) {
        worker_take_answer(worker, &answer);
    }
    return end;
}

enum exchange_result worker_refresh(struct remote_worker *worker)
{
    struct error *error = &worker->training.error;
    enum exchange_result end = worker_settle(worker);
    end = end == EXCHANGE_OK ? push_pull_refresh(&worker->exchange, error) : end;
    return end == EXCHANGE_OK && worker->pipeline && !pipeline_load(worker->pipeline, error) ? EXCHANGE_FAILED : end;
}

/* --- Batches --- */

/*
 * Chooses the images that this worker draws from, and makes room for a batch of them.
 *
 * Batches: from images in memory, from files, or from the chief.
 */
static bool worker_take_share(struct remote_worker *worker, struct error *error)
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
        worker->share = examples_part(all, first, end - first);
        if (worker->dataset.streaming) {
            streaming_take_share(worker->dataset.streaming, first, end - first);
        }
    }
    const struct sampler sampler = {.seed = (uint64_t)config->train.seed,
                                    .task = (uint32_t)index,
                                    .examples = (uint32_t)worker->share.count,
                                    .batch_size = (uint32_t)config->train.batch_size};
    return batch_source_create(&worker->source, &worker->share, worker->dataset.streaming, &sampler, error);
}

/*
 * In synchronous training what a worker draws is a function of the step, as it is for local training's micro-batches: a
 * worker that comes late or returns draws what it would have drawn if it had been there.
 */
static int64_t next_draw(const struct remote_worker *worker, int64_t number)
{
    return worker->config.cluster.issync ? worker->training.global_step * worker_step_batches(worker) + number
                                         : worker->first_draw + worker->training.local_step + number;
}

int64_t worker_step_batches(const struct remote_worker *worker)
{
    return round_batches(&worker->config.train, sampler_epoch_batches(&worker->source.sampler));
}

int64_t worker_fair_draws(const struct remote_worker *worker)
{
    const int64_t size = worker->config.train.buffer_size, pushes = size > 0 ? size : 1; /* of a step */
    const int64_t own = worker->training.global_step * pushes / worker->config.cluster.worker_hosts.count;
    return own * worker_step_batches(worker);
}

bool worker_draw(struct remote_worker *worker, int64_t number, struct batch *batch)
{
    const uint32_t task = worker->source.sampler.task;
    const int64_t step = next_draw(worker, number);
    struct error *error = &worker->training.error;
    if (!worker->fetcher) {
        return batch_source_draw(&worker->source, task, step, batch, error) || training_fail(&worker->training);
    }
    const bool good = worker_take_end(worker, batch_fetcher_take(worker->fetcher, step, batch, error));
    batch->task = task;
    batch->step = step;
    return good;
}

/* --- The residual --- */

/*
 * The residual of packed gradients, in files: saved at the steps of checkpoints, after each round (rounds take much
 * longer), and when this process ends.
 *
 * In synchronous training it is saved before the push that makes such a step: whichever checkpoint of it exists, the
 * files of all workers are there, and training continues from it with the same bits.
 */

static struct outbox_residual *residual_of(struct remote_worker *worker)
{
    return worker->pipeline ? pipeline_outbox(worker->pipeline)->residual : worker->outbox.residual;
}

static bool is_kept(struct remote_worker *worker)
{
    return residual_of(worker) && worker->residual_files.folder[0] != '\0';
}

bool worker_load_residual(struct remote_worker *worker, struct error *error)
{
    struct outbox_residual *residual = residual_of(worker);
    const int64_t step = worker->training.global_step;
    int64_t found = -1;
    if (!residual || worker->residual_of == worker->exchange.generation) {
        return true; /* this process still has it */
    }
    worker->residual_of = worker->exchange.generation;
    if (is_kept(worker) && !residual_files_load(&worker->residual_files, step, residual->now, &found, error)) {
        return false;
    }
    if (found < 0) {
        memset(residual->now, 0, worker->model.float_count * sizeof *residual->now);
    } else {
        log_info("continues at step %lld with the unsent parts of pushes at step %lld", (long long)step,
                 (long long)found);
    }
    return true;
}

void worker_save_residual(struct remote_worker *worker, int64_t step)
{
    struct error error;
    if (is_kept(worker) && !residual_files_save(&worker->residual_files, step, residual_of(worker)->now, &error)) {
        log_warning("the unsent parts of pushes are not saved: %s", error.text);
    }
}

void worker_save_residual_if_due(struct remote_worker *worker, int64_t before, int64_t step)
{
    const int64_t every = worker->config.output.save_steps;
    if (worker->local || (every > 0 && before / every != step / every)) {
        worker_save_residual(worker, step);
    }
}

/* --- The shape of the data --- */

/* Two requests on a separate connection; after a failure they are tried again. */

bool data_shape_is_unknown(const struct config *config)
{
    return config->data.target.count > 0 || config->data.data_source == DATA_TABLE ||
           config->model.hidden_count != CONFIG_AUTO;
}

/* Worker 0's answers. */
struct shape {
    char units[MODEL_UNITS_TEXT];
    char *schema; /* as JSON; NULL: images */
};

static bool ask_shape_once(struct link *link, struct shape *shape, struct error *error)
{
    struct channel *channel = &link->channel;
    char nothing[] = "";
    const struct message_layers layers = {.units = nothing};
    const struct message_describe describe = {.digest = nothing};
    if (!link_call(link, &(struct outgoing){.type = MESSAGE_layers, .message = &layers}, MESSAGE_layers, NULL, error)) {
        return false;
    }
    snprintf(shape->units, sizeof shape->units, "%s", channel->message.layers.units);
    if (!link_call(link, &(struct outgoing){.type = MESSAGE_describe, .message = &describe}, MESSAGE_description, NULL,
                   error)) {
        return false;
    }
    const size_t size = channel->bulk_left;
    free(shape->schema);
    shape->schema = size > 0 ? calloc(1, size + 1) : NULL;
    if (size > 0 && !shape->schema) {
        return error_set(error, "out of memory for the preprocessing of worker 0");
    }
    return size == 0 || channel_read_bulk(channel, shape->schema, size, clock_monotonic_s() + LINK_ANSWER_S, error);
}

static bool ask_shape(struct shape *shape, const struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error)
{
    struct link link;
    if (!shard_link_create_to_chief(&link, config, identity, traffic, error)) {
        return false;
    }
    bool done = false, over = false;
    while (!done && !over) {
        over = link_open(&link, NULL, NULL, error) != LINK_OPEN;
        done = !over && ask_shape_once(&link, shape, error);
        if (!over && !done) {
            link_lost(&link, error->text);
        }
    }
    link_destroy(&link);
    return done;
}

bool data_shape_learn(struct dataset *dataset, struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error)
{
    struct shape shape = {.schema = NULL};
    bool done = ask_shape(&shape, config, identity, traffic, error);
    if (done && shape.schema) {
        done = dataset_describe(dataset, shape.schema, config, error) && dataset_fit(config, dataset, error);
    } else if (done && config->model.hidden_count != CONFIG_AUTO) {
        done = model_take_units(&config->model, shape.units, error);
    }
    free(shape.schema);
    return done;
}

/* --- Parts --- */

/* Creates a worker's parts: its data, its plan, its engine, and its links. */

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

static struct engine_options engine_options(struct remote_worker *worker)
{
    worker->engine_config = worker->config;
    worker->engine_config.train.optimizer = OPTIMIZER_SGD;
    if (!worker->is_chief) {
        worker->engine_config.train.ema_decay = 0;
    }
    model_layout(&worker->model, &worker->config.model);
    return (struct engine_options){
        .model = &worker->model,
        .config = &worker->engine_config,
        .like = worker->dataset.train.count > 0 || worker->dataset.schema ? &worker->dataset.train : NULL,
        .low_priority = worker->low_priority};
}

static bool create_engine(struct remote_worker *worker, struct error *error)
{
    struct engine_options options = engine_options(worker);
    return engine_choose(&worker->training.engine, &options, &worker->startup, error);
}

/* Others can end the job for a worker, but not for the chief. */
bool worker_is_over(void *context)
{
    const struct remote_worker *worker = context;
    bool over = worker->is_chief ? heartbeat_is_fenced(worker->heartbeat) : heartbeat_is_over(worker->heartbeat);
    return over || live_config_end(worker->live) != LIVE_STAYS;
}

static bool needs_rejoin(void *context, uint32_t generation, double since_s, char why[256])
{
    const struct remote_worker *worker = context;
    return heartbeat_needs_rejoin(worker->heartbeat, generation, since_s, why);
}

static bool create_parts(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    struct engine *engine = worker->training.engine;
    char device[128];
    engine->table->describe(engine, device, sizeof device);
    struct push_pull_options exchange = {.config = config,
                                         .model = &worker->model,
                                         .engine = engine,
                                         .identity = &worker->identity,
                                         .traffic = &worker->traffic,
                                         .given_up = worker_is_over,
                                         .needs_rejoin = needs_rejoin,
                                         .writes_model = worker->is_chief,
                                         .context = worker};
    int depth = config->cluster.pipeline_depth;
    worker->residual_files = (struct residual_files){config->output.train_dir, config->cluster.task_index,
                                                     worker->model.float_count, config->output.save_steps};
    if (depth == 0) {
        outbox_create(&worker->outbox, &worker->model, outbox_form(config), NULL);
    }
    if (config_has_rounds(&config->train)) {
        worker->local = local_steps_create(&worker->model, engine, &config->train);
    }
    if (!push_pull_create(&worker->exchange, &exchange, error) ||
        (depth > 0 && !pipeline_create(&worker->pipeline, &worker->exchange, engine, depth, error)) ||
        !heartbeat_create(&worker->heartbeat, config, &worker->identity, &worker->traffic, device, error)) {
        return false;
    }
    return !worker->is_chief || chief_create(&worker->chief,
                                             &(struct chief_options){.config = config,
                                                                     .model = &worker->model,
                                                                     .identity = &worker->identity,
                                                                     .engine = engine,
                                                                     .dataset = &worker->dataset,
                                                                     .test = worker->training.test,
                                                                     .plan = &worker->training.plan,
                                                                     .traffic = &worker->traffic,
                                                                     .given_up = worker_is_over,
                                                                     .context = worker},
                                             error);
}

/* Everything that depends on the amount of data. */
static bool plan_data(struct remote_worker *worker, struct error *error)
{
    if (!training_check_data(&worker->training, error)) {
        return false;
    }
    training_plan(&worker->training);
    return worker_take_share(worker, error);
}

static bool create_fetcher(struct remote_worker *worker, struct error *error)
{
    return batch_fetcher_create(
        &worker->fetcher,
        &(struct batch_fetcher_options){.config = &worker->config,
                                        .like = worker->dataset.schema ? &worker->dataset.train : NULL,
                                        .identity = &worker->identity,
                                        .traffic = &worker->traffic,
                                        .given_up = worker_is_over,
                                        .context = worker},
        error);
}

/*
 * Own rows must mean the same to the model as the other workers' rows; and new data the same as those that the model
 * was trained on, which only the chief's checkpoint holds.
 */
static bool take_schema(struct remote_worker *worker, struct error *error)
{
    const struct config *config = &worker->config;
    bool is_table = false;
    return (config->data.data_sharding != SHARDING_OWN && !config->data.new_data) ||
           (dataset_is_table(&is_table, config, error) &&
            (!is_table || own_rows_agree(&worker->dataset.schema, config, &worker->identity, &worker->traffic, error)));
}

bool worker_open(struct remote_worker *worker, struct error *error)
{
    struct config *config = &worker->config;
    struct member member = {MEMBER_WORKER, config->cluster.task_index};
    const bool by_chief = config->data.data_sharding == SHARDING_CHIEF;
    if (!check_config(config, error) || !identity_create(&worker->identity, config, member, error)) {
        return false;
    }
    observe_certificate(identity_valid_until_s(&worker->identity));
    worker->training.model = &worker->model;
    worker->training.config = &worker->config;
    worker->training.dataset = &worker->dataset;
    worker->training.test = worker->is_chief ? &worker->test : NULL;
    worker->training.keeps_best = worker->is_chief;
    worker->training.digest = worker->identity.digest;
    live_config_hold(&worker->traffic, config);
    atomic_store(&worker->traffic.answer_within_s, config->cluster.join_secs);
    if (by_chief && !worker->is_chief) { /* the number is requested after the chief listens */
        return (!data_shape_is_unknown(config) ||
                data_shape_learn(&worker->dataset, config, &worker->identity, &worker->traffic, error)) &&
               create_engine(worker, error) && create_parts(worker, error) && create_fetcher(worker, error);
    }
    if (!dataset_is_needed_first(config)) {
        struct engine_options options = engine_options(worker);
        engine_begin(&worker->startup, &options); /* a GPU takes time to start, and so does loading */
    }
    const int usual_batch = config->train.batch_size;
    if (!take_schema(worker, error) ||
        !load_data(&worker->dataset, worker->is_chief ? &worker->test : NULL, config, error)) {
        return false;
    }
    if (config->train.batch_size < usual_batch) {
        engine_startup_end(&worker->startup); /* it was begun for larger batches than there will be */
    }
    return plan_data(worker, error) && create_engine(worker, error) && create_parts(worker, error);
}

/* --- What the chief's dashboards show of the fleet: the ps' reports on all members --- */

static void fill(void *context, struct board *board)
{
    struct remote_worker *worker = context;
    live_config_show(worker->live, &board->rollout);
    if (!board_begin_members(board, fleet_watch_most(worker->watch))) {
        return;
    }
    board->member_count = fleet_watch_members(worker->watch, board->members, board->member_count);
}

static void show_fleet(struct remote_worker *worker)
{
    struct error error;
    if (!worker->is_chief || !observe_is_on()) {
        return;
    }
    if (!fleet_watch_create(&worker->watch, worker->launched, &worker->identity, &error)) {
        log_warning("dashboard limited to this worker: %s", error.text);
        return;
    }
    observe_source(fill, worker);
}

static void hide_fleet(struct remote_worker *worker)
{
    if (worker->watch) {
        observe_source(NULL, NULL);
        fleet_watch_destroy(worker->watch);
        worker->watch = NULL;
    }
}

/* --- Before the first step, and at the end --- */

static void destroy_validation(struct remote_worker *worker)
{
    struct own_rows_validation *validation = worker->validation;
    if (validation) {
        free(validation->bytes);
        validation_sum_destroy(&validation->sum);
        free(validation);
        worker->validation = NULL;
    }
}

void worker_close(struct remote_worker *worker, const char *message)
{
    hide_fleet(worker);
    data_server_destroy(worker->data_server);
    /* First the parts whose threads ask the live config whether to continue. */
    batch_fetcher_destroy(worker->fetcher);
    pipeline_destroy(worker->pipeline);
    live_config_destroy(worker->live);
    chief_destroy(worker->chief);
    push_pull_destroy(&worker->exchange);
    heartbeat_destroy(worker->heartbeat, message);
    destroy_validation(worker);
    outbox_destroy(&worker->outbox);
    local_steps_destroy(worker->local);
    engine_startup_end(&worker->startup);
    if (worker->training.engine) {
        worker->training.engine->table->destroy(worker->training.engine);
    }
    batch_source_destroy(&worker->source);
    examples_free(&worker->test);
    dataset_free(&worker->dataset);
    identity_destroy(&worker->identity);
}

/* handshake_rules.knows, for workers that fetch batches. */
static bool knows(void *context, const char *digest)
{
    return live_config_knows(((struct remote_worker *)context)->live, digest);
}

static bool begin_rollouts(struct remote_worker *worker)
{
    const struct config *launched = worker->launched;
    struct error *error = &worker->training.error;
    const bool serves = worker->is_chief && launched->data.data_sharding == SHARDING_CHIEF;
    char text[64];
    if (!live_config_create(&worker->live, launched, &worker->config.model, &worker->identity, worker->chief,
                            &worker->traffic, error) ||
        (serves && !data_server_create(&worker->data_server, &worker->config, &worker->identity, &worker->dataset,
                                       knows, worker, error))) {
        return training_fail(&worker->training);
    }
    snprintf(text, sizeof text, "worker %d is running", launched->cluster.task_index);
    show_fleet(worker);
    notify_ready(text); /* it may wait long for others, which is not a failure */
    return true;
}

/* Data from the chief: asks how much there is, and plans accordingly. */
static bool learn_data(struct remote_worker *worker)
{
    struct error *error = &worker->training.error;
    struct batch_fetcher_facts facts;
    heartbeat_set_message(worker->heartbeat, "waiting for worker 0, which has the data");
    if (!worker_take_end(worker, batch_fetcher_ask(worker->fetcher, &facts, error))) {
        return false;
    }
    worker->dataset.train.count = facts.train;
    worker->dataset.validation.count = facts.validation;
    snprintf(worker->dataset.description, sizeof worker->dataset.description, "%s", facts.description);
    return plan_data(worker, error) || training_fail(&worker->training);
}

bool worker_begin(struct remote_worker *worker)
{
    return begin_rollouts(worker) && (!worker->fetcher || learn_data(worker));
}
