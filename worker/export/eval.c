/*
 * trainer eval: the test accuracy of a checkpoint, or of every one that training writes. The model is the checkpoint's
 * own, whatever config.json says now; only the data come from there.
 */
#include "worker/export/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "observe/observe.h"
#include "ps/checkpoint/folder.h"
#include "worker/data/dataset.h"
#include "worker/evaluation/evaluate.h"
#include "worker/export/trained.h"
#include "worker/observed.h"
#include "worker/report.h"

static const double LOG_EVERY_S = 60;

/* Everything that an evaluation owns; zeros are safe to release. */
struct eval {
    struct trained trained;
    const char *path;          /* of a file of rows; NULL: the test set of data_dir */
    struct config_model model; /* against which the test set was checked */
    struct examples test;
    struct evaluation evaluation;
};

static void eval_free(struct eval *eval)
{
    evaluation_destroy(&eval->evaluation);
    examples_free(&eval->test);
    trained_close(&eval->trained);
}

static bool read_test(struct eval *eval, struct error *error)
{
    const struct config *config = &eval->trained.config;
    const struct checkpoint_file *file = eval->trained.file;
    const struct schema *schema = eval->trained.schema;
    if (eval->path) {
        return dataset_load_file(&eval->test, eval->path, config, schema, error);
    }
    return dataset_check_classes(checkpoint_path(file), checkpoint_file_info(file)->class_names, config, error) &&
           dataset_load_test(&eval->test, config, schema, error);
}

/* The test set is loaded once, unless the model changes. */
static bool load_test(struct eval *eval, struct error *error)
{
    const struct config_model *model = &eval->trained.config.model;
    bool same = eval->test.count > 0 && !eval->trained.schema && model->layer_count == eval->model.layer_count &&
                memcmp(model->layers, eval->model.layers, sizeof model->layers) == 0;
    if (same) {
        return true;
    }
    examples_free(&eval->test);
    evaluation_destroy(&eval->evaluation);
    eval->model = *model;
    if (!read_test(eval, error)) {
        return false;
    }
    evaluation_create(&eval->evaluation, &(struct evaluation_options){
                                             .train = &eval->trained.config.train,
                                             .outputs = model->layers[model->layer_count - 1],
                                             .rows = examples_are_rows(&eval->test) ? eval->test.count : 0,
                                             .targets = eval->test.targets,
                                             .schema = eval->trained.schema,
                                             .class_names = checkpoint_file_info(eval->trained.file)->class_names});
    return true;
}

/* eval->trained is open. */
static bool measure(struct eval *eval, struct error *error)
{
    if (!load_test(eval, error) || !trained_start(&eval->trained, error)) {
        return false;
    }
    eval->evaluation.decision = eval->trained.threshold;
    eval->evaluation.temperature = eval->trained.temperature;
    eval->evaluation.interval = eval->trained.interval;
    return evaluate(&eval->evaluation, eval->trained.engine, false, &eval->test, error);
}

static bool evaluate_checkpoint(struct eval *eval, struct error *error)
{
    if (!measure(eval, error)) {
        return false;
    }
    report_evaluation(&eval->evaluation, checkpoint_path(eval->trained.file),
                      checkpoint_file_info(eval->trained.file)->global_step);
    return true;
}

bool eval_score(const struct config *config, const char *wanted, struct eval_score *score, struct error *error)
{
    struct eval eval = {.path = NULL};
    const bool done =
        trained_open(&eval.trained, config, wanted, "", CHECKPOINT_BEST_WEIGHTS, error) && measure(&eval, error);
    if (done) {
        score->metric = evaluation_best_metric(&eval.trained.config.train, eval.test.targets);
        score->score = evaluation_metric(&eval.evaluation, score->metric);
        score->rows = eval.evaluation.images;
    }
    eval_free(&eval);
    return done;
}

/* --- following --- */

/* State kept between looks while following. */
struct checkpoint_follower {
    const struct config *config;
    const struct eval_follow *follow;
    struct eval eval;
    int64_t last_step; /* evaluated; -1: none */
    char last_digest[CHECKPOINT_DIGEST_HEX + 1];
    double heard_s, logged_s;
};

static void pause_until(double until_s)
{
    while (clock_monotonic_s() < until_s && signals_pending() == 0) {
        observe_alive();
        clock_pause(until_s);
    }
}

static void show(const struct evaluation *evaluation, int64_t step)
{
    struct checkpoint_info record = {.best_score = NAN};
    const enum metric metric = evaluation_best_metric(evaluation->options.train, evaluation->options.targets);
    observed_validation(evaluation, metric, &(struct held_model){.global_step = step, .record = &record});
    observe_at(step);
}

