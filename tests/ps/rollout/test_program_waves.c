/*
 * A rollout that brings a program: in waves, every ps last, and only working members count. Members and clock are the
 * test's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/rollout/decide.h"

enum { PS = 2, WORKERS = 10, ALL = PS + WORKERS, ROOM = ALL + 1 };

static const double TICK_S = 0.25;
static const struct member chief = {MEMBER_WORKER, 0}, leader = {MEMBER_PS, 0};
static const struct rollout_plan plan = {
    .target = 2,
    .fallback = 1,
    .kind = ROLLOUT_LOCAL,
    .healthy_s = 1,
    .brings_program = true,
    .waves = {.count = 4, .items = {1, ROLLOUT_PERCENT | 10, ROLLOUT_PERCENT | 50, ROLLOUT_PERCENT | 100}}};

/* The members, which do at once what they are told. */
static struct {
    struct rollout rollout;
    double now_s;
    struct rollout_vitals vitals;
    uint64_t version[ROOM];
    bool runs[ROOM];  /* the new program */
    bool other, idle; /* those in the target run some other program; make no steps */
    enum rollout_phase saved;
    int architecture[ROOM];
    double speed[2], steps[ROOM];   /* steps a second in the old and in the new program */
    bool fails[ROOM], failed[ROOM]; /* in the new program, so that it is back in the old one */
    bool silent[ROOM];
} fleet;

static int enter_with(int room)
{
    char message[256];
    memset(&fleet, 0, sizeof fleet);
    fleet.speed[0] = fleet.speed[1] = 100;
    fleet.vitals = (struct rollout_vitals){.global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true};
    for (int i = 0; i < ROOM; i++) {
        fleet.version[i] = 1;
    }
    const struct rollout_report here = {.version = 1, .ready = true, .message = ""};
    bool done = rollout_create(&fleet.rollout, PS, WORKERS, room);
    for (int i = 0; done && i < PS + room; i++) { /* otherwise it would count as off */
        rollout_on_report(&fleet.rollout, fleet.rollout.members[i].who, &here, 0);
    }
    return !done || !rollout_begin(&fleet.rollout, &plan, &fleet.vitals, 0, message);
}

static int enter(void **state)
{
    (void)state;
    return enter_with(WORKERS);
}

/* With one more worker, which the config does not list. */
static int enter_elastic(void **state)
{
    (void)state;
    return enter_with(WORKERS + 1);
}

static int leave(void **state)
{
    (void)state;
    rollout_destroy(&fleet.rollout);
    return 0;
}

static void obey(int i)
{
    const struct member who = fleet.rollout.members[i].who;
    const enum rollout_order order = rollout_order(&fleet.rollout, who);
    rollout_delivered(&fleet.rollout, who);
    fleet.failed[i] = fleet.failed[i] || (order == ORDER_RESTART && fleet.fails[i]);
    if (fleet.silent[i] || fleet.failed[i]) {
        return;
    }
    if (order == ORDER_RESTART || order == ORDER_RETURN) {
        fleet.steps[i] = fleet.runs[i] == (order == ORDER_RESTART) ? fleet.steps[i] : 0;
        fleet.version[i] = order == ORDER_RESTART ? 2 : 1;
        fleet.runs[i] = order == ORDER_RESTART;
    } else if (order == ORDER_SAVE) {
        assert_true(who.role == chief.role && who.index == chief.index);
        fleet.saved = PHASE_SAVED;
    }
}

static void say(int i)
{
    const struct member who = fleet.rollout.members[i].who;
    const bool is_chief = who.role == chief.role && who.index == chief.index;
    const bool failed = fleet.failed[i];
    const struct rollout_report report = {.phase = failed                                   ? PHASE_FAILED
                                                   : is_chief && fleet.saved == PHASE_SAVED ? PHASE_SAVED
                                                   : fleet.version[i] == 2                  ? PHASE_SWITCHED
                                                                                            : PHASE_STAGED,
                                          .version = fleet.version[i],
                                          .target = 2,
                                          .ready = true,
                                          .runs_target = fleet.runs[i] && !fleet.other,
                                          .architecture = fleet.architecture[i],
                                          .steps = fleet.runs[i] && fleet.idle ? 0 : 10 + (int64_t)fleet.steps[i],
                                          .message = failed ? "it failed" : ""};
    fleet.steps[i] += TICK_S * fleet.speed[fleet.runs[i]];
    if (fleet.silent[i]) {
        return;
    }
    rollout_on_report(&fleet.rollout, who, &report, fleet.now_s);
}

