/*
 * Merges defaults, a file and flags into one checked struct config.
 *
 * The file's text is first checked as JSON (base/text/json.h), because cJSON accepts more than JSON and reports no
 * positions; then each member is looked up in the table of keys. The first error is reported, with line and column.
 */
#include "base/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/config/keys.h"
#include "base/config/scheduler.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text/json.h"
#include "base/text/text.h"
#include "base/trust.h"

enum { CONFIG_MAX_FILE = 1 << 20 };

/* A file being read into a config. */
struct config_reader {
    struct config *config;
    const char *name;
    const char *text;
    size_t size;
    enum config_source source;
    struct error *error;
};

/* Puts "FILE:LINE:COLUMN: " before the error. path as for json_find. */
static bool fail_at(struct config_reader *reader, const int *path, int depth, bool name)
{
    struct json_place place = {1, 1};
    json_find(reader->text, reader->size, path, depth, name, &place);
    return error_wrap(reader->error, "%s:%d:%d", reader->name, place.line, place.column);
}

static bool unknown_section(struct config_reader *reader, const char *section)
{
    struct suggestion suggestion = {.word = section};
    const struct config_key *key = config_key_by_flag(section);
    for (const struct config_key *each = config_keys; each->section; each++) {
        suggest_offer(&suggestion, each->section);
    }
    if (key) {
        return error_set(reader->error, "%.64s: not a section; this key belongs in section %s", section, key->section);
    }
    if (suggestion.best) {
        return error_set(reader->error, "%.64s: unknown section; did you mean %s?", section, suggestion.best);
    }
    return error_set(reader->error, "%.64s: unknown section; `trainer help config` lists them", section);
}

static bool unknown_key(struct config_reader *reader, const char *section, const char *name)
{
    struct suggestion suggestion = {.word = name};
    const struct config_key *nearest = NULL;
    for (const struct config_key *key = config_keys; key->section; key++) {
        const char *best = suggestion.best;
        int distance = suggestion.distance;
        suggest_offer(&suggestion, key->name);
        if (suggestion.best != best || suggestion.distance != distance) {
            nearest = key;
        }
    }
    if (nearest) {
        return error_set(reader->error, "%s.%.64s: unknown key; did you mean %s.%s?", section, name, nearest->section,
                         nearest->name);
    }
    return error_set(reader->error, "%s.%.64s: unknown key; `trainer help config` lists them", section, name);
}

/* The same name in another spelling, \u0061 for a, which json_check does not see. */
static bool stands_before(const cJSON *parent, const cJSON *child)
{
    for (const cJSON *other = parent->child; other != child; other = other->next) {
        if (strcmp(other->string, child->string) == 0) {
            return true;
        }
    }
    return false;
}

/* path: the indexes of section and key. */
static bool read_key(struct config_reader *reader, const cJSON *section, const cJSON *member, const int *path)
{
    const struct config_key *key = config_key_by_path(section->string, member->string);
    if (!key) {
        unknown_key(reader, section->string, member->string);
        return fail_at(reader, path, 2, true);
    }
    if (stands_before(section, member)) {
        error_set(reader->error, "%s.%s: duplicate key; remove one", key->section, key->name);
        return fail_at(reader, path, 2, true);
    }
    int full_path[3] = {path[0], path[1], -1};
    if (!config_key_set_json(key, reader->config, member, &full_path[2], reader->error)) {
        if (full_path[2] >= 0) {
            error_wrap(reader->error, "%s.%s[%d]", key->section, key->name, full_path[2]);
        } else {
            error_wrap(reader->error, "%s.%s", key->section, key->name);
        }
        return fail_at(reader, full_path, full_path[2] >= 0 ? 3 : 2, false);
    }
    struct json_place place = {0, 0};
    json_find(reader->text, reader->size, path, 2, false, &place);
    *config_origin_of(reader->config, key) =
        (struct config_origin){.source = reader->source, .line = place.line, .column = place.column};
    return true;
}

