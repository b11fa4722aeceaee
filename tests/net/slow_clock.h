/*
 * A clock that a test can slow down. What a busy machine adds to each turn then counts for little against the limits
 * of the program, all of which are longer by the same factor. Link with --wrap=clock_monotonic_s.
 */
#ifndef TESTS_NET_SLOW_CLOCK_H
#define TESTS_NET_SLOW_CLOCK_H

#include <stdatomic.h>
#include "tests/own_clock.h"

enum { SLOW_CLOCK_FACTOR = 5 };

static _Atomic double slow_clock_since_s; /* 0: it is as fast as the true one */

double own_clock_s(void)
{
    const double since_s = atomic_load(&slow_clock_since_s), now_s = system_clock_s();
    return since_s > 0 ? since_s + (now_s - since_s) / SLOW_CLOCK_FACTOR : now_s;
}

static inline void slow_clock_begin(void)
{
    atomic_store(&slow_clock_since_s, system_clock_s());
}

/* Back to true time, a jump ahead: nothing may be waiting by this clock. */
static inline void slow_clock_end(void)
{
    atomic_store(&slow_clock_since_s, 0);
}

#endif
