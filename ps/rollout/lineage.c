#include "ps/rollout/lineage.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/versions.h"
#include "base/file.h"
#include "ps/rollout/change.h"
#include "ps/rollout/manifest.h"

static bool find_kind(const struct manifest *manifest, enum rollout_kind *kind)
{
    const struct manifest_config *from = &manifest->fallback, *to = &manifest->target;
    struct config before, after = {.path = NULL};
    struct error ignored;
    bool local = from->local_size != to->local_size || memcmp(from->local, to->local, to->local_size) != 0;
    if (!config_parse(&before, "fallback", (const uint8_t *)from->text, from->text_size, NULL, 0, &ignored)) {
        return false;
    }
    bool done = config_parse(&after, "target", (const uint8_t *)to->text, to->text_size, NULL, 0, &ignored) &&
                change_kind(&before, &after, local, kind, &ignored);
    config_free(&after);
    config_free(&before);
    return done;
}

static bool read_manifest(const char *path, struct lineage *lineage)
{
    struct manifest manifest;
    struct error ignored;
    uint8_t *bytes;
    size_t size;
    if (!file_exists(path) || !file_read(path, MANIFEST_MAX_BYTES, &bytes, &size, &ignored)) {
        return false;
    }
    *lineage = (struct lineage){.target = 0};
    bool done = manifest_decode_unsigned(&manifest, bytes, size, &ignored) && find_kind(&manifest, &lineage->kind);
    if (done) {
        lineage->target = manifest.target.version;
        lineage->fallback = manifest.fallback.version;
        lineage->may_lose = manifest.may_lose;
        memcpy(lineage->digests[0], manifest.target.digest, sizeof lineage->digests[0]);
        memcpy(lineage->digests[1], manifest.fallback.digest, sizeof lineage->digests[1]);
    }
    free(bytes);
    return done;
}

bool lineage_read(const struct config *config, struct lineage *lineage)
{
    char path[VERSIONS_PATH];
    return config->path != NULL && (size_t)snprintf(path, sizeof path, "%s.d/manifest", config->path) < sizeof path &&
           read_manifest(path, lineage);
}

bool lineage_path(const struct config *config, uint64_t version, char path[VERSIONS_PATH], struct error *error)
{
    return (size_t)snprintf(path, VERSIONS_PATH, "%s.d/%08" PRIu64 ".manifest", config->path, version) <
               VERSIONS_PATH ||
           error_set(error, "%s: the path is too long", config->path);
}

bool lineage_is_fresh(const struct config *config)
{
    struct lineage lineage;
    return lineage_read(config, &lineage) && lineage.target == (uint64_t)config->fleet.version;
}

bool lineage_of(const struct config *config, uint64_t version, struct lineage *lineage)
{
    char path[VERSIONS_PATH];
    struct error ignored;
    return lineage_path(config, version, path, &ignored) && read_manifest(path, lineage) && lineage->target == version;
}

/* From here back, from each version to the one that it came after: versions go down, so this ends. */
static bool leads_here(const struct config *config, const char *digest, bool *may_lose)
{
    struct lineage step;
    uint64_t version = (uint64_t)config->fleet.version;
    while (lineage_of(config, version, &step) && step.fallback < version) {
        *may_lose = *may_lose || step.may_lose;
        if (strcmp(digest, step.digests[1]) == 0) {
            return true;
        }
        version = step.fallback;
    }
    return false;
}

bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose)
{
    struct lineage last;
    *may_lose = false;
    if (config->path == NULL) {
        return false;
    }
    if (lineage_read(config, &last) && (uint64_t)config->fleet.version == last.fallback &&
        strcmp(digest, last.digests[0]) == 0) {
        *may_lose = last.may_lose;
        return true;
    }
    return leads_here(config, digest, may_lose);
}
