/* Looking for the key, and saying what to do where there is none. */
#include "ps/self.h"

#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/version.h"

static const double LEAST_PATIENCE_S = 2.0;

/* fleet.key in the folder of the config; without a config, in the current one. */
static bool key_beside_config(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = config->path != NULL ? strrchr(config->path, '/') : NULL;
    char folder[PATH_MAX] = ".";
    if (slash != NULL) {
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - config->path), config->path);
        if (slash == config->path) {
            memcpy(folder, "/", 2);
        }
    }
    return file_join(path, size, folder, "fleet.key", error);
}

static bool find_key(struct self *self, const struct config *config, struct error *error)
{
    if (config->security.fleet_key[0] != '\0') {
        snprintf(self->key_path, sizeof self->key_path, "%s", config->security.fleet_key);
        return true;
    }
    if (!key_beside_config(config, self->key_path, sizeof self->key_path, error)) {
        return false;
    }
    return file_exists(self->key_path) ||
           error_set(error,
                     "there is no key at %s, and members only talk to those who hold the same one: make it once with "
                     "`trainer keygen --out=fleet.key`, copy it to every machine beside config.json, or name it by "
                     "--fleet_key",
                     self->key_path);
}

static bool load_key(struct self *self, const struct config *config, struct error *error)
{
    char name[MEMBER_TEXT], ours[MEMBER_TEXT];
    if (config->security.insecure) {
        log_warning(
            "INSECURE: --insecure sends everything as plain text, and anybody on the network can read it, change "
            "it and join; use it only where nobody else is");
        return true;
    }
    if (!find_key(self, config, error) || !credentials_load(&self->credentials, self->key_path, error)) {
        return false;
    }
    struct member named = credentials_member(self->credentials);
    if (member_matches(&named, &self->identity.member)) {
        return true;
    }
    member_format(&named, ':', name);
    member_format(&self->identity.member, ':', ours);
    return error_set(error, "%s is the key of %s, and this process is %s: give it its own by --fleet_key",
                     self->key_path, name, ours);
}

bool self_create(struct self *self, const struct config *config, struct member member, struct error *error)
{
    memset(self, 0, sizeof *self);
    snprintf(self->program, sizeof self->program, "trainer %s", version_trainer());
    self->identity = (struct identity){
        .member = member,
        .incarnation = handshake_new_incarnation(),
        .program = self->program,
        .cluster = config->fleet.name,
        .fleet_version = (uint64_t)config->fleet.version,
        .digest = self->digest,
        .lease_ms = (uint32_t)(config->cluster.lease_secs * 1000.0),
    };
    if (!config_digest(config, self->digest, error) || !load_key(self, config, error)) {
        return false;
    }
    self->job = config_job_text(config);
    self->identity.job = self->job;
    return self->job != NULL || error_set(error, "out of memory");
}

/* Readers may hold an older one, so all stay. */
struct self_change {
    struct identity identity;
    struct self_change *before;
    char digest[CONFIG_DIGEST_HEX + 1];
    char job[];
};

const struct identity *self_identity(const struct self *self)
{
    const struct self_change *changed = atomic_load(&self->changed);
    return changed != NULL ? &changed->identity : &self->identity;
}

double self_patience_s(const struct self *self)
{
    return fmax(self->identity.lease_ms / 1e3, LEAST_PATIENCE_S);
}

bool self_change(struct self *self, uint64_t version, const char *digest, const char *job, struct error *error)
{
    size_t size = strlen(job) + 1;
    struct self_change *change = malloc(sizeof *change + size);
    if (change == NULL) {
        return error_set(error, "out of memory");
    }
    snprintf(change->digest, sizeof change->digest, "%s", digest);
    memcpy(change->job, job, size);
    change->identity = self->identity;
    change->identity.fleet_version = version;
    change->identity.digest = change->digest;
    change->identity.job = change->job;
    change->before = atomic_load(&self->changed);
    atomic_store(&self->changed, change);
    return true;
}

void self_destroy(struct self *self)
{
    for (struct self_change *change = atomic_load(&self->changed); change != NULL;) {
        struct self_change *before = change->before;
        free(change);
        change = before;
    }
    credentials_free(self->credentials);
    free(self->job);
    memset(self, 0, sizeof *self);
}
