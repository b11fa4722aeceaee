/* The role of a worker: the updater whose model lives in the shards of a cluster, and its start and end. */
#include "worker/remote/worker.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process/notify.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "base/text/address.h"
#include "base/threads.h"
#include "ps/job/job.h"
#include "worker/evaluation/metrics.h"
#include "worker/evaluation/validation.h"
#include "worker/remote/exchange/requests.h"
#include "worker/remote/own_rows.h"
#include "worker/remote/remote_worker.h"
#include "worker/report.h"

/* --- Joining, and between steps --- */

static struct remote_worker *of(struct updater *updater)
{
    return (struct remote_worker *)updater;
}

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
    enum exchange_result end = own ? own_rows_resend(&worker->exchange, &worker->config, error) : EXCHANGE_OK;
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
    if (worker->low_priority && restart_spawn_helper()) {
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
    worker_update_vitals(worker, STATE_STARTING);
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
    if (!worker_load_residual(worker, &training->error)) {
        return training_fail(training);
    }
    start->record.retries = worker->config.train.retries = worker->exchange.retries;
    worker->first_draw = worker_fair_draws(worker) - training->local_step;
    worker_update_vitals(worker, STATE_TRAINING);
    if (worker->chief) {
        start->global_step = found.global_step;
        start->restored_from = found.restored_from;
        start->record = found.record; /* with the same retries */
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

/* --- Validation --- */

/*
 * Validation on each worker's own rows: all evaluate the model of one step, which they have anyway, and the chief adds
 * up the results.
 */

/* After an evaluation, whose size is known. */
static void create_validation(struct remote_worker *worker)
{
    const struct evaluation *evaluation = &worker->training.evaluation;
    if (worker->validation) {
        return;
    }
    struct own_rows_validation *validation = must_zero(1, sizeof *validation, "validations");
    worker->validation = validation;
    if (worker->chief) {
        validation_sum_create(&validation->sum, evaluation, config_worker_room(&worker->config.cluster) + 1);
    } else {
        validation->bytes = must_alloc(evaluation_part_room(evaluation), "validations");
    }
}

static struct own_validation what_was_found(const struct remote_worker *worker, const struct evaluation *evaluation,
                                            int64_t step)
{
    const enum metric metric = worker->training.metric;
    return (struct own_validation){.step = step,
                                   .examples = evaluation->images,
                                   .score = evaluation->images > 0 ? evaluation_metric(evaluation, metric) : NAN,
                                   .rises = metric_rises(metric)};
}

/* For a worker that reports: failing to report does not end training. */
static bool send_validation(struct remote_worker *worker)
{
    struct own_rows_validation *validation = worker->validation;
    struct training *training = &worker->training;
    const struct own_validation own = what_was_found(worker, &training->evaluation, training->global_step);
    size_t size = evaluation_part_write(&training->evaluation, validation->bytes);
    if (size > VALIDATIONS_BYTES && !validation->has_warned) {
        validation->has_warned = true;
        log_warning("a validation takes %zu bytes, but a message holds %d: only its score is sent to worker 0", size,
                    VALIDATIONS_BYTES);
    }
    size = size > VALIDATIONS_BYTES ? 0 : size;
    const enum exchange_result end =
        validations_report(&worker->exchange, &own, validation->bytes, size, &training->error);
    if (end == EXCHANGE_FAILED) {
        log_warning("a validation was not accepted: %s", training->error.text);
        return true;
    }
    return worker_take_end(worker, end);
}

static bool worker_validate_if_due(struct remote_worker *worker, int64_t before)
{
    struct training *training = &worker->training;
    const struct plan *plan = &training->plan;
    const int64_t step = training->global_step;
    const bool is_due = step > before && (plan_validation_due(plan, before, step) || step >= plan->last_step);
    if (worker->chief || !is_due || !config_validates_together(&worker->config)) {
        return true;
    }
    PROFILE("validate");
    create_validation(worker);
    if (!evaluate(&training->evaluation, training->engine, false, &worker->dataset.validation, &training->error)) {
        return training_fail(training);
    }
    return send_validation(worker);
}

/* --- The chief --- */

/* The chief's own counts, before others are added. */
static void begin_sum(void *context)
{
    struct own_rows_validation *validation = context;
    validation_sum_again(&validation->sum);
}

static void add_to_sum(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size)
{
    struct own_rows_validation *validation = context;
    const struct worker_score report = {worker, examples, score};
    struct error error = {"only its score is known"};
    const bool counts = size > 0 && validation_sum_add(&validation->sum, &report, bytes, size, &error);
    if (!counts && !validation->has_warned) {
        validation->has_warned = true;
        log_warning("the validation of worker %d does not count: %s", worker, error.text);
    }
}

static bool worker_gather(struct updater *updater, int64_t global_step, enum metric metric,
                          struct evaluation *evaluation, struct validators *validators)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    struct training *training = &worker->training;
    const double deadline_s = worker->config.train.round_deadline_secs, lease_s = worker->config.cluster.lease_secs;
    *validators = (struct validators){.count = 0};
    if (!config_validates_together(&worker->config) || !isfinite(evaluation->loss)) {
        return true;
    }
    create_validation(worker);
    struct own_rows_validation *validation = worker->validation;
    const struct own_validation own = what_was_found(worker, evaluation, global_step);
    validation_sum_begin(&validation->sum, evaluation, metric);
    const struct validations_receiver receiver = {begin_sum, add_to_sum, validation};
    const enum exchange_result end =
        validations_gather(&worker->exchange, &own, deadline_s > 0 ? fmin(deadline_s, lease_s) : lease_s, &receiver,
                           &validators->missing, &training->error);
    validation_sum_end(&validation->sum, metric, validators);
    if (end == EXCHANGE_FAILED) {
        log_warning("the other workers' validations are missing: %s", training->error.text);
        return true;
    }
    return worker_take_end(worker, end);
}

/* --- Steps --- */

/* One step or round: draw, compute into the outbox, exchange, and adopt what a rollout changes. */

static const double VITALS_S = 0.2;

/* Log lines and the loss's L2 term use what the shards apply. finite: as for live_config_look. */
static void look_for_change(struct remote_worker *worker, float loss, bool finite)
{
    struct training *training = &worker->training;
    if (live_config_look(worker->live, &worker->config, training->global_step, loss, finite)) {
        training->good.record.retries = worker->config.train.retries; /* a new rate is used as it is */
        training_retime(training);
        if (worker->chief) {
            chief_reschedule(worker->chief, &worker->config.output, &training->plan);
        }
    }
}

/* Other workers wait for this one's gradient: an empty one, with the loss as the reason, releases them. */
static enum exchange_result push_nothing(struct remote_worker *worker)
{
    struct training *training = &worker->training;
    int64_t step = training->global_step;
    struct push_answer answer;
    struct push_note note = {.base_step = step, .local_step = training->local_step, .examples = 1, .loss = NAN};
    outbox_begin(&worker->outbox);
    enum exchange_result end = push_pull_exchange(&worker->exchange, &worker->outbox, &note, &answer, &training->error);
    if (end == EXCHANGE_OK && answer.global_step == step) {
        end = push_pull_await_step(&worker->exchange, step, &training->error);
    }
    training->global_step = worker->exchange.global_step;
    return end;
}

/* The loss is not finite, so there is nothing to push. Newer parameters may be better. */
static void handle_nonfinite_loss(struct remote_worker *worker, double loss)
{
    struct training *training = &worker->training;
    worker->bad_steps++;
    if (worker->bad_steps == 1) {
        log_warning("the loss is %g at global step %lld: nothing is pushed", report_number(loss),
                    (long long)training->global_step);
    }
    look_for_change(worker, NAN, false);
    if (worker_has_diverged(worker, worker->bad_steps, "the loss", loss)) {
        return;
    }
    clock_pause(clock_monotonic_s() + 0.01 * worker->bad_steps);
    worker_take_end(worker, worker->config.cluster.issync ? push_nothing(worker) : worker_refresh(worker));
}

/* Takes the steps of a round. False: it is given up. */
static bool take_local_steps(struct remote_worker *worker, struct train_result *done)
{
    struct training *training = &worker->training;
    const int64_t count = worker_step_batches(worker);
    struct batch batch;
    for (int64_t i = 0; i < count && done->finite; i++) {
        if (signals_pending() != 0 || worker_is_over(worker)) {
            return worker_take_end(worker, EXCHANGE_STOPPED);
        }
        if (!worker_draw(worker, i, &batch)) {
            return false;
        }
        if (!local_steps_take(worker->local, &batch, done, &training->error)) {
            return training_fail(training);
        }
    }
    return true;
}

/* Computes a round's difference into the outbox. */
static bool compute_round(struct remote_worker *worker, struct train_result *done)
{
    PROFILE("compute");
    struct training *training = &worker->training;
    const struct gradient_sink sink = outbox_sink(&worker->outbox);
    struct error error;
    *done = (struct train_result){.finite = true};
    if (!local_steps_begin(worker->local, &worker->config.train, training->global_step, &training->error)) {
        return training_fail(training);
    }
    if (!take_local_steps(worker, done)) {
        local_steps_end(worker->local, NULL, &error);
        return false;
    }
    outbox_begin(&worker->outbox);
    done->last_loss = done->loss_sum / (double)(done->steps > 0 ? done->steps : 1);
    return local_steps_end(worker->local, done->finite ? &sink : NULL, &training->error) || training_fail(training);
}

/* Computes the next batch's gradient into the outbox. */
static bool compute_gradient(struct remote_worker *worker, struct train_result *done)
{
    PROFILE("compute");
    struct batch batch;
    struct training *training = &worker->training;
    struct outbox *outbox = worker->pipeline ? pipeline_outbox(worker->pipeline) : &worker->outbox;
    struct gradient_sink sink = outbox_sink(outbox);
    if (!worker_draw(worker, 0, &batch)) {
        return false;
    }
    outbox_begin(outbox);
    return training->engine->table->step(training->engine, &batch, &sink, done, &training->error) ||
           training_fail(training);
}

static enum exchange_result push(struct remote_worker *worker, const struct push_note *note, struct push_answer *answer,
                                 int *answers)
{
    struct error *error = &worker->training.error;
    *answers = 1;
    push_pull_pack(&worker->exchange, worker->pipeline ? pipeline_outbox(worker->pipeline) : &worker->outbox);
    if (worker->config.cluster.issync) {
        worker_save_residual_if_due(worker, note->base_step, note->base_step + 1);
    }
    return worker->pipeline ? pipeline_push(worker->pipeline, note, answer, answers, error)
                            : push_pull_exchange(&worker->exchange, &worker->outbox, note, answer, error);
}

/* Pushes the gradient, and loads the answers into the engine. False: that was no step. */
static bool exchange(struct remote_worker *worker, const struct train_result *done)
{
    struct training *training = &worker->training;
    struct push_answer answer = {.over = false};
    struct push_note note = {.base_step = training->global_step,
                             .local_step = training->local_step,
                             .examples = (uint32_t)(worker->local ? worker->source.sampler.examples : done->images),
                             .loss = (float)done->last_loss};
    int answers;
    if (!worker_take_end(worker, push(worker, &note, &answer, &answers))) {
        return false;
    }
    if (!worker->pipeline && (answer.stale || answer.not_finite)) {
        outbox_restore_residual(&worker->outbox);
        worker_save_residual_if_due(worker, note.base_step, answer.global_step);
    } else if (!worker->config.cluster.issync && answers > 0) {
        worker_save_residual_if_due(worker, note.base_step, answer.global_step);
    }
    if (answers > 0) {
        worker_take_answer(worker, &answer);
    }
    return training->end == TRAINING_GOES_ON;
}

static void account(struct remote_worker *worker, const struct train_result *done, double begin_s)
{
    const double now_s = clock_monotonic_s();
    training_account(&worker->training, done, now_s - begin_s, now_s);
    worker->last_loss = done->last_loss;
    worker->staleness_sum += (double)worker->staleness * (double)done->steps;
    worker->bad_steps = 0;
    look_for_change(worker, (float)worker->last_loss, true);
    if (now_s - worker->vitals_s >= VITALS_S) {
        worker_update_vitals(worker, STATE_TRAINING);
    }
    if (worker->chief) {
        chief_note_step(worker->chief, worker->training.global_step);
    }
}

/*
 * Others make this round. The chief looks at every step that passes, because something may be due at it; workers that
 * only train sleep until they are selected. True: something may be due.
 */
static bool await_round(struct remote_worker *worker)
{
    struct training *training = &worker->training;
    const int64_t before = training->global_step;
    const int64_t after = worker->chief ? before : JOB_MAX_STEP;
    if (!worker_take_end(worker, push_pull_await_round(&worker->exchange, after, &training->error))) {
        return false;
    }
    training->global_step = worker->exchange.global_step;
    if (training->global_step > before) {
        look_for_change(worker, (float)worker->last_loss, true);
    }
    if (worker->chief) {
        chief_note_step(worker->chief, training->global_step);
    }
    if (clock_monotonic_s() - worker->vitals_s >= VITALS_S) {
        worker_update_vitals(worker, STATE_TRAINING);
    }
    return training->global_step > before;
}

static bool worker_step(struct updater *updater)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    struct train_result done;
    const double begin_s = clock_monotonic_s();
    const int64_t before = worker->training.global_step;
    if (!push_pull_is_asked(&worker->exchange)) {
        return await_round(worker);
    }
    if (worker->borrowed && !worker_take_end(worker, worker_refresh(worker))) {
        return false;
    }
    worker->borrowed = false;
    if (!(worker->local ? compute_round(worker, &done) : compute_gradient(worker, &done))) {
        return false;
    }
    if (!done.finite) {
        handle_nonfinite_loss(worker, done.bad_loss);
        return false;
    }
    if (!exchange(worker, &done)) {
        return false;
    }
    account(worker, &done, begin_s);
    return worker_validate_if_due(worker, before);
}

