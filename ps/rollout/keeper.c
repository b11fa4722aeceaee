#include "ps/rollout/keeper.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/diff.h"
#include "base/file.h"
#include "base/log.h"
#include "ps/rollout/audit.h"

static const char *name_of(const struct keeper *keeper, char name[MEMBER_TEXT])
{
    member_format(&keeper->who, ' ', name);
    return name;
}

static void audit(const struct keeper *keeper, const char *what, const char *outcome)
{
    char name[MEMBER_TEXT];
    audit_write(&keeper->versions, name_of(keeper, name), keeper->author, what, keeper->target, outcome);
}

bool keeper_key_path(const struct config *config, char *path, size_t size, struct error *error)
{
    const char *slash = strrchr(config->path, '/');
    int folder = slash != NULL ? (int)(slash - config->path) + 1 : 0;
    return (size_t)snprintf(path, size, "%.*soperator.pub", folder, config->path) < size ||
           error_set(error, "%s: the path is too long", config->path);
}

/* Why this member can't take part, into the error. */
static bool find_means(struct keeper *keeper, struct error *error)
{
    char path[VERSIONS_PATH];
    if (keeper->config->path == NULL) {
        return error_set(error, "it runs without a config file, so there is no place to keep versions beside");
    }
    if (!keeper_key_path(keeper->config, path, sizeof path, error) ||
        !operator_key_read_public(path, keeper->public_key, error)) {
        return false;
    }
    return versions_open(&keeper->versions, keeper->config->path, error);
}

/* The digests of the last rollout; without one, or with a damaged file, there are none. */
static void recall(struct keeper *keeper)
{
    char path[VERSIONS_PATH];
    struct manifest manifest;
    struct error ignored;
    uint8_t *bytes;
    size_t size;
    if (keeper->config->path == NULL ||
        (size_t)snprintf(path, sizeof path, "%s.d/manifest", keeper->config->path) >= sizeof path ||
        !file_exists(path) || !file_read(path, MANIFEST_MAX_BYTES, &bytes, &size, &ignored)) {
        return;
    }
    if (manifest_decode_unsigned(&manifest, bytes, size, &ignored)) {
        memcpy(keeper->digests[0], manifest.target.digest, sizeof keeper->digests[0]);
        memcpy(keeper->digests[1], manifest.fallback.digest, sizeof keeper->digests[1]);
    }
    free(bytes);
}

bool keeper_create(struct keeper *keeper, const struct config *config, struct member who,
                   const struct keeper_host *host, struct error *error)
{
    *keeper = (struct keeper){.config = config, .host = *host, .who = who, .version = (uint64_t)config->fleet.version};
    recall(keeper);
    return config_digest(config, keeper->digest, error);
}

static void forget(struct keeper *keeper)
{
    for (int i = 0; i < 2; i++) {
        config_free(&keeper->configs[i]);
    }
    keeper->target = 0;
    keeper->done = ORDER_NOTHING;
    keeper->phase = PHASE_NONE;
    keeper->sentence[0] = '\0';
}

void keeper_destroy(struct keeper *keeper)
{
    forget(keeper);
}

/* What the program can take up between two steps, of all that the table calls live. */
static bool can_change_key(const struct config_key *key)
{
    static const char *const names[] = {
        "learning_rate", "lr_decay", "lr_decay_steps", "lr_staircase", "momentum", "nesterov",
        "rho",           "beta1",    "beta2",          "epsilon",      "l2",       "log_steps"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) {
        found = strcmp(key->name, names[i]) == 0;
    }
    return found;
}

