/*
 * The decisions of a ps. Every function here is a few comparisons on what is known of the workers; the order of the
 * checks in job_push and join is the protocol.
 */
#include "ps/job.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool job_create(struct job *job, const struct config *config, int ps, double now_s, struct error *error)
{
    memset(job, 0, sizeof *job);
    job->config = config;
    job->self = (struct member){MEMBER_PS, ps};
    job->worker_count = config->cluster.worker_hosts.count;
    job->workers = calloc((size_t)job->worker_count, sizeof *job->workers);
    if (job->workers == NULL) {
        return error_set(error, "out of memory");
    }
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].loss = NAN;
    }
    job->began_s = now_s;
    job->told_s = now_s;
    job->test_accuracy = NAN;
    return true;
}

void job_destroy(struct job *job)
{
    free(job->workers);
    memset(job, 0, sizeof *job);
}

/* --- Actions ----------------------------------------------------------------------------------------------------------- */

bool job_next_action(struct job *job, struct job_action *action)
{
    if (job->action_next == job->action_count) {
        job->action_next = job->action_count = 0;
        return false;
    }
    *action = job->actions[job->action_next++];
    return true;
}

static struct job_action *act(struct job *job, enum job_action_kind kind, int worker)
{
    assert(job->action_count < JOB_MAX_ACTIONS);
    struct job_action *action = &job->actions[job->action_count++];
    *action = (struct job_action){.kind = kind, .worker = worker};
    if (worker >= 0) {
        action->incarnation = job->workers[worker].incarnation;
    }
    return action;
}

/* Texts from others may be part of a line; they shall not begin a new one. */
static void clean(char *text)
{
    for (; *text != '\0'; text++) {
        if ((unsigned char)*text < ' ' || *text == 0x7f) {
            *text = '?';
        }
    }
}

static void __attribute__((format(printf, 3, 4))) say(struct job *job, enum log_level level, const char *format, ...)
{
    struct job_action *action = act(job, JOB_LOG, -1);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(action->text, sizeof action->text, format, arguments);
    va_end(arguments);
    action->level = level;
    clean(action->text);
}

static void __attribute__((format(printf, 3, 4)))
deny(struct verdict *verdict, enum error_code code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->sentence, sizeof verdict->sentence, format, arguments);
    va_end(arguments);
    verdict->code = (uint16_t)code;
}

/* --- What is being waited for ------------------------------------------------------------------------------------------ */

int job_present(const struct job *job)
{
    int present = 0;
    for (int i = 0; i < job->worker_count; i++) {
        present += job->workers[i].present;
    }
    return present;
}

static bool is_over(const struct job *job)
{
    return job->state == JOB_DONE || job->state == JOB_FAILED;
}

bool job_initialised(const struct job *job)
{
    return job->state == JOB_TRAINING || (is_over(job) && job->generation > 0);
}

bool job_ready(struct job *job, double now_s, char sentence[256])
{
    const char *chief = job->config->cluster.worker_hosts.items[0];
    int seconds = (int)(now_s - job->began_s);
    sentence[0] = '\0';
    switch (job->state) {
    case JOB_WAITING:
        snprintf(sentence, 256, "waiting for worker 0 (%s) to initialise the model, %d s", chief, seconds);
        return false;
    case JOB_RESTORING:
        snprintf(sentence, 256, "waiting for worker 0 (%s) to finish writing the model, %d s", chief, seconds);
        return false;
    case JOB_DONE:
    case JOB_FAILED:
        snprintf(sentence, 256, "training %s at global step %lld", job->state == JOB_DONE ? "is over" : "failed",
                 (long long)job->global_step);
        return true;
    case JOB_TRAINING:
        break;
    }
    if (!job->started) {
        int missing = job->config->cluster.min_workers - job_present(job);
        snprintf(sentence, 256, "waiting for %d more worker%s (min_workers is %d), %d s", missing,
                 missing == 1 ? "" : "s", job->config->cluster.min_workers, seconds);
        return false;
    }
    return true;
}

/* Called whenever a worker came or the model got ready. */
static void start_if_complete(struct job *job)
{
    int present = job_present(job);
    if (job->state != JOB_TRAINING || job->started || present < job->config->cluster.min_workers) {
        return;
    }
    job->started = true;
    say(job, LOG_INFO, "training begins at global step %lld, with %d of %d workers here", (long long)job->global_step,
        present, job->worker_count);
}

