/*
 * Indexes for workers that come without one. A worker gets the place that its key hashes to, if possible: so it usually
 * gets the same index again, even from a restarted ps that has forgotten it.
 */
#include <math.h>

#include "ps/job/internal.h"

/* The last time that this index was used. */
static double used_s(const struct job_worker *worker)
{
    return fmax(worker->heard_s, worker->placed_s);
}

static bool is_away(const struct job *job, const struct job_worker *worker, double now_s)
{
    return worker->connections == 0 && !worker->present && now_s - used_s(worker) > job->config.cluster.lease_secs;
}

/* The index of this key; -1: none. */
static int find_own(const struct job *job, uint64_t key)
{
    for (int i = job->config.cluster.worker_hosts.count; i < job->worker_count; i++) {
        if (job->workers[i].place_key == key) {
            return i;
        }
    }
    return -1;
}

/*
 * An index that nobody has had, searching from the key's hash on; otherwise that of the worker that has been away
 * longest. -1: none.
 */
static int find_free(const struct job *job, uint64_t key, double now_s)
{
    const int listed = job->config.cluster.worker_hosts.count, room = job->worker_count - listed;
    int longest = -1;
    for (int k = 0; k < room; k++) {
        const int i = listed + (int)((key + (uint64_t)k) % (uint64_t)room);
        const struct job_worker *worker = &job->workers[i];
        if (worker->place_key == 0 && worker->incarnation == 0) {
            return i;
        }
        if (is_away(job, worker, now_s) && (longest < 0 || used_s(worker) < used_s(&job->workers[longest]))) {
            longest = i;
        }
    }
    return longest;
}

int job_place(struct job *job, uint64_t key, double now_s, struct verdict *verdict)
{
    const int room = job->worker_count - job->config.cluster.worker_hosts.count;
    *verdict = (struct verdict){.code = 0};
    int index = find_own(job, key);
    index = index >= 0 ? index : find_free(job, key, now_s);
    if (index < 0 && room == 0) {
        job_deny(verdict, ERROR_NOT_READY, "no worker may join beyond worker_hosts: set elastic, or a task_index");
    } else if (index < 0) {
        job_deny(verdict, ERROR_NOT_READY, "all %d places beyond worker_hosts are taken: raise elastic_workers", room);
    } else {
        job->workers[index].place_key = key;
        job->workers[index].placed_s = now_s;
    }
    return index;
}
