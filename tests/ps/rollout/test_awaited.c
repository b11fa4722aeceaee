/* Whose silence holds up a rollout, and whose does not: who is listed or came by itself, was off, behind or late. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rollout/decide.h"

enum { PS = 2, WORKERS = 3, ROOM = 6 };

static const struct member leader = {MEMBER_PS, 0}, other_ps = {MEMBER_PS, 1}, chief = {MEMBER_WORKER, 0},
                           second = {MEMBER_WORKER, 1}, last = {MEMBER_WORKER, 2}, guest = {MEMBER_WORKER, 4},
                           other_guest = {MEMBER_WORKER, 5};
static const struct rollout_plan live = {.target = 2, .fallback = 1, .kind = ROLLOUT_LIVE, .healthy_s = 5},
                                 whole = {.target = 2, .fallback = 1, .kind = ROLLOUT_JOB, .healthy_s = 5},
                                 program = {.target = 2,
                                            .fallback = 1,
                                            .kind = ROLLOUT_LOCAL,
                                            .healthy_s = 5,
                                            .brings_program = true};

static struct rollout rollout;
static struct rollout_vitals vitals;
static char message[ROLLOUT_MESSAGE];

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
    const struct rollout_report report = {.phase = phase,
                                          .version = version,
                                          .target = rollout.target,
                                          .ready = true,
                                          .runs_target = version == 2,
                                          .steps = (int64_t)(now_s * 100),
                                          .message = ""};
    rollout_on_report(&rollout, who, &report, now_s);
}

static void listed_say(enum rollout_phase phase, uint64_t version, double now_s)
{
    for (int i = 0; i < PS + WORKERS; i++) {
        say(rollout.members[i].who, phase, version, now_s);
    }
    vitals.global_step += 10;
}

static void begin(const struct rollout_plan *plan, double now_s)
{
    assert_true(rollout_begin(&rollout, plan, &vitals, now_s, message));
}

static struct rollout_member *member(struct member who)
{
    return &rollout.members[who.role == MEMBER_PS ? who.index : PS + who.index];
}

static void tick(double now_s)
{
    rollout_tick(&rollout, &vitals, now_s);
}

static void who_was_never_heard_of_is_not_here(void **state)
{
    (void)state;
    assert_false(rollout_is_here(member(chief), 0));
    assert_false(rollout_is_here(member(chief), 5));
    say(chief, PHASE_NONE, 1, 0);
    assert_true(rollout_is_here(member(chief), 0));
    assert_true(rollout_is_here(member(chief), 9.75));
    assert_false(rollout_is_here(member(chief), 10));
    rollout_destroy(&rollout);
    assert_int_equal(rollout.count, 0);
    rollout_destroy(&rollout); /* there is nothing left */
}

/* A ps has no bit of its own: that of its number is a worker's. */
static void a_ps_that_is_off_or_behind_makes_no_worker_absent(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    listed_say(PHASE_NONE, 1, 10);
    member(other_ps)->heard_s = 0;
    begin(&live, 10);
    assert_false(rollout_is_absent(&rollout.absent, second));
    assert_true(member(other_ps)->awaited && member(second)->awaited);
    assert_true(rollout_abort(&rollout, 10, message));
    say(other_ps, PHASE_NONE, 3, 11);
    begin(&live, 11);
    assert_false(rollout_is_absent(&rollout.absent, second));
    assert_true(member(other_ps)->awaited && member(second)->awaited);
    assert_true(rollout_abort(&rollout, 11, message));
    say(second, PHASE_NONE, 3, 12);
    begin(&live, 12);
    assert_true(rollout_is_absent(&rollout.absent, second));
    assert_false(rollout_is_absent(&rollout.absent, last));
    assert_false(member(second)->awaited || member(second)->takes_part);
    assert_true(rollout_abort(&rollout, 12, message));
    assert_false(rollout_is_absent(&rollout.absent, second)); /* which is over with the rollout */
}

