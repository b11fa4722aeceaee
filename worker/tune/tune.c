/*
 * trainer tune: many short trainings, of which the promising ones go on, and the best config is trained in full.
 *
 * Each trial is an ordinary run of this program (/proc/self/exe) in a folder of its own, train_dir/trials/NNNN, which
 * resumes as runs do when it is promoted. This process draws the configs (space.c), decides who goes on (halving.c),
 * and keeps a record of each result beside the run, so that a search that was killed asks again and finds the answers.
 */
#include "worker/tune/tune.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cli/commands.h"
#include "base/clock.h"
#include "base/config/keys.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/signals.h"
#include "base/progress.h"
#include "base/text/json.h"
#include "base/text/json_writer.h"
#include "base/text/text.h"
#include "base/threads.h"
#include "base/trust.h"
#include "cuda/client.h"
#include "cuda/probe.h"
#include "ps/checkpoint/folder.h"
#include "worker/evaluation/metrics.h"

enum {
    FACTOR = 3,
    MOST_RUNGS = 4,
    USUAL_TRIALS = 30, /* without a time limit */
    MOST_PARALLEL = 256,
    MOST_SHOWN = 20, /* rows of the table at the end */
    MOST_FLAGS = 24,
    MOST_LOG = 1 << 28,
    MOST_RECORD = 1 << 20,
};

static const double POLL_S = 0.01;
static const double LEAVE_S = 5;    /* for trials to save and stop, when they are asked to */
static const double LEAST_S = 0.5;  /* of the time limit for the last training, which may always begin */
static const double ALL_ROWS = 1.5; /* how much longer training on all rows may take than the trial did */

/* Of a trial on one rung; over folds the mean of all but steps and seconds, which are sums. */
struct result {
    double score; /* of the metric; NaN: it failed */
    double seconds, epochs, best_epochs;
    int64_t steps;
    bool is_known, has_finished;
};

struct tune_trial {
    char *config;  /* JSON, complete but for what differs between rungs; NULL: not drawn yet, or wrong */
    char *differs; /* "learning_rate=0.003 hidden=128,128" */
    int64_t steps; /* its full length, if that is in steps */
    char error[300];
    char nets[64]; /* of its model, if there are several */
    struct result results[HALVING_MOST_RUNGS];
};

/* A job in progress, of which one process for each fold runs, or has to. */
struct tune_job {
    struct halving_job is;
    int begun, ended; /* folds */
    bool was_killed;  /* or failed, one of them: it may do better another time, and is not recorded */
    struct result of_fold[CONFIG_MAX_FOLDS];
};

/* A process. */
struct tune_child {
    pid_t pid; /* 0: none */
    int job;   /* index into jobs */
    int fold;
    double begun_s;
};

struct tune {
    const struct config *config;
    const char *folder;
    char *base; /* the config that all trials share, as JSON */
    struct space space;
    struct halving halving;
    int trials, rungs, folds, parallel, threads, memory_mb;
    bool on_gpu, trains_best;
    bool fits_space; /* the usual space, of which what suits the table is known from trial 0 */
    double begun_s;
    struct tune_trial *trial; /* [trials] */
    struct tune_job *jobs;    /* [parallel]; those with ended == folds are free */
    struct tune_child *children;
    int lock;
    char metric[32]; /* "": not known yet */
    bool rises;
    int done; /* results, with those of earlier processes */
    bool is_over, is_late, has_failed;
    struct progress progress;
};

/* --- Lengths --- */

static double full_epochs(const struct tune *tune)
{
    return tune->config->train.epochs;
}

/* A rung's share of the full length. */
static double share_of(const struct tune *tune, int rung)
{
    return pow(FACTOR, rung + 1 - tune->rungs);
}

static double rung_epochs(const struct tune *tune, int rung)
{
    return rung == tune->rungs - 1 ? full_epochs(tune) : fmax(1, floor(full_epochs(tune) * share_of(tune, rung) + 0.5));
}

static int64_t rung_steps(const struct tune *tune, int64_t full, int rung)
{
    const double steps = floor((double)full * share_of(tune, rung) + 0.5);
    return rung == tune->rungs - 1 ? full : steps < 1 ? 1 : (int64_t)steps;
}

/* As many rungs as leave a whole epoch, or a step, for the first. */
static int count_rungs(const struct config *config)
{
    const double length = config->train.epochs > 0 ? config->train.epochs : (double)config->train.train_steps;
    int rungs = 1;
    while (rungs < MOST_RUNGS && length >= pow(FACTOR, rungs)) {
        rungs++;
    }
    return rungs;
}

/* --- Configs --- */

/* What a trial takes over from the config: what was set, of the model, its training and its data. */
static bool is_passed_on(const struct config_key *key, const void *context)
{
    static const char *const own[] = {"time_limit", "num_threads", "memory_mb", NULL};
    static const char *const output[] = {"checkpoint_key", "shared_files", "kept_rows",
                                         "validate_steps", "seccomp",      NULL};
    const bool learns =
        strcmp(key->section, "model") == 0 || strcmp(key->section, "train") == 0 || strcmp(key->section, "data") == 0;
    bool is_listed = false;
    for (const char *const *name = learns ? own : output; *name; name++) {
        is_listed |= strcmp(*name, key->name) == 0;
    }
    return config_origin_of(context, key)->source != SOURCE_DEFAULT && learns != is_listed;
}

/* The config with these settings over `text`, as JSON, which the caller frees; NULL: they do not fit one another. */
static char *config_with(const char *text, const struct config_setting *settings, int count, struct config *config,
                         struct error *error)
{
    if (!config_parse(config, "config", (const uint8_t *)text, strlen(text), settings, count, error)) {
        return NULL;
    }
    return config_keys_text(config, is_passed_on, config);
}

static void add_setting(struct config_setting *settings, int *count, const char *flag, char text[32], double number)
{
    config_number_text(number, text);
    settings[(*count)++] = (struct config_setting){flag, text};
}

/*
 * Runs whose length is in steps see the same number of examples whatever their batch, and are validated at least once
 * on the first rung.
 */
static int settle_steps(const struct tune *tune, struct tune_trial *trial, const struct config *config,
                        struct config_setting settings[2], char texts[2][32])
{
    const struct config *base = tune->config;
    int count = 0;
    trial->steps = base->train.train_steps;
    if (base->train.epochs > 0) {
        return 0;
    }
    if (!config_was_chosen(config, "train", "batch_size") && config->train.batch_size != base->train.batch_size) {
        const double steps = (double)trial->steps * base->train.batch_size / config->train.batch_size;
        trial->steps = (int64_t)fmax(floor(steps + 0.5), pow(FACTOR, tune->rungs - 1));
        add_setting(settings, &count, "train_steps", texts[0], (double)trial->steps);
    }
    if (base->output.validate_steps == 0) {
        add_setting(settings, &count, "validate_steps", texts[1], (double)rung_steps(tune, trial->steps, 0));
    }
    return count;
}

