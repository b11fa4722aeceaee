/* What workers compute (engine.c), for whoever computes the same. */
#ifndef TESTS_SIMULATE_ENGINE_H
#define TESTS_SIMULATE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

/* Is the model of a step right about this example? */
static inline bool engine_is_right(int worker, int64_t step, int example)
{
    return (worker + step + example) % 3 != 0;
}

/* The part of a gradient that depends on what it was computed from. */
float engine_mix(float parameter, int worker, int draw, int col);

#endif
