/* Finds the key, and says what to do if there is none. */
#include "ps/identity.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/process/program.h"
#include "base/version.h"
#include "ps/rollout/revoked.h"

static const double LEAST_IDLE_TIMEOUT_S = 2.0;

/* fleet.key in the folder of the config; without a config, in the current one. */
static bool key_beside_config(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = config->path ? strrchr(config->path, '/') : NULL;
    char folder[PATH_MAX] = ".";
    if (slash) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - config->path), config->path);
    }
    return file_join(path, size, folder, "fleet.key", error);
}

bool identity_key_path(const struct config *config, char *path, size_t size, struct error *error)
{
    if (config->security.fleet_key[0] != '\0') {
        snprintf(path, size, "%s", config->security.fleet_key);
        return true;
    }
    return key_beside_config(config, path, size, error);
}

static bool find_key(struct identity *identity, const struct config *config, struct error *error)
{
    if (!identity_key_path(config, identity->key_path, sizeof identity->key_path, error)) {
        return false;
    }
    return config->security.fleet_key[0] != '\0' || file_exists(identity->key_path) ||
           error_set(
               error,
               "there is no key at %s, and members accept only peers with the same key: make it once with `trainer "
               "keygen --out=fleet.key`, copy it to every machine beside config.json, or name it with --fleet_key",
               identity->key_path);
}

static bool load_key(struct identity *identity, const struct config *config, struct error *error)
{
    char name[MEMBER_TEXT], ours[MEMBER_TEXT];
    if (config->security.insecure) {
        log_warning("INSECURE: --insecure sends everything as plain text, and anybody on the network can read it, "
                    "change it and join; use it only on an isolated network");
        return true;
    }
    if (!find_key(identity, config, error) || !credentials_load(&identity->credentials, identity->key_path, error) ||
        !revoked_load(config, identity->credentials, error)) {
        return false;
    }
    struct member named = credentials_member(identity->credentials);
    if (member_matches(&named, &identity->hello.member)) {
        return true;
    }
    member_format(&named, ':', name);
    member_format(&identity->hello.member, ':', ours);
    return error_set(error, "%s is the key of %s, but this process is %s: give it its own key with --fleet_key",
                     identity->key_path, name, ours);
}

bool identity_create(struct identity *identity, const struct config *config, struct member member, struct error *error)
{
    memset(identity, 0, sizeof *identity);
    const char *digest = program_own_digest();
    const bool is_known = digest[0] != '\0';
    snprintf(identity->program, sizeof identity->program, "trainer %.24s%s%.*s%s%s", version_trainer(),
             is_known ? IDENTITY_BUILD : "", PROGRAM_ID_HEX, digest, is_known ? " " : "",
             is_known ? program_own_architecture() : "");
    identity->hello = (struct hello_identity){
        .member = member,
        .incarnation = handshake_new_incarnation(),
        .program = identity->program,
        .cluster = config->fleet.name,
        .fleet_version = (uint64_t)config->fleet.version,
        .digest = identity->digest,
        .lease_ms = (uint32_t)(config->cluster.lease_secs * 1000.0),
    };
    config_digest(config, identity->digest);
    if (!load_key(identity, config, error)) {
        return false;
    }
    identity->job = config_job_text(config);
    identity->hello.job = identity->job;
    return true;
}

/* Other threads may still use an older one, so all are kept. */
struct identity_change {
    struct hello_identity identity;
    struct identity_change *before;
    char digest[CONFIG_DIGEST_HEX + 1];
    char job[];
};

const struct hello_identity *identity_hello(const struct identity *identity)
{
    const struct identity_change *changed = atomic_load(&identity->changed);
    return changed ? &changed->identity : &identity->hello;
}

double identity_idle_timeout_s(const struct identity *identity)
{
    return fmax(identity->hello.lease_ms / 1e3, LEAST_IDLE_TIMEOUT_S);
}

double identity_valid_until_s(const struct identity *identity)
{
    return identity->credentials ? (double)credentials_valid_until(identity->credentials) : 0;
}

void identity_warn_of_expiry(const struct identity *identity, double *next_s)
{
    enum { DAY_S = 86400, EARLY_DAYS = 30 };
    const double now_s = clock_monotonic_s(), until_s = identity_valid_until_s(identity);
    if (!identity->credentials || now_s < *next_s) {
        return;
    }
    *next_s = now_s + DAY_S;
    revoked_warn_of_expiry(identity->credentials);
    if (until_s == 0) {
        return;
    }
    const double days = (until_s - clock_wall_s()) / DAY_S;
    if (days <= 0) {
        log_warning("%s: its certificate has expired, so every new connection is refused: make a new key with "
                    "`trainer keygen --ca`",
                    identity->key_path);
    } else if (days < EARLY_DAYS) {
        log_warning("%s: its certificate expires in %.1f days; then every new connection is refused: make a new key "
                    "with `trainer keygen --ca` before",
                    identity->key_path, days);
    }
}

static struct hello_identity say_hello(const void *context)
{
    return *identity_hello(context);
}

static struct hello_identity say_hello_as_guest(const void *context)
{
    struct hello_identity hello = *identity_hello(context);
    hello.digest = hello.job = "";
    return hello;
}

struct hello_options identity_hello_options(const struct identity *identity)
{
    return (struct hello_options){.credentials = identity->credentials,
                                  .hello = say_hello,
                                  .context = identity,
                                  .idle_timeout_s = identity_idle_timeout_s(identity)};
}

struct hello_options identity_guest(const struct identity *identity)
{
    struct hello_options options = identity_hello_options(identity);
    options.hello = say_hello_as_guest;
    return options;
}

bool identity_change(struct identity *identity, uint64_t version, const char *digest, const char *job,
                     struct error *error)
{
    size_t size = strlen(job) + 1;
    struct identity_change *change = malloc(sizeof *change + size);
    if (!change) {
        return error_set(error, "out of memory");
    }
    snprintf(change->digest, sizeof change->digest, "%s", digest);
    memcpy(change->job, job, size);
    change->identity = identity->hello;
    change->identity.fleet_version = version;
    change->identity.digest = change->digest;
    change->identity.job = change->job;
    change->before = atomic_load(&identity->changed);
    atomic_store(&identity->changed, change);
    return true;
}

void identity_destroy(struct identity *identity)
{
    for (struct identity_change *change = atomic_load(&identity->changed); change;) {
        struct identity_change *before = change->before;
        free(change);
        change = before;
    }
    credentials_free(identity->credentials);
    free(identity->job);
    memset(identity, 0, sizeof *identity);
}
