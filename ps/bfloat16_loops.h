/*
 * The loops over bfloat16 arrays, compiled once per instruction set: ps/bfloat16.c includes this for the baseline,
 * ps/bfloat16_avx2.c and ps/bfloat16_avx512.c, which are compiled for what their names say, give their tables other
 * names first. It is included nowhere else.
 */
#ifndef PS_BFLOAT16_LOOPS_H
#define PS_BFLOAT16_LOOPS_H

#include "ps/bfloat16.h"

struct bfloat16_loops {
    void (*narrow)(uint16_t *restrict halves, const float *restrict values, size_t n);
    void (*widen)(float *restrict values, const uint16_t *restrict halves, size_t n);
    uint32_t (*feed_back)(uint16_t *restrict halves, float *restrict remainders, const float *restrict values,
                          size_t n);
};

extern const struct bfloat16_loops bfloat16_baseline, bfloat16_avx2, bfloat16_avx512;

#ifndef BFLOAT16_LOOPS
#define BFLOAT16_LOOPS bfloat16_baseline
#endif

static void loop_narrow(uint16_t *restrict halves, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        halves[i] = bfloat16_round(values[i]);
    }
}

static void loop_widen(float *restrict values, const uint16_t *restrict halves, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = bfloat16_widen(halves[i]);
    }
}

/* Not 0 if some half is not. */
static uint32_t loop_feed_back(uint16_t *restrict halves, float *restrict remainders, const float *restrict values,
                               size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        float sum = values[i] + remainders[i];
        uint16_t half = bfloat16_round(sum);
        float left = sum - bfloat16_widen(half);
        halves[i] = half;
        remainders[i] = left - left == 0.0f ? left : 0.0f;
        any |= (uint32_t)half << 17; /* whatever its sign, a zero is a zero */
    }
    return any;
}

const struct bfloat16_loops BFLOAT16_LOOPS = {loop_narrow, loop_widen, loop_feed_back};

#endif
