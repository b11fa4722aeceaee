#include "ps/rollout/lineage.h"

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

bool lineage_read(const struct config *config, struct lineage *lineage)
{
    char path[VERSIONS_PATH];
    struct manifest manifest;
    struct error ignored;
    uint8_t *bytes;
    size_t size;
    if (config->path == NULL || (size_t)snprintf(path, sizeof path, "%s.d/manifest", config->path) >= sizeof path ||
        !file_exists(path) || !file_read(path, MANIFEST_MAX_BYTES, &bytes, &size, &ignored)) {
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

bool lineage_is_fresh(const struct config *config)
{
    struct lineage lineage;
    return lineage_read(config, &lineage) && lineage.target == (uint64_t)config->fleet.version;
}

bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose)
{
    struct lineage lineage;
    if (!lineage_read(config, &lineage)) {
        return false;
    }
    const uint64_t here = (uint64_t)config->fleet.version;
    *may_lose = lineage.may_lose;
    return (here == lineage.target && strcmp(digest, lineage.digests[1]) == 0) ||
           (here == lineage.fallback && strcmp(digest, lineage.digests[0]) == 0);
}
