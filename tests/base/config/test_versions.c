/*
 * Versions of a config: what is kept and what is refused; and a process that dies in any system call that changes a
 * file leaves either the old version in force or the new.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config/versions.h"
#include "base/file.h"
#include "tests/check.h"

/* --- System calls that change files are counted; the process dies before or in number `die_at` --- */

enum { DIED = 77 };

static int calls, die_at; /* 0: never */
static char order[256];   /* the calls made, one letter each */

static void count_call(char letter)
{
    if (calls < (int)sizeof order - 1) {
        order[calls] = letter;
    }
    calls++;
    if (calls == die_at) {
        _exit(DIED);
    }
}

/* These replace libc's in the whole test program. */
int fsync(int fd)
{
    struct stat status;
    count_call(fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? 'F' : 'f');
    return (int)syscall(SYS_fsync, fd);
}

int rename(const char *from, const char *to)
{
    count_call('r');
    return (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
}

/* A write may also be cut short. */
ssize_t writev(int fd, const struct iovec *pieces, int count)
{
    if (calls + 1 == die_at && pieces[0].iov_len > 1) {
        syscall(SYS_write, fd, pieces[0].iov_base, pieces[0].iov_len / 2);
    }
    count_call('w');
    return syscall(SYS_writev, fd, pieces, count);
}

int mkdir(const char *path, mode_t mode)
{
    count_call('m');
    return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if ((flags & O_CREAT) != 0) {
        count_call('c');
    }
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

/* --- Tests --- */

static char folder[64], config_path[128];

static int make_folder(void **state)
{
    snprintf(folder, sizeof folder, "/tmp/test_versions.XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(config_path, sizeof config_path, "%s/config.json", folder);
    calls = die_at = 0;
    return 0;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command); /* NOLINT(cert-env33-c) */
}

static const char one[] = "{\"fleet\":{\"version\":1}}", two[] = "{\"fleet\":{\"version\":2},\"more\":\"text\"}";

/* The longest path that fits is accepted whole, and a longer one refused. */
TEST(names_what_lies_beside_the_config)
{
    char config_file[VERSIONS_PATH], path[VERSIONS_PATH];
    struct error error;
    assert_true(versions_path("a/config.json", NULL, path, &error));
    assert_string_equal(path, "a/config.json.d");
    assert_true(versions_path("a/config.json", "audit.log", path, &error));
    assert_string_equal(path, "a/config.json.d/audit.log");
    memset(config_file, 'a', sizeof config_file);
    config_file[VERSIONS_PATH - sizeof ".d/base"] = '\0';
    assert_true(versions_path(config_file, "base", path, &error));
    assert_int_equal(strlen(path), VERSIONS_PATH - 1);
    assert_false(versions_path(config_file, "base2", path, &error));
    assert_true(versions_path(config_file, NULL, path, &error));
}

TEST_WITH(keeps_versions_and_switches, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    bool there;
    uint64_t number;
    char *text;
    size_t size;
    assert_true(versions_current(config_path, &there, &number, &error));
    assert_false(there);
    assert_true(versions_open(&versions, config_path, &error));
    assert_true(versions_add(&versions, 1, one, strlen(one), &error));
    assert_true(versions_add(&versions, 1, one, strlen(one), &error)); /* as another process of this machine would */
    assert_true(versions_add(&versions, 12, two, strlen(two), &error));
    assert_true(versions_switch(&versions, 12, &error));
    assert_true(versions_switch(&versions, 1, &error)); /* going back */
    assert_true(versions_current(config_path, &there, &number, &error));
    assert_true(there);
    assert_int_equal(number, 1);
    assert_true(versions_read(&versions, 12, &text, &size, &error));
    assert_string_equal(text, two);
    assert_int_equal(size, strlen(two));
    free(text);
}

TEST_WITH(refuses_changes_and_gaps, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    bool there;
    uint64_t number;
    assert_true(versions_open(&versions, config_path, &error));
    assert_true(versions_add(&versions, 3, one, strlen(one), &error));
    assert_false(versions_add(&versions, 3, two, strlen(two), &error));
    assert_non_null(strstr(error.text, "version 3 already exists with other content"));
    assert_false(versions_switch(&versions, 4, &error));
    assert_non_null(strstr(error.text, "00000004.json: does not exist"));
    assert_false(versions_add(&versions, 1ULL << 40, one, strlen(one), &error));
    char path[VERSIONS_PATH + 32];
    static const char *const wrong[] = {"", "x\n", "3", "-3\n", "3 \n", "100000000\n", " 3\n"};
    snprintf(path, sizeof path, "%s/current", versions.folder);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct file_part part = {wrong[i], strlen(wrong[i])};
        assert_true(file_write_atomic(path, &part, 1, &error));
        assert_false(versions_current(config_path, &there, &number, &error));
        assert_non_null(strstr(error.text, "current: holds no version number"));
    }
}

static void damage(const char *name, size_t at)
{
    char path[VERSIONS_PATH + 32];
    uint8_t *bytes;
    size_t size;
    struct error error;
    snprintf(path, sizeof path, "%s.d/%s", config_path, name);
    assert_true(file_read(path, 1000, &bytes, &size, &error));
    bytes[at] ^= 1;
    const struct file_part part = {bytes, size};
    assert_true(file_write_atomic(path, &part, 1, &error));
    free(bytes);
}

/* A changed digit still makes a valid version or config: only the checksum notices. */
TEST_WITH(what_rots_is_named, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    bool there;
    uint64_t number;
    char *text;
    size_t size;
    assert_true(versions_open(&versions, config_path, &error));
    assert_true(versions_add_local(&versions, 2, "{}", 2, &error));
    assert_true(versions_add(&versions, 2, two, strlen(two), &error));
    assert_true(versions_add(&versions, 3, one, strlen(one), &error));
    assert_true(versions_switch(&versions, 2, &error));
    damage("current", 0);
    assert_false(versions_current(config_path, &there, &number, &error));
    assert_non_null(strstr(error.text, "current: holds no version number, for "));
    assert_true(versions_switch(&versions, 3, &error));
    assert_true(versions_current(config_path, &there, &number, &error));
    damage("00000002.json", strlen(two) - 3);
    assert_false(versions_read(&versions, 2, &text, &size, &error));
    assert_non_null(strstr(error.text, "00000002.json: is damaged"));
    assert_true(versions_add(&versions, 2, two, strlen(two), &error)); /* add it again */
    assert_true(versions_read(&versions, 2, &text, &size, &error));
    assert_string_equal(text, two);
    free(text);
    damage("00000002.local.json", 0);
    assert_false(versions_read_local(&versions, 2, &text, &size, &error));
    assert_non_null(strstr(error.text, "00000002.local.json: is damaged"));
}

TEST_WITH(earlier_programs_had_no_checksums, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    bool there;
    uint64_t number;
    char *text, path[VERSIONS_PATH + 32];
    size_t size;
    const struct file_part config = {two, strlen(two)}, current = {"2\n", 2};
    assert_true(versions_open(&versions, config_path, &error));
    snprintf(path, sizeof path, "%s/00000002.json", versions.folder);
    assert_true(file_write_atomic(path, &config, 1, &error));
    snprintf(path, sizeof path, "%s/current", versions.folder);
    assert_true(file_write_atomic(path, &current, 1, &error));
    assert_true(versions_current(config_path, &there, &number, &error));
    assert_int_equal(number, 2);
    assert_true(versions_read(&versions, 2, &text, &size, &error));
    assert_string_equal(text, two);
    free(text);
    assert_false(versions_add(&versions, 2, one, strlen(one), &error));
    assert_true(versions_add(&versions, 2, two, strlen(two), &error));
}

static void change(void)
{
    struct versions versions;
    struct error error;
    if (!versions_open(&versions, config_path, &error) || !versions_add(&versions, 2, two, strlen(two), &error) ||
        !versions_switch(&versions, 2, &error)) {
        _exit(1);
    }
    _exit(0);
}

/* The number in force, whose file must be intact. */
static uint64_t in_force(void)
{
    struct versions versions;
    struct error error;
    bool there;
    uint64_t number;
    char *text;
    size_t size;
    assert_true(versions_current(config_path, &there, &number, &error));
    assert_true(there);
    snprintf(versions.folder, sizeof versions.folder, "%s.d", config_path);
    assert_true(versions_read(&versions, number, &text, &size, &error));
    assert_string_equal(text, number == 1 ? one : two);
    free(text);
    return number;
}

TEST_WITH(old_or_new_whenever_it_dies, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    int status = 0, cuts = 0;
    uint64_t before = 1;
    assert_true(versions_open(&versions, config_path, &error));
    assert_true(versions_add(&versions, 1, one, strlen(one), &error));
    assert_true(versions_switch(&versions, 1, &error));
    for (int at = 1;; at++) {
        pid_t child = fork();
        if (child == 0) {
            calls = 0;
            die_at = at;
            change();
        }
        assert_true(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        uint64_t now = in_force();
        assert_true(now == 1 || now == 2);
        assert_true(now >= before);
        before = now;
        if (WEXITSTATUS(status) != DIED) {
            break;
        }
        cuts++;
        /* Repeats everything from the old version, amid what the dead process left. */
        assert_true(versions_switch(&versions, 1, &error));
        before = 1;
        if (cuts % 2 == 0) {
            char path[VERSIONS_PATH + 32];
            snprintf(path, sizeof path, "%s/00000002.json", versions.folder);
            unlink(path);
        }
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_int_equal(in_force(), 2);
    assert_true(cuts >= 5);
}

/* A power cut is worse than a kill: nothing may be named before it is on disk, and names are synced too. */
TEST_WITH(syncs_before_and_after_each_name, make_folder, remove_folder)
{
    struct versions versions;
    struct error error;
    assert_true(versions_open(&versions, config_path, &error));
    calls = 0;
    memset(order, 0, sizeof order);
    assert_true(versions_add(&versions, 2, two, strlen(two), &error));
    assert_true(versions_switch(&versions, 2, &error));
    assert_string_equal(order, "cwfrFcwfrFcwfrF");
}

int main(void)
{
    return check_run(NULL, NULL);
}