/* --- The end --- */

/* Where the best model lies, and the rate is lower: all workers find a new generation of the model, and join it. */
static bool go_back(struct updater *updater, const struct good_model *good)
{
    struct remote_worker *worker = of(updater);
    struct training *training = &worker->training;
    enum exchange_result end = EXCHANGE_REJOIN;
    worker->bad_steps = worker->refused_steps = 0;
    worker_settle(worker); /* whatever its result: pushes in flight belong to a model that is given up */
    while (end == EXCHANGE_REJOIN && signals_pending() == 0) {
        end = chief_go_back(worker->chief, good, &training->global_step, &training->error);
    }
    return worker_take_end(worker, end);
}

/* The end of training: the chief saves and ends the job, and the others wait for it. */

enum { END_TIMEOUT_S = 600 /* for the chief to end a job after its last step */ };

/* This process ends for a rollout, but the job goes on. */
static void leave_for_rollout(struct remote_worker *worker)
{
    worker->training.end = TRAINING_LEAVES;
    if (worker->joined) {
        worker_save_residual(worker, worker->training.global_step);
    }
    worker->training.leave_status = live_config_end(worker->live) == LIVE_RESTARTS ? RESTART_STATUS : COMMAND_DONE;
}

static void keep_interrupted(struct remote_worker *worker)
{
    struct training *training = &worker->training;
    struct error error;
    training->end = TRAINING_INTERRUPTED;
    if (worker->joined) {
        worker_save_residual(worker, training->global_step);
    }
    if (worker->chief && worker->joined &&
        chief_save_last(worker->chief, &training->global_step, &error) != EXCHANGE_OK) {
        log_warning("no last checkpoint: %s", error.text);
    }
}

