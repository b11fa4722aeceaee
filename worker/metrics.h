/*
 * What a model's outputs are worth: the usual figures, equal to scikit-learn's functions of the same names.
 *
 * A figure that is not defined (ROC AUC without negatives, R2 of one example) is NaN. Nothing here allocates.
 */
#ifndef WORKER_METRICS_H
#define WORKER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

/* Does a larger value mean a better model? */
bool metric_rises(enum metric metric);

/* Is it defined for a model that was trained with this loss? */
bool metric_applies(enum metric metric, enum loss_kind loss);

/* --- Labels: from a table of confusions [classes (true), classes (predicted)] --- */

double metrics_balanced_accuracy(const int64_t *confusions, int classes);
double metrics_f1_of(const int64_t *confusions, int classes, int label);
double metrics_f1(const int64_t *confusions, int classes); /* the mean over classes that occur or are predicted */
double metrics_mcc(const int64_t *confusions, int classes);

/* --- Scores of yes and no --- */

struct scored {
    double score;
    bool positive;
};

/* Sorts by score, the highest first: what the functions below ask for. */
void metrics_sort(struct scored *scored, int count);
double metrics_roc_auc(const struct scored *sorted, int count);
double metrics_average_precision(const struct scored *sorted, int count);

/*
 * The threshold that is best by a metric where scores from it on count as positive: accuracy, balanced accuracy and the
 * Matthews correlation by their name, any other by F1. It is 0.5 or half way between two scores, so that rounding does
 * not matter; of equals the one nearest to 0.5. *best: what the metric comes to.
 */
double metrics_best_threshold(const struct scored *sorted, int count, enum metric metric, double *best);
enum metric metrics_of_threshold(enum metric metric); /* the one it goes by */

/* A point of the curve of precision and recall: what scores >= threshold come to. */
struct pr_point {
    int64_t true_positives, false_positives, true_negatives, false_negatives;
    double precision, recall;
};
void metrics_pr_point(const struct scored *sorted, int count, double threshold, struct pr_point *point);

/*
 * --- Scores in bins, so that counts of several places can be added up ---
 *
 * Bins are equally wide by the logit of the score, log(score / (1 - score)), 16 to each unit of it from -16 to 16;
 * scores beyond belong to the outermost. bins: [METRICS_BINS, 2]: how many no and yes have such a score, the lowest
 * scores first. Those of one bin count as equal: ROC AUC is off by at most half the share of pairs of a yes and a no
 * that are in one bin.
 */
enum { METRICS_BINS = 512 };
int metrics_bin(double score); /* of a NaN: the first */
double metrics_bins_roc_auc(const int64_t *bins);
double metrics_bins_average_precision(const int64_t *bins);

/* As metrics_best_threshold, of those between two bins. */
double metrics_bins_best_threshold(const int64_t *bins, enum metric metric);

/* --- Reconstructions --- */

/* The mean squared difference between what a model makes of its inputs and the inputs. */
double metrics_reconstruction_error(const float *outputs, const float *inputs, int count);

/* As numpy.quantile; sorts the values. NaN of none. */
double metrics_quantile(double *values, int count, double quantile);

/* --- Regression: one target at a time; begins as zeros --- */

struct regression {
    int64_t count;
    double absolute, squared, pinball; /* sums over the errors */
    double mean, spread;               /* of what was to be predicted, and the sum of squares around it */
};

void regression_add(struct regression *regression, double target, double predicted, double quantile);
void regression_merge(struct regression *regression, const struct regression *other); /* as if all had been added */
double regression_mae(const struct regression *regression);
double regression_rmse(const struct regression *regression);
double regression_r2(const struct regression *regression);
double regression_pinball(const struct regression *regression);

#endif
