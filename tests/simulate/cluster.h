/* One run: a cluster drawn from a seed, and its faults, from start until training is over. */
#ifndef TESTS_SIMULATE_CLUSTER_H
#define TESTS_SIMULATE_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

/* The result of a run. */
struct outcome {
    bool failed;
    char why[512];
    uint64_t events;
    double seconds; /* simulated */
    int faults;
};

/* The kind of faults. */
enum trouble {
    TROUBLE_FAULTS,   /* processes, machines, links, clocks and disks, drawn from the seed */
    TROUBLE_ROLLOUTS, /* the same during rollouts of new configs (fleet.h), mostly when a new phase has begun */
    TROUBLE_PROGRAMS, /* the same, and most rollouts bring programs (programs.h) */
    /* system calls that fail: of one kind on one machine, all call numbers in turn over the seeds */
    TROUBLE_SHORTAGE,
};

/* Once per process. shows: prints every event. */
void cluster_run(uint64_t seed, enum trouble trouble, bool shows, struct outcome *outcome);

#endif
