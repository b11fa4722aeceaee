/* trainer [train]: one process of a job, in its configured role. */
#include <math.h>
#include <stdlib.h>

#include "base/cli/commands.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/confine.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "observe/observe.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/identity.h"
#include "ps/rollout/history.h"
#include "ps/server.h"
#include "worker/clients/clients.h"
#include "worker/export/eval.h"
#include "worker/local_run.h"
#include "worker/observed.h"
#include "worker/remote/worker.h"

/* --- What dashboards show of a ps in this process: its plain values become the numbers of its board --- */

static void show_numbers(struct board *board, const struct server_report *report)
{
    static const enum board_state states[] = {[JOB_WAITING] = BOARD_WAITING,
                                              [JOB_RESTORING] = BOARD_STARTING,
                                              [JOB_TRAINING] = BOARD_TRAINING,
                                              [JOB_DONE] = BOARD_DONE,
                                              [JOB_FAILED] = BOARD_FAILED};
    struct board_numbers *numbers = board_lock(board);
    numbers->state = states[report->state];
    numbers->generation = (int)report->generation;
    numbers->global_step = report->global_step < 0 ? 0 : report->global_step;
    numbers->last_step = report->last_step;
    numbers->pushed = report->pushes;
    numbers->not_finite = report->not_finite;
    numbers->stale = report->stale;
    numbers->buffer_size = report->buffer_size;
    numbers->buffered = report->buffered;
    numbers->buffer_staleness = report->buffer_staleness;
    numbers->bytes_in = report->bytes_in;
    numbers->bytes_out = report->bytes_out;
    numbers->config_version = report->config_version;
    numbers->certificate_until_s = report->certificate_until_s;
    snprintf(numbers->digest, sizeof numbers->digest, "%s", report->digest);
    snprintf(numbers->engine, sizeof numbers->engine, "parameter server");
    board_unlock(board);
    if (!isnan(report->loss)) {
        board->loss = (double)report->loss;
    }
}

static void show(void *context, struct board *board)
{
    struct server *server = context;
    if (!board_begin_members(board, server_most_members(server))) {
        return;
    }
    struct server_report report = {.members = board->members, .rollout = &board->rollout};
    server_report(server, &report);
    board->member_count = report.member_count;
    show_numbers(board, &report);
    observe_waiting(report.waits);
}

static void begin(void *context, struct server *server)
{
    (void)context;
    observe_source(show, server);
}

static void end(void *context)
{
    (void)context;
    observe_source(NULL, NULL);
}

static void alive(void *context)
{
    (void)context;
    observe_alive();
}

/* For server_run; NULL while nothing is observed (observe.http). */
static const struct server_observer *observed_ps(void)
{
    static const struct server_observer observer = {.begin = begin, .end = end, .alive = alive};
    return observe_is_on() ? &observer : NULL;
}

/* --- The command --- */

static const double EVALUATOR_INTERVAL_S = 1;

/* Ends with the checkpoint of the job's last step; if epochs bound the job, with a signal. */
static int run_evaluator(const struct config *config)
{
    if (config->output.train_dir[0] == '\0') {
        log_error("an evaluator needs --train_dir, the folder that the chief keeps its checkpoints in");
        return COMMAND_MISUSED;
    }
    return eval_follow_run(config, &(struct eval_follow){.train_dir = config->output.train_dir,
                                                         .interval_s = EVALUATOR_INTERVAL_S,
                                                         .timeout_s = EVAL_DEFAULT_TIMEOUT_S,
                                                         .last_step = config->train.train_steps});
}

static int run_role(const struct config *config, const struct clients_options *clients)
{
    switch (config->cluster.job_name) {
    case JOB_PS:
        return server_run(config, observed_ps());
    case JOB_WORKER:
        return remote_worker_run(config);
    case JOB_EVALUATOR:
        return run_evaluator(config);
    case JOB_LOCAL:
        break;
    }
    return local_run(config, clients, NULL);
}

/* This process's name in a profile. */
static int profiled_member(const struct config_cluster *cluster)
{
    return cluster->job_name == JOB_PS       ? PROFILE_PS + cluster->task_index
           : cluster->job_name == JOB_WORKER ? PROFILE_WORKER + cluster->task_index
                                             : PROFILE_LOCAL;
}

static bool observe(const struct config *config, char *const *arguments, struct error *error)
{
    char key[4096];
    if (!identity_key_path(config, key, sizeof key, error) || !observe_start(config, key, error)) {
        return false;
    }
    observed_about(config, arguments, NULL);
    return true;
}

