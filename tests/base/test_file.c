/* Whole reads with limits, atomic replacement, locks that name their holder. */
#include "base/file.h"
#include "tests/check.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <signal.h>
#include <unistd.h>

static char folder[] = "/tmp/test_file.XXXXXX";
static char path[256];
static struct error error;

static int enter(void **state)
{
    return mkdtemp(folder) && file_join(path, sizeof path, folder, "file", &error) ? 0 : -1;
}

static int leave(void **state)
{
    char command[512];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void assert_content(const char *file, const char *expected)
{
    uint8_t *bytes;
    size_t size;
    assert_true(file_read(file, 1000, &bytes, &size, &error));
    assert_int_equal(size, strlen(expected));
    assert_string_equal((char *)bytes, expected);
    free(bytes);
}

static int names_in(const char *of)
{
    DIR *directory = opendir(of);
    int count = 0;
    assert_non_null(directory);
    for (const struct dirent *entry; (entry = readdir(directory));) {
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(directory);
    return count;
}

TEST(write_then_read)
{
    const struct file_part parts[] = {{"hello ", 6}, {"", 0}, {"world", 5}};
    assert_true(file_write_atomic(path, parts, 3, &error));
    assert_content(path, "hello world");
    assert_true(file_exists(path));
}

/* Files in /proc claim to be empty and are not. */
TEST(a_file_that_is_longer_than_it_says_is_read_whole)
{
    uint8_t *bytes;
    size_t size;
    assert_true(file_read("/proc/self/status", 65536, &bytes, &size, &error));
    assert_non_null(strstr((char *)bytes, "\nvoluntary_ctxt_switches:"));
    assert_int_equal(size, strlen((char *)bytes));
    free(bytes);
    assert_false(file_read("/proc/self/status", 100, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "larger than 100 bytes"));
}

TEST(limit_is_kept)
{
    uint8_t *bytes;
    size_t size;
    assert_false(file_read(path, 10, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "larger than 10 bytes"));
    assert_true(file_read(path, 11, &bytes, &size, &error));
    free(bytes);
    assert_false(file_read("/dev/zero", 100000, &bytes, &size, &error)); /* no size, no end */
    assert_non_null(strstr(error.text, "larger than"));
}

TEST(absent_and_folder_are_named)
{
    uint8_t *bytes;
    size_t size;
    assert_false(file_read("/nowhere/at/all", 10, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "/nowhere/at/all: cannot be opened: No such file or directory; check the path"));
    assert_false(file_read("/dev/null/x", 10, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "/dev/null/x: cannot be opened: Not a directory; part of the path is a file"));
    assert_false(file_read(folder, 10, &bytes, &size, &error));
    assert_non_null(strstr(error.text, "is a folder"));
}

/* A write that fails midway (here at a limit on the file size) leaves the old content and no temporary file. */
TEST(failed_write_keeps_the_old)
{
    static char large[65536];
    const struct file_part part = {large, sizeof large};
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    struct rlimit small = {4096, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    bool done = file_write_atomic(path, &part, 1, &error);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_false(done);
    assert_non_null(strstr(error.text, "cannot be written: File too large"));
    assert_content(path, "hello world");
    assert_int_equal(names_in(folder), 1);
}

/* Another user who may write to the folder and knows how temporary files are named must not redirect the write. */
TEST(links_are_not_followed)
{
    char victim[512], temporary[2][512], lock_path[512];
    int fd;
    snprintf(victim, sizeof victim, "%s/victim", folder);
    snprintf(temporary[0], sizeof *temporary, "%s.%ld.tmp", path, (long)getpid());
    snprintf(lock_path, sizeof lock_path, "%s/trainer.lock", folder);
    const struct file_part precious = {"precious", 8}, part = {"hello world", 11};
    assert_true(file_write_atomic(victim, &precious, 1, &error));
    assert_int_equal(symlink(victim, temporary[0]) + symlink(victim, lock_path), 0);
    assert_true(file_write_atomic(path, &part, 1, &error));
    assert_content(path, "hello world");
    assert_content(victim, "precious");
    assert_false(file_lock(lock_path, "the folder", &fd, &error));
    assert_non_null(strstr(error.text, "a symbolic link is in its place"));
    assert_content(victim, "precious");
    unlink(temporary[0]);
    unlink(lock_path);
    unlink(victim);
    assert_true(file_temporary_name(temporary[0], sizeof *temporary, path, &error));
    assert_true(file_temporary_name(temporary[1], sizeof *temporary, path, &error));
    assert_string_not_equal(temporary[0], temporary[1]);
    assert_false(file_temporary_name(temporary[0], strlen(path) + 21, path, &error));
}

static void put_aged(const char *name, time_t age_s)
{
    char whole[512];
    const struct timespec when = {.tv_sec = time(NULL) - age_s}, times[] = {when, when};
    assert_true(file_join(whole, sizeof whole, folder, name, &error));
    assert_true(file_write_atomic(whole, &(struct file_part){"x", 1}, 1, &error));
    assert_int_equal(utimensat(AT_FDCWD, whole, times, 0), 0);
}

TEST(leftovers_of_killed_processes_go)
{
    static const char *const leftovers[] = {"current.0123456789abcdef.tmp", "x.fedcba9876543210.tmp"};
    static const char *const others[] = {"notes.tmp", "x.abcdef.tmp",    ".12.tmp", "current.0123456789abcdef.tmp2",
                                         "12.tmp",    "current.4711.tmp"};
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++) {
        put_aged(leftovers[i], 7200);
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        put_aged(others[i], 7200);
    }
    put_aged("current.fedcba9876543210.tmp", 60); /* another process may be writing it */
    const int before = names_in(folder);
    file_remove_leftovers(folder);
    assert_int_equal(names_in(folder), before - 2);
    for (size_t i = 0; i < sizeof leftovers / sizeof *leftovers; i++) {
        char whole[512];
        assert_true(file_join(whole, sizeof whole, folder, leftovers[i], &error));
        assert_false(file_exists(whole));
    }
    file_remove_leftovers("/nowhere/at/all");
}

TEST(folders_with_parents)
{
    char deep[512];
    snprintf(deep, sizeof deep, "%s/a/b//c/", folder);
    assert_true(file_make_folder(deep, &error));
    assert_true(file_make_folder(deep, &error));
    snprintf(deep, sizeof deep, "%s/file/x", folder);
    assert_false(file_make_folder(deep, &error));
    assert_false(file_make_folder("", &error));
}

TEST(lock_names_its_holder)
{
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    char lock_path[512];
    snprintf(lock_path, sizeof lock_path, "%s/lock", folder);
    pid_t child = fork();
    if (child == 0) {
        int fd;
        bool held = file_lock(lock_path, "the folder", &fd, &error);
        _exit(write(ready[1], held ? "y" : "n", 1) == 1 && pause() ? 1 : 0);
    }
    char answer = 0;
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    int fd;
    assert_false(file_lock(lock_path, "the folder", &fd, &error));
    char expected[64];
    snprintf(expected, sizeof expected, "the folder is in use by process %ld;", (long)child);
    assert_non_null(strstr(error.text, expected));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(file_lock(lock_path, "the folder", &fd, &error)); /* the kernel released it */
    close(fd);
}

TEST(a_lock_is_a_file_of_one_name)
{
    char first[512], second[512], fifo[512];
    int fd;
    snprintf(first, sizeof first, "%s/first", folder);
    snprintf(second, sizeof second, "%s/second", folder);
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    const struct file_part part = {"mine", 4};
    assert_true(file_write_atomic(first, &part, 1, &error));
    assert_int_equal(link(first, second), 0);
    assert_false(file_lock(second, "the folder", &fd, &error));
    assert_non_null(strstr(error.text, "has a second name"));
    assert_content(first, "mine");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_false(file_lock(fifo, "the folder", &fd, &error));
    assert_non_null(strstr(error.text, "is no regular file"));
    assert_int_equal(file_append(fifo, 0600, false, &error), -1); /* and does not wait for a reader */
    assert_non_null(strstr(error.text, "nobody reads"));
    unlink(first);
    unlink(second);
    unlink(fifo);
}

TEST(what_is_there_is_kept)
{
    struct stat before, after;
    char kept[] = "/tmp/keep-XXXXXX";
    close(mkstemp(kept));
    assert_true(file_keep(kept, "abc", 3, &error));
    assert_int_equal(stat(kept, &before), 0);
    assert_true(file_keep(kept, "abc", 3, &error));
    assert_int_equal(stat(kept, &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == 3);
    const char *const others[] = {"abd", "ab", "abcd", ""};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        uint8_t *bytes;
        size_t size;
        assert_true(file_keep(kept, others[i], strlen(others[i]), &error));
        assert_true(file_read(kept, 10, &bytes, &size, &error));
        assert_int_equal(size, strlen(others[i]));
        assert_memory_equal(bytes, others[i], size);
        free(bytes);
    }
    unlink(kept);
}

int main(void)
{
    return check_run(enter, leave);
}
