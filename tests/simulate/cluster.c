/*
 * Machines in order: the ps, then the workers, worker 0 being the chief. Faults occur for some seconds and then stop;
 * from then on training must reach its end.
 */
#include "tests/simulate/cluster.h"

#include <math.h>
#include <string.h>

#include "ps/job/job.h"
#include "tests/simulate/checkpoints.h"
#include "tests/simulate/faults.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/service.h"
#include "tests/simulate/oracle.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/records.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"

enum { MOST_FAULTS = 12 };

static const double TIMEOUT_S = 400; /* for training to end once faults have stopped */
static const double GRACE_S = 20, LEAVE_S = 60, ROLL_OUT_S = 1000, MOST_LATE_S = 90;

static bool clocks_differ; /* and there is no other fault */

/* If clocks run at different rates and there is no other fault, leases have enough margin. */
static void check_leases(const struct machine *machine)
{
    const struct job *job = setup_is_ps(machine) ? records_job(machine->number) : NULL;
    for (int i = 0; job && i < setup.listed; i++) {
        if (job->workers[i].lost) {
            fail("worker %d is lost to %s, though nothing is wrong but that clocks differ", i, machine->name);
        }
    }
}

static void one_event(double until_s)
{
    world_step(until_s);
    for (int i = 0; i < world.machine_count; i++) {
        struct machine *machine = &world.machines[i];
        if (machine->runs) {
            oracle_check(machine);
            if (clocks_differ) {
                check_leases(machine);
            }
            if (service_is_unlisted(machine)) {
                service_let_go(machine);
            }
        } else {
            records_forget(machine);
            service_look_after(machine);
        }
    }
}

static bool any_runs(void)
{
    bool runs = false;
    for (int i = 0; i < world.machine_count; i++) {
        runs = runs || world.machines[i].runs;
    }
    return runs;
}

/* All leave by themselves, or are told to. */
static void leave(double grace_s)
{
    double since_s = world.now_s;
    service.leaving = true;
    say("all are to leave");
    while (!world.failed && any_runs() && world.now_s < since_s + grace_s + LEAVE_S) {
        for (int i = 0; i < world.machine_count && world.now_s > since_s + grace_s; i++) {
            world.machines[i].signal = 15;
        }
        one_event(since_s + grace_s + LEAVE_S);
    }
    for (int i = 0; i < world.machine_count; i++) {
        if (world.machines[i].runs) {
            fail("%s does not leave", world.machines[i].name);
        }
    }
}

/*
 * One seed after another: every call of every kind, up to about as many as a machine makes in a run. Half of the time
 * it fails once, otherwise for a while, as on a machine that has run out of memory. In every other run all are killed
 * once, so that code after a restart is covered too.
 */
static void draw_shortage(uint64_t seed)
{
    static const unsigned most[SHORT_KINDS] = {
        [SHORT_OF_MEMORY] = 1000, [SHORT_READ] = 20,     [SHORT_WRITE] = 130, [SHORT_FSYNC] = 16,
        [SHORT_RENAME] = 8,       [SHORT_OPEN] = 20,     [SHORT_SOCKET] = 30, [SHORT_CONNECT] = 30,
        [SHORT_ACCEPT] = 16,      [SHORT_RECEIVE] = 200, [SHORT_SEND] = 200,  [SHORT_THREAD] = 30,
    };
    uint64_t sum = 0, at;
    for (int i = 0; i < SHORT_KINDS; i++) {
        sum += most[i];
    }
    for (at = seed % sum; at >= most[shortage.kind]; shortage.kind++) {
        at -= most[shortage.kind];
    }
    shortage.first = 1 + at;
    shortage.count = chance(2) == 0 ? 1 : 1 + chance(30);
    bool of_disk = shortage.kind == SHORT_READ || shortage.kind == SHORT_WRITE || shortage.kind == SHORT_FSYNC ||
                   shortage.kind == SHORT_RENAME || shortage.kind == SHORT_OPEN;
    shortage.machine = of_disk ? setup_chief()->number : (int)chance((uint64_t)world.machine_count);
    service.disk_was_full = of_disk || shortage.kind == SHORT_OF_MEMORY;
    if (chance(2) == 0) {
        world_at(world.now_s + 1 + 3 * chance_real(), faults_kill_all, NULL, WORLD_MAX_MACHINES);
    }
    say("of %s's calls of %s, %llu from number %llu on fail", world.machines[shortage.machine].name,
        shortage_name(shortage.kind), (unsigned long long)shortage.count, (unsigned long long)shortage.first);
}

static bool rolls(enum trouble trouble)
{
    return trouble == TROUBLE_ROLLOUTS || trouble == TROUBLE_PROGRAMS;
}

static void draw_faults(enum trouble trouble)
{
    double trouble_s = 6 * chance_real();
    world.lag = chance(2) == 0 ? 1000 + chance(4000) : 0;
    if (rolls(trouble)) { /* they come as it goes on */
        if (trouble == TROUBLE_PROGRAMS) {
            programs_begin();
        }
        int count;
        const struct config_setting *settings = setup_settings(&count);
        fleet_begin(settings, count);
        return;
    }
    faults.calm_s = world.now_s + trouble_s + 1;
    if (chance(16) == 0) {
        clocks_differ = true;
        world.lag = 0;
        for (int i = 0; i < world.machine_count; i++) {
            machine_drift(&world.machines[i], 0.75 + 0.58 * chance_real() - 1);
        }
        return;
    }
    for (int i = (int)chance(MOST_FAULTS); i > 0; i--) {
        world_at(world.now_s + trouble_s * chance_real(), faults_inject, NULL, 0);
    }
}

