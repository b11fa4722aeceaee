/*
 * Requests to leave. SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless ignored, as under nohup) ask for an orderly end, for
 * which the program's loops check between two pieces of work; a second one ends the process at once.
 */
#ifndef BASE_PROCESS_SIGNALS_H
#define BASE_PROCESS_SIGNALS_H

#include <sys/types.h>

#include "base/clock.h"

/*
 * Installs the handlers; call once, before other threads exist. From then on a closed pipe (SIGPIPE) and a file size
 * limit (SIGXFSZ) are ordinary write errors that do not end the run.
 */
void signals_catch(void);

/*
 * Like fork(2), for a child that will execute a program. The inherited handlers would only record a signal, and nothing
 * in the child looks; so until then the signals that signals_catch catches have their default action there. Ignored
 * ones stay ignored.
 */
pid_t signals_fork(void);

/* The first signal that asked the process to leave, 0 if none did. Any thread. */
int signals_pending(void);

/* Sleeps until clock_monotonic_s is until_s, or the process is asked to leave. */
static inline void signals_pause(double until_s)
{
    while (signals_pending() == 0 && clock_monotonic_s() < until_s) {
        clock_pause(until_s);
    }
}

/* The signal's name, "SIGINT" for instance. */
const char *signals_name(int number);

/* The exit status of a process that left because of a signal, as shells count it. */
int signals_exit_status(int number);

#endif
