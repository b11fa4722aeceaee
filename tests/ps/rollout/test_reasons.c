/* Why a rollout is aborted: the operator's messages, word for word. */
#include "tests/ps/rollout/deciding.h"

#include <math.h>
#include <string.h>

static double healthy_s = 5;

static void begin(enum rollout_kind kind)
{
    const struct rollout_plan plan = {.target = 2, .fallback = 1, .kind = kind, .healthy_s = healthy_s};
    all_say(PHASE_NONE, 0); /* all have reported */
    assert_true(rollout_begin(&rollout, &plan, &fine, 0, message));
}

static void is_given_up(enum rollout_state next, const char *why)
{
    assert_int_equal(rollout.state, next);
    assert_string_equal(rollout.reason, why);
}

static void what_was_not_staged(void **state)
{
    (void)state;
    static const char *const words[] = {"", "x", "the disk is slow"};
    static const char *const reasons[] = {"worker 2 did not stage it within 60 s",
                                          "worker 2 did not stage it within 60 s: x",
                                          "worker 2 did not stage it within 60 s: the disk is slow"};
    for (int i = 0; i < 3; i++) {
        begin(ROLLOUT_LIVE);
        all_say(PHASE_STAGED, 0.5);
        say_why((struct member){MEMBER_WORKER, 2}, PHASE_NONE, words[i], 0.6);
        rollout_tick(&rollout, &fine, ROLLOUT_STAGE_S - 0.5);
        assert_int_equal(rollout.state, ROLLOUT_STAGING);
        rollout_tick(&rollout, &fine, ROLLOUT_STAGE_S);
        is_given_up(ROLLOUT_IDLE, reasons[i]);
        assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
        leave(NULL);
        enter(NULL);
    }
}

/* The first of several; ps come before workers. */
static void the_first_that_is_late_is_named(void **state)
{
    (void)state;
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0.5);
    say_why((struct member){MEMBER_WORKER, 2}, PHASE_NONE, "", 0.6);
    say_why((struct member){MEMBER_PS, 1}, PHASE_NONE, "", 0.6);
    say_why((struct member){MEMBER_WORKER, 1}, PHASE_NONE, "", 0.6);
    rollout_tick(&rollout, &fine, ROLLOUT_STAGE_S);
    is_given_up(ROLLOUT_IDLE, "ps 1 did not stage it within 60 s");
}

static void who_refused_it(void **state)
{
    (void)state;
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0.5);
    say_why((struct member){MEMBER_PS, 1}, PHASE_FAILED, "x", 0.6);
    is_given_up(ROLLOUT_IDLE, "ps 1: x");
}

static void what_worker_0_did_not_do(void **state)
{
    (void)state;
    begin(ROLLOUT_JOB);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    assert_int_equal(rollout.state, ROLLOUT_TRYING);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_TRY);
    rollout_tick(&rollout, &fine, 0.5 + ROLLOUT_TRY_S - 0.5);
    assert_int_equal(rollout.state, ROLLOUT_TRYING);
    rollout_tick(&rollout, &fine, 0.5 + ROLLOUT_TRY_S);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_int_equal(strncmp(rollout.reason, "worker 0 did not try it", 23), 0);
    assert_non_null(strstr(rollout.reason, " within 180 s"));
    leave(NULL);
    enter(NULL);
    begin(ROLLOUT_JOB);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    say_why(chief, PHASE_TRIED, "", 1);
    rollout_tick(&rollout, &fine, 1);
    assert_int_equal(rollout.state, ROLLOUT_SAVING);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_SAVE);
    rollout_tick(&rollout, &fine, 1 + ROLLOUT_SAVE_S - 0.5);
    assert_int_equal(rollout.state, ROLLOUT_SAVING);
    rollout_tick(&rollout, &fine, 1 + ROLLOUT_SAVE_S);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_non_null(strstr(rollout.reason, "worker 0 did not save"));
    assert_non_null(strstr(rollout.reason, " within 60 s"));
}

static void watch_from_1(void)
{
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    all_say(PHASE_SWITCHED, 1);
    rollout_tick(&rollout, &fine, 1);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
}

static void what_went_wrong_while_it_was_watched(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    vitals.loss = NAN;
    vitals.global_step = 1007;
    watch_from_1();
    all_say(PHASE_SWITCHED, 1.5);
    rollout_tick(&rollout, &vitals, 1.5);
    is_given_up(ROLLOUT_GOING_BACK, "the loss is no longer finite, after step 1007");
    leave(NULL);
    enter(NULL);
    watch_from_1();
    vitals.loss = 0.5;
    vitals.global_step = 1000;
    for (int i = 0; rollout.state == ROLLOUT_WATCHING && i < 400; i++) {
        const double now_s = 1 + i / 4.0;
        all_say(PHASE_SWITCHED, now_s);
        rollout_tick(&rollout, &vitals, now_s);
    }
    is_given_up(ROLLOUT_GOING_BACK, "no step was made for 20 s");
    leave(NULL);
    enter(NULL);
    healthy_s = 300;
    watch_from_1();
    healthy_s = 5;
    for (int i = 0; rollout.state == ROLLOUT_WATCHING && i < 400; i++) {
        const double now_s = 1 + i / 4.0;
        vitals.global_step += 25;
        for (int k = 0; k < rollout.count; k++) {
            if (rollout.members[k].who.role != MEMBER_PS || rollout.members[k].who.index != 1) {
                say_why(rollout.members[k].who, PHASE_SWITCHED, "", now_s);
            }
        }
        rollout_tick(&rollout, &vitals, now_s);
        if (i == 300) {
            fail_msg("nobody misses ps 1");
        }
    }
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_int_equal(strncmp(rollout.reason, "ps 1 was not heard from for ", 28), 0);
}

static void an_operator_takes_it_back(void **state)
{
    (void)state;
    assert_false(rollout_abort(&rollout, 0, message));
    begin(ROLLOUT_LIVE);
    assert_true(rollout_abort(&rollout, 1, message));
    is_given_up(ROLLOUT_IDLE, "the operator aborted it");
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    watch_from_1();
    assert_true(rollout_abort(&rollout, 2, message));
    is_given_up(ROLLOUT_GOING_BACK, "the operator aborted it");
}

static void what_the_leader_was_at_as_it_was_restarted(void **state)
{
    static const enum rollout_state states[] = {ROLLOUT_SWITCHING, ROLLOUT_WATCHING};
    static const char *const reasons[] = {"ps 0 was restarted while the rollout was switching",
                                          "ps 0 was restarted while the rollout was watching"};
    const struct rollout_plan plan = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5};
    (void)state;
    for (int i = 0; i < 2; i++) {
        rollout_resume(&rollout, states[i], &plan, 0.5, "", 0);
        is_given_up(ROLLOUT_GOING_BACK, reasons[i]);
        leave(NULL);
        enter(NULL);
    }
    rollout_resume(&rollout, ROLLOUT_GOING_BACK, &plan, 0.5, "x", 0);
    is_given_up(ROLLOUT_GOING_BACK, "x");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_not_staged),
        TEST(the_first_that_is_late_is_named),
        TEST(who_refused_it),
        TEST(what_worker_0_did_not_do),
        TEST(what_went_wrong_while_it_was_watched),
        TEST(an_operator_takes_it_back),
        TEST(what_the_leader_was_at_as_it_was_restarted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
