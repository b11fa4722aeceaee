/*
 * What the simulator (tests/simulate) asks of the program's own code. Only its build says TRAINER_SIMULATED; in the
 * product nothing of this is left.
 *
 * MARK("what happens here") stands in a branch that matters and is seldom taken: thousands of simulated clusters must
 * come by each of them, or the faults that used to lead there do so no more. RARELY("what", statement) does now and
 * then what is allowed at any time and hardly ever happens. SMALLER(usual, simulated) is a size, so that what takes a
 * large model (several stripes, several frames) happens to a small one, too.
 */
#ifndef BASE_SIMULATION_H
#define BASE_SIMULATION_H

#ifdef TRAINER_SIMULATED

#include <stdbool.h>

struct simulation_mark {
    const char *what;
    bool passed;
};

void simulation_pass(struct simulation_mark *mark);
bool simulation_rarely(struct simulation_mark *mark); /* and if so, passes */

/* The linker lays them side by side, so that those that nobody came by are known as well. */
#define SIMULATION_MARK(text)                                                                                          \
    static struct simulation_mark mark __attribute__((section("marks"), used)) = {.what = (text)}

#define MARK(what)                                                                                                     \
    do {                                                                                                               \
        SIMULATION_MARK(what);                                                                                         \
        simulation_pass(&mark);                                                                                        \
    } while (0)

#define RARELY(what, statement)                                                                                        \
    do {                                                                                                               \
        SIMULATION_MARK(what);                                                                                         \
        if (simulation_rarely(&mark)) {                                                                                \
            statement;                                                                                                 \
        }                                                                                                              \
    } while (0)

#define SMALLER(usual, simulated) (simulated)

#else

#define MARK(what)                ((void)0)
#define RARELY(what, statement)   ((void)0)
#define SMALLER(usual, simulated) (usual)

#endif

#endif
