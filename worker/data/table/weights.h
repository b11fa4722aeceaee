/*
 * Each row's weight in the loss: by a column of the table, by its class, or both. First every training row is counted,
 * then weights can be applied to any rows.
 */
#ifndef WORKER_DATA_TABLE_WEIGHTS_H
#define WORKER_DATA_TABLE_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/schema.h"

/* Zeros (before weights_begin) apply no weights. */
struct weights {
    int classes;     /* 1: there are no class weights */
    double *factors; /* [classes]: multiplies a row's own weight; during counting: the class weight alone */
    double *sums;    /* [classes]: of the rows' own weights */
    int64_t *rows;   /* [classes] */
    double mean;     /* of all training rows; every weight is divided by it */
    bool are_balanced;
};

/*
 * class_weights: "" for none, "balanced" (rows / (classes x rows of the class), as scikit-learn's), or
 * "name:weight,..." with 1 for classes that are not named. The caller calls weights_free in any case.
 */
bool weights_begin(struct weights *weights, const struct schema *schema, const char *class_weights,
                   struct error *error);
void weights_free(struct weights *weights);

/* Counts a training row; its weight, if it has one, is still its own. */
void weights_count(struct weights *weights, const struct examples *examples, int row);

/* Call it after all rows: normalizes weights to 1 on average. name: of the data, for errors. */
bool weights_settle(struct weights *weights, const char *name, struct error *error);

/*
 * Turns the rows' own weights, if any, into final ones. The first `held_out` rows are not trained on: class weights do
 * not apply to them.
 */
void weights_apply(const struct weights *weights, const struct examples *examples, int held_out);

#endif
