/*
 * The commands and roles of trainer: one table that parses the command line and documents it. Each row hands off at once
 * to the room that does the work.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/cli/help.h"
#include "base/config/commands.h"
#include "base/log.h"
#include "worker/version.h"

/* Roles of a cluster are not part of this version: better said than half done. */
static int run_train(const struct command_call *call)
{
    if (call->config->cluster.job_name != JOB_LOCAL) {
        log_error("--job_name=%s: this version trains on one box only, and cluster roles come with a later one; leave "
                  "job_name at local",
                  call->config->cluster.job_name == JOB_PS ? "ps" : "worker");
        return COMMAND_MISUSED;
    }
    log_error("training is not part of this build yet");
    return COMMAND_FAILED;
}

static int run_eval(const struct command_call *call)
{
    if (call->operand_count > 0) {
        char *train_dir = strdup(call->operands[0]);
        if (train_dir == NULL) {
            log_error("out of memory");
            return COMMAND_FAILED;
        }
        free(call->config->output.train_dir);
        call->config->output.train_dir = train_dir;
    }
    log_error("evaluation is not part of this build yet");
    return COMMAND_FAILED;
}

static const struct command train = {
    .name = "train",
    .summary = "train on this box, then show the test accuracy",
    .details = "With train_dir, training resumes from the newest good checkpoint there and leaves new ones. SIGINT and "
               "SIGTERM leave one more before the end; a second signal ends it at once.",
    .takes_config = true,
    .run = run_train,
};

static const struct command_flag eval_flags[] = {
    {"checkpoint", "FILE", "a checkpoint file, or newest or best in train_dir (newest)"},
    {"json", NULL, "one JSON object"},
    {NULL, NULL, NULL},
};

static const struct command eval = {
    .name = "eval",
    .operands = "[train_dir]",
    .max_operands = 1,
    .summary = "test accuracy of a checkpoint, per class and in total",
    .flags = eval_flags,
    .takes_config = true,
    .run = run_eval,
};

/* The first one is meant where none is named. */
static const struct command *const commands[] = {
    &train,        &eval, &command_config_check, &command_config_show, &command_config_schema, &command_version,
    &command_help, NULL,
};

int main(int argc, char **argv)
{
    return command_main(commands, argc, argv);
}