/* Only who is listed can be absent, however many more may join. */
static void who_may_join_is_not_absent(void **state)
{
    (void)state;
    rollout_destroy(&rollout);
    assert_true(rollout_create(&rollout, PS, WORKERS, ROLLOUT_MAX_LISTED + 100));
    listed_say(PHASE_NONE, 1, 0);
    rollout.members[rollout.count - 1].version = 7;
    begin(&live, 1);
    assert_false(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, WORKERS}));
    assert_int_equal(rollout_count_members(&rollout), PS + WORKERS);
    rollout_destroy(&rollout);
    assert_true(rollout_create(&rollout, PS, ROLLOUT_MAX_LISTED + 1, ROLLOUT_MAX_LISTED + 1));
    members_note_absent(&rollout, 1); /* the list has no bit for the last one */
    assert_true(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, ROLLOUT_MAX_LISTED - 1}));
    assert_false(rollout_is_absent(&rollout.absent, (struct member){MEMBER_WORKER, ROLLOUT_MAX_LISTED}));
}

/* It is there when a job that waits for others gets another config: it owes an answer like any member. */
static void who_is_there_of_a_waiting_job_is_awaited(void **state)
{
    (void)state;
    vitals.waits = true;
    listed_say(PHASE_NONE, 1, 0);
    say(guest, PHASE_NONE, 1, 0);
    begin(&live, 1);
    assert_true(member(second)->awaited);
    assert_true(member(guest)->takes_part && !member(guest)->awaited);
    listed_say(PHASE_STAGED, 1, 50);
    member(second)->phase = PHASE_NONE;
    tick(1 + ROLLOUT_STAGE_S);
    assert_string_equal(rollout.reason, "worker 1 did not stage it within 60 s");
}

static void a_restarted_leader_awaits_the_chief_and_every_ps(void **state)
{
    struct rollout_plan plan = whole;
    (void)state;
    plan.waited = true;
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", 0);
    assert_true(member(chief)->awaited && member(leader)->awaited && member(other_ps)->awaited);
    assert_false(member(second)->awaited || member(last)->awaited);
    say(leader, PHASE_STAGED, 2, 1);
    say(other_ps, PHASE_STAGED, 2, 1);
    tick(ROLLOUT_SWITCH_S);
    assert_string_equal(rollout.reason, "worker 0 did not restart within 60 s");
}

/* Both came by themselves. Who came late to one rollout is as good as others in the next. */
static void late_is_who_came_late_to_this_one(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&program, 0);
    listed_say(PHASE_STAGED, 1, 1);
    tick(1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    say(guest, PHASE_STAGED, 1, 2);
    say(other_guest, PHASE_STAGED, 1, 2);
    assert_true(member(other_guest)->is_late);
    assert_true(rollout_abort(&rollout, 3, message));
    listed_say(PHASE_BACK, 1, 3);
    say(guest, PHASE_BACK, 1, 3);
    say(other_guest, PHASE_BACK, 1, 3);
    tick(4);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    begin(&program, 5);
    assert_false(member(other_guest)->is_late);
    say(guest, PHASE_STAGED, 1, 6); /* it takes part from the beginning */
    assert_false(member(guest)->is_late);
}

/* In the first wave of a program, ordered to try it; each of those in its own architecture. */
static void try_with_guests(double now_s)
{
    listed_say(PHASE_NONE, 1, now_s);
    say(guest, PHASE_NONE, 1, now_s);
    say(other_guest, PHASE_NONE, 1, now_s);
    member(guest)->architecture = 1; /* the only one of its kind: a canary */
    begin(&program, now_s);
    for (int i = 0; i < rollout.count; i++) {
        if (rollout.members[i].takes_part) {
            rollout.members[i].phase = PHASE_STAGED;
        }
    }
    tick(now_s);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout_order(&rollout, guest), ORDER_RESTART);
    assert_int_equal(rollout_order(&rollout, last), ORDER_RESTART);
    assert_int_equal(rollout_order(&rollout, other_guest), ORDER_STAGE);
}

