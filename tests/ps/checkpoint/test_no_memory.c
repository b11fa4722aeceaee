/*
 * Memory that runs short while checkpoints are written, listed and read, and threads that can't start: it is said of
 * which file, what was there before stays, and the next attempt succeeds.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "ps/checkpoint/folder.h"
#include "ps/checkpoint/writer.h"
#include "tests/check.h"
#include "tests/no_memory.h"

static char folder[64], path[96];
static const struct config_output output = {.max_to_keep = 3};
static struct model model;
static struct config_train train;
static struct checkpoint_state state;
static struct error error;

static int thread_reason; /* why no thread starts; 0: they do */

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *context)
{
    return thread_reason != 0 ? thread_reason : SYSTEM(pthread_create)(thread, attributes, run, context);
}

static char some_group[] = "the \"group\"", some_time[] = "time\\of day";
static const struct checkpoint_info some_info = {.global_step = 4,
                                                 .test_share = 0.25,
                                                 .preprocessing = "{\"columns\":[]}",
                                                 .group = some_group,
                                                 .time = some_time,
                                                 .class_names = "[\"cat\"]",
                                                 .kept_rows = "[0.001]"};

static int enter(void **unused)
{
    const struct config_model layers = {.layers = {5, 7, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
    strcpy(folder, "/tmp/no-memory-XXXXXX");
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/model-0000000004.safetensors", folder);
    train = (struct config_train){.optimizer = OPTIMIZER_ADAM, .learning_rate = 0.1, .lr_decay = 1};
    model_layout(&model, &layers);
    checkpoint_state_create(&state, &model, &train);
    return 0;
}

static int leave(void **unused)
{
    char command[128];
    checkpoint_state_destroy(&state);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command);
}

/* How many files there are in the folder. */
static int count_files(void)
{
    char command[128];
    int count = -1;
    snprintf(command, sizeof command, "ls %s | wc -l", folder);
    FILE *list = popen(command, "r");
    assert_non_null(list);
    assert_int_equal(fscanf(list, "%d", &count), 1);
    pclose(list);
    return count;
}

static void assert_all_is_there(const struct checkpoint_info *info)
{
    assert_int_equal(info->global_step, 4);
    assert_true(info->test_share == 0.25);
    assert_string_equal(info->preprocessing, some_info.preprocessing);
    assert_true(info->group && strcmp(info->group, some_group) == 0);
    assert_true(info->time && strcmp(info->time, some_time) == 0);
    assert_string_equal(info->class_names, some_info.class_names);
    assert_string_equal(info->kept_rows, some_info.kept_rows);
}

/* Either nothing is written, or all that was to be. */
static void what_is_written_is_all_of_it(void **unused)
{
    int failures = 0;
    for (bool written = false; !written; failures += !written) {
        no_memory_from(failures + 1, 1);
        written = checkpoint_write(path, &state, &some_info, &error);
        no_memory_end();
        if (!written) {
            assert_non_null(strstr(error.text, path));
            assert_non_null(strstr(error.text, "out of memory while writing it"));
            assert_int_equal(count_files(), 0);
        }
    }
    struct checkpoint_file *file;
    assert_true(failures >= 6); /* a header, its parts, and texts */
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    assert_all_is_there(checkpoint_file_info(file));
    checkpoint_close(file);
}

/* It is not damaged: it must not be set aside. */
static void what_cannot_be_read_now_is_not_damaged(void **unused)
{
    int failures = 0;
    assert_true(checkpoint_write(path, &state, &some_info, &error));
    for (struct checkpoint_file *file = NULL; !file; failures += !file) {
        no_memory_from(failures + 1, 1);
        const enum checkpoint_status status = checkpoint_open(&file, path, &error);
        no_memory_end();
        assert_int_equal(status, file ? CHECKPOINT_OPENED : CHECKPOINT_UNREADABLE);
        if (file) {
            assert_all_is_there(checkpoint_file_info(file));
            checkpoint_close(file);
        } else {
            assert_non_null(strstr(error.text, path));
            assert_true(strstr(error.text, "out of memory") || strstr(error.text, "in its metadata cannot be read"));
        }
    }
    assert_true(failures >= 2 + 5);
}

static void a_folder_that_cannot_be_read_now_keeps_all_it_has(void **unused)
{
    struct checkpoint_folder ours;
    int failures = 0;
    assert_true(checkpoint_folder_open(&ours, folder, &output, &error));
    assert_true(checkpoint_folder_save(&ours, CHECKPOINT_MODEL, &state, &some_info, &error));
    const int files = count_files();
    for (struct checkpoint_file *file = NULL; !file; failures += !file) {
        no_memory_from(failures + 1, 1);
        const bool done = checkpoint_folder_newest(&ours, &file, &error);
        no_memory_end();
        assert_int_equal(done, file ? 1 : 0); /* or training would begin from nothing */
        assert_true(done || strstr(error.text, folder));
        assert_int_equal(count_files(), files);
        checkpoint_close(file);
    }
    assert_true(failures >= 1);
    checkpoint_folder_close(&ours);
}

static void a_writer_that_cannot_start_says_why(void **unused)
{
    struct checkpoint_folder ours;
    struct checkpoint_writer *writer;
    assert_true(checkpoint_folder_open(&ours, folder, &output, &error));
    thread_reason = EAGAIN;
    assert_false(checkpoint_writer_create(&writer, &ours, &error));
    thread_reason = 0;
    assert_non_null(strstr(error.text, "the thread that writes checkpoints cannot start: "));
    assert_non_null(strstr(error.text, strerror(EAGAIN)));
    checkpoint_folder_close(&ours);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_is_written_is_all_of_it),
        CASE(what_cannot_be_read_now_is_not_damaged),
        CASE(a_folder_that_cannot_be_read_now_keeps_all_it_has),
        CASE(a_writer_that_cannot_start_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
