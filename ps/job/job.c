/* The job's life: its members, the chief's requests, and time. */
#include "ps/job/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/simulation.h"
#include "ps/job/internal.h"
#include "ps/store/model.h"

/* --- Create and destroy --- */

bool job_create(struct job *job, const struct config *config, int ps, double now_s, struct error *error)
{
    struct model model;
    memset(job, 0, sizeof *job);
    model_layout(&model, &config->model);
    job->config = *config;
    job->identity = (struct member){MEMBER_PS, ps};
    job->worker_count = config_worker_room(&config->cluster);
    job->workers = calloc((size_t)job->worker_count, sizeof *job->workers);
    if (!job->workers) {
        return error_set(error, "out of memory");
    }
    for (int i = 0; i < job->worker_count; i++) {
        struct job_worker *worker = &job->workers[i];
        worker->loss = worker->cpu_percent = worker->gpu_percent = worker->cosine = worker->norm = NAN;
        worker->taken_step = -1;
    }
    job->began_s = now_s;
    job->logged_s = now_s;
    job->ticked_s = now_s;
    job->test_accuracy = NAN;
    job_forget_buffer(job);
    job->coordinator = placement_first(&model, config->cluster.placement, config->cluster.ps_hosts.count);
    return !config->cluster.issync || job_create_gathering(job, ps, error);
}

void job_destroy(struct job *job)
{
    aggregation_destroy(&job->gathered);
    free(job->shards);
    free(job->awaited);
    free(job->asked);
    free(job->last_set);
    free(job->step_workers);
    free(job->workers);
    memset(job, 0, sizeof *job);
}

/* --- Members: the order of the checks in `join` is the protocol --- */

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
static void replace_incarnation(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != 0) {
        if (worker->connections > 0) {
            job_log(job, LOG_WARNING, "worker %d (%s) replaces a process at %s that does not answer", index, peer,
                    worker->peer);
            job_act(job, JOB_CUT, index);
        }
        worker->fenced[worker->fenced_next] = worker->incarnation;
        worker->fenced_next = (worker->fenced_next + 1) % JOB_FENCED;
    }
    worker->incarnation = incarnation;
    worker->connections = 0;
    worker->held = 0;
    if (worker->ready && !worker->pushed && job->started && job->state == JOB_TRAINING) {
        worker->barren++;
    }
    worker->present = worker->lost = worker->cut_off = worker->left = worker->counts = false;
    worker->ready = worker->idle = worker->pushed = worker->pushed_last = false;
    worker->sequence = 0;
    worker->challenger = 0;
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
 * 0: the older process is gone; JOB_RETRY: not known yet. Only the pong to this probe shows that it lives: other
 * messages may have been sent before it was killed, and delayed by a slow link or a stalled ps. A gap between two
 * attempts means that the challenger went away, or that this ps was stalled and may not have read the pong yet: the
 * time starts over.
 */
static uint16_t probe(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s,
                      struct error *message)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->challenger == 0 || now_s - worker->challenged_s > JOB_RETRY_MS / 1000.0) {
        worker->challenger = incarnation;
        worker->probe_s = now_s;
        worker->probe++;
        worker->answered = false;
        job_act(job, JOB_PROBE, index);
    }
    if (worker->challenger != incarnation) {
        return JOB_RETRY; /* one claim at a time: the claimant may have died meanwhile, too */
    }
    worker->challenged_s = now_s;
    if (!worker->answered) {
        return now_s - worker->probe_s < JOB_PROBE_MS / 1000.0 ? JOB_RETRY : 0;
    }
    worker->challenger = 0;
    job_log(job, LOG_WARNING, "refused a second worker %d (%s): the one at %s is alive", index, peer, worker->peer);
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
    replace_incarnation(job, index, incarnation, peer, now_s);
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
        job_log(job, LOG_INFO, "worker %d (%s) is back after %.0f s", index, peer, now_s - worker->heard_s);
    } else if (!worker->present) {
        job_log(job, LOG_INFO, "worker %d (%s) joined", index, peer);
    } else if (worker->connections == 0) {
        job_log(job, LOG_INFO, "worker %d (%s) is connected again", index, peer);
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
        worker->claimed = true;
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
        job_log(job, LOG_WARNING, "worker %d (%s) has disconnected; lost unless it is back in %g s", index,
                worker->peer, job->config.cluster.lease_secs);
    }
}

