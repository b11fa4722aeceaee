#include "worker/remote/operator/candidate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <sodium.h>

#include "base/config/diff.h"
#include "base/config/keys.h"
#include "base/log.h"
#include "ps/rollout/change.h"

enum { MAX_SETTINGS = 128 };

/* new.json, under the same flags as this command. */
bool candidate_load(struct config *new, const struct config *here, const char *path, struct error *error)
{
    struct config_setting settings[MAX_SETTINGS];
    char *texts[MAX_SETTINGS];
    int count = 0;
    bool done = true;
    for (const struct config_key *key = config_keys; done && key->section != NULL && count < MAX_SETTINGS; key++) {
        if (config_origin_of(here, key)->source == SOURCE_FLAG) {
            texts[count] = config_key_text(key, here);
            settings[count] = (struct config_setting){key->name, texts[count]};
            done = texts[count] != NULL || error_set(error, "out of memory");
            count++;
        }
    }
    done = done && config_load(new, path, settings, count, error);
    for (int i = 0; i < count; i++) {
        free(texts[i]);
    }
    return done;
}

static bool differs(const struct config_key *key, const struct config *one, const struct config *other)
{
    char *a = config_key_text(key, one), *b = config_key_text(key, other);
    bool differ = a == NULL || b == NULL || strcmp(a, b) != 0;
    free(a);
    free(b);
    return differ;
}

static bool comes_along(const struct config_key *key, const void *context)
{
    const struct candidate_keys *keys = context;
    return key->scope == SCOPE_MACHINE && config_origin_of(keys->new, key)->source == SOURCE_FILE &&
           (config_origin_of(keys->before, key)->source == SOURCE_FILE || differs(key, keys->here, keys->new));
}

bool candidate_local(const struct candidate_keys *keys, char **text, struct error *error)
{
    bool any = false;
    for (const struct config_key *key = config_keys; key->section != NULL; key++) {
        char path[CONFIG_PATH_SIZE];
        if (!comes_along(key, keys)) {
            continue;
        }
        any = true;
        if (!change_goes_to_machines(key)) {
            config_key_path(key, path);
            return error_set(error, "%s: %s is each machine's own and can't be rolled out: leave it out",
                             keys->new->path, path);
        }
    }
    *text = any ? config_keys_text(keys->new, comes_along, keys) : strdup("");
    return *text != NULL || error_set(error, "out of memory");
}

void candidate_show_local(const struct candidate_keys *keys, bool differ)
{
    for (const struct config_key *key = config_keys; differ && key->section != NULL; key++) {
        char path[CONFIG_PATH_SIZE];
        bool comes = comes_along(key, keys);
        bool came = key->scope == SCOPE_MACHINE && config_origin_of(keys->before, key)->source == SOURCE_FILE;
        if (!comes && !came) {
            continue;
        }
        char *before = came ? config_key_text(key, keys->before) : NULL;
        char *after = comes ? config_key_text(key, keys->new) : NULL;
        config_key_path(key, path);
        if (before == NULL || after == NULL || strcmp(before, after) != 0) {
            log_info("%-28s %s -> %s  (local)", path, before != NULL ? before : "each machine's own",
                     after != NULL ? after : "each machine's own");
        }
        free(before);
        free(after);
    }
}

bool candidate_check(const struct config *running, const struct config *new, bool local_differs,
                     enum rollout_kind *kind, struct error *error)
{
    struct config_diff diff;
    if (!config_diff(&diff, running, new, SCOPE_JOB, error)) {
        return false;
    }
    int count = diff.count;
    for (int i = 0; i < count; i++) {
        char line[1024];
        config_diff_line(&diff.changes[i], line, sizeof line);
        log_info("%s", line);
    }
    config_diff_free(&diff);
    if (count == 0 && !local_differs) {
        return error_set(error, "%s: nothing differs from what the fleet runs", new->path);
    }
    if (new->fleet.version <= running->fleet.version) {
        return error_set(error, "%s: fleet.version is %lld, and the fleet runs version %lld: give it a higher one",
                         new->path, (long long)new->fleet.version, (long long)running->fleet.version);
    }
    return change_kind(running, new, local_differs, kind, error);
}

void candidate_author(char author[MANIFEST_MAX_NAME + 1])
{
    char host[128] = "";
    const char *user = getenv("USER");
    gethostname(host, sizeof host - 1);
    snprintf(author, MANIFEST_MAX_NAME + 1, "%.100s@%s", user != NULL ? user : "unknown", host);
}

bool candidate_sign(const char *key_path, const struct candidate *both, uint8_t **bytes, size_t *size,
                    struct error *error)
{
    uint8_t key[OPERATOR_SECRET_KEY];
    char *target = config_job_text(both->new);
    if (target == NULL) {
        return error_set(error, "out of memory");
    }
    struct manifest manifest = {.signed_s = (uint64_t)time(NULL),
                                .may_lose = both->may_lose,
                                .target = {.version = (uint64_t)both->new->fleet.version,
                                           .text = target,
                                           .text_size = strlen(target),
                                           .local = both->new_local,
                                           .local_size = strlen(both->new_local)},
                                .fallback = {.version = (uint64_t)both->running->fleet.version,
                                             .text = both->job,
                                             .text_size = strlen(both->job),
                                             .local = both->local,
                                             .local_size = strlen(both->local)}};
    snprintf(manifest.fleet, sizeof manifest.fleet, "%s", both->new->fleet.name);
    candidate_author(manifest.author);
    bool done = operator_key_read_secret(key_path, key, error) && manifest_encode(&manifest, key, bytes, size, error);
    sodium_memzero(key, sizeof key);
    free(target);
    return done;
}
