/*
 * The middle of several workers' values, float by float: what a few broken or poisoned workers can't pull away, as they
 * can a mean (Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", 2018).
 *
 *     trimmed_mean   the mean without the `trim` share of the values at each end
 *     median         the middle one, or the mean of the middle two
 *
 * Workers count alike. The values that are left are added up from the smallest to the largest, in float32, and divided
 * by their number, so the bits do not depend on the workers' order.
 */
#ifndef PS_STORE_ROBUST_H
#define PS_STORE_ROBUST_H

#include <stddef.h>

#include "base/config.h"

/* How many of so many values are left out at each end; fewer than half. -1: train.aggregate is mean. */
int robust_cut(const struct config_train *train, int count);

/* Bytes that robust_mean works in for so many workers. */
size_t robust_scratch(int workers);

/*
 * out[i], i < count: of values[k][i] * scales[k], k < workers. values[k] NULL: zeros. out may be one of the values, but
 * must not begin in the middle of one. scratch: robust_scratch bytes, aligned for int.
 */
void robust_mean(float *out, const float *const *values, const float *scales, int workers, int cut, size_t count,
                 void *scratch);

#endif
