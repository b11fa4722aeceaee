/* How a worker ends, whom it waits for then, and the result of the role as a whole; the world: world.h. */
#include "tests/check.h"
#include "tests/worker/remote/worker/bench.h"

/* --- The end --- */

static int pauses;

static void after_a_while(void)
{
    world.job.over = ++pauses == 5000;
}

static void after_some_pauses(void)
{
    pauses++;
    if (pauses == 3) {
        world.needs_rejoin = "ps 1 has no model";
    }
}

static void signal_after_some(void)
{
    world.signal = ++pauses == 3 ? SIGTERM : 0;
}

static void restart_after_some(void)
{
    world.live_end = ++pauses == 3 ? LIVE_RESTARTS : LIVE_STAYS;
}

static enum training_end finish(struct bench *bench, enum training_end how)
{
    bench->worker.training.end = how;
    pauses = 0;
    told();
    remote_updater_table.finish(&bench->worker.updater);
    return bench->worker.training.end;
}

/* A worker that has done its last step waits for the chief's announcement. */
TEST(waits_for_the_end)
{
    struct bench bench;
    begin_joined(&bench, other_flags, 9);
    struct training *training = &bench.worker.training;
    world.at_pause = after_a_while; /* 25 s */
    world.job.test_accuracy = 0.9876f;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_BY_OTHERS);
    assert_string_equal(told(), "says: waiting for worker 0 to end the job\n"
                                "done at 9, 0 here, 0/s, loss nan, stale 0\n");
    assert_true(world.hurried_s > 0);
    assert_int_equal(times(heard_so_far(), "waiting for worker 0 (127.0.0.1:3) to end the job, "), 2);
    assert_int_equal(times(heard_so_far(), "to end the job, 10 s"), 1);
    assert_int_equal(times(heard_so_far(), "to end the job, 20 s"), 1);
    assert_int_equal(times(heard_so_far(), "the job is over: test accuracy 98.76%"), 1);
    world.job.test_accuracy = NAN;
    world.at_pause = NULL;
    assert_int_equal(finish(&bench, TRAINING_BY_OTHERS), TRAINING_BY_OTHERS);
    assert_int_equal(times(heard_so_far(), "the job is over"), 1);
    world.job.failed = true;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    assert_string_equal(training->error.text, "worker 0 says that the job failed");
    world.job = (struct job_status){.refused = true, .message = "no place here"};
    assert_int_equal(finish(&bench, TRAINING_PATIENCE), TRAINING_FAILED);
    assert_string_equal(training->error.text, "no place here");
    world.job = (struct job_status){.known = true};
    world.at_pause = after_some_pauses;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_REJOINS);
    assert_int_equal(pauses, 3);
    world.needs_rejoin = NULL;
    world.at_pause = signal_after_some;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_INTERRUPTED);
    world.signal = 0;
    world.at_pause = restart_after_some;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_LEAVES);
    assert_int_equal(training->leave_status, RESTART_STATUS);
    world.live_end = LIVE_STAYS;
    world.at_pause = NULL;
    const double begun_s = world.now_s;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_FAILED);
    assert_non_null(strstr(training->error.text, "worker 0 did not end the job within 600 s"));
    assert_true(world.now_s - begun_s >= 600 && world.now_s - begun_s < 600.1);
    end(&bench);
}

/* The chief saves and ends the job; a rollout's end comes first, and a signal only saves what is there. */
TEST(chief_takes_leave)
{
    struct bench bench;
    struct error error;
    begin_joined(&bench, chief_flags, 9);
    struct training *training = &bench.worker.training;
    assert_int_equal(finish(&bench, TRAINING_LAST_STEP), TRAINING_LAST_STEP);
    assert_string_equal(told(), "chief finishes the job\n");
    world.step = 12;
    assert_int_equal(finish(&bench, TRAINING_PATIENCE), TRAINING_PATIENCE);
    assert_int_equal(training->global_step, 12);
    world.finished = EXCHANGE_REJOIN;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_REJOINS);
    assert_int_equal(times(heard_so_far(), "training continues from the newest checkpoint"), 1);
    world.finished = EXCHANGE_REJOIN;
    world.signal = SIGTERM;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    world.finished = EXCHANGE_FAILED;
    assert_int_equal(finish(&bench, TRAINING_TARGET), TRAINING_FAILED);
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_string_equal(told(), "chief saves\n");
    assert_int_equal(times(heard_so_far(), "no last checkpoint"), 0);
    world.finished = EXCHANGE_STOPPED;
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_int_equal(times(heard_so_far(), "no last checkpoint: as the test wants"), 1);
    world.signal = 0;
    const enum training_end others[] = {TRAINING_REJOINS, TRAINING_LEAVES, TRAINING_FAILED};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(finish(&bench, others[i]), others[i]);
        assert_string_equal(told(), "");
    }
    world.live_end = LIVE_LEAVES;
    assert_int_equal(finish(&bench, TRAINING_FAILED), TRAINING_LEAVES);
    assert_int_equal(training->leave_status, COMMAND_DONE);
    assert_string_equal(told(), "");
    end(&bench);
    assert_true(begin(&bench, chief_flags, &error)); /* it has not joined: it has nothing to save */
    assert_int_equal(finish(&bench, TRAINING_INTERRUPTED), TRAINING_INTERRUPTED);
    assert_string_equal(told(), "");
    end(&bench);
}

