/*
 * What the loop requests, in which order, and what it reports: step by step, with the test's own updater, evaluation
 * and clock (tests/worker/loop.h).
 */
#include "tests/check.h"
#include "tests/worker/loop.h"

#include "base/cli/command.h"

static const char *run(int wanted_status)
{
    const char *text;
    assert_int_equal(loop_run(&text), wanted_status);
    return text;
}

/* Only lines of this kind, one each. */
static const char *only(const char *text, const char *beginning)
{
    static char kept[16 * 1024];
    char *to = kept;
    for (const char *line = text; *line != '\0';) {
        const size_t size = strcspn(line, "\n") + 1;
        if (strncmp(line, beginning, strlen(beginning)) == 0) {
            memcpy(to, line, size);
            to += size;
        }
        line += size;
    }
    *to = '\0';
    return kept;
}

/* From the reported start to the test and its report, each thing once and in order. */
TEST_WITH(a_run_from_its_start_to_its_test, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 2;
    loop.record.best_score = 0.5;
    loop.record.best_step = 1;
    loop.record.threshold = 0.25;
    assert_string_equal(run(COMMAND_DONE),
                        "progress is not wanted\njoin\nevaluation of 3 outputs, 0 rows, 0 targets\n"
                        "start at 0 of 2 with an engine\nsummaries from 0 on\nobserved from 0 on, accuracy\n"
                        "save\nstep 1\nsave\nstep 2\nsave\nsettle\nfinish\nprogress ends\nevaluate the test set\n"
                        "summary of the test at 2, decided by 0.25\nobserved test at 2, accuracy\n"
                        "conclude, 0.5: last step reached\ndone: last step reached, 2 steps, 2 own, 0.5 epochs, 4/s, "
                        "0/s of all, 10.5 s, accuracy, "
                        "best 0.5 at 1\nsummaries end well\nevaluation is gone\n");
}

/* It continues where the updater found the model, says from what, and a process that is not the chief keeps nothing. */
TEST_WITH(a_run_that_goes_on_without_being_chief, loop_set_up, loop_tear_down)
{
    loop.start.global_step = 5;
    loop.start.restored_from = "a checkpoint";
    loop.training.test = NULL;
    loop.end_at_finish = TRAINING_BY_OTHERS;
    loop.config.output.validate_steps = 1;
    assert_string_equal(run(COMMAND_DONE),
                        "progress is not wanted\njoin\nevaluation of 3 outputs, 0 rows, 0 targets\n"
                        "start at 5 of 6 with an engine, from a checkpoint, keeps nothing\n"
                        "observed from 5 on, accuracy\nsave\nstep 6\nsave\nsettle\nfinish\nprogress ends\n"
                        "summaries end well\nevaluation is gone\n");
}

/* If nothing is left, the end says so; an updater need not save, settle or conclude. */
TEST_WITH(nothing_left_to_train, loop_set_up, loop_tear_down)
{
    loop.start.global_step = 6;
    loop.table.save = NULL;
    loop.table.settle = NULL;
    loop.table.conclude = NULL;
    const char *text = run(COMMAND_DONE);
    assert_string_equal(only(text, "done"), "done: nothing left to train, 6 steps, 0 own, 1.5 epochs, 0/s, 0/s of all, "
                                            "10 s, accuracy, best nan at 0\n");
    assert_null(strstr(text, "conclude"));
}

/* A line every few steps, for the steps since the last one, and for the rest at the end. */
TEST_WITH(log_lines, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 5;
    loop.config.train.micro_batches = 2;
    loop.config.output.log_steps = 2;
    assert_string_equal(only(run(COMMAND_DONE), "log"),
                        "log: worker 5, epoch 1, step 2, own 2, loss 1.5, rate 0.25, 125 ms, 40/s\n"
                        "log: worker 5, epoch 2, step 4, own 4, loss 3.5, rate 0.0625, 125 ms, 40/s\n"
                        "log: worker 5, epoch 3, step 5, own 5, loss 5, rate 0.03125, 125 ms, 40/s\n");
}

