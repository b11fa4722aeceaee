/* A disk that gives a checkpoint piece by piece, is interrupted, or fails: all of it is read, or it is said why not. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/folder.h"
#include "tests/check.h"
#include "tests/system.h"

static char folder[64], path[96];
static struct model model;
static struct config_train train;
static struct checkpoint_state state;
static struct error error;
static int unused_fd; /* before the test */

static struct {
    size_t most;      /* bytes at a time; 0: all */
    int reads, fails; /* so far; which of them fails, counted from 1; 0: none */
    int reason;       /* of the failure */
} disk;

ssize_t pread(int fd, void *bytes, size_t size, off_t offset)
{
    if (++disk.reads == disk.fails) {
        errno = disk.reason;
        return -1;
    }
    errno = EINTR; /* of some call before, which means nothing */
    return SYSTEM(pread)(fd, bytes, disk.most > 0 && disk.most < size ? disk.most : size, offset);
}

static int free_files; /* so many checkpoints fit; one more for each that is deleted */

int statvfs(const char *where, struct statvfs *status)
{
    assert_string_equal(where, folder);
    *status = (struct statvfs){.f_frsize = 1 << 20, .f_bavail = (fsblkcnt_t)(free_files > 0 ? free_files : 0)};
    free_files++;
    return 0;
}

/* The lowest that is free. */
static int free_descriptor(void)
{
    const int fd = dup(STDERR_FILENO);
    close(fd);
    return fd;
}

static int enter(void **unused)
{
    const struct config_model layers = {.layers = {5, 7, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
    memset(&disk, 0, sizeof disk);
    unused_fd = free_descriptor();
    strcpy(folder, "/tmp/disk-XXXXXX");
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    train = (struct config_train){.optimizer = OPTIMIZER_SGD, .learning_rate = 0.1, .lr_decay = 1};
    model_layout(&model, &layers);
    checkpoint_state_create(&state, &model, &train);
    for (size_t i = 0; i < model.float_count; i++) {
        state.vectors[STORE_PARAMETERS][i] = (float)i;
    }
    return !checkpoint_write(path, &state, &(struct checkpoint_info){.global_step = 3}, &error);
}

static int leave(void **unused)
{
    checkpoint_state_destroy(&state);
    unlink(path);
    return rmdir(folder) != 0 || free_descriptor() != unused_fd; /* nothing stays open */
}

/* It is opened and loaded; false: one of both failed. */
static bool is_read(void)
{
    struct checkpoint_file *file;
    struct checkpoint_state read;
    disk.reads = 0;
    if (checkpoint_open(&file, path, &error) != CHECKPOINT_OPENED) {
        assert_null(file);
        return false;
    }
    checkpoint_state_create(&read, &model, &train);
    const bool loaded = checkpoint_load(file, &read, &error);
    for (int i = 0; loaded && i < model.variable_count; i++) {
        const size_t at = model.variables[i].offset;
        assert_memory_equal(read.vectors[STORE_PARAMETERS] + at, state.vectors[STORE_PARAMETERS] + at,
                            (size_t)model.variables[i].cols * sizeof(float));
    }
    checkpoint_state_destroy(&read);
    checkpoint_close(file);
    return loaded;
}

static void what_comes_in_pieces_is_whole(void **unused)
{
    static const size_t pieces[] = {1, 7, 0};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        disk.most = pieces[i];
        if (!is_read()) {
            fail_msg("in pieces of %zu: %s", pieces[i], error.text);
        }
    }
}

/* At each read. */
static void an_interruption_is_none(void **unused)
{
    assert_true(is_read());
    const int reads = disk.reads;
    assert_true(reads > 4);
    disk.reason = EINTR;
    for (disk.fails = 1; disk.fails <= reads; disk.fails++) {
        assert_true(is_read());
    }
}

static void a_failure_is_said_with_its_reason(void **unused)
{
    assert_true(is_read());
    const int reads = disk.reads;
    disk.reason = EIO;
    for (disk.fails = 1; disk.fails <= reads; disk.fails++) {
        assert_false(is_read());
        assert_non_null(strstr(error.text, path));
        assert_non_null(strstr(error.text, "cannot be read"));
        assert_non_null(strstr(error.text, strerror(EIO)));
    }
    disk.fails = 0;
    assert_int_equal(truncate(path, 0), 0);
    assert_false(is_read());
    assert_non_null(strstr(error.text, " is cut off: 0 bytes"));
}

static bool has(const char *name)
{
    char file[160];
    snprintf(file, sizeof file, "%s/%s", folder, name);
    return access(file, F_OK) == 0;
}

/* The oldest go first, one at a time, the newest never. */
static void a_full_disk_loses_old_checkpoints_before_the_last(void **unused)
{
    const struct config_output output = {.max_to_keep = 0};
    struct checkpoint_folder kept;
    assert_true(checkpoint_folder_open(&kept, folder, &output, &error));
    for (int64_t step = 1; step <= 4; step++) {
        const struct checkpoint_info info = {.global_step = step, .validation_score = NAN, .best_score = NAN};
        assert_true(checkpoint_folder_save(&kept, CHECKPOINT_MODEL, &state, &info, &error));
    }
    free_files = 0;
    assert_true(checkpoint_folder_make_room(&kept, 5));
    assert_true(!has("model-0000000001.safetensors") && has("model-0000000002.safetensors"));
    free_files = 1;
    assert_false(checkpoint_folder_make_room(&kept, 5)); /* there is room */
    free_files = -100;
    checkpoint_folder_make_room(&kept, 5);
    assert_true(has("model-0000000004.safetensors"));
    checkpoint_folder_close(&kept);
    for (int i = 1; i <= 4; i++) {
        char file[160];
        snprintf(file, sizeof file, "%s/model-%010d.safetensors", folder, i);
        unlink(file);
    }
    char lock[96];
    snprintf(lock, sizeof lock, "%s/trainer.lock", folder);
    unlink(lock);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(what_comes_in_pieces_is_whole),
        CASE(an_interruption_is_none),
        CASE(a_failure_is_said_with_its_reason),
        CASE(a_full_disk_loses_old_checkpoints_before_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