static void only_a_canary_s_silence_is_borne(void **state)
{
    (void)state;
    try_with_guests(100);
    listed_say(PHASE_STAGED, 1, 109);
    tick(109.75);
    assert_true(member(guest)->takes_part && member(other_guest)->takes_part);
    tick(110);
    assert_true(member(guest)->takes_part); /* it may be trying */
    assert_false(member(guest)->ready);
    assert_false(member(other_guest)->takes_part);
    for (int now_s = 115; now_s < 100 + ROLLOUT_SWITCH_S; now_s += 5) {
        listed_say(PHASE_STAGED, 1, now_s);
        say(last, PHASE_STAGED, 2, now_s);
        tick(now_s);
        assert_true(member(guest)->takes_part);
    }
    listed_say(PHASE_STAGED, 1, 100 + ROLLOUT_SWITCH_S - 1);
    say(last, PHASE_STAGED, 2, 100 + ROLLOUT_SWITCH_S - 1);
    tick(100 + ROLLOUT_SWITCH_S - 0.25);
    assert_true(member(guest)->takes_part);
    tick(100 + ROLLOUT_SWITCH_S);
    assert_false(member(guest)->takes_part);
    assert_true(rollout.wave_s == 100 + ROLLOUT_SWITCH_S); /* another has its time from now on */
}

/* Who is next in the order has not been told to try it, nor does anybody of a later wave try it first. */
static void who_is_no_canary_is_let_go(void **state)
{
    (void)state;
    for (int is_later = 0; is_later < 2; is_later++) {
        leave(NULL);
        assert_int_equal(enter(NULL), 0);
        say(leader, PHASE_NONE, 1, 100);
        say(other_ps, PHASE_NONE, 1, 100);
        say(chief, PHASE_NONE, 1, 100);
        say(guest, PHASE_NONE, 1, 100);
        begin(&program, 100);
        rollout.state = ROLLOUT_SWITCHING;
        rollout.wave_s = 100;
        rollout.wave = is_later ? 2 : 1; /* the chief has the first place, and the guest the second one */
        rollout.is_first_wave = !is_later;
        members_drop_silent(&rollout, 110);
        assert_false(member(guest)->takes_part);
    }
}

/* What is known of a first wave is over with its rollout: while the next one is staged, silence is just that. */
static void a_canary_of_the_rollout_before_is_none(void **state)
{
    (void)state;
    try_with_guests(100);
    assert_true(rollout_abort(&rollout, 101, message));
    listed_say(PHASE_BACK, 1, 102);
    say(guest, PHASE_BACK, 1, 102);
    say(other_guest, PHASE_BACK, 1, 102);
    tick(102);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    begin(&program, 103);
    member(guest)->architecture = 1;
    listed_say(PHASE_NONE, 1, 111);
    tick(112);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    assert_false(member(guest)->takes_part);
}

/* At the end of the time a listed one is named, whoever else is missing; who came by itself is left behind alone. */
static void who_came_by_itself_is_left_behind(void **state)
{
    (void)state;
    for (int missing = 0; missing < 2; missing++) {
        listed_say(PHASE_NONE, 1, 100);
        say(guest, PHASE_NONE, 1, 100);
        begin(&live, 100);
        for (int now_s = 105; now_s <= 100 + ROLLOUT_STAGE_S; now_s += 5) {
            listed_say(PHASE_STAGED, 1, now_s);
            if (missing) {
                say(last, PHASE_NONE, 1, now_s);
            }
            say(guest, PHASE_NONE, 1, now_s);
            if (now_s < 100 + ROLLOUT_STAGE_S) {
                tick(now_s);
                assert_int_equal(rollout.state, ROLLOUT_STAGING);
            }
        }
        tick(100 + ROLLOUT_STAGE_S);
        assert_int_equal(rollout.state, missing ? ROLLOUT_IDLE : ROLLOUT_SWITCHING);
        rollout_abort(&rollout, 200, message);
        rollout.state = ROLLOUT_IDLE;
    }
    assert_non_null(strstr(rollout.reason, "worker 2 did not stage it within 60 s"));
}

