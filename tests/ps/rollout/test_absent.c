/* What absent workers mean to a rollout: unlisted ones come and go, listed ones are waited for by the job. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rollout/decide.h"
#include "tests/random.h"

enum { PS = 1, WORKERS = 2, ROOM = 6 };
static const struct member guest = {MEMBER_WORKER, 4}, chief = {MEMBER_WORKER, 0}, last = {MEMBER_WORKER, 1};
static const struct rollout_plan live = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5},
                                 local = {.target = 2, .fallback = 1, .kind = ROLLOUT_LOCAL, .healthy_s = 5},
                                 whole = {.target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5};

static struct rollout rollout;
static struct rollout_vitals vitals;
static char message[256];

static int enter(void **state)
{
    (void)state;
    vitals = (struct rollout_vitals){.global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true};
    return !rollout_create(&rollout, PS, WORKERS, ROOM);
}

static int leave(void **state)
{
    (void)state;
    rollout_destroy(&rollout);
    return 0;
}

static void say(struct member who, enum rollout_phase phase, uint64_t version, double now_s)
{
    const struct rollout_report report = {
        .phase = phase, .version = version, .target = rollout.target, .ready = true, .message = "can't"};
    rollout_on_report(&rollout, who, &report, now_s);
}

/* All listed members. */
static void all_say(enum rollout_phase phase, uint64_t version, double now_s)
{
    for (int i = 0; i < PS + WORKERS; i++) {
        say(rollout.members[i].who, phase, version, now_s);
    }
    vitals.global_step += 100;
}

static void begin(const struct rollout_plan *plan, double now_s)
{
    assert_true(rollout_begin(&rollout, plan, &vitals, now_s, message));
}

static void until(enum rollout_state state, enum rollout_phase phase, uint64_t version, double *now_s, double end_s)
{
    while (rollout.state != state && *now_s < end_s) {
        all_say(phase, version, *now_s);
        rollout_tick(&rollout, &vitals, *now_s);
        *now_s += 0.5;
    }
    assert_int_equal(rollout.state, state);
}

static void one_that_is_here_is_asked_like_the_others(void **state)
{
    (void)state;
    char text[256];
    say(guest, PHASE_NONE, 1, 0);
    begin(&live, 1);
    all_say(PHASE_STAGED, 1, 2);
    rollout_tick(&rollout, &vitals, 2);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    rollout_describe(&rollout, text, sizeof text);
    assert_string_equal(text, "staging version 2: 3 of 4 members have it, waiting for worker 4");
    say(guest, PHASE_FAILED, 1, 3);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_string_equal(rollout.reason, "worker 4: can't");

    begin(&live, 4);
    all_say(PHASE_STAGED, 1, 5);
    say(guest, PHASE_STAGED, 1, 5);
    rollout_tick(&rollout, &vitals, 5);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    all_say(PHASE_SWITCHED, 2, 6);
    rollout_tick(&rollout, &vitals, 6);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout_order(&rollout, guest), ORDER_SWITCH);
    say(guest, PHASE_SWITCHED, 2, 7);
    rollout_tick(&rollout, &vitals, 7);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
}