/* A ps may have lost the final state; then training must continue from a checkpoint. */
static void finish_job(struct remote_worker *worker)
{
    struct training *training = &worker->training;
    enum exchange_result end = chief_finish(worker->chief, &training->global_step, &training->error);
    if (end == EXCHANGE_REJOIN && signals_pending() == 0) {
        log_warning("%s; training continues from the newest checkpoint", training->error.text);
        training->end = TRAINING_REJOINS;
    } else if (end != EXCHANGE_OK) {
        training_fail(training);
    }
}

/* What a ps reports of the end that the chief announced. */
static void take_reported_end(struct remote_worker *worker, const struct job_status *job)
{
    struct training *training = &worker->training;
    training->end = TRAINING_BY_OTHERS;
    if (job->failed || job->refused) {
        error_set(&training->error, "%s", job->message[0] != '\0' ? job->message : "worker 0 says that the job failed");
        training_fail(training);
    } else if (!worker->chief && !isnan(job->test_accuracy)) {
        log_info("the job is over: test accuracy %.2f%%", 100 * (double)job->test_accuracy);
    }
}

/* Is the wait for the chief over for another reason than its announcement? */
static bool is_wait_over(struct remote_worker *worker, double waited_s)
{
    struct training *training = &worker->training;
    char why[256];
    if (signals_pending() != 0) {
        keep_interrupted(worker);
    } else if (live_config_end(worker->live) != LIVE_STAYS) {
        leave_for_rollout(worker);
    } else if (heartbeat_needs_rejoin(worker->heartbeat, worker->exchange.generation, worker->exchange.joined_s, why)) {
        log_warning("%s; training continues once the model is there again", why);
        training->end = TRAINING_REJOINS;
    } else if (waited_s >= END_TIMEOUT_S) {
        error_set(&training->error, "worker 0 did not end the job within %d s of its last step", END_TIMEOUT_S);
        training_fail(training);
    } else {
        return false;
    }
    return true;
}

