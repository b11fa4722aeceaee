/* Logits come from the engine in chunks of a fixed number of images, so that memory does not grow with the data. */
#include "worker/evaluation/evaluate.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "worker/data/folders.h"
#include "worker/data/table/schema.h"
#include "worker/evaluation/calibration.h"

enum { LOGITS_FLOATS = 16384, MAX_CHUNK = 1024 };

static int chunk_images(int classes)
{
    int chunk = LOGITS_FLOATS / classes;
    return chunk < 1 ? 1 : chunk > MAX_CHUNK ? MAX_CHUNK : chunk;
}

enum loss_kind evaluation_loss(const struct config_train *train, int targets)
{
    return train->loss != LOSS_AUTO ? train->loss : targets > 0 ? LOSS_MSE : LOSS_SOFTMAX;
}

static bool is_of_classes(enum loss_kind loss)
{
    return loss == LOSS_SOFTMAX || loss == LOSS_SIGMOID;
}

enum metric evaluation_best_metric(const struct config_train *train, int targets)
{
    return train->best_metric != METRIC_AUTO                ? train->best_metric
           : is_of_classes(evaluation_loss(train, targets)) ? METRIC_ACCURACY
                                                            : METRIC_RMSE;
}

bool evaluation_is_binary(const struct evaluation *evaluation)
{
    return is_of_classes(evaluation->loss_kind) && evaluation->units == 1;
}

bool evaluation_is_of_inputs(const struct evaluation *evaluation)
{
    return evaluation->options.schema && evaluation->options.schema->task == TASK_INPUTS;
}

static bool wants_best_threshold(const struct evaluation *evaluation)
{
    return evaluation_is_binary(evaluation) && evaluation->options.train->threshold == CONFIG_AUTO;
}

bool evaluation_finds_threshold(const struct evaluation *evaluation)
{
    return evaluation->scores && (evaluation_is_of_inputs(evaluation) || wants_best_threshold(evaluation));
}

const char *evaluation_name(const struct evaluation *evaluation, int output, char text[EVALUATION_NAME])
{
    if (evaluation->options.schema) {
        return schema_output_name(evaluation->options.schema, output);
    }
    if (output < evaluation->names.count) {
        return evaluation->names.items[output];
    }
    snprintf(text, EVALUATION_NAME, "%d", output);
    return text;
}

static void *take(char **at, size_t bytes)
{
    void *taken = *at;
    *at += (bytes + 15) / 16 * 16;
    return taken;
}

size_t evaluation_cells(const struct evaluation *evaluation)
{
    size_t n = (size_t)evaluation->classes, outputs = (size_t)evaluation->options.outputs;
    return evaluation->loss_kind == LOSS_SIGMOID ? outputs * 4 : n <= EVALUATION_MAX_CONFUSED ? n * n : 0;
}

/* Lays everything out from `memory` on and returns the bytes needed. */
static size_t layout(struct evaluation *evaluation, char *memory)
{
    const struct evaluation_options *options = &evaluation->options;
    char *at = memory;
    size_t n = (size_t)evaluation->classes, outputs = (size_t)options->outputs, rows = (size_t)options->rows;
    bool regression = !is_of_classes(evaluation->loss_kind);
    size_t cells = evaluation_cells(evaluation);
    size_t bins = options->bins && !regression ? (size_t)evaluation->units * METRICS_BINS * 2 : 0;
    size_t scores = !regression ? rows * (size_t)evaluation->units : evaluation_is_of_inputs(evaluation) ? rows : 0;
    evaluation->class_images = take(&at, n * sizeof(int64_t));
    evaluation->class_correct = take(&at, n * sizeof(int64_t));
    evaluation->confusions = cells > 0 ? take(&at, cells * sizeof(int64_t)) : NULL;
    evaluation->bins = bins > 0 ? take(&at, bins * sizeof(int64_t)) : NULL;
    evaluation->logits = take(&at, (size_t)chunk_images(options->outputs) * outputs * sizeof(float));
    const size_t kept = (size_t)options->calibrated * outputs;
    evaluation->kept = kept > 0 && kept <= EVALUATION_MAX_SCORES ? take(&at, kept * sizeof(float)) : NULL;
    evaluation->regression = regression ? take(&at, outputs * sizeof(struct regression)) : NULL;
    if (scores > 0 && scores <= EVALUATION_MAX_SCORES) {
        evaluation->scores = take(&at, scores * sizeof(double));
        evaluation->ranked = regression ? NULL : take(&at, rows * sizeof(struct scored));
    }
    return (size_t)(at - memory);
}