static int count(int first, int last)
{
    int there = 0;
    for (int i = first; i < last; i++) {
        there += fleet.version[i] == 2;
    }
    return there;
}

static void tick(void)
{
    fleet.now_s += TICK_S;
    fleet.vitals.global_step += 25;
    for (int i = fleet.rollout.count - 1; i >= 0; i--) {
        say(i);
        obey(i);
    }
    rollout_tick(&fleet.rollout, &fleet.vitals, fleet.now_s);
}

static void workers_go_in_waves_and_every_ps_last(void **state)
{
    (void)state;
    int most = 0, seen[8], waves = 0;
    double canary_s = -1;
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
        const int workers = count(PS, ALL), ps = count(0, PS);
        if (workers > most) {
            assert_true(waves < 8);
            seen[waves++] = most = workers;
            canary_s = waves == 2 ? fleet.now_s - canary_s : canary_s < 0 ? fleet.now_s : canary_s;
        }
        assert_true(workers == 0 || fleet.version[ALL - 1] == 2); /* the canary is the last worker */
        assert_true(ps == 0 || (workers == WORKERS && fleet.saved == PHASE_SAVED));
        assert_true(fleet.version[0] == 1 || fleet.version[1] == 2); /* the leader goes last */
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ALL), ALL);
    assert_int_equal(waves, 3); /* 1 is 10% of 10 */
    assert_int_equal(seen[0], 1);
    assert_int_equal(seen[1], 5);
    assert_int_equal(seen[2], 10);
    assert_true(canary_s >= 1); /* it was watched */
}

/* The canary reports the version but runs another program, or makes no step: nobody follows it. */
static void what_does_not_work_goes_no_further(void **state)
{
    (void)state;
    int most = 0;
    for (int i = 0; i < 800 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
        most = count(0, ALL) > most ? count(0, ALL) : most;
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_int_equal(most, 1);
    assert_int_equal(count(0, ALL), 0);
}

static void another_program_does_not_count(void **state)
{
    fleet.other = true;
    what_does_not_work_goes_no_further(state);
}

static void a_program_without_steps_does_not_count(void **state)
{
    fleet.idle = true;
    what_does_not_work_goes_no_further(state);
}

/* If it fell silent it would not be missed. */
static void who_comes_and_goes_is_no_canary(void **state)
{
    (void)state;
    while (count(0, ROOM) == 0) {
        tick();
    }
    assert_int_equal(fleet.version[ALL - 1], 2);
    assert_int_equal(fleet.version[ALL], 1);
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ROOM), ROOM);
}

/* ps 0 was killed, and has come back in this version of the two. */
static void restart_leader(uint64_t version)
{
    struct rollout_plan known = plan;
    const enum rollout_state state = fleet.rollout.state;
    known.leader_is_in_target = version == 2;
    rollout_destroy(&fleet.rollout);
    assert_true(rollout_create(&fleet.rollout, PS, WORKERS, WORKERS));
    rollout_resume(&fleet.rollout, state, &known, 0.5, "", fleet.now_s);
}

static void a_leader_that_comes_back_in_the_target_goes_on(void **state)
{
    (void)state;
    while (fleet.version[0] == 1) {
        tick();
    }
    assert_int_equal(fleet.rollout.state, ROLLOUT_SWITCHING);
    restart_leader(2);
    assert_int_equal(rollout_order(&fleet.rollout, chief), ORDER_RESTART);
    for (int i = 0; i < 100 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ALL), ALL);
}

