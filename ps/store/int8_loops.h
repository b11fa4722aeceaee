/*
 * The loops over int8 blocks, compiled once per instruction set, as ps/store/bfloat16_loops.h is: ps/store/int8.c
 * includes this for the baseline; ps/store/int8_avx2.c and ps/store/int8_avx512.c rename their tables first.
 */
#ifndef PS_STORE_INT8_LOOPS_H
#define PS_STORE_INT8_LOOPS_H

#include <float.h>
#include <math.h>
#include <string.h>

#include "ps/store/int8.h"

struct int8_loops {
    void (*round)(uint8_t *restrict bytes, float *restrict values, size_t n);
    void (*widen)(float *restrict values, const uint8_t *restrict bytes, size_t n);
};

extern const struct int8_loops int8_baseline, int8_avx2, int8_avx512;

#ifndef INT8_LOOPS
#define INT8_LOOPS int8_baseline
#endif

/* The bits of the largest magnitude; infinities and NaN count as larger than all finite values. */
static inline uint32_t loop_largest(const float *values, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static inline void loop_round_block(int8_t *restrict bytes, float *restrict values, float scale, size_t n)
{
    const float inverse = 1.0f / scale;
    for (size_t i = 0; i < n; i++) {
        const float to_nearest = 0x1.8p23f; /* larger floats have no fraction */
        const float whole = values[i] * inverse + to_nearest - to_nearest;
        bytes[i] = (int8_t)(int32_t)whole;
        values[i] -= scale * whole;
    }
}

static inline void loop_round_any(float *scale_to, int8_t *restrict bytes, float *restrict values, size_t n)
{
    const uint32_t largest = loop_largest(values, n), beyond = 0x7f000000u; /* 2^127: 127 x scale is finite below it */
    float magnitude, scale;
    memcpy(&magnitude, &largest, sizeof magnitude);
    scale = magnitude / 127.0f;
    if (largest < beyond && scale >= FLT_MIN) {
        loop_round_block(bytes, values, scale, n);
    } else {
        const bool finite = largest < beyond;
        scale = finite ? 0.0f : NAN;
        memset(bytes, 0, n);
        for (size_t i = 0; i < n && !finite; i++) {
            values[i] = 0.0f;
        }
    }
    memcpy(scale_to, &scale, sizeof scale);
}

static void loop_round(uint8_t *restrict bytes, float *restrict values, size_t n)
{
    uint8_t *scales = bytes;
    int8_t *to = (int8_t *)bytes + int8_blocks(n) * sizeof(float);
    for (size_t i = 0; i < n; i += INT8_BLOCK, scales += sizeof(float)) {
        float scale;
        if (n - i >= INT8_BLOCK) { /* a count known to the compiler */
            loop_round_any(&scale, to + i, values + i, INT8_BLOCK);
        } else {
            loop_round_any(&scale, to + i, values + i, n - i);
        }
        memcpy(scales, &scale, sizeof scale);
    }
}

static void loop_widen(float *restrict values, const uint8_t *restrict bytes, size_t n)
{
    const uint8_t *scales = bytes;
    const int8_t *from = (const int8_t *)bytes + int8_blocks(n) * sizeof(float);
    for (size_t i = 0; i < n; i += INT8_BLOCK, scales += sizeof(float)) {
        const size_t count = n - i < INT8_BLOCK ? n - i : INT8_BLOCK;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        for (size_t k = 0; k < count; k++) {
            values[i + k] = scale * (float)from[i + k];
        }
    }
}

const struct int8_loops INT8_LOOPS = {loop_round, loop_widen};

#endif
