/*
 * The trial of a config: on what checkpoint and with which config its process runs, what it inherits of this process's
 * environment, and what is reported of each result. The process is this program again, which does what TRIAL_DOES says.
 */
#include "worker/remote/live_config.h"

#include "tests/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/config/keys.h"
#include "base/file.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "tests/own_clock.h"
#include "tests/system.h"

enum { STEP = 1234 };

/* --- The process that tries --- */

static int model_step(const char *folder)
{
    struct checkpoint_file *file = NULL;
    struct error error;
    if (!checkpoint_folder_find(folder, &file, &error) || !file) {
        return -1;
    }
    const int step = (int)checkpoint_file_info(file)->global_step;
    checkpoint_close(file);
    return step;
}

/* What it finds, written into the file that FOUND names. */
static bool look_around(const char *config_path)
{
    struct config config;
    struct error error;
    FILE *out = fopen(getenv("FOUND"), "w");
    if (!out || !config_load(&config, config_path, NULL, 0, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return false;
    }
    fprintf(out, "sharding %d\n", config.data.data_sharding);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (strcmp(key->section, "cluster") == 0 && !config_key_is_default(key, &config)) {
            fprintf(out, "%s is not the default\n", key->name);
        }
    }
    fprintf(out, "steps %d epochs %g target %g patience %d warm \"%s\" rate %g buffer %d\n",
            (int)config.train.train_steps, config.train.epochs, config.train.target_accuracy, config.train.patience,
            config.train.warm_start, config.train.learning_rate, config.train.buffer_size);
    fprintf(out, "target of another metric %g, summaries every %g s\n", config.train.target_metric,
            config.output.save_summaries_secs);
    fprintf(out, "save %d %g log %d summaries \"%s\" %d validate %d progress %d format %d\n",
            (int)config.output.save_steps, config.output.save_model_secs, (int)config.output.log_steps,
            config.output.summary_dir, (int)config.output.save_summaries_steps, (int)config.output.validate_steps,
            config.output.progress, config.output.log_format);
    fprintf(out, "checkpoint %d in %s\n", model_step(config.output.train_dir), config.output.train_dir);
    static const char *const names[] = {"TF_CONFIG", "NOTIFY_SOCKET", "WATCHDOG_USEC", "TRAINER_SUPERVISOR", "KEPT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        fprintf(out, "%s=%s\n", names[i], getenv(names[i]) ? getenv(names[i]) : "");
    }
    config_free(&config);
    return fclose(out) == 0;
}

static int be_tried(const char *config_path)
{
    const char *does = getenv("TRIAL_DOES");
    if (strcmp(does, "well") == 0) {
        printf("all is well\n");
        return look_around(config_path) ? 0 : 1;
    }
    if (strcmp(does, "fails") == 0) {
        printf("step 1235\n");
        fflush(stdout);
        fprintf(stderr, "trainer: error: the loss is not finite  \n\n \n");
        return 3;
    }
    if (strcmp(does, "one line") == 0) {
        printf("it is the only line");
        return 1;
    }
    if (strcmp(does, "blanks") == 0) {
        printf("\n \n");
        return 1;
    }
    if (strcmp(does, "crashes") == 0) {
        signal(SIGTERM, SIG_DFL);
        raise(SIGTERM);
    }
    while (strcmp(does, "hangs") == 0) {
        pause();
    }
    return 1; /* and says nothing */
}

/* --- Time --- */

static double ahead_s, per_pause_s;

double own_clock_s(void)
{
    return system_clock_s() + ahead_s;
}

/* A pause of the product's, which never lasts longer than a moment. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
    const struct timespec moment = {.tv_nsec = 2000000};
    assert_int_equal(time->tv_sec, 0);
    ahead_s += per_pause_s;
    return SYSTEM(nanosleep)(&moment, left);
}

/* --- The process that starts the trial --- */

static char folder[64], then_path[96], train_dir[96], trial_dir[128], found[96];
static struct config then;