void evaluation_create(struct evaluation *evaluation, const struct evaluation_options *options)
{
    enum loss_kind loss = evaluation_loss(options->train, options->targets);
    int classes = loss == LOSS_SOFTMAX ? options->outputs : 0;
    *evaluation = (struct evaluation){.options = *options,
                                      .loss_kind = loss,
                                      .decision = NAN,
                                      .classes = classes,
                                      .units = classes == 2 ? 1 : options->outputs};
    _Alignas(16) char none[1];
    size_t bytes = layout(evaluation, none);
    evaluation->memory = must_zero(1, bytes, "an evaluation");
    layout(evaluation, evaluation->memory);
    evaluation->options.class_names = NULL;
    struct error unused; /* who read the names has checked them */
    if (options->class_names && !class_names_parse(&evaluation->names, options->class_names, &unused)) {
        evaluation->names = (struct names){.count = 0};
    }
    if (evaluation_is_binary(evaluation) && options->train->threshold > 0 && options->train->threshold != 0.5) {
        evaluation->decision = options->train->threshold;
    }
}

void evaluation_destroy(struct evaluation *evaluation)
{
    free(evaluation->memory);
    names_free(&evaluation->names);
    *evaluation = (struct evaluation){0};
}

void evaluation_clear(struct evaluation *evaluation)
{
    size_t n = (size_t)evaluation->classes, outputs = (size_t)evaluation->options.outputs;
    evaluation->images = evaluation->correct = evaluation->flagged = evaluation->covered = 0;
    evaluation->worst_count = 0;
    evaluation->is_merged = false;
    evaluation->loss = evaluation->loss_sum = 0;
    evaluation->threshold = NAN;
    memset(evaluation->class_images, 0, n * sizeof *evaluation->class_images);
    memset(evaluation->class_correct, 0, n * sizeof *evaluation->class_correct);
    if (evaluation->confusions) {
        memset(evaluation->confusions, 0, evaluation_cells(evaluation) * sizeof *evaluation->confusions);
    }
    if (evaluation->bins) {
        memset(evaluation->bins, 0, (size_t)evaluation->units * METRICS_BINS * 2 * sizeof *evaluation->bins);
    }
    if (evaluation->regression) {
        memset(evaluation->regression, 0, outputs * sizeof *evaluation->regression);
    }
    for (int i = 0; i < METRICS; i++) {
        evaluation->metrics[i] = NAN;
    }
}

/* The log of a class's probability less that of the likeliest. */
static double behind(const struct evaluation *evaluation, const float *logits, int class, int best)
{
    return calibration_factor(evaluation->temperature) * ((double)logits[class] - (double)logits[best]);
}

/* The probability of a class, from the logits, the largest of them, and the sum of all others. */
static double probability(const struct evaluation *evaluation, const float *logits, int class, int best, double sum)
{
    return exp(behind(evaluation, logits, class, best)) / sum;
}

static void keep_score(struct evaluation *evaluation, int unit, double score, bool positive)
{
    if (evaluation->scores) {
        evaluation->scores[evaluation->images * evaluation->units + unit] = score;
    }
    if (evaluation->bins) {
        evaluation->bins[(unit * METRICS_BINS + metrics_bin(score)) * 2 + positive]++;
    }
}

/* An example's probabilities, to be ranked (tables): of each class, or of the second of two. */
static void keep_scores(struct evaluation *evaluation, const float *logits, int label, int best, double sum)
{
    int from = evaluation->classes - evaluation->units;
    for (int i = 0; i < evaluation->units; i++) {
        keep_score(evaluation, i, probability(evaluation, logits, from + i, best, sum), label == from + i);
    }
}

/* Is it this image's turn to be counted? */
static void keep_mistake(struct evaluation *evaluation, int predicted, double confidence)
{
    int at = evaluation->worst_count;
    while (at > 0 && evaluation->worst[at - 1].confidence < confidence) {
        at--;
    }
    if (at == EVALUATION_WORST || isnan(confidence)) {
        return;
    }
    evaluation->worst_count += evaluation->worst_count < EVALUATION_WORST;
    memmove(&evaluation->worst[at + 1], &evaluation->worst[at],
            (size_t)(evaluation->worst_count - at - 1) * sizeof *evaluation->worst);
    evaluation->worst[at] = (struct mistake){(int)evaluation->images, predicted, confidence};
}

