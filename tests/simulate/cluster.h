/* One run: a cluster drawn by a seed, and what happens to it, from its start until training is over. */
#ifndef TESTS_SIMULATE_CLUSTER_H
#define TESTS_SIMULATE_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

/* What a run came to. */
struct outcome {
    bool failed;
    char why[512];
    uint64_t events;
    double seconds; /* simulated */
    int faults;
};

/* What happens to it. */
enum trouble {
    TROUBLE_FAULTS,   /* processes, machines, links, clocks and disks, as the seed has it */
    TROUBLE_ROLLOUTS, /* the same while new configs are rolled out (fleet.h), most of it when a rollout has come to a
                         new phase */
    TROUBLE_PROGRAMS, /* the same, and most of what is rolled out are programs (programs.h) */
    /* calls of the system that fail: of one kind on one machine, all numbers in turn over the seeds */
    TROUBLE_SHORTAGE,
};

/* shows: prints every event. */
void cluster_run(uint64_t seed, enum trouble trouble, bool shows, struct outcome *outcome);

#endif