static char *describe_settings(const struct config_setting *settings, int count)
{
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    for (int i = 0; i < count; i++) {
        text_buffer_add(&text, "%s%s=%s", i > 0 ? " " : "", settings[i].flag, settings[i].text);
    }
    text_buffer_add_bytes(&text, "", 1);
    return must_have(text_buffer_take(&text, &size), 0, "a trial");
}

static void make_config(struct tune *tune, int number)
{
    struct tune_trial *trial = &tune->trial[number];
    struct config_setting settings[SPACE_MOST_KEYS + 2];
    char *texts[SPACE_MOST_KEYS], more[2][32];
    struct config config;
    struct error error;
    const int count = space_draw(&tune->space, (uint64_t)tune->config->train.seed, number, settings, texts);
    trial->differs = describe_settings(settings, count);
    trial->config = config_with(tune->base, settings, count, &config, &error);
    if (trial->config) {
        const int added = settle_steps(tune, trial, &config, settings + count, more);
        config_free(&config);
        free(trial->config);
        trial->config = config_with(tune->base, settings, count + added, &config, &error);
    }
    if (trial->config) {
        config_free(&config);
    } else {
        snprintf(trial->error, sizeof trial->error, "%.290s", error.text);
    }
    for (int i = 0; i < count; i++) {
        free(texts[i]);
    }
}

/* --- Records --- */

static bool trial_path(const struct tune *tune, int number, const char *name, char path[FILE_PATH], struct error *error)
{
    char within[96];
    snprintf(within, sizeof within, "trials/%04d%s%s", number, name[0] != '\0' ? "/" : "", name);
    return file_join(path, FILE_PATH, tune->folder, within, error);
}

static bool write_text(const char *path, const char *text, struct error *error)
{
    const struct file_part parts[] = {{text, strlen(text)}, {"\n", 1}};
    return file_write_atomic(path, parts, 2, error);
}

static cJSON *result_json(const struct result *result, int rung)
{
    cJSON *object = cJSON_CreateObject();
    json_must_put(object, "rung", cJSON_CreateNumber(rung));
    json_must_put(object, "score", isnan(result->score) ? cJSON_CreateNull() : cJSON_CreateNumber(result->score));
    json_must_put(object, "steps", cJSON_CreateNumber((double)result->steps));
    json_must_put(object, "epochs", cJSON_CreateNumber(result->epochs));
    json_must_put(object, "best_epochs", cJSON_CreateNumber(result->best_epochs));
    json_must_put(object, "seconds", cJSON_CreateNumber(floor(1e3 * result->seconds + 0.5) / 1e3));
    json_must_put(object, "finished", cJSON_CreateBool(result->has_finished));
    return object;
}

/* A trial as its record and trials.jsonl have it; the caller frees the text. */
static char *trial_text(const struct tune *tune, int number)
{
    const struct tune_trial *trial = &tune->trial[number];
    cJSON *object = cJSON_CreateObject(), *rungs = cJSON_CreateArray();
    for (int i = 0; i < tune->rungs && trial->results[i].is_known; i++) {
        json_must_put(rungs, NULL, result_json(&trial->results[i], i));
    }
    json_must_put(object, "trial", cJSON_CreateNumber(number));
    json_must_put(object, "settings", cJSON_CreateString(trial->differs));
    json_must_put(object, "metric", cJSON_CreateString(tune->metric));
    json_must_put(object, "nets", cJSON_CreateString(trial->nets));
    json_must_put(object, "rungs", rungs);
    if (trial->error[0] != '\0') {
        json_must_put(object, "error", cJSON_CreateString(trial->error));
    }
    char *text = must_have(cJSON_PrintUnformatted(object), 0, "a record of a trial");
    cJSON_Delete(object);
    return text;
}

static bool write_record(const struct tune *tune, int number, struct error *error)
{
    char path[FILE_PATH];
    char *text = trial_text(tune, number);
    const bool done = trial_path(tune, number, "trial.json", path, error) && write_text(path, text, error);
    free(text);
    return done;
}

static double number_in(const cJSON *object, const char *name)
{
    const cJSON *value = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

/* Whole counts come from files: others may have changed them. */
static int64_t count_in(const cJSON *object, const char *name)
{
    const double number = number_in(object, name);
    return number >= 0 && number < 1e15 ? (int64_t)number : 0;
}

static void note_metric(struct tune *tune, const char *name)
{
    for (int m = METRIC_LOSS; m < METRICS && tune->metric[0] == '\0'; m++) {
        if (strcmp(name, config_metric_name((enum metric)m)) == 0) {
            snprintf(tune->metric, sizeof tune->metric, "%s", name);
            tune->rises = metric_rises((enum metric)m);
        }
    }
}

static void take_record(struct tune *tune, struct tune_trial *trial, const cJSON *record)
{
    const cJSON *rungs = cJSON_GetObjectItemCaseSensitive(record, "rungs"), *rung;
    const cJSON *metric = cJSON_GetObjectItemCaseSensitive(record, "metric");
    const cJSON *why = cJSON_GetObjectItemCaseSensitive(record, "error");
    const cJSON *nets = cJSON_GetObjectItemCaseSensitive(record, "nets");
    int count = 0;
    note_metric(tune, cJSON_IsString(metric) ? metric->valuestring : "");
    cJSON_ArrayForEach(rung, rungs)
    {
        if (count == tune->rungs) {
            break;
        }
        trial->results[count++] =
            (struct result){.is_known = true,
                            .score = number_in(rung, "score"),
                            .steps = count_in(rung, "steps"),
                            .epochs = number_in(rung, "epochs"),
                            .best_epochs = number_in(rung, "best_epochs"),
                            .seconds = number_in(rung, "seconds"),
                            .has_finished = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(rung, "finished"))};
    }
    if (cJSON_IsString(nets)) {
        snprintf(trial->nets, sizeof trial->nets, "%.63s", nets->valuestring);
    }
    if (cJSON_IsString(why)) {
        snprintf(trial->error, sizeof trial->error, "%.290s", why->valuestring);
    }
}

/* NULL: there is none, or it is damaged; *error says so. */
static cJSON *read_json(const char *path, struct error *error)
{
    uint8_t *bytes;
    size_t size;
    struct json_place place;
    if (!file_read(path, MOST_RECORD, &bytes, &size, error)) {
        return NULL;
    }
    cJSON *json = NULL;
    if (json_check((const char *)bytes, size, &place, error)) {
        json = must_have(json_build((const char *)bytes, size), 0, "a record of a trial");
    } else {
        error_wrap(error, "%s:%d:%d", path, place.line, place.column);
    }
    free(bytes);
    return json;
}

