/* The commands config check, config show and config schema. */

#include <stdio.h>
#include <stdlib.h>

#include <cJSON.h>

#include "base/cli/commands.h"
#include "base/config/keys.h"
#include "base/config/schema.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text/json.h"

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
    .run = run_check,
};

const struct command command_config_show = {
    .name = "config show",
    .summary = "print every key's value in effect, where it comes from, and the job's digest",
    .details = "The digest covers the values in effect of the job-scoped keys; it is the same on all members of a job.",
    .flags = show_flags,
    .takes_config = true,
    .only_shows = true,
    .run = run_show,
};

const struct command command_config_schema = {
    .name = "config schema",
    .summary = "print a JSON Schema of config.json, for editors and validators",
    .run = run_schema,
};
