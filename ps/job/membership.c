/* Who is a member: the order of the checks in `join` is the protocol. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ps/job/internal.h"

#include "base/simulation.h"

bool job_is_current(const struct job *job, int worker, uint64_t incarnation)
{
    return job->workers[worker].incarnation == incarnation;
}

static bool is_fenced(const struct job_worker *worker, uint64_t incarnation)
{
    for (int i = 0; i < JOB_FENCED; i++) {
        if (worker->fenced[i] == incarnation) {
            return true;
        }
    }
    return false;
}

/* From now on `incarnation` is this worker; an older one is fenced for good. */
static void take_place(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != 0) {
        if (worker->connections > 0) {
            job_say(job, LOG_WARNING, "worker %d (%s) replaces a process at %s that does not answer", index, peer,
                    worker->peer);
            job_act(job, JOB_CUT, index);
        }
        worker->fenced[worker->fenced_next] = worker->incarnation;
        worker->fenced_next = (worker->fenced_next + 1) % JOB_FENCED;
    }
    worker->incarnation = incarnation;
    worker->connections = 0;
    worker->held = 0;
    worker->present = worker->lost = worker->cut_off = worker->left = worker->counts = false;
    worker->sequence = 0;
    worker->newcomer = 0;
    worker->state = STATE_STARTING;
    worker->global_step = worker->local_step = 0;
    worker->steps_per_s = 0.0f;
    worker->loss = NAN;
    worker->retries = worker->bytes_in = worker->bytes_out = worker->memory_bytes = 0;
    worker->cpu_percent = worker->gpu_percent = NAN;
    worker->host[0] = worker->device[0] = worker->message[0] = '\0';
    worker->heard_s = now_s;
}

/*
 * 0: the older process is gone; JOB_ASK_AGAIN: not known yet. Only the pong to this probe shows that it lives: other
 * messages may have been sent before it was killed, and delayed by a slow link or a stalled ps. A gap between two
 * attempts means that the newcomer went away, or that this ps was stalled and may not have read the pong yet: the time
 * starts over.
 */
static uint16_t probe(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s,
                      struct error *message)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->newcomer == 0 || now_s - worker->asked_s > JOB_ASK_MS / 1000.0) {
        worker->newcomer = incarnation;
        worker->probe_s = now_s;
        worker->probe++;
        worker->answered = false;
        job_act(job, JOB_PROBE, index);
    }
    if (worker->newcomer != incarnation) {
        return JOB_ASK_AGAIN; /* one claim at a time: the claimant may have died meanwhile, too */
    }
    worker->asked_s = now_s;
    if (!worker->answered) {
        return now_s - worker->probe_s < JOB_PROBE_MS / 1000.0 ? JOB_ASK_AGAIN : 0;
    }
    worker->newcomer = 0;
    job_say(job, LOG_WARNING, "refused a second worker %d (%s): the one at %s is alive", index, peer, worker->peer);
    error_set(
        message,
        "worker %d is already running at %s, and alive: give this process another --task_index, or stop the other "
        "one first",
        index, worker->peer);
    return REFUSAL_DUPLICATE;
}

uint64_t job_probe_nonce(const struct job *job, int index)
{
    return job->workers[index].probe;
}

void job_pong(struct job *job, int index, uint64_t incarnation, uint64_t nonce)
{
    struct job_worker *worker = &job->workers[index];
    worker->answered = worker->answered || (worker->incarnation == incarnation && worker->probe == nonce);
}

/* May this incarnation be the worker? */
static uint16_t join(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s,
                     struct error *message)
{
    struct job_worker *worker = &job->workers[index];
    if (is_fenced(worker, incarnation)) {
        error_set(message, "a newer process is worker %d now; it replaces this one", index);
        return REFUSAL_REPLACED;
    }
    if (worker->incarnation == incarnation) {
        return 0;
    }
    bool silent = (worker->lost && !worker->cut_off) || worker->left || worker->connections == 0;
    if (worker->incarnation != 0 && !silent) {
        uint16_t answer = probe(job, index, incarnation, peer, now_s, message);
        if (answer != 0) {
            return answer;
        }
    }
    take_place(job, index, incarnation, peer, now_s);
    return 0;
}

