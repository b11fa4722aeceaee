/*
 * Keys that name devices: what train.towers lists, and
 *
 * train.placement: which layers of weights are computed where, {"layer1": "cpu:0"}. As a text: "layer1=cpu:0,layer2=gpu:0".
 *
 * devices: int [CONFIG_MAX_LAYERS - 1], of each layer LAYER_ANYWHERE, LAYER_ON_CPU, or LAYER_ON_GPU + N for gpu:N.
 */
#ifndef BASE_CONFIG_LAYER_DEVICES_H
#define BASE_CONFIG_LAYER_DEVICES_H

#include <stdbool.h>

#include <cJSON.h>

#include "base/error.h"

#define LAYER_DEVICES_ALLOWED "an object from layers (layer0, layer1, ...) to devices (cpu:0, gpu:0, ...)"

/* Is this "cpu" or gpu:N, as train.towers lists them? */
bool layer_devices_is_tower(const char *device);

/* Puts one layer on a device; the error follows the key's path. */
bool layer_devices_add(int *devices, const char *layer, const char *device, struct error *error);

/* All of them, from a text or an object; devices is left as it was where that fails. */
bool layer_devices_from_text(int *devices, const char *text, struct error *error);
bool layer_devices_from_json(int *devices, const cJSON *object, struct error *error);

/* The caller deletes, or frees; NULL without memory. */
cJSON *layer_devices_json(const int *devices);
char *layer_devices_text(const int *devices);

#endif