/* Adds one image: logits [classes], its label. The loss stays a sum until all are in. */
static void count_image(struct evaluation *evaluation, const float *logits, int32_t label)
{
    int classes = evaluation->classes, best = 0;
    for (int c = 1; c < classes; c++) {
        best = logits[c] > logits[best] ? c : best;
    }
    /*
     * log(sum exp) with the largest logit factored out, whose own term is 1; a NaN anywhere makes it NaN, as intended.
     */
    double sum = 1;
    for (int c = 0; c < classes; c++) {
        sum += c == best ? 0 : exp(behind(evaluation, logits, c, best));
    }
    evaluation->loss_sum += log(sum) - behind(evaluation, logits, label, best);
    if (evaluation->scores || evaluation->bins) {
        keep_scores(evaluation, logits, label, best, sum);
    }
    const int likeliest = best;
    if (classes == 2 && !isnan(evaluation->decision)) {
        best = probability(evaluation, logits, 1, best, sum) >= evaluation->decision;
    }
    evaluation->class_images[label]++;
    if (best == label) {
        evaluation->correct++;
        evaluation->class_correct[label]++;
    } else {
        keep_mistake(evaluation, best, probability(evaluation, logits, best, likeliest, sum));
    }
    if (evaluation->confusions) {
        evaluation->confusions[(size_t)label * (size_t)classes + (size_t)best]++;
    }
}

/* Adds a row of yes/no targets: logits [outputs], each 0 or 1. */
static void count_yes_and_no(struct evaluation *evaluation, const float *logits, const float *wanted)
{
    int outputs = evaluation->options.outputs;
    bool right = true;
    for (int i = 0; i < outputs; i++) {
        double z = calibration_factor(evaluation->temperature) * (double)logits[i], small = exp(-fabs(z));
        double score = (z < 0 ? small : 1) / (1 + small);
        bool yes = wanted[i] > 0.5f;
        bool predicted = outputs == 1 && !isnan(evaluation->decision) ? score >= evaluation->decision : z > 0;
        evaluation->loss_sum += ((z > 0 ? z : 0) - z * (double)wanted[i] + log1p(small)) / outputs;
        evaluation->confusions[4 * i + 2 * yes + predicted]++;
        right = right && yes == predicted;
        keep_score(evaluation, i, score, yes);
    }
    evaluation->correct += right;
}

/* The loss of one number; error: output - target. */
static double number_loss(const struct evaluation *evaluation, double error)
{
    const struct config_train *train = evaluation->options.train;
    switch (evaluation->loss_kind) {
    case LOSS_MAE:
        return fabs(error);
    case LOSS_HUBER:
        return fabs(error) < train->huber_delta ? error * error / 2
                                                : train->huber_delta * (fabs(error) - train->huber_delta / 2);
    case LOSS_QUANTILE:
        return error < 0 ? -train->quantile * error : (1 - train->quantile) * error;
    case LOSS_AUTO:
    case LOSS_SOFTMAX:
    case LOSS_SIGMOID:
    case LOSS_MSE:
        break;
    }
    return error * error;
}

/* Adds a row of numbers, measured in the table's units. */
static void count_numbers(struct evaluation *evaluation, const float *outputs, const float *wanted,
                          const struct examples *examples)
{
    int targets = evaluation->options.outputs;
    for (int i = 0; i < targets; i++) {
        double mean = examples->target_means ? examples->target_means[i] : 0;
        double scale = examples->target_scales ? examples->target_scales[i] : 1;
        evaluation->loss_sum += number_loss(evaluation, (double)outputs[i] - (double)wanted[i]) / targets;
        regression_add(&evaluation->regression[i], mean + scale * (double)wanted[i], mean + scale * (double)outputs[i],
                       evaluation->options.train->quantile);
        if (evaluation->interval.coverage > 0) {
            const double error = scale * ((double)wanted[i] - (double)outputs[i]);
            evaluation->covered += error >= evaluation->interval.low[i] && error <= evaluation->interval.high[i];
        }
    }
    if (evaluation_is_of_inputs(evaluation)) {
        double error = metrics_reconstruction_error(outputs, wanted, targets);
        evaluation->flagged += error > evaluation->decision;
        if (evaluation->scores) {
            evaluation->scores[evaluation->images] = error;
        }
    }
}

static void count_example(struct evaluation *evaluation, const struct examples *examples, int example,
                          const float *logits)
{
    const float *wanted = examples->target_values + (size_t)example * (size_t)examples->targets;
    if (evaluation->loss_kind == LOSS_SOFTMAX) {
        count_image(evaluation, logits, examples->labels[example]);
    } else if (evaluation->loss_kind == LOSS_SIGMOID) {
        count_yes_and_no(evaluation, logits, wanted);
    } else {
        count_numbers(evaluation, logits, wanted, examples);
    }
    evaluation->images++;
}

