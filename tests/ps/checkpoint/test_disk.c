/* A disk that gives a checkpoint piece by piece, is interrupted, or fails: all of it is read, or it is said why not. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "ps/checkpoint/checkpoint.h"

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

ssize_t __real_pread(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *bytes, size_t size, off_t offset);
ssize_t __wrap_pread(int fd, void *bytes, size_t size, off_t offset)
{
    if (++disk.reads == disk.fails) {
        errno = disk.reason;
        return -1;
    }
    errno = EINTR; /* of some call before, which means nothing */
    return __real_pread(fd, bytes, disk.most > 0 && disk.most < size ? disk.most : size, offset);
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
    (void)unused;
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
    (void)unused;
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
    (void)unused;
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
    (void)unused;
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
    (void)unused;
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_comes_in_pieces_is_whole),
        TEST(an_interruption_is_none),
        TEST(a_failure_is_said_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