/* None is written without a step, nor while a progress line shows the same; that appears only on a terminal. */
TEST_WITH(no_log_lines, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 4;
    loop.config.output.log_steps = 2;
    assert_int_equal(times(run(COMMAND_DONE), "log: "), 2);
    loop_tear_down(NULL);
    loop_set_up(NULL);
    loop.config.train.train_steps = 2;
    loop.config.output.log_steps = 1;
    loop.config.output.progress = true;
    loop.config.output.validate_steps = 1;
    loop.has_terminal = true;
    const char *text = run(COMMAND_DONE);
    assert_int_equal(times(text, "log: "), 0);
    assert_string_equal(only(text, "progress"),
                        "progress\nprogress: 1 of 2, 4/s, loss 1, validation 0.5\n"
                        "progress: 2 of 2, 4/s, loss 2, validation 0.5\nprogress ends on a terminal\n");
    assert_int_equal(times(text, "validators, quiet\n"), 2);
}

/* Programs get no progress line, and a cluster's workers don't share a terminal. */
TEST_WITH(who_wants_a_progress_line, loop_set_up, loop_tear_down)
{
    static const struct {
        bool progress, json, is_shared;
    } cases[] = {{false, false, false}, {true, true, false}, {true, false, true}, {true, false, false}};
    for (int i = 0; i < 4; i++) {
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.config.output.progress = cases[i].progress;
        loop.config.output.log_format = cases[i].json ? LOG_JSON : LOG_TEXT;
        loop.table.is_shared = cases[i].is_shared;
        assert_int_equal(times(run(COMMAND_DONE), "progress is not wanted\n"), i < 3);
    }
}

/* The progress line's rate follows recent steps slowly, and never exceeds the limit. */
TEST_WITH(rates_that_a_progress_line_shows, loop_set_up, loop_tear_down)
{
    const struct train_result done = {.steps = 1, .images = 10, .loss_sum = 3, .finite = true};
    const struct train_result none = {.steps = 0, .finite = false};
    training_plan(&loop.training);
    training_account(&loop.training, &done, 0.5, 100);
    assert_true(loop.training.recent_steps_per_s == 2);
    training_account(&loop.training, &done, 0.1, 100);
    assert_true(fabs(loop.training.recent_steps_per_s - (2 + 0.2 * 8)) < 1e-9);
    training_account(&loop.training, &none, 0.1, 100); /* without a step nothing is learnt about the rate */
    assert_true(fabs(loop.training.recent_steps_per_s - (2 + 0.2 * 8)) < 1e-9);
    assert_true(loop.training.recent_loss == 3);
    assert_int_equal(times(told(), "observed step"), 2);
    loop.config.output.progress = true;
    loop.config.train.max_steps_per_s = 2;
    loop.has_terminal = true;
    const char *text = run(COMMAND_DONE);
    assert_int_equal(times(only(text, "progress: "), ", 2/s, "), 6);
    assert_int_equal(times(text, "validation -1\n"), 6); /* none is known */
}

/* The first 100 steps count in the totals, but not in the rate reported at the end. */
TEST_WITH(the_first_steps_do_not_count_in_the_rate, loop_set_up, loop_tear_down)
{
    const struct train_result many = {.steps = 60, .images = 600, .loss_sum = 60, .finite = true};
    training_plan(&loop.training);
    for (int i = 0; i < 3; i++) {
        loop.training.global_step += 60;
        training_account(&loop.training, &many, i == 2 ? 1 : 10, 100 + i);
        training_charge(&loop.training, i + 2);
        if (i == 1) { /* warm from here on */
            assert_int_equal(loop.training.warm.steps, 0);
            assert_int_equal(loop.training.warm.begun_step, 120);
            assert_true(loop.training.warm.begun_s == 101);
        }
    }
    assert_int_equal(loop.training.local_step, 180);
    assert_int_equal(loop.training.all.steps, 180);
    assert_int_equal(loop.training.all.images, 1800);
    assert_true(loop.training.all.seconds == 10 + 10 + 1 + 2 + 3 + 4);
    assert_int_equal(loop.training.warm.steps, 60);
    assert_true(loop.training.warm.seconds == 1 + 4);
    assert_true(loop.training.since_report.seconds == 21); /* without what was charged */
    assert_int_equal(loop.training.since_summary.steps, 180);
    loop.training.local_step = 100; /* at the very step from which it counts */
    training_account(&loop.training, &many, 1, 103);
    assert_int_equal(loop.training.warm.steps, 120);
}