static enum board_state end_of(int status)
{
    return status == COMMAND_FAILED || status == COMMAND_MISUSED ? BOARD_FAILED
           : signals_pending() != 0                              ? BOARD_INTERRUPTED
                                                                 : BOARD_DONE;
}

static bool read_number(const char *text, double least, double most, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return end != text && *end == '\0' && *number >= least && *number <= most;
}

/* A process that simulates clients is one. */
static bool read_clients(const struct command_call *call, struct clients_options *clients, struct error *error)
{
    const struct config *config = call->config;
    const char *count = command_value(call, "clients");
    const bool asks_some = config->cluster.job_name == JOB_LOCAL && config_asks_some(&config->train);
    double number = 1;
    if (config->cluster.job_name == JOB_LOCAL && config->train.buffer_size > 0) {
        return error_set(error, "--buffer_size needs workers that push when they are ready, but --clients, or one "
                                "process alone, makes synchronous rounds");
    }
    *clients = (struct clients_options){.count = 1, .partition = command_value(call, "partition")};
    if (!count) {
        return (!asks_some && !clients->partition) ||
               error_set(error, "--%s applies to clients: add --clients", asks_some ? "participation" : "partition");
    }
    if (config->cluster.job_name != JOB_LOCAL || !config_has_rounds(&config->train)) {
        return error_set(error,
                         config->cluster.job_name != JOB_LOCAL
                             ? "--clients is for one process that simulates all workers, not for one of a cluster"
                             : "--clients needs rounds: set --local_steps above 1, or --local_epochs");
    }
    clients->exchanges = true;
    if (config->cluster.wire_dtype == WIRE_BFLOAT16 && config->cluster.wire_top == 1) {
        return error_set(error, "--clients does not simulate wire_dtype=bfloat16 alone: use int8, or wire_top");
    }
    if (!read_number(count, 1, CLIENTS_MAX, &number) || number != floor(number)) {
        return error_set(error, "--clients must be an integer from 1 to %d, not %s", CLIENTS_MAX, count);
    }
    clients->count = (int)number;
    return true;
}

static int run_train(const struct command_call *call)
{
    struct error error;
    struct config config = *call->config; /* its lists and strings belong to the call */
    struct clients_options clients;
    const char *profile = call->config->output.profile;
    if (command_switch(call, "supervise") && !supervise_is_child()) {
        return supervise(call->arguments);
    }
    if (config.security.seccomp) {
        confine_or_warn(config.cluster.job_name == JOB_PS ? CONFINE_PS : CONFINE_LAUNCHER);
    }
    if (!config.output.shared_files) {
        file_keep_private();
    }
    if (!read_clients(call, &clients, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    if (!checkpoint_use_key(config.output.checkpoint_key, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (!place_find(&config, &error)) {
        log_error("%s", error.text);
        return signals_pending() != 0 ? signals_exit_status(signals_pending()) : COMMAND_FAILED;
    }
    profile_thread("main");
    if (profile[0] != '\0' && !profile_open(profile, profiled_member(&config.cluster), &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (!observe(&config, call->arguments, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    int status = command_switch(call, "follow") ? follow_run(&config) : run_role(&config, &clients);
    observe_stop(end_of(status));
    if (!profile_close(&error)) {
        log_error("%s", error.text);
        return status == COMMAND_DONE ? COMMAND_FAILED : status;
    }
    return status;
}

static const struct command_flag flags[] = {
    {"supervise", NULL, "keep a parent process that restarts training if it dies"},
    {"follow", NULL,
     "continue as new files of a table arrive in data_dir; promote models that are better on held-out rows"},
    {"clients", "N", "with rounds (local_steps): simulate N workers in this process"},
    {"partition", "KIND", "who has which examples: iid, order, shards:N of one class each, or dirichlet:A"},
    {NULL, NULL, NULL},
};

const struct command command_train = {
    .name = "train",
    .summary = "train on this machine, then print the test accuracy",
    .details = "With train_dir, training resumes from the newest intact checkpoint there and saves new ones. It ends "
               "at train_steps (the last global step), epochs, target_accuracy or patience, whichever comes first. "
               "SIGINT and SIGTERM save a last checkpoint before exiting; a second signal exits at once.",
    .flags = flags,
    .takes_config = true,
    .vouches = lineage_vouches,
    .run = run_train,
};
