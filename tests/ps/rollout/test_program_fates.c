/*
 * Thousands of random rollouts of programs: members are processes of a small model, which crash, hang, are slow, have a
 * full or a bad disk, lose power and links; the leader is one of them, and remembers what is on its disk; the operator
 * aborts and resumes. At the end every machine must have a working program, and all that can run the version must be in
 * it.
 */
#include <stdlib.h>
#include <string.h>

#include "ps/rollout/decide.h"
#include "tests/check.h"
#include "tests/random.h"

enum { PS = 2, WORKERS = 8, ALL = PS + WORKERS, ARCHITECTURES = 2, FAILED_STARTS = 2, SCHEDULES = 2000 };
enum { FULL_SCHEDULES = 100000 };

static const double TICK_S = 0.5, FAULTS_S = 90, REST_S = 500, START_S = 0.5, HANGS_S = 10, WARM_S = 12, BACK_S = 30;

/* What the new program does on a machine. */
enum fate { WORKS, CRASHES, HANGS, IS_SLOW, HAS_NO_ROOM, IS_DAMAGED };

struct process {
    enum fate fate;
    uint64_t version; /* on its disk */
    double up_s;      /* it is down until then */
    bool up, failed;  /* failed: in the target, and back */
    bool on_probation;
    int starts;
    enum rollout_phase phase;
    double steps, linked_s;
};

static struct {
    struct test_random random;
    struct rollout rollout;
    struct rollout_plan plan;
    struct process members[ALL];
    double now_s;
    struct rollout_vitals vitals;
    bool faults;
    /* On the leader's disk. */
    enum rollout_state stored;
    struct rollout_absent absent;
    char reason[512];
    uint64_t changes;
    bool begun;
} world;

static bool perhaps(int one_in)
{
    return test_random_below(&world.random, one_in) == 0;
}

static struct member who_is(int i)
{
    return i < PS ? (struct member){MEMBER_PS, i} : (struct member){MEMBER_WORKER, i - PS};
}

/* --- Members --- */

static void go_down(struct process *process, double seconds)
{
    process->up = false;
    process->up_s = world.now_s + seconds;
}

/* Counts like base/process/program.c. */
static void start_again(struct process *process)
{
    const bool dies = process->version == 2 && (process->fate == CRASHES || process->fate == HANGS);
    if (process->on_probation && process->version == 2 && process->starts >= FAILED_STARTS) {
        process->version = 1;
        process->failed = true;
        process->on_probation = false;
    } else if (process->on_probation) {
        process->starts++;
    }
    if (process->version == 2 && dies) {
        go_down(process, process->fate == HANGS ? HANGS_S : START_S);
        return;
    }
    process->up = true;
    process->phase = PHASE_NONE;
    process->steps = 0;
}

static void go_over(struct process *process, uint64_t version)
{
    if (version == 2 && (process->failed || process->fate == IS_DAMAGED)) {
        process->phase = PHASE_FAILED;
        return;
    }
    process->on_probation = version == 2;
    process->starts = 0;
    process->version = version;
    go_down(process, START_S);
}

static void obey(struct process *process, enum rollout_order order)
{
    if (order == ORDER_NOTHING && world.stored == ROLLOUT_IDLE) {
        process->failed = process->on_probation = false;
        process->phase = PHASE_NONE;
    } else if (order == ORDER_CATCH_UP) {
        go_over(process, world.members[0].version);
    } else if (order == ORDER_RETURN && process->version == 2) {
        go_over(process, 1);
    } else if (order == ORDER_RETURN) {
        process->phase = PHASE_BACK;
    } else if (process->phase == PHASE_FAILED) {
        return;
    } else if (order == ORDER_RESTART && process->version == 1) {
        go_over(process, 2);
    } else if (order == ORDER_RESTART) {
        process->phase = PHASE_SWITCHED;
    } else if (order == ORDER_SAVE) {
        process->phase = PHASE_SAVED;
    } else if (order == ORDER_STAGE && process->phase == PHASE_NONE) {
        process->phase = process->fate == HAS_NO_ROOM ? PHASE_FAILED : PHASE_STAGED;
    }
}