static void welcome(struct job *job, int index, const char *peer, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    snprintf(worker->peer, sizeof worker->peer, "%s", peer);
    if (worker->cut_off) { /* until it says otherwise itself */
        worker->connections++;
        worker->heard_s = now_s;
        return;
    }
    if (worker->lost) {
        job_say(job, LOG_INFO, "worker %d (%s) is back after %.0f s", index, peer, now_s - worker->heard_s);
    } else if (!worker->present) {
        job_say(job, LOG_INFO, "worker %d (%s) joined", index, peer);
    } else if (worker->connections == 0) {
        job_say(job, LOG_INFO, "worker %d (%s) is connected again", index, peer);
    }
    worker->connections++;
    worker->present = true;
    worker->lost = worker->left = false;
    worker->heard_s = now_s;
    job_start_if_complete(job);
}

uint16_t job_hello(struct job *job, const struct peer *who, const char *address, double now_s, struct error *message)
{
    char name[MEMBER_TEXT];
    const struct member *member = &who->member;
    if (member->role == MEMBER_OPERATOR) {
        return 0;
    }
    bool decides = job->synchronous && job->coordinator == job->identity.index;
    bool leads_rollouts = job->identity.index == 0;
    if (member->role == MEMBER_PS && (decides || leads_rollouts) &&
        member->index < job->config.cluster.ps_hosts.count && member->index != job->identity.index) {
        return 0;
    }
    if (member->role != MEMBER_WORKER) {
        member_format(member, ' ', name);
        error_set(message, "ps %d expects workers here, not %s", job->identity.index, name);
        return REFUSAL_MEMBER;
    }
    if (member->index < 0 || member->index >= job->worker_count) {
        error_set(message, "there is no worker %d: worker_hosts lists %d", member->index,
                  job->config.cluster.worker_hosts.count);
        return REFUSAL_MEMBER;
    }
    if (who->incarnation == 0) {
        error_set(message, "0 is not a valid incarnation");
        return REFUSAL_MEMBER;
    }
    uint16_t refusal = join(job, member->index, who->incarnation, address, now_s, message);
    if (refusal == 0) {
        struct job_worker *worker = &job->workers[member->index];
        snprintf(worker->program, sizeof worker->program, "%s", who->program);
        snprintf(worker->digest, sizeof worker->digest, "%s", who->digest);
        worker->fleet_version = who->fleet_version;
        welcome(job, member->index, address, now_s);
    }
    return refusal;
}

void job_disconnected(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    /*
     * Not below zero: only the latest incarnations are remembered as fenced, so a member with the key can use an old
     * one again, and then connections of its first life end in its second.
     */
    worker->connections -= worker->connections > 0;
    if (worker->connections > 0) {
        return;
    }
    worker->gone_s = now_s;
    if (worker->present && !job_is_over(job)) {
        job_say(job, LOG_WARNING, "worker %d (%s) has disconnected; lost unless it is back in %g s", index,
                worker->peer, job->config.cluster.lease_secs);
    }
}

void job_heard(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    if (worker->lost && !worker->cut_off) {
        job_say(job, LOG_INFO, "worker %d (%s) responds again after %.0f s", index, worker->peer,
                now_s - worker->heard_s);
        worker->lost = false;
        worker->present = true;
        job_start_if_complete(job);
    }
    worker->heard_s = now_s;
}

/*
 * It reaches every ps, or no longer. Before there is a model to train this is not reported: some ps are still to come.
 */
