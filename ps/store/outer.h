/*
 * The optimizer of the model that workers share in rounds (train.local_steps): what the ps make of the mean difference
 * between the parameters that a round began with and those that its workers ended with, taken as a gradient.
 *
 *     average   McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", 2017:
 *               FedAvg; with rate 1 the new model is the workers' mean
 *     momentum  Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
 *               Classification", 2019: FedAvgM
 *     nesterov  Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023
 *     adam      Reddi et al., "Adaptive Federated Optimization", 2021: FedAdam with its beta2 of 0.99 and tau of 0.001,
 *               and with Adam's correction of the bias, which FedAdam leaves out
 *
 * All are optimizers of ps/store/optimizer.h: a store or shard that is given the train section from here has their
 * slots, and applies a mean difference as it does any gradient.
 */
#ifndef PS_STORE_OUTER_H
#define PS_STORE_OUTER_H

#include <stddef.h>

#include "base/config.h"

/*
 * The train section by which the shared model is kept and updated: with rounds the outer optimizer's, whose rate does
 * not change with the step, and whose share of L2 and weight decay is none, since they are the workers'; else `train`.
 */
struct config_train outer_train(const struct config_train *train);

/* What a worker counts in a round, with so many examples of its own among all of those that take part. */
static inline float outer_weight(double examples, double all)
{
    return (float)(examples / all);
}

/*
 * The squared norm of a difference, of its floats in the model's order, padding left out: in double and one after the
 * other, so that it does not matter how they are cut. so_far: of those before.
 */
double outer_squares(double so_far, const float *values, size_t count);

/*
 * What a difference is multiplied by that is so many steps old (train.buffer_size; Nguyen et al., "Federated Learning
 * with Buffered Asynchronous Aggregation", 2022: FedBuff).
 */
double outer_freshness(double staleness);

/* What a difference is multiplied by so that its norm is at most `most` (train.clip_difference_norm). */
float outer_clip(double squares, double most);

#endif