/* At the end too; for all workers together by the clock, for a single process by its training time. */
TEST_WITH(the_rates_of_a_run_at_its_end, loop_set_up, loop_tear_down)
{
    for (int shared = 0; shared < 2; shared++) {
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.config.train.train_steps = 220;
        loop.config.output.validate_steps = 110;
        loop.pause_s = 5;
        loop.table.is_shared = shared;
        loop.stride = 1 + shared;
        const char *text = only(run(COMMAND_DONE), "done");
        /* 220 steps of 0.25 s and two validations; or half as many, from step 200 on by the clock with one of them. */
        assert_non_null(strstr(text, shared ? "220 steps, 110 own, 55 epochs, 4/s, 2.66667/s of all, 52.5 s"
                                            : "220 steps, 220 own, 55 epochs, 4/s, 0/s of all, 80 s"));
    }
}

/* Summaries cover the steps since the last one, and their time is charged to the run. */
TEST_WITH(summaries, loop_set_up, loop_tear_down)
{
    loop.has_summary = true;
    loop.config.train.train_steps = 4;
    loop.config.train.micro_batches = 2;
    loop.pause_s = 1;
    assert_string_equal(only(run(COMMAND_DONE), "summary of"),
                        "summary of 2: loss 1.5, accuracy 0.15, 4 steps/s, 40/s, 0.125 s, staleness -1\n"
                        "summary of 4: loss 3.5, accuracy 0.35, 4 steps/s, 40/s, 0.125 s, staleness -1\n"
                        "summary of the test at 4, decided by nan\n");
    assert_true(loop.training.all.seconds == 4 * 0.25 + 2 * 1);
    assert_true(loop.training.since_summary.begun_s == 103 && loop.training.since_summary.begun_step == 4);
}

/* With others the rate is the job's, by the clock, and includes cluster values; numbers have no accuracy. */
TEST_WITH(summaries_of_a_cluster, loop_set_up, loop_tear_down)
{
    loop.has_summary = true;
    loop.table.is_shared = true;
    loop.table.summarise = loop_summarise;
    loop.stride = 2;
    loop.summary_steps = 4;
    loop.pause_s = 1;
    loop.config.train.train_steps = 8;
    loop.dataset.train.targets = loop.dataset.validation.targets = 3;
    loop.dataset.train.labels = NULL;
    loop.dataset.train.inputs = 4;
    loop.dataset.train.numbers = 4;
    assert_string_equal(only(run(COMMAND_DONE), "summary of"),
                        "summary of 4: loss 3, accuracy nan, 8 steps/s, 40/s, 0.25 s, staleness 2\n"
                        "summary of 8: loss 7, accuracy nan, 8 steps/s, 40/s, 0.25 s, staleness 2\n"
                        "summary of the test at 8, decided by nan\n");
}

/* A limit on steps: each waits until it is due, and rates include the wait. */
TEST_WITH(the_pace_that_a_limit_sets, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 4;
    loop.config.train.max_steps_per_s = 2;
    loop.config.output.log_steps = 1;
    loop.has_summary = true;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "save\nstep 1\n"));
    /* A step takes a quarter of a second; before the third and the fourth another quarter passes. */
    assert_int_equal(times(text, "pause 0.100\npause 0.100\npause 0.050\nsave\n"), 2);
    assert_string_equal(only(text, "log"),
                        "log: worker 5, epoch 1, step 1, own 1, loss 1, rate 0.5, 250 ms, 40/s\n"
                        "log: worker 5, epoch 1, step 2, own 2, loss 2, rate 0.25, 250 ms, 40/s\n"
                        "log: worker 5, epoch 1, step 3, own 3, loss 3, rate 0.125, 500 ms, 20/s\n"
                        "log: worker 5, epoch 1, step 4, own 4, loss 4, rate 0.0625, 500 ms, 20/s\n");
    assert_int_equal(times(text, "accuracy 0.15, 4 steps/s, 40/s, 0.25 s"), 1);
    assert_int_equal(times(text, "accuracy 0.35, 2 steps/s, 20/s, 0.5 s"), 1);
}

/* Lost time is not made up: a pause is not followed by a burst. */
TEST_WITH(a_pause_is_not_made_up_for, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 4;
    loop.config.train.max_steps_per_s = 2;
    loop.has_summary = true;
    loop.pause_s = 10;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "step 3\npause 0.100\npause 0.100\npause 0.050\nsave\n"));
}

/* What was not a step is not waited for, however long it took. */
TEST_WITH(no_pause_for_what_was_no_step, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 3;
    loop.config.train.max_steps_per_s = 2;
    loop.fails_at = 2;
    loop.failure_s = 1;
    loop.ends = TRAINING_GOES_ON;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "pause 0.050\nsave\nsave\nstep 3\nsave\n"));
}

