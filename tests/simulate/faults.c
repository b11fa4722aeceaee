/*
 * A random fault is of one machine, perhaps of its links with another. What a disk has lost is told to those who would
 * look for it.
 */
#include "tests/simulate/faults.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/simulate/checkpoints.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/service.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/setup.h"
#include "tests/simulate/world.h"

struct faults faults;

static void fill_disk(void *context, uint64_t full)
{
    disk_fill(((struct machine *)context)->disk, full != 0);
}

static void set_latency(void *context, uint64_t microseconds)
{
    network_latency_s = (double)microseconds * 1e-6;
}

static double until_calm(double most_s)
{
    double until_s = world.now_s + most_s * chance_real();
    return until_s < faults.calm_s ? until_s : faults.calm_s;
}

void faults_kill_all(void *context, uint64_t count)
{
    for (int i = 0; i < world.machine_count && i < (int)count; i++) {
        machine_kill(&world.machines[i]);
    }
}

void faults_kill_one(void *context, uint64_t number)
{
    if (!service.over && !service.leaving && world.machines[number].runs) {
        faults.count++;
        world.here = &world.machines[number];
        say("is killed");
        machine_kill(&world.machines[number]);
        world.here = NULL;
    }
}

/*
 * Listed ones except the chief: one, or each with some probability. Some return in the middle of what follows, some
 * long after.
 */
void faults_switch_workers_off(void)
{
    const int others = setup.listed - 1, only = others > 0 && chance(2) == 0 ? 1 + (int)chance((uint64_t)others) : 0;
    for (int i = 1; i <= others; i++) {
        struct machine *machine = &world.machines[setup.ps + i];
        const double away_s = 10 + (chance(2) == 0 ? 20 : 120) * chance_real();
        if (!machine->runs || (only > 0 ? i != only : chance(2) == 0)) {
            continue;
        }
        faults.count++;
        service.restart_s[machine->number] = world.now_s + away_s;
        world.here = machine;
        say("is switched off for %.0f s", away_s);
        machine_kill(machine);
        world.here = NULL;
    }
}

/* --- Disks that break their promises --- */

static bool is_checkpoint(const char *path)
{
    const size_t length = strlen(path);
    return strncmp(path, "/run/model-", 11) == 0 && length > 12 && strcmp(path + length - 12, ".safetensors") == 0;
}

static void expect_sound_ones(void)
{
    const char *last;
    disk_sound(setup_chief()->disk, is_checkpoint, &last);
    checkpoints_lose(last ? strtoll(last + 11, NULL, 10) : -1);
}

static void lose_power(void *context, uint64_t argument)
{
    struct machine *machine = context;
    if (service.over || service.leaving) {
        return;
    }
    world.here = machine;
    say("loses power");
    network_silence(machine);
    machine_kill(machine);
    disk_lose_power(machine->disk);
    if (machine == setup_chief() && !setup.may_rot) {
        expect_sound_ones();
    }
    world.here = NULL;
}

static void repair(void *context, uint64_t argument)
{
    say("a disk is repaired");
    disk_heal(context);
    setup.rotten = false;
}

/* Everything there; until the repair, no process that starts may start from nothing. */
static void rot_all(struct disk *disk)
{
    setup.rotten = true;
    while (disk_rot(disk, is_checkpoint)) {
    }
    machine_kill(setup_chief());
    world_at(world.now_s + 10 * chance_real(), repair, disk, 0);
}

/* Of things stored twice, one may rot: not this one. */
static bool is_spare(const char *path)
{
    const bool is_copy = strstr(path, ".copy");
    return strstr(path, "/probation-") && is_copy != (setup.seed % 2 == 0);
}

static bool is_of_rollout(const char *path)
{
    return strncmp(path, "/etc/config.json.d/", 19) == 0 && !strstr(path, "/audit.log") && !strstr(path, ".tmp") &&
           !strstr(path, "/base") && !is_spare(path);
}

static bool is_number_in_force(const char *path)
{
    return strcmp(path, "/etc/config.json.d/current") == 0;
}

static bool is_version(const char *path)
{
    static const char some[] = "/etc/config.json.d/00000003.json";
    return is_of_rollout(path) && strlen(path) == strlen(some) && strcmp(path + strlen(some) - 5, ".json") == 0;
}

/* On ps 0 none does: the others get theirs from there, and it could ask nobody. */
static bool is_program(const char *path)
{
    const size_t length = strlen(path);
    return strncmp(path, "/etc/trainer.d/", 15) == 0 && strcmp(path + length - 8, "/trainer") == 0;
}

/* One file of a member's rollout records rots, and its next process meets it. */
void faults_rot_history(void *context, uint64_t argument)
{
    static bool (*const which[])(const char *path) = {is_number_in_force, is_version, is_of_rollout, is_of_rollout};
    struct machine *machine = &world.machines[chance((uint64_t)setup.ps + (uint64_t)setup.workers)];
    const uint64_t kind = chance(sizeof which / sizeof *which);
    const bool of_program = programs_roll() && machine->number > 0 && chance(3) == 0;
    if (!service.leaving && world.now_s < faults.calm_s &&
        disk_rot(machine->disk, of_program ? is_program : which[kind])) {
        faults.count++;
        programs_excuse(machine);
        machine_kill(machine);
        world_at(world.now_s + 10 * chance_real(), repair, machine->disk, 0);
    }
}

