/* Builds the JSON Schema. A step fails only if memory runs out; then the whole schema is dropped. */
#include "base/config/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"

static const char schema_dialect[] = "https://json-schema.org/draft/2020-12/schema";
static const char host_pattern[] = "^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):[0-9]{1,5}$";
static const char device_pattern[] = "^(auto|cpu|gpu(:[0-9]{1,2})?)$";
static const char layer_pattern[] = "^layer([0-9]|1[0-4])$";
static const char layer_device_pattern[] = "^(cpu:0|gpu:([0-9]|[1-5][0-9]|6[0-3]))$";
static const char tower_pattern[] = "^(cpu|gpu:([0-9]|[1-5][0-9]|6[0-3]))$";
static const char text_pattern[] = "^[^\\u0000-\\u001f\\u007f]*$";

static bool add_text(cJSON *object, const char *name, const char *text)
{
    return cJSON_AddStringToObject(object, name, text);
}

static bool add_number(cJSON *object, const char *name, double number)
{
    char text[32];
    config_number_text(number, text);
    return cJSON_AddRawToObject(object, name, text);
}

static bool add_limits(cJSON *object, const struct config_key *key)
{
    return add_number(object, key->above_minimum ? "exclusiveMinimum" : "minimum", key->minimum) &&
           add_number(object, key->below_maximum ? "exclusiveMaximum" : "maximum", key->maximum);
}

static bool add_words(cJSON *object, const char *const *words)
{
    int count = 0;
    while (words[count]) {
        count++;
    }
    cJSON *array = cJSON_CreateStringArray(words, count);
    if (!array || !cJSON_AddItemToObject(object, "enum", array)) {
        cJSON_Delete(array);
        return false;
    }
    return true;
}

static cJSON *add_form(cJSON *forms)
{
    cJSON *form = cJSON_CreateObject();
    if (!cJSON_AddItemToArray(forms, form)) {
        cJSON_Delete(form);
        return NULL;
    }
    return form;
}

/* The first layer may be wider than the others. */
static bool add_layers(cJSON *object, const struct config_key *key)
{
    cJSON *items = cJSON_AddObjectToObject(object, "items");
    cJSON *inputs = add_form(cJSON_AddArrayToObject(object, "prefixItems"));
    return items && inputs && add_text(inputs, "type", "integer") && add_number(inputs, "minimum", key->minimum) &&
           add_number(inputs, "maximum", CONFIG_MAX_INPUTS) && add_text(object, "type", "array") &&
           add_number(object, "minItems", 2) && add_number(object, "maxItems", CONFIG_MAX_LAYERS) &&
           add_text(items, "type", "integer") && add_limits(items, key);
}

static bool add_names(cJSON *object)
{
    cJSON *items = cJSON_AddObjectToObject(object, "items");
    return items && add_text(object, "type", "array") && add_number(object, "maxItems", CONFIG_MAX_HOSTS) &&
           cJSON_AddTrueToObject(object, "uniqueItems") && add_text(items, "type", "string") &&
           add_text(items, "pattern", text_pattern);
}

static bool add_hosts(cJSON *object)
{
    cJSON *items = cJSON_AddObjectToObject(object, "items");
    return items && add_text(object, "type", "array") && add_number(object, "maxItems", CONFIG_MAX_HOSTS) &&
           cJSON_AddTrueToObject(object, "uniqueItems") && add_text(items, "type", "string") &&
           add_text(items, "pattern", host_pattern);
}

_Static_assert(CONFIG_MAX_LAYERS == 16 && CONFIG_MAX_DEVICE == 63, "as the patterns say");

static bool add_devices(cJSON *object)
{
    cJSON *items = cJSON_AddObjectToObject(object, "items");
    return items && add_text(object, "type", "array") && add_text(items, "type", "string") &&
           add_text(items, "pattern", tower_pattern);
}

static bool add_layer_devices(cJSON *object)
{
    cJSON *patterns = cJSON_AddObjectToObject(object, "patternProperties");
    cJSON *device = patterns ? cJSON_AddObjectToObject(patterns, layer_pattern) : NULL;
    return device && add_text(object, "type", "object") && cJSON_AddFalseToObject(object, "additionalProperties") &&
           add_text(device, "type", "string") && add_text(device, "pattern", layer_device_pattern);
}

