/* One run: a cluster drawn by a seed, and what befalls it, from its start until training is over. */
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

/* shows: prints every event. */
void cluster_run(uint64_t seed, bool shows, struct outcome *outcome);

#endif
