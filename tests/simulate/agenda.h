/* What will happen, and when: timed calls, taken in the order of their times, and then in that of their addition. */
#ifndef TESTS_SIMULATE_AGENDA_H
#define TESTS_SIMULATE_AGENDA_H

#include <stdbool.h>
#include <stdint.h>

enum { AGENDA_MOST = 1 << 16 };

struct call {
    double when_s;
    void (*call)(void *context, uint64_t argument);
    void *context;
    uint64_t argument;
    uint64_t order; /* set by the agenda */
};

/* Empties it. is_stale: a call that would have no effect, which the agenda may discard. */
void agenda_begin(bool (*is_stale)(const struct call *call));

/* False: it is full. */
bool agenda_add(const struct call *call);

/* Removes the next call that is due by then; false: there is none. */
bool agenda_take(double until_s, struct call *next);

#endif
