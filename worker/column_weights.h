/*
 * Each column's share of the weights of a table model's first layer: a cheap hint of its importance; worker/explain.c
 * measures it.
 */
#ifndef WORKER_COLUMN_WEIGHTS_H
#define WORKER_COLUMN_WEIGHTS_H

#include "base/text/json_writer.h"
#include "worker/data/table/schema.h"

enum { COLUMN_WEIGHTS_MOST = 512 };

struct weighed_column {
    char name[64];
    double share; /* of all; they add up to 1 */
};

/* The mean square of an input's weights. */
double column_weights_square(const float *row, int units);

/* squares: [schema->inputs]; columns: [COLUMN_WEIGHTS_MOST]. Returns the number of columns. */
int column_weights(struct weighed_column *columns, const struct schema *schema, const double *squares);

/* Writes them as /api/columns reports them. */
void column_weights_write(struct text_buffer *text, const struct weighed_column *columns, int count);

#endif
