/*
 * What all of the job's decisions rest on: who is present and heard from, whether training may run, and the actions and
 * log lines that are left to the host. job/rounds.c, job/steps.c and job/job.c stand on it, in this order.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/text/text.h"
#include "ps/job/internal.h"

/* --- Actions --- */

/* A probe takes priority: a worker being probed keeps its place, and one that is cut has lost it. */
static void take_worker_action(struct job *job, struct job_action *action)
{
    int i = job->first_to_act_on;
    while (!job->workers[i].to_probe && !job->workers[i].to_cut) {
        i++;
    }
    struct job_worker *worker = &job->workers[i];
    *action = (struct job_action){
        .kind = worker->to_probe ? JOB_PROBE : JOB_CUT, .worker = i, .incarnation = worker->incarnation};
    *(worker->to_probe ? &worker->to_probe : &worker->to_cut) = false;
    job->workers_to_act_on--;
    job->first_to_act_on = i;
}

bool job_next_action(struct job *job, struct job_action *action)
{
    if (job->workers_to_act_on > 0) {
        take_worker_action(job, action);
        return true;
    }
    if (job->line_next == job->line_count && job->dropped_lines == 0) {
        job->line_next = job->line_count = 0;
        return false;
    }
    *action = (struct job_action){.kind = JOB_LOG, .worker = -1, .level = LOG_WARNING};
    if (job->line_next < job->line_count) {
        const struct job_line *line = &job->lines[job->line_next++];
        action->level = line->level;
        memcpy(action->text, line->text, sizeof action->text);
    } else {
        const bool is_one = job->dropped_lines == 1;
        snprintf(action->text, sizeof action->text, "%d more line%s about workers and steps %s left out",
                 job->dropped_lines, is_one ? "" : "s", is_one ? "is" : "are");
        job->dropped_lines = 0;
    }
    return true;
}

bool job_has_actions(const struct job *job)
{
    return job->workers_to_act_on > 0 || job->line_next < job->line_count || job->dropped_lines > 0;
}

void job_act(struct job *job, enum job_action_kind kind, int worker)
{
    bool *to_act = kind == JOB_PROBE ? &job->workers[worker].to_probe : &job->workers[worker].to_cut;
    if (job->workers_to_act_on == 0 || worker < job->first_to_act_on) {
        job->first_to_act_on = worker;
    }
    job->workers_to_act_on += !*to_act;
    *to_act = true;
}

void job_log(struct job *job, enum log_level level, const char *format, ...)
{
    if (job->line_count == JOB_MAX_LINES) {
        job->dropped_lines++;
        return;
    }
    struct job_line *line = &job->lines[job->line_count++];
    char text[sizeof line->text];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printable(line->text, sizeof line->text, text); /* it may contain text from peers */
    line->level = level;
}

void job_deny(struct verdict *verdict, enum error_code code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(verdict->message, sizeof verdict->message, format, arguments);
    va_end(arguments);
    verdict->code = (uint16_t)code;
}

/* --- What the job waits for --- */

int job_present(const struct job *job)
{
    int present = 0;
    for (int i = 0; i < job->worker_count; i++) {
        present += job_takes_part(&job->workers[i]);
    }
    return present;
}

bool job_initialised(const struct job *job)
{
    return job->state == JOB_TRAINING || (job_is_over(job) && job->generation > 0);
}

bool job_ready(struct job *job, double now_s, char message[JOB_MESSAGE])
{
    const char *chief = job->config.cluster.worker_hosts.items[0];
    int seconds = (int)(now_s - job->began_s);
    message[0] = '\0';
    switch (job->state) {
    case JOB_WAITING:
        snprintf(message, JOB_MESSAGE, "waiting for worker 0 (%s) to initialise the model, %d s", chief, seconds);
        return false;
    case JOB_RESTORING:
        snprintf(message, JOB_MESSAGE, "waiting for worker 0 (%s) to finish writing the model, %d s", chief, seconds);
        return false;
    case JOB_DONE:
    case JOB_FAILED:
        snprintf(message, JOB_MESSAGE, "training %s at global step %lld", job->state == JOB_DONE ? "is over" : "failed",
                 (long long)job->global_step);
        return true;
    case JOB_TRAINING:
        break;
    }
    if (!job->started) {
        int missing = job->config.cluster.min_workers - job_present(job);
        if (missing <= 0) {
            snprintf(message, JOB_MESSAGE, "waiting for all members to have the config that is being rolled out, %d s",
                     seconds);
            return false;
        }
        snprintf(message, JOB_MESSAGE, "waiting for %d more worker%s (min_workers is %d), %d s", missing,
                 missing == 1 ? "" : "s", job->config.cluster.min_workers, seconds);
        return false;
    }
    return true;
}

void job_start_if_complete(struct job *job)
{
    if (job->state != JOB_TRAINING || job->started || job->kept) {
        return;
    }
    const int present = job_present(job);
    if (present < job->config.cluster.min_workers) {
        return;
    }
    job->started = true;
    job_log(job, LOG_INFO, "training begins at global step %lld, with %d of %d workers present",
            (long long)job->global_step, present, job->worker_count);
}

/* --- Signs of life --- */

bool job_is_current(const struct job *job, int worker, uint64_t incarnation)
{
    return job->workers[worker].incarnation == incarnation;
}

void job_touch(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation) {
        return;
    }
    if (worker->lost && !worker->cut_off) {
        job_log(job, LOG_INFO, "worker %d (%s) responds again after %.0f s", index, worker->peer,
                now_s - worker->heard_s);
        worker->lost = false;
        worker->present = true;
        job_start_if_complete(job);
    }
    worker->heard_s = now_s;
}

void job_hold(struct job *job, int index, uint64_t incarnation, int change, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation == incarnation) {
        worker->held = worker->held + change > 0 ? worker->held + change : 0; /* as in job_disconnected */
        worker->heard_s = now_s; /* its lease starts when its turn comes again */
        if (change < 0 && worker->pushed_last) {
            worker->worked_s = worker->turn_s = now_s;
        }
    }
}

void job_note_work(struct job *job, int index, bool is_whole, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->idle) {
        job_log(job, LOG_INFO, "worker %d (%s) sends gradients again", index, worker->peer);
    }
    if (is_whole && worker->ready) {
        worker->took_s = fmax(now_s - worker->turn_s, worker->took_s / 2);
    }
    worker->ready = worker->pushed = worker->pushed_last = true;
    worker->idle = false;
    worker->barren = 0;
    worker->worked_s = now_s;
}

void job_note_ready(struct job *job, int index, uint64_t incarnation, double now_s)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->incarnation != incarnation || worker->ready) {
        return;
    }
    worker->ready = true;
    worker->worked_s = worker->turn_s = now_s;
    worker->failures = 0;
    worker->failure[0] = '\0';
    worker->idle = index > 0 && worker->barren >= JOB_BARREN_STARTS;
    if (worker->idle) {
        job_log(job, LOG_WARNING,
                "worker %d (%s) started %d times without sending a gradient: not waited for until it does", index,
                worker->peer, worker->barren);
    }
    job_start_if_complete(job);
}
