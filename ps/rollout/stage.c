#include "ps/rollout/stage.h"

#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/clock.h"
#include "base/config/versions.h"
#include "base/file.h"
#include "base/text/address.h"
#include "net/resolver.h"
#include "ps/rollout/change.h"
#include "ps/rollout/lineage.h"

enum { SPARE_DISK = 1 << 20 }; /* bytes for versions and logs */

static const double RESOLVE_S = 5.0;

/* Why this member can't take part, into the error. */
static bool find_means(struct rollout_participant *participant, struct error *error)
{
    char path[VERSIONS_PATH];
    if (participant->config->path == NULL) {
        return error_set(error, "it runs without a config file, so there is no place to keep versions beside");
    }
    if (!participant_key_path(participant->config, path, sizeof path, error) ||
        !operator_key_read_public(path, participant->public_key, error)) {
        return false;
    }
    if (!versions_open(&participant->versions, participant->config->path, error)) {
        return false;
    }
    drift_keep(&participant->drift);
    return true;
}

/* So that it is known after a restart, too: the last one, and by which one each version came. */
static bool store_manifest(const struct rollout_participant *participant, const struct participant_order *order,
                           uint64_t target, struct error *error)
{
    char path[VERSIONS_PATH];
    return lineage_path(participant->config, target, path, error) &&
           file_keep(path, order->manifest, order->manifest_size, error) &&
           file_join(path, sizeof path, participant->versions.folder, "manifest", error) &&
           file_keep(path, order->manifest, order->manifest_size, error);
}

static bool add_version(const struct rollout_participant *participant, const struct manifest_config *config,
                        struct error *error)
{
    return versions_add_local(&participant->versions, config->version, config->local, config->local_size, error) &&
           versions_add(&participant->versions, config->version, config->text, config->text_size, error);
}

/* A member that holds neither version has another config than the fleet. */
static bool check_digest(const struct rollout_participant *participant, const struct manifest *manifest,
                         struct error *error)
{
    const struct manifest_config *same =
        participant->version == manifest->target.version ? &manifest->target : &manifest->fallback;
    return strcmp(participant->digest, same->digest) == 0 ||
           error_set(error, "what runs here is not version %llu of the manifest: its config differs",
                     (unsigned long long)same->version);
}

static bool parse_one(const struct manifest_config *from, const char *name, struct config *config, struct error *error)
{
    char digest[CONFIG_DIGEST_HEX + 1];
    if (!config_parse(config, name, (const uint8_t *)from->text, from->text_size, NULL, 0, error) ||
        !config_digest(config, digest, error)) {
        return false;
    }
    return (strcmp(digest, from->digest) == 0 && config->fleet.version == (int64_t)from->version) ||
           error_set(error,
                     "the manifest's %s means something else to this program than to the one that signed it: are they "
                     "of one version?",
                     name);
}

/* ---- This machine ---- */

/* Hosts that are new, or moved, must have addresses: half a fleet that waits for a misspelt name is no fleet. */
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