/* --- Membership -------------------------------------------------------------------------------------------------------- */

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

/* From now on `incarnation` is this worker; an older one is out for good. */
static void take_place(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != 0) {
        if (worker->connections > 0) {
            say(job, LOG_WARNING, "worker %d (%s) takes the place of a process at %s that does not answer", index, peer,
                worker->peer);
            act(job, JOB_CUT, index);
        }
        worker->fenced[worker->fenced_next] = worker->incarnation;
        worker->fenced_next = (worker->fenced_next + 1) % JOB_FENCED;
    }
    worker->incarnation = incarnation;
    worker->connections = 0;
    worker->held = 0;
    worker->present = worker->lost = worker->left = worker->counts = false;
    worker->sequence = 0;
    worker->newcomer = 0;
    worker->state = STATE_STARTING;
    worker->global_step = worker->local_step = 0;
    worker->steps_per_s = 0.0f;
    worker->loss = NAN;
    worker->retries = worker->bytes_in = worker->bytes_out = 0;
    worker->host[0] = worker->device[0] = worker->sentence[0] = '\0';
    worker->heard_s = now_s;
}

/* 0: the older process is gone; JOB_ASK_AGAIN: not known yet. */
static uint16_t probe(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s,
                      struct error *sentence)
{
    struct job_worker *worker = &job->workers[index];
    bool abandoned = now_s - worker->probe_s > 2 * JOB_PROBE_MS / 1000.0;
    if (worker->newcomer == 0 || (worker->newcomer != incarnation && abandoned)) {
        worker->newcomer = incarnation;
        worker->probe_s = now_s;
        act(job, JOB_PROBE, index);
        return JOB_ASK_AGAIN;
    }
    if (worker->newcomer == incarnation && worker->heard_s <= worker->probe_s) {
        return now_s - worker->probe_s < JOB_PROBE_MS / 1000.0 ? JOB_ASK_AGAIN : 0;
    }
    if (worker->newcomer == incarnation) {
        worker->newcomer = 0;
        say(job, LOG_WARNING, "refused a second worker %d (%s): the one at %s is alive", index, peer, worker->peer);
    }
    error_set(
        sentence,
        "worker %d is already running at %s, and alive: give this process another --task_index, or stop the other "
        "one first",
        index, worker->peer);
    return REFUSAL_DUPLICATE;
}