/* Evaluates the newest checkpoint if it is new. */
static bool look(struct checkpoint_follower *follower, struct error *error)
{
    const char *folder = follower->follow->train_dir;
    struct checkpoint_file *newest = NULL;
    if (!file_exists(folder)) {
        return true;
    }
    if (!checkpoint_use_key(follower->config->output.checkpoint_key, error) ||
        !checkpoint_folder_find(folder, &newest, error)) {
        return false;
    }
    const bool is_new = newest && strcmp(checkpoint_digest(newest), follower->last_digest) != 0;
    checkpoint_close(newest);
    if (!is_new) {
        return true;
    }
    struct trained *trained = &follower->eval.trained;
    trained_close(trained);
    if (!trained_open(trained, follower->config, "newest", folder, CHECKPOINT_BEST_WEIGHTS, error) ||
        !evaluate_checkpoint(&follower->eval, error)) {
        return false;
    }
    follower->last_step = checkpoint_file_info(trained->file)->global_step;
    snprintf(follower->last_digest, sizeof follower->last_digest, "%s", checkpoint_digest(trained->file));
    show(&follower->eval.evaluation, follower->last_step);
    follower->heard_s = follower->logged_s = clock_monotonic_s();
    return true;
}

/* True if there is nothing more to wait for; says so if that is a failure, in *status. */
static bool is_over(struct checkpoint_follower *follower, int *status)
{
    const struct eval_follow *follow = follower->follow;
    double now_s = clock_monotonic_s(), waited_s = now_s - follower->heard_s;
    if (signals_pending() != 0) {
        *status = signals_exit_status(signals_pending());
        return true;
    }
    if (follow->last_step > 0 && follower->last_step >= follow->last_step) {
        *status = 0;
        return true;
    }
    if (waited_s >= follow->timeout_s) {
        log_error("%s: no new checkpoint within %.0f s; check that training is running, or raise --timeout_secs",
                  follow->train_dir, follow->timeout_s);
        *status = COMMAND_FAILED;
        return true;
    }
    if (now_s - follower->logged_s >= LOG_EVERY_S) {
        follower->logged_s = now_s;
        log_info("waiting for a new checkpoint in %s, %.0f s", follow->train_dir, waited_s);
    }
    return false;
}

int eval_follow_run(const struct config *config, const struct eval_follow *follow)
{
    struct checkpoint_follower follower = {.config = config, .follow = follow, .last_step = -1};
    struct error error;
    int status = COMMAND_FAILED;
    signals_catch();
    follower.heard_s = follower.logged_s = clock_monotonic_s();
    for (;;) {
        double next_s = clock_monotonic_s() + follow->interval_s;
        if (!look(&follower, &error)) {
            log_error("%s", error.text);
            break;
        }
        if (is_over(&follower, &status)) {
            break;
        }
        pause_until(fmin(next_s, follower.heard_s + follow->timeout_s));
    }
    eval_free(&follower.eval);
    return status;
}

/* --- the command --- */

/* A number above 0 from a flag; the default without the flag, negative if invalid. */
static double positive(const char *text, double initial)
{
    if (!text) {
        return initial;
    }
    char *end;
    double number = strtod(text, &end);
    return end != text && *end == '\0' && number > 0 && number <= 1e9 ? number : -1;
}

static int run_follow(const struct command_call *call, const char *train_dir)
{
    struct eval_follow follow = {.train_dir = train_dir,
                                 .interval_s = positive(command_value(call, "interval_secs"), 1),
                                 .timeout_s = positive(command_value(call, "timeout_secs"), EVAL_DEFAULT_TIMEOUT_S)};
    double last_step = positive(command_value(call, "until_step"), 0);
    if (follow.interval_s < 0 || follow.timeout_s < 0 || last_step < 0) {
        log_error("--interval_secs, --timeout_secs and --until_step: must be numbers above 0");
        return COMMAND_MISUSED;
    }
    if (train_dir[0] == '\0' || command_value(call, "checkpoint")) {
        log_error("--interval_secs follows a train_dir: name the folder (trainer eval DIR) and omit --checkpoint");
        return COMMAND_MISUSED;
    }
    follow.last_step = (int64_t)last_step;
    return eval_follow_run(call->config, &follow);
}

static int run_eval(const struct command_call *call)
{
    struct eval eval = {0};
    struct error error;
    int status = COMMAND_DONE;
    eval.path = call->operand_count > 1 ? call->operands[1] : NULL;
    const char *train_dir = call->operand_count > 0 ? call->operands[0] : call->config->output.train_dir;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (command_value(call, "interval_secs")) {
        return run_follow(call, train_dir);
    }
    if (!trained_open(&eval.trained, call->config, command_value(call, "checkpoint"), train_dir,
                      CHECKPOINT_BEST_WEIGHTS, &error) ||
        !evaluate_checkpoint(&eval, &error)) {
        log_error("%s", error.text);
        status = COMMAND_FAILED;
    }
    eval_free(&eval);
    return status;
}

static const struct command_flag flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (best)"},
    {"interval_secs", "X", "follow train_dir: poll for a new checkpoint every X seconds, and evaluate it"},
    {"until_step", "N", "with interval_secs: exit after a checkpoint of step N or later (default: run until stopped)"},
    {"timeout_secs", "X", "with interval_secs: give up after X seconds without a new checkpoint (86400)"},
    {"json", NULL, "one JSON object per checkpoint"},
    {NULL, NULL, NULL},
};

const struct command command_eval = {
    .name = "eval",
    .operands = "[train_dir [FILE]]",
    .max_operands = 2,
    .summary = "measure a checkpoint's test accuracy, per class and in total",
    .details =
        "  The layers are the checkpoint's own; if it has moving averages of the parameters, those are evaluated.",
    .flags = flags,
    .takes_config = true,
    .confine = CONFINE_READER,
    .run = run_eval,
};
