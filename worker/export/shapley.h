/*
 * What each column of a table contributes to a prediction: Shapley values (Strumbelj and Kononenko, "Explaining
 * prediction models and individual predictions with feature contributions", 2014). From a row of the background, rows
 * to compare with, to the row in question columns change one after the other; a column's contribution is how much the
 * prediction changes with it, averaged over orders and over the background. So the contributions add up to the
 * prediction less the background's mean prediction.
 *
 * A column is one of the table, with all inputs that come of it. What is explained is the prediction in its own unit:
 * of classes the probability of the predicted class; of yes/no targets each one's probability; of numbers each number.
 *
 * Orders are drawn, and come in pairs, each with its reverse; every row of the background gets as many, so that only
 * the orders are a matter of chance. They depend on the seed alone.
 */
#ifndef WORKER_EXPORT_SHAPLEY_H
#define WORKER_EXPORT_SHAPLEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/export/trained.h"

enum {
    SHAPLEY_BACKGROUND = 100, /* rows of a background, at most */
    SHAPLEY_SAMPLES = 400,    /* orders for a row, usually */
    SHAPLEY_MOST_SAMPLES = 1000000,
};

/* Immutable once made: any thread may explain by it. */
struct shapley {
    const struct trained *trained; /* borrowed */
    struct examples background;    /* owned */
    double *values;                /* [background.count, predictions]: of its rows */
    double *means;                 /* [predictions] */
    int column_count;              /* features, the first columns of the schema */
    int predictions;               /* of a row: probabilities of all classes, ... */
    int outputs;                   /* of them explained: 1 of classes */
    int pairs;                     /* of orders, for each row of the background */
    int samples;                   /* orders for a row in all: a little more than was asked for */
    uint64_t seed;
};

/* What a model can't be explained for: NULL, or the reason, "learns its inputs, ...". */
const char *shapley_obstacle(const struct trained *trained);

/*
 * Takes the rows over in any case. samples: orders for each row, at least. The engine is needed for this call only.
 * Call shapley_free in any case; fine on zeros.
 */
bool shapley_make(struct shapley *self, const struct trained *trained, struct examples *background, int samples,
                  struct engine *engine, struct error *error);
void shapley_free(struct shapley *self);

/* An explanation of one row. */
struct contributions {
    int best;       /* the predicted class; else 0 */
    double *values; /* [outputs]: what is predicted */
    double *means;  /* [outputs]: of the background */
    double *of;     /* [outputs, columns] */
    double *errors; /* [outputs, columns]: standard errors, by the orders that were drawn */
    void *memory;
};

/* What explaining takes meanwhile, and what a shapley of these rows holds, for a caller that counts it. */
size_t shapley_bytes(const struct shapley *self);
size_t shapley_kept_bytes(const struct trained *trained, const struct examples *background);

/* To explain one row: rows that are computed, and these times the weights that a row meets. */
int64_t shapley_rows(const struct shapley *self);
double shapley_work(const struct shapley *self);

/* False if out of memory. */
bool contributions_create(struct contributions *contributions, const struct shapley *shapley);
void contributions_free(struct contributions *contributions);

/* Asked every few hundred rows; false, with an error, ends the explanation. */
struct shapley_watch {
    bool (*goes_on)(void *context, struct error *error);
    void *context;
};

/* Explains row `row`. watch: NULL if nobody may end it. */
bool shapley_explain(const struct shapley *self, struct engine *engine, const struct examples *examples, int row,
                     const struct shapley_watch *watch, struct contributions *contributions, struct error *error);

/* --- As columns of a CSV file --- */

/*
 * For each output, whose name stands before the column's if there are several: explanation_mean, contribution_COLUMN
 * for each column, and explanation_error, the largest standard error of these. They are further columns: a delimiter
 * comes first.
 */
void contributions_put_names(const struct shapley *shapley, FILE *out, char delimiter);
void contributions_put(const struct shapley *shapley, const struct contributions *contributions, FILE *out,
                       char delimiter);

/* Is a file's column one that contributions_put_names writes, and not one of the model's? */
bool contributions_is_name(const struct trained *trained, const char *name);

#endif