static bool check_change(const struct config *config, const struct config_change *change, struct error *error)
{
    char path[CONFIG_PATH_SIZE];
    config_key_path(change->key, path);
    if (change->key->change != CHANGE_LIVE) {
        return error_set(error, "%s can't change while the job runs (its class is %s): stop the job and start it anew",
                         path, config_change_name(change->key->change));
    }
    if (!can_change_key(change->key)) {
        return error_set(error, "%s can't be changed by a rollout yet: stop the job and start it anew", path);
    }
    if (config_origin_of(config, change->key)->source > SOURCE_VERSION) {
        return error_set(error,
                         "%s is set by a flag or TF_CONFIG here, which would win again at the next start: remove "
                         "that first",
                         path);
    }
    return true;
}

bool keeper_can_change(const struct config *config, const struct config *target, struct error *error)
{
    struct config_diff diff;
    if (!config_diff(&diff, config, target, SCOPE_JOB, error)) {
        return false;
    }
    bool can = true;
    for (int i = 0; i < diff.count && can; i++) {
        can = check_change(config, &diff.changes[i], error);
    }
    config_diff_free(&diff);
    return can;
}

/* So that the other version's digest is known after a restart, too. */
static bool store_manifest(const struct keeper *keeper, const struct keeper_order *order, struct error *error)
{
    char path[VERSIONS_PATH];
    const struct file_part part = {order->manifest, order->manifest_size};
    return file_join(path, sizeof path, keeper->versions.folder, "manifest", error) &&
           file_write_atomic(path, &part, 1, error);
}

/* A member that holds neither version has another config than the fleet. */
static bool check_digest(const struct keeper *keeper, const struct manifest *manifest, struct error *error)
{
    const struct manifest_config *same =
        keeper->version == manifest->target.version ? &manifest->target : &manifest->fallback;
    return strcmp(keeper->digest, same->digest) == 0 ||
           error_set(error, "what runs here is not version %llu of the manifest: its config differs",
                     (unsigned long long)same->version);
}

static bool parse_both(struct keeper *keeper, const struct manifest *manifest, struct error *error)
{
    const struct manifest_config *both[] = {&manifest->target, &manifest->fallback};
    for (int i = 0; i < 2; i++) {
        char digest[CONFIG_DIGEST_HEX + 1];
        if (!config_parse(&keeper->configs[i], i == 0 ? "target" : "fallback", (const uint8_t *)both[i]->text,
                          both[i]->text_size, NULL, 0, error) ||
            !config_digest(&keeper->configs[i], digest, error)) {
            return false;
        }
        if (strcmp(digest, both[i]->digest) != 0 || keeper->configs[i].fleet.version != (int64_t)both[i]->version) {
            return error_set(error,
                             "the manifest's %s means something else to this program than to the one that signed "
                             "it: are they of one version?",
                             i == 0 ? "target" : "fallback");
        }
        memcpy(keeper->digests[i], digest, sizeof digest);
    }
    return true;
}

static bool stage(struct keeper *keeper, const struct keeper_order *order, struct error *error)
{
    struct manifest manifest;
    if (!find_means(keeper, error) ||
        !manifest_decode(&manifest, order->manifest, order->manifest_size, keeper->public_key, error)) {
        return false;
    }
    snprintf(keeper->author, sizeof keeper->author, "%s", manifest.author);
    bool is_behind = keeper->version != manifest.target.version;
    keeper->prepared = false;
    bool done = (!is_behind || manifest_fits(&manifest, keeper->config->fleet.name, keeper->version, 0, error)) &&
                check_digest(keeper, &manifest, error) && parse_both(keeper, &manifest, error) &&
                keeper_can_change(keeper->config, &keeper->configs[0], error) &&
                versions_add(&keeper->versions, manifest.fallback.version, manifest.fallback.text,
                             manifest.fallback.text_size, error) &&
                versions_add(&keeper->versions, manifest.target.version, manifest.target.text,
                             manifest.target.text_size, error) &&
                store_manifest(keeper, order, error) &&
                (keeper->host.prepare == NULL || order->order != ORDER_STAGE ||
                 keeper->host.prepare(keeper->host.context, error));
    keeper->prepared = done && order->order == ORDER_STAGE;
    return done;
}

