/*
 * Being asked to leave. SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it was ignored, as nohup does) ask for an orderly
 * end, which the loops of the program look for between two pieces of work; a second one ends the process at once.
 */
#ifndef BASE_PROCESS_SIGNALS_H
#define BASE_PROCESS_SIGNALS_H

#include "base/clock.h"

/*
 * Starts to catch them, once, before other threads exist. From then on a reader of our output that goes away (SIGPIPE)
 * and a file that hits its size limit (SIGXFSZ) are ordinary errors of a write, not the end of a run.
 */
void signals_catch(void);

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