static void finish(struct outcome *outcome)
{
    *outcome = (struct outcome){.failed = world.failed,
                                .events = world.events,
                                .seconds = world.now_s - 1000,
                                .faults = faults.count + (int)shortage.failed};
    memcpy(outcome->why, world.why, sizeof outcome->why);
    world_end();
    for (int i = 0; i < world.machine_count; i++) {
        disk_free(world.machines[i].disk);
    }
}

/*
 * The job waits for workers, so its members switch at once, each by itself. Now those workers come, and one ps learns
 * late that it must switch: nothing may be trained before that.
 */
static void begin_in_the_middle(void)
{
    struct machine *cut_off = &world.machines[1 + chance((uint64_t)setup.ps - 1)];
    const double until_s = world.now_s + 1 + 4 * chance_real();
    world.here = cut_off;
    say("is apart from ps 0 until %.3f, and the late workers come", until_s);
    world.here = NULL;
    network_part(cut_off, &world.machines[0], PART_BOTH, until_s);
    for (int i = setup.ps + setup.listed - setup.late; i < setup.ps + setup.listed; i++) {
        service.restart_s[i] = world.now_s + 0.05 * chance_real();
    }
}

/* Until every rollout has succeeded or failed, and all members are at rest. */
static void roll_out(void)
{
    const double begin_s = world.now_s;
    int left = (int)chance(MOST_FAULTS), rots = (int)chance(4);
    faults.calm_s = INFINITY;
    while (!world.failed && !fleet_is_at_rest()) {
        one_event(world.now_s + 1);
        fleet_step();
        if (fleet_wants_workers_off()) {
            faults_switch_workers_off();
        }
        const bool turned = fleet_turned();
        if (turned && left > 0 && chance(3) == 0) {
            left--;
            world_at(world.now_s + 1.5 * chance_real(), faults_inject, NULL, 0);
        }
        if (turned && rots > 0 && chance(4) == 0) {
            rots--;
            world_at(world.now_s + 1.5 * chance_real(), faults_rot_history, NULL, 0);
        }
        if (fleet_switches_at_once() && setup.late > 0 && setup.ps > 1 && chance(2) == 0) {
            left--;
            begin_in_the_middle();
        }
        if (fleet_switches() && setup.ps > 1 && left > 0 && chance(3) == 0) {
            left--;
            world_at(world.now_s + 0.05 * chance_real(), faults_kill_one, NULL, 1 + chance((uint64_t)setup.ps - 1));
        }
        if (faults.calm_s > world.now_s && (fleet_is_done() || world.now_s >= begin_s + ROLL_OUT_S)) {
            left = rots = 0;
            faults.calm_s = world.now_s;
        }
        if (world.now_s >= faults.calm_s + TIMEOUT_S) {
            fleet_blame();
        }
    }
    leave(0);
}

void cluster_run(uint64_t seed, enum trouble trouble, bool shows, struct outcome *outcome)
{
    world.shows = shows;
    world_begin(seed);
    checkpoints_begin();
    setup_draw(rolls(trouble), service_run);
    fleet_forget();
    programs_forget();
    network_latency_s = 0.002;
    faults.calm_s = world.now_s;
    if (trouble == TROUBLE_SHORTAGE) {
        draw_shortage(seed);
    } else {
        shortage.kind = -1;
        draw_faults(trouble);
    }
    for (int i = 0; i < world.machine_count; i++) {
        const bool is_late = i >= setup.ps + setup.listed - setup.late && i < setup.ps + setup.workers;
        service.restart_s[i] = world.now_s + (is_late ? MOST_LATE_S : 1) * chance_real();
    }
    int count;
    const struct config_setting *settings = setup_settings(&count);
    for (int i = 0; i < count; i++) {
        say("%s = %s", settings[i].flag, settings[i].text);
    }
    if (rolls(trouble)) {
        roll_out();
        finish(outcome);
        return;
    }
    const double end_s = faults.calm_s + TIMEOUT_S;
    while (!world.failed && world.now_s < end_s &&
           (setup_chief()->runs || !service.over || setup_chief()->status < 0 ||
            (setup_chief()->status != 0 && !service.disk_was_full))) {
        double until_s = end_s;
        for (int i = 0; i < world.machine_count; i++) {
            double when_s = service.restart_s[i];
            until_s = !world.machines[i].runs && when_s < until_s ? when_s : until_s;
        }
        one_event(until_s);
    }
    if (world.now_s >= end_s) {
        fail("training does not come to its end within %.0f s after the last fault", TIMEOUT_S);
    }
    if (!world.failed) {
        leave(GRACE_S);
        if (!service.disk_was_full) {
            checkpoints_check_end(faults.count == 0 && trouble != TROUBLE_SHORTAGE);
        }
    }
    finish(outcome);
}