/* Draws the trial, prepares its folder, and reads what an earlier process found out about it. */
static bool open_trial(struct tune *tune, int number, struct error *error)
{
    char path[FILE_PATH];
    struct tune_trial *trial = &tune->trial[number];
    if (trial->differs) {
        return true;
    }
    make_config(tune, number);
    if (!trial_path(tune, number, "", path, error) || !file_make_folder(path, error)) {
        return false;
    }
    if (trial->config &&
        (!trial_path(tune, number, "config.json", path, error) || !write_text(path, trial->config, error))) {
        return false;
    }
    if (!trial_path(tune, number, "trial.json", path, error)) {
        return false;
    }
    cJSON *record = file_exists(path) ? read_json(path, error) : NULL;
    if (file_exists(path) && !record) {
        file_set_aside(path, error->text); /* its run is there, and gives the same result again */
    }
    take_record(tune, trial, record);
    cJSON_Delete(record);
    return true;
}

/* --- Processes --- */

struct flags {
    char *items[MOST_FLAGS + 1];
    int count;
};

__attribute__((format(printf, 2, 3))) static void add_flag(struct flags *flags, const char *format, ...)
{
    va_list arguments;
    char *text = NULL;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) {
        text = NULL;
    }
    va_end(arguments);
    flags->items[flags->count++] = must_have(text, 0, "a trial's flags");
}

static void free_flags(struct flags *flags)
{
    for (int i = 0; i < flags->count; i++) {
        free(flags->items[i]);
    }
}

/* In the new process, which does not outlive its parent: the command line's rest, and output to `out` (-1: ours). */
static void exec_run(const struct flags *flags, int out, pid_t parent)
{
    static const char *const not_its[] = {"TF_CONFIG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID",
                                          "TRAINER_SUPERVISOR"};
    setpgid(0, 0); /* its parent passes Ctrl-C on */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (size_t i = 0; i < sizeof not_its / sizeof *not_its; i++) {
        unsetenv(not_its[i]);
    }
    if (getppid() == parent && (out < 0 || (dup2(out, STDOUT_FILENO) >= 0 && dup2(out, STDERR_FILENO) >= 0))) {
        execv("/proc/self/exe", flags->items);
    }
    _exit(127);
}

static bool start_run(const struct flags *flags, const char *log, pid_t *pid, struct error *error)
{
    int out = -1;
    if (log) {
        unlink(log); /* of the rung below */
        out = file_create(log, 0666, error);
        if (out < 0) {
            return false;
        }
    }
    const pid_t parent = getpid();
    *pid = signals_fork();
    if (*pid == 0) {
        exec_run(flags, out, parent);
    }
    const int reason = errno;
    if (out >= 0) {
        close(out);
    }
    return *pid > 0 || error_set(error, "a trial's process can't be started: %s", strerror(reason));
}

/* The folder of one fold's run, or the trial's if there are none. */
static bool run_path(const struct tune *tune, int number, int fold, const char *name, char path[FILE_PATH],
                     struct error *error)
{
    char within[64];
    if (tune->folds == 1) {
        return trial_path(tune, number, name, path, error);
    }
    snprintf(within, sizeof within, "fold-%d%s%s", fold + 1, name[0] != '\0' ? "/" : "", name);
    return trial_path(tune, number, within, path, error);
}

static bool start_child(struct tune *tune, struct tune_child *child, int job, struct error *error)
{
    const struct halving_job *is = &tune->jobs[job].is;
    struct flags flags = {.count = 0};
    char config[FILE_PATH], folder[FILE_PATH], log[FILE_PATH];
    const int fold = tune->jobs[job].begun++;
    if (!trial_path(tune, is->trial, "config.json", config, error) ||
        !run_path(tune, is->trial, fold, "", folder, error) || !file_make_folder(folder, error) ||
        !run_path(tune, is->trial, fold, "log.jsonl", log, error)) {
        return false;
    }
    add_flag(&flags, "trainer");
    add_flag(&flags, "train");
    add_flag(&flags, "--config=%s", config);
    add_flag(&flags, "--train_dir=%s", folder);
    if (full_epochs(tune) > 0) {
        add_flag(&flags, "--epochs=%.17g", rung_epochs(tune, is->rung));
    } else {
        add_flag(&flags, "--train_steps=%lld", (long long)rung_steps(tune, tune->trial[is->trial].steps, is->rung));
    }
    add_flag(&flags, "--patience=%d", tune->config->train.patience);
    if (tune->folds > 1) {
        add_flag(&flags, "--fold=%d/%d", fold + 1, tune->folds);
    }
    add_flag(&flags, "--num_threads=%d", tune->threads);
    add_flag(&flags, "--memory_mb=%d", tune->memory_mb);
    add_flag(&flags, "--max_to_keep=1");
    add_flag(&flags, "--log_steps=0");
    add_flag(&flags, "--log_format=json");
    if (trust_given()) {
        add_flag(&flags, "--trust_folder=%s", trust_given());
    }
    const bool done = start_run(&flags, log, &child->pid, error);
    child->job = job;
    child->fold = fold;
    child->begun_s = clock_monotonic_s();
    child->pid = done ? child->pid : 0;
    free_flags(&flags);
    return done;
}

/* --- Results --- */

/* What a run's lines say: its nets, and the result or the reason why there is none. */
static void take_line(struct tune *tune, struct tune_trial *trial, const char *line, size_t size, struct result *result,
                      char why[300])
{
    struct json_place place;
    struct error ignored;
    static const char best[] = "best_";
    cJSON *event = json_check(line, size, &place, &ignored) ? json_build(line, size) : NULL;
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(event, "event"), *field;
    const cJSON *message = cJSON_GetObjectItemCaseSensitive(event, "message");
    const cJSON *nets = cJSON_GetObjectItemCaseSensitive(event, "ensemble");
    if (cJSON_IsString(nets)) {
        snprintf(trial->nets, sizeof trial->nets, "%.63s", nets->valuestring);
    }
    if (cJSON_IsString(name) && strcmp(name->valuestring, "done") == 0) {
        result->is_known = true;
        result->steps = count_in(event, "steps");
        result->epochs = number_in(event, "epochs");
        result->best_epochs = result->epochs * number_in(event, "best_step") / fmax(1, (double)result->steps);
        cJSON_ArrayForEach(field, event)
        {
            if (strncmp(field->string, best, strlen(best)) == 0 && strcmp(field->string, "best_step") != 0) {
                note_metric(tune, field->string + strlen(best));
                result->score = cJSON_IsNumber(field) ? field->valuedouble : NAN;
            }
        }
    } else if (cJSON_IsString(message)) {
        snprintf(why, 300, "%.290s", message->valuestring);
    }
    cJSON_Delete(event);
}

