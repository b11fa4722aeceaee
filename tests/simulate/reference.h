/*
 * The present generation as one process would make it: the parameters, to the bit, and the learning rate of each of its
 * steps.
 */
#ifndef TESTS_SIMULATE_REFERENCE_H
#define TESTS_SIMULATE_REFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/simulate/records.h"

/* What was saved at a step. */
struct saved {
    float parameters[SETUP_FLOATS];
    double sum;             /* of each row */
    uint64_t preprocessing; /* a hash of it; 0: none */
};

/* The present generation's learning rates. */
extern struct lineage {
    uint32_t generation;
    int64_t first_step, end_step;
    double base;                    /* the sum of each row at the first step */
    double rate[RECORDS_MAX_STEPS]; /* of the steps from first_step to end_step */
    uint64_t preprocessing;         /* a hash of it; 0: images */
    bool mixed; /* two shards made a step at different rates: allowed if it is undone and never saved */
} lineage;

/* A generation begins, with what was saved at that step; NULL: with nothing, at step 0. */
void reference_begin(uint32_t generation, int64_t step, const struct saved *saved, uint64_t preprocessing);

/* The sum of every row at a step. */
double reference_sum_at(int64_t step);

/* These are about to be saved: are they the parameters of that step? */
void reference_check(const float *parameters, int64_t step);

#endif