static bool check_disk(const struct rollout_participant *participant, struct error *error)
{
    struct statvfs disk;
    if (statvfs(participant->versions.folder, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < SPARE_DISK) {
        return error_set(error, "%s: less than %d KiB are left on that disk", participant->versions.folder,
                         SPARE_DISK >> 10);
    }
    return true;
}

/* The file would win over the version and is another, or can't be read together with it. */
static bool check_file(struct rollout_participant *participant, const struct manifest_config *target,
                       struct error *error)
{
    struct config_texts texts = {
        .job = target->text, .job_size = target->text_size, .local = target->local, .local_size = target->local_size};
    char digest[CONFIG_DIGEST_HEX + 1];
    int64_t file_version = drift_file_version(participant->config);
    const bool is_it = file_version == (int64_t)target->version;
    if (is_it) { /* nothing of the version's counts then */
        texts = (struct config_texts){.job = NULL};
    }
    bool parsed = config_in_version(&participant->then, participant->config, &texts, error) &&
                  config_digest(&participant->then, digest, error);
    if (file_version > (int64_t)target->version || (is_it && parsed && strcmp(digest, target->digest) != 0)) {
        return error_set(error,
                         "%s here has fleet.version %lld, so it would count for more than version %llu: was it edited "
                         "by hand?",
                         participant->config->path, (long long)file_version, (unsigned long long)target->version);
    }
    return parsed &&
           (strcmp(digest, target->digest) == 0 ||
            error_set(error, "flags or TF_CONFIG of this process make another config of it: `trainer config show`"));
}

static bool check_machine(struct rollout_participant *participant, const struct manifest_config *target,
                          struct error *error)
{
    const struct config_cluster *before = &participant->configs[1].cluster, *after = &participant->configs[0].cluster;
    if (!change_is_free(participant->config, &participant->configs[0], error) ||
        !check_file(participant, target, error) || !check_disk(participant, error) ||
        !resolve_new(&before->ps_hosts, &after->ps_hosts, error) ||
        !resolve_new(&before->worker_hosts, &after->worker_hosts, error)) {
        return false;
    }
    if (!change_has_member(&participant->then, participant->who)) {
        return true;
    }
    return config_check_role(&participant->then, error) &&
           (participant->host.check == NULL ||
            participant->host.check(participant->host.context, &participant->then, error));
}

/* ---- Both ways ---- */

static bool stores(struct rollout_participant *participant, const struct participant_order *order,
                   const struct manifest *manifest, struct error *error)
{
    return add_version(participant, &manifest->fallback, error) && add_version(participant, &manifest->target, error) &&
           store_manifest(participant, order, manifest->target.version, error);
}

bool stage_manifest(struct rollout_participant *participant, const struct participant_order *order, struct error *error)
{
    struct manifest manifest;
    if (!find_means(participant, error) ||
        !manifest_decode(&manifest, order->manifest, order->manifest_size, participant->public_key, error)) {
        return false;
    }
    snprintf(participant->author, sizeof participant->author, "%s", manifest.author);
    const struct manifest_config *from = &manifest.fallback, *to = &manifest.target;
    const bool is_behind = participant->version != to->version;
    const bool local = from->local_size != to->local_size || memcmp(from->local, to->local, to->local_size) != 0;
    participant->may_lose = manifest.may_lose;
    bool done =
        (!is_behind || manifest_fits(&manifest, participant->config->fleet.name, participant->version, 0, error)) &&
        check_digest(participant, &manifest, error) && parse_one(to, "target", &participant->configs[0], error) &&
        parse_one(from, "fallback", &participant->configs[1], error) &&
        change_kind(&participant->configs[1], &participant->configs[0], local, &participant->kind, error) &&
        (!is_behind || check_machine(participant, to, error)) && stores(participant, order, &manifest, error);
    if (done) {
        const bool mixes = participant->kind != ROLLOUT_JOB;
        snprintf(participant->digests[0], sizeof participant->digests[0], "%s", mixes ? to->digest : "");
        snprintf(participant->digests[1], sizeof participant->digests[1], "%s", mixes ? from->digest : "");
    }
    if (done && order->order == ORDER_STAGE && is_behind && participant->host.prepare != NULL) {
        done = participant->host.prepare(participant->host.context, error);
        participant->prepared = done;
    }
    return done;
}

/* Down only where the same manifest says so, or the one that the version here came by: it was signed, too. */
static bool goes_back_to(const struct rollout_participant *participant, const struct manifest *manifest,
                         const struct manifest_config *now)
{
    struct lineage own;
    return participant->version == manifest->target.version ||
           (lineage_of(participant->config, participant->version, &own) && own.fallback == now->version &&
            strcmp(own.digests[1], now->digest) == 0);
}

bool stage_catch_up(struct rollout_participant *participant, const struct participant_order *order, struct error *error)
{
    struct manifest manifest;
    if (!find_means(participant, error) ||
        !manifest_decode(&manifest, order->manifest, order->manifest_size, participant->public_key, error)) {
        return false;
    }
    snprintf(participant->author, sizeof participant->author, "%s", manifest.author);
    const bool is_back = order->in_force == manifest.fallback.version;
    const struct manifest_config *now = is_back ? &manifest.fallback : &manifest.target;
    if (strcmp(manifest.fleet, participant->config->fleet.name) != 0 || now->version != order->in_force) {
        return error_set(error, "the manifest is for fleet \"%s\" and version %llu, not for \"%s\" and version %llu",
                         manifest.fleet, (unsigned long long)now->version, participant->config->fleet.name,
                         (unsigned long long)order->in_force);
    }
    if (now->version <= participant->version && !(is_back && goes_back_to(participant, &manifest, now))) {
        return error_set(error, "the manifest is old: version %llu, and version %llu is here",
                         (unsigned long long)now->version, (unsigned long long)participant->version);
    }
    return parse_one(now, is_back ? "fallback" : "target", &participant->configs[0], error) &&
           check_file(participant, now, error) && stores(participant, order, &manifest, error) &&
           versions_switch(&participant->versions, now->version, error);
}
