/*
 * Robust means of several workers' values, float by float, which a few broken or poisoned workers can't shift as they
 * can a mean (Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018).
 *
 *     trimmed_mean   the mean without the `trim` share of the values at each end
 *     median         the middle one, or the mean of the middle two
 *
 * Workers have equal weight. The remaining values are added from the smallest to the largest, in float32, and divided
 * by their number, so the bits do not depend on the workers' order.
 */
#ifndef PS_STORE_ROBUST_H
#define PS_STORE_ROBUST_H

#include <stddef.h>

#include "base/config.h"

/* How many of `count` values are dropped at each end; fewer than half. -1: train.aggregate is mean. */
int robust_cut(const struct config_train *train, int count);

/* Bytes of scratch that robust_mean needs for `workers` workers. */
size_t robust_scratch(int workers);

/*
 * out[i], i < count, becomes the robust mean of values[k][i] * scales[k], k < workers. values[k] NULL: zeros. out may
 * equal one of the values, but must not overlap one otherwise. scratch: robust_scratch bytes, aligned for int.
 */
void robust_mean(float *out, const float *const *values, const float *scales, int workers, int cut, size_t count,
                 void *scratch);

#endif