/* Whether this incarnation may be the worker. */
static uint16_t join(struct job *job, int index, uint64_t incarnation, const char *peer, double now_s,
                     struct error *sentence)
{
    struct job_worker *worker = &job->workers[index];
    if (is_fenced(worker, incarnation)) {
        error_set(sentence, "a newer process is worker %d now, so this one is out", index);
        return REFUSAL_REPLACED;
    }
    if (worker->incarnation == incarnation) {
        return 0;
    }
    bool silent = worker->lost || worker->left || worker->connections == 0;
    if (worker->incarnation != 0 && !silent) {
        uint16_t answer = probe(job, index, incarnation, peer, now_s, sentence);
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
    if (worker->lost) {
        say(job, LOG_INFO, "worker %d (%s) is back after %.0f s", index, peer, now_s - worker->heard_s);
    } else if (!worker->present) {
        say(job, LOG_INFO, "worker %d (%s) joined", index, peer);
    } else if (worker->connections == 0) {
        say(job, LOG_INFO, "worker %d (%s) is connected again", index, peer);
    }
    worker->connections++;
    worker->present = true;
    worker->lost = worker->left = false;
    worker->heard_s = now_s;
    start_if_complete(job);
}

uint16_t job_hello(struct job *job, const struct member *who, uint64_t incarnation, const char *peer,
                   const char *program, const char *digest, uint64_t fleet_version, double now_s,
                   struct error *sentence)
{
    char name[MEMBER_TEXT];
    if (who->role == MEMBER_OPERATOR) {
        return 0;
    }
    if (who->role != MEMBER_WORKER) {
        member_format(who, ' ', name);
        error_set(sentence, "ps %d expects workers here, not %s", job->self.index, name);
        return REFUSAL_MEMBER;
    }
    if (who->index < 0 || who->index >= job->worker_count) {
        error_set(sentence, "there is no worker %d: worker_hosts lists %d", who->index, job->worker_count);
        return REFUSAL_MEMBER;
    }
    uint16_t refusal = incarnation == 0 ? REFUSAL_MEMBER : join(job, who->index, incarnation, peer, now_s, sentence);
    if (incarnation == 0) {
        error_set(sentence, "an incarnation of 0 stands for nobody");
    }
    if (refusal == 0) {
        struct job_worker *worker = &job->workers[who->index];
        snprintf(worker->program, sizeof worker->program, "%s", program);
        snprintf(worker->digest, sizeof worker->digest, "%s", digest);
        worker->fleet_version = fleet_version;
        welcome(job, who->index, peer, now_s);
    }
    return refusal;
}

void job_disconnected(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    assert(worker->connections > 0);
    worker->connections--;
    if (worker->connections > 0) {
        return;
    }
    worker->gone_s = now_s;
    if (worker->present && !is_over(job)) {
        say(job, LOG_WARNING, "worker %d (%s) is not connected any more; lost unless it is back in %g s", index,
            worker->peer, job->config->cluster.lease_secs);
    }
}

void job_heard(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    if (worker->lost) {
        say(job, LOG_INFO, "worker %d (%s) is heard of again after %.0f s", index, worker->peer,
            now_s - worker->heard_s);
        worker->lost = false;
        worker->present = true;
    }
    worker->heard_s = now_s;
}

void job_heartbeat(struct job *job, int index, uint64_t incarnation, const struct message_heartbeat *heartbeat,
                   double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    job_heard(job, index, incarnation, now_s);
    worker->state = heartbeat->state;
    worker->global_step = heartbeat->global_step;
    worker->local_step = heartbeat->local_step;
    worker->steps_per_s = heartbeat->steps_per_s;
    worker->loss = heartbeat->loss;
    worker->reported_staleness = heartbeat->staleness;
    worker->retries = heartbeat->retries;
    worker->bytes_in = heartbeat->bytes_in;
    worker->bytes_out = heartbeat->bytes_out;
    snprintf(worker->host, sizeof worker->host, "%s", heartbeat->host);
    snprintf(worker->device, sizeof worker->device, "%s", heartbeat->device);
    snprintf(worker->sentence, sizeof worker->sentence, "%s", heartbeat->sentence);
}

void job_leave(struct job *job, int index, uint64_t incarnation, const char *sentence, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation || worker->left) {
        return;
    }
    worker->left = true;
    worker->present = worker->lost = worker->counts = false;
    worker->heard_s = now_s;
    say(job, LOG_INFO, "worker %d (%s) left%s%s", index, worker->peer, sentence[0] != '\0' ? ": " : "", sentence);
}

bool job_tick(struct job *job, double now_s)
{
    double lease_s = job->config->cluster.lease_secs;
    char sentence[256];
    for (; job->tick_next < job->worker_count; job->tick_next++) {
        struct job_worker *worker = &job->workers[job->tick_next];
        if (!worker->present || worker->held > 0 || is_over(job) || now_s - worker->heard_s <= lease_s) {
            continue;
        }
        if (job->action_count == JOB_MAX_ACTIONS - 1) {
            return true;
        }
        worker->lost = true;
        worker->present = worker->counts = false;
        say(job, LOG_WARNING, "worker %d (%s) is lost: not heard of for %.0f s; the others go on", job->tick_next,
            worker->peer, now_s - worker->heard_s);
    }
    job->tick_next = 0;
    if (now_s - job->told_s >= JOB_WAITED_FOR_MS / 1000.0) {
        job->told_s = now_s;
        if (!job_ready(job, now_s, sentence)) {
            say(job, LOG_INFO, "%s", sentence);
        }
    }
    return false;
}

/* --- Pushes ------------------------------------------------------------------------------------------------------------ */

