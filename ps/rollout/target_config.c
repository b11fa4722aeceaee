/* What only this machine can tell about a version's config: its file, flags and environment, its disk, its resolver. */
#include "ps/rollout/target_config.h"

#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/text/address.h"
#include "net/endpoint.h"
#include "ps/rollout/config_drift.h"

enum { SPARE_DISK = 1 << 20 /* bytes for versions and logs */ };

static const double RESOLVE_S = 5.0;

bool target_config_parse(const struct manifest_config *from, const char *name, struct config *config,
                         struct error *error)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!config_parse(config, name, (const uint8_t *)from->text, from->text_size, NULL, 0, error) ||
        !config_digest(config, digest, error)) {
        return false;
    }
    return (strcmp(digest, from->digest) == 0 && config->fleet.version == (int64_t)from->version) ||
           error_set(error,
                     "this program reads the manifest's %s differently from the one that signed it: are both the same "
                     "version?",
                     name);
}

bool target_config_apply(const struct config *own, const struct manifest_config *target, struct config *then,
                         struct error *error)
{
    struct config_texts texts = {
        .job = target->text, .job_size = target->text_size, .local = target->local, .local_size = target->local_size};
    char digest[CONFIG_DIGEST_HEX + 1];
    int64_t file_version = config_drift_file_version(own);
    const bool is_it = file_version == (int64_t)target->version;
    if (is_it) { /* then the file alone counts */
        texts = (struct config_texts){.job = NULL};
    }
    bool parsed = config_in_version(then, own, &texts, error) && config_digest(then, digest, error);
    if (file_version > (int64_t)target->version || (is_it && parsed && strcmp(digest, target->digest) != 0)) {
        return error_set(error,
                         "%s here has fleet.version %lld, so it would override version %llu: was it edited by hand?",
                         own->path, (long long)file_version, (unsigned long long)target->version);
    }
    return parsed &&
           (strcmp(digest, target->digest) == 0 ||
            error_set(error, "flags or the environment of this process change it: see `trainer config show`"));
}

bool target_config_has_disk(const struct versions *versions, struct error *error)
{
    struct statvfs disk;
    if (statvfs(versions->folder, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < SPARE_DISK) {
        return error_set(error, "%s: less than %d KiB are left on that disk", versions->folder, SPARE_DISK >> 10);
    }
    return true;
}

/* New and moved hosts must resolve: a misspelt name would leave half the fleet waiting. */
static bool resolve_new(const struct string_list *before, const struct string_list *after, struct error *error)
{
    const double deadline_s = clock_monotonic_s() + RESOLVE_S;
    bool done = true;
    for (int i = 0; i < after->count && done; i++) {
        struct address address;
        struct endpoints endpoints;
        if (i < before->count && strcmp(before->items[i], after->items[i]) == 0) {
            continue;
        }
        done = address_parse(after->items[i], &address, error) &&
               resolver_find(&address, NULL, deadline_s, &endpoints, error);
    }
    return done;
}

bool target_config_resolves(const struct config_cluster *before, const struct config_cluster *after,
                            struct error *error)
{
    return resolve_new(&before->ps_hosts, &after->ps_hosts, error) &&
           resolve_new(&before->worker_hosts, &after->worker_hosts, error);
}
