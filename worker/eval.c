/*
 * trainer eval: the test accuracy of a checkpoint. The model is the checkpoint's own, whatever config.json says by now;
 * only the data comes from there.
 */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "ps/checkpoint.h"
#include "ps/checkpoint_folder.h"
#include "worker/commands.h"
#include "worker/dataset.h"
#include "worker/engine_choose.h"
#include "worker/evaluate.h"
#include "worker/report.h"

/* Everything an evaluation owns; zeros are fine to release. */
struct eval {
    struct config config; /* the command's, with the checkpoint's model; owns nothing */
    struct checkpoint_file *file;
    struct model model;
    struct engine *engine;
    struct examples test;
    struct evaluation evaluation;
};

static bool open_checkpoint(struct eval *eval, const char *wanted, const char *train_dir, struct error *error)
{
    char path[CHECKPOINT_MAX_PATH];
    bool is_newest = !wanted || strcmp(wanted, "newest") == 0, is_best = wanted && strcmp(wanted, "best") == 0;
    if ((is_newest || is_best) && train_dir[0] == '\0') {
        return error_set(error, "nothing to evaluate: give a train_dir (trainer eval DIR) or --checkpoint=FILE");
    }
    if (is_newest) {
        if (!checkpoint_folder_find(train_dir, &eval->file, error)) {
            return false;
        }
        return eval->file != NULL ||
               error_set(error, "%s holds no good checkpoint: train with --train_dir=%s first", train_dir, train_dir);
    }
    if (is_best && !file_join(path, sizeof path, train_dir, CHECKPOINT_BEST_NAME, error)) {
        return false;
    }
    return checkpoint_open(&eval->file, is_best ? path : wanted, error) == CHECKPOINT_OPENED;
}

/* The engine gets the averages where the checkpoint has them, as its parameters. */
static bool load_parameters(struct eval *eval, struct error *error)
{
    size_t floats = eval->model.float_count;
    float *values = malloc(floats * sizeof *values);
    if (!values) {
        return error_set(error, "not enough memory for %zu parameters", floats);
    }
    bool done = checkpoint_load_parameters(eval->file, &eval->model, values, NULL, error) &&
                eval->engine->table->write(eval->engine, STORE_PARAMETERS, 0, floats, values, error);
    free(values);
    return done;
}

static bool evaluate_checkpoint(struct eval *eval, struct error *error)
{
    struct config *config = &eval->config;
    checkpoint_file_model(eval->file, &config->model);
    config->train.optimizer = OPTIMIZER_SGD; /* no slots, no averages: parameters are all that is needed */
    config->train.ema_decay = 0;
    model_layout(&eval->model, &config->model);
    struct engine_options options = {.model = &eval->model, .config = config};
    return dataset_load_test(&eval->test, config, error) && engine_choose(&eval->engine, &options, error) &&
           load_parameters(eval, error) &&
           evaluation_create(&eval->evaluation, eval->model.widths[eval->model.layer_count], error) &&
           evaluate(&eval->evaluation, eval->engine, false, &eval->test, error);
}

static int run_eval(const struct command_call *call)
{
    struct eval eval = {.config = *call->config};
    struct error error;
    int status = COMMAND_FAILED;
    const char *train_dir = call->operand_count > 0 ? call->operands[0] : call->config->output.train_dir;
    if (command_switch(call, "json")) {
        log_setup(LOG_JSON, LOG_WARNING);
    }
    if (!open_checkpoint(&eval, command_value(call, "checkpoint"), train_dir, &error) ||
        !evaluate_checkpoint(&eval, &error)) {
        log_error("%s", error.text);
        goto out;
    }
    report_evaluation(&eval.evaluation, checkpoint_path(eval.file), checkpoint_file_info(eval.file)->global_step);
    status = COMMAND_DONE;
out:
    evaluation_destroy(&eval.evaluation);
    if (eval.engine) {
        eval.engine->table->destroy(eval.engine);
    }
    examples_free(&eval.test);
    checkpoint_close(eval.file);
    return status;
}

static const struct command_flag flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (newest)"},
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

const struct command command_eval = {
    .name = "eval",
    .operands = "[train_dir]",
    .max_operands = 1,
    .summary = "test accuracy of a checkpoint, per class and in total",
    .details =
        "  The model is the checkpoint's own; where it has moving averages of the parameters, they are measured.",
    .flags = flags,
    .takes_config = true,
    .run = run_eval,
};
