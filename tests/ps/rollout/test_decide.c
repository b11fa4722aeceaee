/* The decisions of a rollout, with the test's own clock and members. */
#include "tests/ps/rollout/deciding.h"

#include <math.h>
#include <string.h>

#include "tests/random.h"

static const struct rollout_plan live = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5},
                                 local = {.target = 2, .fallback = 1, .kind = ROLLOUT_LOCAL, .healthy_s = 5},
                                 whole = {.target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5};

static void begin_with(const struct rollout_vitals *vitals)
{
    assert_true(rollout_begin(&rollout, &live, vitals, 0, message));
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
}

static void begin_at_0(void)
{
    begin_with(&fine);
}

static void watch_from_1(void)
{
    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    all_say(PHASE_SWITCHED, 1);
    rollout_tick(&rollout, &fine, 1);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
}

static void goes_all_the_way(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    begin_at_0();
    assert_int_equal(rollout_order(&rollout, chief), ORDER_STAGE);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &vitals, 0.5);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_SWITCH);
    assert_true(rollout.step >= 1000 + 100); /* members have time to learn of it */
    all_say(PHASE_SWITCHED, 3);
    rollout_tick(&rollout, &vitals, 3);
    for (int quarter = 12; quarter < 32; quarter++) {
        const double now_s = quarter / 4.0;
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
        vitals.global_step += 25;
        all_say(PHASE_SWITCHED, now_s);
        rollout_tick(&rollout, &vitals, now_s);
    }
    rollout_tick(&rollout, &vitals, 8);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_NOTHING);
}

/* If training is over nothing more can be learnt of the target: it stays. */
static void the_job_is_done_while_it_is_watched(void **state)
{
    (void)state;
    struct rollout_vitals over = fine;
    watch_from_1();
    over.training = false;
    over.over = true;
    rollout_tick(&rollout, &over, 3.25);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

/* Members on busy machines report seldom, and learn of the step late; so it is further ahead. */
static void slow_members_get_more_time(void **state)
{
    (void)state;
    begin_at_0();
    all_say(PHASE_NONE, 0.5);
    all_say(PHASE_STAGED, 0.6);
    rollout_tick(&rollout, &fine, 0.6);
    const int64_t quick = rollout.step;
    rollout.state = ROLLOUT_IDLE;
    begin_at_0();
    all_say(PHASE_NONE, 0.5);
    say(chief, PHASE_STAGED, 3.5);
    all_say(PHASE_STAGED, 3.6);
    rollout_tick(&rollout, &fine, 3.6);
    assert_true(rollout.step >= quick + 3 * 280 && rollout.step <= 1000 + 20 + 20 * 100);

    /* Training slowed down by staging is as fast again afterwards. */
    struct rollout_vitals slow = fine;
    slow.steps_per_s = 10;
    rollout.state = ROLLOUT_IDLE;
    begin_at_0();
    rollout_tick(&rollout, &fine, 0.1);
    all_say(PHASE_NONE, 0.5);
    all_say(PHASE_STAGED, 0.6);
    rollout_tick(&rollout, &slow, 0.6);
    assert_int_equal(rollout.step, quick);
}

static void one_at_a_time(void **state)
{
    (void)state;
    struct rollout_vitals waiting = fine;
    waiting.training = false;
    assert_false(rollout_begin(&rollout, &live, &waiting, 0, message));
    begin_at_0();
    assert_false(rollout_begin(&rollout, &whole, &fine, 0, message));
    assert_non_null(strstr(message, "only one can be at a time"));
}

/* By train_steps or epochs: on proposal, and when the step to switch at, or the saved one, is there. */
static void a_job_that_would_be_over_is_not_begun(void **state)
{
    (void)state;
    struct rollout_plan plan = live;
    struct rollout_vitals vitals = fine;
    plan.last_step = 1000;
    assert_false(rollout_begin(&rollout, &plan, &vitals, 0, message));
    assert_non_null(strstr(message, "the job would be over after step 1000"));
    plan.last_step = 1010;
    assert_true(rollout_begin(&rollout, &plan, &vitals, 0, message));
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &vitals, 0.5);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_non_null(strstr(rollout.reason, "the job would be over after step 1010"));
    plan.kind = ROLLOUT_JOB;
    assert_true(rollout_begin(&rollout, &plan, &vitals, 1, message));
    all_say(PHASE_STAGED, 2);
    rollout_tick(&rollout, &vitals, 2);
    say(chief, PHASE_TRIED, 3);
    rollout_tick(&rollout, &vitals, 3);
    assert_int_equal(rollout.state, ROLLOUT_SAVING);
    vitals.global_step = 1010;
    say(chief, PHASE_SAVED, 4);
    rollout_tick(&rollout, &vitals, 4);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
}

