/* Between the loop and the shards: how a worker joins, what it takes from their answers, and what stops it. */
#include <math.h>
#include <stdatomic.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/threads.h"
#include "worker/remote/exchange/preprocessing.h"
#include "worker/remote/own_rows.h"
#include "worker/remote/worker/internal.h"

static struct remote_worker *of(struct updater *updater)
{
    return (struct remote_worker *)updater;
}

bool worker_take_end(struct remote_worker *worker, enum exchange_result end)
{
    struct training *training = &worker->training;
    struct job_status job;
    switch (end) {
    case EXCHANGE_OK:
        return true;
    case EXCHANGE_FAILED:
        return training_fail(training);
    case EXCHANGE_REJOIN:
        if (signals_pending() == 0) {
            return training_stop(training, TRAINING_REJOINS);
        }
        break;
    case EXCHANGE_STOPPED:
        break;
    }
    if (live_config_end(worker->live) != LIVE_STAYS) {
        return training_stop(training, TRAINING_LEAVES);
    }
    heartbeat_job_status(worker->heartbeat, &job);
    if (job.refused) {
        error_set(&training->error, "%s", job.message);
        return training_fail(training);
    }
    return training_stop(training, signals_pending() != 0 ? TRAINING_INTERRUPTED : TRAINING_BY_OTHERS);
}

void worker_tell_vitals(struct remote_worker *worker, enum member_state state)
{
    const struct training *training = &worker->training;
    char message[256] = "";
    double now_s = clock_monotonic_s(), seconds = now_s - worker->vitals_s;
    int64_t steps = training->local_step - worker->vitals_step;
    heartbeat_set_vitals(worker->heartbeat,
                         &(struct vitals){.state = state,
                                          .global_step = training->global_step,
                                          .local_step = training->local_step,
                                          .steps_per_s = seconds > 0 ? (float)((double)steps / seconds) : 0,
                                          .loss = (float)worker->last_loss,
                                          .staleness = worker->staleness});
    if (state == STATE_TRAINING) {
        live_config_drift(worker->live, message);
        heartbeat_set_message(worker->heartbeat, message);
    }
    worker->vitals_s = now_s;
    worker->vitals_step = training->local_step;
}

bool worker_has_diverged(struct remote_worker *worker, int bad_steps, const char *what, double value)
{
    enum { MOST_BAD_STEPS = 10 };
    struct training *training = &worker->training;
    if (!worker->chief || bad_steps < MOST_BAD_STEPS || live_config_is_rolling(worker->live)) {
        return false;
    }
    training_diverges(training, what, value, training->global_step);
    return true;
}

void worker_take_answer(struct remote_worker *worker, const struct push_answer *answer)
{
    struct training *training = &worker->training;
    training->global_step = answer->global_step;
    worker->staleness = answer->staleness;
    worker->dropped += answer->stale || answer->not_finite;
    if (!answer->stale) {
        worker->refused_steps = answer->not_finite ? worker->refused_steps + 1 : 0;
    }
    if (answer->over) {
        training_stop(training, TRAINING_LAST_STEP);
    } else if (answer->not_finite) {
        log_warning("a gradient was refused at global step %lld: it is not finite", (long long)training->global_step);
        worker_has_diverged(worker, worker->refused_steps, "the gradient", NAN);
    }
}

/* Waits for pushes in flight, so that the shards can be asked for something else. */
static enum exchange_result worker_settle(struct remote_worker *worker)
{
    struct push_answer answer;
    int answers = 0;
    enum exchange_result end =
        worker->pipeline ? pipeline_drain(worker->pipeline, &answer, &answers, &worker->training.error) : EXCHANGE_OK;
    if (answers > 0) {
        worker_take_answer(worker, &answer);
    }
    return end;
}

enum exchange_result worker_refresh(struct remote_worker *worker)
{
    struct error *error = &worker->training.error;
    enum exchange_result end = worker_settle(worker);
    end = end == EXCHANGE_OK ? push_pull_refresh(&worker->exchange, error) : end;
    return end == EXCHANGE_OK && worker->pipeline && !pipeline_load(worker->pipeline, error) ? EXCHANGE_FAILED : end;
}

/* --- Joining --- */

/*
 * The job started over, with preprocessing made by another chief: this process restarts too, because its rows are
 * encoded by the old one.
 */
static bool encode_again(struct remote_worker *worker)
{
    log_warning("%s; restarting, to encode its rows by the model's preprocessing", worker->training.error.text);
    worker->training.leave_status = RESTART_STATUS;
    return training_stop(&worker->training, TRAINING_LEAVES);
}

static enum exchange_result join_as_worker(struct remote_worker *worker, bool *differs)
{
    struct error *error = &worker->training.error;
    const bool own = worker->config.data.data_sharding == SHARDING_OWN && worker->dataset.schema;
    enum exchange_result end = own ? own_rows_tell_again(&worker->exchange, &worker->config, error) : EXCHANGE_OK;
    end = end == EXCHANGE_OK ? push_pull_join(&worker->exchange, error) : end;
    return end == EXCHANGE_OK ? preprocessing_agree(&worker->exchange, &worker->dataset, differs, error) : end;
}