/* Of a job in a cluster, with `layers` and more settings. */
static void load_config(const char *layers, const char *more)
{
    char text[1024];
    struct error error;
    snprintf(text, sizeof text,
             "{\"cluster\":{\"job_name\":\"worker\",\"ps_hosts\":[\"127.0.0.1:1\",\"127.0.0.1:2\"],"
             "\"worker_hosts\":[\"127.0.0.1:3\",\"127.0.0.1:4\"],\"bind\":\"127.0.0.1\"},"
             "\"model\":{\"layers\":%s},\"security\":{\"insecure\":true},\"output\":{\"train_dir\":\"%s\"}%s}",
             layers, train_dir, more);
    const struct file_part part = {text, strlen(text)};
    config_free(&then);
    if (!file_write_atomic(then_path, &part, 1, &error) || !config_load(&then, then_path, NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
}

/* At a step, with layers [6,3]. */
static void write_checkpoint(int64_t step)
{
    struct model model;
    struct checkpoint_state state;
    struct checkpoint_info info = {.global_step = step};
    struct checkpoint_folder there = {.lock = -1};
    struct error error;
    char path[CHECKPOINT_MAX_PATH];
    load_config("[6,3]", "");
    model_layout(&model, &then.model);
    snprintf(there.path, sizeof there.path, "%s", train_dir);
    checkpoint_folder_name(&there, CHECKPOINT_MODEL, step, path);
    checkpoint_state_create(&state, &model, &then.train);
    if (!checkpoint_write(path, &state, &info, &error)) {
        fail_msg("%s", error.text);
    }
    checkpoint_state_destroy(&state);
}

static int begin(void **state)
{
    struct error error;
    strcpy(folder, "/tmp/test_trial.XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(then_path, sizeof then_path, "%s/config.json", folder);
    snprintf(train_dir, sizeof train_dir, "%s/run", folder);
    snprintf(trial_dir, sizeof trial_dir, "%s.d/trial", then_path);
    snprintf(found, sizeof found, "%s/found", folder);
    assert_true(file_make_folder(train_dir, &error));
    setenv("FOUND", found, 1);
    per_pause_s = 0.018;
    return 0;
}

static int end(void **state)
{
    char command[128];
    config_free(&then);
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static int asked, patience; /* how often given_up was called; at which call it returns true, 0: never */

static bool has_enough(void *context)
{
    assert_ptr_equal(context, folder);
    return ++asked == patience;
}

/* NULL: success. */
static const char *try(const char *does, bool may_lose)
{
    static struct error error;
    asked = 0;
    setenv("TRIAL_DOES", does, 1);
    return trial_run(&then, train_dir, may_lose, has_enough, folder, &error) ? NULL : error.text;
}

static char *text_of(const char *path)
{
    uint8_t *bytes;
    size_t size;
    struct error error;
    return file_read(path, 1 << 16, &bytes, &size, &error) ? (char *)bytes : NULL;
}

static void has(const char *text, const char *words)
{
    if (!text || !strstr(text, words)) {
        fail_msg("\"%s\" instead of \"%s\"", text ? text : "", words);
    }
}

/* With a single process there are no differences to buffer. */
TEST_WITH(asynchronous_rounds_are_tried_as_rounds, begin, end)
{
    write_checkpoint(STEP);
    load_config("[6,3]", ",\"train\":{\"local_steps\":2,\"buffer_size\":3}");
    const char *why = try("well", false);
    if (why) {
        fail_msg("%s", why);
    }
    char *text = text_of(found);
    has(text, " buffer 0\n");
    free(text);
}

/* The same job, on this machine alone, for five steps from the newest checkpoint; and nothing of it is kept. */
TEST_WITH(what_is_tried, begin, end)
{
    char words[256], path[160];
    struct stat status;
    (void)state;
    write_checkpoint(10);
    write_checkpoint(STEP);
    load_config("[6,3]", ",\"train\":{\"learning_rate\":0.125,\"patience\":3,\"train_steps\":7},"
                         "\"data\":{\"data_sharding\":\"chief\"},\"fleet\":{\"name\":\"f\",\"version\":4}");
    setenv("TF_CONFIG", "x", 1);
    setenv("NOTIFY_SOCKET", "x", 1);
    setenv("WATCHDOG_USEC", "x", 1);
    setenv("TRAINER_SUPERVISOR", "x", 1);
    setenv("KEPT", "mine", 1);
    const char *why = try("well", false);
    unsetenv("TF_CONFIG");
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("TRAINER_SUPERVISOR");
    if (why) {
        fail_msg("%s", why);
    }
    char *text = text_of(found);
    snprintf(words, sizeof words, "sharding %d\nsteps",
             SHARDING_SHUFFLED); /* and all keys of a cluster at their defaults */
    has(text, words);
    snprintf(words, sizeof words, "steps %d epochs 0 target 0 patience 0 warm \"\" rate 0.125 buffer 0\n", STEP + 5);
    has(text, words);
    snprintf(words, sizeof words, "save 0 0 log 0 summaries \"\" 0 validate %d progress 0 format %d\n", STEP + 50,
             LOG_TEXT);
    has(text, words);
    snprintf(words, sizeof words, "checkpoint %d in %s/run\n", STEP, trial_dir);
    has(text, words);
    has(text, "TF_CONFIG=\nNOTIFY_SOCKET=\nWATCHDOG_USEC=\nTRAINER_SUPERVISOR=\nKEPT=mine\n");
    free(text);
    snprintf(path, sizeof path, "%s/log", trial_dir);
    text = text_of(path);
    has(text, "all is well\n"); /* for people */
    free(text);
    snprintf(path, sizeof path, "%s/run", trial_dir);
    assert_int_equal(model_step(path), -1);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(model_step(train_dir), STEP);
}

/* Whatever happens to the process affects only it, and is reported. */
TEST_WITH(how_it_ends, begin, end)
{
    write_checkpoint(STEP);
    patience = 0;
    assert_string_equal(try("fails", false), "the trial failed: trainer: error: the loss is not finite");
    assert_string_equal(try("one line", false), "the trial failed: it is the only line");
    assert_string_equal(try("says nothing", false), "the trial failed: it said nothing");
    assert_string_equal(try("blanks", false), "the trial failed: it said nothing");
    assert_string_equal(try("crashes", false), "the trial was killed by signal 15 (Terminated)");
    patience = 3;
    assert_string_equal(try("hangs", false), "the trial was cancelled");
    assert_int_equal(asked, 3);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing is left of it */
    patience = 0;
    per_pause_s = 10;
    const double begun_s = own_clock_s();
    assert_string_equal(try("hangs", false), "the trial took longer than 150 s");
    assert_true(own_clock_s() >= begun_s + 150 && asked >= 14);
    char path[160];
    snprintf(path, sizeof path, "%s/run", trial_dir);
    assert_int_equal(model_step(path), -1);
}

/* What an earlier trial left behind does not affect this one. */
TEST_WITH(what_an_earlier_one_left, begin, end)
{
    char from[160], to[512];
    struct error error;
    (void)state;
    write_checkpoint(STEP);
    snprintf(to, sizeof to, "%s/run", trial_dir);
    assert_true(file_make_folder(to, &error));
    write_checkpoint(STEP + 100);
    snprintf(from, sizeof from, "%s/model-%010d.safetensors", train_dir, STEP + 100);
    snprintf(to, sizeof to, "%s/run/model-%010d.safetensors", trial_dir, STEP + 100);
    assert_int_equal(rename(from, to), 0);
    assert_null(try("well", false));
    char *text = text_of(found);
    snprintf(to, sizeof to, "checkpoint %d in ", STEP);
    has(text, to);
    free(text);
}

TEST_WITH(checkpoints_that_do_not_fit, begin, end)
{
    load_config("[6,3]", "");
    has(try("well", false), "holds no checkpoint to try it on");
    write_checkpoint(STEP);
    load_config("[6,4,3]", "");
    has(try("well", false), "it would lose ");
    has(try("well", false), ": add --may_lose to `trainer rollout` if that is intended");
    assert_int_equal(asked, 0);
    assert_null(try("well", true));
    load_config("[6,3]", ",\"train\":{\"optimizer\":\"adam\"}");
    assert_null(try("well", true));
}

/* Keys that make a run end, or write, are none of a trial's. */
TEST_WITH(keys_that_are_left_out, begin, end)
{
    write_checkpoint(STEP);
    load_config("[6,3]", ",\"train\":{\"epochs\":2,\"target_metric\":0.5,\"best_metric\":\"loss\"}");
    then.output.save_steps = then.output.log_steps = then.output.save_summaries_steps = 3;
    then.output.save_model_secs = then.output.save_summaries_secs = 4;
    then.output.log_format = LOG_JSON;
    then.output.progress = true;
    then.train.target_accuracy = 0.75;
    const char *why = try("well", false);
    if (why) {
        fail_msg("%s", why);
    }
    char *text = text_of(found);
    has(text, " epochs 0 target 0 ");
    has(text, "target of another metric 0, summaries every 0 s\n");
    has(text, "save 0 0 log 0 summaries \"\" 0 validate ");
    has(text, " progress 0 format 0\n");
    free(text);
}

/* A process that can't be started, or whose end nobody learns. */
TEST_WITH(processes_that_are_lost, begin, end)
{
    char path[160];
    struct stat status;
    struct error error;
    (void)state;
    write_checkpoint(STEP);
    assert_null(try("well", false));
    snprintf(path, sizeof path, "%s/log", trial_dir);
    assert_int_equal(stat(path, &status), 0);
    assert_int_equal(status.st_mode & 0111, 0);
    assert_int_equal(unlink(path), 0);
    assert_true(file_make_folder(path, &error));
    const char *because = try("well", false);
    assert_non_null(strstr(because, "its process can't be started: "));
    assert_non_null(strstr(because, "/log: already exists"));
    assert_int_equal(rmdir(path), 0);
    signal(SIGCHLD, SIG_IGN);
    const char *why = try("well", false);
    signal(SIGCHLD, SIG_DFL);
    assert_string_equal(why, "the trial's process was lost: No child processes");
}

/* However much there is in the environment. */
TEST_WITH(a_large_environment, begin, end)
{
    write_checkpoint(STEP);
    for (int i = 0; i < 600; i++) {
        char name[24];
        snprintf(name, sizeof name, "FILL_%d", i);
        setenv(name, "x", 1);
    }
    assert_null(try("well", false));
    for (int i = 0; i < 600; i++) {
        char name[24];
        snprintf(name, sizeof name, "FILL_%d", i);
        unsetenv(name);
    }
}

TEST_WITH(folders_that_can_not_be, begin, end)
{
    char name[5000], path[160];
    (void)state;
    write_checkpoint(STEP);
    char *kept = then.path;
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    then.path = name;
    const char *why = try("well", false);
    then.path = kept;
    has(why, "xxx");
    snprintf(path, sizeof path, "%s.d", then_path);
    assert_int_equal(mkdir(path, 0700), 0);
    FILE *file = fopen(trial_dir, "w"); /* not a folder */
    assert_non_null(file);
    fclose(file);
    assert_non_null(try("well", false));
    assert_int_equal(asked, 0);
}

int main(int argc, char **argv)
{
    static const char flag[] = "--config=";
    if (argc == 2 && strncmp(argv[1], flag, strlen(flag)) == 0) {
        return be_tried(argv[1] + strlen(flag));
    }
    return check_run(NULL, NULL);
}
