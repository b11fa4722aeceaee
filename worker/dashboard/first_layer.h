/* The first layer of a folder's newest checkpoint: pictures of its units, or what a table's columns weigh in it. */
#ifndef WORKER_DASHBOARD_FIRST_LAYER_H
#define WORKER_DASHBOARD_FIRST_LAYER_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text/json_writer.h"

/* Does the newest checkpoint hold a model of square pictures? */
bool first_layer_is_known(const char *folder);

/* Does it hold a model of a table? */
bool first_layer_has_columns(const char *folder);

/* weights: [height x width, units]; the first units of them as JSON, each a picture. */
void first_layer_write(struct text_buffer *text, const float *weights, int units, int height, int width);

/* As struct api_extras wants it (observe/api.h); context: the folder's path. */
bool first_layer_json(void *context, char **json, size_t *size);
bool first_layer_columns(void *context, char **json, size_t *size);

#endif
