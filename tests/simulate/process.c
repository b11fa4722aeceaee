/*
 * What a process learns about itself and asks of others: how much memory and disk there is, re-exec in place, and a
 * child (the trial of a config), which takes its time and ends well or badly as the run decides.
 */
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "base/process/restart.h"
#include "tests/simulate/fleet.h"
#include "tests/simulate/programs.h"
#include "tests/simulate/world.h"

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

enum { CHILD = 7777, PLENTY = 1 << 30 };

/* --- Re-exec: see service_look_after, which starts it again at once --- */

void restart_remember(char *const *argv)
{
}

void restart_identity(char id[RESTART_ID])
{
    snprintf(id, RESTART_ID, "%016x", 1);
}

static void restart_anyway(void *context, uint64_t life)
{
    struct machine *machine = context;
    if (machine->runs && (uint64_t)machine->life == life) {
        machine_kill(machine);
        machine->status = RESTART_STATUS;
    }
}

void restart_within(unsigned seconds)
{
    world_at(world.now_s + seconds, restart_anyway, world.here, (uint64_t)world.here->life);
}

void restart_now(void)
{
}

bool restart_in(const char *path, bool on_probation, struct error *error)
{
    return programs_next(path, on_probation, error);
}

bool restart_at_once(const char *path, bool on_probation, struct error *error)
{
    return programs_execute(path, on_probation, error);
}

bool restart_was_executed(void)
{
    return programs_was_executed();
}

void restart_arrived(void)
{
    programs_arrived();
}

bool supervise_is_child(void)
{
    return false;
}

bool restart_spawn_helper(void)
{
    return true;
}

WRAP(void, threads_give_way, void)
{
}

/* Out of memory (base/memory.h): the process is gone at once, whichever thread it was. */
_Noreturn void __real__exit(int status);
_Noreturn void __wrap__exit(int status);
_Noreturn void __wrap__exit(int status)
{
    if (!world.here) {
        __real__exit(status);
    }
    say("ends with status %d", status);
    machine_exit(status);
}

/* --- This machine --- */

WRAP(bool, memory_for_this_process, uint64_t *bytes)
{
    *bytes = fleet_is_small(world.here) ? 1024 : PLENTY;
    return true;
}

WRAP(int, statvfs, const char *path, struct statvfs *status)
{
    *status = (struct statvfs){.f_frsize = 4096, .f_bavail = disk_is_full(world.here->disk) ? 0 : PLENTY / 4096};
    return 0;
}

/* --- Children --- */

static struct {
    double until_s;
    bool bad;
} children[WORLD_MAX_MACHINES];

WRAP(int, posix_spawn, pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
     const posix_spawnattr_t *attributes, char *const *arguments, char *const *environment)
{
    children[world.here->number].until_s = world.now_s + 0.1 + 3 * chance_real();
    children[world.here->number].bad = fleet_trial_fails(strchr(arguments[1], '=') + 1);
    *pid = CHILD;
    return 0;
}

WRAP(pid_t, waitpid, pid_t pid, int *status, int options)
{
    if (!world.here || pid != CHILD) {
        return __real_waitpid(pid, status, options);
    }
    if (world.now_s < children[world.here->number].until_s) {
        return 0;
    }
    *status = children[world.here->number].bad ? 1 << 8 : 0;
    return CHILD;
}

WRAP(int, kill, pid_t pid, int number)
{
    if (!world.here || pid != CHILD) {
        return __real_kill(pid, number);
    }
    children[world.here->number].until_s = 0;
    return 0;
}
