/* Rounds (train.local_steps): the optimizer of the shared model, and robust means of the workers' differences. */
#ifndef PS_STORE_ROUNDS_H
#define PS_STORE_ROUNDS_H

#include <stddef.h>

#include "base/config.h"

/* --- The outer optimizer --- */

/*
 * The optimizer of the shared model in rounds (train.local_steps). It treats as a gradient the mean difference between
 * the parameters at the beginning of a round and those that its workers ended with.
 *
 *     average   McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017:
 *               FedAvg; with rate 1 the new model is the workers' mean
 *     momentum  Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
 *               Classification", 2019: FedAvgM
 *     nesterov  Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
 *     adam      Reddi et al., "Adaptive Federated Optimization", 2021: FedAdam with its beta2 of 0.99 and tau of 0.001,
 *               and with Adam's correction of the bias, which FedAdam leaves out
 *
 * All are optimizers of ps/store/optimizer.h: a store or shard created with the train section from here has their
 * slots, and applies a mean difference like any gradient.
 */

/*
 * The train section for the shared model: without rounds, `train`; with rounds, the outer optimizer's, at a constant
 * rate and without L2 and weight decay, which the workers apply.
 */
struct config_train outer_train(const struct config_train *train);

/* A worker's weight in a round: its own examples, as a share of those of all workers that take part. */
static inline float outer_weight(double examples, double all)
{
    return (float)(examples / all);
}

/*
 * Adds the squares of the next floats of a difference (in the model's order, without padding) to so_far, sequentially
 * in double, so that the result does not depend on how the floats are split.
 */
double outer_squares(double so_far, const float *values, size_t count);

/*
 * The factor for a difference that is `staleness` steps old (train.buffer_size; Nguyen et al., "Federated Learning with
 * Buffered Asynchronous Aggregation", 2022: FedBuff).
 */
double outer_freshness(double staleness);

/* The factor that limits a difference's norm to `most` (train.clip_difference_norm). */
float outer_clip(double squares, double most);

/* --- Robust means --- */

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
