/*
 * A folder of checkpoints: the newest good one, damaged ones set aside, retention, best, lock, leftovers; and the
 * writer.
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/writer.h"
#include "tests/check.h"
#include "tests/ps/checkpoint/reading.h"
#include "tests/worker/remote/story.h"

static struct config_model model_config = {.layers = {4, 3, 2}, .layer_count = 3, .activation = ACTIVATION_RELU};
static struct config_train train = {.optimizer = OPTIMIZER_MOMENTUM};
static struct model model;
static struct checkpoint_state snapshot;
static char root[64];
static int used_roots;

static int set_up(void **unused)
{
    model_layout(&model, &model_config);
    snprintf(root, sizeof root, "/tmp/test_checkpoint_folder.%ld.%d", (long)getpid(), used_roots++);
    checkpoint_state_create(&snapshot, &model, &train);
    return 0;
}

static int names(char list[1024])
{
    struct dirent **entries;
    int count = scandir(root, &entries, NULL, alphasort), shown = 0;
    list[0] = '\0';
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.' && strcmp(entries[i]->d_name, "trainer.lock") != 0) {
            strcat(list, entries[i]->d_name);
            strcat(list, " ");
            shown++;
        }
        free(entries[i]);
    }
    free(entries);
    return shown;
}

static void assert_names(const char *expected)
{
    char list[1024];
    names(list);
    assert_string_equal(list, expected);
}

static const char *file_name(const char *name)
{
    static char whole[256];
    snprintf(whole, sizeof whole, "%s/%s", root, name);
    return whole;
}

static int tear_down(void **unused)
{
    DIR *directory = opendir(root);
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        unlinkat(dirfd(directory), entry->d_name, 0);
    }
    if (directory) {
        closedir(directory);
        rmdir(root);
    }
    checkpoint_state_destroy(&snapshot);
    return 0;
}

static void open_folder(struct checkpoint_folder *folder, const struct config_output *config)
{
    struct error error = {""};
    if (!checkpoint_folder_open(folder, root, config, &error)) {
        fail_msg("%s", error.text);
    }
}

static void save(struct checkpoint_folder *folder, int targets, int64_t step)
{
    struct error error = {""};
    struct checkpoint_info info = {.global_step = step};
    snapshot.vectors[STORE_PARAMETERS][0] = (float)step;
    if (!checkpoint_folder_save(folder, targets, &snapshot, &info, &error)) {
        fail_msg("%s", error.text);
    }
}

static int64_t newest(struct checkpoint_folder *folder)
{
    struct error error = {""};
    struct checkpoint_file *file;
    if (!checkpoint_folder_newest(folder, &file, &error)) {
        return -1;
    }
    int64_t step = !file ? -2 : checkpoint_file_info(file)->global_step;
    if (file) {
        assert_true(checkpoint_load(file, &snapshot, &error));
        assert_true(snapshot.vectors[STORE_PARAMETERS][0] == (float)step);
    }
    checkpoint_close(file);
    return step;
}

static void damage(const char *name, long at)
{
    FILE *file = fopen(file_name(name), "r+b");
    assert_non_null(file);
    fseek(file, at, SEEK_END);
    int byte = fgetc(file);
    fseek(file, at, SEEK_END);
    fputc(byte ^ 1, file);
    fclose(file);
}

TEST_WITH(keeps_the_newest, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 2};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    assert_int_equal(newest(&folder), -2);
    save(&folder, CHECKPOINT_MODEL, 0);
    assert_int_equal(newest(&folder), 0);
    for (int64_t step = 98; step <= 101; step++) {
        save(&folder, CHECKPOINT_MODEL, step);
    }
    assert_names("model-0000000100.safetensors model-0000000101.safetensors ");
    assert_int_equal(newest(&folder), 101);
    save(&folder, CHECKPOINT_MODEL, 12345678901);
    assert_names("model-0000000101.safetensors model-12345678901.safetensors ");
    assert_int_equal(newest(&folder), 12345678901);
    checkpoint_folder_close(&folder);
}

TEST_WITH(damaged_ones_are_passed_over_and_set_aside, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 5};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    save(&folder, CHECKPOINT_MODEL, 1);
    save(&folder, CHECKPOINT_MODEL, 2);
    save(&folder, CHECKPOINT_MODEL, 3);
    damage("model-0000000003.safetensors", -1);
    assert_int_equal(truncate(file_name("model-0000000002.safetensors"), 100), 0);

    struct checkpoint_file *file;
    struct error error = {""};
    assert_true(checkpoint_folder_find(root, &file, &error)); /* a reader changes nothing */
    assert_int_equal(checkpoint_file_info(file)->global_step, 1);
    checkpoint_close(file);
    assert_true(file_exists(file_name("model-0000000003.safetensors")));

    listen_in();
    const int64_t good = newest(&folder);
    const char *log = heard();
    assert_int_equal(good, 1);
    assert_non_null(strstr(log, "model-0000000003.safetensors: set aside with \".damaged\" after its name"));
    assert_non_null(strstr(log, "model-0000000002.safetensors: set aside with"));
    assert_null(strstr(log, "cannot be renamed"));
    assert_names("model-0000000001.safetensors model-0000000002.safetensors.damaged "
                 "model-0000000003.safetensors.damaged ");
    damage("model-0000000001.safetensors", -1);
    assert_int_equal(newest(&folder), -1);
    assert_false(checkpoint_folder_newest(&folder, &file, &error)); /* a second start does not start from nothing */
    assert_non_null(strstr(error.text, "none of its 1 checkpoints can be used"));
    assert_true(file_exists(file_name("model-0000000001.safetensors")));
    checkpoint_folder_close(&folder);
}