/*
 * The chief announces the result; until then the shards hold the final state. If one of them loses it, the job
 * continues from a checkpoint, in a generation that this worker must join.
 */
static void wait_for_end(struct remote_worker *worker)
{
    struct job_status job;
    double begin_s = clock_monotonic_s(), logged_s = begin_s;
    heartbeat_set_message(worker->heartbeat, "waiting for worker 0 to end the job");
    heartbeat_wake(worker->heartbeat);
    worker_update_vitals(worker, STATE_DONE);
    for (;;) {
        double now_s = clock_monotonic_s();
        heartbeat_job_status(worker->heartbeat, &job);
        if (job.over || job.refused) {
            take_reported_end(worker, &job);
            return;
        }
        if (is_wait_over(worker, now_s - begin_s)) {
            return;
        }
        if (now_s - logged_s >= LINK_LOGGED_EVERY_S) {
            logged_s = now_s;
            log_info("waiting for worker 0 (%s) to end the job, %.0f s", worker->config.cluster.worker_hosts.items[0],
                     now_s - begin_s);
        }
        clock_pause(now_s + 0.005);
    }
}

static void worker_finish(struct updater *updater)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    if (live_config_end(worker->live) != LIVE_STAYS) { /* whatever else failed while leaving */
        leave_for_rollout(worker);
        return;
    }
    switch (worker->training.end) {
    case TRAINING_LAST_STEP:
    case TRAINING_TARGET:
    case TRAINING_PATIENCE:
    case TRAINING_TIME:
        if (worker->chief) {
            finish_job(worker);
        } else {
            wait_for_end(worker);
        }
        break;
    case TRAINING_BY_OTHERS:
        wait_for_end(worker);
        break;
    case TRAINING_INTERRUPTED:
        keep_interrupted(worker);
        break;
    case TRAINING_GOES_ON:
    case TRAINING_REJOINS:
    case TRAINING_LEAVES:
    case TRAINING_FAILED:
        break;
    }
}

