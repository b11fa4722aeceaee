/* A table model's predictions for a row, as columns of a CSV file: `trainer predict` and the request log write them. */
#ifndef WORKER_EXPORT_OUTCOME_CSV_H
#define WORKER_EXPORT_OUTCOME_CSV_H

#include <stdio.h>

#include "worker/export/outcome.h"

/* Write the columns' names, and their values, without the end of the line. worker/export/predict_rows.h lists them. */
void outcome_put_names(const struct trained *trained, FILE *out, char delimiter);
void outcome_put(const struct trained *trained, const struct outcome *outcome, FILE *out, char delimiter);

/* Writes prefix, which needs no quotes, and text as one field, quoted where RFC 4180 requires it. */
void csv_put(FILE *out, const char *prefix, const char *text, size_t size, char delimiter);

#endif
