/* How long a rollout waits for what, to the second, and how far ahead it plans: not sooner, and not later. */
#include "tests/ps/rollout/deciding.h"

#include <math.h>
#include <string.h>

static const struct member leader = {MEMBER_PS, 0}, last = {MEMBER_WORKER, WORKERS - 1};
static struct rollout_vitals vitals;

/* All are there, and on a clock that begins at 0. */
static void begin_plan(const struct rollout_plan *plan)
{
    leave(NULL);
    assert_int_equal(enter(NULL), 0);
    vitals = fine;
    all_say(PHASE_NONE, 0);
    assert_true(rollout_begin(&rollout, plan, &vitals, 0, message));
}

static void begin(enum rollout_kind kind)
{
    begin_plan(&(struct rollout_plan){.target = 2, .fallback = 1, .kind = kind, .healthy_s = 5});
}

static void tick(double now_s)
{
    rollout_tick(&rollout, &vitals, now_s);
}

/* All but `silent` are heard of, in that version. */
static void others_are_in(struct member silent, uint64_t version, enum rollout_phase phase, double now_s)
{
    for (int i = 0; i < rollout.count; i++) {
        const struct member who = rollout.members[i].who;
        const struct rollout_report report = {
            .phase = phase, .version = version, .target = 2, .ready = true, .message = ""};
        if (who.role != silent.role || who.index != silent.index) {
            rollout_on_report(&rollout, who, &report, now_s);
        }
    }
}

static const struct member nobody = {MEMBER_NONE, 0};

static void all_but_last_say_staged(double now_s)
{
    others_are_in(last, 1, PHASE_STAGED, now_s);
}

/* The canary, after its restart. */
static void last_is(uint64_t version, bool ready, double now_s)
{
    const struct rollout_report report = {
        .phase = PHASE_SWITCHED, .version = version, .target = 2, .ready = ready, .message = ""};
    rollout_on_report(&rollout, last, &report, now_s);
}

/* Live, watched from 0 on. */
static void watch_from_0(void)
{
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0);
    tick(0);
    all_say(PHASE_SWITCHED, 0);
    tick(0);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
}

/* The whole job, ordered to restart at 0. */
static void restart_from_0(void)
{
    begin(ROLLOUT_JOB);
    all_say(PHASE_STAGED, 0);
    tick(0);
    say(chief, PHASE_TRIED, 0);
    tick(0);
    say(chief, PHASE_SAVED, 0);
    tick(0);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
}

static void gives_up(enum rollout_state next, const char *why)
{
    assert_int_equal(rollout.state, next);
    assert_string_equal(rollout.reason, why);
}

/* What is wrong with training counts at once, and what is late at the same time no more. */
static void two_reasons_at_once_are_one(void **state)
{
    (void)state;
    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 0);
    tick(0);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    for (int i = 1; i <= ROLLOUT_SWITCH_S; i++) {
        vitals.global_step += 10;
        all_say(PHASE_STAGED, i);
        vitals.loss = i == ROLLOUT_SWITCH_S ? NAN : 0.5;
        tick(i);
    }
    gives_up(ROLLOUT_GOING_BACK, "the loss is no longer finite, after step 1600");
}

/* What is late in the next wave neither: those that run the target already must be taken back. */
static void a_reason_that_counts_at_once_takes_all_back(void **state)
{
    (void)state;
    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 0);
    tick(0);
    for (int i = 0; i <= 5 + ROLLOUT_SWITCH_S; i++) {
        vitals.global_step += 10;
        others_are_in(last, 1, PHASE_STAGED, i);
        last_is(2, true, i);
        vitals.loss = i == 5 + ROLLOUT_SWITCH_S ? NAN : 0.5;
        tick(i);
    }
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    assert_non_null(strstr(rollout.reason, "the loss is no longer finite"));
}

/* --- Waves --- */