static void a_leader_that_died_before_its_turn_goes_back(void **state)
{
    (void)state;
    while (count(PS, ALL) < 5) {
        tick();
    }
    restart_leader(1);
    assert_int_equal(rollout_order(&fleet.rollout, chief), ORDER_RETURN);
    for (int i = 0; i < 100 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_int_equal(count(0, ALL), 0);
}

/* Its new program died twice: it is back in the old one, and takes the others back. */
static void a_leader_that_its_program_killed_goes_back(void **state)
{
    (void)state;
    while (fleet.version[0] == 1) {
        tick();
    }
    fleet.version[0] = 1;
    fleet.runs[0] = false;
    restart_leader(1);
    assert_int_equal(rollout_order(&fleet.rollout, leader), ORDER_STAGE); /* until all have heard of it */
    for (int i = 0; i < 100 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_int_equal(count(0, ALL), 0);
}

/* While pieces of it are being sent, nobody is late. */
static void staging_takes_as_long_as_the_program_moves(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        fleet.now_s += 30;
        rollout_note_transfer(&fleet.rollout, fleet.now_s);
        for (int k = 0; k < ALL; k++) {
            const struct rollout_report nothing_yet = {.version = 1, .target = 2, .ready = true, .message = ""};
            rollout_on_report(&fleet.rollout, fleet.rollout.members[k].who, &nothing_yet, fleet.now_s);
        }
        rollout_tick(&fleet.rollout, &fleet.vitals, fleet.now_s);
        assert_int_equal(fleet.rollout.state, ROLLOUT_STAGING);
    }
    rollout_tick(&fleet.rollout, &fleet.vitals, fleet.now_s + ROLLOUT_STAGE_S);
    assert_int_equal(fleet.rollout.state, ROLLOUT_IDLE);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_NOT_BEGUN);
}

/* --- A canary of each architecture --- */

static void each_architecture_has_a_canary(void **state)
{
    (void)state;
    for (int i = PS; i < PS + 4; i++) { /* workers 0 to 3 */
        fleet.architecture[i] = 1;
    }
    fleet.architecture[PS] = 2; /* worker 0 alone */
    while (count(0, ALL) == 0) {
        tick();
    }
    assert_int_equal(count(0, ALL), 3);
    assert_int_equal(fleet.version[PS], 2);
    assert_int_equal(fleet.version[PS + 3], 2);
    assert_int_equal(fleet.version[ALL - 1], 2);
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
        assert_true(count(0, PS) == 0 || count(PS, ALL) == WORKERS);
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ALL), ALL);
}

enum { SECOND = PS + 1 }; /* worker 1, of the same architecture as the unlisted one */

/* Until the unlisted worker has the order to try it: others are off, and worker 1 comes after the rollout began. */
static void begin_with_a_canary_that_comes_and_goes(void)
{
    char message[256];
    const struct rollout_report here = {.version = 1, .ready = true, .message = ""};
    rollout_destroy(&fleet.rollout);
    assert_true(rollout_create(&fleet.rollout, PS, WORKERS, WORKERS + 1));
    for (int i = 0; i < ROOM; i++) {
        fleet.silent[i] = i > SECOND && i < ALL;
        if (!fleet.silent[i] && i != SECOND) {
            rollout_on_report(&fleet.rollout, fleet.rollout.members[i].who, &here, 0);
        }
    }
    fleet.architecture[SECOND] = fleet.architecture[ALL] = 1;
    assert_true(rollout_begin(&fleet.rollout, &plan, &fleet.vitals, 0, message));
    while (fleet.version[ALL] != 2) {
        tick();
    }
}

/* Both came by themselves, and the order has been given: the late one's higher index does not change that. */
static void who_comes_late_is_no_canary(void **state)
{
    (void)state;
    char message[256];
    const struct rollout_report here = {.version = 1, .ready = true, .message = ""};
    rollout_destroy(&fleet.rollout);
    assert_true(rollout_create(&fleet.rollout, PS, WORKERS, WORKERS + 1));
    for (int i = 0; i < ROOM; i++) {
        fleet.silent[i] = i > SECOND;
        if (i < SECOND) {
            rollout_on_report(&fleet.rollout, fleet.rollout.members[i].who, &here, 0);
        }
    }
    fleet.architecture[SECOND] = fleet.architecture[ALL] = 1;
    fleet.idle = true;
    assert_true(rollout_begin(&fleet.rollout, &plan, &fleet.vitals, 0, message));
    while (fleet.version[SECOND] != 2) {
        tick();
    }
    fleet.silent[ALL] = false;
    for (int i = 0; i < 20; i++) {
        tick();
        assert_int_equal(fleet.version[ALL], 1);
    }
    fleet.idle = false;
    while (fleet.version[ALL] != 2) {
        assert_int_not_equal(fleet.rollout.state, ROLLOUT_IDLE);
        tick();
    }
}