static bool is_section(const char *name)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (strcmp(key->section, name) == 0) {
            return true;
        }
    }
    return false;
}

static bool read_section(struct config_reader *reader, const cJSON *root, const cJSON *section, int index)
{
    int path[2] = {index, 0};
    if (!is_section(section->string)) {
        unknown_section(reader, section->string);
        return fail_at(reader, path, 1, true);
    }
    if (stands_before(root, section)) {
        error_set(reader->error, "%s: duplicate section; merge the two", section->string);
        return fail_at(reader, path, 1, true);
    }
    if (!cJSON_IsObject(section)) {
        error_set(reader->error, "%s: must be an object of keys: {\"%s\": {...}}", section->string, section->string);
        return fail_at(reader, path, 1, false);
    }
    for (const cJSON *member = section->child; member; member = member->next, path[1]++) {
        if (!read_key(reader, section, member, path)) {
            return false;
        }
    }
    return true;
}

static bool read_root(struct config_reader *reader, const cJSON *root)
{
    if (!cJSON_IsObject(root)) {
        error_set(reader->error, "expected one object: {\"model\": {...}, \"train\": {...}, ...}");
        return fail_at(reader, NULL, 0, false);
    }
    int index = 0;
    for (const cJSON *section = root->child; section; section = section->next, index++) {
        if (!read_section(reader, root, section, index)) {
            return false;
        }
    }
    return true;
}

static bool read_file_text(struct config_reader *reader)
{
    struct json_place place;
    if (reader->size > CONFIG_MAX_FILE) {
        return error_set(reader->error, "%s: larger than %d bytes, the limit for a config", reader->name,
                         CONFIG_MAX_FILE);
    }
    if (!json_check(reader->text, reader->size, &place, reader->error)) {
        return error_wrap(reader->error, "%s:%d:%d", reader->name, place.line, place.column);
    }
    cJSON *root = must_have(json_build(reader->text, reader->size), 0, "a config");
    bool done = read_root(reader, root);
    cJSON_Delete(root);
    return done;
}

static bool read_setting(struct config *config, const struct config_setting *setting, enum config_source source,
                         struct error *error)
{
    const struct config_key *key = config_key_by_flag(setting->flag);
    if (!key) {
        return error_set(error, "unknown flag --%.64s", setting->flag);
    }
    if (!config_key_set_text(key, config, setting->text, error)) {
        return source == SOURCE_ENVIRONMENT ? error_wrap(error, "%s: %s", config_environment_name(config), key->name)
                                            : error_wrap(error, "--%s", key->name);
    }
    config_origin_of(config, key)->source = source;
    return true;
}

static bool set_defaults(struct config *config, struct error *error)
{
    config->origins = must_zero((size_t)config_key_count, sizeof *config->origins, "a config");
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (!config_key_set_text(key, config, key->initial, error)) {
            return error_wrap(error, "default of %s.%s", key->section, key->name);
        }
    }
    return true;
}

static bool read_text(struct config *config, const char *name, const char *text, size_t size, struct error *error)
{
    struct config_reader reader = {config, name, text, size, SOURCE_VERSION, error};
    return !text || size == 0 || read_file_text(&reader);
}

/* Applies the version rolled out to this machine, if it is newer than the file. */
static bool read_version(struct config *config, const char *config_path, struct error *error)
{
    struct versions versions;
    char name[VERSIONS_PATH + 64], *job = NULL, *local = NULL;
    size_t job_size, local_size;
    bool there;
    uint64_t number;
    if (!versions_current(config_path, &there, &number, error)) {
        return false;
    }
    const uint64_t in_force = number > (uint64_t)config->fleet.version ? number : (uint64_t)config->fleet.version;
    if (!versions_check_start(config_path, there && number == in_force, in_force, error)) {
        return false;
    }
    if (!there || (int64_t)number <= config->fleet.version) {
        return true;
    }
    bool done = versions_path(config_path, NULL, name, error) && trust_folder(name, error) &&
                versions_open(&versions, config_path, error) &&
                versions_read(&versions, number, &job, &job_size, error) &&
                versions_read_local(&versions, number, &local, &local_size, error);
    if (done) {
        snprintf(name, sizeof name, "%s/%08llu.json", versions.folder, (unsigned long long)number);
        done = read_text(config, name, job, job_size, error);
    }
    if (done) {
        snprintf(name, sizeof name, "%s/%08llu.local.json", versions.folder, (unsigned long long)number);
        done = read_text(config, name, local, local_size, error);
    }
    free(local);
    free(job);
    return done;
}