/* One that was off and came back is before others in the list, and no reason to go on without them. */
static void who_came_back_hides_nobody_who_is_awaited(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 100);
    member(second)->heard_s = -1;
    begin(&live, 100);
    for (int now_s = 105; now_s <= 100 + ROLLOUT_STAGE_S; now_s += 5) {
        listed_say(PHASE_STAGED, 1, now_s);
        say(second, PHASE_NONE, 1, now_s);
        say(last, PHASE_NONE, 1, now_s);
    }
    assert_true(member(second)->takes_part && !member(second)->awaited);
    tick(100 + ROLLOUT_STAGE_S);
    assert_int_equal(rollout.state, ROLLOUT_IDLE);
    assert_string_equal(rollout.reason, "worker 2 did not stage it within 60 s");
}

/* --- What a report does --- */

static void what_is_said_of_another_rollout_is_nothing(void **state)
{
    const struct rollout_report of_another = {
        .phase = PHASE_FAILED, .version = 1, .target = 9, .ready = true, .message = "can't"};
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&live, 0);
    rollout_on_report(&rollout, last, &of_another, 1);
    assert_int_equal(rollout.state, ROLLOUT_STAGING);
    assert_int_equal(member(last)->phase, PHASE_NONE);
    rollout_on_report(&rollout, (struct member){MEMBER_WORKER, 99}, &of_another, 1); /* who is not there says nothing */
    rollout_on_report(&rollout, (struct member){MEMBER_OPERATOR, 0}, &of_another, 1);
    assert_true(rollout_abort(&rollout, 2, message));
    say(last, PHASE_STAGED, 1, 3); /* nor does anybody of one that is over */
    assert_int_equal(member(last)->phase, PHASE_NONE);
}

static void a_failure_counts_while_there_is_a_way_forward(void **state)
{
    static const struct {
        enum rollout_kind kind;
        enum rollout_state state, next;
    } cases[] = {
        {ROLLOUT_JOB, ROLLOUT_STAGING, ROLLOUT_IDLE},          {ROLLOUT_JOB, ROLLOUT_TRYING, ROLLOUT_IDLE},
        {ROLLOUT_JOB, ROLLOUT_SAVING, ROLLOUT_IDLE},           {ROLLOUT_JOB, ROLLOUT_SWITCHING, ROLLOUT_GOING_BACK},
        {ROLLOUT_JOB, ROLLOUT_WATCHING, ROLLOUT_GOING_BACK},   {ROLLOUT_LIVE, ROLLOUT_WATCHING, ROLLOUT_WATCHING},
        {ROLLOUT_LIVE, ROLLOUT_SWITCHING, ROLLOUT_GOING_BACK}, {ROLLOUT_JOB, ROLLOUT_GOING_BACK, ROLLOUT_GOING_BACK}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        listed_say(PHASE_NONE, 1, 0);
        rollout.state = ROLLOUT_IDLE;
        begin(cases[i].kind == ROLLOUT_JOB ? &whole : &live, 0);
        rollout.state = cases[i].state;
        say(last, PHASE_FAILED, 1, 1);
        assert_int_equal(rollout.state, cases[i].next);
    }
}

/* --- What is refused --- */

static void what_is_not_begun(void **state)
{
    struct rollout_plan plan = whole;
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    vitals.training = false;
    assert_false(rollout_begin(&rollout, &whole, &vitals, 0, message));
    assert_string_equal(message, "the job is not training now: try again once `trainer status` shows that it is");
    vitals.training = true;
    vitals.global_step = 1200;
    plan.last_step = 1;
    assert_false(rollout_begin(&rollout, &plan, &vitals, 0, message));
    assert_string_equal(message,
                        "the job would be over after step 1, by train.train_steps or train.epochs, and would be "
                        "at step 1200 by then: raise them; to end the job now, stop worker 0, which saves it");
    plan = whole;
    plan.from = plan.to = (struct rollout_demand){.listed = WORKERS, .least = WORKERS};
    member(last)->heard_s = -1;
    assert_false(rollout_begin(&rollout, &plan, &vitals, 0, message));
    vitals.waits = true; /* it waits for them already */
    begin(&plan, 0);
}

