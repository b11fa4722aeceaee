/*
 * Loops so plain that the compiler vectorises them well: every kernel file includes them, and so compiles them for its
 * own instruction set.
 */
#ifndef WORKER_CPU_KERNELS_LOOPS_H
#define WORKER_CPU_KERNELS_LOOPS_H

#include "worker/cpu/kernels.h"

#include <string.h>

/* What `compress` promises: an even number of entries. */
static inline int pad_entries(int entries, uint32_t *offset, float *value)
{
    if (entries % 2 != 0) {
        offset[entries] = offset[entries - 1];
        value[2 * entries] = 0.0f;
        value[2 * entries + 1] = 0.0f;
        entries++;
    }
    return entries;
}

static inline void loop_column_sums(int rows, int n, const float *from, int stride, float *restrict sum,
                                    bool accumulate)
{
    if (!accumulate) {
        memset(sum, 0, (size_t)n * sizeof *sum);
    }
    for (int r = 0; r < rows; r++, from += stride) {
        for (int j = 0; j < n; j++) {
            sum[j] += from[j];
        }
    }
}

static inline void loop_add(int n, const float *restrict from, float *restrict to)
{
    for (int i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

static inline void loop_derive(enum activation activation, int n, const float *restrict a, float *restrict delta)
{
    switch (activation) {
    case ACTIVATION_RELU:
        for (int i = 0; i < n; i++) {
            delta[i] = a[i] > 0.0f ? delta[i] : 0.0f;
        }
        break;
    case ACTIVATION_SIGMOID:
        for (int i = 0; i < n; i++) {
            delta[i] *= a[i] * (1.0f - a[i]);
        }
        break;
    case ACTIVATION_TANH:
        for (int i = 0; i < n; i++) {
            delta[i] *= 1.0f - a[i] * a[i];
        }
        break;
    case ACTIVATION_IDENTITY:
        break;
    }
}

static inline void loop_transpose(int rows, int cols, const float *restrict from, int from_stride, float *restrict to,
                                  int n)
{
    for (int c = 0; c < cols; c++, to += n) {
        for (int r = 0; r < rows; r++) {
            to[r] = from[(size_t)r * (size_t)from_stride + (size_t)c];
        }
        memset(to + rows, 0, (size_t)(n - rows) * sizeof *to);
    }
}

static inline void loop_scale(int count, const uint8_t *restrict bytes, float *restrict to)
{
    for (int i = 0; i < count; i++) {
        to[i] = (float)bytes[i] * (1.0f / 255.0f);
    }
}

#endif
