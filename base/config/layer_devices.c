/*
 * Both spellings of a placement, text and JSON, go through one function that assigns a single layer, so that they
 * accept the same layers and devices.
 */
#include "base/config/layer_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/memory.h"
#include "base/text/json.h"

enum { LAYERS = CONFIG_MAX_LAYERS - 1, NAME_SIZE = 24 };

/* The number after a prefix, without leading zeros; -1 if there is no number or it exceeds `most`. */
static int number_after(const char *text, const char *prefix, int most)
{
    size_t length = strlen(prefix);
    const char *digits = text + length;
    size_t count = strncmp(text, prefix, length) == 0 ? strspn(digits, "0123456789") : 0;
    if (count < 1 || count > 3 || digits[count] != '\0' || (digits[0] == '0' && count > 1)) {
        return -1;
    }
    int number = (int)strtol(digits, NULL, 10);
    return number <= most ? number : -1;
}

bool layer_devices_is_tower(const char *device)
{
    return strcmp(device, "cpu") == 0 || number_after(device, "gpu:", CONFIG_MAX_DEVICE) >= 0;
}

/* Puts one layer on a device. */
static bool layer_devices_add(int *devices, const char *layer, const char *device, struct error *error)
{
    int index = number_after(layer, "layer", LAYERS - 1);
    int gpu = number_after(device, "gpu:", CONFIG_MAX_DEVICE);
    if (index < 0) {
        return error_set(error, "\"%.32s\" is not a layer; expected layer0 (next to the inputs) to layer%d", layer,
                         LAYERS - 1);
    }
    if (gpu < 0 && strcmp(device, "cpu:0") != 0) {
        return error_set(error, "layer%d must be on cpu:0 or gpu:N with N from 0 to %d, not \"%.32s\"", index,
                         CONFIG_MAX_DEVICE, device);
    }
    if (devices[index] != LAYER_ANYWHERE) {
        return error_set(error, "duplicate layer%d; remove one", index);
    }
    devices[index] = gpu < 0 ? LAYER_ON_CPU : LAYER_ON_GPU + gpu;
    return true;
}

bool layer_devices_from_text(int *devices, const char *text, struct error *error)
{
    int found[LAYERS] = {0};
    for (const char *at = text; *at != '\0';) {
        char layer[NAME_SIZE] = "", device[NAME_SIZE] = "";
        size_t length = strcspn(at, ","), name = strcspn(at, "=,");
        if (at[name] != '=' || name >= NAME_SIZE || length - name - 1 >= NAME_SIZE) {
            return error_set(error, "must be a list like layer1=cpu:0,layer2=gpu:0");
        }
        memcpy(layer, at, name);
        memcpy(device, at + name + 1, length - name - 1);
        if (!layer_devices_add(found, layer, device, error)) {
            return false;
        }
        at += length + (at[length] == ',');
    }
    memcpy(devices, found, sizeof found);
    return true;
}

bool layer_devices_from_json(int *devices, const cJSON *object, struct error *error)
{
    int found[LAYERS] = {0};
    for (const cJSON *child = object->child; child; child = child->next) {
        if (!layer_devices_add(found, child->string, cJSON_IsString(child) ? child->valuestring : "?", error)) {
            return false;
        }
    }
    memcpy(devices, found, sizeof found);
    return true;
}

bool layer_devices_are_none(const int *devices)
{
    for (int i = 0; i < LAYERS; i++) {
        if (devices[i] != LAYER_ANYWHERE) {
            return false;
        }
    }
    return true;
}

static void device_name(int device, char name[NAME_SIZE])
{
    if (device == LAYER_ON_CPU) {
        snprintf(name, NAME_SIZE, "cpu:0");
    } else {
        snprintf(name, NAME_SIZE, "gpu:%d", device - LAYER_ON_GPU);
    }
}

cJSON *layer_devices_json(const int *devices)
{
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < LAYERS; i++) {
        char layer[NAME_SIZE], device[NAME_SIZE];
        snprintf(layer, sizeof layer, "layer%d", i);
        device_name(devices[i], device);
        if (devices[i] != LAYER_ANYWHERE) {
            json_must_put(object, layer, cJSON_CreateString(device));
        }
    }
    return object;
}

char *layer_devices_text(const int *devices)
{
    char text[LAYERS * 2 * NAME_SIZE] = "";
    for (int i = 0, used = 0; i < LAYERS; i++) {
        char device[NAME_SIZE];
        device_name(devices[i], device);
        if (devices[i] != LAYER_ANYWHERE) {
            used += snprintf(text + used, sizeof text - (size_t)used, "%slayer%d=%s", used > 0 ? "," : "", i, device);
        }
    }
    return must_copy(text);
}
