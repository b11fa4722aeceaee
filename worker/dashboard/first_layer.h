/* The first layer's weights of a folder's newest checkpoint, for models of square pictures. */
#ifndef WORKER_DASHBOARD_FIRST_LAYER_H
#define WORKER_DASHBOARD_FIRST_LAYER_H

#include <stdbool.h>
#include <stddef.h>

/* Does the newest checkpoint hold a model of square pictures? */
bool first_layer_is_known(const char *folder);

/* As struct api_extras wants it (observe/api.h); context: the folder's path. */
bool first_layer_json(void *context, char **json, size_t *size);

#endif