/* The layers of a config; later ones override earlier ones. */
struct layers {
    const char *name;     /* of the file */
    const uint8_t *bytes; /* NULL: no file */
    size_t size;
    bool versions;                         /* apply the version in force that is stored with the file */
    const struct config_texts *texts;      /* or apply this version; NULL: none */
    bool environment;                      /* read the environment for this process's role */
    const struct config_setting *settings; /* flags */
    int setting_count;
    enum config_source *sources; /* [setting_count]; NULL: all are flags */
};

static bool read_settings(struct config *config, const struct layers *layers, struct error *error)
{
    for (int i = 0; i < layers->setting_count; i++) {
        if (!read_setting(config, &layers->settings[i], layers->sources ? layers->sources[i] : SOURCE_FLAG, error)) {
            return false;
        }
    }
    return true;
}

static bool read_environment(struct config *config, struct error *error)
{
    struct assignment assignment;
    struct slurm_task task;
    const char *tf_config = getenv("TF_CONFIG");
    const struct config_cluster *cluster = &config->cluster;
    bool done;
    if (cluster->cluster == CLUSTER_BY_SLURM) {
        if (tf_config && tf_config[0] != '\0') {
            return error_set(error, "TF_CONFIG and cluster=slurm both define this process's role; remove one");
        }
        slurm_task_here(&task);
        done = slurm_parse(&assignment, &task, cluster->ps_count, cluster->base_port, error);
    } else {
        done = tf_config_parse(&assignment, tf_config, error);
    }
    for (int i = 0; done && i < assignment.count; i++) {
        done = read_setting(config, &assignment.settings[i], SOURCE_ENVIRONMENT, error);
    }
    assignment_free(&assignment);
    return done;
}

static bool read_layers(struct config *config, const struct layers *layers, struct error *error)
{
    if (!set_defaults(config, error)) {
        return false;
    }
    if (layers->bytes) {
        struct config_reader reader = {config,       layers->name, (const char *)layers->bytes,
                                       layers->size, SOURCE_FILE,  error};
        config->path = must_copy(layers->name);
        if (!read_file_text(&reader) || (layers->versions && !read_version(config, layers->name, error))) {
            return false;
        }
    }
    if (layers->texts && (!read_text(config, "the new version", layers->texts->job, layers->texts->job_size, error) ||
                          !read_text(config, "the new version's machine keys", layers->texts->local,
                                     layers->texts->local_size, error))) {
        return false;
    }
    /* Flags say how to read the environment, and override it. */
    if (layers->environment && !(read_settings(config, layers, error) && read_environment(config, error))) {
        return false;
    }
    if (!read_settings(config, layers, error)) {
        return false;
    }
    config_fill_in(config);
    return config_take_ensemble(config, error) && config_check_relations(config, error);
}

static bool parse(struct config *config, const struct layers *layers, struct error *error)
{
    *config = (struct config){.path = NULL};
    bool done = read_layers(config, layers, error);
    if (!done) {
        config_free(config);
    }
    return done;
}

bool config_parse(struct config *config, const char *name, const uint8_t *bytes, size_t size,
                  const struct config_setting *settings, int setting_count, struct error *error)
{
    const struct layers layers = {
        .name = name, .bytes = bytes, .size = size, .settings = settings, .setting_count = setting_count};
    return parse(config, &layers, error);
}

