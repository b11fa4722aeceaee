/* Predictions for rows of a table: the file's own columns, followed by the model's predictions. */
#ifndef WORKER_EXPORT_PREDICT_ROWS_H
#define WORKER_EXPORT_PREDICT_ROWS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/budget.h"
#include "base/error.h"
#include "worker/data/table/encode.h"
#include "worker/export/trained.h"

/*
 * Reads a file of rows, of any size, and writes a CSV file: the columns as they are, then
 *
 *     classes      prediction, and probability_CLASS for each class; of two the second one's probability must reach the
 *                  model's threshold
 *     flags        prediction_TARGET and probability_TARGET for each target
 *     numbers      prediction, or prediction_TARGET for each target
 *     the inputs   error: the mean squared difference of what the model makes of them; and flag: 1 where it is above
 *                  the model's threshold, if it has one
 *
 * Output written before a damaged place stays, and the error says so. The model must be of a table, and started. path
 * "-": standard input. Up to max_bad_records rows with faults are skipped, each with a warning.
 */
bool predict_rows(const struct trained *trained, const char *path, FILE *out, struct error *error);

/*
 * The same for a file in memory, with the caller's engine. What it takes is charged to the account (NULL: nowhere); it
 * ends when that is closed, or has refused something. `took` (may be NULL) is called for each row as it is read,
 * `saw` for each batch of them. Errors call the file "body".
 */
struct predict_watch {
    void (*took)(void *context, const struct encoder *encoder, const struct row *row);
    void (*saw)(void *context, const struct examples *examples, const float *outputs);
    void *context;
};
bool predict_rows_bytes(const struct trained *trained, struct engine *engine, const void *bytes, size_t size,
                        struct budget_account *account, const struct predict_watch *watch, FILE *out,
                        struct error *error);

/*
 * Adds to a file's error that `told` predictions were written before it: that was before the file's checksum, if it has
 * one, could be verified. Returns false.
 */
bool predict_doubt(int64_t told, struct error *error);

#endif