static void take_manifest(struct keeper *keeper, const struct keeper_order *order)
{
    struct error error;
    forget(keeper);
    snprintf(keeper->author, sizeof keeper->author, "unknown");
    bool done = stage(keeper, order, &error);
    keeper->target = order->target;
    keeper->phase = done ? PHASE_STAGED : PHASE_FAILED;
    if (done) {
        keeper->fallback = (uint64_t)keeper->configs[1].fleet.version;
    } else {
        config_free(&keeper->configs[0]);
        config_free(&keeper->configs[1]);
        snprintf(keeper->sentence, sizeof keeper->sentence, "%.255s", error.text);
        log_warning("version %llu of the config is refused: %s", (unsigned long long)order->target, error.text);
    }
    if (keeper->versions.folder[0] != '\0') {
        audit(keeper, "stage", done ? "done" : error.text);
    }
}

/* which: 0 the target, 1 the fallback. */
static void change_over(struct keeper *keeper, int which, int64_t step)
{
    struct error error;
    uint64_t number = (uint64_t)keeper->configs[which].fleet.version;
    enum keeper_switch result = keeper->host.switch_to(keeper->host.context, &keeper->configs[which], step);
    if (result == SWITCH_PENDING) {
        return;
    }
    if (result == SWITCH_LATE) {
        keeper->phase = PHASE_LATE;
        snprintf(keeper->sentence, sizeof keeper->sentence, "step %lld was over when it was told of it",
                 (long long)step);
        return;
    }
    if (!versions_switch(&keeper->versions, number, &error)) {
        keeper->phase = PHASE_FAILED;
        snprintf(keeper->sentence, sizeof keeper->sentence, "%.255s", error.text);
        return;
    }
    keeper->version = number;
    memcpy(keeper->digest, keeper->digests[which], sizeof keeper->digest);
    keeper->phase = which == 0 ? PHASE_SWITCHED : PHASE_BACK;
    keeper->sentence[0] = '\0';
    audit(keeper, which == 0 ? "switch" : "go back", "done");
    log_info("version %llu of the config is in force%s", (unsigned long long)number, which == 0 ? "" : ": went back");
}

void keeper_act(struct keeper *keeper, const struct keeper_order *order)
{
    struct error error;
    if (order->order == ORDER_NOTHING) {
        if (keeper->prepared && keeper->host.settle != NULL) {
            keeper->host.settle(keeper->host.context);
        }
        keeper->prepared = false;
        return;
    }
    if (order->target != keeper->target) {
        if (order->manifest != NULL) {
            take_manifest(keeper, order);
        }
        return;
    }
    bool has_both = keeper->configs[1].path != NULL;
    if (!has_both) { /* it was refused, and so nothing changed here: there is nothing to undo */
        keeper->phase = order->order >= ORDER_BACK ? PHASE_BACK : PHASE_FAILED;
    } else if (order->order == ORDER_SWITCH && keeper->phase == PHASE_STAGED) {
        change_over(keeper, 0, order->step);
    } else if (order->order >= ORDER_BACK && keeper->phase != PHASE_BACK && keeper->phase != PHASE_RESTORED) {
        change_over(keeper, 1, 0);
    } else if (order->order == ORDER_RESTORE && keeper->phase == PHASE_BACK && keeper->host.restore != NULL) {
        bool done = keeper->host.restore(keeper->host.context, &error);
        keeper->phase = done ? PHASE_RESTORED : PHASE_BACK;
        snprintf(keeper->sentence, sizeof keeper->sentence, "%.255s", done ? "" : error.text);
        audit(keeper, "restore", done ? "done" : error.text);
    }
}

void keeper_report(const struct keeper *keeper, struct rollout_report *report)
{
    *report = (struct rollout_report){
        .phase = keeper->phase, .version = keeper->version, .target = keeper->target, .sentence = keeper->sentence};
}
