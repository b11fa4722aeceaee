/* Asynchronous pushes, and what all requests for parameters have in common: the order of the checks is the protocol. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/simulation.h"
#include "ps/job/internal.h"

/* The slowest clock among active workers other than `identity`; false if there is none. */
static bool slowest(const struct job *job, int identity, int64_t *clock)
{
    bool found = false;
    for (int i = 0; i < job->worker_count; i++) {
        const struct job_worker *worker = &job->workers[i];
        if (i != identity && worker->counts && (!found || worker->clock < *clock)) {
            *clock = worker->clock;
            found = true;
        }
    }
    return found;
}

/*
 * A worker that starts, or returns, is neither behind nor ahead of the slowest one. One that has left is not active,
 * though a push of it may still arrive, on another connection than its leave: nobody can wait for it.
 */
static void take_part(struct job *job, int index)
{
    struct job_worker *worker = &job->workers[index];
    if (!worker->counts && !worker->cut_off && !worker->left) {
        worker->counts = true;
        slowest(job, index, &worker->clock);
    }
}

/*
 * Only the coordinator keeps workers waiting. Each ps counts from when a worker came to it, so their clocks differ: if
 * each of them kept workers waiting, one could stop a worker and another the worker that this one waits for.
 */
bool job_may_answer(const struct job *job, int index)
{
    int64_t clock = 0;
    int64_t bound = job->config.cluster.max_staleness;
    /* After the last step nobody catches up. */
    if (bound == 0 || job->coordinator != job->identity.index || job_is_past_end(job) || job->state != JOB_TRAINING ||
        !job->workers[index].counts || !slowest(job, index, &clock)) {
        return true;
    }
    return job->workers[index].clock - clock <= bound;
}

void job_hold(struct job *job, int index, uint64_t incarnation, int change, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation == incarnation) {
        worker->held = worker->held + change > 0 ? worker->held + change : 0; /* as in job_disconnected */
        worker->heard_s = now_s; /* its lease starts when its turn comes again */
    }
}

bool job_check_training(struct job *job, int index, uint64_t incarnation, uint32_t generation, double now_s,
                        struct verdict *verdict)
{
    char message[256];
    if (job->workers[index].incarnation != incarnation) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "a newer process is worker %d now", index);
        return false;
    }
    if (!job_ready(job, now_s, message)) {
        job_deny(verdict, ERROR_NOT_READY, "%s", message);
        return false;
    }
    if (generation != job->generation) {
        MARK("a push of an old generation");
        job_deny(verdict, ERROR_OLD_GENERATION,
                 "generation %u is not the current one, %u: the model was restored since", generation, job->generation);
        return false;
    }
    return true;
}

static bool is_power_of_two(int64_t number)
{
    return (number & (number - 1)) == 0;
}

/* Logs the first, and then ever more rarely. */
void job_note_not_finite(struct job *job, int index)
{
    struct job_worker *worker = &job->workers[index];
    worker->not_finite++;
    if (is_power_of_two(worker->not_finite)) {
        job_say(job, LOG_WARNING,
                "worker %d (%s) sent a gradient that is not finite at global step %lld: refused (%lld "
                "so far); a lower learning_rate may help",
                index, worker->peer, (long long)job->global_step, (long long)worker->not_finite);
    }
}

void job_forget_buffer(struct job *job)
{
    job->buffered = 0;
    job->buffered_staleness = 0;
    job->mean_staleness = NAN;
}

bool job_is_about_to_step(const struct job *job)
{
    return job->buffered + 1 >= job->config.train.buffer_size;
}

/* A push counts; true: it makes a step. */
static bool fill_buffer(struct job *job, int64_t staleness)
{
    const bool makes_step = job_is_about_to_step(job);
    job->buffered++;
    job->buffered_staleness += (double)staleness;
    if (makes_step) {
        const double mean = job->buffered_staleness / job->buffered;
        job_forget_buffer(job);
        job->mean_staleness = mean;
    }
    return makes_step;
}

static enum push_outcome decide_new_push(struct job *job, int index, const struct job_push *push)
{
    struct job_worker *worker = &job->workers[index];
    if (job_is_past_end(job)) {
        return PUSH_NOT_WANTED;
    }
    worker->sequence = push->sequence;
    if (!push->finite) {
        job_note_not_finite(job, index);
        return PUSH_NOT_FINITE;
    }
    worker->staleness = job->global_step > push->base_step ? job->global_step - push->base_step : 0;
    worker->clock++;
    worker->applied++;
    if (!fill_buffer(job, worker->staleness)) {
        return PUSH_APPLIED;
    }
    job->global_step++;
    job_take_due(job);
    if (job->global_step == job->last_step) {
        job_say(job, LOG_INFO, "global step %lld, the last one, is applied", (long long)job->last_step);
    }
    return PUSH_APPLIED;
}

void job_push(struct job *job, int index, uint64_t incarnation, const struct job_push *push, double now_s,
              struct verdict *verdict)
{
    struct job_worker *worker = &job->workers[index];
    memset(verdict, 0, sizeof *verdict);
    job_heard(job, index, incarnation, now_s);
    if (!job_check_training(job, index, incarnation, push->generation, now_s, verdict)) {
        return;
    }
    if (push->sequence == 0) {
        job_deny(verdict, ERROR_BAD_REQUEST, "pushes are counted from 1, not 0");
        return;
    }
    take_part(job, index);
    if (push->sequence < worker->sequence) {
        MARK("a push comes after the next one");
        verdict->outcome = PUSH_APPLIED_BEFORE;
    } else if (push->sequence == worker->sequence) {
        MARK("a push is sent again");
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
    if (!job_check_training(job, index, incarnation, generation, now_s, verdict)) {
        return;
    }
    if (job_is_over(job)) {
        job_deny(verdict, ERROR_JOB_OVER, "training is over at global step %lld", (long long)job->global_step);
        return;
    }
    job_ask(job, now_s);
    take_part(job, index);
}