/*
 * It reaches every ps, or no longer. Before there is a model to train this is not reported: some ps are still to come.
 */
static void set_reachability(struct job *job, int index, bool cut_off, const char *message, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    const bool is_logged = job->state == JOB_TRAINING;
    if (cut_off == worker->cut_off) {
        return;
    }
    worker->cut_off = worker->lost = cut_off;
    worker->present = !cut_off;
    if (cut_off) {
        MARK("a worker that is here can't reach another ps");
        worker->counts = false;
        worker->cut_off_s = now_s;
        if (is_logged) {
            job_log(job, LOG_WARNING, "worker %d (%s) %.255s: it takes no part until it can reach all ps", index,
                    worker->peer, message);
        }
        job_try_decide(job, now_s);
    } else {
        if (is_logged) {
            job_log(job, LOG_INFO, "worker %d (%s) reaches all ps again after %.0f s", index, worker->peer,
                    now_s - worker->cut_off_s);
        }
        job_start_if_complete(job);
    }
}

/*
 * Shown for a worker: nobody is ahead of the job. Ps count for themselves in asynchronous training, and one that holds
 * nothing makes no steps.
 */
static int64_t reported_step(const struct job *job, int64_t step)
{
    const bool knows = job_initialised(job) && job->coordinator == job->identity.index;
    return knows && step > job->global_step ? job->global_step : step;
}

/* Its process ends with an error. In a crash loop, which a supervisor makes of it, this is logged ever more rarely. */
static void note_failure(struct job *job, int index, const char *message, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->state == STATE_FAILED || worker->left) {
        return; /* logged before */
    }
    worker->failures++;
    worker->present = worker->lost = worker->cut_off = worker->counts = false;
    snprintf(worker->failure, sizeof worker->failure, "%.255s", message);
    if (!job_is_over(job) && (worker->failures & (worker->failures - 1)) == 0) {
        char times[64] = "";
        if (worker->failures > 1) {
            snprintf(times, sizeof times, ", for the %d. time in a row", worker->failures);
        }
        job_log(job, LOG_ERROR, "worker %d (%s) failed%s: %s", index, worker->peer, times, message);
    }
    job_try_decide(job, now_s);
}

void job_heartbeat(struct job *job, int index, uint64_t incarnation, const struct message_heartbeat *heartbeat,
                   double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    job_touch(job, index, incarnation, now_s);
    if (heartbeat->state == STATE_FAILED) {
        note_failure(job, index, heartbeat->message, now_s);
    } else if (!worker->left) {
        set_reachability(job, index, heartbeat->state == STATE_LOST, heartbeat->message, now_s);
    }
    worker->state = heartbeat->state;
    worker->global_step = reported_step(job, heartbeat->global_step);
    worker->local_step = heartbeat->local_step < JOB_MAX_STEP ? heartbeat->local_step : JOB_MAX_STEP;
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
    job_try_decide(job, now_s);
    if (worker->state != STATE_FAILED) { /* then the reason was logged */
        job_log(job, LOG_INFO, "worker %d (%s) left%s%s", index, worker->peer, message[0] != '\0' ? ": " : "", message);
    }
}

/* After this ps itself stood still (stopped, or its machine asleep). */
static void extend_leases(struct job *job, double seconds)
{
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].heard_s += seconds;
        job->workers[i].worked_s += seconds;
        job->workers[i].turn_s += seconds;
    }
}

/* How long the gradients of those who take part take; 0: none was sent yet. */
static double longest_took_s(const struct job *job)
{
    double longest_s = 0;
    for (int i = 0; i < job->worker_count; i++) {
        longest_s = fmax(longest_s, job_takes_part(&job->workers[i]) ? job->workers[i].took_s : 0);
    }
    return longest_s;
}

