/*
 * Count, mean and deviation of numbers that come one by one. Sums are taken of differences from the first number of
 * each chunk, and chunks are merged by their means (Chan, Golub, LeVeque, 1979), so that a large mean costs no digits.
 */
#ifndef WORKER_DATA_TABLE_MOMENTS_H
#define WORKER_DATA_TABLE_MOMENTS_H

#include <stdint.h>

enum { MOMENTS_CHUNK = 512 };

/* Starts as zeros. */
struct moments {
    int64_t count;        /* of the merged chunks */
    double mean, squares; /* squares: sum of squared differences from the mean */
    int in_chunk;
    double shift, sum, sum_squares; /* of the current chunk */
};

/* Merges the current chunk. Call it before reading count, mean and squares. */
static inline void moments_settle(struct moments *moments)
{
    if (moments->in_chunk == 0) {
        return;
    }
    const double n = moments->in_chunk, before = (double)moments->count, all = before + n;
    const double offset = moments->sum / n, difference = moments->shift + offset - moments->mean;
    moments->squares += moments->sum_squares - moments->sum * offset + difference * difference * before * n / all;
    moments->mean += difference * n / all;
    moments->count += moments->in_chunk;
    moments->in_chunk = 0;
}

static inline void moments_add(struct moments *moments, double number)
{
    if (moments->in_chunk == 0) {
        moments->shift = number;
        moments->sum = moments->sum_squares = 0;
    }
    const double difference = number - moments->shift;
    moments->sum += difference;
    moments->sum_squares += difference * difference;
    if (++moments->in_chunk == MOMENTS_CHUNK) {
        moments_settle(moments);
    }
}

#endif