static void read_log(struct tune *tune, struct tune_trial *trial, const char *path, struct result *result,
                     char why[300])
{
    uint8_t *bytes;
    size_t size;
    struct error error;
    snprintf(why, 300, "it said nothing");
    if (!file_read(path, MOST_LOG, &bytes, &size, &error)) {
        snprintf(why, 300, "%.290s", error.text);
        return;
    }
    const char *text = (const char *)bytes, *end = text + size;
    while (text < end) {
        const char *newline = memchr(text, '\n', (size_t)(end - text));
        const size_t length = (size_t)((newline ? newline : end) - text);
        const bool may_tell = memmem(text, length, "\"start\"", 7) || memmem(text, length, "\"done\"", 6) ||
                              memmem(text, length, "\"error\"", 7);
        if (may_tell) {
            take_line(tune, trial, text, length, result, why);
        }
        text += length + 1;
    }
    free(bytes);
}

/* Did it stop before its length, because longer training would bring nothing? */
static bool ended_early(const struct tune *tune, const struct halving_job *job, const struct result *result)
{
    return full_epochs(tune) > 0 ? result->epochs < rung_epochs(tune, job->rung) - 1e-6
                                 : result->steps < rung_steps(tune, tune->trial[job->trial].steps, job->rung);
}

/* In the order of the folds, whichever ended first. */
static struct result join_folds(const struct tune *tune, const struct tune_job *job)
{
    struct result joined = {.is_known = true, .has_finished = true};
    for (int i = 0; i < tune->folds; i++) {
        const struct result *result = &job->of_fold[i];
        joined.score += result->score / tune->folds;
        joined.epochs += result->epochs / tune->folds;
        joined.best_epochs += result->best_epochs / tune->folds;
        joined.steps += result->steps;
        joined.seconds += result->seconds;
        joined.has_finished &= result->has_finished;
    }
    return joined;
}