static void nothing_changes_before_all_have_staged(void **state)
{
    (void)state;
    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    say((struct member){MEMBER_WORKER, 2}, PHASE_FAILED, 0.6);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_string_equal(rollout.reason, "worker 2: can't");
    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    say((struct member){MEMBER_WORKER, 2}, PHASE_NONE, 0.6);
    rollout_tick(&rollout, &fine, ROLLOUT_STAGE_S - 1);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    rollout_tick(&rollout, &fine, ROLLOUT_STAGE_S);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_non_null(strstr(rollout.reason, "worker 2 did not stage it"));
}

/* All go back, then the checkpoint, then it is over. */
static void assert_goes_back(double now_s)
{
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_BACK);
    all_say(PHASE_SWITCHED, now_s);
    rollout_tick(&rollout, &fine, now_s + 1000); /* never aborted */
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    all_say(PHASE_BACK, now_s + 1000);
    rollout_tick(&rollout, &fine, now_s + 1000);
    assert_int_equal(rollout.state, ROLLOUT_RESTORING);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_RESTORE);
    assert_int_equal(rollout_order(&rollout, (struct member){MEMBER_PS, 0}), ORDER_BACK);
    say(chief, PHASE_RESTORED, now_s + 1001);
    rollout_tick(&rollout, &fine, now_s + 1001);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);
}

static void goes_back_from_what_does_no_good(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    watch_from_1();
    vitals.loss = NAN;
    rollout_tick(&rollout, &vitals, 2);
    assert_goes_back(2);

    watch_from_1();
    vitals.loss = 100;
    rollout_tick(&rollout, &vitals, 2);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING); /* one batch proves nothing */
    rollout_tick(&rollout, &vitals, 3.5);
    assert_goes_back(4);

    watch_from_1();
    rollout_tick(&rollout, &fine, 1 + ROLLOUT_IDLE_TIMEOUT_S); /* no reports since */
    assert_goes_back(20);

    watch_from_1();
    rollout.healthy_s = 1000;
    for (int now_s = 2; now_s < 1 + ROLLOUT_STANDING_S; now_s++) {
        all_say(PHASE_SWITCHED, now_s);
        rollout_tick(&rollout, &fine, now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    rollout_tick(&rollout, &fine, 1 + ROLLOUT_STANDING_S);
    assert_non_null(strstr(rollout.reason, "no step was made"));
    assert_goes_back(30);

    watch_from_1();
    assert_true(rollout_abort(&rollout, 2, message));
    assert_false(rollout_abort(&rollout, 2, message));
    assert_goes_back(3);
    assert_false(rollout_abort(&rollout, 2000, message));

    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    say((struct member){MEMBER_PS, 1}, PHASE_LATE, 1);
    assert_goes_back(2);

    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    vitals = fine;
    vitals.loss = NAN; /* of a worker that got new parameters from the other ps: ps 0 will never reach the step */
    say((struct member){MEMBER_PS, 1}, PHASE_SWITCHED, 1);
    rollout_tick(&rollout, &vitals, 1);
    assert_goes_back(2);
}

/* A worker that has just joined again reports no loss, and others still that of an abandoned model. */
static void losses_are_compared_with_those_of_the_model_that_is_changed(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine, unsure = fine;
    unsure.loss = 0.1;
    unsure.chance_loss = 2.3;
    unsure.unsure = true;

    /* No loss is known from before the switch: an untrained model's counts instead. */
    begin_with(&unsure);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &unsure, 0.5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_true(rollout.loss_before == 2.3);
    all_say(PHASE_SWITCHED, 1);
    vitals.loss = 5;
    rollout_tick(&rollout, &vitals, 1);
    rollout_tick(&rollout, &vitals, 2);
    rollout_tick(&rollout, &vitals, 3.5);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.loss = 11;
    rollout_tick(&rollout, &vitals, 4);
    rollout_tick(&rollout, &vitals, 5.5);
    assert_goes_back(6);

    /* By then all have reported theirs: 0.5, so that 5 is worse. */
    begin_with(&unsure);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
    assert_true(rollout.loss_before == 0.5);
    all_say(PHASE_SWITCHED, 1);
    vitals.loss = 5;
    rollout_tick(&rollout, &vitals, 1);
    rollout_tick(&rollout, &vitals, 2);
    rollout_tick(&rollout, &vitals, 3.5);
    assert_goes_back(4);

    /* A loss of unknown origin: it must stay finite. */
    unsure.chance_loss = INFINITY;
    begin_with(&unsure);
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &unsure, 0.5);
    all_say(PHASE_SWITCHED, 1);
    vitals.loss = 1e30;
    rollout_tick(&rollout, &vitals, 1);
    rollout_tick(&rollout, &vitals, 2);
    rollout_tick(&rollout, &vitals, 3.5);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.loss = INFINITY;
    rollout_tick(&rollout, &vitals, 3);
    assert_goes_back(4);
}

