/* Where a member has to be in each state, what it is told there, and whether a job may begin to train. */
#include "tests/ps/rollout/deciding.h"

#include <string.h>

enum { PHASES = PHASE_SAVED + 1 };

static const struct member leader = {MEMBER_PS, 0}, worker = {MEMBER_WORKER, 1}, nobody = {MEMBER_WORKER, 99};

static struct rollout_member *member(struct member who)
{
    return &rollout.members[who.role == MEMBER_PS ? who.index : PS + who.index];
}

static void be(enum rollout_kind kind, enum rollout_state state)
{
    rollout.kind = kind;
    rollout.state = state;
    rollout.target = 2;
    rollout.fallback = 1;
}

static bool is_in(struct member who, enum rollout_phase phase, uint64_t version, bool ready)
{
    struct rollout_member *one = member(who);
    one->heard_s = 1;
    one->phase = phase;
    one->version = version;
    one->ready = ready;
    return rollout_is_in(&rollout, one);
}

/* The phases in which it is there. */
static int phases(struct member who, uint64_t version, bool ready)
{
    int there = 0;
    for (int i = 0; i < PHASES; i++) {
        there |= is_in(who, (enum rollout_phase)i, version, ready) << i;
    }
    return there;
}

enum {
    STAGED = 1 << PHASE_STAGED,
    SWITCHED = 1 << PHASE_SWITCHED,
    BACK = 1 << PHASE_BACK | 1 << PHASE_RESTORED,
    RESTORED = 1 << PHASE_RESTORED,
    TRIED = 1 << PHASE_TRIED,
    SAVED = 1 << PHASE_SAVED,
    ANY = (1 << PHASES) - 1
};

static void a_live_change_is_a_matter_of_phases(void **state)
{
    static const struct {
        enum rollout_state state;
        int worker, chief;
    } cases[] = {{ROLLOUT_STAGING, STAGED, STAGED},      {ROLLOUT_SWITCHING, SWITCHED, SWITCHED},
                 {ROLLOUT_WATCHING, SWITCHED, SWITCHED}, {ROLLOUT_GOING_BACK, BACK, BACK},
                 {ROLLOUT_RESTORING, ANY, RESTORED},     {ROLLOUT_TRYING, ANY, TRIED},
                 {ROLLOUT_SAVING, ANY, SAVED},           {ROLLOUT_IDLE, ANY, ANY}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        be(ROLLOUT_LIVE, cases[i].state);
        assert_int_equal(phases(worker, 7, true), cases[i].worker);
        assert_int_equal(phases(chief, 7, true), cases[i].chief);
        member(worker)->takes_part = false; /* of whom nothing is wanted */
        assert_int_equal(phases(worker, 7, false), ANY);
        member(worker)->takes_part = true;
    }
    be(ROLLOUT_LIVE, ROLLOUT_WATCHING);
    assert_int_equal(phases(worker, 7, false), 0); /* it has no model, say */
    be(ROLLOUT_LIVE, ROLLOUT_SWITCHING);
    assert_int_equal(phases(worker, 7, false), SWITCHED);
}

static void a_restart_is_a_matter_of_versions(void **state)
{
    static const enum rollout_state forward[] = {ROLLOUT_SWITCHING, ROLLOUT_WATCHING};
    (void)state;
    for (int i = 0; i < 2; i++) {
        be(ROLLOUT_JOB, forward[i]);
        assert_int_equal(phases(worker, 2, true), ANY);
        assert_int_equal(phases(worker, 1, true), 0);
        assert_int_equal(phases(worker, 2, false), 0);
        member(worker)->heard_s = -1;
        member(worker)->ready = true;
        assert_false(rollout_is_in(&rollout, member(worker)));
        rollout.waits = true; /* then a worker need not train, but a ps must serve */
        assert_int_equal(phases(worker, 2, false), ANY);
        assert_int_equal(phases(leader, 2, false), 0);
        member(worker)->heard_s = -1;
        assert_false(rollout_is_in(&rollout, member(worker)));
        rollout.waits = false;
    }
    be(ROLLOUT_JOB, ROLLOUT_GOING_BACK);
    assert_int_equal(phases(worker, 1, true), ANY);
    assert_int_equal(phases(worker, 2, true), 0);
    assert_int_equal(phases(worker, 1, false), 0);
}

