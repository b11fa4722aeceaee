/* One rollout after another: nothing of the last one is left in the next, and each of a program takes all its turns. */
#include "tests/ps/rollout/deciding.h"

#include <string.h>

static const struct member leader = {MEMBER_PS, 0}, other_ps = {MEMBER_PS, 1}, canary = {MEMBER_WORKER, WORKERS - 1};
static struct rollout_plan plan;
static struct rollout_vitals vitals;

static int prepare(void **state)
{
    vitals = fine;
    plan = (struct rollout_plan){.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 1};
    return enter(state);
}

static void begin(double now_s)
{
    all_say(PHASE_NONE, now_s);
    assert_true(rollout_begin(&rollout, &plan, &vitals, now_s, message));
}

static void works(struct member who, enum rollout_phase phase, double now_s)
{
    const struct rollout_report report = {
        .phase = phase, .version = 2, .target = 2, .ready = true, .runs_target = true, .steps = 5, .message = ""};
    rollout_on_report(&rollout, who, &report, now_s);
}

/* Of workers that are told to restart, and of all others, who stay; the step goes on. */
static void all_obey(double now_s)
{
    for (int i = 0; i < rollout.count; i++) {
        const struct member who = rollout.members[i].who;
        const bool restarts = who.role == MEMBER_WORKER && rollout_order(&rollout, who) == ORDER_RESTART;
        rollout_delivered(&rollout, who);
        if (restarts || (rollout.members[i].version == 2 && who.role == MEMBER_WORKER)) {
            works(who, PHASE_SWITCHED, now_s);
        } else {
            say(who, PHASE_STAGED, now_s);
        }
    }
    vitals.global_step += 10;
    rollout_tick(&rollout, &vitals, now_s);
}

/* Until worker 0 is told to save, after the canary was watched for its second. */
static double until_all_workers_work(double now_s)
{
    begin(now_s);
    all_say(PHASE_STAGED, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    assert_int_equal(rollout_order(&rollout, canary), ORDER_RESTART);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_STAGE);
    for (int i = 0; i < 4; i++) { /* it is there, and watched */
        all_obey(now_s + i / 4.0);
        assert_int_equal(rollout_order(&rollout, chief), ORDER_STAGE);
    }
    for (int i = 4; rollout_order(&rollout, chief) != ORDER_SAVE; i++) {
        all_obey(now_s + i / 4.0);
        assert_true(i < 100);
        if (rollout_order(&rollout, chief) == ORDER_SAVE) {
            return now_s + i / 4.0;
        }
    }
    return now_s;
}

static void every_ps_restarts_once_the_job_is_saved(void **state)
{
    (void)state;
    plan.kind = ROLLOUT_LOCAL;
    plan.brings_program = true;
    double now_s = 100;
    for (int again = 0; again < 2; again++) {
        now_s = until_all_workers_work(now_s);
        assert_int_equal(rollout_order(&rollout, other_ps), ORDER_STAGE);
        works(chief, PHASE_SAVED, now_s + 1);
        rollout_tick(&rollout, &vitals, now_s + 1);
        assert_int_equal(rollout_order(&rollout, other_ps), ORDER_RESTART);
        assert_int_equal(rollout_order(&rollout, chief), ORDER_RESTART);
        assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE); /* until the others have heard of it */
        rollout_tick(&rollout, &vitals, now_s + 1.75);
        assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
        rollout_tick(&rollout, &vitals, now_s + 2);
        assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
        works(leader, PHASE_NONE, now_s + 3);
        rollout_tick(&rollout, &vitals, now_s + 1 + ROLLOUT_SWITCH_S - 0.25);
        assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
        rollout_tick(&rollout, &vitals, now_s + 1 + ROLLOUT_SWITCH_S);
        assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
        assert_string_equal(rollout.reason, "ps 1 did not restart within 60 s");
        now_s += 1 + ROLLOUT_SWITCH_S;
        all_say(PHASE_BACK, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        assert_int_equal(rollout.state, ROLLOUT_IDLE);
    }
}

