/* The job as a whole: its life cycle, the actions that it leaves to the host, what it waits for, and time. */
#include "ps/job/job.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/diff.h"
#include "base/text/printable.h"
#include "ps/job/internal.h"
#include "ps/store/placement.h"

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

/* --- Live keys --- */

/* false: the amount of data is not known yet. */
static bool make_plan(struct plan *plan, const struct job *job, const struct config *config, int64_t epoch_batches)
{
    struct config then = job->config;
    if (epoch_batches <= 0) {
        return false;
    }
    config_take_live(&then, config);
    plan_begin_job(plan, &then, epoch_batches);
    return true;
}

int64_t job_epoch_steps(const struct job *job, const struct config *config, int64_t epoch_batches)
{
    struct plan plan;
    return make_plan(&plan, job, config, epoch_batches) ? plan_epoch_end(&plan, 1) : 0;
}

int64_t job_last_step_under(const struct job *job, const struct config *config)
{
    struct plan plan;
    const int64_t images = job->epoch_batches * job->config.train.batch_size;
    const int64_t batches = images / config->train.batch_size;
    if (job->epoch_batches <= 0) {
        return config->train.train_steps;
    }
    plan_begin_job(&plan, config, batches > 0 ? batches : 1);
    return plan.last_step == INT64_MAX ? 0 : plan.last_step;
}

void job_set_end(struct job *job)
{
    struct plan plan;
    bool planned = make_plan(&plan, job, &job->config, job->epoch_batches);
    job->last_step = !planned ? job->config.train.train_steps : plan.last_step == INT64_MAX ? 0 : plan.last_step;
}

void job_take_due(struct job *job)
{
    const int wanted = job->gathered.wanted, least = job->gathered.least;
    const int64_t last_step = job->last_step, step = job->global_step;
    if (!job->has_next || step < job->next_step) {
        return;
    }
    job->has_next = false;
    config_take_live(&job->config, &job->next);
    job_set_end(job);
    const bool moved = job->state == JOB_TRAINING && job->last_step != last_step;
    if (moved && job->last_step == 0) {
        job_say(job, LOG_INFO, "from global step %lld on there is no last step", (long long)step);
    } else if (moved) {
        job_say(job, LOG_INFO, "from global step %lld on the last step is %lld", (long long)step,
                (long long)job->last_step);
    }
    if (!job->synchronous) {
        return;
    }
    job_set_replicas(job);
    if (job->gathered.wanted != wanted || job->gathered.least != least) {
        job_say(job, LOG_INFO, "from global step %lld on a step takes %d gradients (before: %d), at least %d",
                (long long)step, job->gathered.wanted, wanted, job->gathered.least);
    }
}

void job_schedule(struct job *job, const struct config *config, int64_t step, double now_s)
{
    job->next = *config; /* only its plain values are read */
    job->has_next = true;
    job->next_step = step;
    job_take_due(job);
    job_consider(job, now_s);
    job_start_if_complete(job);
}

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
    if (job->line_next == job->line_count && job->unsaid == 0) {
        job->line_next = job->line_count = 0;
        return false;
    }
    *action = (struct job_action){.kind = JOB_LOG, .worker = -1, .level = LOG_WARNING};
    if (job->line_next < job->line_count) {
        const struct job_line *line = &job->lines[job->line_next++];
        action->level = line->level;
        memcpy(action->text, line->text, sizeof action->text);
    } else {
        const bool is_one = job->unsaid == 1;
        snprintf(action->text, sizeof action->text, "%d more line%s about workers and steps %s left out", job->unsaid,
                 is_one ? "" : "s", is_one ? "is" : "are");
        job->unsaid = 0;
    }
    return true;
}

bool job_has_actions(const struct job *job)
{
    return job->workers_to_act_on > 0 || job->line_next < job->line_count || job->unsaid > 0;
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

void job_say(struct job *job, enum log_level level, const char *format, ...)
{
    if (job->line_count == JOB_MAX_LINES) {
        job->unsaid++;
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
        present += job->workers[i].present;
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
    job_say(job, LOG_INFO, "training begins at global step %lld, with %d of %d workers present",
            (long long)job->global_step, present, job->config.cluster.worker_hosts.count);
}

void job_keep_waiting(struct job *job, bool keep)
{
    job->kept = keep;
    job_start_if_complete(job);
}

/* --- Time --- */

bool job_tick(struct job *job, double now_s)
{
    char message[256];
    double missed_s = now_s - job->ticked_s - JOB_TICK_MS / 1000.0;
    if (job->ticked_s > 0 && missed_s > 0) {
        job_extend_leases(job, missed_s);
    }
    job->ticked_s = now_s;
    if (job_tick_leases(job, now_s)) {
        return true;
    }
    job_consider(job, now_s);
    if (now_s - job->logged_s >= JOB_WAITED_FOR_MS / 1000.0) {
        job->logged_s = now_s;
        if (!job_ready(job, now_s, message) ||
            (job_describe_wait(job, now_s, message) && now_s - job->gathering_s >= JOB_WAITED_FOR_MS / 1000.0)) {
            job_say(job, LOG_INFO, "%s", message);
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
