/* Time for decisions: monotonic seconds never go back, whatever happens to the wall clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_monotonic_s(void);
double clock_thread_s(void); /* CPU time used by the calling thread */
double clock_wall_s(void);   /* seconds since 1970, for names and metadata only */

/* Sleeps until clock_monotonic_s reaches until_s, but 0.1 s at most, so that callers notice signals. */
void clock_pause(double until_s);

#endif
