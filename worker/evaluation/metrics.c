/*
 * Each metric follows scikit-learn's definition, including its special cases, because people compare with that. Sums
 * are computed in double precision; ranks are exact, and ties count as one step of the curve.
 */
#include "worker/evaluation/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool metric_rises(enum metric metric)
{
    return metric != METRIC_LOSS && metric != METRIC_LOG_LOSS && metric != METRIC_MAE && metric != METRIC_RMSE &&
           metric != METRIC_PINBALL;
}

bool metric_applies(enum metric metric, enum loss_kind loss)
{
    bool regression = loss == LOSS_MSE || loss == LOSS_MAE || loss == LOSS_HUBER || loss == LOSS_QUANTILE;
    switch (metric) {
    case METRIC_AUTO:
    case METRIC_LOSS:
        return true;
    case METRIC_MAE:
    case METRIC_RMSE:
    case METRIC_R2:
    case METRIC_PINBALL:
        return regression;
    case METRIC_ACCURACY:
    case METRIC_BALANCED_ACCURACY:
    case METRIC_LOG_LOSS:
    case METRIC_ROC_AUC:
    case METRIC_AVERAGE_PRECISION:
    case METRIC_F1:
    case METRIC_MCC:
    case METRICS:
        break;
    }
    return !regression;
}

/* --- Labels --- */

static int64_t cell(const int64_t *confusions, int classes, int label, int predicted)
{
    return confusions[(int64_t)label * classes + predicted];
}

/* Examples of a class, and how often it was predicted. */
static void margins(const int64_t *confusions, int classes, int label, int64_t *occurs, int64_t *predicted)
{
    *occurs = *predicted = 0;
    for (int i = 0; i < classes; i++) {
        *occurs += cell(confusions, classes, label, i);
        *predicted += cell(confusions, classes, i, label);
    }
}

double metrics_balanced_accuracy(const int64_t *confusions, int classes)
{
    double sum = 0;
    int present = 0;
    for (int i = 0; i < classes; i++) {
        int64_t occurs, predicted;
        margins(confusions, classes, i, &occurs, &predicted);
        sum += occurs > 0 ? (double)cell(confusions, classes, i, i) / (double)occurs : 0;
        present += occurs > 0;
    }
    return present > 0 ? sum / present : NAN;
}

double metrics_f1_of(const int64_t *confusions, int classes, int label)
{
    int64_t occurs, predicted;
    margins(confusions, classes, label, &occurs, &predicted);
    return occurs + predicted > 0 ? 2 * (double)cell(confusions, classes, label, label) / (double)(occurs + predicted)
                                  : NAN;
}

double metrics_f1(const int64_t *confusions, int classes)
{
    double sum = 0;
    int present = 0;
    for (int i = 0; i < classes; i++) {
        double f1 = metrics_f1_of(confusions, classes, i);
        sum += isnan(f1) ? 0 : f1;
        present += !isnan(f1);
    }
    return present > 0 ? sum / present : NAN;
}

/* Gorodkin's R_K; 0 if one of the two sides has a single class. */
double metrics_mcc(const int64_t *confusions, int classes)
{
    double all = 0, right = 0, both = 0, occurring = 0, predicting = 0;
    for (int i = 0; i < classes; i++) {
        int64_t occurs, predicted;
        margins(confusions, classes, i, &occurs, &predicted);
        all += (double)occurs;
        right += (double)cell(confusions, classes, i, i);
        both += (double)occurs * (double)predicted;
        occurring += (double)occurs * (double)occurs;
        predicting += (double)predicted * (double)predicted;
    }
    double variance = (all * all - occurring) * (all * all - predicting);
    return variance > 0 ? (right * all - both) / sqrt(variance) : 0;
}

/* --- Scores --- */

enum { DIGIT_BITS = 8, DIGITS = 1 << DIGIT_BITS, RANK_BITS = 64, FEW = 24 };

/* The higher the score, the lower its rank. */
static uint64_t rank_of(const struct scored *scored)
{
    uint64_t bits;
    memcpy(&bits, &scored->score, sizeof bits);
    return bits >> (RANK_BITS - 1) ? bits : ~bits & (UINT64_MAX >> 1);
}

static void sort_few(struct scored *scored, int count)
{
    for (int i = 1; i < count; i++) {
        const struct scored moved = scored[i];
        const uint64_t rank = rank_of(&moved);
        int at = i;
        for (; at > 0 && rank_of(&scored[at - 1]) > rank; at--) {
            scored[at] = scored[at - 1];
        }
        scored[at] = moved;
    }
}

static int digit_of(const struct scored *scored, int shift)
{
    return (int)(rank_of(scored) >> shift) & (DIGITS - 1);
}

