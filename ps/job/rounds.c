/*
 * Rounds with participation below 1: which workers the coordinator selects, how long it waits for them, and what they
 * did. Which gradients make the round is decided as for every synchronous step.
 */
#include <math.h>

#include "ps/job/internal.h"
#include "ps/job/plan.h"

bool job_selects_workers(const struct job *job)
{
    return job_is_coordinator(job) && config_asks_some(&job->config.train);
}

bool job_is_selected(const struct job *job, int worker)
{
    return !job_selects_workers(job) || job->asked[worker];
}

/* Selects that many, or all that there are. */
static bool ask(struct job *job, int count)
{
    struct sampler_order order;
    bool any = false;
    round_order(&order, job->config.train.seed, job->worker_count, job->global_step);
    for (int place = 0; place < job->worker_count && count > 0; place++) {
        const int index = (int)sampler_index(&order, (uint32_t)place);
        if (job_takes_part(&job->workers[index]) && !job->asked[index]) {
            job->asked[index] = 1;
            job->workers[index].asked++;
            any = true;
            count--;
        }
    }
    job->asks += any;
    return any;
}

static int with_reserve(const struct job *job, int share)
{
    const double reserve = job->config.train.over_selection;
    return reserve > 1 ? (int)ceil(share * reserve - 1e-9) : share;
}

void job_select_workers(struct job *job, double now_s)
{
    if (job->has_selected || !job_is_coordinator(job) || job->state != JOB_TRAINING || !job->started ||
        job_is_past_end(job)) {
        return;
    }
    job->has_selected = true;
    job->asked_s = now_s;
    if (job_selects_workers(job)) {
        const int share = round_share(job->config.train.participation, job_present(job));
        const int least = job->config.cluster.min_replicas;
        job->gathered.wanted = share;
        job->gathered.least = least < share ? least : share;
        ask(job, with_reserve(job, share));
    }
}

bool job_select_more(struct job *job, double now_s)
{
    if (!job_selects_workers(job) || !ask(job, with_reserve(job, job->gathered.wanted))) {
        return false;
    }
    job->asked_s = now_s;
    return true;
}

bool job_is_late(const struct job *job, double now_s)
{
    const double most_s = job->config.train.round_deadline_secs;
    return most_s > 0 && job->has_selected && now_s - job->asked_s >= most_s;
}

int64_t job_token(const struct job *job, int worker, int64_t step)
{
    if (!config_asks_some(&job->config.train)) {
        return step;
    }
    const bool is_open =
        job->state == JOB_TRAINING && job->has_selected && !job->gathered.decided && job->gathered.step == step;
    return job_is_coordinator(job) && is_open && job->asked[worker] ? step : -1;
}

void job_count_round(struct job *job)
{
    for (int i = 0; config_has_rounds(&job->config.train) && job_is_coordinator(job) && i < job->worker_count; i++) {
        struct job_worker *worker = &job->workers[i];
        const bool taken = job->gathered.taken[i];
        if (job_selects_workers(job)) {
            worker->missed += job->asked[i] && !taken;
        } else if (job_takes_part(worker) || taken) {
            worker->asked++;
            worker->missed += !taken;
        }
    }
}