/* Answers like ps 0 (ps/server/rollouts.c). */
static enum rollout_order order_for(int i)
{
    if (!world.begun || world.rollout.changes != world.changes) {
        return ORDER_NOTHING;
    }
    if (world.rollout.state == ROLLOUT_IDLE) {
        return rollout_catch_up(&world.rollout, world.members[0].version, world.members[i].version);
    }
    const enum rollout_order order = rollout_order(&world.rollout, who_is(i));
    rollout_delivered(&world.rollout, who_is(i));
    return order;
}

static void talk(int i)
{
    struct process *process = &world.members[i];
    const bool in_target = process->version == 2;
    const struct rollout_report report = {.phase = process->phase,
                                          .version = process->version,
                                          .target = process->phase != PHASE_NONE ? 2 : 0,
                                          .ready = true,
                                          .runs_target = in_target,
                                          .architecture = 1 + i % ARCHITECTURES,
                                          .steps = 1 + (int64_t)process->steps,
                                          .message = process->phase == PHASE_FAILED ? "it can't" : ""};
    process->steps += TICK_S * (in_target && process->fate == IS_SLOW ? 20 : 100);
    rollout_on_report(&world.rollout, who_is(i), &report, world.now_s);
    if (world.rollout.changes == world.changes || world.rollout.state != ROLLOUT_IDLE) {
        obey(process, order_for(i));
    }
}

/* --- The leader --- */

static void store(void)
{
    world.stored = world.rollout.state;
    world.absent = world.rollout.absent;
    memcpy(world.reason, world.rollout.reason, sizeof world.reason);
    world.changes = world.rollout.changes;
}

static void wake_leader(void)
{
    struct rollout_plan plan = world.plan;
    plan.absent = world.absent;
    plan.leader_is_in_target = world.members[0].version == 2;
    rollout_destroy(&world.rollout);
    assert_true(rollout_create(&world.rollout, PS, WORKERS, WORKERS));
    if (world.begun) {
        rollout_resume(&world.rollout, world.stored, &plan, 0.5, world.reason, world.now_s);
    }
    store();
}

static void begin(void)
{
    char message[256];
    world.begun = rollout_begin(&world.rollout, &world.plan, &world.vitals, world.now_s, message);
    assert_true(world.begun);
    store();
}

/* --- Chance --- */

static void draw(void)
{
    static const enum fate fates[] = {CRASHES, HANGS, IS_SLOW, HAS_NO_ROOM, IS_DAMAGED};
    const struct test_random random = world.random;
    memset(&world, 0, sizeof world);
    world.random = random;
    const enum fate everywhere = perhaps(3) ? fates[test_random_below(&world.random, 3)] : WORKS;
    for (int i = 0; i < ALL; i++) {
        const bool is_ill = everywhere == WORKS && perhaps(15);
        world.members[i] = (struct process){
            .fate = is_ill ? fates[test_random_below(&world.random, 5)] : everywhere, .version = 1, .up = true};
    }
    world.vitals = (struct rollout_vitals){
        .global_step = 1000, .steps_per_s = 100, .loss = 0.5, .training = true, .in_step = perhaps(2)};
    world.plan =
        (struct rollout_plan){.target = 2,
                              .fallback = 1,
                              .kind = ROLLOUT_LOCAL,
                              .healthy_s = 2,
                              .brings_program = true,
                              .waves = {.count = perhaps(3) ? 0 : 3,
                                        .items = {1, ROLLOUT_PERCENT | 25, ROLLOUT_PERCENT | 100},
                                        .budget = perhaps(2) ? 0 : (uint32_t)test_random_below(&world.random, 4),
                                        .least_speed = perhaps(4) ? 0 : 50}};
    assert_true(rollout_create(&world.rollout, PS, WORKERS, WORKERS));
    world.faults = !perhaps(5);
}