static void take_child(struct tune *tune, struct tune_child *child, int status)
{
    struct tune_job *job = &tune->jobs[child->job];
    struct tune_trial *trial = &tune->trial[job->is.trial];
    struct result result = {.score = NAN};
    struct error error;
    char log[FILE_PATH], why[300] = "";
    if (run_path(tune, job->is.trial, child->fold, "log.jsonl", log, &error)) {
        read_log(tune, trial, log, &result, why);
    }
    /* Only what its config is to blame for is a result. */
    job->was_killed |=
        !WIFEXITED(status) || (WEXITSTATUS(status) != COMMAND_DONE && WEXITSTATUS(status) != COMMAND_MISUSED);
    if (WIFSIGNALED(status)) {
        snprintf(why, sizeof why, "its process was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    }
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0 || !result.is_known) {
        result = (struct result){.score = NAN, .has_finished = true};
        snprintf(trial->error, sizeof trial->error, "%s", why);
    } else if (isnan(result.score)) {
        snprintf(trial->error, sizeof trial->error, "there are no validation examples to score it by");
    }
    result.seconds = clock_monotonic_s() - child->begun_s;
    result.has_finished = result.has_finished || ended_early(tune, &job->is, &result);
    child->pid = 0;
    job->of_fold[child->fold] = result;
    job->ended++;
}

/* By a rung, or of all rungs so far, for comparison: the lower the better. */
static double penalty(const struct tune *tune, double score)
{
    return tune->rises ? -score : score;
}

static const struct result *last_of(const struct tune *tune, int number)
{
    const struct halving_trial *halving = &tune->halving.trial[number];
    return &tune->trial[number].results[halving->done > 0 ? halving->done - 1 : 0];
}

/* Its settings, for people. */
static const char *called(const struct tune *tune, int number)
{
    return tune->trial[number].differs[0] != '\0' ? tune->trial[number].differs : "the config as it is";
}

static void report_result(const struct tune *tune, const struct halving_job *job)
{
    const struct tune_trial *trial = &tune->trial[job->trial];
    const struct result *result = &trial->results[job->rung];
    const int best = halving_best(&tune->halving);
    cJSON *fields = NULL;
    char score[360];
    if (log_format() == LOG_JSON) {
        fields = result_json(result, job->rung);
        json_must_put(fields, "trial", cJSON_CreateNumber(job->trial));
        json_must_put(fields, "metric", cJSON_CreateString(tune->metric));
        json_must_put(fields, "settings", cJSON_CreateString(trial->differs));
        json_must_put(fields, "best_trial", cJSON_CreateNumber(best));
    }
    if (isnan(result->score)) {
        snprintf(score, sizeof score, "failed: %s", trial->error);
    } else {
        snprintf(score, sizeof score, "%s %.6g after %.4g epochs%s", tune->metric, result->score, result->epochs,
                 best == job->trial ? ", the best so far" : "");
    }
    log_event("trial", fields, "trial %d, rung %d of %d, %.1f s: %s; %s", job->trial, job->rung + 1, tune->rungs,
              result->seconds, score, called(tune, job->trial));
}

/* The state machine learns of a result, from a process or from a record. */
static void pass_result(struct tune *tune, const struct halving_job *job, bool is_new)
{
    const struct result *result = &tune->trial[job->trial].results[job->rung];
    halving_done(&tune->halving, job, penalty(tune, result->score), result->has_finished);
    tune->done++;
    if (tune->fits_space && job->trial == 0 && job->rung == 0) {
        space_fit(&tune->space, tune->trial[0].nets);
    }
    if (is_new) {
        report_result(tune, job);
    }
}

/* What the trial's newest checkpoint says of the data it was trained on; "": nothing. */
static void read_data(const struct tune *tune, int number, char data[CHECKPOINT_DATA_TEXT])
{
    char folder[FILE_PATH];
    struct checkpoint_file *file = NULL;
    struct error ignored;
    data[0] = '\0';
    if (run_path(tune, number, 0, "", folder, &ignored) && checkpoint_folder_find(folder, &file, &ignored) && file) {
        snprintf(data, CHECKPOINT_DATA_TEXT, "%s", checkpoint_file_info(file)->data);
    }
    checkpoint_close(file);
}

/* Results count beside each other only on the same data, also where a search goes on another day. */
static bool check_data(const struct tune *tune, int number, struct error *error)
{
    char first[CHECKPOINT_DATA_TEXT], own[CHECKPOINT_DATA_TEXT];
    read_data(tune, 0, first);
    read_data(tune, number, own);
    return first[0] == '\0' || own[0] == '\0' || strcmp(first, own) == 0 ||
           error_set(error,
                     "%s: the data have changed since trial 0, and scores on other data don't compare; choose another "
                     "--train_dir, or remove this one",
                     tune->folder);
}

/* All folds of it have ended. */
static bool end_job(struct tune *tune, struct tune_job *job, struct error *error)
{
    struct tune_trial *trial = &tune->trial[job->is.trial];
    struct result *result = &trial->results[job->is.rung];
    *result = join_folds(tune, job);
    if (job->is.rung > 0) {
        result->seconds += trial->results[job->is.rung - 1].seconds;
    }
    const bool is_of_all = job->is.trial == 0 && isnan(result->score);
    if (!isnan(result->score) && !check_data(tune, job->is.trial, error)) {
        return false;
    }
    if (!is_of_all && !job->was_killed && !write_record(tune, job->is.trial, error)) {
        return false;
    }
    pass_result(tune, &job->is, true);
    if (is_of_all) {
        return error_set(error, "trial 0, the config as it is, failed, and so will others: %s", trial->error);
    }
    return true;
}

/* --- The search --- */

static int count_running(const struct tune *tune)
{
    int count = 0;
    for (int i = 0; i < tune->parallel; i++) {
        count += tune->children[i].pid > 0;
    }
    return count;
}

static bool reap(struct tune *tune, struct error *error)
{
    for (int i = 0; i < tune->parallel; i++) {
        struct tune_child *child = &tune->children[i];
        struct tune_job *job = &tune->jobs[child->job];
        int status;
        if (child->pid == 0 || waitpid(child->pid, &status, WNOHANG) != child->pid) {
            continue;
        }
        take_child(tune, child, status);
        if (job->ended == tune->folds && !end_job(tune, job, error)) {
            return false;
        }
    }
    return true;
}

/* A trial whose config is wrong has its result at once. */
static void fail_at_once(struct tune *tune, const struct halving_job *job)
{
    tune->trial[job->trial].results[job->rung] = (struct result){.is_known = true, .score = NAN, .has_finished = true};
}

/* A job with a fold to start; -1: none now. New jobs whose results are known are done at once. */
static int find_job(struct tune *tune, struct error *error)
{
    int unused = -1;
    for (int i = 0; i < tune->parallel; i++) {
        if (tune->jobs[i].begun < tune->folds) {
            return i;
        }
        unused = tune->jobs[i].ended == tune->folds ? i : unused;
    }
    struct halving_job job;
    enum halving_next next = HALVING_WAIT;
    if (tune->fits_space && tune->halving.started == 1 && tune->halving.trial[0].done == 0) {
        return -1; /* what others may be is not known yet */
    }
    while (unused >= 0 && (next = halving_next(&tune->halving, &job)) == HALVING_JOB) {
        if (!open_trial(tune, job.trial, error)) {
            tune->has_failed = true;
            return -1;
        }
        struct tune_trial *trial = &tune->trial[job.trial];
        const bool was_known = trial->results[job.rung].is_known;
        if (!trial->config && !was_known) {
            fail_at_once(tune, &job);
        }
        if (!trial->results[job.rung].is_known) {
            tune->jobs[unused] = (struct tune_job){.is = job};
            return unused;
        }
        pass_result(tune, &job, !was_known);
    }
    tune->is_over = next == HALVING_OVER;
    return -1;
}

static bool start_what_fits(struct tune *tune, struct error *error)
{
    for (int i = 0; i < tune->parallel; i++) {
        if (tune->children[i].pid > 0) {
            continue;
        }
        const int job = find_job(tune, error);
        if (job < 0) {
            return !tune->has_failed;
        }
        if (!start_child(tune, &tune->children[i], job, error)) {
            return false;
        }
    }
    return true;
}

/* How long the best config would take to be trained in full. */
static double final_s(const struct tune *tune)
{
    const double limit_s = tune->config->train.time_limit;
    const int best = halving_best(&tune->halving);
    if (!tune->trains_best) {
        return 0;
    }
    if (best < 0) {
        return limit_s / 2;
    }
    const struct result *result = last_of(tune, best);
    const int rung = tune->halving.trial[best].done - 1;
    const double whole_s = result->seconds / tune->folds / (result->has_finished ? 1 : share_of(tune, rung));
    return fmin(fmax(ALL_ROWS * whole_s, LEAST_S), limit_s / 3);
}

static bool is_late(const struct tune *tune)
{
    const double limit_s = tune->config->train.time_limit;
    return limit_s > 0 && clock_monotonic_s() - tune->begun_s + final_s(tune) >= limit_s;
}

static void show_progress(struct tune *tune)
{
    const int best = halving_best(&tune->halving);
    const double limit_s = tune->config->train.time_limit;
    progress_update(&tune->progress,
                    &(struct progress_view){.step = tune->halving.started,
                                            .last_step = limit_s > 0 ? INT64_MAX : tune->trials,
                                            .loss = best < 0 ? (double)NAN : last_of(tune, best)->score,
                                            .validation = -1,
                                            .unit = "trial"});
}

/* Those that run save their state and leave, to go on another time. */
static void stop_children(struct tune *tune)
{
    const double until_s = clock_monotonic_s() + LEAVE_S;
    bool is_forced = false;
    for (int i = 0; i < tune->parallel; i++) {
        if (tune->children[i].pid > 0) {
            kill(tune->children[i].pid, SIGTERM);
        }
    }
    while (count_running(tune) > 0) {
        for (int i = 0; i < tune->parallel; i++) {
            struct tune_child *child = &tune->children[i];
            if (child->pid > 0 && !is_forced && clock_monotonic_s() >= until_s) {
                kill(child->pid, SIGKILL);
            }
            if (child->pid > 0 && waitpid(child->pid, NULL, WNOHANG) == child->pid) {
                child->pid = 0;
            }
        }
        is_forced = clock_monotonic_s() >= until_s;
        clock_pause(clock_monotonic_s() + POLL_S);
    }
}

static bool search(struct tune *tune, struct error *error)
{
    bool done = true;
    while (done) {
        done = reap(tune, error);
        tune->is_late = is_late(tune);
        if (!done || tune->is_late || signals_pending() != 0) {
            break;
        }
        done = start_what_fits(tune, error);
        if (done && tune->is_over && count_running(tune) == 0) {
            break;
        }
        show_progress(tune);
        signals_pause(clock_monotonic_s() + POLL_S);
    }
    stop_children(tune);
    return done;
}

/* --- What comes of it --- */

static const struct tune *sorted;

static int by_score(const void *a, const void *b)
{
    const int left = *(const int *)a, right = *(const int *)b;
    const double x = halving_score(&sorted->halving.trial[left]), y = halving_score(&sorted->halving.trial[right]);
    if (isnan(x) || isnan(y) || x == y) {
        return isnan(x) != isnan(y) ? isnan(x) - isnan(y) : left - right;
    }
    return x < y ? -1 : 1;
}

/* Of the trials that were begun; the caller frees it. */
static int *in_order(const struct tune *tune)
{
    int *order = must_zero((size_t)tune->halving.started + 1, sizeof *order, "a table of trials");
    for (int i = 0; i < tune->halving.started; i++) {
        order[i] = i;
    }
    sorted = tune;
    qsort(order, (size_t)tune->halving.started, sizeof *order, by_score);
    return order;
}

static void print_table(const struct tune *tune)
{
    char steps[COUNT_TEXT], score[32];
    int *order = in_order(tune), rows = 0;
    log_info("%5s  %4s  %12s  %10s  %8s  %s", "trial", "rung", tune->metric, "steps", "seconds", "settings");
    for (int i = 0; i < tune->halving.started && rows < MOST_SHOWN; i++) {
        const int number = order[i], done = tune->halving.trial[number].done;
        const struct result *result = last_of(tune, number);
        if (done == 0) {
            continue; /* its first rung was not finished */
        }
        const bool has_failed = isnan(result->score);
        snprintf(score, sizeof score, "%.6g", result->score);
        log_info("%5d  %2d/%d  %12s  %10s  %8.1f  %s%s%s", number, done, tune->rungs, has_failed ? "failed" : score,
                 count_text(steps, result->steps), result->seconds, called(tune, number), has_failed ? ": " : "",
                 has_failed ? tune->trial[number].error : "");
        rows++;
    }
    free(order);
}

static bool write_trials(const struct tune *tune, struct error *error)
{
    char path[FILE_PATH];
    struct text_buffer all = {.bytes = NULL};
    size_t size;
    int *order = in_order(tune);
    for (int i = 0; i < tune->halving.started; i++) {
        char *text = trial_text(tune, order[i]);
        text_buffer_add_bytes(&all, text, strlen(text));
        text_buffer_add_bytes(&all, "\n", 1);
        free(text);
    }
    free(order);
    char *bytes = must_have(text_buffer_take(&all, &size), 0, "a table of trials");
    const struct file_part part = {bytes, size};
    const bool done =
        file_join(path, sizeof path, tune->folder, "trials.jsonl", error) && file_write_atomic(path, &part, 1, error);
    free(bytes);
    return done;
}

/* The table, and the files that say the same. */
static bool conclude(const struct tune *tune, struct error *error)
{
    const int best = halving_best(&tune->halving);
    char path[FILE_PATH], count[COUNT_TEXT];
    cJSON *fields = NULL;
    if (best < 0) {
        log_warning("no trial has a result yet%s", tune->is_late ? ": a longer --time_limit would allow for some" : "");
        return true;
    }
    if (!write_trials(tune, error) || !file_join(path, sizeof path, tune->folder, "best.json", error) ||
        !write_text(path, tune->trial[best].config, error)) {
        return false;
    }
    const struct result *result = last_of(tune, best);
    if (log_format() == LOG_JSON) {
        fields = cJSON_CreateObject();
        json_must_put(fields, "trials", cJSON_CreateNumber(tune->halving.started));
        json_must_put(fields, "best_trial", cJSON_CreateNumber(best));
        json_must_put(fields, "metric", cJSON_CreateString(tune->metric));
        json_must_put(fields, "score", cJSON_CreateNumber(result->score));
        json_must_put(fields, "default_score", cJSON_CreateNumber(last_of(tune, 0)->score));
        json_must_put(fields, "config", cJSON_CreateString(path));
    } else {
        print_table(tune);
    }
    log_event("tuned", fields, "best of %s trials: %d, with %s %.6g (the config as it is: %.6g); it is in %s",
              count_text(count, tune->halving.started), best, tune->metric, result->score, last_of(tune, 0)->score,
              path);
    return true;
}

/* --- The best config, trained in full --- */

/* Are there uses for validation rows that the number of epochs does not replace? */
static bool needs_validation(const struct config *config)
{
    return config->train.calibration != CALIBRATION_NONE || config->train.interval > 0 ||
           config->train.threshold == CONFIG_AUTO || config->train.target_accuracy > 0 ||
           config->train.target_metric > 0;
}

/*
 * With all rows, as long as was best for the trial, if that was trained in full; otherwise like a trial that is. The
 * caller frees the text.
 */
static char *final_config(const struct tune *tune, int best, bool *has_all_rows)
{
    const struct tune_trial *trial = &tune->trial[best];
    const struct result *result = last_of(tune, best);
    const int done = tune->halving.trial[best].done;
    struct config config;
    struct error ignored;
    char epochs[32];
    config_number_text(result->best_epochs, epochs);
    const struct config_setting settings[] = {
        {"validation_size", "0"}, {"epochs", epochs}, {"train_steps", "0"}, {"patience", "0"}};
    *has_all_rows = done > 0 && (result->has_finished || done == tune->rungs) && result->best_epochs > 0 &&
                    !needs_validation(tune->config);
    char *text = *has_all_rows ? config_with(trial->config, settings, 4, &config, &ignored) : NULL;
    *has_all_rows = text;
    if (text) {
        config_free(&config);
        return text;
    }
    return must_copy(trial->config);
}

/* A run of another config that was the best before gives way. */
static bool make_final_folder(const char *folder, const char *path, const char *config, struct error *error)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    struct error ignored;
    const size_t length = strlen(config);
    const bool is_there = file_exists(path) && file_read(path, MOST_RECORD, &bytes, &size, &ignored);
    const bool is_same = is_there && size == length + 1 && memcmp(bytes, config, length) == 0;
    free(bytes);
    return is_same ||
           (file_remove_folder(folder, error) && file_make_folder(folder, error) && write_text(path, config, error));
}

