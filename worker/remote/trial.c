/*
 * A rollout's trial run, in a child process: a config that crashes, hangs or exhausts memory takes down only the child,
 * and the copy of the checkpoint that it trained on is deleted afterwards.
 */
#include "worker/remote/live_config.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config/keys.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trust.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "ps/store/rounds.h"
#include "worker/initial.h"

enum { STEPS = 5, MAX_LOG = 1 << 20, MAX_ENVIRONMENT = 512 };

static const double TIMEOUT_S = 150.0;

struct trial {
    const struct config *then;
    char folder[VERSIONS_PATH], run[VERSIONS_PATH], config[VERSIONS_PATH], log[VERSIONS_PATH];
    char checkpoint[VERSIONS_PATH];
    int64_t step;
};

/* --- The folder --- */

static bool make_folders(struct trial *trial, struct error *error)
{
    return versions_path(trial->then->path, "trial", trial->folder, error) &&
           file_join(trial->run, sizeof trial->run, trial->folder, "run", error) &&
           file_join(trial->config, sizeof trial->config, trial->folder, "config.json", error) &&
           file_join(trial->log, sizeof trial->log, trial->folder, "log", error) &&
           file_make_folder(trial->folder, error) && file_make_folder(trial->run, error);
}

/* Removes what an earlier trial, or this one, left; the log stays, for people. */
static void clear(const struct trial *trial)
{
    struct checkpoint_file *file;
    struct error ignored;
    for (int i = 0; i < 2 * STEPS && checkpoint_folder_find(trial->run, &file, &ignored) && file; i++) {
        char path[VERSIONS_PATH];
        snprintf(path, sizeof path, "%s", checkpoint_path(file));
        checkpoint_close(file);
        unlink(path);
    }
}

/* --- The checkpoint --- */

static bool fit(struct checkpoint_file *file, struct checkpoint_state *state, const struct config *then, bool may_lose,
                struct error *error)
{
    char lost[512];
    if (checkpoint_load(file, state, error)) {
        return true;
    }
    if (!initial_load_fitting(file, then, state, lost, sizeof lost, error)) {
        return false;
    }
    return lost[0] == '\0' || may_lose ||
           error_set(error, "it would lose %s: add --may_lose to `trainer rollout` if that is intended", lost);
}

static bool copy_checkpoint(struct trial *trial, const char *train_dir, bool may_lose, struct error *error)
{
    struct model model;
    struct checkpoint_state state = {.memory = NULL};
    struct checkpoint_file *file = NULL;
    const struct config_train train = outer_train(&trial->then->train);
    model_layout(&model, &trial->then->model);
    bool done = checkpoint_folder_find(train_dir, &file, error) &&
                (file || error_set(error, "%s holds no checkpoint to try it on", train_dir));
    if (done) {
        checkpoint_state_create(&state, &model, &train);
    }
    done = done && fit(file, &state, trial->then, may_lose, error);
    if (done) {
        struct checkpoint_info info = *checkpoint_file_info(file);
        info.kept_rows = NULL; /* the model may be a different one */
        info.data[0] = '\0';   /* and so may the data be */
        struct checkpoint_folder folder = {.lock = -1};
        trial->step = info.global_step;
        snprintf(folder.path, sizeof folder.path, "%s", trial->run);
        checkpoint_folder_name(&folder, CHECKPOINT_MODEL, info.global_step, trial->checkpoint);
        done = checkpoint_write(trial->checkpoint, &state, &info, error);
    }
    checkpoint_state_destroy(&state);
    checkpoint_close(file);
    return done;
}

/* --- The config --- */

/* The same job on one machine, for a few steps, writing nothing else. */
static bool write_config(struct trial *trial, struct error *error)
{
    struct config config = *trial->then, defaults;
    static char nothing[] = "";
    config_defaults(&defaults);
    config.cluster = defaults.cluster;
    config.train.batch_size = config_was_chosen(&config, "train", "batch_size") ? CONFIG_AUTO : config.train.batch_size;
    config.origins = NULL; /* values are written as they are now */
    config.train.train_steps = trial->step + STEPS;
    config.train.epochs = config.train.target_accuracy = config.train.target_metric = 0;
    config.train.patience = config.train.divergence_retries = 0;
    config.train.warm_start = nothing;
    config.train.buffer_size = 0; /* alone it has ordinary rounds */
    config.data.data_sharding =
        config.data.data_sharding == SHARDING_CHIEF ? SHARDING_SHUFFLED : config.data.data_sharding;
    config.output.train_dir = trial->run;
    config.output.summary_dir = nothing;
    config.output.save_steps = config.output.log_steps = config.output.save_summaries_steps = 0;
    config.output.save_model_secs = config.output.save_summaries_secs = 0;
    config.output.validate_steps = trial->step + 10 * STEPS;
    config.output.log_format = LOG_TEXT;
    config.output.progress = false;
    char *text = config_keys_text(&config, NULL, NULL);
    config_free(&defaults);
    const struct file_part part = {text, strlen(text)};
    bool done = file_write_atomic(trial->config, &part, 1, error);
    free(text);
    return done;
}

