/*
 * Loops so plain that the compiler vectorises them well: every kernel file includes them, and so compiles them for its
 * own instruction set.
 */
#ifndef WORKER_CPU_KERNELS_LOOPS_H
#define WORKER_CPU_KERNELS_LOOPS_H

#include "worker/cpu/kernels.h"

#include <string.h>

/* What `compress` promises: an even number of entries, each of so many values. */
static inline int pad_entries(int entries, int values, uint8_t *index, float *value)
{
    if (entries % 2 != 0) {
        index[entries] = index[entries - 1];
        for (int i = 0; i < values; i++) {
            value[entries * values + i] = 0.0f;
        }
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

static inline int64_t loop_survey(int rows, int cols, const uint8_t *restrict bytes, uint8_t *restrict seen)
{
    int64_t total = 0;
    for (int r = 0; r < rows; r++, bytes += cols) {
        uint16_t set = 0;
        for (int c = 0; c < cols; c++) {
            seen[c] |= bytes[c];
            set = (uint16_t)(set + (bytes[c] != 0));
        }
        total += set;
    }
    return total;
}

static inline void loop_scale(int count, const uint8_t *restrict bytes, float *restrict to)
{
    for (int i = 0; i < count; i++) {
        to[i] = (float)bytes[i] * (1.0f / 255.0f);
    }
}

#endif