static void take_reach(struct job *job, int index, bool cut_off, const char *message, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    const bool tells = job->state == JOB_TRAINING;
    if (cut_off == worker->cut_off) {
        return;
    }
    worker->cut_off = worker->lost = cut_off;
    worker->present = !cut_off;
    if (cut_off) {
        MARK("a worker that is here can't reach another ps");
        worker->counts = false;
        worker->cut_off_s = now_s;
        if (tells) {
            job_say(job, LOG_WARNING, "worker %d (%s) %.255s: it takes no part until it can reach all ps", index,
                    worker->peer, message);
        }
        job_consider(job, now_s);
    } else {
        if (tells) {
            job_say(job, LOG_INFO, "worker %d (%s) reaches all ps again after %.0f s", index, worker->peer,
                    now_s - worker->cut_off_s);
        }
        job_start_if_complete(job);
    }
}

void job_heartbeat(struct job *job, int index, uint64_t incarnation, const struct message_heartbeat *heartbeat,
                   double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    job_heard(job, index, incarnation, now_s);
    if (!worker->left) {
        take_reach(job, index, heartbeat->state == STATE_LOST, heartbeat->message, now_s);
    }
    worker->state = heartbeat->state;
    worker->global_step = heartbeat->global_step;
    worker->local_step = heartbeat->local_step;
    worker->steps_per_s = heartbeat->steps_per_s;
    worker->loss = heartbeat->loss;
    worker->reported_staleness = heartbeat->staleness;
    worker->retries = heartbeat->retries;
    worker->bytes_in = heartbeat->bytes_in;
    worker->bytes_out = heartbeat->bytes_out;
    worker->memory_bytes = heartbeat->memory_bytes;
    worker->cpu_percent = heartbeat->cpu_percent;
    worker->gpu_percent = heartbeat->gpu_percent;
    snprintf(worker->host, sizeof worker->host, "%s", heartbeat->host);
    snprintf(worker->device, sizeof worker->device, "%s", heartbeat->device);
    snprintf(worker->message, sizeof worker->message, "%s", heartbeat->message);
}

void job_leave(struct job *job, int index, uint64_t incarnation, const char *message, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation || worker->left) {
        return;
    }
    worker->left = true;
    worker->present = worker->lost = worker->cut_off = worker->counts = false;
    worker->heard_s = now_s;
    job_consider(job, now_s);
    job_say(job, LOG_INFO, "worker %d (%s) left%s%s", index, worker->peer, message[0] != '\0' ? ": " : "", message);
}

void job_extend_leases(struct job *job, double seconds)
{
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].heard_s += seconds;
    }
}

bool job_tick_leases(struct job *job, double now_s)
{
    double lease_s = job->config.cluster.lease_secs;
    if (job->tick_next == 0 && now_s <= job->lease_due_s) {
        return false;
    }
    if (job->tick_next == 0) {
        job->lease_due_s = now_s + lease_s; /* anyone heard from or no longer held from now on has a whole lease */
    }
    for (; job->tick_next < job->worker_count; job->tick_next++) {
        struct job_worker *worker = &job->workers[job->tick_next];
        if (!worker->present || worker->held > 0 || job_is_over(job)) {
            continue;
        }
        if (now_s - worker->heard_s <= lease_s) {
            job->lease_due_s = fmin(job->lease_due_s, worker->heard_s + lease_s);
            continue;
        }
        if (job->line_count >= JOB_MAX_LINES / 2) { /* the rest of the tick may add lines, too */
            return true;
        }
        MARK("a lease is over");
        worker->lost = true;
        worker->present = worker->counts = false;
        job_say(job, LOG_WARNING, "worker %d (%s) is lost: not heard from for %.0f s; the others continue",
                job->tick_next, worker->peer, now_s - worker->heard_s);
    }
    job->tick_next = 0;
    return false;
}

enum member_state job_worker_state(const struct job *job, int index)
{
    const struct job_worker *worker = &job->workers[index];
    if (worker->incarnation == 0) {
        return STATE_ABSENT;
    }
    if (worker->left) {
        return job->state == JOB_DONE ? STATE_DONE : STATE_ABSENT;
    }
    if (worker->lost) {
        return STATE_LOST;
    }
    return worker->held > 0 ? STATE_WAITING : (enum member_state)worker->state;
}
