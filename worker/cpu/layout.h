/*
 * How the CPU engine cuts matrices into strips: a whole number of vectors wide, balanced over a layer's units, and
 * independent of the number of threads, so that the order of every sum is, too.
 */
#ifndef WORKER_CPU_LAYOUT_H
#define WORKER_CPU_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/kernels.h"

/* The strips of `width` columns. */
struct strips {
    int width;
    int lanes;
    int vectors; /* width / lanes, rounded up */
    int count;
    int pitch; /* floats of the widest strip */
};

/* A matrix [capacity, width], strip after strip, each [capacity, strips' pitch]; or row by row if pitch is not 0. */
struct matrix {
    float *values;
    int capacity;
    int pitch;
};

static inline int strip_col(const struct strips *strips, int strip)
{
    return (int)((int64_t)strip * strips->vectors / strips->count) * strips->lanes;
}

/* Columns of a strip, padding included: a whole number of vectors. */
static inline int strip_floats(const struct strips *strips, int strip)
{
    return strip_col(strips, strip + 1) - strip_col(strips, strip);
}

/* Columns of a strip, without padding. */
static inline int strip_units(const struct strips *strips, int strip)
{
    int end = strip_col(strips, strip + 1);
    return (end < strips->width ? end : strips->width) - strip_col(strips, strip);
}

static inline int strip_stride(const struct matrix *matrix, const struct strips *strips)
{
    return matrix->pitch ? matrix->pitch : strips->pitch;
}

static inline float *strip_row(const struct matrix *matrix, const struct strips *strips, int strip, int row)
{
    if (matrix->pitch) {
        return matrix->values + (size_t)row * (size_t)matrix->pitch + strip_col(strips, strip);
    }
    return matrix->values + ((size_t)strip * (size_t)matrix->capacity + (size_t)row) * (size_t)strips->pitch;
}

/* Samples are processed in chunks of nearly equal size; all but the last have an even number. */
static inline int chunk_count(int samples)
{
    return (samples + KERNEL_CHUNK - 1) / KERNEL_CHUNK;
}

static inline int chunk_first(int samples, int chunk)
{
    int first = (int)((int64_t)chunk * samples / chunk_count(samples));
    return chunk < chunk_count(samples) ? (first + 1) & ~1 : samples;
}

static inline int round_up(int n, int multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

#endif
