/* The system's clocks, in seconds. */
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
