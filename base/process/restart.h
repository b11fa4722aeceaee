/*
 * Starting anew in place: the process becomes a fresh one of the same program, with the same arguments, environment and
 * process id, so that whoever started it (a shell, systemd, trainer --supervise) sees no end.
 */
#ifndef BASE_PROCESS_RESTART_H
#define BASE_PROCESS_RESTART_H

#include <stdbool.h>
#include <stddef.h>

enum { RESTART_STATUS = 75, RESTART_ID = 17 };

/* Once, at the beginning of main. argv is borrowed. */
void restart_remember(char *const *argv);

/*
 * What tells this process from others that run here, now and after it started anew: a hash of arguments and
 * TF_CONFIG.
 */
void restart_identity(char id[RESTART_ID]);

/*
 * From now on a thread stands by to execute the program as things are now: what the caller asks of the scheduler
 * later is not inherited. False where no thread can be started: then who calls restart_now executes it. Once.
 */
bool restart_stand_by(void);

/*
 * The process is about to end in order, to start anew: if it has not done so within so many seconds, it does so at
 * once, wherever it is then.
 */
void restart_within(unsigned seconds);

/*
 * Never returns if the program can be executed again; else the reason is logged, and the process had better end with
 * RESTART_STATUS, which those who supervise processes answer by starting it again.
 */
void restart_now(void);

#endif
