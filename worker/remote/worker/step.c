/* One step or round: draw, compute into the outbox, exchange, and adopt what a rollout changes. */
#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/process/signals.h"
#include "base/profile.h"
#include "ps/job/job.h"
#include "worker/remote/worker/internal.h"
#include "worker/report.h"

static const double VITALS_S = 0.2;

/* Log lines and the loss's L2 term use what the shards apply. finite: as for live_config_look. */
static void look_for_change(struct remote_worker *worker, float loss, bool finite)
{
    struct training *training = &worker->training;
    if (live_config_look(worker->live, &worker->config, training->global_step, loss, finite)) {
        training_retime(training);
        if (worker->chief) {
            chief_retime(worker->chief, &worker->config.output, &training->plan);
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
        worker_keep_residual_if_due(worker, note->base_step, note->base_step + 1);
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
        outbox_take_back(&worker->outbox);
        worker_keep_residual_if_due(worker, note.base_step, answer.global_step);
    } else if (!worker->config.cluster.issync && answers > 0) {
        worker_keep_residual_if_due(worker, note.base_step, answer.global_step);
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
        worker_tell_vitals(worker, STATE_TRAINING);
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
        worker_tell_vitals(worker, STATE_TRAINING);
    }
    return training->global_step > before;
}

bool worker_step(struct updater *updater)
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
