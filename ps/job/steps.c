/*
 * Steps: which of two configs is in force, which pushes count, and when a step is made of them. The order of the checks
 * is the protocol.
 *
 * An asynchronous push is decided on at once. A synchronous one is staged, its step is decided, applied, and then
 * answered. Its gradient is identified by (generation, step, worker), not by process or connection: a worker that
 * restarts, or retries, finds its gradient staged, and a repeated push is dropped.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "base/simulation.h"
#include "ps/job/internal.h"
#include "ps/store/model.h"

static const double NAMED_AFTER_S = 1.0; /* shorter waits are not worth a message */

/* --- Replicas --- */

/* Numbers the ps with parameters; returns how many. */
static int number_shards(struct job *job)
{
    const struct config *config = &job->config;
    struct span spans[PLACEMENT_MAX_SPANS];
    struct model model;
    int ps_count = config->cluster.ps_hosts.count, count = 0;
    model_layout(&model, &config->model);
    for (int ps = 0; ps < ps_count; ps++) {
        bool holds = placement_spans(&model, config->cluster.placement, ps_count, ps, spans) > 0;
        job->shards[ps] = holds ? count++ : -1;
    }
    return count;
}

static int replicas(const struct job *job)
{
    int wanted = job->config.cluster.replicas_to_aggregate;
    return wanted > 0 ? wanted : job->worker_count;
}

static int least_replicas(const struct job *job)
{
    int least = job->config.cluster.min_replicas, wanted = replicas(job);
    return least < wanted ? least : wanted;
}

static void set_replicas(struct job *job)
{
    if (job_selects_workers(job)) {
        return; /* each round has its own token */
    }
    job->gathered.wanted = replicas(job);
    job->gathered.least = least_replicas(job);
}

bool job_create_gathering(struct job *job, int ps, struct error *error)
{
    const struct config_cluster *cluster = &job->config.cluster;
    job->synchronous = true;
    job->shards = calloc((size_t)cluster->ps_hosts.count, sizeof *job->shards);
    job->awaited = calloc((size_t)job->worker_count, sizeof *job->awaited);
    job->asked = calloc((size_t)job->worker_count, 1);
    job->last_set = calloc((size_t)job->worker_count, 1);
    job->last_set_step = -1;
    job->step_workers = calloc((size_t)job->worker_count, sizeof *job->step_workers);
    if (!job->shards || !job->awaited || !job->asked || !job->last_set || !job->step_workers) {
        return error_set(error, "out of memory");
    }
    int shards = number_shards(job);
    return aggregation_create(&job->gathered, job->worker_count, job->coordinator == ps ? shards : 1, replicas(job),
                              least_replicas(job), error);
}

void job_gather(struct job *job, double now_s)
{
    if (job->synchronous) {
        aggregation_begin(&job->gathered, job->global_step);
        job->stepping = false;
        job->gathering_s = now_s;
        job->changes++;
        job->has_selected = false;
        memset(job->asked, 0, (size_t)job->worker_count);
    }
}

bool job_is_follower(const struct job *job)
{
    return job->synchronous && job->coordinator != job->identity.index && job->shards[job->identity.index] >= 0;
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
    /* A batch size that workers choose by their rows is known to them alone. */
    const bool was_chosen = config_was_chosen(&job->config, "train", "batch_size");
    const bool is_chosen = config_was_chosen(config, "train", "batch_size");
    const int64_t images = job->epoch_batches * job->config.train.batch_size;
    const int64_t batches = images / config->train.batch_size;
    if (job->epoch_batches <= 0) {
        return config->train.train_steps;
    }
    if (was_chosen != is_chosen) {
        return config->train.epochs > 0 ? 0 : config->train.train_steps;
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
        job_log(job, LOG_INFO, "from global step %lld on there is no last step", (long long)step);
    } else if (moved) {
        job_log(job, LOG_INFO, "from global step %lld on the last step is %lld", (long long)step,
                (long long)job->last_step);
    }
    if (!job->synchronous) {
        return;
    }
    set_replicas(job);
    if (job->gathered.wanted != wanted || job->gathered.least != least) {
        job_log(job, LOG_INFO, "from global step %lld on a step takes %d gradients (before: %d), at least %d",
                (long long)step, job->gathered.wanted, wanted, job->gathered.least);
    }
}

/* --- Checks of all requests for parameters --- */

