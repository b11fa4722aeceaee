/* Predictions for rows of a table: the file's own columns, followed by the model's predictions. */
#ifndef WORKER_EXPORT_PREDICT_H
#define WORKER_EXPORT_PREDICT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/budget.h"
#include "base/error.h"
#include "worker/data/table/encode.h"
#include "worker/export/trained.h"

/*
 * Reads rows from memory and writes them as CSV: their own columns, followed by the predictions (predict.c lists
 * those), with the caller's engine. `took` (may be NULL) is called for each row as it is read, `saw` for each batch of
 * them. What it takes is charged to the account (NULL: nowhere); it ends when that is closed, or has refused something.
 * Errors call the file "body". Output written before a damaged place stays, and the error says so.
 */
struct predict_watch {
    void (*took)(void *context, const struct encoder *encoder, const struct row *row);
    void (*saw)(void *context, const struct examples *examples, const float *outputs);
    void *context;
    bool has_spread; /* of an ensemble: the spread is wanted, too */
};
bool predict_rows_bytes(const struct trained *trained, struct engine *engine, const void *bytes, size_t size,
                        struct budget_account *account, const struct predict_watch *watch, FILE *out,
                        struct error *error);

#endif
