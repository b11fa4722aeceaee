/*
 * Quality metrics of a model's outputs, equal to scikit-learn's functions of the same names.
 *
 * A metric that is not defined (ROC AUC without negatives, R2 of one example) is NaN. Nothing here allocates.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

/* True if a larger value means a better model. */
bool metric_rises(enum metric metric);

/* True if it is defined for a model trained with this loss. */
bool metric_applies(enum metric metric, enum loss_kind loss);

/* --- Labels: from a confusion matrix [classes (true), classes (predicted)] --- */

double metrics_balanced_accuracy(const int64_t *confusions, int classes);
double metrics_f1_of(const int64_t *confusions, int classes, int label);
double metrics_f1(const int64_t *confusions, int classes); /* the mean over classes that occur or are predicted */
double metrics_mcc(const int64_t *confusions, int classes);

/* --- Binary scores --- */

struct scored {
    double score;
    bool positive;
};

/* Sorts by score, the highest first, as the functions below require. */
void metrics_sort(struct scored *scored, int count);
double metrics_roc_auc(const struct scored *sorted, int count);
double metrics_average_precision(const struct scored *sorted, int count);

/*
 * The threshold, from which on scores count as positive, that is best by a metric: balanced accuracy, the Matthews
 * correlation and F1 by themselves, any other by accuracy. It is 0.5 or halfway between two scores, so that rounding
 * does not matter; of equally good ones, the one nearest to 0.5. *best: the metric's value there.
 */
double metrics_best_threshold(const struct scored *sorted, int count, enum metric metric, double *best);
enum metric metrics_of_threshold(enum metric metric); /* the metric it optimizes */

/* A point of the precision-recall curve, with scores >= threshold as positive. */
struct pr_point {
    int64_t true_positives, false_positives, true_negatives, false_negatives;
    double precision, recall;
};
void metrics_pr_point(const struct scored *sorted, int count, double threshold, struct pr_point *point);

/*
 * --- Binned scores, so that counts of several machines can be added up ---
 *
 * Bins are equally wide in the logit of the score, log(score / (1 - score)): 16 per unit, from -16 to 16; scores beyond
 * go into the outermost bins. bins: [METRICS_BINS, 2]: negatives and positives per bin, the lowest scores first. Scores
 * in one bin count as equal: ROC AUC is off by at most half the share of positive-negative pairs that share a bin.
 */
enum { METRICS_BINS = 512 };
int metrics_bin(double score); /* NaN: the first bin */
double metrics_bins_roc_auc(const int64_t *bins);
double metrics_bins_average_precision(const int64_t *bins);

/* As metrics_best_threshold, among the bounds between bins. */
double metrics_bins_best_threshold(const int64_t *bins, enum metric metric);

/* --- Reconstructions --- */

/* The mean squared difference between a model's outputs and its inputs. */
double metrics_reconstruction_error(const float *outputs, const float *inputs, int count);

/* As numpy.quantile; sorts the values. NaN if there are none. */
double metrics_quantile(double *values, int count, double quantile);

/* --- Regression: one target at a time; begins as zeros --- */

struct regression {
    int64_t count;
    double absolute, squared, pinball; /* sums over the errors */
    double mean, spread;               /* of the targets, and their sum of squares around it */
};

void regression_add(struct regression *regression, double target, double predicted, double quantile);
void regression_merge(struct regression *regression, const struct regression *other); /* as if all had been added */
double regression_mae(const struct regression *regression);
double regression_rmse(const struct regression *regression);
double regression_r2(const struct regression *regression);
double regression_pinball(const struct regression *regression);

#endif
