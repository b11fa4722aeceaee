/*
 * How a process survives a bad version of its config, its own death, and changes that need a fresh start. Three
 * mechanisms work together, and none depends on the others' outcome:
 *
 * - Restart in place: the process executes its own program again, with the same arguments, environment and process id,
 *   so that whatever started it (a shell, systemd, the parent below) does not see it exit. Rollouts use it for every
 *   change that is not live.
 * - The parent, `--supervise`: starts the process again when it dies, where nothing else (systemd, Kubernetes) does. It
 *   has no state that a crash could lose.
 * - Probation: a version that a process has just restarted in may kill it, while parsing the config or at any later
 *   point. So the process counts its own starts on disk before it reads the config, and after two deaths in this
 *   version it falls back by itself; whatever starts it again need not know. A start that finds the version's files
 *   damaged says nothing about the version: the process falls back and fetches it again.
 *
 * A rollout may include a program, too (base/process/program.h), which the restart then executes. It may hang before
 * anybody can query it, so an alarm is set, which the kernel delivers whatever the program does: the alarm kills it
 * unless it has reached ps 0 by then, and that counts as one more bad start.
 *
 * restart.c has the first two, probation.c the third. Callers: base/cli/command.c at the start and the end of every
 * command, worker/train.c for --supervise, and ps/rollout/participant.c for rollouts.
 */
#ifndef BASE_PROCESS_RESTART_H
#define BASE_PROCESS_RESTART_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* --- Restart in place --- */

enum { RESTART_STATUS = 75, RESTART_ID = 17, RESTART_ARRIVE_S = 10 };

/* Once, at the beginning of main. argv is borrowed. */
void restart_remember(char *const *argv);

/* Identifies this process among others on this machine, across restarts: a hash of its arguments and TF_CONFIG. */
void restart_identity(char id[RESTART_ID]);

/*
 * Starts a thread that stands by to execute the program with the present scheduling attributes, so that later changes
 * to the caller's are not inherited. Call once. False if no thread can be started: the caller of restart_now then
 * executes the program itself.
 */
bool restart_spawn_helper(void);

/*
 * The next restart executes this file. on_probation: the start has been counted already, and the process is killed
 * after RESTART_ARRIVE_S seconds unless it calls restart_arrived.
 */
bool restart_in(const char *path, bool on_probation, struct error *error);

/* The same at once, in a process without other threads. Returns only on failure. */
bool restart_at_once(const char *path, bool on_probation, struct error *error);

/* True if this program was executed by an earlier one in the same process. */
bool restart_was_executed(void);

/* Cancels the alarm: this process works. Once is enough; any thread. */
void restart_arrived(void);

/*
 * The process is about to shut down and restart. If it has not done so within this time, it restarts whatever it is
 * doing.
 */
void restart_within(unsigned seconds);

/*
 * Returns only if the program cannot be executed again. Then the reason is logged, and the process should exit with
 * RESTART_STATUS, so that its supervisor starts it again.
 */
void restart_now(void);

/* --- The parent --- */

/* True in a child of such a parent. */
bool supervise_is_child(void);

/*
 * Starts children until one exits with status 0, or with 2 (misuse) at its very first start, or until the parent is
 * asked to leave, which it passes on. Gives up on a child that dies again and again within a minute. Returns the exit
 * status. Call it before the process has threads.
 */
int supervise(char *const *arguments);

/* --- Probation --- */

enum { PROBATION_STARTS = 2 /* bad starts; the next one falls back */ };

struct probation {
    uint64_t target, fallback;
    int starts;  /* starts in the target so far */
    bool failed; /* it fell back */
};

/* This process is about to restart in `target`. Both versions exist in the folder of versions. */
bool probation_begin(const char *config_path, uint64_t target, uint64_t fallback, struct error *error);

/* The target can't be started at all: falls back at once. */
void probation_fail(const char *config_path);

/*
 * At the start of a process, before the config is read: counts the start, unless the executing program did, and falls
 * back if the limit is reached or the target's files are damaged. config_path NULL: none.
 */
void probation_check(const char *config_path);

/* False: this process is not on probation, and no failed probation is still open. */
bool probation_read(const char *config_path, struct probation *probation);

void probation_end(const char *config_path);

#endif