/* The slowest worker's clock among those that take part, `self` left out; false if there is none. */
static bool slowest(const struct job *job, int self, int64_t *clock)
{
    bool found = false;
    for (int i = 0; i < job->worker_count; i++) {
        const struct job_worker *worker = &job->workers[i];
        if (i != self && worker->counts && (!found || worker->clock < *clock)) {
            *clock = worker->clock;
            found = true;
        }
    }
    return found;
}

/* A worker that begins, or is back, is neither behind nor ahead of the slowest one. */
static void take_part(struct job *job, int index)
{
    struct job_worker *worker = &job->workers[index];
    if (!worker->counts) {
        worker->counts = true;
        slowest(job, index, &worker->clock);
    }
}

bool job_may_answer(const struct job *job, int index)
{
    int64_t clock = 0;
    int64_t bound = job->config->cluster.max_staleness;
    if (bound == 0 || job->state != JOB_TRAINING || !job->workers[index].counts || !slowest(job, index, &clock)) {
        return true;
    }
    return job->workers[index].clock - clock <= bound;
}

void job_hold(struct job *job, int index, uint64_t incarnation, int change, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation == incarnation) {
        worker->held += change;
        worker->heard_s = now_s; /* its lease begins when it is its turn again */
        assert(worker->held >= 0);
    }
}

/* What holds for every request that needs parameters. */
static bool check_training(struct job *job, int index, uint64_t incarnation, uint32_t generation, double now_s,
                           struct verdict *verdict)
{
    char sentence[256];
    if (job->workers[index].incarnation != incarnation) {
        deny(verdict, ERROR_NOT_ALLOWED, "a newer process is worker %d now", index);
        return false;
    }
    if (!job_ready(job, now_s, sentence)) {
        deny(verdict, ERROR_NOT_READY, "%s", sentence);
        return false;
    }
    if (generation != job->generation) {
        deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the present one, %u: the model was restored since",
             generation, job->generation);
        return false;
    }
    return true;
}

static bool is_power_of_two(int64_t number)
{
    return (number & (number - 1)) == 0;
}

static enum push_outcome decide_new_push(struct job *job, int index, const struct job_push *push)
{
    struct job_worker *worker = &job->workers[index];
    if (is_over(job) || (job->last_step > 0 && job->global_step >= job->last_step)) {
        return PUSH_NOT_WANTED;
    }
    worker->sequence = push->sequence;
    if (!push->finite) {
        worker->not_finite++;
        /* The first, and then ever more rarely. */
        if (is_power_of_two(worker->not_finite)) {
            say(job, LOG_WARNING,
                "worker %d (%s) sent a gradient that is not finite at global step %lld: refused (%lld "
                "so far); a lower learning_rate may help",
                index, worker->peer, (long long)job->global_step, (long long)worker->not_finite);
        }
        return PUSH_NOT_FINITE;
    }
    worker->staleness = job->global_step > push->base_step ? job->global_step - push->base_step : 0;
    worker->clock++;
    worker->applied++;
    job->global_step++;
    if (job->global_step == job->last_step) {
        say(job, LOG_INFO, "global step %lld, the last one, is applied", (long long)job->last_step);
    }
    return PUSH_APPLIED;
}

void job_push(struct job *job, int index, uint64_t incarnation, const struct job_push *push, double now_s,
              struct verdict *verdict)
{
    struct job_worker *worker = &job->workers[index];
    memset(verdict, 0, sizeof *verdict);
    job_heard(job, index, incarnation, now_s);
    if (!check_training(job, index, incarnation, push->generation, now_s, verdict)) {
        return;
    }
    if (push->sequence == 0) {
        deny(verdict, ERROR_BAD_REQUEST, "pushes are counted from 1, not 0");
        return;
    }
    take_part(job, index);
    if (push->sequence < worker->sequence) {
        verdict->outcome = PUSH_APPLIED_BEFORE;
    } else if (push->sequence == worker->sequence) {
        verdict->outcome = worker->outcome == PUSH_APPLIED ? PUSH_APPLIED_BEFORE : worker->outcome;
    } else {
        verdict->outcome = decide_new_push(job, index, push);
        worker->outcome = worker->sequence == push->sequence ? verdict->outcome : worker->outcome;
    }
}

