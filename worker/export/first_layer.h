/* The first layer of a folder's newest checkpoint: its units as images, or the weights of a table's columns. */
#ifndef WORKER_EXPORT_FIRST_LAYER_H
#define WORKER_EXPORT_FIRST_LAYER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text/json_writer.h"
#include "worker/data/table/schema.h"

/* Does the newest checkpoint contain a model of square images? */
bool first_layer_is_known(const char *folder);

/* Does it contain a model of a table? */
bool first_layer_has_columns(const char *folder);

/* weights: [height x width, units]; the first units as JSON, each an image. */
void first_layer_write(struct text_buffer *text, const float *weights, int units, int height, int width);

/* As struct api_extras wants it (observe/api.h); context: the folder's path. */
bool first_layer_json(void *context, char **json, size_t *size);
bool first_layer_columns(void *context, char **json, size_t *size);

/* --- Columns' weights --- */

/*
 * Each column's share of the weights of a table model's first layer: a cheap hint of its importance;
 * worker/export/explain.c measures it.
 */

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