static bool add_number_type(cJSON *object, const struct config_key *key, const char *type)
{
    cJSON *forms = key->takes_auto ? cJSON_AddArrayToObject(object, "anyOf") : NULL;
    cJSON *number = key->takes_auto ? add_form(forms) : object;
    cJSON *word = key->takes_auto ? add_form(forms) : NULL;
    return number && add_text(number, "type", type) && add_limits(number, key) &&
           (!key->takes_auto || (word && add_text(word, "const", "auto")));
}

static bool add_hidden(cJSON *object, const struct config_key *key)
{
    cJSON *forms = cJSON_AddArrayToObject(object, "anyOf");
    cJSON *list = add_form(forms), *word = add_form(forms);
    cJSON *items = list ? cJSON_AddObjectToObject(list, "items") : NULL;
    return items && word && add_text(list, "type", "array") && add_number(list, "maxItems", CONFIG_MAX_LAYERS - 2) &&
           add_text(items, "type", "integer") && add_limits(items, key) && add_text(word, "const", "auto");
}

static bool add_type(cJSON *object, const struct config_key *key)
{
    switch (key->type) {
    case KEY_SWITCH:
        return add_text(object, "type", "boolean");
    case KEY_COUNT:
    case KEY_LONG:
        return add_number_type(object, key, "integer");
    case KEY_NUMBER:
        return add_number_type(object, key, "number");
    case KEY_TEXT:
        return add_text(object, "type", "string") && add_text(object, "pattern", text_pattern) &&
               add_number(object, "maxLength", CONFIG_MAX_TEXT);
    case KEY_WORD:
        return add_text(object, "type", "string") && add_words(object, key->words);
    case KEY_DEVICE:
        return add_text(object, "type", "string") && add_text(object, "pattern", device_pattern);
    case KEY_LAYERS:
        return add_layers(object, key);
    case KEY_DEVICES:
        return add_devices(object);
    case KEY_LAYER_DEVICES:
        return add_layer_devices(object);
    case KEY_HIDDEN:
        return add_hidden(object, key);
    case KEY_NAMES:
        return add_names(object);
    case KEY_HOSTS:
        break;
    }
    return add_hosts(object);
}

static bool add_key(cJSON *properties, const struct config_key *key, const struct config *defaults)
{
    cJSON *object = cJSON_AddObjectToObject(properties, key->name);
    cJSON *initial = config_key_json(key, defaults);
    if (!object || !initial || !cJSON_AddItemToObject(object, "default", initial)) {
        cJSON_Delete(initial);
        return false;
    }
    return add_text(object, "description", key->description) && add_type(object, key) &&
           add_text(object, "x-scope", config_scope_name(key->scope)) &&
           add_text(object, "x-change", config_change_name(key->change));
}

static bool begin_object(cJSON *object, cJSON **properties)
{
    *properties = NULL;
    return add_text(object, "type", "object") && cJSON_AddFalseToObject(object, "additionalProperties") &&
           (*properties = cJSON_AddObjectToObject(object, "properties"));
}

static bool fill(cJSON *root, const struct config *defaults)
{
    cJSON *sections, *keys = NULL;
    if (!add_text(root, "$schema", schema_dialect) || !add_text(root, "title", "config.json of trainer") ||
        !begin_object(root, &sections)) {
        return false;
    }
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key == config_keys || strcmp(key->section, key[-1].section) != 0) {
            cJSON *section = cJSON_AddObjectToObject(sections, key->section);
            if (!section || !begin_object(section, &keys)) {
                return false;
            }
        }
        if (!add_key(keys, key, defaults)) {
            return false;
        }
    }
    return true;
}

cJSON *config_schema(void)
{
    struct config defaults;
    struct error error;
    if (!config_defaults(&defaults, &error)) {
        return NULL;
    }
    cJSON *root = cJSON_CreateObject();
    if (root && !fill(root, &defaults)) {
        cJSON_Delete(root);
        root = NULL;
    }
    config_free(&defaults);
    return root;
}
