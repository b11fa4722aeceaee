/* What workers and ps send each other, and whether all workers compute a step from the same parameters. */
#ifndef TESTS_SIMULATE_EXCHANGES_H
#define TESTS_SIMULATE_EXCHANGES_H

#include <stdint.h>

/* A worker computes a step from these parameters. */
void exchanges_see(int worker, int64_t step, const float *parameters);

#endif