/* It hangs, and would not be missed; the next one of its architecture does not try before it has had time to report. */
static void a_canary_that_fell_silent_has_time_to_come_back(void **state)
{
    (void)state;
    begin_with_a_canary_that_comes_and_goes();
    fleet.silent[ALL] = true;
    const double silent_s = fleet.now_s;
    while (fleet.version[SECOND] != 2) {
        tick();
        assert_true(fleet.now_s < silent_s + 2 * ROLLOUT_SWITCH_S);
    }
    assert_true(fleet.now_s >= silent_s + ROLLOUT_SWITCH_S - 1);
}

/* It works in the new program, and leaves while another canary is still starting: no reason to abort either. */
static void a_canary_that_goes_when_it_works_is_followed_by_another(void **state)
{
    (void)state;
    begin_with_a_canary_that_comes_and_goes();
    fleet.version[PS] = 1; /* worker 0 takes a while to restart */
    fleet.runs[PS] = false;
    fleet.silent[PS] = true;
    tick();
    assert_true(rollout_is_in(&fleet.rollout, &fleet.rollout.members[ALL]));
    fleet.silent[ALL] = true;
    const double silent_s = fleet.now_s;
    while (fleet.now_s < silent_s + 2 * ROLLOUT_IDLE_TIMEOUT_S) {
        tick();
        assert_int_equal(fleet.rollout.state, ROLLOUT_SWITCHING);
    }
    fleet.silent[PS] = false;
    while (fleet.version[SECOND] != 2) {
        tick();
        assert_int_equal(fleet.rollout.state, ROLLOUT_SWITCHING);
        assert_true(fleet.rollout.is_first_wave);
        assert_true(fleet.now_s < silent_s + 2 * ROLLOUT_SWITCH_S);
    }
    assert_true(fleet.now_s >= silent_s + ROLLOUT_SWITCH_S - 1);
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

/* A fleet that runs a program keeps that program's waves in its manifests; they don't apply to configs. */
static void a_config_does_not_go_by_the_waves_of_a_program(void **state)
{
    (void)state;
    char message[256];
    struct rollout_plan config = plan;
    config.brings_program = false;
    assert_true(rollout_abort(&fleet.rollout, 0, message));
    assert_true(rollout_begin(&fleet.rollout, &config, &fleet.vitals, 0, message));
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ALL), ALL);
}

/* --- Speed --- */

/* The fleet has trained for a while, and gets a program with a bound on speed that makes this many steps a second. */
static void begin_at_speed(uint32_t least_speed, double speed)
{
    char message[256];
    struct rollout_plan bound = plan;
    bound.waves.least_speed = least_speed;
    assert_true(rollout_abort(&fleet.rollout, 0, message));
    for (int i = 0; i < 40; i++) {
        tick();
    }
    fleet.speed[1] = speed;
    assert_true(rollout_begin(&fleet.rollout, &bound, &fleet.vitals, fleet.now_s, message));
}

static int most_until_its_end(void)
{
    int most = 0;
    for (int i = 0; i < 800 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
        most = count(0, ALL) > most ? count(0, ALL) : most;
    }
    return most;
}

static void a_program_that_is_much_slower_goes_no_further_than_its_canary(void **state)
{
    (void)state;
    begin_at_speed(50, 30);
    const double began_s = fleet.now_s;
    assert_int_equal(most_until_its_end(), 1);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_non_null(strstr(fleet.rollout.reason, "worker 9 makes "));
    assert_non_null(strstr(fleet.rollout.reason, "less than 50%"));
    assert_true(fleet.now_s - began_s < 30);
}

