/* The first layer of a folder's newest checkpoint: its units as images, or the weights of a table's columns. */
#ifndef WORKER_DASHBOARD_FIRST_LAYER_H
#define WORKER_DASHBOARD_FIRST_LAYER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text/json_writer.h"

/* Does the newest checkpoint contain a model of square images? */
bool first_layer_is_known(const char *folder);

/* Does it contain a model of a table? */
bool first_layer_has_columns(const char *folder);

/* weights: [height x width, units]; the first units as JSON, each an image. */
void first_layer_write(struct text_buffer *text, const float *weights, int units, int height, int width);

/* As struct api_extras wants it (observe/api.h); context: the folder's path. */
bool first_layer_json(void *context, char **json, size_t *size);
bool first_layer_columns(void *context, char **json, size_t *size);

#endif
