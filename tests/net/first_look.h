/*
 * The product's first look at the clock, on this thread, returns the time from which the test counts, however long the
 * thread was held up in between. Link with --wrap=clock_monotonic_s.
 */
#ifndef TESTS_NET_FIRST_LOOK_H
#define TESTS_NET_FIRST_LOOK_H

#include "base/clock.h"
#include "tests/own_clock.h"

static _Thread_local double shown_next_s; /* 0: the time that it is */

double own_clock_s(void)
{
    const double shown_s = shown_next_s;
    shown_next_s = 0;
    return shown_s > 0 ? shown_s : system_clock_s();
}

/* Now; the next look shows the same. */
static inline double now_for_both_s(void)
{
    shown_next_s = system_clock_s();
    return shown_next_s;
}

#endif
