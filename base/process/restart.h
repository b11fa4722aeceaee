/*
 * How a process outlives a bad version of its config, its own death, and a change that only a fresh start can make.
 * Three mechanisms work together, and none needs to know how the others did:
 *
 * - Restart in place: the process executes its own program again, with the same arguments, environment and process
 *   id, so that whatever started it (a shell, systemd, the parent below) sees no end. Rollouts use it for every
 *   change that is not live.
 * - The parent, `--supervise`: starts the process again when it dies, where nothing else (systemd, Kubernetes) does.
 *   It keeps nothing that a crash could cost.
 * - Probation: a version that a process has just restarted in may kill it, in the parsing of the config or at any
 *   later point. So the process counts its own starts on disk before it reads the config; one that finds that it has
 *   died in this version twice goes back to the fallback by itself. What starts it again need not know. A start that
 *   finds the version's files damaged tells nothing about the version: the process goes back and takes it again.
 *
 * A rollout may bring a program, too (base/process/program.h). Then a restart executes that one instead. It may hang
 * before anybody can ask it how it is, so an alarm goes with it, which the kernel delivers whatever the program does:
 * it dies of that unless it has got as far as ps 0 by then, and that is one bad start more.
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

/* Tells this process from others on this machine, before and after a restart: a hash of its arguments and TF_CONFIG. */
void restart_identity(char id[RESTART_ID]);

/*
 * From now on a thread stands by to execute the program in today's state: what the caller asks of the scheduler later
 * is not inherited. Once. False if no thread can be started: then the caller of restart_now executes it.
 */
bool restart_stand_by(void);

/*
 * The next restart executes this file. on_probation: as a start that is counted already, and that is killed after
 * RESTART_ARRIVE_S unless it calls restart_arrived.
 */
bool restart_in(const char *path, bool on_probation, struct error *error);

/* At once, in a process without threads. Returns only if it fails. */
bool restart_at_once(const char *path, bool on_probation, struct error *error);

/* Was this process put into its program by the one before it, in the same process? */
bool restart_was_executed(void);

/* This process works: it need not be killed. Once is enough; any thread. */
void restart_arrived(void);

/* The process is about to shut down and restart. If it has not done so within this time, it restarts wherever it is. */
void restart_within(unsigned seconds);

/*
 * Never returns if the program can be executed again. Otherwise the reason is logged, and the process should end with
 * RESTART_STATUS, upon which supervisors start it again.
 */
void restart_now(void);

/* --- The parent --- */

/* Is this the child of such a parent? */
bool supervise_is_child(void);

/*
 * Starts children until one ends by itself with status 0, or misused (status 2) at its very first start, or the
 * parent is asked to leave, which it passes on. Gives up on a child that dies again and again within a minute.
 * Returns the status to end with. To be called before the process has threads.
 */
int supervise(char *const *arguments);

/* --- Probation --- */

enum { PROBATION_STARTS = 2 /* that end badly; the next one goes back */ };

struct probation {
    uint64_t target, fallback;
    int starts;  /* in the target, so far */
    bool failed; /* it went back */
};

/* This process is about to restart in `target`, which is in the folder of versions, as is the fallback. */
bool probation_begin(const char *config_path, uint64_t target, uint64_t fallback, struct error *error);

/* Its next start will not count itself: it counts from now on, for it may not get that far. */
bool probation_count(const char *config_path, struct error *error);

/* It can't be started at all: goes back at once. */
void probation_fail(const char *config_path);

/*
 * The disk has changed what the target is made of, which is not the version's fault: goes back, and may come again.
 * damage: what people are told.
 */
void probation_give_up(const char *config_path, const char *damage);

/*
 * At the start of a process, before the config is read: counts, unless who executed it did, and goes back if it is
 * time, or if the target's files are damaged. config_path NULL: none.
 */
void probation_check(const char *config_path);

/* False: it is not on probation, and has not failed one that is still open. */
bool probation_read(const char *config_path, struct probation *probation);

void probation_end(const char *config_path);

#endif
