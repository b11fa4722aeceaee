/* The role from start to end. */
#include "worker/remote/worker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/notify.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/text/address.h"
#include "base/threads.h"
#include "worker/remote/worker/internal.h"
#include "worker/report.h"

/* handshake_rules.knows, of those who come for batches. */
static bool knows(void *context, const char *digest)
{
    return live_config_knows(((struct remote_worker *)context)->live, digest);
}

/*
 * From now on this worker takes part in rollouts, and the chief serves data; config: as the process was started. It is
 * not in training yet, for the rollout may be what lets it join, or keeps it from joining.
 */
static bool begin_rollouts(struct remote_worker *worker, const struct config *config)
{
    const bool serves = worker->is_chief && config->data.data_sharding == SHARDING_CHIEF;
    char text[64];
    if (!live_config_create(&worker->live, config, &worker->identity, worker->chief, &worker->traffic,
                            &worker->error) ||
        (serves && !data_server_create(&worker->data_server, &worker->config, &worker->identity, &worker->dataset,
                                       knows, worker, &worker->error))) {
        worker_stop(worker, END_FAILED);
        return false;
    }
    snprintf(text, sizeof text, "worker %d takes part", config->cluster.task_index);
    notify_ready(text); /* it may have to wait for others long, and that is no fault of its own */
    return true;
}

/* Summaries come from the chief. */
static bool begin_watch(struct remote_worker *worker)
{
    const struct summary_options options = worker_summary_options(worker);
    if (worker->chief && !summary_tally_open(&worker->watch, &options, &worker->traffic, &worker->error)) {
        worker_stop(worker, END_FAILED);
        return false;
    }
    if (worker->chief) {
        chief_summary_tally(worker->chief, worker->watch.summary);
    }
    return true;
}

static void tell_start(struct remote_worker *worker, const struct chief_start *start)
{
    char text[256];
    worker->engine->table->describe(worker->engine, text, sizeof text);
    report_start(&(struct report_start){.config = &worker->config,
                                        .model = &worker->model,
                                        .data = worker->dataset.description,
                                        .engine = text,
                                        .digest = worker->identity.digest,
                                        .restored_from = start->restored_from,
                                        .global_step = worker->is_chief ? start->global_step : worker->global_step,
                                        .last_step = worker->plan.last_step,
                                        .keeps_nothing = !worker->is_chief});
}

static bool is_on(const char *text, const char *host)
{
    struct address address;
    struct error error;
    return address_parse(text, &address, &error) && strcmp(address.host, host) == 0;
}

/* Do many more members run on this machine than it has CPUs, as far as its name tells? */
static bool is_crowded(const struct config_cluster *cluster)
{
    enum { MEMBERS_A_CPU = 2 }; /* up to which they hardly wait for each other */
    struct address own;
    struct error error;
    int members = 0;
    if (cluster->task_index >= cluster->worker_hosts.count ||
        !address_parse(cluster->worker_hosts.items[cluster->task_index], &own, &error)) {
        return false;
    }
    for (int i = 0; i < cluster->ps_hosts.count; i++) {
        members += is_on(cluster->ps_hosts.items[i], own.host);
    }
    for (int i = 0; i < cluster->worker_hosts.count; i++) {
        members += is_on(cluster->worker_hosts.items[i], own.host);
    }
    return members > MEMBERS_A_CPU * threads_available();
}

/*
 * On a crowded machine what all wait for (a ps that answers, a member that starts anew, a rollout's trial) comes before
 * what each one computes: every turn of these would come after one of everybody's training.
 */
static void train(struct remote_worker *worker)
{
    if (worker->gives_way && restart_stand_by()) {
        threads_give_way();
    }
    worker_train(worker);
}

int remote_worker_run(const struct config *config)
{
    struct remote_worker worker = {.config = *config,
                                   .begin_s = clock_monotonic_s(),
                                   .is_chief = config->cluster.task_index == 0,
                                   .gives_way = is_crowded(&config->cluster),
                                   .last_loss = NAN};
    struct chief_start start = {0};
    struct error error;
    int status = COMMAND_FAILED;
    if (!config_check_role(config, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (!worker_open(&worker, &error)) {
        log_error("%s", error.text);
    } else {
        if (begin_rollouts(&worker, config) && worker_learn_data(&worker) && worker_join(&worker, &start) &&
            begin_watch(&worker)) {
            tell_start(&worker, &start);
            enum chief_verdict verdict = worker.chief ? chief_verdict(worker.chief) : CHIEF_GO_ON;
            if (verdict != CHIEF_GO_ON) {
                worker_stop(&worker, verdict == CHIEF_TARGET ? END_TARGET : END_PATIENCE);
            }
            train(&worker);
        }
        status = worker_end(&worker);
    }
    if (status == RESTART_STATUS) {
        notify_restarting();
    } else {
        notify_stopping();
    }
    summary_tally_close(&worker.watch, status == COMMAND_DONE);
    worker_close(&worker, status == COMMAND_DONE     ? "done"
                          : status == RESTART_STATUS ? "starts anew in another version of the config"
                                                     : "stopped");
    return status;
}