/* False once all are checked, true if actions must be taken first. */
static bool tick_leases(struct job *job, double now_s)
{
    double lease_s = job->config.cluster.lease_secs;
    if (job->tick_next == 0 && now_s <= job->lease_due_s) {
        return false;
    }
    if (job->tick_next == 0) {
        job->lease_due_s = now_s + lease_s; /* anyone heard from or no longer held from now on has a whole lease */
    }
    const double others_s = longest_took_s(job);
    for (; job->tick_next < job->worker_count; job->tick_next++) {
        struct job_worker *worker = &job->workers[job->tick_next];
        if (!worker->present || job_is_over(job)) {
            continue;
        }
        const double lost_at_s = worker->held > 0 ? INFINITY : worker->heard_s + lease_s;
        const double idle_at_s = job_idle_at_s(job, job->tick_next, others_s);
        if (now_s <= fmin(lost_at_s, idle_at_s)) {
            job->lease_due_s = fmin(job->lease_due_s, fmin(lost_at_s, idle_at_s));
            continue;
        }
        if (job->line_count >= JOB_MAX_LINES / 2) { /* the rest of the tick may add lines, too */
            return true;
        }
        if (now_s <= lost_at_s) {
            MARK("a worker sends signs of life, but no gradient");
            worker->idle = true;
            worker->counts = false;
            job_log(
                job, LOG_WARNING,
                "worker %d (%s) is alive, but has sent no gradient for %.0f s; the others continue without it until "
                "it does",
                job->tick_next, worker->peer, now_s - worker->worked_s);
            continue;
        }
        MARK("a lease is over");
        worker->lost = true;
        worker->present = worker->counts = false;
        job_log(job, LOG_WARNING, "worker %d (%s) is lost: not heard from for %.0f s; the others continue",
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
    if (worker->state == STATE_FAILED) {
        return STATE_FAILED;
    }
    if (worker->left) {
        return job->state == JOB_DONE ? STATE_DONE : STATE_ABSENT;
    }
    if (worker->lost) {
        return STATE_LOST;
    }
    return worker->held > 0 ? STATE_WAITING : (enum member_state)worker->state;
}

void job_hold_start(struct job *job, bool keep)
{
    job->kept = keep;
    job_start_if_complete(job);
}

/* --- Indexes for workers that come without one --- */

/*
 * A worker gets the index that its key hashes to, if possible: so it usually gets the same one again, even from a
 * restarted ps that has forgotten it.
 */

/* The last time that this index was used. */
static double used_s(const struct job_worker *worker)
{
    return fmax(worker->heard_s, worker->assigned_s);
}

static bool is_away(const struct job *job, const struct job_worker *worker, double now_s)
{
    return worker->connections == 0 && !worker->present && now_s - used_s(worker) > job->config.cluster.lease_secs;
}

/* The index of this key; -1: none. */
static int find_own(const struct job *job, uint64_t key)
{
    for (int i = job->config.cluster.worker_hosts.count; i < job->worker_count; i++) {
        if (job->workers[i].index_key == key) {
            return i;
        }
    }
    return -1;
}

/*
 * An index that nobody has had, searching from the key's hash on; otherwise that of the worker that has been away
 * longest; otherwise the oldest one that was assigned but not used. -1: none.
 */
static int find_free(const struct job *job, uint64_t key, double now_s)
{
    const int listed = job->config.cluster.worker_hosts.count, room = job->worker_count - listed;
    int longest = -1, unclaimed = -1;
    for (int k = 0; k < room; k++) {
        const int i = listed + (int)((key + (uint64_t)k) % (uint64_t)room);
        const struct job_worker *worker = &job->workers[i];
        if (worker->index_key == 0 && worker->incarnation == 0) {
            return i;
        }
        if (is_away(job, worker, now_s) && (longest < 0 || used_s(worker) < used_s(&job->workers[longest]))) {
            longest = i;
        }
        if (!worker->claimed && worker->connections == 0 && !worker->present &&
            (unclaimed < 0 || worker->assigned_s < job->workers[unclaimed].assigned_s)) {
            unclaimed = i;
        }
    }
    return longest >= 0 ? longest : unclaimed;
}

int job_assign_index(struct job *job, uint64_t key, double now_s, struct verdict *verdict)
{
    const int room = job->worker_count - job->config.cluster.worker_hosts.count;
    *verdict = (struct verdict){.code = 0};
    int index = find_own(job, key);
    index = index >= 0 ? index : find_free(job, key, now_s);
    if (index < 0 && room == 0) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "no worker may join beyond worker_hosts: set elastic, or a task_index");
    } else if (index < 0) {
        job_deny(verdict, ERROR_NOT_READY, "all %d places beyond worker_hosts are taken: raise elastic_workers", room);
    } else {
        struct job_worker *worker = &job->workers[index];
        worker->claimed = worker->claimed && worker->index_key == key;
        worker->index_key = key;
        worker->assigned_s = now_s;
    }
    return index;
}