/* Only a program goes on where ps 0 is in the target again: of a live change it knows nothing any more. */
static void a_restarted_leader_goes_on_with_a_program_alone(void **state)
{
    struct rollout_plan plan = live;
    (void)state;
    plan.leader_is_in_target = true;
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", 0);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    plan = program;
    plan.leader_is_in_target = true;
    rollout_resume(&rollout, ROLLOUT_WATCHING, &plan, 0.5, "", 0);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    const uint64_t changes = rollout.changes;
    rollout_resume(&rollout, ROLLOUT_SWITCHING, &plan, 0.5, "", 7);
    assert_true(rollout.changes > changes); /* the host stores it */
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout.ps_turn, PS_RESTARTS);
    assert_true(rollout.began_s == 7);
}

static void what_goes_on_is_kept(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&program, 0);
    assert_false(rollout_continue(&rollout, 0, message));
    rollout.state = ROLLOUT_SWITCHING;
    rollout.is_paused = true;
    const uint64_t changes = rollout.changes;
    assert_true(rollout_continue(&rollout, 5, message));
    assert_true(rollout.changes > changes && !rollout.is_paused && rollout.wave_s == 5);
}

/* --- From state to state --- */

static void a_job_that_waits_switches_where_it_stands(void **state)
{
    (void)state;
    vitals.waits = true;
    listed_say(PHASE_NONE, 1, 0);
    strcpy(member(last)->message, "of before");
    begin(&live, 0);
    assert_string_equal(member(last)->message, "");
    listed_say(PHASE_STAGED, 1, 1);
    tick(1);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    assert_int_equal(rollout.step, vitals.global_step);
    assert_int_equal(rollout_order_step(&rollout), 0);
}

/* One that only began to wait after the rollout is no such job: it must make steps. */
static void a_job_that_trained_must_go_on(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&live, 0);
    vitals.waits = true;
    tick(1);
    assert_false(rollout.waits || rollout_holds_job(&rollout));
}

/* What is tried is saved, too, before the last step is looked at; and all have their minute from the order on. */
static void a_job_is_saved_before_it_restarts(void **state)
{
    struct rollout_plan plan = whole;
    (void)state;
    plan.last_step = 1100;
    listed_say(PHASE_NONE, 1, 100);
    begin(&plan, 100);
    listed_say(PHASE_STAGED, 1, 101);
    tick(101);
    vitals.global_step = 1100;
    say(chief, PHASE_TRIED, 1, 102);
    tick(102);
    assert_int_equal(rollout.state, ROLLOUT_SAVING);
    vitals.global_step = 1099;
    say(chief, PHASE_SAVED, 1, 110);
    tick(110);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(110 + ROLLOUT_SWITCH_S - 0.25);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    tick(110 + ROLLOUT_SWITCH_S);
    assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
}

static void what_is_saved_at_the_last_step_does_not_restart(void **state)
{
    struct rollout_plan plan = whole;
    (void)state;
    plan.last_step = 1100;
    listed_say(PHASE_NONE, 1, 0);
    begin(&plan, 0);
    listed_say(PHASE_STAGED, 1, 1);
    tick(1);
    say(chief, PHASE_TRIED, 1, 2);
    tick(2);
    vitals.global_step = 1100;
    say(chief, PHASE_SAVED, 1, 3);
    tick(3);
    assert_int_equal(rollout.outcome, OUTCOME_NOT_BEGUN);
    assert_non_null(strstr(rollout.reason, "the job would be over after step 1100"));
}

/* Whoever takes no part need not hear of it. */
static void the_leader_waits_for_those_that_take_part(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&whole, 0);
    listed_say(PHASE_STAGED, 1, 1);
    tick(1);
    say(chief, PHASE_TRIED, 1, 2);
    tick(2);
    say(chief, PHASE_SAVED, 1, 3);
    tick(3);
    assert_int_equal(rollout.state, ROLLOUT_SWITCHING);
    for (int i = 1; i < PS + WORKERS; i++) {
        assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
        rollout_delivered(&rollout, rollout.members[i].who);
        tick(3.25);
    }
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
}