/* --- The process --- */

/* Removes everything specific to this process. */
static void make_environment(char *environment[MAX_ENVIRONMENT])
{
    static const char *const not_its[] = {"TF_CONFIG=", "NOTIFY_SOCKET=", "WATCHDOG_", "TRAINER_SUPERVISOR="};
    int count = 0;
    for (char **entry = environ; *entry && count < MAX_ENVIRONMENT - 1; entry++) {
        bool own = false;
        for (size_t i = 0; i < sizeof not_its / sizeof *not_its; i++) {
            own = own || strncmp(*entry, not_its[i], strlen(not_its[i])) == 0;
        }
        if (!own) {
            environment[count++] = *entry;
        }
    }
    environment[count] = NULL;
}

static bool start(const struct trial *trial, pid_t *child, struct error *error)
{
    char flag[VERSIONS_PATH + 16], trust[VERSIONS_PATH + 16], name[] = "trainer", *environment[MAX_ENVIRONMENT];
    char *arguments[] = {name, flag, trust_given() ? trust : NULL, NULL};
    posix_spawn_file_actions_t actions;
    snprintf(flag, sizeof flag, "--config=%s", trial->config);
    snprintf(trust, sizeof trust, "--trust_folder=%s", trust_given() ? trust_given() : "");
    make_environment(environment);
    unlink(trial->log); /* the last trial's */
    const int log = file_create(trial->log, 0666, error);
    if (log < 0) {
        return error_wrap(error, "its process can't be started");
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, log, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    int reason = posix_spawn(child, "/proc/self/exe", &actions, NULL, arguments, environment);
    posix_spawn_file_actions_destroy(&actions);
    close(log);
    return reason == 0 || error_set(error, "its process can't be started: %s", strerror(reason));
}

/* The log's last line that is not empty, for the error. */
static bool fail_by_log(const struct trial *trial, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    struct error ignored;
    char line[300] = "it said nothing";
    if (file_read(trial->log, MAX_LOG, &bytes, &size, &ignored)) {
        char *text = (char *)bytes;
        while (size > 0 && (text[size - 1] == '\n' || text[size - 1] == ' ')) {
            text[--size] = '\0';
        }
        const char *last = strrchr(text, '\n');
        if (size > 0) {
            snprintf(line, sizeof line, "%.290s", last ? last + 1 : text);
        }
        free(bytes);
    }
    return error_set(error, "the trial failed: %s", line);
}

static bool wait_for(const struct trial *trial, pid_t child, bool (*given_up)(void *context), void *context,
                     struct error *error)
{
    const double deadline_s = clock_monotonic_s() + TIMEOUT_S;
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, WNOHANG)) == 0) {
        bool stop = given_up(context), late = clock_monotonic_s() >= deadline_s;
        if (stop || late) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            return stop ? error_set(error, "the trial was cancelled")
                        : error_set(error, "the trial took longer than %.0f s", TIMEOUT_S);
        }
        clock_pause(clock_monotonic_s() + 0.02);
    }
    if (ended < 0) {
        return error_set(error, "the trial's process was lost: %s", strerror(errno));
    }
    if (WIFSIGNALED(status)) {
        return error_set(error, "the trial was killed by signal %d (%s)", WTERMSIG(status),
                         strsignal(WTERMSIG(status)));
    }
    return WEXITSTATUS(status) == 0 || fail_by_log(trial, error);
}

bool trial_run(const struct config *then, const char *train_dir, bool may_lose, bool (*given_up)(void *context),
               void *context, struct error *error)
{
    struct trial trial = {.then = then};
    pid_t child;
    if (!make_folders(&trial, error)) {
        return false;
    }
    clear(&trial);
    bool done = copy_checkpoint(&trial, train_dir, may_lose, error) && write_config(&trial, error) &&
                start(&trial, &child, error) && wait_for(&trial, child, given_up, context, error);
    clear(&trial);
    if (done) {
        log_info("the trial of version %" PRId64 " took %d steps from step %" PRId64 " on and succeeded",
                 then->fleet.version, STEPS, trial.step);
    }
    return done;
}