/* A worker must have made a step in it, unless none can be made; a ps makes none. */
static void a_program_must_run_and_work(void **state)
{
    (void)state;
    be(ROLLOUT_LOCAL, ROLLOUT_SWITCHING);
    rollout.brings_program = true;
    member(worker)->steps = 5;
    assert_false(is_in(worker, PHASE_SWITCHED, 2, true));
    member(worker)->runs_target = true;
    assert_true(is_in(worker, PHASE_SWITCHED, 2, true));
    assert_false(is_in(worker, PHASE_SWITCHED, 1, true));
    member(worker)->steps = 1;
    assert_true(is_in(worker, PHASE_SWITCHED, 2, true));
    member(worker)->steps = 0;
    assert_false(is_in(worker, PHASE_SWITCHED, 2, true));
    rollout.waits = true;
    assert_true(is_in(worker, PHASE_SWITCHED, 2, true));
    rollout.waits = false;
    member(leader)->runs_target = true;
    assert_true(is_in(leader, PHASE_SWITCHED, 2, true));
    member(leader)->runs_target = false;
    assert_false(is_in(leader, PHASE_SWITCHED, 2, true));
}

static void a_job_waits_until_its_config_has_come_to_all(void **state)
{
    (void)state;
    for (int kind = ROLLOUT_LIVE; kind <= ROLLOUT_JOB; kind++) {
        for (int at = ROLLOUT_IDLE; at <= ROLLOUT_SAVING; at++) {
            for (int how = 0; how < 4; how++) {
                be((enum rollout_kind)kind, (enum rollout_state)at);
                rollout.waited = (how & 1) != 0;
                rollout.at_once = (how & 2) != 0;
                rollout.step = 1200;
                const bool waits = kind == ROLLOUT_LIVE && rollout.waited &&
                                   (at == ROLLOUT_STAGING || (at == ROLLOUT_SWITCHING && rollout.at_once));
                assert_int_equal(rollout_holds_job(&rollout), waits);
                assert_int_equal(rollout_order_step(&rollout), at == ROLLOUT_SWITCHING && !rollout.at_once ? 1200 : 0);
            }
        }
    }
}

static void what_each_is_told(void **state)
{
    static const struct {
        enum rollout_kind kind;
        enum rollout_state state;
        enum rollout_order worker, chief, stranger;
    } cases[] = {
        {ROLLOUT_LIVE, ROLLOUT_IDLE, ORDER_NOTHING, ORDER_NOTHING, ORDER_NOTHING},
        {ROLLOUT_LIVE, ROLLOUT_STAGING, ORDER_STAGE, ORDER_STAGE, ORDER_STAGE},
        {ROLLOUT_LIVE, ROLLOUT_SWITCHING, ORDER_SWITCH, ORDER_SWITCH, ORDER_SWITCH},
        {ROLLOUT_LIVE, ROLLOUT_WATCHING, ORDER_SWITCH, ORDER_SWITCH, ORDER_SWITCH},
        {ROLLOUT_LIVE, ROLLOUT_GOING_BACK, ORDER_BACK, ORDER_BACK, ORDER_BACK},
        {ROLLOUT_LIVE, ROLLOUT_RESTORING, ORDER_BACK, ORDER_RESTORE, ORDER_BACK},
        {ROLLOUT_JOB, ROLLOUT_TRYING, ORDER_STAGE, ORDER_TRY, ORDER_STAGE},
        {ROLLOUT_JOB, ROLLOUT_SAVING, ORDER_STAGE, ORDER_SAVE, ORDER_STAGE},
        {ROLLOUT_JOB, ROLLOUT_SWITCHING, ORDER_RESTART, ORDER_RESTART, ORDER_RESTART},
        {ROLLOUT_JOB, ROLLOUT_GOING_BACK, ORDER_RETURN, ORDER_RETURN, ORDER_RETURN},
        {ROLLOUT_LOCAL, ROLLOUT_SWITCHING, ORDER_RESTART, ORDER_STAGE, ORDER_STAGE},
        {ROLLOUT_LOCAL, ROLLOUT_GOING_BACK, ORDER_RETURN, ORDER_RETURN, ORDER_RETURN},
    };
    (void)state;
    rollout.wave = 2; /* workers 2 and 1 */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        be(cases[i].kind, cases[i].state);
        assert_int_equal(rollout_order(&rollout, worker), cases[i].worker);
        assert_int_equal(rollout_order(&rollout, chief), cases[i].chief);
        assert_int_equal(rollout_order(&rollout, nobody), cases[i].stranger);
    }
    be(ROLLOUT_LOCAL, ROLLOUT_SWITCHING);
    rollout.wave = 3;
    assert_int_equal(rollout_order(&rollout, chief), ORDER_RESTART);
    rollout.ps_turn = PS_WAITS_FOR_SAVE;
    assert_int_equal(rollout_order(&rollout, chief), ORDER_SAVE);
    assert_int_equal(rollout_order(&rollout, worker), ORDER_RESTART);
    member(worker)->takes_part = false;
    assert_int_equal(rollout_order(&rollout, worker), ORDER_STAGE);
    be(ROLLOUT_LOCAL, ROLLOUT_GOING_BACK); /* then there is nothing to be saved */
    assert_int_equal(rollout_order(&rollout, chief), ORDER_RETURN);
    be(ROLLOUT_LIVE, ROLLOUT_GOING_BACK); /* from which nobody is called back */
    assert_false(rollout_abort(&rollout, 0, message));
    assert_non_null(strstr(message, "there is no rollout to abort: it is going back"));
}

