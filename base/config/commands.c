/* The commands config check, config show and config schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "base/memory.h"

/* --- The schema --- */

static const char schema_dialect[] = "https://json-schema.org/draft/2020-12/schema";
static const char host_pattern[] = "^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9_][A-Za-z0-9_.-]*):[0-9]{1,5}$";
static const char device_pattern[] = "^(auto|cpu|gpu(:[0-9]{1,2})?)$";
static const char layer_pattern[] = "^layer([0-9]|1[0-4])$";
static const char layer_device_pattern[] = "^(cpu:0|gpu:([0-9]|[1-5][0-9]|6[0-3]))$";
static const char tower_pattern[] = "^(cpu|gpu:([0-9]|[1-5][0-9]|6[0-3]))$";
static const char text_pattern[] = "^[^\\u0000-\\u001f\\u007f]*$";

static void add_text(cJSON *object, const char *name, const char *text)
{
    json_must_put(object, name, cJSON_CreateString(text));
}

static void add_number(cJSON *object, const char *name, double number)
{
    char text[32];
    config_number_text(number, text);
    json_must_put(object, name, cJSON_CreateRaw(text));
}

/* name NULL: to the end of a list. */
static cJSON *add_object(cJSON *object, const char *name)
{
    cJSON *added = cJSON_CreateObject();
    json_must_put(object, name, added);
    return added;
}

static cJSON *add_array(cJSON *object, const char *name)
{
    cJSON *added = cJSON_CreateArray();
    json_must_put(object, name, added);
    return added;
}

static void add_limits(cJSON *object, const struct config_key *key)
{
    add_number(object, key->above_minimum ? "exclusiveMinimum" : "minimum", key->minimum);
    add_number(object, key->below_maximum ? "exclusiveMaximum" : "maximum", key->maximum);
}

static void add_words(cJSON *object, const char *const *words)
{
    int count = 0;
    while (words[count]) {
        count++;
    }
    json_must_put(object, "enum", cJSON_CreateStringArray(words, count));
}

static void add_integer(cJSON *object, const struct config_key *key)
{
    add_text(object, "type", "integer");
    add_limits(object, key);
}

/* The first layer may be wider than the others. */
static void add_layers(cJSON *object, const struct config_key *key)
{
    cJSON *items = add_object(object, "items");
    cJSON *inputs = add_object(add_array(object, "prefixItems"), NULL);
    add_text(inputs, "type", "integer");
    add_number(inputs, "minimum", key->minimum);
    add_number(inputs, "maximum", CONFIG_MAX_INPUTS);
    add_text(object, "type", "array");
    add_number(object, "minItems", 2);
    add_number(object, "maxItems", CONFIG_MAX_LAYERS);
    add_integer(items, key);
}

/* Of texts. */
static void add_list(cJSON *object, const char *pattern)
{
    cJSON *items = add_object(object, "items");
    add_text(object, "type", "array");
    add_text(items, "type", "string");
    add_text(items, "pattern", pattern);
}

/* Of different texts. */
static void add_set(cJSON *object, const char *pattern)
{
    add_list(object, pattern);
    add_number(object, "maxItems", CONFIG_MAX_HOSTS);
    json_must_put(object, "uniqueItems", cJSON_CreateTrue());
}

_Static_assert(CONFIG_MAX_LAYERS == 16 && CONFIG_MAX_DEVICE == 63, "as the patterns say");

static void add_layer_devices(cJSON *object)
{
    cJSON *device = add_object(add_object(object, "patternProperties"), layer_pattern);
    add_text(object, "type", "object");
    json_must_put(object, "additionalProperties", cJSON_CreateFalse());
    add_text(device, "type", "string");
    add_text(device, "pattern", layer_device_pattern);
}

static const char time_pattern[] = "^[0-9.+eE-]+[smhd]?$";