/* Ranks the scores of one unit. */
static void rank(struct evaluation *evaluation, const struct examples *examples, int unit)
{
    int label = evaluation->classes == 2 ? 1 : unit, count = (int)evaluation->images;
    for (int i = 0; i < count; i++) {
        evaluation->ranked[i] = (struct scored){
            .score = evaluation->scores[(size_t)i * (size_t)evaluation->units + (size_t)unit],
            .positive = evaluation->classes > 0
                            ? examples->labels[i] == label
                            : examples->target_values[(size_t)i * (size_t)examples->targets + (size_t)unit] > 0.5f,
        };
    }
    metrics_sort(evaluation->ranked, count);
}

/* The means over classes or targets, as scikit-learn's "macro" and "ovr". */
static void measure_ranks(struct evaluation *evaluation, const struct examples *examples)
{
    double auc = 0, precision = 0;
    for (int unit = 0; unit < evaluation->units; unit++) {
        rank(evaluation, examples, unit);
        auc += metrics_roc_auc(evaluation->ranked, (int)evaluation->images);
        precision += metrics_average_precision(evaluation->ranked, (int)evaluation->images);
    }
    evaluation->metrics[METRIC_ROC_AUC] = auc / evaluation->units;
    evaluation->metrics[METRIC_AVERAGE_PRECISION] = precision / evaluation->units;
    if (evaluation_finds_threshold(evaluation)) {
        double worth;
        evaluation->threshold = metrics_best_threshold(
            evaluation->ranked, (int)evaluation->images,
            evaluation_best_metric(evaluation->options.train, evaluation->options.targets), &worth);
    }
}

/* The means over the sigmoids; for a single one, of yes only. */
static void measure_yes_and_no(struct evaluation *evaluation)
{
    int outputs = evaluation->options.outputs;
    double balanced = 0, f1 = 0, mcc = 0;
    for (int i = 0; i < outputs; i++) {
        const int64_t *table = evaluation->confusions + 4 * i;
        double yes = metrics_f1_of(table, 2, 1);
        balanced += metrics_balanced_accuracy(table, 2) / outputs;
        f1 += isnan(yes) ? 0 : yes / outputs;
        mcc += metrics_mcc(table, 2) / outputs;
    }
    evaluation->metrics[METRIC_BALANCED_ACCURACY] = balanced;
    evaluation->metrics[METRIC_F1] = f1;
    evaluation->metrics[METRIC_MCC] = mcc;
}

static void measure_classes(struct evaluation *evaluation)
{
    double *metrics = evaluation->metrics;
    metrics[METRIC_LOG_LOSS] = evaluation->loss;
    if (evaluation->loss_kind == LOSS_SIGMOID) {
        measure_yes_and_no(evaluation);
    } else if (evaluation->confusions) {
        metrics[METRIC_BALANCED_ACCURACY] = metrics_balanced_accuracy(evaluation->confusions, evaluation->classes);
        metrics[METRIC_F1] = metrics_f1(evaluation->confusions, evaluation->classes);
        metrics[METRIC_MCC] = metrics_mcc(evaluation->confusions, evaluation->classes);
    }
}

/* Metrics from ranks, if the scores themselves are elsewhere: like measure_ranks. */
static void measure_bins(struct evaluation *evaluation)
{
    double auc = 0, precision = 0;
    for (int unit = 0; unit < evaluation->units; unit++) {
        auc += metrics_bins_roc_auc(evaluation->bins + (ptrdiff_t)unit * METRICS_BINS * 2);
        precision += metrics_bins_average_precision(evaluation->bins + (ptrdiff_t)unit * METRICS_BINS * 2);
    }
    evaluation->metrics[METRIC_ROC_AUC] = auc / evaluation->units;
    evaluation->metrics[METRIC_AVERAGE_PRECISION] = precision / evaluation->units;
    if (wants_best_threshold(evaluation)) {
        evaluation->threshold = metrics_bins_best_threshold(
            evaluation->bins, evaluation_best_metric(evaluation->options.train, evaluation->options.targets));
    }
}

static void measure_numbers(struct evaluation *evaluation)
{
    int targets = evaluation->options.outputs;
    double mae = 0, rmse = 0, r2 = 0, pinball = 0;
    for (int i = 0; i < targets; i++) {
        mae += regression_mae(&evaluation->regression[i]) / targets;
        rmse += regression_rmse(&evaluation->regression[i]) / targets;
        r2 += regression_r2(&evaluation->regression[i]) / targets;
        pinball += regression_pinball(&evaluation->regression[i]) / targets;
    }
    evaluation->metrics[METRIC_MAE] = mae;
    evaluation->metrics[METRIC_RMSE] = rmse;
    evaluation->metrics[METRIC_R2] = r2;
    evaluation->metrics[METRIC_PINBALL] = pinball;
}

