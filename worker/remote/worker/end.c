/* The end of training: the chief saves, tests and ends the job, and the others wait for that. */
#include <math.h>
#include <stdio.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "worker/evaluate.h"
#include "worker/remote/worker/internal.h"
#include "worker/report.h"

enum { END_TIMEOUT_S = 600 /* for the chief to end a job that has done its last step */ };

/* ---- Of the chief ---- */

static void describe_end(const struct remote_worker *worker, char *text, size_t size)
{
    const struct config_train *train = &worker->config.train;
    if (worker->end == END_TARGET) {
        snprintf(text, size, "validation accuracy %g reached", train->target_accuracy);
    } else if (worker->end == END_PATIENCE) {
        snprintf(text, size, "no better validation %d times in a row", train->patience);
    } else {
        snprintf(text, size, worker->local_step == 0 ? "nothing left to train" : "last step reached");
    }
}

static void report_end(const struct remote_worker *worker, const struct evaluation *test,
                       const struct remote_tally *now, const char *reason)
{
    struct chief_record record;
    const struct remote_tally *from =
        worker->warm.begun_s > 0 && now->begun_s > worker->warm.begun_s ? &worker->warm : &worker->all;
    double seconds = fmax(now->begun_s - from->begun_s, 1e-9);
    chief_record(worker->chief, &record);
    report_done(&(struct report_done){
        .test = test,
        .reason = reason,
        .steps = worker->global_step,
        .local_steps = worker->local_step,
        .epochs =
            (double)worker->global_step * (double)worker->plan.batches_per_step / (double)worker->plan.epoch_batches,
        .steps_per_s = (double)(now->local_steps - from->local_steps) / seconds,
        .global_steps_per_s = (double)(now->global_step - from->global_step) / seconds,
        .seconds = clock_monotonic_s() - worker->begin_s,
        .best_accuracy = record.best_accuracy,
        .best_step = record.best_step,
    });
}

/* *again: a ps has lost the state of the end, and training has to go on from a checkpoint. */
static bool finish_chief(struct remote_worker *worker, bool *again, struct error *error)
{
    char reason[128];
    struct evaluation test;
    struct remote_tally now = worker_begin_tally(worker);
    enum push_pull_end end = chief_finish(worker->chief, true, &worker->global_step, error);
    *again = end == PUSH_PULL_AGAIN;
    if (end != PUSH_PULL_DONE || !evaluation_create(&test, worker->model.widths[worker->model.layer_count], error)) {
        return false;
    }
    bool done = evaluate(&test, worker->engine, worker->config.train.ema_decay > 0, &worker->test, error);
    if (done) {
        struct error trouble;
        describe_end(worker, reason, sizeof reason);
        summary_test(worker->watch.summary, worker->global_step, evaluation_accuracy(&test));
        chief_note_step(worker->chief, worker->global_step);
        if (!chief_end_job(worker->chief, false, evaluation_accuracy(&test), reason, &trouble)) {
            log_warning("not every ps could be told that the job is over: %s", trouble.text);
        }
        report_end(worker, &test, &now, reason);
    }
    evaluation_destroy(&test);
    return done;
}

static int end_status(struct remote_worker *worker)
{
    struct chief_record record;
    chief_record(worker->chief, &record);
    return record.checkpoint_failed ? COMMAND_FAILED : COMMAND_DONE;
}

static int fail(struct remote_worker *worker, const struct error *error)
{
    struct error trouble;
    log_error("%s", error->text);
    /* Before it joined, or where another process is the chief, the job is not ours to end. */
    if (worker->chief && worker->joined && !heartbeat_is_fenced(worker->heartbeat)) {
        chief_end_job(worker->chief, true, NAN, error->text, &trouble);
    }
    return COMMAND_FAILED;
}

