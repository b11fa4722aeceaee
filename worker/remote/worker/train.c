/* The loop: draw, compute into the outbox, exchange, account. */
#include <math.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/profile.h"
#include "base/process/signals.h"
#include "ps/store/optimizer.h"
#include "worker/data/streaming/streaming.h"
#include "worker/remote/worker/internal.h"
#include "worker/report.h"

enum {
    WARM_UP_STEPS = 100, /* not counted in steps_per_s */
    BAD_STEPS = 10,      /* losses in a row that are not finite, and the chief calls it a failure */
};

static void account(struct remote_worker *worker, const struct train_result *done)
{
    worker->local_step++;
    worker->last_loss = done->last_loss;
    worker->since_report.loss_sum += done->last_loss;
    worker->since_report.images += done->images;
    summary_tally_count(&worker->watch, done, worker->staleness);
    worker->bad_steps = 0;
    if (worker->local_step == WARM_UP_STEPS) {
        worker->warm = worker_begin_tally(worker);
    }
}

/* Others wait for this worker's gradient: one without anything in it, and a loss that says why, tells them not to. */
static enum push_pull_end push_nothing(struct remote_worker *worker)
{
    int64_t step = worker->global_step;
    struct push_answer answer;
    struct push_note note = {.base_step = step, .local_step = worker->local_step, .examples = 1, .loss = NAN};
    outbox_begin(&worker->outbox);
    enum push_pull_end end = push_pull_exchange(&worker->exchange, &worker->outbox, &note, &answer, &worker->error);
    if (end == PUSH_PULL_DONE && answer.global_step == step) {
        end = push_pull_await_step(&worker->exchange, step, &worker->error);
    }
    worker->global_step = worker->exchange.global_step;
    return end;
}

/* The loss is not finite, so there is nothing to push. Perhaps newer parameters are better. */
static void handle_nonfinite_loss(struct remote_worker *worker, double loss)
{
    worker->bad_steps++;
    if (worker->bad_steps == 1) {
        log_warning("the loss is %g at global step %lld: nothing is pushed", report_number(loss),
                    (long long)worker->global_step);
    }
    worker_look_for_change(worker, NAN, false);
    if (worker->chief && worker->bad_steps >= BAD_STEPS && !live_config_is_rolling(worker->live)) {
        error_set(&worker->error,
                  "the loss is %g after step %lld at learning rate %g: training stops here; lower --learning_rate and "
                  "start again",
                  report_number(loss), (long long)worker->global_step,
                  schedule_learning_rate(&worker->config.train, worker->global_step));
        worker_stop(worker, END_FAILED);
        return;
    }
    shard_link_pause(clock_monotonic_s() + 0.01 * worker->bad_steps);
    enum push_pull_end end = worker->config.cluster.issync ? push_nothing(worker) : worker_refresh(worker);
    struct chief_start start;
    if (end == PUSH_PULL_AGAIN) {
        worker_join(worker, &start);
    } else {
        worker_take_end(worker, end);
    }
}

/*
 * With synchronous training what a worker draws is a function of the step, as local training's micro-batches do: who
 * comes late or comes back draws what it would have drawn, had it been there.
 */
static int64_t next_draw(const struct remote_worker *worker)
{
    return worker->config.cluster.issync ? worker->global_step : worker->first_draw + worker->local_step;
}

/* From the files. */
static bool draw_streamed(struct remote_worker *worker, int64_t step, struct batch *batch)
{
    *batch = (struct batch){.images = worker->images, .labels = worker->labels, .indexes = worker->indexes};
    if (!streaming_draw(worker->dataset.streaming, worker->sampler.task, step, worker->images, worker->labels,
                        &batch->count, &worker->error)) {
        worker_stop(worker, END_FAILED);
        return false;
    }
    for (int i = 0; i < batch->count; i++) {
        worker->indexes[i] = i;
    }
    return true;
}

static bool draw(struct remote_worker *worker, struct batch *batch)
{
    int64_t step = next_draw(worker);
    bool good = true;
    if (worker->feed) {
        good = worker_take_end(worker, batch_fetcher_take(worker->feed, step, batch, &worker->error));
    } else if (worker->dataset.streaming) {
        good = draw_streamed(worker, step, batch);
    } else {
        *batch =
            (struct batch){.images = worker->share.images, .labels = worker->share.labels, .indexes = worker->indexes};
        batch->count = sampler_draw(&worker->sampler, step, worker->indexes);
    }
    batch->task = worker->sampler.task;
    batch->step = step;
    return good;
}

/* Computes the gradient of the next batch into the outbox. */
static bool compute(struct remote_worker *worker, struct batch *batch, struct train_result *done)
{
    PROFILE("compute");
    struct outbox *outbox = worker->pipeline ? pipeline_outbox(worker->pipeline) : &worker->outbox;
    struct gradient_sink sink = outbox_sink(outbox);
    if (!draw(worker, batch)) {
        return false;
    }
    outbox_begin(outbox);
    if (!worker->engine->table->step(worker->engine, batch, &sink, done, &worker->error)) {
        worker_stop(worker, END_FAILED);
        return false;
    }
    return true;
}

static enum push_pull_end push(struct remote_worker *worker, const struct push_note *note, struct push_answer *answer,
                               int *answers)
{
    *answers = 1;
    return worker->pipeline ? pipeline_push(worker->pipeline, note, answer, answers, &worker->error)
                            : push_pull_exchange(&worker->exchange, &worker->outbox, note, answer, &worker->error);
}

static void step(struct remote_worker *worker)
{
    struct batch batch;
    struct train_result done;
    struct push_answer answer;
    struct chief_start start;
    int answers;
    int64_t before = worker->global_step;
    if (!compute(worker, &batch, &done)) {
        return;
    }
    if (!done.finite) {
        handle_nonfinite_loss(worker, done.bad_loss);
        return;
    }
    struct push_note note = {.base_step = worker->global_step,
                             .local_step = worker->local_step,
                             .examples = (uint32_t)batch.count,
                             .loss = (float)done.last_loss};
    enum push_pull_end end = push(worker, &note, &answer, &answers);
    if (end == PUSH_PULL_AGAIN) {
        worker_join(worker, &start);
        return;
    }
    if (!worker_take_end(worker, end)) {
        return;
    }
    if (answers > 0) {
        worker_take_answer(worker, &answer);
        if (answer.over) {
            return;
        }
    }
    account(worker, &done);
    worker_do_what_is_due(worker, before);
}

void worker_train(struct remote_worker *worker)
{
    worker->all = worker_begin_tally(worker);
    while (worker->end == END_NOT_YET) {
        if (signals_pending() != 0) {
            worker_stop(worker, END_INTERRUPTED);
        } else if (worker_is_over(worker)) {
            worker_take_end(worker, PUSH_PULL_STOPPED);
        } else if (worker->global_step >= worker->plan.last_step &&
                   (worker->exchange.count == 1 || worker->config.cluster.issync)) {
            worker_stop(worker, END_LAST_STEP);
        } else {
            step(worker);
        }
    }
    if (worker->end != END_FAILED && worker->end != END_PARTS) {
        enum push_pull_end end = worker_settle(worker);
        if (end == PUSH_PULL_REFUSED) {
            log_warning("the last gradients were not taken: %s", worker->error.text);
        }
        worker_report_progress(worker);
    }
}
