/* Files of residuals: the right one is found again, damaged ones are skipped, few are kept. */
#include "worker/remote/exchange/outbox.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"

#include "base/encoding/crc32c.h"
#include "base/file.h"

enum { COUNT = 100 };

static char folder[64];
static struct residual_files files;

static int begin(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/residual-XXXXXX");
    files = (struct residual_files){folder, 3, COUNT, 10};
    return mkdtemp(folder) ? 0 : 1;
}

static int end(void **state)
{
    struct error error;
    return file_remove_folder(folder, &error) ? 0 : 1;
}

static void save(int64_t step)
{
    float floats[COUNT];
    struct error error;
    for (int i = 0; i < COUNT; i++) {
        floats[i] = (float)step + (float)i / 128;
    }
    assert_true(residual_files_save(&files, step, floats, &error));
}

/* The step found; its floats are that step's. */
static int64_t load(int64_t step)
{
    float floats[COUNT];
    struct error error;
    int64_t found;
    assert_true(residual_files_load(&files, step, floats, &found, &error));
    for (int i = 0; i < COUNT && found >= 0; i++) {
        assert_true(floats[i] == (float)found + (float)i / 128);
    }
    return found;
}

static int count(void)
{
    int all = 0;
    DIR *directory = opendir(folder);
    for (struct dirent *entry; (entry = readdir(directory));) {
        all += strncmp(entry->d_name, "residual-", 9) == 0;
    }
    closedir(directory);
    return all;
}

TEST_WITH(the_newest_that_is_not_later, begin, end)
{
    assert_int_equal(load(100), -1);
    for (int64_t step = 1; step <= 83; step++) {
        save(step);
        assert_true(count() <= RESIDUAL_FILES_DUE + RESIDUAL_FILES_OTHERS);
    }
    assert_int_equal(count(), RESIDUAL_FILES_DUE + RESIDUAL_FILES_OTHERS);
    assert_int_equal(load(100), 83);
    assert_int_equal(load(82), 82);
    assert_int_equal(load(83), 82); /* that run was abandoned */
    assert_int_equal(load(81), 80);
    assert_int_equal(load(40), 40);
    assert_int_equal(load(39), -1);
    assert_int_equal(count(), 0);
}

TEST_WITH(other_workers_have_their_own, begin, end)
{
    save(7);
    files.worker = 33;
    assert_int_equal(load(10), -1);
    save(8);
    files.worker = 3;
    assert_int_equal(load(10), 7);
    assert_int_equal(load(0), -1);
    files.worker = 33;
    assert_int_equal(load(10), 8);
    files.worker = RESIDUAL_FILES_SENT;
    assert_int_equal(load(10), -1);
    save(9);
    assert_int_equal(load(10), 9);
}

TEST_WITH(what_is_damaged_is_passed_over, begin, end)
{
    char path[128];
    (void)state;
    for (int at = 0; at < 40 + COUNT * (int)sizeof(float); at += 5) {
        save(1);
        save(2);
        snprintf(path, sizeof path, "%s/residual-worker3-2", folder);
        const int file = open(path, O_RDWR);
        char byte;
        assert_true(pread(file, &byte, 1, at) == 1);
        byte ^= 4;
        assert_true(pwrite(file, &byte, 1, at) == 1);
        close(file);
        assert_int_equal(load(5), 1);
    }
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(load(5), 1);
    files.count--; /* another model's */
    assert_int_equal(load(5), -1);
    snprintf(path, sizeof path, "%s/residual-worker3-09", folder); /* not one of our names */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(load(0), -1);
    assert_int_equal(access(path, F_OK), 0);
}