static int interrupted(struct remote_worker *worker)
{
    int number = signals_pending(), status = signals_exit_status(number);
    struct error error;
    struct chief_record record = {0};
    if (worker->chief && worker->joined) {
        if (chief_finish(worker->chief, false, &worker->global_step, &error) != PUSH_PULL_DONE) {
            log_warning("no last checkpoint: %s", error.text);
        }
        chief_record(worker->chief, &record);
        status = record.checkpoint_failed ? COMMAND_FAILED : status;
    }
    report_interrupted(signals_name(number), worker->global_step, record.last_checkpoint);
    return status;
}

/* ---- Of the others ---- */

/* A rollout ends this process, and not the job. */
static int part(const struct remote_worker *worker)
{
    return live_config_end(worker->live) == LIVE_RESTARTS ? RESTART_STATUS : COMMAND_DONE;
}

/*
 * The chief reports the outcome; until then the shards hold it. *again: one of them lost it, so that the job goes on from
 * a checkpoint, in a generation that this worker has to join.
 */
static int wait_for_end(struct remote_worker *worker, bool *again)
{
    struct job_news news;
    char why[256];
    *again = false;
    double begin_s = clock_monotonic_s(), told_s = begin_s;
    heartbeat_say(worker->heartbeat, "waiting for worker 0 to end the job");
    heartbeat_wake(worker->heartbeat);
    worker_tell_vitals(worker, STATE_DONE);
    for (;;) {
        double now_s = clock_monotonic_s();
        heartbeat_news(worker->heartbeat, &news);
        if (news.over || news.refused) {
            break;
        }
        if (signals_pending() != 0) {
            return interrupted(worker);
        }
        if (live_config_end(worker->live) != LIVE_STAYS) {
            return part(worker);
        }
        if (heartbeat_needs_rejoin(worker->heartbeat, worker->exchange.generation, worker->exchange.joined_s, why)) {
            log_warning("%s; training goes on once the model is there again", why);
            *again = true;
            return COMMAND_FAILED;
        }
        if (now_s - begin_s >= END_TIMEOUT_S) {
            log_error("worker 0 did not end the job within %d s of its last step", END_TIMEOUT_S);
            return COMMAND_FAILED;
        }
        if (now_s - told_s >= LINK_TOLD_EVERY_S) {
            told_s = now_s;
            log_info("waiting for worker 0 (%s) to end the job, %.0f s", worker->config.cluster.worker_hosts.items[0],
                     now_s - begin_s);
        }
        shard_link_pause(now_s + 0.005);
    }
    if (news.failed || news.refused) {
        log_error("%s", news.message[0] != '\0' ? news.message : "worker 0 says that the job failed");
        return COMMAND_FAILED;
    }
    if (!worker->chief && !isnan(news.test_accuracy)) {
        log_info("the job is over: test accuracy %.2f%%", 100 * (double)news.test_accuracy);
    }
    return COMMAND_DONE;
}

/* ---- Of both ---- */

/* The end was none. */
static int go_on(struct remote_worker *worker)
{
    struct chief_start start;
    worker->end = END_NOT_YET;
    if (worker_join(worker, &start)) {
        worker_train(worker);
    }
    return worker_end(worker);
}

int worker_end(struct remote_worker *worker)
{
    struct error error;
    bool again;
    int status;
    if (live_config_end(worker->live) != LIVE_STAYS) { /* whatever else went wrong on the way out */
        return part(worker);
    }
    switch (worker->end) {
    case END_LAST_STEP:
    case END_TARGET:
    case END_PATIENCE:
        if (!worker->chief) {
            status = wait_for_end(worker, &again);
            return again ? go_on(worker) : status;
        }
        if (finish_chief(worker, &again, &error)) {
            return end_status(worker);
        }
        if (!again || signals_pending() != 0) {
            return fail(worker, &error);
        }
        log_warning("%s; training goes on from the newest checkpoint", error.text);
        return go_on(worker);
    case END_BY_OTHERS:
        status = wait_for_end(worker, &again);
        return again ? go_on(worker) : status;
    case END_INTERRUPTED:
        return interrupted(worker);
    case END_PARTS:
    case END_NOT_YET:
    case END_FAILED:
        break;
    }
    return fail(worker, &worker->error);
}