/* False: denied. */
static bool check_training(struct job *job, int index, uint64_t incarnation, uint32_t generation, double now_s,
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
static void count_not_finite(struct job *job, int index)
{
    struct job_worker *worker = &job->workers[index];
    worker->not_finite++;
    if (is_power_of_two(worker->not_finite)) {
        job_log(job, LOG_WARNING,
                "worker %d (%s) sent a gradient that is not finite at global step %lld: refused (%lld "
                "so far); a lower learning_rate may help",
                index, worker->peer, (long long)job->global_step, (long long)worker->not_finite);
    }
}

/* --- Asynchronous pushes --- */

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
    if (!worker->counts && !worker->cut_off && !worker->left && !worker->idle) {
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
        count_not_finite(job, index);
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
        job_log(job, LOG_INFO, "global step %lld, the last one, is applied", (long long)job->last_step);
    }
    return PUSH_APPLIED;
}

void job_push(struct job *job, int index, uint64_t incarnation, const struct job_push *push, double now_s,
              struct verdict *verdict)
{
    struct job_worker *worker = &job->workers[index];
    memset(verdict, 0, sizeof *verdict);
    job_touch(job, index, incarnation, now_s);
    job_note_ready(job, index, incarnation, now_s);
    if (!check_training(job, index, incarnation, push->generation, now_s, verdict)) {
        return;
    }
    if (push->sequence == 0) {
        job_deny(verdict, ERROR_BAD_REQUEST, "pushes are counted from 1, not 0");
        return;
    }
    job_note_work(job, index, true, now_s);
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
    if (!check_training(job, index, incarnation, generation, now_s, verdict)) {
        return;
    }
    if (job_is_over(job)) {
        job_deny(verdict, ERROR_JOB_OVER, "training is over at global step %lld", (long long)job->global_step);
        return;
    }
    job->workers[index].pushed_last = false;
    job->workers[index].turn_s = now_s;
    job_select_workers(job, now_s);
    take_part(job, index);
}

/* --- Synchronous steps: deciding --- */

/* Whom to wait for: workers that take part, and those not ready yet that still have time to come. */
static bool is_awaited(const struct job *job, int index, double now_s)
{
    const struct job_worker *worker = &job->workers[index];
    if (job_selects_workers(job)) { /* it may be one of very many: most are not even looked at */
        return job_is_selected(job, index) && job_takes_part(worker);
    }
    bool may_come = (worker->incarnation == 0 || (worker->present && !worker->ready && worker->failures == 0)) &&
                    index < job->config.cluster.worker_hosts.count &&
                    now_s - job->began_s < job->config.cluster.lease_secs;
    return job_takes_part(worker) || may_come;
}

/* Does anyone wait for a gradient of it? The chief is exempt. */
static bool owes(const struct job *job, int index)
{
    const struct job_worker *worker = &job->workers[index];
    if (index == 0 || !job_takes_part(worker) || !job->started || job->state != JOB_TRAINING || job_is_past_end(job) ||
        job->coordinator != job->identity.index) {
        return false;
    }
    return job->synchronous ? !job->gathered.decided && job_is_selected(job, index) &&
                                  aggregation_get(&job->gathered, job->shards[job->identity.index], index) != PART_HERE
                            : job->config.cluster.max_staleness > 0 && worker->counts && worker->held == 0;
}

double job_idle_at_s(const struct job *job, int index, double others_s)
{
    const struct job_worker *worker = &job->workers[index];
    const double took_s = worker->took_s > 0 ? worker->took_s : others_s;
    if (took_s <= 0 || !owes(job, index)) {
        return INFINITY;
    }
    const double since_s =
        job->synchronous ? fmax(worker->worked_s, fmax(job->gathering_s, job->asked_s)) : worker->worked_s;
    return since_s + job->config.cluster.lease_secs + JOB_USUAL_TIMES * took_s;
}

/* Once a round has lasted long enough, nobody is waited for. */
static void mark_awaited(struct job *job, double now_s)
{
    const bool late = job_is_late(job, now_s);
    for (int i = 0; i < job->worker_count; i++) {
        job->awaited[i] = !late && is_awaited(job, i, now_s);
    }
}