static void a_loss_that_flickers_is_let_pass(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    watch_from_1();
    for (int half = 3; half < 12; half++) {
        const double now_s = half / 2.0;
        vitals.loss = now_s - floor(now_s) > 0.2 ? 100 : 0.5;
        vitals.global_step += 10;
        all_say(PHASE_SWITCHED, now_s);
        rollout_tick(&rollout, &vitals, now_s);
    }
    vitals.loss = 0.5;
    rollout_tick(&rollout, &vitals, 6.5);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

/* A lost ps comes back without the schedule, and the others would start it alone. */
static void a_model_that_is_restored_while_members_switch_goes_back(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    vitals.generation = 4;
    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &vitals, 0.5);
    rollout_tick(&rollout, &vitals, 0.6);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    vitals.generation = 5;
    vitals.global_step = 990;
    all_say(PHASE_SWITCHED, 1);
    rollout_tick(&rollout, &vitals, 1);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_non_null(strstr(rollout.reason, "the model was restored while members switched"));
}

/* A short healthy_s proves nothing before a gradient of the new parameters has arrived. */
static void a_watch_waits_for_steps_that_tell(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    vitals.under_way = 3;
    begin_at_0();
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &vitals, 0.5);
    all_say(PHASE_SWITCHED, 1);
    rollout_tick(&rollout, &vitals, 1);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    for (int second = 2; second < 9; second++) { /* slow: half a step a second */
        all_say(PHASE_SWITCHED, second);
        vitals.global_step = fine.global_step + second / 2;
        rollout_tick(&rollout, &vitals, second);
        assert_int_equal(rollout.state, second < 8 ? ROLLOUT_WATCHING : ROLLOUT_IDLE);
    }
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

/* After a restore, steps are repeated: that is no standstill, and the proof starts over. */
static void steps_that_are_made_again_count(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    watch_from_1();
    vitals.global_step = 400;
    for (int second = 2; second < 40 && rollout.state == ROLLOUT_WATCHING; second++) {
        all_say(PHASE_SWITCHED, second);
        rollout_tick(&rollout, &vitals, second);
        vitals.global_step += second > 5;
    }
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
    assert_true(vitals.global_step < 500);
}

