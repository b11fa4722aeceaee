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

bool change_goes_to_machines(const struct config_key *key)
{
    static const char *const names[] = {"recovery_wait_secs", "num_threads", "device",     "cpu_kernels",
                                        "data_dir",           "memory_mb",   "log_format", "progress"};
    return key->scope == SCOPE_MACHINE && is_one_of(key, names, sizeof names / sizeof *names);
}

static int find_host(const struct string_list *hosts, const char *host)
{
    for (int i = 0; i < hosts->count; i++) {
        if (strcmp(hosts->items[i], host) == 0) {
            return i;
        }
    }
    return -1;
}

/*
 * Members find one another, and hear of rollouts and of going back, by the addresses of ps: who missed a move would look
 * where nobody is any more.
 */
static bool check_ps(const struct string_list *before, const struct string_list *after, struct error *error)
{
    int common = before->count < after->count ? before->count : after->count;
    for (int i = 0; i < common; i++) {
        if (strcmp(before->items[i], after->items[i]) != 0) {
            return error_set(
                error,
                "cluster.ps_hosts: entry %d is %s and would be %s: the others find a ps by its address, so a "
                "rollout adds ps at the end of the list or takes them away there; to move one, stop the job "
                "and start it anew (it goes on from its checkpoint), or give the new machine the old name",
                i, before->items[i], after->items[i]);
        }
    }
    return common > 0 || before->count == 0 || error_set(error, "cluster.ps_hosts: would be empty");
}

/*
 * A worker is its number, and its address little more than a name: under another one the same process goes on. But where
 * another worker's address comes to an entry, somebody was taken out of the middle of the list, and the process that would
 * go on under that name is not the one that is meant.
 */
static bool check_workers(const struct string_list *before, const struct string_list *after, struct error *error)
{
    for (int i = 0; i < before->count && i < after->count; i++) {
        int other = find_host(before, after->items[i]);
        if (other >= 0 && other != i) {
            return error_set(
                error,
                "cluster.worker_hosts: entry %d is %s and would be %s, which is worker %d now: a worker is "
                "known by its place in the list, so none can be taken out before the end; put another address "
                "there, or stop the job and start it anew",
                i, before->items[i], after->items[i], other);
        }
    }
    return after->count > 0 || before->count == 0 || error_set(error, "cluster.worker_hosts: would be empty");
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
        return check_ps(&before->cluster.ps_hosts, &after->cluster.ps_hosts, error);
    }
    if (strcmp(change->key->name, "worker_hosts") == 0) {
        return check_workers(&before->cluster.worker_hosts, &after->cluster.worker_hosts, error);
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
        if (local_differs || diff.changes[i].key->change != CHANGE_LIVE) {
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
    const struct config_cluster *cluster = &config->cluster;
    return who.index < (who.role == MEMBER_PS ? cluster->ps_hosts.count : config_worker_room(cluster));
}
