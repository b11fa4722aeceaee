/* Drift: the file's JSON content is compared, and read again only when the file was touched. */
#include "ps/rollout/config_drift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cJSON.h>
#include <sodium.h>

#include "base/config/keys.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/trust.h"

enum { MAX_FILE = 1 << 20 /* bytes of config.json */ };

static cJSON *read_json(const char *path)
{
    uint8_t *bytes;
    size_t size;
    struct error ignored;
    if (!path || !file_read(path, MAX_FILE, &bytes, &size, &ignored)) {
        return NULL;
    }
    cJSON *root = cJSON_ParseWithLength((const char *)bytes, size);
    free(bytes);
    return root;
}

/* White space does not count. A file that is not JSON has the digest "". */
static void digest_file(const char *path, char digest[CONFIG_DRIFT_HEX + 1])
{
    uint8_t hash[CONFIG_DRIFT_HEX / 2];
    cJSON *root = read_json(path);
    char *text = root ? cJSON_PrintUnformatted(root) : NULL;
    digest[0] = '\0';
    if (text) {
        crypto_generichash(hash, sizeof hash, (const uint8_t *)text, strlen(text), NULL, 0);
        sodium_bin2hex(digest, CONFIG_DRIFT_HEX + 1, hash, sizeof hash);
    }
    cJSON_free(text);
    cJSON_Delete(root);
}

int64_t config_drift_file_version(const struct config *config)
{
    cJSON *root = read_json(config->path);
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "fleet"), "version");
    int64_t number = cJSON_IsNumber(version) ? (int64_t)version->valuedouble : 0;
    cJSON_Delete(root);
    return number;
}

/* Is a rolled-out version in force here, and not the file? */
static bool is_in_version(const struct config *config)
{
    const struct config_key *key = config_key_by_path("fleet", "version");
    return config_origin_of(config, key)->source == SOURCE_VERSION;
}

static bool read_base(struct config_drift *drift)
{
    char path[VERSIONS_PATH];
    uint8_t *text;
    size_t size;
    struct error ignored;
    if (!versions_path(drift->config->path, "base", path, &ignored) || !file_exists(path) ||
        !trust_file(path, &ignored) || !file_read(path, CONFIG_DRIFT_HEX, &text, &size, &ignored)) {
        return false;
    }
    snprintf(drift->base, sizeof drift->base, "%s", (const char *)text);
    free(text);
    return size == CONFIG_DRIFT_HEX;
}

void config_drift_keep(const struct config_drift *drift)
{
    char path[VERSIONS_PATH], folder[VERSIONS_PATH];
    struct error ignored;
    if (drift->base[0] != '\0' && versions_path(drift->config->path, "base", path, &ignored) &&
        versions_path(drift->config->path, NULL, folder, &ignored) && file_exists(folder)) {
        (void)file_keep(path, drift->base, CONFIG_DRIFT_HEX, &ignored); /* others report a full disk */
    }
}

void config_drift_look(struct config_drift *drift)
{
    struct stat now;
    char digest[CONFIG_DRIFT_HEX + 1];
    const char *path = drift->config->path;
    if (!path || stat(path, &now) != 0 ||
        (now.st_mtim.tv_sec == drift->seen.st_mtim.tv_sec && now.st_mtim.tv_nsec == drift->seen.st_mtim.tv_nsec &&
         now.st_size == drift->seen.st_size && now.st_ino == drift->seen.st_ino)) {
        return;
    }
    drift->seen = now;
    digest_file(path, digest);
    bool differs = strcmp(digest, drift->base) != 0;
    snprintf(drift->text, sizeof drift->text, "%s%.128s%s", differs ? "drift: " : "", differs ? path : "",
             differs ? " was edited by hand and is not in force: roll it out or undo the edit" : "");
}

void config_drift_begin(struct config_drift *drift, const struct config *config)
{
    *drift = (struct config_drift){.config = config};
    if (!config->path) {
        return;
    }
    if (!is_in_version(config) || !read_base(drift)) {
        digest_file(config->path, drift->base);
        config_drift_keep(drift);
    }
    config_drift_look(drift);
}