/* --- The chief's requests: generations of the training state, snapshots, the end --- */

static bool check_chief(int worker, const char *what, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (worker != 0) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "only worker 0, the chief, may ask for %s", what);
    }
    return worker == 0;
}

void job_begin_restore(struct job *job, int worker, uint32_t generation, const char *source, double now_s,
                       struct verdict *verdict)
{
    if (!check_chief(worker, "begin_restore", verdict)) {
        return;
    }
    if (!generation_is_later(generation, job->generation)) {
        job_deny(verdict, ERROR_OLD_GENERATION, "a new generation must be later than %u, not %u", job->generation,
                 generation);
        return;
    }
    job->state = JOB_RESTORING;
    job->generation = generation;
    job->began_s = job->logged_s = now_s;
    job->test_accuracy = NAN;
    job->message[0] = '\0';
    job_forget_buffer(job);
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].counts = false;
        job->workers[i].taken_step = -1;
    }
    job_log(job, LOG_INFO, "worker 0 (%s) writes the model of generation %u: %s", job->workers[0].peer, generation,
            source);
}

void job_write(struct job *job, int worker, uint32_t generation, struct verdict *verdict)
{
    if (!check_chief(worker, "a write", verdict)) {
        return;
    }
    if (generation != job->generation) {
        job_deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the one being written, %u", generation,
                 job->generation);
    } else if (job->state != JOB_RESTORING) {
        job_deny(verdict, ERROR_BAD_REQUEST, "nothing can be written before begin_restore");
    }
}

void job_check_restored(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                        struct verdict *verdict)
{
    job_write(job, worker, generation, verdict);
    if (verdict->code != 0) {
        return;
    }
    if (global_step < 0 || global_step > JOB_MAX_STEP || epoch_batches < 0 || epoch_batches > JOB_MAX_BATCHES) {
        job_deny(verdict, ERROR_BAD_REQUEST,
                 "a job can't continue at step %lld, with %lld batches per epoch: expected 0 to %lld, and 0 to %lld",
                 (long long)global_step, (long long)epoch_batches, (long long)JOB_MAX_STEP, (long long)JOB_MAX_BATCHES);
    }
}

void job_end_restore(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                     double now_s, struct verdict *verdict)
{
    job_check_restored(job, worker, generation, global_step, epoch_batches, verdict);
    if (verdict->code != 0) {
        return;
    }
    job->state = JOB_TRAINING;
    job->global_step = global_step;
    job->epoch_batches = epoch_batches;
    job_set_end(job);
    job->began_s = job->logged_s = now_s;
    job_log(job, LOG_INFO, "the model of generation %u is complete, at global step %lld", generation,
            (long long)global_step);
    job->last_set_step = -1;
    job_take_due(job);
    job_gather(job, now_s);
    job_start_if_complete(job);
}

void job_snapshot(struct job *job, int worker, uint32_t generation, bool orders, struct verdict *verdict)
{
    if (!check_chief(worker, "a snapshot", verdict)) {
        return;
    }
    /* Ordering before releasing any worker ensures that the first steps are not missed. */
    if (!job_initialised(job) && !(orders && job->state == JOB_RESTORING)) {
        job_deny(verdict, ERROR_NOT_READY, "there is no model yet");
    } else if (generation != job->generation) {
        job_deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the current one, %u", generation,
                 job->generation);
    }
}