/* A member that left, or has no model, is not healthy. */
static void a_watch_waits_for_members_that_are_not_ready(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    const struct rollout_report absent = {
        .phase = PHASE_SWITCHED, .version = 1, .target = 2, .ready = false, .message = ""};
    watch_from_1();
    for (int second = 2; second < 12; second++) {
        all_say(PHASE_SWITCHED, second);
        rollout_on_report(&rollout, chief, &absent, second);
        vitals.global_step += 10;
        rollout_tick(&rollout, &vitals, second);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
}

/* The leader's machine was suspended: nobody was heard from meanwhile, and nobody is to blame. */
static void a_leader_that_stood_still_blames_nobody(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    for (int told = 0; told < 2; told++) {
        watch_from_1();
        if (told) {
            rollout_extend_deadlines(&rollout, 30);
        }
        vitals.global_step += 10;
        rollout_tick(&rollout, &vitals, 31.1);
        assert_int_equal(rollout.state, told ? ROLLOUT_WATCHING : ROLLOUT_GOING_BACK);
        rollout.state = ROLLOUT_IDLE;
    }
}

static void who_was_away_catches_up(void **state)
{
    (void)state;
    rollout.target = 7;
    rollout.fallback = 4;
    rollout.kind = ROLLOUT_LIVE;
    assert_int_equal(rollout_catch_up(&rollout, 7, 7), ORDER_NOTHING);
    assert_int_equal(rollout_catch_up(&rollout, 7, 4), ORDER_SWITCH);
    assert_int_equal(rollout_catch_up(&rollout, 7, 3), ORDER_CATCH_UP);
    assert_int_equal(rollout_catch_up(&rollout, 7, 8), ORDER_NOTHING); /* ahead: it waits */
    assert_int_equal(rollout_catch_up(&rollout, 4, 7), ORDER_BACK);
    assert_int_equal(rollout_catch_up(&rollout, 4, 3), ORDER_CATCH_UP);
    assert_int_equal(rollout_catch_up(&rollout, 4, 6), ORDER_CATCH_UP); /* rolled back before 7 came */
    assert_int_equal(rollout_catch_up(&rollout, 4, 8), ORDER_NOTHING);
    assert_int_equal(rollout_catch_up(&rollout, 5, 3), ORDER_NOTHING); /* ps 0 is on neither */
    rollout.kind = ROLLOUT_JOB;
    assert_int_equal(rollout_catch_up(&rollout, 7, 4), ORDER_CATCH_UP);
    assert_int_equal(rollout_catch_up(&rollout, 4, 7), ORDER_CATCH_UP);
}

static void a_leader_that_was_away_goes_back(void **state)
{
    (void)state;
    rollout_resume(&rollout, ROLLOUT_IDLE, &live, 0.5, "", 0);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    rollout_resume(&rollout, ROLLOUT_STAGING, &live, 0.5, "", 0);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    for (int from = ROLLOUT_SWITCHING; from <= ROLLOUT_RESTORING; from++) {
        rollout_resume(&rollout, (enum rollout_state)from, &live, 0.5, "the loss", 0);
        assert_goes_back(1);
    }
}

/* --- Members that restart --- */

/* A member's version, as it reports after a restart. */
static void is_in(struct member who, uint64_t version, bool ready, double now_s)
{
    const struct rollout_report report = {
        .phase = PHASE_STAGED, .version = version, .target = rollout.target, .ready = ready, .message = ""};
    rollout_on_report(&rollout, who, &report, now_s);
}

static void all_are_in(uint64_t version, double now_s)
{
    for (int i = 0; i < rollout.count; i++) {
        is_in(rollout.members[i].who, version, true, now_s);
    }
}

static void stage_at_0(const struct rollout_plan *plan)
{
    assert_true(rollout_begin(&rollout, plan, &fine, 0, message));
    all_say(PHASE_STAGED, 0.5);
    rollout_tick(&rollout, &fine, 0.5);
}

static void save_whole_at_1(void)
{
    stage_at_0(&whole);
    assert_int_equal(rollout.state, ROLLOUT_TRYING);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_TRY);
    assert_int_equal(rollout_order(&rollout, (struct member){MEMBER_WORKER, 1}), ORDER_STAGE);
    say(chief, PHASE_TRIED, 0.6);
    rollout_tick(&rollout, &fine, 0.6);
    assert_int_equal(rollout.state, ROLLOUT_SAVING);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_SAVE);
    say(chief, PHASE_SAVED, 1);
    rollout_tick(&rollout, &fine, 1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
}

