/* Creates a worker's parts: its data, its plan, its engine, and its links. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/process/notify.h"
#include "observe/observe.h"
#include "worker/load.h"
#include "worker/remote/data_shape.h"
#include "worker/remote/own_rows.h"
#include "worker/remote/worker/internal.h"

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
        .gives_way = worker->gives_way};
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
    if (!push_pull_create(&worker->exchange, &exchange, error) ||
        !(depth > 0 ? pipeline_create(&worker->pipeline, &worker->exchange, engine, depth, error)
                    : outbox_create(&worker->outbox, &worker->model, outbox_form(config), NULL, error)) ||
        !heartbeat_create(&worker->heartbeat, config, &worker->identity, &worker->traffic, device, error) ||
        (config_has_rounds(&config->train) &&
         !local_steps_create(&worker->local, &worker->model, engine, &config->train, error))) {
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
 * was trained on, which only the chief's checkpoint tells.
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
        log_warning("the page of this worker shows only itself: %s", error.text);
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

void worker_close(struct remote_worker *worker, const char *goodbye)
{
    hide_fleet(worker);
    data_server_destroy(worker->data_server);
    /* First the parts whose threads ask the live config whether to continue. */
    batch_fetcher_destroy(worker->fetcher);
    pipeline_destroy(worker->pipeline);
    live_config_destroy(worker->live);
    chief_destroy(worker->chief);
    push_pull_destroy(&worker->exchange);
    heartbeat_destroy(worker->heartbeat, goodbye);
    worker_destroy_validation(worker);
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
    snprintf(text, sizeof text, "worker %d takes part", launched->cluster.task_index);
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