void job_end(struct job *job, int worker, const struct message_end_job *message, double now_s, struct verdict *verdict)
{
    if (!check_chief(worker, "end_job", verdict)) {
        return;
    }
    if (message->job_state != JOB_DONE && message->job_state != JOB_FAILED) {
        job_deny(verdict, ERROR_BAD_REQUEST, "a job ends done (3) or failed (4), not %d", message->job_state);
        return;
    }
    if (job_is_over(job)) {
        return;
    }
    job->state = (enum job_state)message->job_state;
    job->ended_s = now_s;
    job->test_accuracy = message->test_accuracy;
    snprintf(job->message, sizeof job->message, "%s", message->message);
    bool has_text = job->message[0] != '\0';
    job_log(job, job->state == JOB_DONE ? LOG_INFO : LOG_ERROR, "worker 0 (%s): training %s at global step %lld%s%s",
            job->workers[0].peer, job->state == JOB_DONE ? "is over" : "failed", (long long)message->global_step,
            has_text ? ": " : "", job->message);
}

/* --- For status --- */

/* The differences gathered for the next step, and the staleness of the last step's. */
static void describe_buffer(const struct job *job, char message[JOB_MESSAGE])
{
    char staleness[96] = "";
    if (!isnan(job->mean_staleness)) {
        snprintf(staleness, sizeof staleness, "; those of the last step were %.2f steps old on average",
                 job->mean_staleness);
    }
    snprintf(message, JOB_MESSAGE, "has %d of %d differences for step %lld%s", job->buffered,
             job->config.train.buffer_size, (long long)job->global_step, staleness);
}

void job_describe(struct job *job, double now_s, char message[JOB_MESSAGE])
{
    if (!job_ready(job, now_s, message)) {
        return;
    }
    if (job->message[0] != '\0') {
        snprintf(message, JOB_MESSAGE, "%s", job->message);
    } else if (job->state == JOB_TRAINING && job->config.train.buffer_size > 0) {
        describe_buffer(job, message);
    } else if (job->state == JOB_TRAINING) {
        job_describe_wait(job, now_s, message);
    }
}

uint64_t job_dropped(const struct job *job)
{
    uint64_t dropped = 0;
    for (int i = 0; i < job->worker_count; i++) {
        dropped += (uint64_t)(job->workers[i].stale + job->workers[i].not_finite);
    }
    return dropped;
}

uint64_t job_not_finite(const struct job *job)
{
    uint64_t not_finite = 0;
    for (int i = 0; i < job->worker_count; i++) {
        not_finite += (uint64_t)job->workers[i].not_finite;
    }
    return not_finite;
}

/* --- Time --- */

bool job_tick(struct job *job, double now_s)
{
    char message[256];
    double missed_s = now_s - job->ticked_s - JOB_TICK_MS / 1000.0;
    if (job->ticked_s > 0 && missed_s > 0) {
        extend_leases(job, missed_s);
    }
    job->ticked_s = now_s;
    if (tick_leases(job, now_s)) {
        return true;
    }
    job_try_decide(job, now_s);
    if (now_s - job->logged_s >= JOB_WAIT_LOG_MS / 1000.0) {
        job->logged_s = now_s;
        if (!job_ready(job, now_s, message) ||
            (job_describe_wait(job, now_s, message) && now_s - job->gathering_s >= JOB_WAIT_LOG_MS / 1000.0)) {
            job_log(job, LOG_INFO, "%s", message);
        }
    }
    return false;
}

bool job_may_exit(const struct job *job, double now_s)
{
    int connected = 0;
    for (int i = 0; job_is_over(job) && i < job->worker_count; i++) {
        connected += job->workers[i].connections > 0 && !job->workers[i].left;
    }
    return job_is_over(job) && (connected == 0 || now_s - job->ended_s >= JOB_END_MS / 1000.0);
}
