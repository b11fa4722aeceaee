/* Time for decisions: monotonic seconds never go back, whatever happens to the wall clock. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

double clock_monotonic_s(void);
double clock_thread_s(void); /* processor time that the calling thread has taken */
double clock_wall_s(void);   /* seconds since 1970, for names and metadata only */

/* Sleeps at most until clock_monotonic_s is until_s, and a tenth of a second at most, so that callers see signals. */
void clock_pause(double until_s);

#endif