/* More than the list has room for at first. */
TEST_WITH(many_are_listed, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 2};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    save(&folder, CHECKPOINT_MODEL, 200);
    for (int step = 1; step <= 150; step++) {
        char name[64], first[256];
        snprintf(name, sizeof name, "model-%010d.safetensors", step);
        strcpy(first, file_name("model-0000000200.safetensors"));
        assert_int_equal(link(first, file_name(name)), 0);
    }
    assert_int_equal(newest(&folder), 200);
    save(&folder, CHECKPOINT_MODEL, 201);
    assert_names("model-0000000200.safetensors model-0000000201.safetensors ");
    checkpoint_folder_close(&folder);
}

TEST_WITH(a_path_that_is_too_long_is_refused, set_up, tear_down)
{
    static char path[CHECKPOINT_MAX_PATH + 10];
    struct config_output config = {0};
    struct checkpoint_folder folder;
    struct error error = {""};
    memset(path, 'n', sizeof path - 1);
    assert_false(checkpoint_folder_open(&folder, path, &config, &error));
    assert_non_null(strstr(error.text, "train_dir: the path is too long: nnn"));
    checkpoint_folder_close(&folder); /* nothing of it is open */
    open_folder(&folder, &config);
    save(&folder, CHECKPOINT_MODEL, 7);
    struct checkpoint_file *file;
    size_t length = (size_t)snprintf(path, sizeof path, "%s", root);
    while (length < CHECKPOINT_MAX_PATH - 10) { /* it can still be listed */
        length += (size_t)snprintf(path + length, sizeof path - length, "/.");
    }
    assert_false(checkpoint_folder_find(path, &file, &error));
    assert_null(file);
    assert_memory_equal(error.text, root, strlen(root));
    checkpoint_folder_close(&folder);
}

TEST_WITH(the_one_just_written_stays, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 1};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    save(&folder, CHECKPOINT_MODEL, 500); /* of another run */
    save(&folder, CHECKPOINT_MODEL, 10);
    assert_names("model-0000000010.safetensors model-0000000500.safetensors ");
    checkpoint_folder_close(&folder);
}