static int wait_for(pid_t pid)
{
    int status;
    bool is_told = false;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (signals_pending() != 0 && !is_told) {
            is_told = true;
            kill(pid, signals_pending());
        }
        clock_pause(clock_monotonic_s() + POLL_S);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : COMMAND_FAILED;
}

static bool train_best(struct tune *tune, int *status, struct error *error)
{
    const struct config *config = tune->config;
    const int best = halving_best(&tune->halving) < 0 ? 0 : halving_best(&tune->halving);
    char folder[FILE_PATH], path[FILE_PATH];
    struct flags flags = {.count = 0};
    bool has_all_rows;
    pid_t pid;
    if (!open_trial(tune, best, error) || !file_join(folder, sizeof folder, tune->folder, "final", error) ||
        !file_join(path, sizeof path, folder, "config.json", error)) {
        return false;
    }
    char *text = final_config(tune, best, &has_all_rows);
    const bool is_ready = make_final_folder(folder, path, text, error);
    free(text);
    if (!is_ready) {
        return false;
    }
    log_info("trial %d is trained %s, in %s", best,
             has_all_rows ? "with all rows, as long as was best" : "in full, with the usual validation", folder);
    add_flag(&flags, "trainer");
    add_flag(&flags, "train");
    add_flag(&flags, "--config=%s", path);
    add_flag(&flags, "--train_dir=%s", folder);
    if (config->train.time_limit > 0) {
        const double left_s = config->train.time_limit - (clock_monotonic_s() - tune->begun_s);
        add_flag(&flags, "--time_limit=%.3f", fmax(left_s, LEAST_S));
    }
    add_flag(&flags, "--num_threads=%d", config->train.num_threads);
    add_flag(&flags, "--memory_mb=%d", config->data.memory_mb);
    add_flag(&flags, "--log_steps=%lld", (long long)config->output.log_steps);
    add_flag(&flags, "--log_format=%s", log_format() == LOG_JSON ? "json" : "text");
    add_flag(&flags, "--progress=%s", config->output.progress ? "true" : "false");
    if (trust_given()) {
        add_flag(&flags, "--trust_folder=%s", trust_given());
    }
    fflush(stdout);
    const bool done = start_run(&flags, NULL, &pid, error);
    free_flags(&flags);
    *status = done ? wait_for(pid) : COMMAND_FAILED;
    return done;
}