/* Every version of the program reads what another one wrote. */
TEST_WITH(what_is_on_disk, begin, end)
{
    static const uint8_t wanted[32] = {'T', 'R', 'N', 'R', 'R', 'E', 'S', 'D', 1, 0, 0, 0,  3,
                                       0,   0,   0,   7,   2,   0,   0,   0,   0, 0, 0, 100};
    char path[128];
    uint8_t *bytes;
    size_t size;
    struct error error;
    (void)state;
    save(2 * 256 + 7);
    snprintf(path, sizeof path, "%s/residual-worker3-519", folder);
    assert_true(file_read(path, 1000, &bytes, &size, &error));
    assert_int_equal(size, 40 + 400);
    assert_memory_equal(bytes, wanted, sizeof wanted);
    const uint32_t crcs[] = {crc32c(bytes, 32), crc32c(bytes + 40, 400)};
    assert_memory_equal(bytes + 32, crcs, sizeof crcs);
    const float first = 519, last = 519 + 99.0f / 128;
    assert_memory_equal(bytes + 40, &first, sizeof first);
    assert_memory_equal(bytes + 40 + 396, &last, sizeof last);
    free(bytes);
    files.worker = RESIDUAL_FILES_CLIENTS;
    save(9);
    snprintf(path, sizeof path, "%s/residual-clients-9", folder);
    assert_int_equal(access(path, F_OK), 0);
    files.worker = RESIDUAL_FILES_SENT;
    save(9);
    snprintf(path, sizeof path, "%s/sent-model-9", folder);
    assert_int_equal(access(path, F_OK), 0);
}

/* Where no checkpoint is due at any step, the newest of all stay. */
TEST_WITH(no_checkpoints, begin, end)
{
    files.every = 0;
    for (int64_t step = 1; step <= 30; step++) {
        save(step);
    }
    assert_int_equal(count(), RESIDUAL_FILES_OTHERS);
    assert_int_equal(load(29), 29);
}

/* What an earlier process was about to write goes; what is of a later step and can't go is said. */
TEST_WITH(what_is_in_the_way, begin, end)
{
    const struct timespec long_ago[] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
    char path[128], later[128];
    float floats[COUNT];
    int64_t found;
    struct error error;
    (void)state;
    save(3);
    snprintf(path, sizeof path, "%s/residual-worker3-4.0123456789abcdef.tmp", folder);
    close(open(path, O_CREAT | O_WRONLY, 0600));
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    assert_int_equal(load(3), 3);
    assert_int_not_equal(access(path, F_OK), 0);
    snprintf(later, sizeof later, "%s/residual-worker3-5", folder);
    assert_int_equal(mkdir(later, 0700), 0);
    assert_false(residual_files_load(&files, 3, floats, &found, &error));
    assert_non_null(strstr(error.text, later));
    assert_non_null(strstr(error.text, "cannot be removed"));
    assert_int_equal(rmdir(later), 0);
    assert_int_equal(load(3), 3);
}

/* More files than are ever kept, from another program say, are read from the newest on, and removed but for a few. */
TEST_WITH(more_than_are_kept, begin, end)
{
    char path[128];
    (void)state;
    save(0);
    assert_int_equal(load(5), 0);
    for (int64_t step = 1; step <= 20; step++) {
        snprintf(path, sizeof path, "%s/residual-worker3-%lld", folder, (long long)step);
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    assert_int_equal(count(), 21);
    assert_int_equal(load(30), -1); /* the newest of them are empty */
    save(21);
    assert_int_equal(load(30), 21);
    assert_true(count() < 21);
}

TEST_WITH(a_folder_that_is_not_there, begin, end)
{
    char path[96];
    struct error error;
    (void)state;
    snprintf(path, sizeof path, "%s/a/b", folder);
    files.folder = path;
    assert_int_equal(load(5), -1);
    save(3); /* creates it */
    assert_int_equal(load(5), 3);
    char blocked[96];
    snprintf(blocked, sizeof blocked, "%s/a/b/residual-worker3-3/c", folder);
    files.folder = blocked;
    assert_false(residual_files_save(&files, 4, (float[COUNT]){0}, &error));
    files.folder = folder;
}

int main(void)
{
    return check_run(NULL, NULL);
}