TEST_WITH(best_is_kept_apart, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 1};
    struct checkpoint_folder folder;
    struct checkpoint_info info;
    struct error error = {""};
    open_folder(&folder, &config);
    struct stat best, same;
    save(&folder, CHECKPOINT_MODEL | CHECKPOINT_BEST, 7);
    assert_int_equal(stat(file_name(CHECKPOINT_BEST_NAME), &best), 0);
    assert_int_equal(stat(file_name("model-0000000007.safetensors"), &same), 0);
    assert_int_equal(best.st_ino, same.st_ino); /* which takes no room */
    save(&folder, CHECKPOINT_MODEL, 8);
    assert_names("best.safetensors model-0000000008.safetensors ");
    assert_true(read_checkpoint(file_name(CHECKPOINT_BEST_NAME), &snapshot, &info, &error));
    assert_int_equal(info.global_step, 7);
    save(&folder, CHECKPOINT_MODEL | CHECKPOINT_BEST, 9);
    save(&folder, CHECKPOINT_MODEL | CHECKPOINT_BEST, 9);
    assert_names("best.safetensors model-0000000009.safetensors ");
    save(&folder, CHECKPOINT_BEST, 10);
    assert_names("best.safetensors model-0000000009.safetensors ");
    assert_true(read_checkpoint(file_name(CHECKPOINT_BEST_NAME), &snapshot, &info, &error));
    assert_int_equal(info.global_step, 10);
    assert_int_equal(newest(&folder), 9);
    checkpoint_folder_close(&folder);
}

TEST_WITH(files_are_named_as_they_are_written, set_up, tear_down)
{
    static struct checkpoint_folder folder;
    struct config_output config = {.max_to_keep = 1};
    char path[CHECKPOINT_MAX_PATH];
    open_folder(&folder, &config);
    save(&folder, CHECKPOINT_MODEL | CHECKPOINT_BEST, 7);
    checkpoint_folder_name(&folder, CHECKPOINT_MODEL, 7, path);
    assert_string_equal(path, file_name("model-0000000007.safetensors"));
    assert_true(file_exists(path));
    checkpoint_folder_name(&folder, CHECKPOINT_BEST, 7, path);
    assert_string_equal(path, file_name(CHECKPOINT_BEST_NAME));
    assert_true(file_exists(path));
    checkpoint_folder_close(&folder);
    memset(folder.path, 'n', sizeof folder.path - 8);
    checkpoint_folder_name(&folder, CHECKPOINT_BEST, 7, path);
    assert_string_equal(path, "");
}

TEST_WITH(a_second_process_is_told, set_up, tear_down)
{
    struct config_output config = {0};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    pid_t child = fork();
    if (child == 0) {
        struct checkpoint_folder second;
        struct error error = {""};
        char wanted[64];
        snprintf(wanted, sizeof wanted, "in use by process %ld", (long)getppid());
        bool opened = checkpoint_folder_open(&second, root, &config, &error);
        _exit(!opened && strstr(error.text, wanted) && strstr(error.text, root) ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    checkpoint_folder_close(&folder);
    open_folder(&folder, &config);
    checkpoint_folder_close(&folder);
}

TEST_WITH(leftovers_go_and_strangers_stay, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 1};
    struct checkpoint_folder folder;
    open_folder(&folder, &config);
    checkpoint_folder_close(&folder);
    const char *const files[] = {"model-0000000001.safetensors.17.tmp",
                                 "best.safetensors.17.tmp",
                                 "model-0000000002.safetensors.0123456789abcdef.tmp",
                                 "notes.tmp",
                                 "model-1.safetensors",
                                 "model-00000000002.safetensors",
                                 "model-0000000003.safetensors.damaged"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        fclose(fopen(file_name(files[i]), "w"));
    }
    open_folder(&folder, &config);
    assert_int_equal(newest(&folder), -2); /* none of these is one */
    save(&folder, CHECKPOINT_MODEL, 4);
    save(&folder, CHECKPOINT_MODEL, 5);
    assert_names("model-00000000002.safetensors model-0000000003.safetensors.damaged model-0000000005.safetensors "
                 "model-1.safetensors notes.tmp ");
    assert_int_equal(newest(&folder), 5);
    checkpoint_folder_close(&folder);
}

/* Killed again and again while saving: there is always a good checkpoint, of one of the newest steps. */
TEST_WITH(killed_at_any_moment_the_newest_is_good, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 2};
    struct checkpoint_folder folder;
    int64_t step = 0;
    for (int round = 0; round < 30; round++) {
        int pipes[2];
        assert_int_equal(pipe(pipes), 0);
        pid_t child = fork();
        if (child == 0) {
            open_folder(&folder, &config);
            for (int64_t next = step + 1;; next++) {
                save(&folder, CHECKPOINT_MODEL, next);
                if (write(pipes[1], &next, sizeof next) != (ssize_t)sizeof next) {
                    _exit(1);
                }
            }
        }
        close(pipes[1]);
        int64_t saved = 0;
        assert_int_equal(read(pipes[0], &saved, sizeof saved), sizeof saved);
        usleep((useconds_t)(random() % 3000));
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        while (read(pipes[0], &saved, sizeof saved) == (ssize_t)sizeof saved) {
        }
        close(pipes[0]);
        open_folder(&folder, &config);
        step = newest(&folder);
        assert_true(step >= saved && step <= saved + 1);
        char list[1024];
        assert_true(names(list) <= 3 && !strstr(list, ".tmp") && !strstr(list, ".damaged"));
        checkpoint_folder_close(&folder);
    }
}