/* All workers run the program, and worker 0 has saved: who drops out for a moment now is no reason to wait. */
static void the_saved_job_restarts(void **state)
{
    const struct rollout_report unwell = {
        .version = 2, .target = 2, .phase = PHASE_SWITCHED, .runs_target = true, .steps = 1, .message = ""};
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&program, 0);
    listed_say(PHASE_STAGED, 1, 1);
    tick(1);
    rollout.wave = WORKERS;
    rollout.is_first_wave = false;
    rollout.ps_turn = PS_WAITS_FOR_SAVE;
    assert_int_equal(rollout_order(&rollout, chief), ORDER_SAVE);
    for (int i = 0; i < WORKERS; i++) {
        say((struct member){MEMBER_WORKER, i}, i == 0 ? PHASE_SAVED : PHASE_SWITCHED, 2, 2);
    }
    rollout_on_report(&rollout, last, &unwell, 2);
    tick(2);
    assert_int_equal(rollout.ps_turn, PS_RESTARTS);
    rollout.ps_turn = PS_WAITS_FOR_SAVE;
    assert_true(rollout_abort(&rollout, 3, message));
    assert_int_equal(rollout_order(&rollout, chief), ORDER_RETURN); /* there is nothing to save any more */
}

/* Without every ps, or without worker 0, there is no way back; other workers hear of it when they are back. */
static void the_way_back_waits_for_every_ps_and_the_chief(void **state)
{
    static const struct member missing[] = {{MEMBER_PS, 0}, {MEMBER_PS, 1}, {MEMBER_WORKER, 0}, {MEMBER_WORKER, 2}};
    (void)state;
    for (int i = 0; i < 4; i++) {
        rollout.state = ROLLOUT_IDLE;
        listed_say(PHASE_NONE, 1, 0);
        begin(&live, 0);
        listed_say(PHASE_STAGED, 1, 0);
        tick(0);
        assert_true(rollout_abort(&rollout, 1, message));
        for (int k = 0; k < PS + WORKERS; k++) {
            const struct member who = rollout.members[k].who;
            if (who.role != missing[i].role || who.index != missing[i].index) {
                say(who, PHASE_BACK, 1, 1000);
            }
        }
        tick(1000);
        assert_int_equal(rollout.state, i < 3 ? ROLLOUT_GOING_BACK : ROLLOUT_RESTORING);
    }
    tick(2000); /* and the restoring for worker 0 */
    assert_int_equal(rollout.state, ROLLOUT_RESTORING);
}

/* Listed or not, who was heard of may still be there: silence counts from then on, also where the clock began. */
static void who_is_silent_is_gone_after_ten_seconds(void **state)
{
    static const struct member silent[] = {{MEMBER_WORKER, 2}, {MEMBER_WORKER, 4}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        leave(NULL);
        assert_int_equal(enter(NULL), 0);
        listed_say(PHASE_NONE, 1, 0);
        say(guest, PHASE_NONE, 1, 0);
        begin(&live, 0);
        listed_say(PHASE_STAGED, 1, 0);
        say(guest, PHASE_STAGED, 1, 0);
        tick(0);
        assert_true(rollout_abort(&rollout, 5, message));
        for (int k = 0; k < rollout.count; k++) {
            const struct member who = rollout.members[k].who;
            if (rollout.members[k].takes_part && who.index != silent[i].index) {
                say(who, PHASE_BACK, 1, 9.75);
            }
        }
        tick(9.75);
        assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
        tick(10);
        assert_int_equal(rollout.state, ROLLOUT_RESTORING);
    }
}

/* Who came by itself and is there has a minute to go back. */
static void who_came_by_itself_holds_up_the_way_back_for_a_minute(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    say(guest, PHASE_NONE, 1, 0);
    begin(&live, 0);
    listed_say(PHASE_STAGED, 1, 1);
    say(guest, PHASE_STAGED, 1, 1);
    tick(1);
    assert_true(rollout_abort(&rollout, 5, message));
    for (int i = 0; 5 + 0.25 * i < 5 + ROLLOUT_RETURN_S; i++) {
        const double now_s = 5 + 0.25 * i;
        listed_say(PHASE_BACK, 1, now_s);
        say(guest, PHASE_STAGED, 1, now_s);
        tick(now_s);
        assert_int_equal(rollout.state, ROLLOUT_GOING_BACK);
    }
    tick(5 + ROLLOUT_RETURN_S);
    assert_int_equal(rollout.state, ROLLOUT_RESTORING);
}