/*
 * Steps to take in one call end where something is due: a log line, a summary, a tenth of a second of steps, the
 * warm-up.
 */
TEST_WITH(steps_to_the_next_thing_due, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 1000;
    loop.config.output.log_steps = 300;
    loop.config.output.validate_steps = 400;
    training_plan(&loop.training);
    assert_int_equal(training_steps_to_due(&loop.training), 100);
    loop.training.local_step = 99;
    assert_int_equal(training_steps_to_due(&loop.training), 1);
    loop.training.local_step = 100;
    assert_int_equal(training_steps_to_due(&loop.training), 300);
    loop.training.global_step = 350;
    assert_int_equal(training_steps_to_due(&loop.training), 50);
    loop.training.summary = loop_summary();
    loop.summary_steps = 40;
    assert_int_equal(training_steps_to_due(&loop.training), 10);
    loop.training.summary = NULL;
    loop.config.train.max_steps_per_s = 200;
    assert_int_equal(training_steps_to_due(&loop.training), 20);
    loop.config.train.max_steps_per_s = 0.5;
    assert_int_equal(training_steps_to_due(&loop.training), 1);
    loop.config.train.max_steps_per_s = 1e300;
    assert_int_equal(training_steps_to_due(&loop.training), 50);
    loop.training.summary = loop_summary();
    loop.summary_steps = 50;
    loop.training.local_step = 90; /* whichever is nearest */
    assert_int_equal(training_steps_to_due(&loop.training), 10);
    loop.training.local_step = 0;
    assert_int_equal(training_steps_to_due(&loop.training), 50);
}

/* The learning rate decays by epochs unless the config says otherwise; a plan is for a process, a job, or rounds. */
TEST_WITH(the_plan_of_a_run, loop_set_up, loop_tear_down)
{
    loop.config.train.micro_batches = 2;
    training_plan(&loop.training);
    assert_int_equal(loop.training.metric, METRIC_ACCURACY);
    assert_int_equal(loop.training.plan.epoch_batches, LOOP_BATCHES);
    assert_int_equal(loop.training.plan.batches_per_step, 2);
    assert_int_equal(loop.config.train.lr_decay_steps, 1);
    loop.config.train.lr_decay_steps = 0;
    training_plan(&loop.training);
    assert_int_equal(loop.config.train.lr_decay_steps, 2);
    loop.table.is_shared = true; /* micro-batches are for a single process */
    training_plan(&loop.training);
    assert_int_equal(loop.training.plan.batches_per_step, 1);
    loop.table.is_shared = false;
    loop.config.train.local_epochs = 1;
    loop.training.sharers = 2;
    loop.training.replicas = 3;
    training_plan(&loop.training);
    assert_int_equal(loop.training.plan.batches_per_step, 3 * LOOP_BATCHES / 2);
    loop.config.train.best_metric = METRIC_LOG_LOSS;
    training_plan(&loop.training);
    assert_int_equal(loop.training.metric, METRIC_LOG_LOSS);
}

/* New intervals: open summaries follow them; those not wanted before are opened, by the chief only. */
TEST_WITH(live_keys_change, loop_set_up, loop_tear_down)
{
    loop.config.output.log_steps = 3;
    loop.training.global_step = 4;
    training_retime(&loop.training);
    assert_int_equal(loop.training.plan.log_steps, 3);
    assert_string_equal(told(), "summaries from 4 on\n");
    loop.no_summary = true;
    listen_in();
    training_retime(&loop.training);
    assert_int_equal(times(heard(), "no summaries; training continues without summaries\n"), 1);
    told();
    loop.training.test = NULL;
    training_retime(&loop.training);
    assert_string_equal(told(), "");
    loop.training.summary = loop_summary();
    training_retime(&loop.training);
    assert_string_equal(told(), "summaries are retimed\n");
}