static void what_is_not_saved_in_a_minute_goes_back(void **state)
{
    (void)state;
    plan.kind = ROLLOUT_LOCAL;
    plan.brings_program = true;
    const double now_s = until_all_workers_work(100);
    for (int i = 1; i < ROLLOUT_SAVE_S; i++) {
        all_obey(now_s + i);
        assert_int_equal(rollout_order(&rollout, chief), ORDER_SAVE);
    }
    all_obey(now_s + ROLLOUT_SAVE_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    all_obey(now_s + ROLLOUT_SAVE_S);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_string_equal(rollout.reason, "worker 0 did not save the job within 60 s");
}

/* What the canary was measured to make, which made 100 steps a second before; all are heard of. */
static void tick_at_pace(double rate, double now_s)
{
    struct rollout_member *one = &rollout.members[rollout.count - 1];
    one->pace = (struct rollout_pace){
        .since_s = now_s, .of_target = true, .rate = rate, .before = 100, .seconds = 1, .steps = one->steps};
    for (int i = 0; i < rollout.count; i++) {
        rollout.members[i].heard_s = now_s;
    }
    rollout_tick(&rollout, &vitals, now_s);
}

/* Once is chance, and so is it now and then; a canary that is slow for five seconds takes all back. */
static void a_canary_is_slow_for_five_seconds_on_end(void **state)
{
    (void)state;
    plan.kind = ROLLOUT_LOCAL;
    plan.brings_program = true;
    plan.healthy_s = 5;
    plan.waves.least_speed = 50;
    vitals.in_step = true;
    begin(0);
    all_say(PHASE_STAGED, 0);
    rollout_tick(&rollout, &vitals, 0);
    works(canary, PHASE_SWITCHED, 0);
    tick_at_pace(34, 0);
    tick_at_pace(34, 0.25);
    tick_at_pace(34, 4.5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick_at_pace(100, 4.75);
    tick_at_pace(34, 4.875);
    tick_at_pace(34, 9.75);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_true(rollout.is_first_wave); /* nobody follows one that is slow */
    tick_at_pace(34, 9.875);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_string_equal(rollout.reason,
                        "worker 2 makes 34 steps/s in the new program, but made 100 before: less than 50%");
    leave(NULL);
    enter(NULL);
    begin(0);
    all_say(PHASE_STAGED, 0);
    rollout_tick(&rollout, &vitals, 0);
    works(canary, PHASE_SWITCHED, 0);
    for (int i = 0; i < 20; i++) {
        tick_at_pace(34, i / 4.0);
        assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    }
    tick_at_pace(34, 5);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
}

static void the_step_of_the_last_one_is_not_that_of_the_next(void **state)
{
    (void)state;
    begin(0);
    all_say(PHASE_STAGED, 0);
    rollout_tick(&rollout, &vitals, 0);
    assert_true(rollout.step > 0);
    rollout.is_paused = true;
    assert_true(rollout_abort(&rollout, 1, message));
    assert_false(rollout.is_paused);
    all_say(PHASE_BACK, 1);
    rollout_tick(&rollout, &vitals, 1);
    say(chief, PHASE_RESTORED, 1);
    rollout_tick(&rollout, &vitals, 1);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_string_equal(rollout.reason, "the operator aborted it");
    plan.kind = ROLLOUT_JOB;
    begin(2);
    assert_int_equal(rollout.step, 0);
    assert_string_equal(rollout.reason, "");
    for (int i = 0; i < rollout.count; i++) {
        assert_int_equal(rollout.members[i].phase, PHASE_NONE);
    }
}

/* What losses are compared with: where parameters may be lost, or nobody knows what they are worth, with a guess. */
static void a_model_that_may_lose_is_compared_with_one_that_knows_nothing(void **state)
{
    (void)state;
    for (int how = 0; how < 8; how++) {
        vitals = fine;
        vitals.chance_loss = 2.25;
        plan.may_lose = (how & 1) != 0;
        vitals.waits = (how & 2) != 0;
        vitals.unsure = (how & 4) != 0;
        begin(how);
        assert_true(rollout.loss_before == (how > 0 ? 2.25 : 0.5));
        vitals.chance_loss = 0.25; /* the larger of both */
        assert_true(rollout_abort(&rollout, how, message));
        begin(how);
        assert_true(rollout.loss_before == 0.5);
        assert_true(rollout_abort(&rollout, how, message));
    }
    vitals = fine;
    plan.may_lose = false;
    begin(9);
    all_say(PHASE_STAGED, 9);
    vitals.loss = 0.125; /* it has become better since */
    rollout_tick(&rollout, &vitals, 9);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_true(rollout.loss_before == 0.5);
}

/* A leader that was restarted knows of the training nothing yet. */
static void a_guess_is_not_looked_at_again_without_training(void **state)
{
    (void)state;
    plan.kind = ROLLOUT_JOB;
    vitals.unsure = true;
    vitals.chance_loss = 2;
    begin(0);
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.75, "", 1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_true(rollout.loss_before == 0.75);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(every_ps_restarts_once_the_job_is_saved),
        TEST(what_is_not_saved_in_a_minute_goes_back),
        TEST(a_canary_is_slow_for_five_seconds_on_end),
        TEST(the_step_of_the_last_one_is_not_that_of_the_next),
        TEST(a_model_that_may_lose_is_compared_with_one_that_knows_nothing),
        TEST(a_guess_is_not_looked_at_again_without_training),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
