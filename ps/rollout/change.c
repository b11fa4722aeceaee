#include "ps/rollout/change.h"

#include <string.h>

#include "base/config/diff.h"

static bool is_one_of(const struct config_key *key, const char *const *names, size_t count)
{
    bool found = false;
    for (size_t i = 0; i < count && !found; i++) {
        found = strcmp(key->name, names[i]) == 0;
    }
    return found;
}

/* The rest of what the table calls live is so by a restart. */
bool change_is_live(const struct config_key *key)
{
    static const char *const names[] = {"learning_rate",
                                        "lr_decay",
                                        "lr_decay_steps",
                                        "lr_staircase",
                                        "momentum",
                                        "nesterov",
                                        "rho",
                                        "beta1",
                                        "beta2",
                                        "epsilon",
                                        "l2",
                                        "log_steps",
                                        "validate_steps",
                                        "save_steps",
                                        "save_model_secs",
                                        "max_to_keep",
                                        "keep_every_n_hours"};
    return is_one_of(key, names, sizeof names / sizeof *names);
}

bool change_goes_to_machines(const struct config_key *key)
{
    static const char *const names[] = {"recovery_wait_secs", "num_threads", "device",  "cpu_kernels",
                                        "data_dir",           "log_format",  "progress"};
    return key->scope == SCOPE_MACHINE && is_one_of(key, names, sizeof names / sizeof *names);
}

static bool check_hosts(const struct string_list *before, const struct string_list *after, const char *path,
                        struct error *error)
{
    int common = before->count < after->count ? before->count : after->count;
    for (int i = 0; i < common; i++) {
        if (strcmp(before->items[i], after->items[i]) != 0) {
            return error_set(error,
                             "%s: entry %d is %s and would be %s: a rollout adds hosts at the end of the list or takes "
                             "them away there; to move a member, stop the job and start it anew",
                             path, i, before->items[i], after->items[i]);
        }
    }
    return common > 0 || before->count == 0 || error_set(error, "%s: would be empty", path);
}

static bool check_key(const struct config_change *change, const struct config *before, const struct config *after,
                      struct error *error)
{
    static const char *const fixed[] = {"name", "insecure"};
    char path[CONFIG_PATH_SIZE];
    config_key_path(change->key, path);
    if (is_one_of(change->key, fixed, sizeof fixed / sizeof *fixed)) {
        return error_set(error, "%s can't be changed by a rollout: stop the job and start it anew", path);
    }
    if (strcmp(change->key->name, "ps_hosts") == 0) {
        return check_hosts(&before->cluster.ps_hosts, &after->cluster.ps_hosts, path, error);
    }
    if (strcmp(change->key->name, "worker_hosts") == 0) {
        return check_hosts(&before->cluster.worker_hosts, &after->cluster.worker_hosts, path, error);
    }
    return true;
}

bool change_kind(const struct config *before, const struct config *after, bool local_differs, enum rollout_kind *kind,
                 struct error *error)
{
    struct config_diff diff;
    if (!config_diff(&diff, before, after, SCOPE_JOB, error)) {
        return false;
    }
    bool can = true;
    *kind = local_differs ? ROLLOUT_LOCAL : ROLLOUT_LIVE;
    for (int i = 0; i < diff.count && can; i++) {
        can = check_key(&diff.changes[i], before, after, error);
        if (local_differs || !change_is_live(diff.changes[i].key)) {
            *kind = ROLLOUT_JOB;
        }
    }
    config_diff_free(&diff);
    return can;
}

bool change_is_free(const struct config *here, const struct config *after, struct error *error)
{
    struct config_diff diff;
    if (!config_diff(&diff, here, after, SCOPE_JOB, error)) {
        return false;
    }
    bool can = true;
    for (int i = 0; i < diff.count && can; i++) {
        char path[CONFIG_PATH_SIZE];
        config_key_path(diff.changes[i].key, path);
        can = config_origin_of(here, diff.changes[i].key)->source <= SOURCE_VERSION ||
              error_set(error,
                        "%s is set by a flag or TF_CONFIG here, which would win again at the next start: remove that "
                        "first",
                        path);
    }
    config_diff_free(&diff);
    return can;
}

bool change_has_member(const struct config *config, struct member who)
{
    const struct string_list *hosts = who.role == MEMBER_PS ? &config->cluster.ps_hosts : &config->cluster.worker_hosts;
    return who.index < hosts->count;
}