/* The first reason to stop counts, but a failure counts in any case. */
TEST_WITH(reasons_to_stop, loop_set_up, loop_tear_down)
{
    assert_false(training_stop(&loop.training, TRAINING_TARGET));
    assert_false(training_stop(&loop.training, TRAINING_PATIENCE));
    assert_int_equal(loop.training.end, TRAINING_TARGET);
    assert_false(training_fail(&loop.training));
    assert_int_equal(loop.training.end, TRAINING_FAILED);
    assert_false(loop.training.has_diverged);
    loop.training.end = TRAINING_GOES_ON;
    assert_false(training_diverges(&loop.training, "the loss", INFINITY, 3));
    assert_int_equal(loop.training.end, TRAINING_FAILED);
    assert_true(loop.training.has_diverged);
    assert_non_null(strstr(loop.training.error.text, "the loss is inf after step 3 at learning rate 0.0625: "));
    assert_non_null(strstr(loop.training.error.text, "; there is no checkpoint from before; "));
    loop.record.last_checkpoint = "that one";
    training_diverges(&loop.training, "the loss", NAN, 3);
    assert_non_null(strstr(loop.training.error.text, "; the last good checkpoint is that one; "));
}

/*
 * The clock ends it: what is left when the next step is done (0.25 s) must do for a validation and the test, of 50
 * images (0.025 s each), with a quarter and 0.1 s to spare. 10 s have passed before the first step.
 */
TEST_WITH(a_time_limit, loop_set_up, loop_tear_down)
{
    static const struct {
        double limit_s;
        int64_t every, last; /* validations, the last step */
        int validations, bad;
        const char *reason;
    } cases[] = {{14, 100, 9, 1, 0, "stopped by time_limit after epoch 2"}, /* although none is due */
                 {14, 3, 9, 3, 2, "stopped by time_limit after epoch 2"},   /* not twice at the same step */
                 {14, 4, 9, 3, 1, "stopped by time_limit after epoch 2"},   /* nor does it count against patience */
                 {5, 100, 1, 1, 0, "stopped by time_limit in epoch 1"},     /* too late before it began */
                 {100, 100, 60, 0, 0, "last step reached"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char wanted[128];
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.config.train.train_steps = 60;
        loop.config.train.time_limit = cases[i].limit_s;
        loop.config.output.validate_steps = cases[i].every;
        const char *text = run(COMMAND_DONE);
        snprintf(wanted, sizeof wanted, "done: %s, %lld steps, ", cases[i].reason, (long long)cases[i].last);
        assert_int_equal(times(text, wanted), 1);
        assert_int_equal(times(text, "validation: worker"), cases[i].validations);
        assert_int_equal(loop.info.bad_validations, cases[i].bad);
        assert_int_equal(times(text, "evaluate the test set\n"), 1);
    }
    loop_tear_down(NULL);
    loop_set_up(NULL);
    loop.config.train.time_limit = 5;
    loop.training.test = NULL; /* of a worker that is not the chief it is no business */
    loop.end_at_finish = TRAINING_BY_OTHERS;
    assert_int_equal(times(run(COMMAND_DONE), "step 6\n"), 1);
}

/* A signal ends it after the current step; the checkpoint is named only if it is of the very last step. */
TEST_WITH(interrupted, loop_set_up, loop_tear_down)
{
    for (int i = 0; i < 4; i++) {
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.signal_at = 3;
        loop.record.last_checkpoint = i == 0 ? NULL : "a checkpoint";
        loop.record.last_checkpoint_step = i == 1 ? 2 : 3;
        loop.record.checkpoint_failed = i == 3;
        const char *text = run(i == 3 ? COMMAND_FAILED : 128 + SIGTERM);
        assert_non_null(strstr(text, "step 3\nsave\nsettle\nfinish\nprogress ends\ninterrupted by SIGTERM at 3, "));
        assert_int_equal(times(text, ", a checkpoint\n"), i >= 2);
        assert_int_equal(times(text, ", unsaved\n"), i < 2);
        assert_non_null(strstr(text, "summaries end early\n"));
        assert_null(strstr(text, "evaluate"));
    }
}

/* A signal ends a pause, too; the wait is part of the steps' time. */
TEST_WITH(interrupted_while_it_keeps_the_pace, loop_set_up, loop_tear_down)
{
    loop.config.train.max_steps_per_s = 0.1;
    loop.signal_at_s = 100.95;
    const char *text = run(128 + SIGTERM);
    assert_int_equal(times(text, "pause 0.100\n"), 5);
    assert_non_null(strstr(text, "step 2\npause "));
    assert_null(strstr(text, "step 3\n"));
    assert_true(fabs(loop.training.since_report.seconds - 1) < 1e-9);
    assert_true(fabs(loop.training.since_summary.seconds - 1) < 1e-9);
    assert_true(fabs(loop.training.all.seconds - 1) < 1e-9);
}

/* A model lost in mid-run or at the end is joined again; after a finished run or an exit there is no test. */
TEST_WITH(other_ends, loop_set_up, loop_tear_down)
{
    static const struct {
        enum training_end end;
        int status;
        const char *settles, *says;
    } ends[] = {{TRAINING_BY_OTHERS, COMMAND_DONE, "settle\n", ""},
                {TRAINING_LEAVES, 9, "", ""},
                {TRAINING_FAILED, COMMAND_FAILED, "", "conclude as failed, nan: the step failed\n"}};
    for (int i = 0; i < 3; i++) {
        char wanted[256];
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.fails_at = 2;
        loop.ends = ends[i].end;
        loop.training.leave_status = 9;
        loop.config.output.log_steps = 5; /* also of the steps before, unless they were in vain */
        listen_in();
        const char *text = run(ends[i].status);
        assert_int_equal(times(heard(), "the step failed\n"), i == 2);
        snprintf(wanted, sizeof wanted, "step 2\nsave\n%s%s%sfinish\nprogress ends\n%ssummaries end %s\n",
                 i == 2 ? "" : "save\n", ends[i].settles,
                 i == 0 ? "log: worker 5, epoch 1, step 2, own 2, loss 1.5, rate 0.25, 250 ms, 40/s\n" : "",
                 ends[i].says, i == 0 ? "well" : "badly");
        assert_non_null(strstr(text, wanted));
    }
}

/* Its own report starts over with each join; the start is reported once. */
TEST_WITH(a_model_that_is_lost_is_joined_again, loop_set_up, loop_tear_down)
{
    loop.fails_at = 3;
    loop.ends = TRAINING_REJOINS;
    loop.config.train.train_steps = 4;
    loop.config.output.log_steps = 4;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "step 3\nsave\nsave\njoin\nobserved from 0 on, accuracy\nsave\nstep 1\n"));
    assert_int_equal(times(text, "start at"), 1);
    assert_int_equal(times(text, "settle\n"), 1);
    assert_int_equal(times(text, "finish\n"), 1);
    assert_string_equal(only(text, "log"),
                        "log: worker 5, epoch 1, step 4, own 7, loss 2.5, rate 0.0625, 250 ms, 40/s\n");
    loop_tear_down(NULL);
    loop_set_up(NULL);
    loop.end_at_finish = TRAINING_REJOINS;
    text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "step 6\nsave\nsettle\nfinish\njoin\n"));
    assert_int_equal(times(text, "step 6\n"), 2);
    assert_int_equal(times(text, "progress ends\n"), 1);
}

