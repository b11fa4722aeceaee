/*
 * Keys that name devices: train.towers, and train.placement, which assigns layers of weights to devices: {"layer1":
 * "cpu:0"}, or as text "layer1=cpu:0,layer2=gpu:0". devices: int [CONFIG_MAX_LAYERS - 1], for each layer
 * LAYER_ANYWHERE, LAYER_ON_CPU, or LAYER_ON_GPU + N for gpu:N.
 */
#ifndef BASE_CONFIG_LAYER_DEVICES_H
#define BASE_CONFIG_LAYER_DEVICES_H

#include <stdbool.h>

#include <cJSON.h>

#include "base/error.h"

#define LAYER_DEVICES_ALLOWED "an object from layers (layer0, layer1, ...) to devices (cpu:0, gpu:0, ...)"

/* True for "cpu" and "gpu:N", the entries of train.towers. */
bool layer_devices_is_tower(const char *device);

/*
 * Parses a whole placement from text or an object; devices is unchanged on failure. The error follows the key's path.
 */
bool layer_devices_from_text(int *devices, const char *text, struct error *error);
bool layer_devices_from_json(int *devices, const cJSON *object, struct error *error);

/* True if every layer is where the others are. */
bool layer_devices_are_none(const int *devices);

/* The caller deletes or frees the result; NULL if out of memory. */
cJSON *layer_devices_json(const int *devices);
char *layer_devices_text(const int *devices);

#endif
