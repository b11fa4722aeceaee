/*
 * What is due at a step (a log line, a validation) is due once the global step has come to it or past it, for the other
 * workers take their steps in between.
 */
#include "base/clock.h"
#include "worker/remote/worker/internal.h"
#include "worker/report.h"

static const double VITALS_S = 0.2;

void worker_report_progress(struct remote_worker *worker)
{
    struct remote_tally *tally = &worker->since_report;
    int64_t steps = worker->local_step - tally->local_steps;
    double seconds = clock_monotonic_s() - tally->begun_s;
    if (steps > 0) {
        report_step(&(struct report_step){
            .worker = worker->config.cluster.task_index,
            .epoch = plan_epoch(&worker->plan, worker->global_step),
            .global_step = worker->global_step,
            .local_step = worker->local_step,
            .loss = tally->loss_sum / (double)steps,
            .learning_rate = schedule_learning_rate(&worker->config.train, worker->global_step - 1),
            .ms_per_batch = 1e3 * seconds / (double)steps,
            .examples_per_s = (double)tally->images / seconds,
        });
    }
    *tally = worker_begin_tally(worker);
}

/* How many times something that is due every `every` steps has been due by now. */
static int64_t times_due(int64_t step, int64_t every)
{
    return every > 0 ? step / every : 0;
}

static int64_t validations_due(const struct plan *plan, int64_t step)
{
    return plan->validate_steps > 0 ? times_due(step, plan->validate_steps)
                                    : step * plan->batches_per_step / plan->epoch_batches;
}

static void validate(struct remote_worker *worker)
{
    double begin_s = clock_monotonic_s();
    enum chief_verdict verdict = chief_validate(worker->chief, &worker->error);
    if (verdict == CHIEF_FAILED) {
        worker_stop(worker, END_FAILED);
        return;
    }
    if (verdict != CHIEF_GO_ON) {
        worker_stop(worker, verdict == CHIEF_TARGET ? END_TARGET : END_PATIENCE);
        return;
    }
    enum push_pull_end end = worker_refresh(worker);
    struct chief_start start;
    if (end == PUSH_PULL_AGAIN) {
        worker_join(worker, &start);
    } else {
        worker_take_end(worker, end);
    }
    worker->since_report.begun_s += clock_monotonic_s() - begin_s;
}

struct summary_options worker_summary_options(struct remote_worker *worker)
{
    return (struct summary_options){.config = &worker->config,
                                    .model = &worker->model,
                                    .engine = worker->engine,
                                    .dataset = &worker->dataset,
                                    .digest = worker->identity.digest,
                                    .global_step = worker->global_step};
}

/* What the shards apply stands in the config for log lines and the loss's L2 term. */
void worker_look_for_change(struct remote_worker *worker, float loss, bool finite)
{
    if (!live_config_look(worker->live, &worker->config, worker->global_step, loss, finite)) {
        return;
    }
    worker_make_plan(worker);
    if (worker->chief) {
        const struct summary_options options = worker_summary_options(worker);
        chief_retime(worker->chief, &worker->config.output, &worker->plan);
        summary_tally_retime(&worker->watch, &options);
        chief_summary_tally(worker->chief, worker->watch.summary);
    }
}

void worker_do_what_is_due(struct remote_worker *worker, int64_t before)
{
    worker_look_for_change(worker, (float)worker->last_loss, true);
    if (times_due(worker->global_step, worker->plan.log_steps) > times_due(before, worker->plan.log_steps)) {
        worker_report_progress(worker);
    }
    if (clock_monotonic_s() - worker->since_vitals.begun_s >= VITALS_S) {
        worker_tell_vitals(worker, STATE_TRAINING);
    }
    if (worker->chief) {
        chief_note_step(worker->chief, worker->global_step);
        summary_tally_look(&worker->watch, before, worker->global_step, worker->dropped);
        if (worker->dataset.validation.count > 0 &&
            validations_due(&worker->plan, worker->global_step) > validations_due(&worker->plan, before)) {
            validate(worker);
        }
    }
}