static void a_job_starts_anew_and_its_leader_last(void **state)
{
    (void)state;
    const struct member leader = {MEMBER_PS, 0};
    struct rollout_vitals vitals = fine;
    save_whole_at_1();
    for (int i = 0; i < rollout.count; i++) {
        const struct member who = rollout.members[i].who;
        if (who.role != leader.role || who.index != leader.index) {
            assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
            assert_int_equal(rollout_order(&rollout, who), ORDER_RESTART);
            rollout_delivered(&rollout, who);
            rollout_tick(&rollout, &fine, 1.1);
        }
    }
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
    /* Its next process finds this on disk. */
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &whole, 0.5, "", 2);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    all_are_in(2, 2.5);
    is_in(chief, 2, false, 2.5); /* it is still restoring */
    rollout_tick(&rollout, &vitals, 2.5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    is_in(chief, 2, true, 3);
    rollout_tick(&rollout, &vitals, 3);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.global_step += 10;
    all_are_in(2, 8.1);
    rollout_tick(&rollout, &vitals, 8.1);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

static void a_job_that_does_no_good_goes_back(void **state)
{
    (void)state;
    struct rollout_vitals vitals = fine;
    stage_at_0(&whole);
    say(chief, PHASE_FAILED, 0.7);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN); /* only worker 0 has tried it */

    save_whole_at_1();
    all_are_in(2, 2);
    rollout_tick(&rollout, &fine, 2);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.loss = NAN;
    rollout_tick(&rollout, &vitals, 3);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_RETURN);
    rollout_tick(&rollout, &fine, 4.5);
    assert_int_equal(rollout_order(&rollout, (struct member){MEMBER_PS, 0}), ORDER_RETURN);
    rollout_resume(&rollout, ROLLOUT_GOING_BACK, &whole, 0.5, "the loss", 5);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    all_are_in(1, 6);
    rollout_tick(&rollout, &fine, 6);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);
    assert_string_equal(rollout.reason, "the loss");

    /* A member that could not start in it reports that after it was brought back. */
    save_whole_at_1();
    all_are_in(2, 2);
    say((struct member){MEMBER_WORKER, 2}, PHASE_FAILED, 3);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);

    /* One that never returns does not hold up the others for ever. */
    rollout.state = ROLLOUT_IDLE;
    save_whole_at_1();
    rollout_tick(&rollout, &fine, 1 + ROLLOUT_SWITCH_S);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_non_null(strstr(rollout.reason, "did not restart"));
}

/* The members that are told to restart now. */
static int count_told(void)
{
    int told = 0;
    for (int i = 0; i < rollout.count; i++) {
        told += rollout_order(&rollout, rollout.members[i].who) == ORDER_RESTART;
    }
    return told;
}

static void machines_start_anew_in_waves(void **state)
{
    (void)state;
    const struct member canary = {MEMBER_WORKER, WORKERS - 1};
    struct rollout_vitals vitals = fine;
    stage_at_0(&local);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(count_told(), 1);
    assert_int_equal(rollout_order(&rollout, canary), ORDER_RESTART);
    int before = 1;
    for (int quarter = 4; quarter < 200 && rollout.state == ROLLOUT_SWITCHING; quarter++) {
        const double now_s = quarter / 4.0;
        int told = count_told();
        assert_true(told >= before && told <= 2 * before + 1);
        assert_true(told == 1 || now_s >= ROLLOUT_CANARY_S);
        before = told;
        for (int i = 0; i < rollout.count; i++) {
            const struct member who = rollout.members[i].who;
            is_in(who, rollout_order(&rollout, who) == ORDER_RESTART ? 2 : 1, true, now_s);
        }
        vitals.global_step += 10;
        rollout_tick(&rollout, &vitals, now_s);
    }
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);

    /* A canary that dies: no other member has noticed. */
    rollout.state = ROLLOUT_IDLE;
    stage_at_0(&local);
    say(canary, PHASE_FAILED, 1);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    all_are_in(1, 2);
    rollout_tick(&rollout, &fine, 2);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);
}

static void names_are_stored(void **state)
{
    (void)state;
    enum rollout_state got;
    for (int i = ROLLOUT_IDLE; i <= ROLLOUT_SAVING; i++) {
        assert_true(rollout_state_by_name(rollout_state_name((enum rollout_state)i), &got));
        assert_int_equal(got, i);
    }
    assert_false(rollout_state_by_name("else", &got));
}

/*
 * Whatever members report and however long it takes: nobody is told to switch before all that must have staged, and
 * once it is over, the state says which one version is in force. A worker that was off at the start, whether it has
 * returned or not, need not; all begin that way.
 */
