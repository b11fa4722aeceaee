/*
 * How well a model does on examples: in total, per class, which classes it confuses, and for tables all metrics of
 * worker/evaluation/metrics.h.
 */
#ifndef WORKER_EVALUATE_H
#define WORKER_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/data/examples.h"
#include "worker/data/names.h"
#include "worker/engine.h"
#include "worker/evaluation/metrics.h"

struct schema;

enum {
    EVALUATION_MAX_CONFUSED = 256,    /* with more classes, no confusion matrix is kept */
    EVALUATION_WORST = 24,            /* mistakes that are kept */
    EVALUATION_MAX_SCORES = 16777216, /* with more examples x outputs, ROC AUC and the like are not computed */
};

struct evaluation_options {
    const struct config_train *train; /* borrowed */
    int outputs;                      /* units of the model's last layer */
    int rows;                         /* most examples of a table evaluated at once; 0: pictures */
    int targets;                      /* target values of a row; 0: labels */
    const struct schema *schema;      /* of a table, borrowed: names of classes and targets; NULL: pictures */
    const char *class_names;          /* of pictures, as JSON, borrowed until evaluation_create; NULL: numbers */
    int calibrated;                   /* examples evaluated to find a temperature or an interval for them; 0: none */
    bool bins; /* scores are also counted in bins, so that evaluations can be merged (worker/evaluation/validation.h) */
};

/* A misclassified example, and the model's confidence in its wrong class. */
struct mistake {
    int example, predicted;
    double confidence;
};

/* Owned by its creator; the counts are those of the last evaluate(). */
struct evaluation {
    struct evaluation_options options;
    struct names names;       /* of the classes of pictures; none: numbers */
    enum loss_kind loss_kind; /* never LOSS_AUTO */
    double decision;          /* set by the owner, at first NaN: binary scores from it on mean yes, and rows with a
                                 larger error are anomalies; NaN: the likelier class, and no anomalies */
    double temperature; /* likewise, at first 0: outputs are divided by it before they are probabilities; 0: not */
    struct interval interval; /* likewise, coverage at first 0: around predicted numbers; true ones in it are counted */
    int classes;              /* of softmax; else 0 */
    int64_t images, correct;  /* examples; those with every label right */
    double loss;              /* mean, without weights; not finite if the model is broken */
    double loss_sum;          /* over the examples */
    int64_t *class_images;    /* [classes] */
    int64_t *class_correct;   /* [classes] */
    int64_t *confusions;      /* [classes (true), classes (predicted)], or of each sigmoid [2, 2]; NULL with too many */
    struct mistake worst[EVALUATION_WORST]; /* of softmax: the most confident mistakes, the worst first */
    int worst_count;
    /* Of tables: */
    double metrics[METRICS]; /* NaN: not defined, or not known */
    int units;               /* outputs whose scores are ranked: 1 if there are two classes */
    struct scored *ranked;   /* [images]: scores of a binary model, sorted; NULL: it is none, or too large */
    bool is_merged; /* others were merged in (worker/evaluation/validation.h): ranked and worst cover a part only */
    /*
     * The best value of `decision` for these examples: for a binary model with train.threshold auto the best by
     * best_metric (metrics.h); for one that learns its inputs the quantile of the errors; NaN: none, or not known.
     */
    double threshold;
    int64_t covered;               /* numbers, of all targets, that are in their interval */
    int64_t flagged;               /* rows that are anomalies by `decision` */
    double *scores;                /* [rows, units], or a row's reconstruction error each; NULL: too many */
    struct regression *regression; /* [targets], of numbers */
    int64_t *bins;                 /* [units, METRICS_BINS, 2]: no and yes by score (metrics.h); NULL: not wanted */
    float *logits;                 /* scratch */
    float *kept;                   /* [calibrated, outputs]: the outputs of the last examples; NULL: not wanted */
    void *memory;
};

/* Allocates all memory that evaluating needs. */
void evaluation_create(struct evaluation *evaluation, const struct evaluation_options *options);
void evaluation_destroy(struct evaluation *evaluation); /* also fine on zeros */

/* What LOSS_AUTO means for data with `targets` target values per example. */
enum loss_kind evaluation_loss(const struct config_train *train, int targets);

/* What METRIC_AUTO means of pictures; of tables dataset_fit has replaced it. */
enum metric evaluation_best_metric(const struct config_train *train, int targets);

/* True if the model separates two classes by one score. */
bool evaluation_is_binary(const struct evaluation *evaluation);

/* True if it learns its inputs, so that inputs it fails to reconstruct are anomalies. */
bool evaluation_is_of_inputs(const struct evaluation *evaluation);

/* True if an evaluation finds a threshold. */
bool evaluation_finds_threshold(const struct evaluation *evaluation);

/*
 * The temperature for examples that have just been evaluated without one, at most options.calibrated of them, of a
 * model that was, or was not, chosen for how it does on them (calibration_fit); it
 * changes `threshold` into one of calibrated probabilities. 0: there is nothing to calibrate.
 */
double evaluation_temperature(struct evaluation *evaluation, const struct examples *examples, bool is_best);

/*
 * The interval (train.interval) by examples that have just been evaluated, as above; coverage 0: none is wanted. False:
 * one is, and there are too few rows for it, or too many to keep.
 */
bool evaluation_interval(const struct evaluation *evaluation, const struct examples *examples,
                         struct interval *interval);

/* The name of a class or target; for pictures its number, which is written into `text`. */
enum { EVALUATION_NAME = 16 };
const char *evaluation_name(const struct evaluation *evaluation, int output, char text[EVALUATION_NAME]);

/* Runs all examples through the model; averaged: through its moving averages. Fails only if the engine does. */
bool evaluate(struct evaluation *evaluation, struct engine *engine, bool averaged, const struct examples *examples,
              struct error *error);

/*
 * Recomputes the metrics that follow from counts, sums and bins alone, after these (images, loss_sum, ...) have
 * changed.
 */
void evaluation_measure(struct evaluation *evaluation);

/* Resets all counts. */
void evaluation_clear(struct evaluation *evaluation);

/* Cells of `confusions`; 0: there is none. */
size_t evaluation_cells(const struct evaluation *evaluation);

/* correct / images; 0 without images. */
double evaluation_accuracy(const struct evaluation *evaluation);

/* Any metric, also of pictures; not METRIC_AUTO. */
double evaluation_metric(const struct evaluation *evaluation, enum metric metric);

struct confused_pair {
    int label, predicted;
    int64_t images;
};

/* The most frequent mistakes into pairs[limit], worst first, ties by class; returns how many there are (<= limit). */
int evaluation_worst_pairs(const struct evaluation *evaluation, struct confused_pair *pairs, int limit);

#endif