void evaluation_measure(struct evaluation *evaluation)
{
    evaluation->loss = evaluation->images > 0 ? evaluation->loss_sum / (double)evaluation->images : 0;
    if (!is_of_classes(evaluation->loss_kind)) {
        measure_numbers(evaluation);
    } else if (evaluation->images > 0) {
        measure_classes(evaluation);
        if (evaluation->bins && isfinite(evaluation->loss)) {
            measure_bins(evaluation);
        }
    }
}

/* Metrics that need the scores themselves. */
static void measure_scores(struct evaluation *evaluation, const struct examples *examples)
{
    if (is_of_classes(evaluation->loss_kind)) {
        if (evaluation->images > 0 && isfinite(evaluation->loss)) {
            measure_ranks(evaluation, examples);
        }
    } else if (evaluation_finds_threshold(evaluation)) {
        evaluation->threshold =
            metrics_quantile(evaluation->scores, (int)evaluation->images, evaluation->options.train->anomaly_quantile);
    }
}

bool evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged, const struct examples *examples,
              struct error *error)
{
    int outputs = evaluation->options.outputs, chunk = chunk_images(outputs);
    assert(!evaluation->scores || examples->count <= evaluation->options.rows);
    evaluation_clear(evaluation);
    for (int first = 0; first < examples->count; first += chunk) {
        int count = examples->count - first < chunk ? examples->count - first : chunk;
        if (!engine->table->forward(engine, averaged, examples, first, count, evaluation->logits, error)) {
            return false;
        }
        if (evaluation->kept && first + count <= evaluation->options.calibrated) {
            memcpy(evaluation->kept + (size_t)first * (size_t)outputs, evaluation->logits,
                   (size_t)count * (size_t)outputs * sizeof *evaluation->kept);
        }
        for (int i = 0; i < count; i++) {
            count_example(evaluation, examples, first + i, evaluation->logits + (size_t)i * (size_t)outputs);
        }
    }
    evaluation_measure(evaluation);
    if (evaluation->scores) {
        measure_scores(evaluation, examples);
    }
    return true;
}

/* Are there the outputs for all of these? */
static bool has_kept(const struct evaluation *evaluation, const struct examples *examples)
{
    return evaluation->kept && examples->count > 0 && examples->count <= evaluation->options.calibrated;
}

bool evaluation_interval(const struct evaluation *evaluation, const struct examples *examples,
                         struct interval *interval)
{
    const double coverage = evaluation->options.train->interval;
    *interval = (struct interval){.coverage = 0};
    return coverage == 0 || is_of_classes(evaluation->loss_kind) ||
           (has_kept(evaluation, examples) && calibration_interval(coverage, evaluation->kept, examples, interval));
}

double evaluation_temperature(struct evaluation *evaluation, const struct examples *examples, bool is_best)
{
    if (!has_kept(evaluation, examples) || !is_of_classes(evaluation->loss_kind)) {
        return 0;
    }
    const double temperature =
        calibration_fit(evaluation->loss_kind, evaluation->kept, evaluation->options.outputs, examples, is_best);
    evaluation->threshold = calibration_threshold(evaluation->threshold, temperature);
    return temperature;
}

double evaluation_metric(const struct evaluation *evaluation, enum metric metric)
{
    return metric == METRIC_ACCURACY ? evaluation_accuracy(evaluation)
           : metric == METRIC_LOSS   ? evaluation->loss
                                     : evaluation->metrics[metric];
}

double evaluation_accuracy(const struct evaluation *evaluation)
{
    return evaluation->images > 0 ? (double)evaluation->correct / (double)evaluation->images : 0;
}

int evaluation_worst_pairs(const struct evaluation *evaluation, struct confused_pair *pairs, int limit)
{
    int found = 0, classes = evaluation->classes; /* with sigmoids there are none, so nothing is found */
    for (int cell = 0; evaluation->confusions && cell < classes * classes; cell++) {
        struct confused_pair pair = {cell / classes, cell % classes, evaluation->confusions[cell]};
        if (pair.images == 0 || pair.label == pair.predicted) {
            continue;
        }
        int place = found;
        while (place > 0 && pairs[place - 1].images < pair.images) {
            place--;
        }
        if (place == limit) {
            continue;
        }
        found += found < limit;
        memmove(pairs + place + 1, pairs + place, (size_t)(found - place - 1) * sizeof *pairs);
        pairs[place] = pair;
    }
    return found;
}