bool config_load(struct config *config, const char *path, const struct config_setting *settings, int setting_count,
                 struct error *error)
{
    uint8_t *bytes = NULL;
    size_t size = 0;
    *config = (struct config){.path = NULL};
    if (!path && file_exists(CONFIG_DEFAULT_PATH)) {
        path = CONFIG_DEFAULT_PATH;
    }
    if (path && !(trust_file(path, error) && file_read(path, CONFIG_MAX_FILE, &bytes, &size, error))) {
        return false;
    }
    bool done = parse(config,
                      &(struct layers){.name = path,
                                       .bytes = bytes,
                                       .size = size,
                                       .versions = true,
                                       .environment = true,
                                       .settings = settings,
                                       .setting_count = setting_count},
                      error);
    free(bytes);
    return done;
}

bool config_in_version(struct config *config, const struct config *here, const struct config_texts *texts,
                       struct error *error)
{
    struct config_setting *settings = must_zero((size_t)config_key_count, sizeof *settings, "a config");
    enum config_source *sources = must_zero((size_t)config_key_count, sizeof *sources, "a config");
    char **values = must_zero((size_t)config_key_count, sizeof *values, "a config");
    uint8_t *bytes = NULL;
    size_t size = 0;
    int count = 0;
    *config = (struct config){.path = NULL};
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (config_origin_of(here, key)->source >= SOURCE_ENVIRONMENT) {
            values[count] = config_key_text(key, here);
            settings[count] = (struct config_setting){key->name, values[count]};
            sources[count++] = config_origin_of(here, key)->source;
        }
    }
    const bool done = (!here->path || file_read(here->path, CONFIG_MAX_FILE, &bytes, &size, error)) &&
                      parse(config,
                            &(struct layers){.name = here->path,
                                             .bytes = bytes,
                                             .size = size,
                                             .texts = texts,
                                             .settings = settings,
                                             .setting_count = count,
                                             .sources = sources},
                            error);
    for (int i = 0; i < count; i++) {
        free(values[i]);
    }
    free(bytes);
    free(values);
    free(sources);
    free(settings);
    return done;
}

void config_defaults(struct config *config)
{
    struct error error;
    const bool done = config_parse(config, NULL, NULL, 0, NULL, 0, &error);
    assert(done); /* the table is at fault otherwise */
    (void)done;
}

void config_free(struct config *config)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        config_key_clear(key, config);
    }
    free(config->origins);
    free(config->path);
    *config = (struct config){.path = NULL};
}

/* The object of one section inside root, created with its first key. */
static cJSON *section_object(cJSON *root, const char *section)
{
    cJSON *object = cJSON_GetObjectItemCaseSensitive(root, section);
    return object ? object : cJSON_AddObjectToObject(root, section);
}

char *config_keys_text(const struct config *config, bool (*wanted)(const struct config_key *key, const void *context),
                       const void *context)
{
    cJSON *root = cJSON_CreateObject();
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (!wanted || wanted(key, context)) {
            json_must_put(section_object(root, key->section), key->name, config_key_json(key, config));
        }
    }
    char *text = must_have(cJSON_PrintUnformatted(root), 0, "a config");
    cJSON_Delete(root);
    return text;
}

static bool is_in_job_text(const struct config_key *key, const void *context)
{
    return key->scope == SCOPE_JOB && !(key->omit_default && config_key_is_default(key, context));
}

char *config_job_text(const struct config *config)
{
    return config_keys_text(config, is_in_job_text, config);
}

void config_digest(const struct config *config, char digest[CONFIG_DIGEST_HEX + 1])
{
    unsigned char hash[CONFIG_DIGEST_HEX / 2];
    char *text = config_job_text(config);
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, strlen(text), NULL, 0);
    sodium_bin2hex(digest, CONFIG_DIGEST_HEX + 1, hash, sizeof hash);
    free(text);
}