/* With one second per sample, ten steps are counted for longer than a canary may be slow: they may be few by chance. */
static void one_slow_count_ends_no_rollout(void **state)
{
    (void)state;
    fleet.speed[0] = 1;
    begin_at_speed(80, 0.7);
    const struct rollout_member *canary = &fleet.rollout.members[ALL - 1];
    for (int i = 0; i < 800 && !(canary->pace.of_target && canary->pace.rate > 0); i++) {
        tick();
    }
    assert_true(canary->pace.rate < 0.8 * canary->pace.before);
    fleet.speed[1] = 1.1;
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

/* Of some ten steps a few may be missing by chance, even twice; of hundreds not. */
static void a_few_steps_less_prove_nothing(void **state)
{
    (void)state;
    fleet.speed[0] = 2;
    begin_at_speed(80, 1.5);
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

static void many_steps_less_do(void **state)
{
    (void)state;
    begin_at_speed(80, 70);
    const double began_s = fleet.now_s;
    assert_int_equal(most_until_its_end(), 1);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_true(fleet.now_s - began_s < 30);
}

static void a_program_that_is_a_little_slower_goes_on(void **state)
{
    (void)state;
    begin_at_speed(50, 70);
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

static void speed_may_have_no_bound(void **state)
{
    (void)state;
    begin_at_speed(0, 30);
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

/* What slows all down is not the program's fault, unless all wait for each other. */
static void what_slows_the_others_too_is_not_held_against_it(void **state)
{
    (void)state;
    begin_at_speed(50, 30);
    fleet.speed[0] = 30;
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

static void a_canary_that_all_wait_for_is_slow(void **state)
{
    (void)state;
    begin_at_speed(50, 30);
    fleet.speed[0] = 30;
    fleet.vitals.in_step = true;
    assert_int_equal(most_until_its_end(), 1);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
}

/* --- A budget --- */

static void begin_with_budget(uint32_t budget)
{
    char message[256];
    struct rollout_plan bound = plan;
    bound.waves.budget = budget;
    assert_true(rollout_abort(&fleet.rollout, 0, message));
    assert_true(rollout_begin(&fleet.rollout, &bound, &fleet.vitals, 0, message));
}

static void no_more_restart_at_once_than_the_budget_allows(void **state)
{
    (void)state;
    begin_with_budget(ROLLOUT_PERCENT | 20);
    int before = 0;
    for (int i = 0; i < 400 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        tick();
        const int workers = count(PS, ALL);
        assert_true(workers - before <= 2);
        before = workers;
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

/* Worker 6 can't follow. Until the operator decides, nobody else restarts; then the rollout continues without it. */
static void the_first_that_fails_pauses_the_rollout(void **state)
{
    (void)state;
    char message[256], text[512];
    begin_with_budget(2);
    fleet.fails[PS + 6] = true;
    while (!fleet.rollout.is_paused) {
        assert_int_not_equal(fleet.rollout.state, ROLLOUT_IDLE);
        tick();
    }
    for (int i = 0; i < 4; i++) { /* those of its wave */
        tick();
    }
    const int there = count(0, ALL);
    for (int i = 0; i < 1000; i++) {
        tick();
        assert_int_equal(count(0, ALL), there);
    }
    rollout_describe(&fleet.rollout, text, sizeof text);
    assert_non_null(strstr(text, "version 2 is paused"));
    assert_non_null(strstr(text, "worker 6: it failed"));
    assert_true(rollout_continue(&fleet.rollout, fleet.now_s, message));
    assert_false(rollout_continue(&fleet.rollout, fleet.now_s, message));
    most_until_its_end();
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
    assert_int_equal(count(0, ALL), ALL - 1);
    assert_int_equal(fleet.version[PS + 6], 1);
}

static void who_comes_after_all_ends_the_pause(void **state)
{
    (void)state;
    begin_with_budget(2);
    while (count(PS, ALL) < 3) {
        tick();
    }
    fleet.silent[PS + 6] = true; /* of the next wave */
    while (!fleet.rollout.is_paused) {
        assert_int_not_equal(fleet.rollout.state, ROLLOUT_IDLE);
        tick();
    }
    fleet.silent[PS + 6] = false;
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

/* Others of its wave that restart meanwhile have their time again. */
static void a_pause_is_nobody_s_delay(void **state)
{
    (void)state;
    begin_with_budget(2);
    while (count(PS, ALL) < 3) {
        tick();
    }
    fleet.silent[PS + 5] = fleet.silent[PS + 6] = true; /* of the next wave */
    while (!fleet.rollout.is_paused) {
        assert_int_not_equal(fleet.rollout.state, ROLLOUT_IDLE);
        tick();
    }
    for (int i = 0; i < 400; i++) {
        tick();
        assert_true(fleet.rollout.is_paused && fleet.rollout.members[PS + 5].is_out);
    }
    fleet.silent[PS + 5] = false;
    while (fleet.rollout.is_paused) {
        tick();
    }
    for (int i = 0; i < (int)((ROLLOUT_SWITCH_S - 1) / TICK_S); i++) {
        tick();
        assert_false(fleet.rollout.is_paused);
    }
    fleet.silent[PS + 6] = false;
    assert_int_equal(most_until_its_end(), ALL);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_DONE);
}

static void one_more_than_the_budget_and_all_go_back(void **state)
{
    (void)state;
    begin_with_budget(2);
    fleet.fails[PS + 7] = fleet.fails[PS + 6] = fleet.fails[PS + 5] = true;
    for (int i = 0; i < 800 && fleet.rollout.state != ROLLOUT_IDLE; i++) {
        char message[256];
        tick();
        rollout_continue(&fleet.rollout, fleet.now_s, message); /* the operator insists */
    }
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
    assert_int_equal(count(0, ALL), 0);
}

/* The budget does not apply to canaries. */
static void a_canary_that_fails_ends_it(void **state)
{
    (void)state;
    begin_with_budget(5);
    fleet.fails[ALL - 1] = true;
    assert_int_equal(most_until_its_end(), 0);
    assert_int_equal(fleet.rollout.outcome, OUTCOME_WENT_BACK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(workers_go_in_waves_and_every_ps_last, enter, leave),
        cmocka_unit_test_setup_teardown(another_program_does_not_count, enter, leave),
        cmocka_unit_test_setup_teardown(a_program_without_steps_does_not_count, enter, leave),
        cmocka_unit_test_setup_teardown(who_comes_and_goes_is_no_canary, enter_elastic, leave),
        cmocka_unit_test_setup_teardown(who_comes_late_is_no_canary, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_comes_back_in_the_target_goes_on, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_died_before_its_turn_goes_back, enter, leave),
        cmocka_unit_test_setup_teardown(a_leader_that_its_program_killed_goes_back, enter, leave),
        cmocka_unit_test_setup_teardown(staging_takes_as_long_as_the_program_moves, enter, leave),
        cmocka_unit_test_setup_teardown(each_architecture_has_a_canary, enter, leave),
        cmocka_unit_test_setup_teardown(a_canary_that_fell_silent_has_time_to_come_back, enter_elastic, leave),
        cmocka_unit_test_setup_teardown(a_canary_that_goes_when_it_works_is_followed_by_another, enter_elastic, leave),
        cmocka_unit_test_setup_teardown(a_config_does_not_go_by_the_waves_of_a_program, enter, leave),
        cmocka_unit_test_setup_teardown(a_program_that_is_much_slower_goes_no_further_than_its_canary, enter, leave),
        cmocka_unit_test_setup_teardown(one_slow_count_ends_no_rollout, enter, leave),
        cmocka_unit_test_setup_teardown(a_few_steps_less_prove_nothing, enter, leave),
        cmocka_unit_test_setup_teardown(many_steps_less_do, enter, leave),
        cmocka_unit_test_setup_teardown(a_program_that_is_a_little_slower_goes_on, enter, leave),
        cmocka_unit_test_setup_teardown(speed_may_have_no_bound, enter, leave),
        cmocka_unit_test_setup_teardown(what_slows_the_others_too_is_not_held_against_it, enter, leave),
        cmocka_unit_test_setup_teardown(a_canary_that_all_wait_for_is_slow, enter, leave),
        cmocka_unit_test_setup_teardown(no_more_restart_at_once_than_the_budget_allows, enter, leave),
        cmocka_unit_test_setup_teardown(the_first_that_fails_pauses_the_rollout, enter, leave),
        cmocka_unit_test_setup_teardown(who_comes_after_all_ends_the_pause, enter, leave),
        cmocka_unit_test_setup_teardown(a_pause_is_nobody_s_delay, enter, leave),
        cmocka_unit_test_setup_teardown(one_more_than_the_budget_and_all_go_back, enter, leave),
        cmocka_unit_test_setup_teardown(a_canary_that_fails_ends_it, enter, leave),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