/* Only the chief announces the job's end, if it has taken part and no other has replaced it. */
TEST(concludes)
{
    struct bench bench;
    struct error error;
    assert_true(begin(&bench, chief_flags, &error));
    told();
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "");
    world.step = 9;
    assert_true(join(&bench));
    told();
    remote_updater_table.conclude(&bench.worker.updater, false, 0.5, "all is well");
    assert_string_equal(told(), "notes 9\njob done, 0.5: all is well\n");
    world.cannot_notify = true;
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "notes 9\njob failed, nan: it failed\n");
    assert_int_equal(times(heard_so_far(), "not every ps could be notified"), 0);
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_int_equal(times(heard_so_far(), "not every ps could be notified that the job is over: ps 1 is gone"), 1);
    told();
    world.fenced = true;
    remote_updater_table.conclude(&bench.worker.updater, true, NAN, "it failed");
    assert_string_equal(told(), "");
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_true(was_told("job done"));
    end(&bench);
    begin_joined(&bench, other_flags, 0);
    remote_updater_table.conclude(&bench.worker.updater, false, 1, "well");
    assert_string_equal(told(), "");
    end(&bench);
}

/* --- The role --- */

static void end_at_three(void)
{
    if (world.step == 2) {
        world.over = world.job.over = true;
    }
}

static void restart_at_three(void)
{
    if (world.step == 2) {
        world.live_end = LIVE_RESTARTS;
    }
}

static void signal_at_three(void)
{
    if (world.step == 2) {
        world.signal = SIGTERM;
    }
}

/* From start to end; and what observers see. */
TEST(whole_runs)
{
    void (*const at_push[])(void) = {end_at_three, restart_at_three, signal_at_three};
    const char *const goodbyes[] = {"stopping\n", "restarting\n", "stopping\n"};
    const char *const words[] = {"goodbye: done\n", "goodbye: starts again\n", "goodbye: stopped\n"};
    const int statuses[] = {COMMAND_DONE, RESTART_STATUS, 128 + SIGTERM};
    struct bench bench;
    for (int i = 0; i < 3; i++) {
        load(&bench, other_flags);
        world.at_push = at_push[i];
        const int status = remote_worker_run(&bench.config);
        heard();
        assert_int_equal(status, statuses[i]);
        assert_int_equal(world.step, 3);
        assert_true(was_told(goodbyes[i]));
        assert_true(was_told(words[i]));
        assert_int_equal(was_told("gives way"), 1); /* five members and two processors */
        config_free(&bench.config);
    }
    const char *const chief[] = {"task_index", "0",           "train_steps",  "3",
                                 "ps_hosts",   "127.0.0.1:1", "worker_hosts", "127.0.0.1:2,127.0.0.1:3,10.0.0.1:1",
                                 NULL};
    load(&bench, chief);
    assert_int_equal(remote_worker_run(&bench.config), COMMAND_DONE);
    heard();
    assert_true(was_told("chief finishes the job\n"));
    assert_true(was_told("job done, 1: "));
    assert_false(was_told("gives way")); /* three here, and one elsewhere */
    config_free(&bench.config);
    load(&bench, other_flags);
    world.cannot_load = true;
    assert_int_equal(remote_worker_run(&bench.config), COMMAND_FAILED);
    assert_non_null(strstr(heard(), "no data"));
    config_free(&bench.config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
