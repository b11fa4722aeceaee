/* Requests to leave: what a process and the processes that it starts do with them. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process/signals.h"
#include "tests/check.h"

/* A new process that stays until a signal ends it, or for a minute. */
static int end_of_child(int number)
{
    int status;
    const pid_t child = signals_fork();
    if (child == 0) {
        for (int i = 0; i < 60; i++) {
            sleep(1);
        }
        _exit(0);
    }
    assert_true(child > 0);
    assert_int_equal(kill(child, number), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

/* However early it comes: even if the new process has not run yet. */
TEST(a_new_process_can_be_stopped)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    for (int i = 0; i < 400; i++) {
        const int number = numbers[i % 4];
        assert_int_equal(end_of_child(number), number);
    }
}

/* As with nohup. */
TEST(what_is_ignored_stays_ignored)
{
    int status;
    signal(SIGHUP, SIG_IGN);
    const pid_t child = signals_fork();
    if (child == 0) {
        raise(SIGHUP);
        _exit(7);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    signal(SIGHUP, SIG_DFL);
}

/* The process that starts others hears its own signals as before. */
TEST(the_parent_is_asked)
{
    assert_int_equal(signals_pending(), 0);
    raise(SIGTERM);
    assert_int_equal(signals_pending(), SIGTERM);
    assert_int_equal(signals_exit_status(SIGTERM), 143);
    assert_string_equal(signals_name(SIGTERM), "SIGTERM");
}

static int catch (void **state)
{
    signals_catch();
    return 0;
}

int main(void)
{
    return check_run(catch, NULL);
}
