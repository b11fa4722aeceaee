/* A whole ps, over plain TCP, that is told to leave: by a signal or by a rollout, before and after its job is over. */
#include "tests/check.h"
#include "tests/ps/running.h"

#include "base/process/restart.h"
#include "ps/server/internal.h"

void __wrap_notify_restarting(void);
void __wrap_notify_restarting(void)
{
    tell("restarting\n");
}

static atomic_int alive, seen_alive;

void __wrap_notify_alive(void);
void __wrap_notify_alive(void)
{
    atomic_fetch_add(&alive, 1);
}

/* --- An observer --- */

static struct server *shown; /* the one that runs */

static void take(void *context, struct server *server)
{
    shown = server;
}

static void drop(void *context)
{
    shown = NULL;
}

static void count(void *context)
{
    atomic_fetch_add(&seen_alive, 1);
}

static const struct server_observer observer = {.begin = take, .end = drop, .alive = count};

static void end_job(int client, enum job_state state)
{
    const struct message_end_job over = {.job_state = (uint8_t)state, .test_accuracy = NAN, .message = ""};
    ask_done(client, MESSAGE_end_job, &over);
}

/* Whoever stops it then does not change how the job ended. */
TEST(a_job_that_is_over_is_not_interrupted)
{
    for (int i = 0; i < 2; i++) {
        const bool failed = i == 0;
        begin(nothing);
        welcome(0, MEMBER_WORKER, 0, 1, NULL);
        restore(0);
        end_job(0, failed ? JOB_FAILED : JOB_DONE);
        if (failed) {
            atomic_store(&asked_to_leave, SIGTERM);
        } else {
            atomic_store(&shown->shutdown_mode, SHUTDOWN_RESTART);
        }
        goodbye(0, failed ? "the job is over: it failed" : "the job is done");
        end(failed ? 1 : 0);
    }
}

/* Into another version of the config, or for good; a signal has precedence. */
TEST(a_rollout_ends_it)
{
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    atomic_store(&shown->shutdown_mode, SHUTDOWN_RESTART);
    goodbye(0, "ps 0 restarts in another version of the config");
    assert_non_null(strstr(end(RESTART_STATUS), "leaves at global step 0: ps 0 restarts in another version"));
    assert_true(was_told("restarting\n"));
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    atomic_store(&shown->shutdown_mode, SHUTDOWN_FINAL);
    goodbye(0, "ps 0 is no longer part of the job");
    end(0);
    assert_false(was_told("restarting\n"));
    begin(nothing);
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    atomic_store(&asked_to_leave, SIGTERM);
    atomic_store(&shown->shutdown_mode, SHUTDOWN_RESTART);
    goodbye(0, "ps 0 was asked to leave (SIGTERM)");
    end(signals_exit_status(SIGTERM));
}

/* An operator who stops all members at once wants a last checkpoint, for which worker 0 needs the ps. */
TEST(it_leaves_after_the_chief)
{
    begin((struct config_setting){"leave_secs", "30"});
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    welcome(1, MEMBER_WORKER, 1, 1, NULL);
    restore(0);
    const int before = atomic_load(&alive), seen_before = atomic_load(&seen_alive);
    AWAIT(atomic_load(&alive) > before && atomic_load(&seen_alive) > seen_before); /* as whoever watches it sees */
    atomic_store(&asked_to_leave, SIGTERM);
    AWAIT(strstr(heard_so_far(), "waits up to 30 s for worker 0 to leave first"));
    assert_true(lives(0) && lives(1));
    assert_false(was_told("stopping"));
    channel_close(&clients[0]);
    goodbye(1, "ps 0 was asked to leave (SIGTERM)");
    const char *said = strstr(end(signals_exit_status(SIGTERM)), "waits up to");
    assert_true(said && !strstr(said + 1, "waits up to")); /* once */
    begin(nothing);                                        /* by default nobody is waited for */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    restore(0);
    atomic_store(&asked_to_leave, SIGTERM);
    goodbye(0, "ps 0 was asked to leave (SIGTERM)");
    assert_null(strstr(end(signals_exit_status(SIGTERM)), "waits up to"));
    begin((struct config_setting){"leave_secs", "30"}); /* there is nothing yet of which it makes a checkpoint */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    atomic_store(&asked_to_leave, SIGTERM);
    goodbye(0, "ps 0 was asked to leave (SIGTERM)");
    assert_null(strstr(end(signals_exit_status(SIGTERM)), "waits up to"));
    begin((struct config_setting){"leave_secs", "0.2"}); /* but not for ever */
    welcome(0, MEMBER_WORKER, 0, 1, NULL);
    restore(0);
    atomic_store(&asked_to_leave, SIGTERM);
    goodbye(0, "ps 0 was asked to leave (SIGTERM)");
    end(signals_exit_status(SIGTERM));
}

int main(void)
{
    ps.observer = &observer;
    return check_run(NULL, NULL);
}
