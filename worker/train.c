/*
 * trainer [train]: one process of a job. Local training is put together here: data, model, engine, updater. The test
 * set is loaded with the training set, so that a file that is missing is found before the training and not after it.
 */
#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/process/restart.h"
#include "base/profile.h"
#include "observe/observe.h"
#include "ps/identity.h"
#include "ps/server.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/eval.h"
#include "worker/load.h"
#include "worker/local_updater.h"
#include "worker/remote/worker.h"

static const double EVALUATOR_INTERVAL_S = 1;

/* Everything a run owns; zeros are fine to release. */
struct local_run {
    struct config config; /* the command's, with what depends on the data filled in; owns nothing */
    struct dataset dataset;
    struct examples test;
    struct model model;
    struct engine_startup startup;
    char digest[CONFIG_DIGEST_HEX + 1];
    struct training training;
};

static bool open_run(struct local_run *run, struct error *error)
{
    struct training *training = &run->training;
    struct engine_options options = {.model = &run->model, .config = &run->config};
    const bool data_first = dataset_is_needed_first(&run->config);
    if (!data_first) {
        model_layout(&run->model, &run->config.model);
        engine_begin(&run->startup, &options); /* a GPU takes its time, and so does the data */
    }
    if (!load_data(&run->dataset, &run->test, &run->config, error)) {
        return false;
    }
    if (data_first) {
        model_layout(&run->model, &run->config.model);
        engine_begin(&run->startup, &options);
    }
    training->config = &run->config;
    training->model = &run->model;
    training->dataset = &run->dataset;
    training->test = &run->test;
    training->digest = run->digest;
    if (!training_check_data(training, error) || !local_updater_create(&training->updater, training, error)) {
        return false;
    }
    training_plan(training);
    options.train = &run->dataset.train;
    options.streaming = run->dataset.streaming;
    return config_digest(&run->config, run->digest, error) &&
           engine_choose(&training->engine, &options, &run->startup, error);
}

static int run_local(const struct config *config)
{
    struct local_run run = {.config = *config, .training = {.begun_s = clock_monotonic_s()}};
    struct engine **engine = &run.training.engine;
    struct error error;
    int status = COMMAND_FAILED;
    signals_catch();
    if (open_run(&run, &error)) {
        status = training_run(&run.training);
    } else {
        log_error("%s", error.text);
    }
    local_updater_destroy(run.training.updater);
    if (*engine) {
        (*engine)->table->destroy(*engine);
    }
    engine_startup_end(&run.startup);
    examples_free(&run.test);
    dataset_free(&run.dataset);
    return status;
}

/* Ends with the checkpoint of the job's last step; where epochs bound the job, with a signal. */
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

static int run_role(const struct config *config)
{
    switch (config->cluster.job_name) {
    case JOB_PS:
        return server_run(config);
    case JOB_WORKER:
        return remote_worker_run(config);
    case JOB_EVALUATOR:
        return run_evaluator(config);
    case JOB_LOCAL:
        break;
    }
    return run_local(config);
}

/* Who this process is in a profile. */
static int profiled_member(const struct config_cluster *cluster)
{
    return cluster->job_name == JOB_PS       ? PROFILE_PS + cluster->task_index
           : cluster->job_name == JOB_WORKER ? PROFILE_WORKER + cluster->task_index
                                             : PROFILE_LOCAL;
}

static bool observe(const struct config *config, struct error *error)
{
    char key[4096];
    return identity_key_path(config, key, sizeof key, error) && observe_start(config, key, error);
}

static int run_train(const struct command_call *call)
{
    struct error error;
    const char *profile = call->config->output.profile;
    if (command_switch(call, "supervise") && !supervise_is_child()) {
        return supervise(call->arguments);
    }
    profile_thread("main");
    if (profile[0] != '\0' && !profile_open(profile, profiled_member(&call->config->cluster), &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    if (!observe(call->config, &error)) {
        log_error("%s", error.text);
        return COMMAND_FAILED;
    }
    int status = run_role(call->config);
    observe_stop(status != COMMAND_DONE);
    if (!profile_close(&error)) {
        log_error("%s", error.text);
        return status == COMMAND_DONE ? COMMAND_FAILED : status;
    }
    return status;
}

static const struct command_flag flags[] = {
    {"supervise", NULL, "keep a parent process that restarts training if it dies"},
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
    .run = run_train,
};
