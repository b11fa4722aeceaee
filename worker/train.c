/*
 * trainer [train]: data, model, engine, session, and at the very end the test set.
 *
 * The test set is loaded with the training set; nobody looks at it until the session is over.
 */
#include <stdio.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/process/restart.h"
#include "base/profile.h"
#include "base/random/sampler.h"
#include "ps/job/plan.h"
#include "ps/server.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/eval.h"
#include "worker/evaluate.h"
#include "worker/load.h"
#include "worker/remote/worker.h"
#include "worker/report.h"
#include "worker/training.h"

static const double EVALUATOR_INTERVAL_S = 1;

/* Everything a run owns; zeros are fine to release. */
struct train_job {
    struct config config; /* the command's, with what depends on the data filled in; owns nothing */
    double begin_s;
    struct dataset dataset;
    struct examples test;
    struct model model;
    struct engine_startup startup;
    struct engine *engine;
    struct training *session;
};

static bool open_run(struct train_job *run, struct error *error)
{
    struct config_train *train = &run->config.train;
    model_layout(&run->model, &run->config.model);
    struct engine_options options = {.model = &run->model, .config = &run->config};
    engine_begin(&run->startup, &options); /* a GPU takes its time, and so does the data */
    if (!load_data(&run->dataset, &run->test, &run->config, error)) {
        return false;
    }
    struct sampler sampler = {.seed = (uint64_t)train->seed,
                              .examples = (uint32_t)run->dataset.train.count,
                              .batch_size = (uint32_t)train->batch_size};
    int64_t epoch_batches = sampler_epoch_batches(&sampler);
    if (train->lr_decay_steps == 0) {
        struct plan plan;
        plan_begin(&plan, &run->config, epoch_batches);
        train->lr_decay_steps = plan_epoch_end(&plan, 1);
    }
    options.train = &run->dataset.train;
    options.streaming = run->dataset.streaming;
    return engine_choose(&run->engine, &options, &run->startup, error) &&
           training_open(&run->session,
                         &(struct training_options){.config = &run->config,
                                                    .model = &run->model,
                                                    .engine = run->engine,
                                                    .dataset = &run->dataset,
                                                    .epoch_batches = epoch_batches},
                         error);
}

static void describe_end(const struct train_job *run, const struct training_result *result, char *text, size_t size)
{
    const struct config_train *train = &run->config.train;
    if (result->end == TRAINING_TARGET) {
        snprintf(text, size, "validation accuracy %g reached", train->target_accuracy);
    } else if (result->end == TRAINING_PATIENCE) {
        snprintf(text, size, "no better validation %d times in a row", train->patience);
    } else if (result->local_steps == 0) {
        snprintf(text, size, "nothing left to train");
    } else {
        snprintf(text, size, "last step reached");
    }
}

static bool test_and_report(const struct train_job *run, const struct training_result *result, struct error *error)
{
    char reason[128];
    struct evaluation test;
    if (!evaluation_create(&test, run->model.widths[run->model.layer_count], error)) {
        return false;
    }
    bool done = evaluate(&test, run->engine, run->config.train.ema_decay > 0, &run->test, error);
    if (done) {
        describe_end(run, result, reason, sizeof reason);
        training_tested(run->session, evaluation_accuracy(&test));
        report_done(&(struct report_done){.test = &test,
                                          .reason = reason,
                                          .steps = result->global_step,
                                          .local_steps = result->local_steps,
                                          .epochs = result->epochs,
                                          .steps_per_s = result->steps_per_s,
                                          .seconds = clock_monotonic_s() - run->begin_s,
                                          .best_accuracy = result->best_accuracy,
                                          .best_step = result->best_step});
    }
    evaluation_destroy(&test);
    return done;
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

static int run_local(const struct command_call *call)
{
    struct train_job run = {.config = *call->config, .begin_s = clock_monotonic_s()};
    struct training_result result;
    struct error error;
    int status = COMMAND_FAILED;
    signals_catch();
    if (!open_run(&run, &error)) {
        log_error("%s", error.text);
        goto out;
    }
    training_run(run.session, &result);
    if (result.end == TRAINING_FAILED) {
        goto out;
    }
    if (result.end == TRAINING_INTERRUPTED) {
        bool is_kept = result.last_checkpoint_step == result.global_step;
        report_interrupted(signals_name(result.signal), result.global_step, is_kept ? result.last_checkpoint : NULL);
        status = result.checkpoint_failed ? COMMAND_FAILED : signals_exit_status(result.signal);
        goto out;
    }
    if (!test_and_report(&run, &result, &error)) {
        log_error("%s", error.text);
        goto out;
    }
    status = result.checkpoint_failed ? COMMAND_FAILED : COMMAND_DONE;
out:
    training_close(run.session);
    if (run.engine) {
        run.engine->table->destroy(run.engine);
    }
    engine_startup_end(&run.startup);
    examples_free(&run.test);
    dataset_free(&run.dataset);
    return status;
}

static int run_role(const struct command_call *call)
{
    switch (call->config->cluster.job_name) {
    case JOB_PS:
        return server_run(call->config);
    case JOB_WORKER:
        return remote_worker_run(call->config);
    case JOB_EVALUATOR:
        return run_evaluator(call->config);
    case JOB_LOCAL:
        break;
    }
    return run_local(call);
}

/* Who this process is in a profile. */
static int profiled_member(const struct config_cluster *cluster)
{
    return cluster->job_name == JOB_PS       ? PROFILE_PS + cluster->task_index
           : cluster->job_name == JOB_WORKER ? PROFILE_WORKER + cluster->task_index
                                             : PROFILE_LOCAL;
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
    int status = run_role(call);
    if (!profile_close(&error)) {
        log_error("%s", error.text);
        return status == COMMAND_DONE ? COMMAND_FAILED : status;
    }
    return status;
}

static const struct command_flag flags[] = {
    {"supervise", NULL, "a parent process stays, and starts this one again when it dies"},
    {NULL, NULL, NULL},
};

const struct command command_train = {
    .name = "train",
    .summary = "train on this box, then show the test accuracy",
    .details = "With train_dir, training resumes from the newest good checkpoint there and leaves new ones. It ends at "
               "train_steps (the last global step), epochs, target_accuracy or patience, whichever comes first. SIGINT "
               "and SIGTERM leave one more checkpoint before the end; a second signal ends it at once.",
    .flags = flags,
    .takes_config = true,
    .run = run_train,
};
