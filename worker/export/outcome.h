/*
 * The interpretation of a model's outputs for one example: probabilities, numbers in the target's unit, or an error,
 * and the decision based on them. `trainer predict` and `trainer serve` share it, so their answers agree.
 */
#ifndef WORKER_EXPORT_OUTCOME_H
#define WORKER_EXPORT_OUTCOME_H

#include <stdbool.h>
#include <stdio.h>

#include "worker/export/trained.h"

enum outcome_kind {
    OUTCOME_CLASS,   /* values: the probability of each class */
    OUTCOME_FLAGS,   /* values: the probability of each target */
    OUTCOME_NUMBERS, /* values: the prediction for each target, in its own unit */
    OUTCOME_ERROR,   /* one value: the mean squared difference between inputs and their reconstruction */
};

struct outcome {
    enum outcome_kind kind;
    int count;
    double threshold; /* the checkpoint's; NaN: none */
    double factor;    /* by which outputs are multiplied before they are probabilities (calibration.h) */
    double *values;   /* [count] */
    int best;         /* of OUTCOME_CLASS: the likeliest; of two classes, the second one from the threshold on */
};

enum { OUTCOME_NAME = 16 };

/* False if out of memory. */
bool outcome_create(struct outcome *outcome, const struct trained *trained);
void outcome_free(struct outcome *outcome);

/*
 * Fills in the outcome of row `row`. outputs: [rows, units of the last layer]; wanted: [rows, targets], for
 * OUTCOME_ERROR only.
 */
void outcome_find(const struct trained *trained, const float *outputs, const float *wanted, int row,
                  struct outcome *outcome);

/* The interval around a predicted number; of a model that has some. */
double outcome_low(const struct trained *trained, const struct outcome *outcome, int index);
double outcome_high(const struct trained *trained, const struct outcome *outcome, int index);
bool outcome_has_intervals(const struct trained *trained);

/* True if a target is predicted to be 1 (OUTCOME_FLAGS), or the example is an anomaly (OUTCOME_ERROR). */
bool outcome_flag(const struct outcome *outcome, int index);

/*
 * How far an ensemble's nets differ about it, as a standard deviation (worker/ensemble.h): of what is predicted, in its
 * own unit. Of classes there is one, of the predicted class's probability; else one of each value. spreads: [rows,
 * units of the last layer]. Not of OUTCOME_ERROR.
 */
double outcome_spread(const struct trained *trained, const struct outcome *outcome, const float *spreads, int row,
                      int index);
int outcome_spreads(const struct trained *trained);

/* What a model has no spread for: NULL, or the reason, "is a single net, ...". */
const char *outcome_spread_obstacle(const struct trained *trained);

enum outcome_kind outcome_kind(const struct trained *trained);
const char *outcome_kind_name(const struct trained *trained); /* "probabilities", "predictions", "errors" */
int outcome_count(const struct trained *trained);

/* The name of a class or target; for pictures without names its number, written to `buffer`. */
const char *outcome_name(const struct trained *trained, int index, char buffer[OUTCOME_NAME]);

/* --- As columns of a CSV file --- */

/* Write the columns' names, and their values, without the end of the line. worker/export/predict.c lists them. */
void outcome_put_names(const struct trained *trained, FILE *out, char delimiter);
void outcome_put(const struct trained *trained, const struct outcome *outcome, FILE *out, char delimiter);

/* The same of the spread, as further columns. Not of OUTCOME_ERROR. */
void outcome_put_spread_names(const struct trained *trained, FILE *out, char delimiter);
void outcome_put_spread(const struct trained *trained, const struct outcome *outcome, const float *spreads, int row,
                        FILE *out, char delimiter);
bool outcome_is_spread_name(const struct trained *trained, const char *name);

/* Is a file's column one that a prediction of this model wrote? Then the new one replaces it. */
bool outcome_is_name(const struct trained *trained, const char *name);

/* Writes prefix, which needs no quotes, and text as one field, quoted where RFC 4180 requires it. */
void csv_put(FILE *out, const char *prefix, const char *text, size_t size, char delimiter);

#endif