/* A canary is watched for as long as it says without a break, and others not at all. */
static void the_next_wave_follows_once_the_canary_is_well(void **state)
{
    (void)state;
    for (int breaks = 0; breaks < 2; breaks++) {
        const double settled_s = breaks ? 4 : 0;
        begin(ROLLOUT_LOCAL);
        all_say(PHASE_STAGED, 0);
        tick(0);
        last_is(2, true, 0);
        tick(0);
        last_is(2, !breaks, 2.5);
        tick(2.5);
        last_is(2, true, 4);
        tick(4);
        all_but_last_say_staged(4.5);
        tick(settled_s + 4.75);
        assert_int_equal(rollout.wave, 1);
        tick(settled_s + 5);
        assert_int_equal(rollout.wave, WORKERS);
        others_are_in(last, 2, PHASE_SWITCHED, settled_s + 5.25);
        tick(settled_s + 5.25);
        assert_true(rollout.wave > WORKERS);
    }
}

static void a_canary_has_a_minute_and_may_not_be_silent(void **state)
{
    (void)state;
    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 7);
    tick(7);
    for (int i = 8; i < 7 + ROLLOUT_SWITCH_S; i++) {
        vitals.global_step += 10;
        all_say(PHASE_STAGED, i);
        tick(i);
    }
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(7 + ROLLOUT_SWITCH_S);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 did not restart within 60 s");

    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 0);
    tick(0);
    last_is(2, true, 0.5);
    all_but_last_say_staged(9);
    vitals.global_step += 10;
    tick(10.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(10.5);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 was not heard from for 10 s");
}

static void a_standstill_counts_from_the_first_wave_on(void **state)
{
    (void)state;
    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 0);
    tick(0);
    tick(0.25);
    all_say(PHASE_STAGED, ROLLOUT_STANDING_S - 0.25);
    tick(ROLLOUT_STANDING_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(ROLLOUT_STANDING_S);
    gives_up(ROLLOUT_GOING_BACK, "no step was made for 20 s");
}

/* Only a live change belongs to one generation: a restart begins another one. */
static void a_restart_may_restore_the_model(void **state)
{
    (void)state;
    restart_from_0();
    vitals.generation++;
    tick(1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    others_are_in(nobody, 2, PHASE_SWITCHED, 2);
    tick(2);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
}

/* A job that did not wait, but restores as all have staged it, is not waited for, nor by machines that restart. */
static void only_a_live_change_of_a_job_that_waited_awaits_its_model(void **state)
{
    (void)state;
    begin(ROLLOUT_LIVE);
    vitals.training = false;
    all_say(PHASE_STAGED, 0);
    tick(0);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    begin(ROLLOUT_LOCAL);
    rollout.waited = true;
    vitals.training = false;
    all_say(PHASE_STAGED, 0);
    tick(0);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
}

/* While a loss looks bad, but not for long enough to go back, nobody else restarts. */
static void a_bad_loss_holds_the_next_wave(void **state)
{
    (void)state;
    begin(ROLLOUT_LOCAL);
    all_say(PHASE_STAGED, 0);
    tick(0);
    for (int i = 0; i <= 6; i++) {
        others_are_in(last, 1, PHASE_STAGED, i);
        rollout_on_report(
            &rollout, last,
            &(struct rollout_report){.phase = PHASE_SWITCHED, .version = 2, .target = 2, .ready = true, .message = ""},
            i);
        vitals.global_step += 10;
        vitals.loss = i == 5 ? 100 : 0.5;
        assert_int_equal(rollout.wave, 1);
        tick(i);
    }
    assert_int_equal(rollout.wave, WORKERS);
}

/* --- How far ahead --- */

static void the_step_lies_as_far_ahead_as_members_need(void **state)
{
    static const struct {
        double slowest_s, steps_per_s;
        int64_t ahead;
    } cases[] = {{0, 100, 20 + 200}, {0.5, 100, 20 + 350}, {2, 50, 20 + 400}, {6, 100, 20 + 2000}, {9, 1, 20 + 20}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin(ROLLOUT_LIVE);
        vitals.steps_per_s = cases[i].steps_per_s;
        say(chief, PHASE_NONE, 1);
        say(chief, PHASE_NONE, 1 + cases[i].slowest_s);
        all_say(PHASE_STAGED, 1 + cases[i].slowest_s);
        rollout.slowest_s = cases[i].slowest_s;
        tick(1 + cases[i].slowest_s);
        assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
        assert_int_equal(rollout_order_step(&rollout), vitals.global_step + cases[i].ahead);
        assert_int_equal(rollout.step, vitals.global_step + cases[i].ahead);
    }
}

/* Of a member that was silent before the rollout it says nothing. */
static void only_silence_while_it_is_staged_counts(void **state)
{
    (void)state;
    leave(NULL);
    assert_int_equal(enter(NULL), 0);
    vitals = fine;
    all_say(PHASE_NONE, 1);
    assert_true(rollout_begin(&rollout, &(struct rollout_plan){.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE},
                              &vitals, 8, message));
    all_say(PHASE_STAGED, 8.5);
    tick(8.5);
    assert_int_equal(rollout.step, vitals.global_step + 20 + 200);
    all_say(PHASE_STAGED, 12);
    assert_true(rollout.slowest_s == 0); /* nor while it is switched to */
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 3); /* heard of as it began, and not for three seconds */
    tick(3);
    assert_int_equal(rollout.step, vitals.global_step + 20 + 1100);
}

