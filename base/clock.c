/* The system's clocks, in seconds, and sleep. */
#include "base/clock.h"

#include <time.h>

static double seconds_of(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double clock_monotonic_s(void)
{
    return seconds_of(CLOCK_MONOTONIC);
}

double clock_thread_s(void)
{
    return seconds_of(CLOCK_THREAD_CPUTIME_ID);
}

double clock_wall_s(void)
{
    return seconds_of(CLOCK_REALTIME);
}

void clock_pause(double until_s)
{
    static const double LONGEST_S = 0.1;
    double left_s = until_s - clock_monotonic_s();
    left_s = left_s < LONGEST_S ? left_s : LONGEST_S;
    if (left_s > 0) {
        struct timespec time = {.tv_nsec = (long)(left_s * 1e9)};
        nanosleep(&time, NULL);
    }
}
