/* The job's messages: to waiting members, to the log, and in refusals. */
#include "tests/ps/job/entered.h"

static void says(const struct verdict *verdict, uint16_t code, const char *text)
{
    assert_int_equal(verdict->code, code);
    if (!strstr(verdict->message, text)) {
        fail_msg("\"%s\" does not say \"%s\"", verdict->message, text);
    }
}

static void describes(const char *text)
{
    char message[256];
    job_describe(&scene.job, scene.now_s, message);
    assert_string_equal(message, text);
}

/* --- The chief's requests --- */

static void the_chief_alone_asks_for_these(void **state)
{
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    struct verdict verdict;
    (void)state;
    come(&scene, 1, 2);
    job_begin_restore(&scene.job, 1, 1, "test", scene.now_s, &verdict);
    says(&verdict, ERROR_NOT_ALLOWED, "only worker 0, the chief, may ask for begin_restore");
    job_write(&scene.job, 1, 1, &verdict);
    says(&verdict, ERROR_NOT_ALLOWED, "may ask for a write");
    job_end_restore(&scene.job, 1, 1, 0, 0, scene.now_s, &verdict);
    says(&verdict, ERROR_NOT_ALLOWED, "only worker 0");
    job_snapshot(&scene.job, 1, 1, false, &verdict);
    says(&verdict, ERROR_NOT_ALLOWED, "may ask for a snapshot");
    job_end(&scene.job, 1, &over, scene.now_s, &verdict);
    says(&verdict, ERROR_NOT_ALLOWED, "may ask for end_job");
    assert_int_equal(scene.job.state, JOB_WAITING);
}