void job_pull(struct job *job, int index, uint64_t incarnation, uint32_t generation, double now_s,
              struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (!check_training(job, index, incarnation, generation, now_s, verdict)) {
        return;
    }
    if (is_over(job)) {
        deny(verdict, ERROR_JOB_OVER, "training is over at global step %lld", (long long)job->global_step);
        return;
    }
    take_part(job, index);
}

/* --- The chief --------------------------------------------------------------------------------------------------------- */

static bool check_chief(int worker, const char *what, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (worker != 0) {
        deny(verdict, ERROR_NOT_ALLOWED, "%s is for worker 0, the chief, alone", what);
    }
    return worker == 0;
}

void job_begin_restore(struct job *job, int worker, uint32_t generation, const char *source, double now_s,
                       struct verdict *verdict)
{
    if (!check_chief(worker, "begin_restore", verdict)) {
        return;
    }
    if (generation <= job->generation) {
        deny(verdict, ERROR_OLD_GENERATION, "a new generation must be above %u, not %u", job->generation, generation);
        return;
    }
    job->state = JOB_RESTORING;
    job->generation = generation;
    job->began_s = job->told_s = now_s;
    job->test_accuracy = NAN;
    job->sentence[0] = '\0';
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].counts = false;
        job->workers[i].clock = 0;
    }
    say(job, LOG_INFO, "worker 0 (%s) writes the model of generation %u: %s", job->workers[0].peer, generation, source);
}

void job_write(struct job *job, int worker, uint32_t generation, struct verdict *verdict)
{
    if (!check_chief(worker, "writing the model", verdict)) {
        return;
    }
    if (generation != job->generation) {
        deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the one being written, %u", generation,
             job->generation);
    } else if (job->state != JOB_RESTORING) {
        deny(verdict, ERROR_BAD_REQUEST, "nothing can be written before begin_restore");
    }
}

void job_end_restore(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t last_step,
                     int64_t epoch_steps, double now_s, struct verdict *verdict)
{
    job_write(job, worker, generation, verdict);
    if (verdict->code != 0) {
        return;
    }
    if (global_step < 0 || last_step < 0 || epoch_steps < 0) {
        deny(verdict, ERROR_BAD_REQUEST, "steps of a job are not negative");
        return;
    }
    job->state = JOB_TRAINING;
    job->global_step = global_step;
    job->last_step = last_step;
    job->epoch_steps = epoch_steps;
    job->began_s = job->told_s = now_s;
    say(job, LOG_INFO, "the model of generation %u is complete, at global step %lld", generation,
        (long long)global_step);
    start_if_complete(job);
}

void job_snapshot(struct job *job, int worker, uint32_t generation, struct verdict *verdict)
{
    if (!check_chief(worker, "a snapshot", verdict)) {
        return;
    }
    if (!job_initialised(job)) {
        deny(verdict, ERROR_NOT_READY, "there is no model yet");
    } else if (generation != job->generation) {
        deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the present one, %u", generation, job->generation);
    }
}

void job_end(struct job *job, int worker, const struct message_end_job *message, double now_s, struct verdict *verdict)
{
    if (!check_chief(worker, "end_job", verdict)) {
        return;
    }
    if (message->job_state != JOB_DONE && message->job_state != JOB_FAILED) {
        deny(verdict, ERROR_BAD_REQUEST, "a job ends done (3) or failed (4), not %d", message->job_state);
        return;
    }
    if (is_over(job)) {
        return;
    }
    job->state = (enum job_state)message->job_state;
    job->ended_s = now_s;
    job->test_accuracy = message->test_accuracy;
    snprintf(job->sentence, sizeof job->sentence, "%s", message->sentence);
    bool has_text = job->sentence[0] != '\0';
    say(job, job->state == JOB_DONE ? LOG_INFO : LOG_ERROR, "worker 0 (%s): training %s at global step %lld%s%s",
        job->workers[0].peer, job->state == JOB_DONE ? "is over" : "failed", (long long)message->global_step,
        has_text ? ": " : "", job->sentence);
}

bool job_over(const struct job *job, double now_s)
{
    int connected = 0;
    for (int i = 0; i < job->worker_count; i++) {
        connected += job->workers[i].connections > 0 && !job->workers[i].left;
    }
    return is_over(job) && (connected == 0 || now_s - job->ended_s >= JOB_END_MS / 1000.0);
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