TEST_WITH(the_writer_reports_each_outcome_once, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 3};
    struct checkpoint_folder folder;
    struct checkpoint_writer *writer;
    struct checkpoint_report report;
    struct error error = {""};
    open_folder(&folder, &config);
    assert_true(checkpoint_writer_create(&writer, &folder, &error));
    assert_int_equal(checkpoint_writer_poll(writer, &report, &error), CHECKPOINT_NO_NEWS);
    assert_int_equal(checkpoint_writer_wait(writer, &report, &error), CHECKPOINT_NO_NEWS);
    for (int64_t step = 1; step <= 5; step++) {
        checkpoint_writer_submit(writer, CHECKPOINT_MODEL, &snapshot, &(struct checkpoint_info){.global_step = step});
        enum checkpoint_outcome outcome = CHECKPOINT_NO_NEWS;
        while (outcome == CHECKPOINT_NO_NEWS) {
            outcome = checkpoint_writer_poll(writer, &report, &error);
        }
        assert_int_equal(outcome, CHECKPOINT_WRITTEN);
        assert_int_equal(report.info.global_step, step);
        assert_true(report.seconds > 0);
        assert_int_equal(checkpoint_writer_poll(writer, &report, &error), CHECKPOINT_NO_NEWS);
    }
    /* If the folder is gone, the failure is reported, and the writer goes on working. */
    char gone[sizeof root + 8];
    snprintf(gone, sizeof gone, "%s.gone", root);
    assert_int_equal(rename(root, gone), 0);
    checkpoint_writer_submit(writer, CHECKPOINT_MODEL, &snapshot, &(struct checkpoint_info){.global_step = 6});
    assert_int_equal(checkpoint_writer_wait(writer, &report, &error), CHECKPOINT_FAILED);
    assert_non_null(strstr(error.text, "step 6"));
    assert_non_null(strstr(error.text, root));
    assert_int_equal(rename(gone, root), 0);
    checkpoint_writer_submit(writer, CHECKPOINT_MODEL, &snapshot, &(struct checkpoint_info){.global_step = 7});
    checkpoint_writer_destroy(writer); /* finishes it */
    assert_names("model-0000000004.safetensors model-0000000005.safetensors model-0000000007.safetensors ");
    checkpoint_folder_close(&folder);
}

/* A signal that the main thread holds back stays pending: the default of this one would end the process. */
TEST_WITH(signals_are_not_for_the_writer, set_up, tear_down)
{
    struct config_output config = {.max_to_keep = 3};
    struct checkpoint_folder folder;
    struct checkpoint_writer *writer;
    struct error error = {""};
    sigset_t one, before, after;
    open_folder(&folder, &config);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_true(checkpoint_writer_create(&writer, &folder, &error));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
    assert_int_equal(sigismember(&after, SIGUSR1), 0);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &one, NULL);
    kill(getpid(), SIGUSR1);
    checkpoint_writer_destroy(writer);
    assert_int_equal(sigtimedwait(&one, NULL, &(struct timespec){0}), SIGUSR1);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    checkpoint_folder_close(&folder);
}

int main(void)
{
    return check_run(NULL, NULL);
}