/* An updater that stops before the first step, and a step that fails but may succeed the next time. */
TEST_WITH(steps_that_do_not_come, loop_set_up, loop_tear_down)
{
    loop.ends = TRAINING_LEAVES;
    assert_string_equal(run(7), "progress is not wanted\njoin\nfinish\nprogress ends\nsummaries end badly\n"
                                "evaluation is gone\n");
    loop_tear_down(NULL);
    loop_set_up(NULL);
    loop.fails_at = 2;
    loop.ends = TRAINING_GOES_ON;
    loop.config.output.validate_steps = 2;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "release the best\nsave the best\nsave\nstep 3\n"));
    assert_int_equal(times(text, "hold\n"), 3);
}

/* If it can't summarise or test it does not start. */
TEST_WITH(beginnings_that_fail, loop_set_up, loop_tear_down)
{
    for (int i = 0; i < 2; i++) {
        loop_tear_down(NULL);
        loop_set_up(NULL);
        loop.no_summary = i == 0;
        loop.engine_fails = i == 1; /* the test fails the run, too */
        listen_in();
        const char *text = run(COMMAND_FAILED);
        const char *said = i == 0 ? "no summaries" : "the engine failed";
        assert_int_equal(times(heard(), said), 1);
        assert_int_equal(times(text, "conclude as failed, nan: "), 1);
        assert_int_equal(times(text, "conclude"), 1);
        assert_int_equal(times(text, "start at"), 1);
        assert_int_equal(times(text, "step 1\n"), i);
        assert_int_equal(times(text, "done"), 0);
    }
}

/* A checkpoint that was not written makes a successful run fail; the test is of the last model in any case. */
TEST_WITH(a_checkpoint_that_failed, loop_set_up, loop_tear_down)
{
    loop.record.checkpoint_failed = true;
    assert_int_equal(times(run(COMMAND_FAILED), "done: last step reached"), 1);
}

int main(void)
{
    return check_run(NULL, NULL);
}