/* Whatever members had done in the one before. */
static void a_rollout_begins_with_nothing(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 0);
    begin(&live, 0);
    listed_say(PHASE_STAGED, 1, 1);
    member(last)->is_out = true;
    assert_true(rollout_abort(&rollout, 2, message));
    begin(&live, 2);
    assert_false(member(last)->is_out);
    for (int i = 1; i < PS + WORKERS; i++) {
        say(rollout.members[i].who, PHASE_STAGED, 1, 3);
    }
    tick(3);
    assert_int_equal(rollout.state, ROLLOUT_STAGING); /* ps 0 has yet to stage this one */
}

/* One that failed, fell silent and comes again in the target is a member like the others. */
static void who_joins_again_is_not_out(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 1);
    say(guest, PHASE_NONE, 1, 1);
    assert_true(rollout_begin(&rollout, &program, &vitals, 1, message));
    struct rollout_member *one = &rollout.members[PS + 4];
    assert_true(one->takes_part);
    one->is_out = true;
    say(guest, PHASE_STAGED, 1, 2);
    assert_true(one->takes_part && one->is_out);
    one->takes_part = false;
    say(guest, PHASE_STAGED, 1, 3);
    assert_true(one->takes_part && !one->is_out);
}

/* Who is off is seen now, whatever was noted before. */
static void who_is_back_is_no_longer_off(void **state)
{
    (void)state;
    listed_say(PHASE_NONE, 1, 1);
    rollout.fallback = 1;
    members_note_absent(&rollout, 1 + ROLLOUT_IDLE_TIMEOUT_S);
    assert_true(rollout_is_absent(&rollout.absent, second) && rollout_is_absent(&rollout.absent, last));
    say(second, PHASE_NONE, 1, 20);
    members_note_absent(&rollout, 20);
    assert_false(rollout_is_absent(&rollout.absent, second));
    assert_true(rollout_is_absent(&rollout.absent, last));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(who_is_back_is_no_longer_off),
        TEST(who_is_silent_is_gone_after_ten_seconds),
        TEST(who_joins_again_is_not_out),
        TEST(a_rollout_begins_with_nothing),
        TEST(who_came_by_itself_holds_up_the_way_back_for_a_minute),
        TEST(who_was_never_heard_of_is_not_here),
        TEST(a_ps_that_is_off_or_behind_makes_no_worker_absent),
        TEST(who_may_join_is_not_absent),
        TEST(who_is_there_of_a_waiting_job_is_awaited),
        TEST(a_restarted_leader_awaits_the_chief_and_every_ps),
        TEST(late_is_who_came_late_to_this_one),
        TEST(only_a_canary_s_silence_is_borne),
        TEST(a_canary_of_the_rollout_before_is_none),
        TEST(who_is_no_canary_is_let_go),
        TEST(who_came_by_itself_is_left_behind),
        TEST(who_came_back_hides_nobody_who_is_awaited),
        TEST(what_is_said_of_another_rollout_is_nothing),
        TEST(a_failure_counts_while_there_is_a_way_forward),
        TEST(what_is_not_begun),
        TEST(a_restarted_leader_goes_on_with_a_program_alone),
        TEST(what_goes_on_is_kept),
        TEST(a_job_that_waits_switches_where_it_stands),
        TEST(a_job_that_trained_must_go_on),
        TEST(a_job_is_saved_before_it_restarts),
        TEST(the_saved_job_restarts),
        TEST(the_leader_waits_for_those_that_take_part),
        TEST(what_is_saved_at_the_last_step_does_not_restart),
        TEST(the_way_back_waits_for_every_ps_and_the_chief),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