/* In whichever phase it vanishes, it delays the rollout by the idle timeout and no more. */
static void one_that_goes_keeps_nobody(void **state)
{
    (void)state;
    double now_s = 1;
    say(guest, PHASE_NONE, 1, 0);
    begin(&live, now_s);
    until(ROLLOUT_SWITCHING, PHASE_STAGED, 1, &now_s, ROLLOUT_IDLE_TIMEOUT_S + 2);
    say(guest, PHASE_STAGED, 1, now_s); /* back, and gone again */
    until(ROLLOUT_WATCHING, PHASE_SWITCHED, 2, &now_s, now_s + ROLLOUT_IDLE_TIMEOUT_S + 2);
    say(guest, PHASE_SWITCHED, 2, now_s);
    until(ROLLOUT_IDLE, PHASE_SWITCHED, 2, &now_s, now_s + ROLLOUT_IDLE_TIMEOUT_S + 2);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);

    now_s = 100;
    say(guest, PHASE_NONE, 1, now_s);
    begin(&whole, now_s);
    all_say(PHASE_STAGED, 1, now_s);
    say(guest, PHASE_STAGED, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    say(chief, PHASE_TRIED, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    say(chief, PHASE_SAVED, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    until(ROLLOUT_IDLE, PHASE_STAGED, 2, &now_s, 100 + 5 + ROLLOUT_IDLE_TIMEOUT_S + 2);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

static void one_that_comes_later_takes_part_once_it_can(void **state)
{
    (void)state;
    double now_s = 2;
    begin(&live, 1);
    until(ROLLOUT_SWITCHING, PHASE_STAGED, 1, &now_s, 3);
    say(guest, PHASE_NONE, 1, now_s);
    say(guest, PHASE_FAILED, 1, now_s); /* only its own concern */
    until(ROLLOUT_WATCHING, PHASE_SWITCHED, 2, &now_s, now_s + 1);
    say(guest, PHASE_STAGED, 1, now_s);
    assert_int_equal(rollout_order(&rollout, guest), ORDER_SWITCH);
    assert_int_equal(rollout_count_members(&rollout), PS + WORKERS + 1);
    for (int i = 0; i < 7; i++) {
        all_say(PHASE_SWITCHED, 2, ++now_s);
        say(guest, PHASE_STAGED, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    say(guest, PHASE_SWITCHED, 2, now_s);
    until(ROLLOUT_IDLE, PHASE_SWITCHED, 2, &now_s, now_s + 2);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);

    /* One that already has the new version is waited for, too, while all go back. */
    begin(&whole, now_s);
    rollout.state = ROLLOUT_GOING_BACK;
    all_say(PHASE_BACK, 1, now_s);
    say(guest, PHASE_NONE, 2, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_int_equal(rollout_order(&rollout, guest), ORDER_RETURN);
    say(guest, PHASE_BACK, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
}

static void it_is_the_canary_while_it_stays(void **state)
{
    (void)state;
    say(guest, PHASE_NONE, 1, 0);
    begin(&local, 1);
    all_say(PHASE_STAGED, 1, 2);
    say(guest, PHASE_STAGED, 1, 2);
    rollout_tick(&rollout, &vitals, 2);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout_order(&rollout, guest), ORDER_RESTART);
    assert_int_equal(rollout_order(&rollout, last), ORDER_STAGE);
    for (int now_s = 3; now_s <= 2 + ROLLOUT_IDLE_TIMEOUT_S; now_s++) {
        all_say(PHASE_STAGED, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
    }
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout.wave, 1);
    assert_int_equal(rollout_order(&rollout, last), ORDER_RESTART);
    assert_int_equal(rollout_order(&rollout, chief), ORDER_STAGE);
    say((struct member){MEMBER_WORKER, 5}, PHASE_NONE, 1, 2 + ROLLOUT_IDLE_TIMEOUT_S); /* not asked yet */
    assert_int_equal(rollout_order(&rollout, (struct member){MEMBER_WORKER, 5}), ORDER_STAGE);
}

/* Worker 1 is absent, and the job waits for it. */
static void begin_waiting(const struct rollout_plan *plan, double now_s)
{
    vitals.waits = true;
    say((struct member){MEMBER_PS, 0}, PHASE_NONE, 1, now_s);
    say(chief, PHASE_NONE, 1, now_s);
    begin(plan, now_s);
}

static void they_say(enum rollout_phase phase, uint64_t version, bool ready, double now_s)
{
    const struct rollout_report report = {
        .phase = phase, .version = version, .target = rollout.target, .ready = ready, .message = ""};
    rollout_on_report(&rollout, (struct member){MEMBER_PS, 0}, &report, now_s);
    rollout_on_report(&rollout, chief, &report, now_s);
    rollout_tick(&rollout, &vitals, now_s);
}

static void a_job_that_waits_is_changed_at_once(void **state)
{
    (void)state;
    begin_waiting(&live, 1);
    assert_true(rollout_holds_job(&rollout));
    they_say(PHASE_STAGED, 1, false, 2);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout_order_step(&rollout), 0);
    assert_true(rollout_holds_job(&rollout));
    they_say(PHASE_SWITCHED, 2, false, 3);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    assert_false(rollout_holds_job(&rollout));
    /* It keeps waiting: that is no worse than before, and proves nothing. */
    for (int now_s = 4; now_s < 4 + 3 * ROLLOUT_STANDING_S; now_s++) {
        they_say(PHASE_SWITCHED, 2, false, now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    vitals.waits = false;
    for (int now_s = 64; now_s < 68; now_s++) {
        vitals.global_step += 10;
        they_say(PHASE_SWITCHED, 2, true, now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    vitals.global_step += 10;
    they_say(PHASE_SWITCHED, 2, true, 68.5);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

static void steps_are_asked_for_once_it_has_begun(void **state)
{
    (void)state;
    begin_waiting(&live, 1);
    they_say(PHASE_STAGED, 1, false, 2);
    they_say(PHASE_SWITCHED, 2, false, 3);
    vitals.waits = false;
    for (int now_s = 4; rollout.state == ROLLOUT_WATCHING && now_s < 60; now_s++) {
        they_say(PHASE_SWITCHED, 2, true, now_s);
    }
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_string_equal(rollout.reason, "no step was made for 20 s");
}

static void a_leader_that_starts_anew_remembers_that_the_job_waited(void **state)
{
    (void)state;
    const struct rollout_plan waited = {
        .target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5, .waited = true};
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &waited, 0.5, "", 1);
    vitals.waits = true;
    they_say(PHASE_NONE, 2, true, 2); /* worker 1 is not needed */
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    rollout.state = ROLLOUT_IDLE;
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &whole, 0.5, "", 1);
    they_say(PHASE_NONE, 2, true, 2);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
}

/* A listed worker that is off when the rollout begins. */
static void one_that_is_off_keeps_nobody(void **state)
{
    (void)state;
    char text[256];
    const struct member ps = {MEMBER_PS, 0};
    const struct rollout_plan *const plans[] = {&live, &local, &whole};
    const double now_s = 100;
    for (int i = 0; i < 3; i++) {
        all_say(PHASE_NONE, 1, 0);
        say(ps, PHASE_NONE, 1, now_s);
        say(chief, PHASE_NONE, 1, now_s);
        begin(plans[i], now_s);
        rollout_describe(&rollout, text, sizeof text);
        assert_string_equal(
            text, "staging version 2: 0 of 2 members have it, waiting for ps 0; without worker 1, which is off");
        say(ps, PHASE_STAGED, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        assert_int_equal(rollout.state, ROLLOUT_STAGING); /* the chief is needed */
        say(chief, PHASE_STAGED, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        assert_int_equal(rollout.state, plans[i] == &whole ? ROLLOUT_TRYING : ROLLOUT_SWITCHING);
        rollout.state = ROLLOUT_IDLE;

        say(last, PHASE_NONE, 1, now_s - ROLLOUT_IDLE_TIMEOUT_S + 0.5);
        begin(plans[i], now_s); /* silent for a moment only: it may just be starting */
        say(ps, PHASE_STAGED, 1, now_s);
        say(chief, PHASE_STAGED, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        assert_int_equal(rollout.state, ROLLOUT_STAGING);
        rollout.state = ROLLOUT_IDLE;
    }
}

/* Worker 1 is off, as the record tells the leader's next process. */
static struct rollout_plan switch_without_the_last(double now_s)
{
    for (int i = 0; i < PS + WORKERS - 1; i++) {
        say(rollout.members[i].who, PHASE_NONE, 1, now_s);
    }
    begin(&whole, now_s);
    const struct rollout_plan plan = {.target = 2,
                                      .fallback = 1,
                                      .kind = ROLLOUT_JOB,
                                      .healthy_s = 5,
                                      .waited = rollout.waited,
                                      .absent = rollout.absent};
    for (int i = 0; i < PS + WORKERS - 1; i++) {
        say(rollout.members[i].who, PHASE_STAGED, 1, now_s);
    }
    rollout_tick(&rollout, &vitals, now_s);
    say(chief, PHASE_TRIED, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    say(chief, PHASE_SAVED, 1, now_s);
    rollout_tick(&rollout, &vitals, now_s);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    rollout_destroy(&rollout);
    assert_true(rollout_create(&rollout, PS, WORKERS, ROOM));
    return plan;
}

static void a_leader_that_starts_anew_remembers_who_was_off(void **state)
{
    (void)state;
    double now_s = 100;
    struct rollout_plan plan = switch_without_the_last(now_s);
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", now_s);
    they_say(PHASE_NONE, 2, true, now_s + 1);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    for (int i = 0; i < 6; i++) {
        vitals.global_step += 10;
        they_say(PHASE_NONE, 2, true, now_s + 2 + i);
    }
    assert_int_equal(rollout.outcome, OUTCOME_DONE);

    /* Without the record it would be waited for. */
    plan.absent = (struct rollout_absent){{0}};
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", now_s);
    they_say(PHASE_NONE, 2, true, now_s + 1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    rollout_tick(&rollout, &vitals, now_s + ROLLOUT_SWITCH_S);
    assert_string_equal(rollout.reason, "worker 1 did not restart within 60 s");

    /* While all go back it is not waited for either, and the next rollout checks again who is off. */
    rollout.state = ROLLOUT_IDLE;
    plan = switch_without_the_last(now_s);
    rollout_resume(&rollout, ROLLOUT_GOING_BACK, &plan, 0.5, "the loss", now_s);
    they_say(PHASE_NONE, 1, true, now_s + 1);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);
    say(last, PHASE_NONE, 1, now_s + 2);
    begin(&whole, now_s + 2);
    they_say(PHASE_STAGED, 1, true, now_s + 3);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
}

/*
 * ps 0 was restarted while all went back, and has heard from nobody: worker 1 may still be in the target and slow to
 * report it. It is waited for as long as the idle timeout, and no longer.
 */
static void a_leader_that_starts_anew_waits_to_hear_of_all_before_it_is_over(void **state)
{
    (void)state;
    const double now_s = 100;
    rollout_resume(&rollout, ROLLOUT_GOING_BACK, &whole, 0.5, "the loss", now_s);
    they_say(PHASE_NONE, 1, true, now_s + 0.5);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    say(last, PHASE_NONE, 2, now_s + 1);
    they_say(PHASE_NONE, 1, true, now_s + 1);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    say(last, PHASE_NONE, 1, now_s + 2);
    they_say(PHASE_NONE, 1, true, now_s + 2);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);

    rollout_destroy(&rollout);
    assert_true(rollout_create(&rollout, PS, WORKERS, ROOM));
    rollout_resume(&rollout, ROLLOUT_GOING_BACK, &whole, 0.5, "the loss", now_s);
    they_say(PHASE_NONE, 1, true, now_s + ROLLOUT_IDLE_TIMEOUT_S - 0.5);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    they_say(PHASE_NONE, 1, true, now_s + ROLLOUT_IDLE_TIMEOUT_S);
    assert_int_equal(rollout.outcome, OUTCOME_WENT_BACK);
}

/* Whenever it returns, it takes part as soon as it can, and holds up nobody if it leaves again. */
static void one_that_was_off_comes_back_meanwhile(void **state)
{
    (void)state;
    double now_s = 100;
    struct rollout_plan plan = switch_without_the_last(now_s);
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", now_s);
    say(last, PHASE_NONE, 1, ++now_s);
    assert_int_equal(rollout_order(&rollout, last), ORDER_RESTART);
    assert_int_equal(rollout_count_members(&rollout), PS + WORKERS - 1);
    say(last, PHASE_STAGED, 1, ++now_s);
    they_say(PHASE_NONE, 2, true, now_s);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING); /* until it has restarted */
    say(last, PHASE_NONE, 2, ++now_s);
    they_say(PHASE_NONE, 2, true, now_s);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    for (int i = 0; i < ROLLOUT_IDLE_TIMEOUT_S + 1 && rollout.state == ROLLOUT_WATCHING; i++) {
        vitals.global_step += 10;
        they_say(PHASE_NONE, 2, true, ++now_s);
    }
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
    assert_int_equal(rollout_catch_up(&rollout, 2, 1), ORDER_CATCH_UP);
}

/* If min_workers needs one that is off, a restart of the whole job would end it for now. */
static void a_job_that_would_wait_is_not_begun(void **state)
{
    (void)state;
    struct rollout_plan plan = whole;
    plan.from = (struct rollout_demand){.listed = WORKERS, .least = 1};
    plan.to = (struct rollout_demand){.listed = WORKERS, .least = 2};
    say((struct member){MEMBER_PS, 0}, PHASE_NONE, 1, 100);
    say(chief, PHASE_NONE, 1, 100);
    assert_false(rollout_begin(&rollout, &plan, &vitals, 100, message));
    assert_string_equal(message,
                        "worker 1 is off, and the job would restart and wait for 2 workers (min_workers), of which 1 "
                        "can come: start it, or roll out a lower cluster.min_workers first");
    assert_int_equal(rollout.target, 0); /* the record of the previous one stays */
    plan.kind = ROLLOUT_LIVE;            /* this restarts nobody */
    begin(&plan, 100);
    rollout.state = ROLLOUT_IDLE;
    plan.kind = ROLLOUT_JOB;
    plan.to = (struct rollout_demand){.listed = 1, .least = 1}; /* it is no longer listed */
    begin(&plan, 100);
    rollout.state = ROLLOUT_IDLE;
    plan.from.least = 2; /* but would be again if all go back */
    assert_false(rollout_begin(&rollout, &plan, &vitals, 100, message));
    plan.kind = ROLLOUT_LOCAL;
    plan.brings_program = true; /* every ps restarts for that, too */
    assert_false(rollout_begin(&rollout, &plan, &vitals, 100, message));
    say(last, PHASE_NONE, 3, 100); /* it could not follow the others */
    assert_false(rollout_begin(&rollout, &plan, &vitals, 100, message));
    assert_non_null(strstr(message, "worker 1 is behind, and the job would restart"));
    say(last, PHASE_NONE, 1, 100);
    begin(&plan, 100);
    rollout.state = ROLLOUT_IDLE;
    plan.from.least = WORKERS + 1; /* all that are listed are there: others will come by themselves, as before */
    begin(&plan, 100);
}

/* It can't run the version in force, and the next one may fix that: it must not hold that up. */
static void one_that_can_not_follow_is_not_waited_for(void **state)
{
    (void)state;
    char text[512];
    double now_s = 100;
    const struct rollout_plan next = {.target = 3, .fallback = 2, .kind = ROLLOUT_LOCAL, .healthy_s = 5};
    all_say(PHASE_NONE, 2, now_s);
    say(last, PHASE_NONE, 1, now_s);
    begin(&next, now_s);
    rollout_describe(&rollout, text, sizeof text);
    assert_non_null(strstr(text, "; without worker 1, which is behind"));
    while (rollout.state == ROLLOUT_STAGING && now_s < 100 + ROLLOUT_STAGE_S) {
        say((struct member){MEMBER_PS, 0}, PHASE_STAGED, 2, now_s);
        say(chief, PHASE_STAGED, 2, now_s);
        say(last, PHASE_NONE, 1, now_s);
        rollout_tick(&rollout, &vitals, now_s);
        now_s += 0.5;
    }
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
}

/* The first step of a synchronous job waits for workers that it has not seen yet. */
static void steps_may_wait_for_one_that_is_off(void **state)
{
    (void)state;
    double now_s = 100;
    const struct rollout_plan plan = switch_without_the_last(now_s);
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", now_s);
    they_say(PHASE_NONE, 2, true, now_s);
    vitals.may_come_s = 30;
    while (now_s < 100 + ROLLOUT_STANDING_S + 29) {
        they_say(PHASE_NONE, 2, true, ++now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    they_say(PHASE_NONE, 2, true, ++now_s);
    assert_string_equal(rollout.reason, "no step was made for 50 s");
}

static void many_that_are_off_are_named_in_short(void **state)
{
    (void)state;
    char text[256];
    rollout_destroy(&rollout);
    assert_true(rollout_create(&rollout, 1, ROLLOUT_MAX_LISTED, ROLLOUT_MAX_LISTED));
    begin(&live, 100);
    rollout_describe(&rollout, text, sizeof text);
    assert_string_equal(text,
                        "staging version 2: 0 of 2 members have it, waiting for ps 0; without worker 1, worker 2, "
                        "worker 3 and 1020 more, which are off");
    assert_false(rollout_is_absent(&rollout.absent, chief));
    assert_true(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, ROLLOUT_MAX_LISTED - 1}));
    assert_false(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, MEMBER_MAX_INDEX}));
    assert_false(rollout_is_absent(&rollout.absent, (struct member){MEMBER_PS, 1}));
    for (int i = 4; i < ROLLOUT_MAX_LISTED; i++) {
        say((struct member){MEMBER_WORKER, i}, PHASE_NONE, 1, 101);
    }
    rollout_describe(&rollout, text, sizeof text);
    assert_non_null(strstr(text, "; without worker 1, worker 2 and worker 3, which are off"));
}

/* A member that mostly does as it is told. */
static void obey(struct test_random *random, struct member who, uint64_t *version, double now_s)
{
    static const enum rollout_phase phases[] = {
        [ORDER_NOTHING] = PHASE_NONE, [ORDER_STAGE] = PHASE_STAGED,   [ORDER_TRY] = PHASE_TRIED,
        [ORDER_SAVE] = PHASE_SAVED,   [ORDER_RESTART] = PHASE_STAGED, [ORDER_RETURN] = PHASE_BACK};
    const enum rollout_order order = rollout_order(&rollout, who);
    enum rollout_phase phase = phases[order];
    *version = order == ORDER_RESTART ? rollout.target : order == ORDER_RETURN ? rollout.fallback : *version;
    if (test_random_below(random, 20) == 0) {
        phase = test_random_below(random, 3) > 0 ? PHASE_NONE : PHASE_FAILED;
    }
    rollout_delivered(&rollout, who);
    say(who, phase, *version, now_s);
}

/*
 * Whatever members report and however often the leader restarts: nobody is told to restart before all present members
 * have staged, nothing is aborted because one that was off is silent, and some rollouts succeed without it.
 */
static void anything_may_happen_to_a_job(void **state)
{
    (void)state;
    enum { SERVERS = 2, LISTED = 4, ALL = SERVERS + LISTED };
    struct test_random random = test_random_begin("anything_may_happen_to_a_job");
    int without = 0;
    for (int run = 0; run < 300; run++) {
        bool off[ALL], staged[ALL] = {false};
        uint64_t version[ALL];
        double now_s = 100;
        rollout_destroy(&rollout);
        assert_true(rollout_create(&rollout, SERVERS, LISTED, LISTED));
        for (int i = 0; i < ALL; i++) {
            off[i] = i > SERVERS && test_random_below(&random, 2) == 0;
            version[i] = 1;
            say(rollout.members[i].who, PHASE_NONE, 1, off[i] ? now_s - ROLLOUT_IDLE_TIMEOUT_S : now_s);
        }
        begin(&whole, now_s);
        for (int event = 0; event < 600 && rollout.state != ROLLOUT_IDLE; event++) {
            const enum rollout_state before = rollout.state;
            const int i = test_random_below(&random, ALL);
            now_s += (double)test_random_below(&random, 100) / 100.0;
            vitals.global_step += 10;
            vitals.loss = test_random_below(&random, 200) == 0 ? NAN : 0.5;
            if (before == ROLLOUT_SWITCHING &&
                test_random_below(&random, 10) == 0) { /* reports received so far are lost */
                struct rollout_plan plan = whole;
                plan.absent = rollout.absent;
                rollout_destroy(&rollout);
                assert_true(rollout_create(&rollout, SERVERS, LISTED, LISTED));
                rollout_resume(&rollout, before, &plan, 0.5, "", now_s);
            }
            if (!off[i] || test_random_below(&random, 20) == 0) {
                obey(&random, rollout.members[i].who, &version[i], now_s);
                staged[i] = staged[i] || rollout.members[i].phase == PHASE_STAGED;
            }
            rollout_tick(&rollout, &vitals, now_s);
            for (int k = 0; k < ALL && before == ROLLOUT_STAGING && rollout.state == ROLLOUT_TRYING; k++) {
                assert_true(staged[k] || off[k]);
            }
            const bool gives_up = before < ROLLOUT_GOING_BACK || before > ROLLOUT_RESTORING;
            if (gives_up && rollout.state != before && rollout.reason[0] != '\0') {
                unsigned worker = 0;
                char did = 0;
                const bool named = sscanf(rollout.reason, "worker %u%c", &worker, &did) == 2 && did == ' ';
                assert_false(named && off[SERVERS + worker]);
            }
        }
        for (int i = 0; i < ALL && rollout.state == ROLLOUT_IDLE && rollout.outcome == OUTCOME_DONE; i++) {
            without += off[i] && version[i] == 1;
        }
    }
    assert_true(without > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_that_is_here_is_asked_like_the_others, enter, leave),
        cmocka_unit_test_setup_teardown(one_that_goes_keeps_nobody, enter, leave),
        cmocka_unit_test_setup_teardown(one_that_comes_later_takes_part_once_it_can, enter, leave),
        cmocka_unit_test_setup_teardown(it_is_the_canary_while_it_stays, enter, leave),
        cmocka_unit_test_setup_teardown(a_job_that_waits_is_changed_at_once, enter, leave),
        cmocka_unit_test_setup_teardown(steps_are_asked_for_once_it_has_begun, enter, leave),
        cmocka_unit_test_setup_teardown(one_that_is_off_keeps_nobody, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_starts_anew_remembers_who_was_off, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_starts_anew_waits_to_hear_of_all_before_it_is_over, enter, leave),
        cmocka_unit_test_setup_teardown(one_that_was_off_comes_back_meanwhile, enter, leave),
        cmocka_unit_test_setup_teardown(a_job_that_would_wait_is_not_begun, enter, leave),
        cmocka_unit_test_setup_teardown(one_that_can_not_follow_is_not_waited_for, enter, leave),
        cmocka_unit_test_setup_teardown(steps_may_wait_for_one_that_is_off, enter, leave),
        cmocka_unit_test_setup_teardown(many_that_are_off_are_named_in_short, enter, leave),
        cmocka_unit_test_setup_teardown(anything_may_happen_to_a_job, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_starts_anew_remembers_that_the_job_waited, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