static void who_is_ahead_or_behind_catches_up_or_waits(void **state)
{
    static const struct {
        uint64_t in_force, version;
        enum rollout_order live, job;
    } cases[] = {{4, 4, ORDER_NOTHING, ORDER_NOTHING},   {7, 7, ORDER_NOTHING, ORDER_NOTHING},
                 {7, 4, ORDER_SWITCH, ORDER_CATCH_UP},   {7, 3, ORDER_CATCH_UP, ORDER_CATCH_UP},
                 {7, 5, ORDER_CATCH_UP, ORDER_CATCH_UP}, {7, 8, ORDER_NOTHING, ORDER_NOTHING},
                 {4, 7, ORDER_BACK, ORDER_CATCH_UP},     {4, 6, ORDER_CATCH_UP, ORDER_CATCH_UP},
                 {4, 8, ORDER_NOTHING, ORDER_NOTHING},   {5, 3, ORDER_NOTHING, ORDER_NOTHING},
                 {5, 6, ORDER_NOTHING, ORDER_NOTHING},   {5, 7, ORDER_NOTHING, ORDER_NOTHING}};
    (void)state;
    rollout.target = 7;
    rollout.fallback = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rollout.kind = ROLLOUT_LIVE;
        assert_int_equal(rollout_catch_up(&rollout, cases[i].in_force, cases[i].version), cases[i].live);
        rollout.kind = ROLLOUT_JOB;
        assert_int_equal(rollout_catch_up(&rollout, cases[i].in_force, cases[i].version), cases[i].job);
    }
}

static void something_may_have_to_be_undone(void **state)
{
    (void)state;
    for (int at = ROLLOUT_IDLE; at <= ROLLOUT_SAVING; at++) {
        assert_int_equal(rollout_state_is_risky((enum rollout_state)at),
                         at >= ROLLOUT_SWITCHING && at <= ROLLOUT_RESTORING);
    }
}

/* With a config of machines alone ps 0 need not be the last, for it does not restart for others' sake. */
static void ps_0_goes_last_where_all_go(void **state)
{
    (void)state;
    rollout.wave = 5;
    be(ROLLOUT_LOCAL, ROLLOUT_SWITCHING);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
    rollout.brings_program = true;
    assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
    assert_int_equal(rollout_order(&rollout, (struct member){MEMBER_PS, 1}), ORDER_RESTART);
    rollout.leader_may_restart = true;
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RESTART);
    rollout.brings_program = rollout.leader_may_restart = false;
    be(ROLLOUT_JOB, ROLLOUT_GOING_BACK);
    assert_int_equal(rollout_order(&rollout, leader), ORDER_STAGE);
    rollout.leader_may_restart = true;
    assert_int_equal(rollout_order(&rollout, leader), ORDER_RETURN);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_live_change_is_a_matter_of_phases),
        TEST(a_restart_is_a_matter_of_versions),
        TEST(a_program_must_run_and_work),
        TEST(a_job_waits_until_its_config_has_come_to_all),
        TEST(what_each_is_told),
        TEST(who_is_ahead_or_behind_catches_up_or_waits),
        TEST(something_may_have_to_be_undone),
        TEST(ps_0_goes_last_where_all_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