static void anything_may_happen(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("anything_may_happen");
    double now_s = 0;
    double heard_s[PS + WORKERS];
    for (int i = 0; i < PS + WORKERS; i++) {
        heard_s[i] = -ROLLOUT_IDLE_TIMEOUT_S;
    }
    int without = 0;
    for (int run = 0; run < 300; run++) {
        bool staged[PS + WORKERS] = {false};
        bool must[PS + WORKERS];
        for (int i = 0; i < PS + WORKERS; i++) {
            const struct member who = rollout.members[i].who;
            must[i] = who.role == MEMBER_PS || who.index == 0 || now_s - heard_s[i] < ROLLOUT_IDLE_TIMEOUT_S;
        }
        rollout.state = ROLLOUT_IDLE;
        assert_true(rollout_begin(&rollout, &live, &fine, now_s, message));
        for (int event = 0; event < 400 && rollout.state != ROLLOUT_IDLE; event++) {
            struct rollout_vitals vitals = fine;
            int who = test_random_below(&random, PS + WORKERS);
            enum rollout_phase phase = (enum rollout_phase)test_random_below(&random, PHASE_LATE + 1);
            now_s += (double)test_random_below(&random, 100) / 50.0;
            vitals.global_step += (int64_t)(now_s * 100);
            vitals.loss = test_random_below(&random, 40) == 0 ? NAN : 0.5;
            if (test_random_below(&random, 3) > 0) { /* usually what is asked for */
                static const enum rollout_phase asked[] = {PHASE_NONE, PHASE_STAGED, PHASE_SWITCHED, PHASE_BACK,
                                                           PHASE_RESTORED};
                phase = asked[rollout_order(&rollout, rollout.members[who].who)];
            }
            enum rollout_state before = rollout.state;
            staged[who] = before == ROLLOUT_STAGING ? phase == PHASE_STAGED : staged[who];
            heard_s[who] = now_s;
            say(rollout.members[who].who, phase, now_s);
            rollout_tick(&rollout, &vitals, now_s);
            if (before == ROLLOUT_STAGING && rollout.state == ROLLOUT_SWITCHING) {
                for (int i = 0; i < PS + WORKERS; i++) {
                    const bool off = !must[i] && now_s - heard_s[i] >= ROLLOUT_IDLE_TIMEOUT_S;
                    assert_true(staged[i] || off);
                    without += off;
                }
            }
            assert_false(before >= ROLLOUT_GOING_BACK && rollout.state != ROLLOUT_IDLE &&
                         rollout.state < ROLLOUT_GOING_BACK);
            assert_false(before == ROLLOUT_STAGING && rollout.state == ROLLOUT_GOING_BACK);
            if (rollout.state == ROLLOUT_IDLE) {
                assert_int_equal(rollout.outcome, before == ROLLOUT_STAGING    ? OUTCOME_NOT_BEGUN
                                                  : before == ROLLOUT_WATCHING ? OUTCOME_DONE
                                                                               : OUTCOME_WENT_BACK);
            }
        }
        /* For a while only the leader is on, or all are. */
        now_s += 2 * ROLLOUT_IDLE_TIMEOUT_S;
        for (int i = 0; i < PS + WORKERS && test_random_below(&random, 2) > 0; i++) {
            heard_s[i] = now_s;
            say(rollout.members[i].who, PHASE_NONE, now_s);
        }
    }
    assert_true(without > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(goes_all_the_way, enter, leave),
        cmocka_unit_test_setup_teardown(the_job_is_done_while_it_is_watched, enter, leave),
        cmocka_unit_test_setup_teardown(slow_members_get_more_time, enter, leave),
        cmocka_unit_test_setup_teardown(one_at_a_time, enter, leave),
        cmocka_unit_test_setup_teardown(a_job_that_would_be_over_is_not_begun, enter, leave),
        cmocka_unit_test_setup_teardown(nothing_changes_before_all_have_staged, enter, leave),
        cmocka_unit_test_setup_teardown(goes_back_from_what_does_no_good, enter, leave),
        cmocka_unit_test_setup_teardown(losses_are_compared_with_those_of_the_model_that_is_changed, enter, leave),
        cmocka_unit_test_setup_teardown(a_loss_that_flickers_is_let_pass, enter, leave),
        cmocka_unit_test_setup_teardown(a_model_that_is_restored_while_members_switch_goes_back, enter, leave),
        cmocka_unit_test_setup_teardown(a_watch_waits_for_steps_that_tell, enter, leave),
        cmocka_unit_test_setup_teardown(steps_that_are_made_again_count, enter, leave),
        cmocka_unit_test_setup_teardown(a_watch_waits_for_members_that_are_not_ready, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_stood_still_blames_nobody, enter, leave),
        cmocka_unit_test_setup_teardown(who_was_away_catches_up, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_was_away_goes_back, enter, leave),
        cmocka_unit_test_setup_teardown(a_job_starts_anew_and_its_leader_last, enter, leave),
        cmocka_unit_test_setup_teardown(a_job_that_does_no_good_goes_back, enter, leave),
        cmocka_unit_test_setup_teardown(machines_start_anew_in_waves, enter, leave),
        cmocka_unit_test_setup_teardown(names_are_stored, enter, leave),
        cmocka_unit_test_setup_teardown(anything_may_happen, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
