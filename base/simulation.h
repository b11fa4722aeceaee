/*
 * Hooks of the simulator (tests/simulate) in the program's own code. Only the simulator's build defines
 * TRAINER_SIMULATED; nothing of this is left in the product.
 *
 * MARK("what happens here") marks a branch that matters but is seldom taken: thousands of simulated clusters must reach
 * every mark, or the injected faults no longer cover it. RARELY("what", statement) now and then executes what may
 * happen at any time but hardly ever does. SMALLER(usual, simulated) is a size that is smaller in simulation, so that
 * small models, too, need several stripes or frames.
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
bool simulation_rarely(struct simulation_mark *mark); /* if true, marks it as passed */

/* The linker places all marks side by side, so that those never reached can be listed as well. */
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