static void add_number_type(cJSON *object, const struct config_key *key, const char *type)
{
    cJSON *forms = key->takes_auto || key->is_time ? add_array(object, "anyOf") : NULL;
    cJSON *number = forms ? add_object(forms, NULL) : object;
    add_text(number, "type", type);
    add_limits(number, key);
    if (key->takes_auto) {
        add_text(add_object(forms, NULL), "const", "auto");
    }
    if (key->is_time) {
        cJSON *text = add_object(forms, NULL);
        add_text(text, "type", "string");
        add_text(text, "pattern", time_pattern);
    }
}

static void add_hidden(cJSON *object, const struct config_key *key)
{
    cJSON *forms = add_array(object, "anyOf");
    cJSON *list = add_object(forms, NULL), *word = add_object(forms, NULL);
    cJSON *items = add_object(list, "items");
    add_text(list, "type", "array");
    add_number(list, "maxItems", CONFIG_MAX_LAYERS - 2);
    add_integer(items, key);
    add_text(word, "const", "auto");
}

static void add_type(cJSON *object, const struct config_key *key)
{
    switch (key->type) {
    case KEY_SWITCH:
        add_text(object, "type", "boolean");
        break;
    case KEY_COUNT:
    case KEY_LONG:
        add_number_type(object, key, "integer");
        break;
    case KEY_NUMBER:
        add_number_type(object, key, "number");
        break;
    case KEY_TEXT:
        add_text(object, "type", "string");
        add_text(object, "pattern", text_pattern);
        add_number(object, "maxLength", CONFIG_MAX_TEXT);
        break;
    case KEY_WORD:
        add_text(object, "type", "string");
        add_words(object, key->words);
        break;
    case KEY_DEVICE:
        add_text(object, "type", "string");
        add_text(object, "pattern", device_pattern);
        break;
    case KEY_LAYERS:
        add_layers(object, key);
        break;
    case KEY_DEVICES:
        add_list(object, tower_pattern);
        break;
    case KEY_LAYER_DEVICES:
        add_layer_devices(object);
        break;
    case KEY_HIDDEN:
        add_hidden(object, key);
        break;
    case KEY_NAMES:
        add_set(object, text_pattern);
        break;
    case KEY_HOSTS:
        add_set(object, host_pattern);
        break;
    }
}

static void add_key(cJSON *properties, const struct config_key *key, const struct config *defaults)
{
    cJSON *object = add_object(properties, key->name);
    json_must_put(object, "default", config_key_json(key, defaults));
    add_text(object, "description", key->description);
    add_type(object, key);
    add_text(object, "x-scope", config_scope_name(key->scope));
    add_text(object, "x-change", config_change_name(key->change));
}

/* Returns its properties. */
static cJSON *begin_object(cJSON *object)
{
    add_text(object, "type", "object");
    json_must_put(object, "additionalProperties", cJSON_CreateFalse());
    return add_object(object, "properties");
}

static cJSON *config_schema(void)
{
    struct config defaults;
    cJSON *root = cJSON_CreateObject(), *keys = NULL;
    config_defaults(&defaults);
    add_text(root, "$schema", schema_dialect);
    add_text(root, "title", "config.json of trainer");
    cJSON *sections = begin_object(root);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key == config_keys || strcmp(key->section, key[-1].section) != 0) {
            keys = begin_object(add_object(sections, key->section));
        }
        add_key(keys, key, &defaults);
    }
    config_free(&defaults);
    return root;
}

enum { SHOWN_DIGEST = 16 }; /* hex digits shown to people */

/* As cJSON printed it. */
static int print_json(char *text)
{
    puts(must_have(text, 0, "a config as JSON"));
    cJSON_free(text);
    return COMMAND_DONE;
}

static int run_check(const struct command_call *call)
{
    struct error error;
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!config_check_role(call->config, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    config_digest(call->config, digest);
    const char *path = call->config->path ? call->config->path : "built-in defaults";
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "config", path);
    cJSON_AddStringToObject(fields, "digest", digest);
    log_event("config", fields, "%s: valid, job digest %.*s", path, SHOWN_DIGEST, digest);
    return COMMAND_DONE;
}