static void worker_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    struct error error;
    /* Before it has joined, or where another process is the chief, this one must not end the job. */
    if (!worker->chief || !worker->joined || (failed && heartbeat_is_fenced(worker->heartbeat))) {
        return;
    }
    chief_note_step(worker->chief, worker->training.global_step);
    if (!chief_end_job(worker->chief, failed, test_accuracy, why, &error) && !failed) {
        log_warning("not every ps could be notified that the job is over: %s", error.text);
    }
}

/* --- The updater --- */

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
    .go_back = go_back,
    .conclude = worker_conclude,
    .record = record,
};

/* --- The role from start to end --- */

static bool is_on(const char *text, const char *host)
{
    struct address address;
    struct error error;
    return address_parse(text, &address, &error) && strcmp(address.host, host) == 0;
}

/* Do many more members run on this machine than it has CPUs, judging by its name? */
static bool is_crowded(const struct config_cluster *cluster)
{
    enum { MEMBERS_A_CPU = 2 }; /* up to this many hardly slow each other down */
    struct address own;
    struct error error;
    int members = 0;
    if (cluster->task_index >= cluster->worker_hosts.count ||
        !address_parse(cluster->worker_hosts.items[cluster->task_index], &own, &error)) {
        return false;
    }
    for (int i = 0; i < cluster->ps_hosts.count; i++) {
        members += is_on(cluster->ps_hosts.items[i], own.host);
    }
    for (int i = 0; i < cluster->worker_hosts.count; i++) {
        members += is_on(cluster->worker_hosts.items[i], own.host);
    }
    return members > MEMBERS_A_CPU * threads_available();
}