/* One checkpoint rots, or is not where the disk says it is; another exists, and is found. Or all do. */
static void break_word(void)
{
    const char *last;
    struct disk *disk = setup_chief()->disk;
    if (!setup.may_rot || disk_sound(disk, is_checkpoint, &last) < 2) {
        return;
    }
    setup.may_rot = false;
    world.here = setup_chief();
    if (chance(3) == 0) {
        rot_all(disk);
    } else if (chance(2) == 0) {
        disk_rot(disk, is_checkpoint);
        expect_sound_ones();
    } else {
        say("the disk will lie");
        disk_lie(disk);
        world_at(until_calm(4), lose_power, setup_chief(), 0);
    }
}

/* --- Random faults --- */

static void drift(void *context, uint64_t percent)
{
    machine_drift(context, (double)percent / 100 - 1);
}

/* Its clocks run between a quarter and four times as fast, for longer than any lease. */
static void drift_for_a_while(struct machine *machine)
{
    const double until_s = until_calm(20);
    machine_drift(machine, (chance(2) == 0 ? 0.25 + 0.75 * chance_real() : 1 + 3 * chance_real()) - 1);
    say("clocks run at %.2f of their pace until %.3f", 1 + machine->clock_drift, until_s);
    world_at(until_s, drift, machine, 100);
}

/*
 * Switched off, or cut off in one direction or both, from all or from one ps only, never to return: the others must do
 * without it.
 */
static void lose_for_good(struct machine *machine)
{
    static const char *const hows[] = {"is apart from", "sends nothing that comes to", "gets nothing from"};
    const uint64_t how = chance(4);
    struct machine *from = chance(2) == 0 ? &world.machines[chance((uint64_t)setup.ps)] : NULL;
    service.is_gone = true;
    service.restart_s[machine->number] = INFINITY; /* whatever else happens to it */
    world.here = machine;
    if (how == 3) {
        say("is switched off, for good");
        machine_kill(machine);
    } else {
        say("%s %s, for good", hows[how], from ? from->name : "all");
        network_part(machine, from, (enum partition)how, INFINITY);
    }
}

/* Between the two (other NULL: between the one and all). */
static void fault_of_links(struct machine *one, struct machine *other)
{
    const char *name = other ? other->name : "all";
    const double until_s = until_calm(8);
    switch (chance(5)) {
    case 0:
        say("links to %s are cut", name);
        network_cut(one, other);
        break;
    case 1:
        say("links to %s are half-open", name);
        network_half_open(one, other);
        break;
    case 2:
        say("is apart from %s until %.3f", name, until_s);
        network_part(one, other, PART_BOTH, until_s);
        break;
    default:
        say("sends nothing that comes to %s until %.3f", name, until_s);
        network_part(one, other, PART_FROM, until_s);
        break;
    }
}

/* A random fault of one machine, perhaps on its links with the other one (NULL: with all). */
static void fault_by_chance(struct machine *one, struct machine *other)
{
    switch (chance(18)) {
    case 0:
    case 1:
        say("is killed");
        machine_kill(one);
        break;
    case 2:
        lose_power(one, 0);
        break;
    case 3:
        one->frozen_until_s = until_calm(6);
        say("is frozen until %.3f", one->frozen_until_s);
        break;
    case 4:
    case 5:
    case 6:
    case 13:
    case 14:
        fault_of_links(one, other);
        break;
    case 15:
        drift_for_a_while(one);
        break;
    case 16:
        break_word();
        break;
    case 17:
        if (setup.gone && !service.is_gone) {
            lose_for_good(setup.gone);
        }
        break;
    case 7:
        one->clock_ahead_s += 5 * chance_real();
        one->wall_ahead_s += 7200 * (chance_real() - 0.5);
        say("clocks jump, to %.3f s ahead", one->clock_ahead_s);
        break;
    case 8:
        one = fleet_rolls() ? one : setup_chief();
        say("disk of %s is full", one->name);
        service.disk_was_full = true;
        disk_fill(one->disk, true);
        world_at(until_calm(4), fill_disk, one, 0);
        break;
    case 9:
        say("the network is slow");
        network_latency_s = 0.2 * chance_real();
        world_at(until_calm(4), set_latency, NULL, 2000);
        break;
    case 10:
        say("all are killed");
        faults_kill_all(NULL, WORLD_MAX_MACHINES);
        break;
    case 11: /* the next process counts generations from 1 again, and the workers remember the others */
        say("all ps and the chief are killed");
        faults_kill_all(NULL, (uint64_t)setup.ps + 1);
        break;
    case 12: /* a process that wakes up sends a gradient of an old generation to the first ps before it learns better */
        one = &world.machines[setup.ps + (int)chance((uint64_t)setup.workers)];
        other = &world.machines[setup.ps > 1 ? 1 + chance((uint64_t)setup.ps - 1) : 0];
        world.here = one;
        one->frozen_until_s = until_calm(8);
        say("is frozen until %.3f, and %s is killed", one->frozen_until_s, other->name);
        machine_kill(other);
        break;
    }
}

void faults_inject(void *context, uint64_t argument)
{
    struct machine *one = &world.machines[chance((uint64_t)world.machine_count)];
    struct machine *other = chance(3) == 0 ? NULL : &world.machines[chance((uint64_t)world.machine_count)];
    if (service.over || service.leaving || world.now_s >= faults.calm_s) {
        return;
    }
    faults.count++;
    world.here = one;
    fault_by_chance(one, other);
    world.here = NULL;
}
