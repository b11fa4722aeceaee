/*
 * What each row counts in the loss: by a column of the table, by its class, or both. First every training row is
 * counted, then weights are applied to whatever rows come.
 */
#ifndef WORKER_DATA_TABLE_WEIGHTS_H
#define WORKER_DATA_TABLE_WEIGHTS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/schema.h"

/* Zeros, of which nothing was begun, apply no weights. */
struct weights {
    int classes;     /* 1: no classes have weights of their own */
    double *factors; /* [classes]: of a row's own weight; while rows are counted: of the class alone */
    double *sums;    /* [classes]: of the rows' own weights */
    int64_t *rows;   /* [classes] */
    double mean;     /* of all training rows, by which everything is divided */
    bool are_balanced;
};

/*
 * class_weights: "" for none, "balanced" (rows / (classes x rows of the class), as scikit-learn's), or
 * "name:weight,..." with 1 for classes that are not named. The caller calls weights_free in any case.
 */
bool weights_begin(struct weights *weights, const struct schema *schema, const char *class_weights,
                   struct error *error);
void weights_free(struct weights *weights);

/* Counts a training row; its weight, if it has one, is its own. */
void weights_count(struct weights *weights, const struct examples *examples, int row);

/* All rows have been counted; weights become 1 on average. name: of the data, for errors. */
bool weights_settle(struct weights *weights, const char *name, struct error *error);

/*
 * Turns the rows' own weights into those that count, if they have any. The first `held_out` of them are not trained on:
 * what their class counts does not matter.
 */
void weights_apply(const struct weights *weights, const struct examples *examples, int held_out);

#endif