static void what_is_restored_is_within_bounds(void **state)
{
    struct verdict verdict;
    (void)state;
    come(&scene, 0, 1);
    job_write(&scene.job, 0, 0, &verdict);
    says(&verdict, ERROR_BAD_REQUEST, "nothing can be written before begin_restore");
    job_begin_restore(&scene.job, 0, 5, "test", scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_true(told(&scene, "worker 0 (10.0.0.0:1) writes the model of generation 5: test"));
    job_begin_restore(&scene.job, 0, 5, "test", scene.now_s, &verdict);
    says(&verdict, ERROR_OLD_GENERATION, "a new generation must be later than 5, not 5");
    job_write(&scene.job, 0, 4, &verdict);
    says(&verdict, ERROR_OLD_GENERATION, "generation 4 is not the one being written, 5");
    job_write(&scene.job, 0, 5, &verdict);
    assert_int_equal(verdict.code, 0);
    static const int64_t bad[][2] = {{-1, 0}, {JOB_MAX_STEP + 1, 0}, {0, -1}, {0, JOB_MAX_BATCHES + 1}};
    for (int i = 0; i < 4; i++) {
        job_check_restored(&scene.job, 0, 5, bad[i][0], bad[i][1], &verdict);
        char text[200];
        snprintf(text, sizeof text,
                 "a job can't continue at step %lld, with %lld batches per epoch: expected 0 to %lld, and 0 to %lld",
                 (long long)bad[i][0], (long long)bad[i][1], (long long)JOB_MAX_STEP, (long long)JOB_MAX_BATCHES);
        says(&verdict, ERROR_BAD_REQUEST, text);
    }
    job_check_restored(&scene.job, 0, 5, JOB_MAX_STEP, JOB_MAX_BATCHES, &verdict);
    assert_int_equal(verdict.code, 0);
    job_check_restored(&scene.job, 0, 5, 0, 0, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_int_equal(scene.job.state, JOB_RESTORING);
    job_end_restore(&scene.job, 0, 5, 7, 0, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_true(told(&scene, "the model of generation 5 is complete, at global step 7"));
}

static void a_snapshot_needs_a_model(void **state)
{
    const struct message_end_job over = {.job_state = JOB_DONE, .message = ""};
    struct verdict verdict;
    (void)state;
    come(&scene, 0, 1);
    job_snapshot(&scene.job, 0, 0, true, &verdict);
    says(&verdict, ERROR_NOT_READY, "there is no model yet");
    job_begin_restore(&scene.job, 0, 1, "test", scene.now_s, &verdict);
    job_snapshot(&scene.job, 0, 1, false, &verdict);
    says(&verdict, ERROR_NOT_READY, "there is no model yet");
    job_snapshot(&scene.job, 0, 1, true, &verdict); /* ordered before any worker is released */
    assert_int_equal(verdict.code, 0);
    job_end_restore(&scene.job, 0, 1, 0, 0, scene.now_s, &verdict);
    job_snapshot(&scene.job, 0, 2, false, &verdict);
    says(&verdict, ERROR_OLD_GENERATION, "generation 2 is not the current one, 1");
    job_end(&scene.job, 0, &over, scene.now_s, &verdict);
    job_snapshot(&scene.job, 0, 1, false, &verdict); /* the last one of the job */
    assert_int_equal(verdict.code, 0);
}

static void end_as(enum job_state how, const char *message, const char *line)
{
    struct verdict verdict;
    const struct message_end_job over = {
        .job_state = (uint8_t)how, .global_step = 40, .test_accuracy = 0.5f, .message = (char *)(uintptr_t)message};
    job_end(&scene.job, 0, &over, scene.now_s, &verdict);
    assert_int_equal(verdict.code, 0);
    assert_true(told(&scene, line));
    assert_int_equal(scene.job.state, how);
}

static void how_a_job_ended_is_said(void **state)
{
    struct verdict verdict;
    (void)state;
    come(&scene, 0, 1);
    restore(&scene, 1, 9, 0);
    const struct message_end_job odd = {.job_state = JOB_RESTORING, .message = ""};
    job_end(&scene.job, 0, &odd, scene.now_s, &verdict);
    says(&verdict, ERROR_BAD_REQUEST, "a job ends done (3) or failed (4), not 2");
    end_as(JOB_DONE, "", "worker 0 (10.0.0.0:1): training is over at global step 40\n");
    describes("training is over at global step 9");
    const struct message_end_job again = {.job_state = JOB_FAILED, .test_accuracy = 0.25f, .message = "late"};
    job_end(&scene.job, 0, &again, scene.now_s, &verdict); /* it has ended, and how */
    assert_int_equal(verdict.code, 0);
    assert_int_equal(scene.job.state, JOB_DONE);
    assert_true(scene.job.test_accuracy == 0.5f);
    restore(&scene, 2, 9, 0);
    assert_true(isnan(scene.job.test_accuracy));
    end_as(JOB_FAILED, "it diverged", "worker 0 (10.0.0.0:1): training failed at global step 40: it diverged\n");
    describes("it diverged");
    restore(&scene, 3, 9, 0);
    describes("");
    end_as(JOB_DONE, "!", "training is over at global step 40: !\n");
}

static void a_job_is_over_once_all_have_gone(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 0, 0);
    assert_false(job_may_exit(&scene.job, scene.now_s));
    end_as(JOB_DONE, "", "training is over");
    assert_false(job_may_exit(&scene.job, scene.now_s));
    job_leave(&scene.job, 0, 1, "", scene.now_s); /* it is as good as gone */
    assert_false(job_may_exit(&scene.job, scene.now_s));
    job_disconnected(&scene.job, 1, 2, scene.now_s);
    assert_true(job_may_exit(&scene.job, scene.now_s));
    come(&scene, 1, 2);
    assert_false(job_may_exit(&scene.job, scene.now_s + JOB_END_MS / 1000.0 - 0.1));
    assert_true(job_may_exit(&scene.job, scene.now_s + JOB_END_MS / 1000.0)); /* it does not wait for ever */
}

/* --- What is waited for --- */

static void what_a_job_waits_for_is_described(void **state)
{
    struct verdict verdict;
    (void)state;
    scene.job.config.cluster.min_workers = 3;
    scene.now_s += 7;
    describes("waiting for worker 0 (b:2222) to initialise the model, 7 s");
    come(&scene, 0, 1);
    job_begin_restore(&scene.job, 0, 1, "test", scene.now_s, &verdict);
    scene.now_s += 4;
    describes("waiting for worker 0 (b:2222) to finish writing the model, 4 s");
    job_end_restore(&scene.job, 0, 1, 5, 0, scene.now_s, &verdict);
    scene.now_s += 2;
    describes("waiting for 2 more workers (min_workers is 3), 2 s");
    come(&scene, 1, 2);
    describes("waiting for 1 more worker (min_workers is 3), 2 s");
    job_hold_start(&scene.job, true);
    come(&scene, 2, 3);
    describes("waiting for all members to have the config that is being rolled out, 2 s");
    assert_false(scene.job.started);
    job_hold_start(&scene.job, false);
    describes("");
    assert_true(told(&scene, "training begins at global step 5, with 3 of 3 workers present"));
}

static void who_is_waited_for_is_told_now_and_then(void **state)
{
    (void)state;
    const double every_s = JOB_WAIT_LOG_MS / 1000.0;
    job_tick(&scene.job, scene.now_s + every_s - 0.1);
    play(&scene);
    assert_string_equal(scene.log, "");
    for (int i = 1; i <= 2; i++) {
        scene.now_s += every_s;
        job_tick(&scene.job, scene.now_s);
        assert_true(told(&scene, "waiting for worker 0 (b:2222) to initialise the model"));
        job_tick(&scene.job, scene.now_s + 0.1);
        play(&scene);
        assert_string_equal(scene.log, "");
    }
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0);
    scene.log[0] = '\0';
    for (int i = 0; i < 5; i++) { /* nothing is waited for any more */
        scene.now_s += every_s;
        job_touch(&scene.job, 0, 1, scene.now_s);
        job_tick(&scene.job, scene.now_s);
        play(&scene);
    }
    assert_null(strstr(scene.log, "waiting"));
}

static void what_waits_for_a_step_is_described(void **state)
{
    (void)state;
    scene.job.config.train.buffer_size = 2;
    scene.config.train.buffer_size = 2;
    come(&scene, 0, 1);
    come(&scene, 1, 2);
    restore(&scene, 1, 10, 0);
    describes("has 0 of 2 differences for step 10");
    push(&scene, 0, 1);
    describes("has 1 of 2 differences for step 10");
    push(&scene, 1, 1);
    describes("has 0 of 2 differences for step 11; those of the last step were 0.00 steps old on average");
    scene.job.config.train.buffer_size = 1;
    describes("has 0 of 1 differences for step 11; those of the last step were 0.00 steps old on average");
}

/* --- Under another config --- */

static void the_last_step_under_another_config_is_foretold(void **state)
{
    (void)state;
    scene.job.config.train.batch_size = 100;
    struct config next = scene.job.config;
    next.train.train_steps = 77;
    assert_int_equal(job_last_step_under(&scene.job, &next), 77); /* the number of images is not known */
    next.train.epochs = 2;
    assert_int_equal(job_last_step_under(&scene.job, &next), 77);
    next.train.train_steps = 0;
    assert_int_equal(job_last_step_under(&scene.job, &next), 0);
    come(&scene, 0, 1);
    restore(&scene, 1, 0, 0); /* 600 batches of 100 */
    next.train.batch_size = 100;
    assert_int_equal(job_last_step_under(&scene.job, &next), 1200);
    next.train.batch_size = 200;
    assert_int_equal(job_last_step_under(&scene.job, &next), 600);
    next.train.batch_size = 1 << 20; /* one at least */
    assert_int_equal(job_last_step_under(&scene.job, &next), 2);
    next.train.batch_size = 100;
    scene.job.epoch_batches = 1;
    assert_int_equal(job_last_step_under(&scene.job, &next), 2);
    next.train.epochs = 0;
    assert_int_equal(job_last_step_under(&scene.job, &next), 0);
    next.train.train_steps = 77;
    assert_int_equal(job_last_step_under(&scene.job, &next), 77);
}

static void an_end_that_is_put_off_for_good_is_told(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    restore(&scene, 1, 3, 50);
    assert_int_equal(scene.job.last_step, 50);
    struct config next = scene.config;
    next.train.train_steps = 0;
    job_schedule(&scene.job, &next, 3, scene.now_s);
    assert_int_equal(scene.job.last_step, 0);
    assert_true(told(&scene, "from global step 3 on there is no last step"));
    job_schedule(&scene.job, &next, 3, scene.now_s); /* not logged again */
    play(&scene);
    assert_string_equal(scene.log, "");
}

/* --- Actions --- */

static void lines_that_are_too_many_are_counted(void **state)
{
    (void)state;
    come(&scene, 0, 1);
    assert_false(job_has_actions(&scene.job));
    job_leave(&scene.job, 0, 1, "", scene.now_s);
    assert_true(job_has_actions(&scene.job));
    play(&scene);
    assert_false(job_has_actions(&scene.job));
    for (int i = 0; i < JOB_MAX_LINES + 5; i++) {
        struct verdict verdict;
        job_begin_restore(&scene.job, 0, (uint32_t)i + 1, "again", scene.now_s, &verdict);
    }
    assert_true(job_has_actions(&scene.job));
    struct job_action action;
    for (int i = 0; i < JOB_MAX_LINES; i++) {
        assert_true(job_next_action(&scene.job, &action));
        assert_int_equal(action.kind, JOB_LOG);
        assert_int_equal(action.level, LOG_INFO);
        char line[60];
        snprintf(line, sizeof line, "the model of generation %d: again", i + 1);
        assert_non_null(strstr(action.text, line));
    }
    assert_true(job_has_actions(&scene.job));
    assert_true(job_next_action(&scene.job, &action));
    assert_int_equal(action.level, LOG_WARNING);
    assert_string_equal(action.text, "5 more lines about workers and steps are left out");
    assert_false(job_has_actions(&scene.job));
    assert_false(job_next_action(&scene.job, &action));
}

static void a_single_line_too_many_is_told_of(void **state)
{
    struct job_action action;
    struct verdict verdict;
    (void)state;
    come(&scene, 0, 1);
    for (int i = 0; i <= JOB_MAX_LINES; i++) {
        job_begin_restore(&scene.job, 0, (uint32_t)i + 1, "again", scene.now_s, &verdict);
    }
    for (int i = 0; i < JOB_MAX_LINES; i++) {
        assert_true(job_next_action(&scene.job, &action));
    }
    assert_true(job_has_actions(&scene.job));
    assert_true(job_next_action(&scene.job, &action));
    assert_string_equal(action.text, "1 more line about workers and steps is left out");
    assert_false(job_has_actions(&scene.job));
}

static void what_was_dropped_adds_up(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        scene.job.workers[i].stale = i + 1;
        scene.job.workers[i].not_finite = 10 * (i + 1);
    }
    assert_int_equal(job_dropped(&scene.job), 66);
    assert_int_equal(job_not_finite(&scene.job), 60);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_chief_alone_asks_for_these),
        TEST(what_is_restored_is_within_bounds),
        TEST(a_snapshot_needs_a_model),
        TEST(how_a_job_ended_is_said),
        TEST(a_job_is_over_once_all_have_gone),
        TEST(what_a_job_waits_for_is_described),
        TEST(who_is_waited_for_is_told_now_and_then),
        TEST(what_waits_for_a_step_is_described),
        TEST(the_last_step_under_another_config_is_foretold),
        TEST(an_end_that_is_put_off_for_good_is_told),
        TEST(lines_that_are_too_many_are_counted),
        TEST(a_single_line_too_many_is_told_of),
        TEST(what_was_dropped_adds_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