static void log_absent(struct job *job, double now_s)
{
    int absent = 0, first = -1;
    if (job->logged_absent || now_s - job->began_s < job->config.cluster.lease_secs) {
        return;
    }
    job->logged_absent = true;
    for (int i = 0; i < job->config.cluster.worker_hosts.count; i++) {
        if (!job->workers[i].ready) {
            first = first < 0 ? i : first;
            absent++;
        }
    }
    if (absent > 0) {
        job_log(job, LOG_WARNING, "worker %d (%s)%s absent; steps are made without them until they join", first,
                job->config.cluster.worker_hosts.items[first], absent > 1 ? " and others are" : " is");
    }
}

void job_try_decide(struct job *job, double now_s)
{
    if (!job_is_coordinator(job) || job->state != JOB_TRAINING || !job->started || job->gathered.decided) {
        return;
    }
    int possible, whole;
    job_select_workers(job, now_s);
    mark_awaited(job, now_s);
    aggregation_count(&job->gathered, job->awaited, &possible, &whole);
    if (possible < job->gathered.least && job_select_more(job, now_s)) {
        MARK("others are selected, since too few of those selected can answer");
    }
    log_absent(job, now_s);
    aggregation_decide(&job->gathered, job->awaited);
}

bool job_has_step(const struct job *job)
{
    return job->state == JOB_TRAINING && job->gathered.decided && !job->stepping;
}

bool job_take_step(struct job *job, struct job_step *step)
{
    if (!job_has_step(job)) {
        return false;
    }
    job->stepping = true;
    step->generation = job->generation;
    step->step = job->gathered.step;
    step->workers = job->step_workers;
    step->count = 0;
    for (int i = 0; i < job->worker_count; i++) {
        if (job->gathered.taken[i]) {
            job->step_workers[step->count++] = i;
        }
    }
    return true;
}

/* A restore may have begun while the host applied the step, without the lock: then the step does not count. */
void job_step_applied(struct job *job, const struct job_step *step, bool applied, double now_s)
{
    if (step->generation != job->generation || !applied) {
        return;
    }
    assert(job->stepping && step->step == job->global_step);
    for (int i = 0; i < step->count; i++) {
        struct job_worker *worker = &job->workers[step->workers[i]];
        worker->taken_step = step->step;
        worker->applied++;
    }
    job_count_round(job);
    memcpy(job->last_set, job->gathered.taken, (size_t)job->worker_count);
    job->last_set_step = step->step;
    job->global_step++;
    job_take_due(job);
    job_gather(job, now_s);
    job_select_workers(job, now_s); /* the answers sent now say who is selected */
    if (job->global_step == job->last_step) {
        job_log(job, LOG_INFO, "global step %lld, the last one, is applied", (long long)job->last_step);
    }
}

/* --- Synchronous steps: pushes --- */

static int own_shard(const struct job *job)
{
    return job_is_coordinator(job) ? job->shards[job->identity.index] : 0;
}

static bool check_push(struct job *job, int index, uint64_t incarnation, const struct job_push *push, double now_s,
                       struct verdict *verdict)
{
    if (!check_training(job, index, incarnation, push->generation, now_s, verdict)) {
        return false;
    }
    if (push->sequence == 0) {
        job_deny(verdict, ERROR_BAD_REQUEST, "pushes are counted from 1, not 0");
        return false;
    }
    if (push->token < 0 || (push->token > job->global_step && !job_is_past_end(job))) {
        job_deny(verdict, ERROR_BAD_REQUEST, "a gradient of step %lld is impossible: training is at step %lld",
                 (long long)push->token, (long long)job->global_step);
        return false;
    }
    if (push->token == job->global_step && !job_is_past_end(job) && !job_is_selected(job, index)) {
        job_deny(verdict, ERROR_BAD_REQUEST, "worker %d is not selected for step %lld", index, (long long)push->token);
        return false;
    }
    return true;
}

void job_stage(struct job *job, int index, uint64_t incarnation, const struct job_push *push, double now_s,
               struct verdict *verdict, bool *receive)
{
    memset(verdict, 0, sizeof *verdict);
    *receive = false;
    job_touch(job, index, incarnation, now_s);
    job_note_ready(job, index, incarnation, now_s);
    /* Nothing is received after the step is decided: the shard may be adding that very stage. */
    if (check_push(job, index, incarnation, push, now_s, verdict) && !job_is_past_end(job)) {
        job_note_work(job, index, false, now_s);
        *receive = push->token == job->global_step && !job->gathered.decided &&
                   aggregation_get(&job->gathered, own_shard(job), index) != PART_HERE;
    }
}

