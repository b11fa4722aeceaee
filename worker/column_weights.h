/* How much of a table model's first layer each column has: a cheap hint of what matters; worker/explain.c proves. */
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

/* squares: [schema->inputs]; columns: [COLUMN_WEIGHTS_MOST]. Returns how many there are. */
int column_weights(struct weighed_column *columns, const struct schema *schema, const double *squares);

/* As /api/columns tells them. */
void column_weights_write(struct text_buffer *text, const struct weighed_column *columns, int count);

#endif