/* Sorts scores by one digit of their ranks, in place; counts: of each digit. */
static void sort_by_digit(struct scored *scored, int count, int shift, int counts[DIGITS])
{
    int next[DIGITS], end[DIGITS], at = 0;
    memset(counts, 0, DIGITS * sizeof *counts);
    for (int i = 0; i < count; i++) {
        counts[digit_of(&scored[i], shift)]++;
    }
    for (int digit = 0; digit < DIGITS; digit++) {
        next[digit] = at;
        at += counts[digit];
        end[digit] = at;
    }
    for (int digit = 0; digit < DIGITS; digit++) {
        for (; next[digit] < end[digit]; next[digit]++) {
            struct scored moved = scored[next[digit]];
            for (int to; (to = digit_of(&moved, shift)) != digit;) {
                struct scored *place = &scored[next[to]++];
                const struct scored found = *place;
                *place = moved;
                moved = found;
            }
            scored[next[digit]] = moved;
        }
    }
}

/* By the digits from `shift` down: in linear time, and without a call for every comparison. */
static void sort_from(struct scored *scored, int count, int shift)
{
    int counts[DIGITS];
    if (count <= FEW) {
        sort_few(scored, count);
        return;
    }
    sort_by_digit(scored, count, shift, counts);
    for (int digit = 0; digit < DIGITS && shift > 0; scored += counts[digit++]) {
        if (counts[digit] > 1) {
            sort_from(scored, counts[digit], shift - DIGIT_BITS);
        }
    }
}

void metrics_sort(struct scored *scored, int count)
{
    sort_from(scored, count, RANK_BITS - DIGIT_BITS);
}

/* Counts the examples of the next score, from `at` on; returns where the one after it starts. */
static int next_score(const struct scored *sorted, int count, int at, int64_t *positive, int64_t *negative)
{
    int end = at;
    *positive = *negative = 0;
    for (; end < count && !(sorted[end].score < sorted[at].score); end++) {
        *positive += sorted[end].positive;
        *negative += !sorted[end].positive;
    }
    return end;
}

static int64_t positives(const struct scored *sorted, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        sum += sorted[i].positive;
    }
    return sum;
}

double metrics_roc_auc(const struct scored *sorted, int count)
{
    int64_t all = positives(sorted, count), none = count - all, above = 0, positive, negative;
    double area = 0;
    for (int i = 0; i < count; above += positive) {
        i = next_score(sorted, count, i, &positive, &negative);
        area += (double)negative * ((double)above + (double)positive / 2);
    }
    return all > 0 && none > 0 ? area / ((double)all * (double)none) : NAN;
}

double metrics_average_precision(const struct scored *sorted, int count)
{
    int64_t all = positives(sorted, count), found = 0, positive, negative;
    double sum = 0;
    for (int i = 0; i < count;) {
        i = next_score(sorted, count, i, &positive, &negative);
        found += positive;
        sum += (double)positive * ((double)found / (double)i);
    }
    return all > 0 ? sum / (double)all : NAN;
}

enum metric metrics_of_threshold(enum metric metric)
{
    return metric == METRIC_BALANCED_ACCURACY || metric == METRIC_MCC || metric == METRIC_F1 ? metric : METRIC_ACCURACY;
}

/*
 * The value of predicting yes for the first `taken` of `count` examples, `found` of which are positive, out of `all`.
 */
static double worth_of_cut(enum metric metric, int64_t taken, int64_t found, int64_t count, int64_t all)
{
    const int64_t confusions[4] = {count - all - (taken - found), taken - found, all - found, found};
    double worth = metric == METRIC_BALANCED_ACCURACY ? metrics_balanced_accuracy(confusions, 2)
                   : metric == METRIC_MCC             ? metrics_mcc(confusions, 2)
                   : metric == METRIC_F1              ? metrics_f1_of(confusions, 2, 1)
                                                      : (double)(confusions[0] + confusions[3]) / (double)count;
    return isnan(worth) ? 0 : worth;
}

double metrics_best_threshold(const struct scored *sorted, int count, enum metric metric, double *best)
{
    int64_t all = positives(sorted, count), found = 0, positive, negative;
    double chosen = 0.5;
    metric = metrics_of_threshold(metric);
    *best = -INFINITY;
    for (int taken = 0;;) {
        double above = taken > 0 ? sorted[taken - 1].score : 1, below = taken < count ? sorted[taken].score : 0;
        double threshold = below < 0.5 && above > 0.5 ? 0.5 : (above + below) / 2;
        double worth = worth_of_cut(metric, taken, found, count, all);
        if (worth > *best || (worth == *best && fabs(threshold - 0.5) < fabs(chosen - 0.5))) {
            *best = worth;
            chosen = threshold;
        }
        if (taken == count) {
            return chosen;
        }
        taken = next_score(sorted, count, taken, &positive, &negative);
        found += positive;
    }
}

/* --- Scores in bins --- */

enum { BINS_PER_LOGIT = 16, MIDDLE_BIN = METRICS_BINS / 2 };

int metrics_bin(double score)
{
    const double logit = log(score / (1 - score)); /* of 0 and 1: infinite */
    const double bin = floor(logit * BINS_PER_LOGIT) + MIDDLE_BIN;
    return bin > 0 ? (bin < METRICS_BINS ? (int)bin : METRICS_BINS - 1) : 0;
}