static void record_new_push(struct job *job, int index, const struct job_push *push)
{
    struct job_worker *worker = &job->workers[index];
    if (push->sequence > worker->sequence) {
        worker->sequence = push->sequence;
        worker->staleness = job->global_step > push->token ? job->global_step - push->token : 0;
        worker->outcome = PUSH_STAGED;
    }
}

void job_staged(struct job *job, int index, uint64_t incarnation, const struct job_push *push, bool received,
                double now_s, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    job_touch(job, index, incarnation, now_s);
    if (!check_push(job, index, incarnation, push, now_s, verdict) || job_is_past_end(job)) {
        return;
    }
    job_note_work(job, index, true, now_s);
    record_new_push(job, index, push);
    if (!received || push->token != job->global_step || job->gathered.decided) {
        return;
    }
    if (!push->finite) {
        count_not_finite(job, index);
        job->workers[index].outcome = PUSH_NOT_FINITE;
    }
    aggregation_add(&job->gathered, own_shard(job), index, push->finite);
    job->changes++;
    job_try_decide(job, now_s);
}

/*
 * A refused gradient is answered together with its step, unless the step needs another one from this worker. Only the
 * coordinator knows whether it does, and the worker waits for the coordinator's answer in any case: before the step is
 * decided, followers answer at once.
 */
static bool refusal_is_settled(const struct job *job, int index)
{
    int possible, whole;
    if (aggregation_get(&job->gathered, own_shard(job), index) != PART_NOT_FINITE) {
        return false;
    }
    if (job_is_follower(job)) {
        return !job->gathered.decided;
    }
    for (int i = 0; i < job->worker_count; i++) {
        job->awaited[i] = job_takes_part(&job->workers[i]) && job_is_selected(job, i);
    }
    aggregation_count(&job->gathered, job->awaited, &possible, &whole);
    return possible < job->gathered.least;
}

/* Its step is over: was the gradient part of it? If not, it counts as dropped, once. */
static enum push_outcome outcome_of_past(struct job *job, int index, const struct job_push *push)
{
    struct job_worker *worker = &job->workers[index];
    if (worker->taken_step == push->token) {
        return PUSH_APPLIED;
    }
    if (worker->sequence != push->sequence) {
        return PUSH_STALE; /* of an earlier push, which counted then */
    }
    if (worker->outcome == PUSH_STAGED) {
        worker->outcome = PUSH_STALE;
        worker->stale++;
    }
    return worker->outcome;
}

/*
 * The order of these checks matters: a newer process now owns the sequence numbers; in a restored model the step's
 * number means another step; only then does a past step show what happened to its gradient, and only in a step that is
 * still open can the gradient be refused for its contents.
 */
bool job_settled(struct job *job, int index, uint64_t incarnation, const struct job_push *push, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (job->workers[index].incarnation != incarnation) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "a newer process is worker %d now", index);
    } else if (push->generation != job->generation || job->state == JOB_RESTORING) {
        job_deny(verdict, ERROR_OLD_GENERATION, "the model was restored since");
    } else if (push->token < job->global_step) {
        verdict->outcome = outcome_of_past(job, index, push);
    } else if (job_is_past_end(job)) {
        verdict->outcome = PUSH_NOT_WANTED;
    } else if (refusal_is_settled(job, index)) {
        verdict->outcome = PUSH_NOT_FINITE;
    } else {
        return false;
    }
    return true;
}

/* --- Synchronous steps: between ps --- */

void job_report(struct job *job, int ps, uint32_t generation, int64_t step, const bool *finite, const bool *not_finite,
                double now_s, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (!job_is_coordinator(job) || ps < 0 || ps >= job->config.cluster.ps_hosts.count || ps == job->identity.index ||
        job->shards[ps] < 0) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "ps %d has nothing to report to ps %d", ps, job->identity.index);
        return;
    }
    if (generation != job->generation || job->state != JOB_TRAINING || step != job->global_step) {
        return; /* of a generation that is being written here, or of a step being applied */
    }
    for (int i = 0; i < job->worker_count; i++) {
        if ((finite[i] || not_finite[i]) && job_is_selected(job, i)) {
            aggregation_add(&job->gathered, job->shards[ps], i, finite[i]);
        }
    }
    job_try_decide(job, now_s);
}