static void trouble(void)
{
    char message[256];
    struct process *process = &world.members[test_random_below(&world.random, ALL)];
    if (perhaps(30) && process->up) { /* power */
        go_down(process, test_random_below(&world.random, 20));
    }
    if (perhaps(30)) {
        process->linked_s = world.now_s + test_random_below(&world.random, 25);
    }
    if (perhaps(150)) {
        rollout_abort(&world.rollout, world.now_s, message);
    }
}

static void tick(void)
{
    char message[256];
    world.now_s += TICK_S;
    for (int i = 0; i < ALL; i++) {
        struct process *process = &world.members[i];
        if (!process->up && world.now_s >= process->up_s) {
            start_again(process);
            if (i == 0 && process->up) {
                wake_leader();
            }
        }
    }
    if (world.faults && world.begun && world.now_s < FAULTS_S) {
        trouble();
    }
    for (int i = ALL - 1; i >= 0 && world.members[0].up; i--) {
        if (world.members[i].up && world.now_s >= world.members[i].linked_s) {
            talk(i);
        }
    }
    if (!world.members[0].up) {
        return;
    }
    world.vitals.global_step += world.members[1].up ? 50 : 0;
    if (world.rollout.is_paused && perhaps(40)) {
        (void)(perhaps(3) ? rollout_abort(&world.rollout, world.now_s, message)
                          : rollout_continue(&world.rollout, world.now_s, message));
    }
    rollout_tick(&world.rollout, &world.vitals, world.now_s);
    store();
}

/* --- Invariants --- */

static int count_in_target(void)
{
    int count = 0;
    for (int i = 0; i < ALL; i++) {
        count += world.members[i].version == 2;
    }
    return count;
}

static bool is_everywhere(enum fate fate)
{
    bool everywhere = true;
    for (int i = 0; i < ALL; i++) {
        everywhere = everywhere && world.members[i].fate == fate;
    }
    return everywhere;
}

/* A bad program costs the canaries and no more, and not for long. */
static void check_canaries(void)
{
    const bool is_slow = is_everywhere(IS_SLOW) && world.plan.waves.least_speed > 0 && !world.faults;
    if (!is_everywhere(CRASHES) && !is_everywhere(HANGS) && !is_slow) {
        return;
    }
    assert_true(count_in_target() <= ARCHITECTURES);
    if (!world.faults && world.now_s >= WARM_S + BACK_S) {
        assert_int_equal(world.rollout.outcome, OUTCOME_WENT_BACK);
        assert_int_equal(count_in_target(), 0);
    }
}

static bool is_at_rest(void)
{
    if (!world.begun || world.rollout.state != ROLLOUT_IDLE || !world.members[0].up || world.now_s < FAULTS_S) {
        return false;
    }
    for (int i = 0; i < ALL; i++) {
        const struct process *process = &world.members[i];
        const bool in_force = process->version == world.members[0].version;
        if (!process->up ||
            !(in_force || (process->version == 1 && (process->failed || process->fate == IS_DAMAGED)))) {
            return false;
        }
    }
    return true;
}

static void run_one(int *done, int *back)
{
    draw();
    while (world.now_s < WARM_S) {
        tick();
    }
    begin();
    while (!is_at_rest()) {
        tick();
        check_canaries();
        assert_true(world.now_s < FAULTS_S + REST_S); /* otherwise a machine has no working program */
    }
    const int there = count_in_target();
    assert_true((there > 0) == (world.members[0].version == 2));
    *done += there > 0;
    *back += there == 0;
    rollout_destroy(&world.rollout);
}

TEST(nobody_is_left_without_a_program)
{
    int done = 0, back = 0;
    const bool full = getenv("TRAINER_TEST_FULL");
    world.random = test_random_begin("nobody_is_left_without_a_program");
    for (int i = 0; i < (full ? FULL_SCHEDULES : SCHEDULES); i++) {
        run_one(&done, &back);
    }
    print_message("%d came into force, %d did not\n", done, back);
    assert_true(done > SCHEDULES / 20 && back > SCHEDULES / 20); /* otherwise the outcomes are too one-sided */
}

int main(void)
{
    return check_run(NULL, NULL);
}