/* --- What the search is --- */

static char *space_text(const struct space *space)
{
    struct text_buffer text = {.bytes = NULL};
    size_t size;
    for (int i = 0; i < space->count; i++) {
        const struct space_key *key = &space->keys[i];
        text_buffer_add(&text, "%s%s ", i > 0 ? ", " : "", key->key->name);
        for (int v = 0; v < key->value_count; v++) {
            text_buffer_add(&text, "%s%s", v > 0 ? "|" : "", key->values[v]);
        }
        if (!key->values) {
            char low[32], high[32];
            config_number_text(key->minimum, low);
            config_number_text(key->maximum, high);
            text_buffer_add(&text, "%s..%s%s%s", low, high, key->is_log ? " (log)" : "",
                            key->is_integer ? " (int)" : "");
        }
    }
    text_buffer_add_bytes(&text, "", 1);
    return must_have(text_buffer_take(&text, &size), 0, "a space of configs");
}

static cJSON *describe_search(const struct tune *tune)
{
    cJSON *object = cJSON_CreateObject();
    char *space = space_text(&tune->space);
    json_must_put(object, "config", must_have(json_build(tune->base, strlen(tune->base)), 0, "a config"));
    json_must_put(object, "space", cJSON_CreateString(space));
    json_must_put(object, "folds", cJSON_CreateNumber(tune->folds));
    json_must_put(object, "parallel", cJSON_CreateNumber(tune->parallel));
    free(space);
    return object;
}

/* The folder may hold another search, of which nothing here would be true. */
static bool compare_search(const cJSON *before, const cJSON *now, const char *path, struct error *error)
{
    const cJSON *member;
    cJSON_ArrayForEach(member, now)
    {
        if (!cJSON_Compare(cJSON_GetObjectItemCaseSensitive(before, member->string), member, true)) {
            return error_set(
                error,
                "%s: the trials here are of a search with another %s; go on with the same flags, or choose "
                "another --train_dir",
                path, member->string);
        }
    }
    return true;
}

/* *parallel: that of the search so far, unless the user has set one. */
static bool open_search(struct tune *tune, bool sets_parallel, bool *is_new, struct error *error)
{
    char path[FILE_PATH];
    if (!file_join(path, sizeof path, tune->folder, "tune.json", error)) {
        return false;
    }
    *is_new = !file_exists(path);
    cJSON *before = *is_new ? NULL : read_json(path, error);
    if (!*is_new && !before) {
        return false;
    }
    const int64_t parallel = count_in(before, "parallel");
    if (before && !sets_parallel && parallel >= 1 && parallel <= MOST_PARALLEL) {
        tune->parallel = (int)parallel;
    }
    cJSON *now = describe_search(tune);
    char *text = must_have(cJSON_Print(now), 0, "a search");
    const bool done = *is_new ? write_text(path, text, error) : compare_search(before, now, path, error);
    free(text);
    cJSON_Delete(now);
    cJSON_Delete(before);
    return done;
}

/* Would a run without a word about devices take a GPU? */
static bool finds_gpu(const struct config *config)
{
    struct gpu_probe probe;
    gpu_probe(&probe);
    return config->train.device == DEVICE_AUTO && probe.usable && gpu_client_is_built();
}

/* Do trials share one? Those of tables only if asked to: several at a time on the CPU are faster. */
static bool takes_gpu(const struct config *config)
{
    return config->train.device == DEVICE_GPU || config->train.towers[0] != '\0' ||
           (!config_is_of_table(config) && finds_gpu(config));
}

static char *base_config(const struct tune *tune)
{
    const struct config_setting on_cpu = {"device", "cpu"};
    struct config config;
    struct error ignored;
    char *text = config_keys_text(tune->config, is_passed_on, tune->config);
    char *other = !tune->on_gpu && finds_gpu(tune->config) ? config_with(text, &on_cpu, 1, &config, &ignored) : NULL;
    if (other) {
        config_free(&config);
        free(text);
    }
    return other ? other : text;
}

/* What the processes of trials share. */
static void divide_machine(struct tune *tune)
{
    const struct config *config = tune->config;
    const int threads = config->train.num_threads > 0 ? config->train.num_threads : threads_available();
    uint64_t bytes = (uint64_t)1 << 31;
    tune->threads = threads / tune->parallel > 1 ? threads / tune->parallel : 1;
    memory_for_this_process(&bytes);
    const uint64_t all = config->data.memory_mb > 0 ? (uint64_t)config->data.memory_mb : bytes / 2 >> 20;
    const uint64_t each = all / (uint64_t)tune->parallel;
    tune->memory_mb = each < 1 ? 1 : each > 100000000 ? 100000000 : (int)each;
}

static void report_search(const struct tune *tune, bool is_new)
{
    char *space = space_text(&tune->space);
    char lengths[160] = "", folds[32] = "", limit[48] = "", count[COUNT_TEXT];
    for (int rung = 0; rung < tune->rungs; rung++) {
        const size_t used = strlen(lengths);
        snprintf(lengths + used, sizeof lengths - used, "%s%s", rung > 0 ? ", " : "",
                 count_text(count, full_epochs(tune) > 0 ? (int64_t)rung_epochs(tune, rung)
                                                         : rung_steps(tune, tune->config->train.train_steps, rung)));
    }
    if (tune->folds > 1) {
        snprintf(folds, sizeof folds, " on each of %d folds", tune->folds);
    }
    if (tune->config->train.time_limit > 0) {
        snprintf(limit, sizeof limit, "; at most %g s", tune->config->train.time_limit);
    }
    log_info("space      %s", tune->space.count > 0 ? space : "nothing: the config says it all");
    log_info("trials     up to %s, of %s %s%s, of which the best third goes on; %d at a time, %d thread%s each%s",
             count_text(count, tune->trials), lengths, full_epochs(tune) > 0 ? "epochs" : "steps", folds,
             tune->parallel, tune->threads, tune->threads > 1 ? "s" : "", limit);
    log_info("train_dir  %s: %s", tune->folder, is_new ? "a new search" : "goes on with the search there");
    free(space);
}

/* --- The command --- */

static bool read_count(const struct command_call *call, const char *name, int least, int most, int otherwise,
                       int *count, struct error *error)
{
    const char *text = command_value(call, name);
    char *end;
    *count = otherwise;
    if (!text) {
        return true;
    }
    const long number = strtol(text, &end, 10);
    *count = (int)number;
    return (*text != '\0' && *end == '\0' && number >= least && number <= most) ||
           error_set(error, "--%s must be an integer from %d to %d, not %.32s", name, least, most, text);
}