bool job_apply_decision(struct job *job, uint32_t generation, int64_t step, const bool *taken)
{
    int count = 0;
    if (!job_is_follower(job) || generation != job->generation || job->state != JOB_TRAINING ||
        step != job->global_step) {
        return true; /* of a finished step */
    }
    for (int i = 0; i < job->worker_count; i++) {
        if (taken[i] && aggregation_get(&job->gathered, own_shard(job), i) != PART_HERE) {
            return false;
        }
        count += taken[i];
    }
    if (count > 0) {
        aggregation_apply_decision(&job->gathered, taken);
    }
    return count > 0;
}

/* --- What a synchronous step waits for --- */

static const char *worker_host(const struct job *job, int index)
{
    const struct job_worker *worker = &job->workers[index];
    bool listed = index < job->config.cluster.worker_hosts.count;
    return listed ? config_worker_host(&job->config.cluster, index) : worker->peer;
}

/* The first worker whose gradient is needed and missing on any shard; false if there is none. */
static bool find_awaited(const struct job *job, double now_s, int *worker, int *shard)
{
    for (int i = 0; i < job->worker_count; i++) {
        for (int k = 0; k < job->gathered.shards && is_awaited(job, i, now_s); k++) {
            if (aggregation_get(&job->gathered, k, i) != PART_HERE) {
                *worker = i;
                *shard = k;
                return true;
            }
        }
    }
    return false;
}

/* The first worker that can't reach every ps; -1: there is none. */
static int find_cut_off(const struct job *job)
{
    for (int i = 0; i < job->worker_count; i++) {
        if (job->workers[i].cut_off) {
            return i;
        }
    }
    return -1;
}

static int ps_of_shard(const struct job *job, int shard)
{
    int ps = 0;
    while (job->shards[ps] != shard) {
        ps++;
    }
    return ps;
}

bool job_describe_wait(struct job *job, double now_s, char message[JOB_MESSAGE])
{
    int worker, shard, possible, whole;
    double seconds = now_s - job->gathering_s;
    message[0] = '\0';
    if (!job->synchronous || job->state != JOB_TRAINING || !job->started || job->gathered.decided ||
        seconds < NAMED_AFTER_S || job_is_past_end(job) || job->shards[job->identity.index] < 0) {
        return false;
    }
    long long step = job->global_step;
    if (!find_awaited(job, now_s, &worker, &shard)) {
        mark_awaited(job, now_s);
        aggregation_count(&job->gathered, job->awaited, &possible, &whole);
        if (job_is_coordinator(job) && (worker = find_cut_off(job)) >= 0) {
            snprintf(message, JOB_MESSAGE, "waiting for worker %d (%.80s) to push step %lld: it %.100s", worker,
                     worker_host(job, worker), step, job->workers[worker].message);
        } else if (job_is_coordinator(job)) {
            snprintf(message, JOB_MESSAGE,
                     "waiting for %d more worker%s to push step %lld (min_replicas is %d), %.0f s",
                     job->gathered.least - possible, job->gathered.least - possible == 1 ? "" : "s", step,
                     job->gathered.least, seconds);
        } else {
            snprintf(message, JOB_MESSAGE, "waiting for ps %d (%s) to decide on step %lld, %.0f s", job->coordinator,
                     job->config.cluster.ps_hosts.items[job->coordinator], step, seconds);
        }
    } else if (aggregation_get(&job->gathered, own_shard(job), worker) == PART_HERE) {
        int ps = ps_of_shard(job, shard);
        snprintf(message, JOB_MESSAGE, "waiting for worker %d (%.80s) to push step %lld to ps %d (%.80s), %.0f s",
                 worker, worker_host(job, worker), step, ps, job->config.cluster.ps_hosts.items[ps], seconds);
    } else {
        bool refused = aggregation_get(&job->gathered, shard, worker) == PART_NOT_FINITE;
        snprintf(message, JOB_MESSAGE, "waiting for worker %d (%.80s) to push step %lld%s, %.0f s", worker,
                 worker_host(job, worker), step, refused ? " again, since its gradient was not finite" : "", seconds);
    }
    return true;
}

void job_schedule(struct job *job, const struct config *config, int64_t step, double now_s)
{
    job->next = *config; /* only its plain values are read */
    job->has_next = true;
    job->next_step = step;
    job_take_due(job);
    job_try_decide(job, now_s);
    job_start_if_complete(job);
}