/* The step may be the last one but not lie behind it. */
static void the_last_step_is_too_late(void **state)
{
    struct rollout_plan plan = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5};
    (void)state;
    for (int more = 0; more < 2; more++) {
        plan.last_step = fine.global_step + 220 + more;
        begin_plan(&plan);
        all_say(PHASE_STAGED, 0);
        tick(0);
        assert_int_equal(rollout.state, more ? ROLLOUT_SWITCHING : ROLLOUT_IDLE);
    }
    assert_int_equal(rollout.step, fine.global_step + 220);
    plan.last_step = fine.global_step + 1;
    begin_plan(&plan);
    /* Without any step there is no end. */
    plan.kind = ROLLOUT_JOB;
    plan.last_step = 0;
    begin_plan(&plan);
    assert_int_equal(rollout.step, 0);
}

/* --- Before anything has changed --- */

static void what_a_waiting_job_does_not_restore(void **state)
{
    (void)state;
    leave(NULL);
    assert_int_equal(enter(NULL), 0);
    vitals = fine;
    vitals.waits = true;
    all_say(PHASE_NONE, 0);
    assert_true(rollout_begin(&rollout, &(struct rollout_plan){.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE},
                              &vitals, 0, message));
    all_say(PHASE_STAGED, 1);
    vitals.training = false; /* it has begun to restore */
    tick(ROLLOUT_STAGE_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    assert_true(rollout_holds_job(&rollout));
    all_say(PHASE_STAGED, ROLLOUT_STAGE_S);
    tick(ROLLOUT_STAGE_S);
    gives_up(ROLLOUT_IDLE, "worker 0 did not restore the model within 60 s");
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
}

static void staging_is_extended_by_what_moves_and_nothing_else_is(void **state)
{
    (void)state;
    begin(ROLLOUT_LIVE);
    rollout_note_transfer(&rollout, 30);
    all_say(PHASE_NONE, 60);
    tick(30 + ROLLOUT_STAGE_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    tick(30 + ROLLOUT_STAGE_S);
    gives_up(ROLLOUT_IDLE, "ps 0 did not stage it within 60 s");
    watch_from_0();
    rollout_note_transfer(&rollout, 4);
    vitals.global_step += 10;
    all_say(PHASE_SWITCHED, 5);
    tick(5);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

/* --- While members switch or restart --- */

static void ps_0_restarts_a_second_after_the_others_or_once_they_know(void **state)
{
    (void)state;
    restart_from_0();
    tick(0.75);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
    tick(1);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
    restart_from_0();
    for (int i = rollout.count - 1; i > 0; i--) {
        tick(0.25);
        assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
        rollout_delivered(&rollout, rollout.members[i].who);
    }
    rollout_delivered(&rollout, (struct member){MEMBER_WORKER, WORKERS}); /* there is no such member */
    tick(0.25);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
    /* On the way back, all are told again. */
    others_are_in(nobody, 2, PHASE_STAGED, 0.5);
    tick(0.5);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    assert_true(rollout_abort(&rollout, 0.5, message));
    assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
    tick(1.25);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
    assert_int_equal(rollout_order(&rollout, last), ORDER_RETURN);
    tick(1.5);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RETURN);
}

static void who_does_not_restart_in_a_minute(void **state)
{
    (void)state;
    restart_from_0();
    others_are_in(last, 2, PHASE_STAGED, 59);
    tick(ROLLOUT_SWITCH_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(ROLLOUT_SWITCH_S);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 did not restart within 60 s");
}

static void who_does_not_switch_in_a_minute(void **state)
{
    (void)state;
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0);
    tick(0);
    others_are_in(leader, 2, PHASE_SWITCHED, 59);
    tick(ROLLOUT_SWITCH_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(ROLLOUT_SWITCH_S);
    gives_up(ROLLOUT_GOING_BACK, "ps 0 did not switch within 60 s");
}

/* Those who have switched make no steps: others would wait for their step for ever. */
static void a_loss_that_is_not_finite_ends_it_while_some_wait_for_their_step(void **state)
{
    (void)state;
    static const double losses[] = {NAN, INFINITY};
    for (int i = 0; i < 2; i++) {
        begin(ROLLOUT_LIVE);
        all_say(PHASE_STAGED, 0);
        tick(0);
        others_are_in(leader, 2, PHASE_SWITCHED, 1);
        vitals.loss = losses[i];
        vitals.global_step = 1207;
        tick(1);
        gives_up(ROLLOUT_GOING_BACK, "the loss is no longer finite, after step 1207");
    }
    begin(ROLLOUT_LIVE);
    all_say(PHASE_STAGED, 0);
    tick(0);
    all_say(PHASE_SWITCHED, 1);
    vitals.loss = NAN;
    tick(1);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING); /* which is what finds it now */
    tick(1.25);
    gives_up(ROLLOUT_GOING_BACK, "the loss is no longer finite, after step 1000");
}

/* --- While it is watched --- */

static void it_is_watched_for_as_long_as_it_says(void **state)
{
    (void)state;
    watch_from_0();
    vitals.global_step += 100;
    all_say(PHASE_SWITCHED, 4.75);
    tick(4.75);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    tick(5);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

/* A step that was under way tells nothing of the target; the first one after those does. */
static void the_first_step_that_tells_ends_it(void **state)
{
    (void)state;
    for (int under_way = 0; under_way < 3; under_way++) {
        begin(ROLLOUT_LIVE);
        all_say(PHASE_STAGED, 0);
        tick(0);
        vitals.under_way = under_way;
        all_say(PHASE_SWITCHED, 0);
        tick(0);
        vitals.global_step += under_way;
        all_say(PHASE_SWITCHED, 6);
        tick(6);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
        vitals.global_step++;
        vitals.training = false; /* between two steps worker 0 restores */
        tick(6.25);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
        vitals.training = true;
        tick(6.5);
        assert_int_equal(rollout.state, ROLLOUT_IDLE);
    }
}

/* After a restore the proof begins there: not a step sooner than gradients that are under way allow. */
static void a_restore_begins_the_proof_anew(void **state)
{
    (void)state;
    watch_from_0();
    vitals.under_way = 2;
    vitals.global_step = 400;
    all_say(PHASE_SWITCHED, 3);
    tick(3);
    vitals.global_step = 402;
    all_say(PHASE_SWITCHED, 6);
    tick(6);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.global_step = 403;
    tick(6.25);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

static void a_loss_may_be_four_times_as_high_and_one_more(void **state)
{
    (void)state;
    watch_from_0();
    vitals.loss = 4 * 0.5 + 1;
    tick(1);
    tick(2.5);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.loss = 3.0625;
    tick(3);
    tick(3.75);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    tick(4);
    gives_up(ROLLOUT_GOING_BACK, "the loss is 3.062, and was 0.5 before");
    /* Also where the clock has just begun. */
    watch_from_0();
    vitals.loss = 4;
    tick(0);
    tick(0.5);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    tick(1);
    gives_up(ROLLOUT_GOING_BACK, "the loss is 4, and was 0.5 before");
}

/* What looks bad at the end of the watch is looked at for its second first. */
static void nothing_is_called_good_that_looks_bad(void **state)
{
    (void)state;
    watch_from_0();
    vitals.global_step += 100;
    all_say(PHASE_SWITCHED, 4.5);
    vitals.loss = 100;
    tick(4.5);
    tick(5.25);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    vitals.loss = 0.5;
    tick(5.375);
    assert_int_equal(rollout.outcome, OUTCOME_DONE);
}

static void silence_of_ten_seconds_is_too_much(void **state)
{
    (void)state;
    for (int is_leader = 0; is_leader < 2; is_leader++) {
        watch_from_0();
        others_are_in(is_leader ? leader : last, 2, PHASE_SWITCHED, 9);
        vitals.global_step += 10;
        rollout.healthy_s = 100;
        tick(ROLLOUT_IDLE_TIMEOUT_S - 0.25);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
        tick(ROLLOUT_IDLE_TIMEOUT_S);
        gives_up(ROLLOUT_GOING_BACK,
                 is_leader ? "ps 0 was not heard from for 10 s" : "worker 2 was not heard from for 10 s");
    }
    watch_from_0();
    rollout.healthy_s = 100;
    last_is(2, false, 1); /* it was not well before, either */
    others_are_in(last, 2, PHASE_SWITCHED, 9);
    vitals.global_step += 10;
    tick(10.75);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    tick(11);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 was not heard from for 10 s");
}

/* Only a restart of the whole job makes the first step wait for workers that are yet to come. */
static void a_standstill_is_one_after_twenty_seconds(void **state)
{
    static const enum rollout_kind kinds[] = {ROLLOUT_LIVE, ROLLOUT_JOB};
    (void)state;
    for (int i = 0; i < 2; i++) {
        const double most_s = kinds[i] == ROLLOUT_JOB ? ROLLOUT_STANDING_S + 7 : ROLLOUT_STANDING_S;
        if (kinds[i] == ROLLOUT_JOB) {
            restart_from_0();
            others_are_in(nobody, 2, PHASE_STAGED, 0);
            tick(0);
        } else {
            watch_from_0();
        }
        vitals.may_come_s = 7;
        others_are_in(nobody, 2, PHASE_SWITCHED, most_s - 0.25);
        tick(most_s - 0.25);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
        tick(most_s);
        gives_up(ROLLOUT_GOING_BACK, i == 0 ? "no step was made for 20 s" : "no step was made for 27 s");
    }
}

/* It is there, and not well: it has a minute more than the watch lasts. */
static void who_does_not_come_back_in_time(void **state)
{
    const struct rollout_report unwell = {
        .phase = PHASE_SWITCHED, .version = 2, .target = 2, .ready = false, .message = "restores"};
    (void)state;
    watch_from_0();
    for (int now_s = 1; now_s < 5 + ROLLOUT_RETURN_S; now_s++) {
        vitals.global_step += 10;
        others_are_in(last, 2, PHASE_SWITCHED, now_s);
        rollout_on_report(&rollout, last, &unwell, now_s);
        tick(now_s);
        assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    }
    tick(5 + ROLLOUT_RETURN_S);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 did not come back within 65 s: restores");
}

/* --- The leader itself --- */

/* However long it stood still, everybody has the time that was left, and who was not heard of still is not. */
static void all_deadlines_wait_for_a_leader_that_stood_still(void **state)
{
    (void)state;
    restart_from_0();
    others_are_in(last, 2, PHASE_STAGED, 50);
    rollout_extend_deadlines(&rollout, 100);
    tick(100 + ROLLOUT_SWITCH_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(100 + ROLLOUT_SWITCH_S);
    gives_up(ROLLOUT_GOING_BACK, "worker 2 did not restart within 60 s");

    begin(ROLLOUT_LIVE);
    rollout_extend_deadlines(&rollout, 100);
    tick(100 + ROLLOUT_STAGE_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    tick(100 + ROLLOUT_STAGE_S);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);

    watch_from_0();
    rollout.healthy_s = 1000;
    rollout_extend_deadlines(&rollout, 100);
    tick(100 + ROLLOUT_IDLE_TIMEOUT_S - 0.25);
    all_say(PHASE_SWITCHED, 100 + ROLLOUT_STANDING_S - 0.25);
    tick(100 + ROLLOUT_STANDING_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_WATCHING);
    tick(100 + ROLLOUT_STANDING_S);
    gives_up(ROLLOUT_GOING_BACK, "no step was made for 20 s");

    leave(NULL);
    assert_int_equal(enter(NULL), 0);
    say(last, PHASE_NONE, 0);
    rollout_extend_deadlines(&rollout, 100);
    assert_true(rollout_is_here(&rollout.members[rollout.count - 1], 100));
    assert_false(rollout_is_here(&rollout.members[rollout.count - 1], 110));
    assert_false(rollout_is_here(&rollout.members[0], 100));
    assert_false(rollout_is_here(&rollout.members[0], 5));
}

/* Each change must be on the disk before anybody hears of it: it is one that the host can see. */
static void each_change_of_state_is_seen_by_the_host(void **state)
{
    (void)state;
    uint64_t changes = rollout.changes;
    begin(ROLLOUT_LIVE);
    changes = rollout.changes;
    assert_true(changes > 0);
    all_say(PHASE_STAGED, 0);
    assert_int_equal(rollout.changes, changes);
    tick(0);
    assert_true(rollout.changes > changes);
    changes = rollout.changes;
    all_say(PHASE_SWITCHED, 0);
    tick(0);
    assert_true(rollout.changes > changes);
    changes = rollout.changes;
    tick(1);
    assert_int_equal(rollout.changes, changes);
    assert_true(rollout_abort(&rollout, 2, message));
    assert_true(rollout.changes > changes);
    changes = rollout.changes;
    all_say(PHASE_BACK, 2);
    tick(2);
    assert_int_equal(rollout.state, ROLLOUT_RESTORING);
    assert_true(rollout.changes > changes);
    changes = rollout.changes;
    assert_false(rollout_abort(&rollout, 2, message));
    assert_string_equal(message, "there is no rollout to abort: it is restoring");
    say(chief, PHASE_RESTORED, 3);
    tick(3);
    assert_true(rollout.changes > changes);
    assert_false(rollout_continue(&rollout, 3, message));
    assert_string_equal(message, "there is no rollout that is paused: it is idle");
}

/* The number of who is beyond the list of those that can be off says nothing. */
static void nobody_beyond_the_list_is_off(void **state)
{
    struct rollout_absent all;
    (void)state;
    memset(&all, 0xff, sizeof all);
    assert_true(rollout_is_absent(&all, (struct member){MEMBER_WORKER, ROLLOUT_MAX_LISTED - 1}));
    assert_false(rollout_is_absent(&all, (struct member){MEMBER_WORKER, ROLLOUT_MAX_LISTED}));
    assert_false(rollout_is_absent(&all, chief));
    assert_false(rollout_is_absent(&all, leader));
    assert_true(rollout_is_absent(&(struct rollout_absent){{2}}, (struct member){MEMBER_WORKER, 1}));
    assert_false(rollout_is_absent(&(struct rollout_absent){{2}}, (struct member){MEMBER_WORKER, 2}));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(two_reasons_at_once_are_one, enter, leave),
        cmocka_unit_test_setup_teardown(a_bad_loss_holds_the_next_wave, enter, leave),
        cmocka_unit_test_setup_teardown(a_restart_may_restore_the_model, enter, leave),
        cmocka_unit_test_setup_teardown(only_a_live_change_of_a_job_that_waited_awaits_its_model, enter, leave),
        TEST(a_reason_that_counts_at_once_takes_all_back),
        TEST(the_next_wave_follows_once_the_canary_is_well),
        TEST(a_canary_has_a_minute_and_may_not_be_silent),
        TEST(a_standstill_counts_from_the_first_wave_on),
        TEST(the_step_lies_as_far_ahead_as_members_need),
        TEST(only_silence_while_it_is_staged_counts),
        TEST(the_last_step_is_too_late),
        TEST(what_a_waiting_job_does_not_restore),
        TEST(staging_is_extended_by_what_moves_and_nothing_else_is),
        TEST(ps_0_restarts_a_second_after_the_others_or_once_they_know),
        TEST(who_does_not_restart_in_a_minute),
        TEST(who_does_not_switch_in_a_minute),
        TEST(a_loss_that_is_not_finite_ends_it_while_some_wait_for_their_step),
        TEST(it_is_watched_for_as_long_as_it_says),
        TEST(the_first_step_that_tells_ends_it),
        TEST(a_restore_begins_the_proof_anew),
        TEST(a_loss_may_be_four_times_as_high_and_one_more),
        TEST(nothing_is_called_good_that_looks_bad),
        TEST(silence_of_ten_seconds_is_too_much),
        TEST(a_standstill_is_one_after_twenty_seconds),
        TEST(who_does_not_come_back_in_time),
        TEST(all_deadlines_wait_for_a_leader_that_stood_still),
        TEST(each_change_of_state_is_seen_by_the_host),
        TEST(nobody_beyond_the_list_is_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
