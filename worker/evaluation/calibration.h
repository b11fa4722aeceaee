/*
 * What a model's answers are worth, by its errors on validation rows.
 *
 * Calibration by a temperature: a model's outputs are divided by one number, so that its probabilities are neither too
 * sure nor too careful (Guo et al., "On calibration of modern neural networks", 2017). Which class is the likeliest,
 * and the order of rows by a score, stay.
 *
 * Intervals by split conformal prediction (Lei et al., "Distribution-free predictive inference for regression", 2018):
 * around a predicted number, as far down and up as validation's errors reach but for the rarest.
 */
#ifndef WORKER_EVALUATION_CALIBRATION_H
#define WORKER_EVALUATION_CALIBRATION_H

#include <stdbool.h>

#include "base/config.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/data/examples.h"

/*
 * The temperature by which outputs, [examples->count, outputs], of a model with loss softmax or sigmoid have the lowest
 * loss, between 0.1 and 10. What few rows say of it counts less, and so does what rows say that are all right: its log
 * is taken to be normal about 0, with a standard deviation of 0.5. is_best: the model was chosen for how it does on
 * these rows, and seems surer there than it ought to: then of 0.1.
 */
double calibration_fit(enum loss_kind loss, const float *logits, int outputs, const struct examples *examples,
                       bool is_best);

/* By what outputs are multiplied: 1 / temperature, or 1 for 0, a model that is not calibrated. */
static inline double calibration_factor(double temperature)
{
    return temperature > 0 ? 1 / temperature : 1;
}

/* A threshold of probabilities that were not calibrated yet, as one of those that are; NaN stays. */
double calibration_threshold(double threshold, double temperature);

/*
 * Intervals of this coverage by outputs, [examples->count, targets], of a model of at most INTERVAL_MOST_TARGETS
 * numbers. On either side half of the rest lies beyond: of n errors in order, the bounds are the ones that are
 * (n + 1) * (1 - coverage) / 2, rounded down, from each end. False: of so few rows even the farthest is not rare
 * enough.
 */
bool calibration_interval(double coverage, const float *outputs, const struct examples *examples,
                          struct interval *interval);

#endif