static void bins_totals(const int64_t *bins, int64_t *none, int64_t *all)
{
    *none = *all = 0;
    for (int i = 0; i < METRICS_BINS; i++) {
        *none += bins[2 * i];
        *all += bins[2 * i + 1];
    }
}

double metrics_bins_roc_auc(const int64_t *bins)
{
    int64_t all, none, above = 0;
    double area = 0;
    bins_totals(bins, &none, &all);
    for (int i = METRICS_BINS - 1; i >= 0; i--) {
        area += (double)bins[2 * i] * ((double)above + (double)bins[2 * i + 1] / 2);
        above += bins[2 * i + 1];
    }
    return all > 0 && none > 0 ? area / ((double)all * (double)none) : NAN;
}

double metrics_bins_average_precision(const int64_t *bins)
{
    int64_t all, none, taken = 0, found = 0;
    double sum = 0;
    bins_totals(bins, &none, &all);
    for (int i = METRICS_BINS - 1; i >= 0; i--) {
        taken += bins[2 * i] + bins[2 * i + 1];
        found += bins[2 * i + 1];
        sum += bins[2 * i + 1] > 0 ? (double)bins[2 * i + 1] * ((double)found / (double)taken) : 0;
    }
    return all > 0 ? sum / (double)all : NAN;
}

double metrics_bins_best_threshold(const int64_t *bins, enum metric metric)
{
    int64_t all, none, taken = 0, found = 0;
    double chosen = 0.5, best = -INFINITY;
    metric = metrics_of_threshold(metric);
    bins_totals(bins, &none, &all);
    for (int i = METRICS_BINS - 1; i >= 0; i--) {
        taken += bins[2 * i] + bins[2 * i + 1];
        found += bins[2 * i + 1];
        const double logit = (double)(i - MIDDLE_BIN) / BINS_PER_LOGIT;
        const double threshold = i > 0 ? 1 / (1 + exp(-logit)) : 0;
        const double worth = worth_of_cut(metric, taken, found, all + none, all);
        if (worth > best || (worth == best && fabs(threshold - 0.5) < fabs(chosen - 0.5))) {
            best = worth;
            chosen = threshold;
        }
    }
    return chosen;
}

void metrics_pr_point(const struct scored *sorted, int count, double threshold, struct pr_point *point)
{
    int64_t all = positives(sorted, count);
    int above = 0;
    *point = (struct pr_point){.precision = 1};
    for (; above < count && sorted[above].score >= threshold; above++) {
        point->true_positives += sorted[above].positive;
    }
    point->false_positives = above - point->true_positives;
    point->false_negatives = all - point->true_positives;
    point->true_negatives = count - above - point->false_negatives;
    point->precision = above > 0 ? (double)point->true_positives / above : 1;
    point->recall = all > 0 ? (double)point->true_positives / (double)all : 0;
}

/* --- Reconstructions --- */

double metrics_reconstruction_error(const float *outputs, const float *inputs, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        const double difference = (double)outputs[i] - (double)inputs[i];
        sum += difference * difference;
    }
    return sum / count;
}

static int by_value(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

double metrics_quantile(double *values, int count, double quantile)
{
    if (count == 0) {
        return NAN;
    }
    qsort(values, (size_t)count, sizeof *values, by_value);
    const double at = quantile * (count - 1);
    const int before = (int)at < count - 1 ? (int)at : count - 1, after = before < count - 1 ? before + 1 : before;
    return values[before] + (at - before) * (values[after] - values[before]);
}

/* --- Regression --- */

void regression_add(struct regression *regression, double target, double predicted, double quantile)
{
    double error = target - predicted, from_mean = target - regression->mean;
    regression->count++;
    regression->absolute += fabs(error);
    regression->squared += error * error;
    regression->pinball += error >= 0 ? quantile * error : (quantile - 1) * error;
    regression->mean += from_mean / (double)regression->count; /* Welford: no cancellation far from zero */
    regression->spread += from_mean * (target - regression->mean);
}

void regression_merge(struct regression *regression, const struct regression *other)
{
    const double before = (double)regression->count, more = (double)other->count, all = before + more;
    const double apart = other->mean - regression->mean;
    if (other->count == 0) {
        return;
    }
    if (regression->count == 0) {
        *regression = *other;
        return;
    }
    regression->count += other->count;
    regression->absolute += other->absolute;
    regression->squared += other->squared;
    regression->pinball += other->pinball;
    regression->mean += apart * more / all;
    regression->spread += other->spread + apart * apart * before * more / all;
}

static double per_example(const struct regression *regression, double sum)
{
    return regression->count > 0 ? sum / (double)regression->count : NAN;
}

double regression_mae(const struct regression *regression)
{
    return per_example(regression, regression->absolute);
}

double regression_rmse(const struct regression *regression)
{
    return sqrt(per_example(regression, regression->squared));
}

double regression_r2(const struct regression *regression)
{
    if (regression->count < 2) {
        return NAN;
    }
    return regression->spread > 0 ? 1 - regression->squared / regression->spread : regression->squared > 0 ? 0 : 1;
}

double regression_pinball(const struct regression *regression)
{
    return per_example(regression, regression->pinball);
}
