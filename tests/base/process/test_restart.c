/* The supervising parent: this program is its own child, depending on its arguments. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/process/restart.h"
#include "tests/check.h"
#include "tests/own_clock.h"

static char file[] = "/tmp/supervise-XXXXXX"; /* one byte per start of a child */

/*
 * The parent's clock: a child that a busy machine runs late takes no time, and a pause between two starts ends at once.
 */
static double now_s = 1000;

double own_clock_s(void)
{
    return now_s;
}

enum { LOOK_NS = 20000000 }; /* between two looks whether the child has ended */

int nanosleep(const struct timespec *time, struct timespec *left)
{
    const struct timespec moment = {.tv_nsec = LOOK_NS / 10};
    if (time->tv_sec > 0) { /* a child's */
        return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
    }
    if (labs(time->tv_nsec - LOOK_NS) < 1000) {
        return clock_nanosleep(CLOCK_MONOTONIC, 0, &moment, left);
    }
    now_s += fmax(own_clock_seconds(time), 1e-9);
    return 0;
}

static int count_starts(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0 ? (int)status.st_size : -1;
}

/* What a child does: FILE, then a letter for each start. 0 to 9: exits with that status; k: kills itself; w: waits. */
static int be_child(const char *path, const char *plan)
{
    int fd = open(path, O_WRONLY | O_APPEND);
    if (!supervise_is_child() || fd < 0 || write(fd, "x", 1) != 1) {
        return 99;
    }
    close(fd);
    const char what = plan[count_starts(path) - 1];
    if (what == 'k') {
        raise(SIGKILL);
    }
    if (what == 'w') { /* until it is told to stop */
        const struct timespec long_time = {.tv_sec = 600};
        nanosleep(&long_time, NULL);
    }
    return what - '0';
}

/* In a separate process, because the parent handles signals and remembers deaths. */
static pid_t begin(const char *plan)
{
    pid_t pid = fork();
    if (pid == 0) {
        char name[] = "trainer", *arguments[] = {name, file, strdup(plan), NULL};
        _exit(supervise(arguments));
    }
    return pid;
}

static int end(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int make_file(void **state)
{
    strcpy(file, "/tmp/supervise-XXXXXX");
    return close(mkstemp(file));
}

static int remove_file(void **state)
{
    return unlink(file);
}

TEST_WITH(one_that_ends_well_is_left_alone, make_file, remove_file)
{
    assert_int_equal(end(begin("0")), 0);
    assert_int_equal(count_starts(file), 1);
}

TEST_WITH(one_that_was_misused_is_not_started_again, make_file, remove_file)
{
    assert_int_equal(end(begin("2")), 2);
    assert_int_equal(count_starts(file), 1);
}

TEST_WITH(a_process_that_dies_comes_back, make_file, remove_file)
{
    assert_int_equal(end(begin("k10")), 0);
    assert_int_equal(count_starts(file), 3);
}

/* The failure may come from a config that arrived meanwhile: only the very first start is the operator's mistake. */
TEST_WITH(misuse_after_a_death_is_a_death, make_file, remove_file)
{
    assert_int_equal(end(begin("120")), 0);
    assert_int_equal(count_starts(file), 3);
}

TEST_WITH(a_signal_is_passed_on, make_file, remove_file)
{
    pid_t pid = begin("w");
    for (int i = 0; i < 3000 && count_starts(file) == 0; i++) {
        const struct timespec pause = {.tv_nsec = 20000000};
        nanosleep(&pause, NULL);
    }
    kill(pid, SIGTERM);
    assert_int_equal(end(pid), 128 + SIGTERM);
    assert_int_equal(count_starts(file), 1);
}

int main(int argc, char **argv)
{
    return argc > 2 ? be_child(argv[1], argv[2]) : check_run(NULL, NULL);
}