/* Whoever looks at the fleet sees why this worker is missing. */
static void report_failure(struct remote_worker *worker, const char *reason)
{
    struct job_status job = {.over = false};
    if (!worker->heartbeat) {
        if (worker->identity.hello.incarnation != 0) {
            heartbeat_report_failure(&worker->config, &worker->identity, reason);
        }
        return;
    }
    heartbeat_job_status(worker->heartbeat, &job);
    if (!job.over && !job.refused) {
        heartbeat_set_message(worker->heartbeat, reason);
        worker_update_vitals(worker, STATE_FAILED);
    }
}

int remote_worker_run(const struct config *config)
{
    struct remote_worker worker = {.updater = {.table = &remote_updater_table},
                                   .training = {.updater = &worker.updater, .begun_s = clock_monotonic_s()},
                                   .launched = config,
                                   .config = *config,
                                   .is_chief = config->cluster.task_index == 0,
                                   .low_priority = is_crowded(&config->cluster),
                                   .last_loss = NAN};
    struct error error;
    int status = COMMAND_FAILED;
    if (!config_check_role(config, &error)) {
        log_error("%s", error.text);
        return COMMAND_MISUSED;
    }
    signals_catch();
    if (worker_open(&worker, &error)) {
        status = training_run(&worker.training);
        error = worker.training.error;
    } else if (signals_pending() != 0) {
        status = signals_exit_status(signals_pending());
    } else {
        log_error("%s", error.text);
    }
    if (status == COMMAND_FAILED) {
        report_failure(&worker, error.text);
    }
    if (status == RESTART_STATUS) {
        notify_restarting();
    } else {
        notify_stopping();
    }
    worker_close(&worker, status == COMMAND_DONE     ? "done"
                          : status == RESTART_STATUS ? "starts again"
                          : status == COMMAND_FAILED ? error.text
                                                     : "stopped");
    return status;
}
