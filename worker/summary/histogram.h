/*
 * Histograms as in TensorFlow: bucket limits grow by a tenth from 1e-12 to 1e20, on both sides of zero.
 * Source: tensorflow/core/lib/histogram/histogram.cc.
 */
#ifndef WORKER_SUMMARY_HISTOGRAM_H
#define WORKER_SUMMARY_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

#include "base/encoding/proto.h"

enum {
    HISTOGRAM_SIDE = 775,                       /* limits above zero, the largest double included */
    HISTOGRAM_BUCKETS = 2 * HISTOGRAM_SIDE + 1, /* as many below, and zero */
    HISTOGRAM_LANES = 4,
};

/*
 * Neighbouring values often share a bucket, and their increments would depend on each other; so they are spread over
 * lanes.
 */
struct histogram {
    uint64_t lanes[HISTOGRAM_LANES][HISTOGRAM_BUCKETS]; /* bucket i: limit i - 1 <= value < limit i */
    uint64_t count;                                     /* of finite values; others are ignored */
    double sum, squares;
    float minimum, maximum;
};

void histogram_clear(struct histogram *histogram);

/* Costs about 2 ns per value. */
void histogram_add(struct histogram *histogram, const float *values, size_t count);

/* The number of values in a bucket. */
uint64_t histogram_count(const struct histogram *histogram, int bucket);

/* The upper limit of a bucket. */
double histogram_limit(int bucket);

/* Writes a HistogramProto as that field; runs of empty buckets are merged, as in TensorFlow. */
void histogram_encode(const struct histogram *histogram, struct proto *proto, int field);

#endif