/* As the chief: ensures that the shards hold a model, and continues from it. */
static bool find_model(struct remote_worker *worker, struct chief_start *start)
{
    struct error *error = &worker->training.error;
    enum exchange_result end;
    bool differs = false;
    do { /* a ps may be lost again before all have what the chief wrote */
        if (worker->chief && !worker_take_end(worker, chief_begin(worker->chief, start, error))) {
            return false;
        }
        end = worker->chief ? push_pull_join(&worker->exchange, error) : join_as_worker(worker, &differs);
    } while (end == EXCHANGE_REJOIN && signals_pending() == 0);
    if (differs && worker->config.data.data_sharding == SHARDING_OWN) {
        return encode_again(worker);
    }
    return worker_take_end(worker, end) &&
           (!worker->pipeline || pipeline_load(worker->pipeline, error) || training_fail(&worker->training));
}

/*
 * On a crowded machine, what all wait for (a ps's answer, a starting member, a rollout's trial) comes before members'
 * computing; otherwise it would have to wait for everyone's training.
 */
static void note_first_join(struct remote_worker *worker)
{
    worker->joined = true;
    if (worker->gives_way && restart_stand_by()) {
        threads_give_way();
    }
}

static bool join(struct updater *updater, struct updater_start *start)
{
    struct remote_worker *worker = of(updater);
    struct training *training = &worker->training;
    struct chief_start found = {0};
    if (!worker->live && !worker_begin(worker)) {
        return false;
    }
    worker_tell_vitals(worker, STATE_STARTING);
    heartbeat_set_message(worker->heartbeat, "waiting for the model");
    live_config_note_joining(worker->live);
    worker_settle(worker); /* whatever its result: pushes in flight belong to a lost model */
    if (!find_model(worker, &found)) {
        return false;
    }
    heartbeat_set_message(worker->heartbeat, "");
    live_config_note_joined(worker->live);
    training->global_step = start->global_step = worker->exchange.global_step;
    worker->borrowed = false;
    if (!worker_recall_residual(worker, &training->error)) {
        return training_fail(training);
    }
    worker->first_draw = worker_fair_draws(worker) - training->local_step;
    worker_tell_vitals(worker, STATE_TRAINING);
    if (worker->chief) {
        start->global_step = found.global_step;
        start->restored_from = found.restored_from;
        start->record = found.record;
    }
    if (!worker->joined) {
        note_first_join(worker);
    }
    return true;
}

/* --- The loop's other requests --- */

static void look_for_end(struct updater *updater)
{
    struct remote_worker *worker = of(updater);
    struct training *training = &worker->training;
    if (worker_is_over(worker)) {
        worker_take_end(worker, EXCHANGE_STOPPED);
    } else if (training->global_step >= training->plan.last_step &&
               (worker->exchange.count == 1 || worker->config.cluster.issync)) {
        training_stop(training, TRAINING_LAST_STEP); /* several asynchronous shards end it by their answers */
    }
}

/*
 * Validates a snapshot of the shards, of one step: this worker's own parameters are of no single step, as others push
 * meanwhile. So the engine holds the snapshot then, and gets its own parameters back before the next step.
 */
static bool hold(struct updater *updater, struct held_model *held)
{
    struct remote_worker *worker = of(updater);
    struct training *training = &worker->training;
    switch (chief_hold(worker->chief, &held->global_step, &held->record, &training->error)) {
    case CHIEF_HELD:
        worker->borrowed = true;
        return true;
    case CHIEF_HOLD_FAILED:
        return training_fail(training);
    case CHIEF_NOT_NOW:
        break; /* the next push will wait for shards that can't be read now */
    }
    return false;
}

static void release(struct updater *updater, bool is_best)
{
    chief_release(of(updater)->chief, is_best);
}

static void summarise(struct updater *updater, int64_t steps, struct summary_cluster *cluster)
{
    struct remote_worker *worker = of(updater);
    *cluster = (struct summary_cluster){.staleness = worker->staleness_sum / (double)steps,
                                        .dropped_gradients = worker->dropped,
                                        .bytes_sent = atomic_load(&worker->traffic.bytes_out),
                                        .bytes_received = atomic_load(&worker->traffic.bytes_in)};
    worker->staleness_sum = 0;
}

static void settle(struct updater *updater)
{
    struct remote_worker *worker = of(updater);
    if (worker_settle(worker) == EXCHANGE_FAILED) {
        log_warning("the last gradients were not accepted: %s", worker->training.error.text);
    }
}

static void record(struct updater *updater, struct updater_record *record)
{
    struct remote_worker *worker = of(updater);
    *record = (struct updater_record){.best_score = NAN, .threshold = NAN, .last_checkpoint_step = -1};
    if (worker->chief) {
        chief_record(worker->chief, record);
    }
}

const struct updater_table remote_updater_table = {
    .is_shared = true,
    .join = join,
    .look_for_end = look_for_end,
    .step = worker_step,
    .hold = hold,
    .release = release,
    .gather = worker_gather,
    .summarise = summarise,
    .settle = settle,
    .finish = worker_finish,
    .conclude = worker_conclude,
    .record = record,
};