/* What a search cannot be made of. */
static bool check_config(const struct config *config, int folds, struct error *error)
{
    const struct config_train *train = &config->train;
    if (config->cluster.job_name != JOB_LOCAL || config->cluster.ps_hosts.count > 0) {
        return error_set(error, "trainer tune runs all trials on this machine, and does not divide them among the "
                                "members of a cluster: remove job_name and ps_hosts, or train one config there");
    }
    if (config_has_rounds(train)) {
        return error_set(error, "trainer tune does not simulate rounds: remove local_steps and local_epochs");
    }
    if (config->output.train_dir[0] == '\0') {
        return error_set(error, "trainer tune keeps its trials in a folder: name one with --train_dir");
    }
    if (config->data.validation_size == 0 || config->data.fold[0] != '\0') {
        return error_set(error, "trainer tune compares trials on held-out examples: remove --%s%s",
                         config->data.fold[0] != '\0' ? "fold" : "validation_size",
                         config->data.fold[0] != '\0' ? ", or use --folds" : "");
    }
    if ((train->epochs > 0) == (train->train_steps > 0)) {
        return error_set(error, train->epochs > 0 ? "epochs and train_steps both set the length of a trial: remove one"
                                                  : "trials have no end: set --epochs or --train_steps");
    }
    if (folds > 1 &&
        (!config_is_of_table(config) || config->data.validation_size != CONFIG_AUTO || config->data.time[0] != '\0')) {
        return error_set(error, "--folds divides the rows of a table at random: it needs --target, and neither "
                                "validation_size nor time");
    }
    return true;
}

static bool read_options(struct tune *tune, const struct command_call *call, struct error *error)
{
    const struct config *config = call->config;
    const char *space = command_value(call, "space"), *final = command_value(call, "final");
    const int threads = config->train.num_threads > 0 ? config->train.num_threads : threads_available();
    const int usual = config->train.time_limit > 0 ? HALVING_MOST_TRIALS : USUAL_TRIALS;
    tune->config = config;
    tune->folder = config->output.train_dir;
    tune->on_gpu = takes_gpu(config);
    tune->trains_best = !final || strcmp(final, "true") == 0;
    if (!read_count(call, "trials", 1, HALVING_MOST_TRIALS, usual, &tune->trials, error) ||
        !read_count(call, "folds", 2, CONFIG_MAX_FOLDS, 1, &tune->folds, error) ||
        !read_count(call, "parallel", 1, MOST_PARALLEL, tune->on_gpu ? 1 : threads, &tune->parallel, error) ||
        !check_config(config, tune->folds, error)) {
        return false;
    }
    tune->parallel = tune->parallel > MOST_PARALLEL ? MOST_PARALLEL : tune->parallel;
    if (space && !space_read(&tune->space, space, config, error)) {
        return false;
    }
    if (!space) {
        space_usual(&tune->space, config, tune->on_gpu);
        tune->fits_space = config_was_chosen(config, "model", "ensemble") && config_is_of_table(config);
    }
    tune->trials = tune->space.count > 0 ? tune->trials : 1;
    return true;
}

static bool open_tune(struct tune *tune, const struct command_call *call, struct error *error)
{
    char path[FILE_PATH];
    bool is_new;
    tune->base = base_config(tune);
    if (!file_make_folder(tune->folder, error) || !trust_folder(tune->folder, error) ||
        !file_join(path, sizeof path, tune->folder, "tune.lock", error) ||
        !file_lock(path, "a search", &tune->lock, error) ||
        !open_search(tune, command_value(call, "parallel"), &is_new, error)) {
        return false;
    }
    divide_machine(tune);
    tune->rungs = count_rungs(tune->config);
    tune->trial = must_zero((size_t)tune->trials, sizeof *tune->trial, "trials: choose fewer (--trials)");
    tune->jobs = must_zero((size_t)tune->parallel, sizeof *tune->jobs, "jobs of trials");
    tune->children = must_zero((size_t)tune->parallel, sizeof *tune->children, "processes of trials");
    for (int i = 0; i < tune->parallel; i++) {
        tune->jobs[i].begun = tune->jobs[i].ended = tune->folds;
    }
    halving_create(&tune->halving, tune->trials, tune->rungs, FACTOR, tune->parallel);
    report_search(tune, is_new);
    return true;
}

static void close_tune(struct tune *tune)
{
    for (int i = 0; tune->trial && i < tune->trials; i++) {
        free(tune->trial[i].config);
        free(tune->trial[i].differs);
    }
    free(tune->trial);
    free(tune->jobs);
    free(tune->children);
    free(tune->base);
    halving_free(&tune->halving);
    space_free(&tune->space);
    if (tune->lock >= 0) {
        close(tune->lock);
    }
}

static bool run(struct tune *tune, int *status, struct error *error)
{
    const struct config_output *output = &tune->config->output;
    progress_begin(&tune->progress, output->progress && output->log_format == LOG_TEXT);
    const bool done = search(tune, error);
    progress_end(&tune->progress);
    if (!done || !conclude(tune, error)) {
        return false;
    }
    if (signals_pending() != 0) {
        log_info("interrupted by %s; the same command goes on from here", signals_name(signals_pending()));
        *status = signals_exit_status(signals_pending());
        return true;
    }
    *status = COMMAND_DONE;
    return !tune->trains_best || train_best(tune, status, error);
}

static int run_tune(const struct command_call *call)
{
    struct tune tune = {.lock = -1, .begun_s = clock_monotonic_s()};
    struct error error;
    int status = COMMAND_FAILED;
    if (!read_options(&tune, call, &error)) {
        log_error("%s", error.text);
        close_tune(&tune);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (!call->config->output.shared_files) {
        file_keep_private();
    }
    if (!open_tune(&tune, call, &error) || !run(&tune, &status, &error)) {
        log_error("%s", error.text);
        status = COMMAND_FAILED;
    }
    close_tune(&tune);
    return status;
}

static const struct command_flag tune_flags[] = {
    {"trials", "N", "configs to try, the given one first (30; with time_limit as many as fit)"},
    {"space", "FILE", "JSON of what to search: key to list of values, or to {\"min\", \"max\", \"log\", \"int\"}"},
    {"folds", "K", "score a table's trials by K-fold cross-validation, not by one held-out part"},
    {"parallel", "N", "trials at a time (one per thread; on a GPU one)"},
    {"final", NULL, "train the best config in full afterwards (on)"},
    {NULL, NULL, NULL},
};

const struct command command_tune = {
    .name = "tune",
    .summary = "search for a better config by training many, then train the best one",
    .details =
        "Draws configs at random from a space, by seed, and trains them for a short time; the best third goes on three "
        "times as long, and so on (asynchronous successive halving). The first trial is the config as it is. Scores "
        "are the best validation by best_metric. train_dir gets trials/NNNN, each an ordinary run, trials.jsonl, "
        "best.json for `trainer --config`, and final/, the best config trained on all rows for as long as was best. "
        "The same command goes on with a search that was stopped. Without time_limit, which bounds all of it, a seed "
        "and a number of parallel trials give the same trials and the same best one.",
    .flags = tune_flags,
    .takes_config = true,
    .run = run_tune,
};