/* "default", "config.json:12:5" or "--flag". */
static void source_text(const struct config *config, const struct config_key *key, char *text, size_t size)
{
    const struct config_origin *origin = config_origin_of(config, key);
    if (origin->source == SOURCE_FILE) {
        snprintf(text, size, "%s:%d:%d", config->path, origin->line, origin->column);
    } else if (origin->source == SOURCE_VERSION) {
        snprintf(text, size, "version %lld, rolled out", (long long)config->fleet.version);
    } else if (origin->source == SOURCE_FLAG) {
        snprintf(text, size, "--%s", key->name);
    } else if (origin->source == SOURCE_ENVIRONMENT) {
        snprintf(text, size, "%s", config_environment_name(config));
    } else {
        snprintf(text, size, "default");
    }
}

/* What is chosen depends on the rows, which nobody has read yet. */
static bool follows_from_rows(const struct config_key *key, const struct config *config)
{
    return key->offset == offsetof(struct config, train.batch_size) && config->data.data_sharding != SHARDING_CHIEF;
}

static cJSON *key_report(const struct config *config, const struct config_key *key)
{
    char source[512];
    source_text(config, key, source, sizeof source);
    cJSON *object = cJSON_CreateObject();
    json_must_put(object, "value", config_key_json(key, config));
    if (config_was_chosen(config, key->section, key->name) && !follows_from_rows(key, config)) {
        char *chosen = config_key_chosen_text(key, config);
        cJSON_AddStringToObject(object, "chosen", chosen);
        free(chosen);
    }
    cJSON_AddStringToObject(object, "from", source);
    cJSON_AddStringToObject(object, "scope", config_scope_name(key->scope));
    cJSON_AddStringToObject(object, "change", config_change_name(key->change));
    return object;
}

static int show_json(const struct config *config, const char *digest)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "event", "config");
    cJSON_AddStringToObject(root, "digest", digest);
    cJSON *keys = cJSON_AddObjectToObject(root, "keys");
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE];
        config_key_path(key, path);
        json_must_put(keys, path, key_report(config, key));
    }
    char *text = cJSON_PrintUnformatted(root);
    cJSON_Delete(root);
    return print_json(text);
}

static int show_text(const struct config *config, const char *digest)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        char path[CONFIG_PATH_SIZE], source[512];
        config_key_path(key, path);
        source_text(config, key, source, sizeof source);
        char *value = config_key_chosen_text(key, config);
        const bool is_auto = config_was_chosen(config, key->section, key->name);
        char chosen[64];
        snprintf(chosen, sizeof chosen, "auto: %s", follows_from_rows(key, config) ? "by the data" : value);
        printf("%-28s %-32s %s\n", path, is_auto ? chosen : value[0] != '\0' ? value : "(empty)", source);
        free(value);
    }
    printf("\njob digest                   %s\n", digest);
    return COMMAND_DONE;
}

static int run_show(const struct command_call *call)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    config_digest(call->config, digest);
    bool json = command_switch(call, "json") || log_format() == LOG_JSON;
    return json ? show_json(call->config, digest) : show_text(call->config, digest);
}

static int run_schema(const struct command_call *call)
{
    (void)call;
    cJSON *schema = config_schema();
    char *text = cJSON_Print(schema);
    cJSON_Delete(schema);
    return print_json(text);
}

static const struct command_flag show_flags[] = {
    {"json", NULL, "one JSON object: value, origin, scope and change class of every key"},
    {NULL, NULL, NULL},
};

const struct command command_config_check = {
    .name = "config check",
    .summary = "check config.json and flags, and print the job's digest",
    .takes_config = true,
    .only_shows = true,
    .confine = CONFINE_READER,
    .run = run_check,
};

const struct command command_config_show = {
    .name = "config show",
    .summary = "print every key's value in effect, where it comes from, and the job's digest",
    .details = "The digest covers the values in effect of the job-scoped keys; it is the same on all members of a job.",
    .flags = show_flags,
    .takes_config = true,
    .only_shows = true,
    .confine = CONFINE_READER,
    .run = run_show,
};

const struct command command_config_schema = {
    .name = "config schema",
    .summary = "print a JSON Schema of config.json, for editors and validators",
    .confine = CONFINE_READER,
    .run = run_schema,
};
