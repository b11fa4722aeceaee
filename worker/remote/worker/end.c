/* The end of training: the chief saves and ends the job, and the others wait for it. */
#include <math.h>

#include "base/cli/command.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/process/restart.h"
#include "base/process/signals.h"
#include "worker/remote/worker/internal.h"

enum { END_TIMEOUT_S = 600 /* for the chief to end a job after its last step */ };

/* This process ends for a rollout, but the job goes on. */
static void leave(struct remote_worker *worker)
{
    worker->training.end = TRAINING_LEAVES;
    if (worker->joined) {
        worker_keep_residual(worker, worker->training.global_step);
    }
    worker->training.leave_status = live_config_end(worker->live) == LIVE_RESTARTS ? RESTART_STATUS : COMMAND_DONE;
}

static void keep_interrupted(struct remote_worker *worker)
{
    struct training *training = &worker->training;
    struct error error;
    training->end = TRAINING_INTERRUPTED;
    if (worker->joined) {
        worker_keep_residual(worker, training->global_step);
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
static void take_end(struct remote_worker *worker, const struct job_status *job)
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
        leave(worker);
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
    worker_tell_vitals(worker, STATE_DONE);
    for (;;) {
        double now_s = clock_monotonic_s();
        heartbeat_job_status(worker->heartbeat, &job);
        if (job.over || job.refused) {
            take_end(worker, &job);
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

void worker_finish(struct updater *updater)
{
    struct remote_worker *worker = (struct remote_worker *)updater;
    if (live_config_end(worker->live) != LIVE_STAYS) { /* whatever else failed while leaving */
        leave(worker);
        return;
    }
    switch (worker->training.end) {
    case TRAINING_LAST_STEP:
    case TRAINING_TARGET:
    case TRAINING_PATIENCE:
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

void worker_conclude(struct updater *updater, bool failed, double test_accuracy, const char *why)
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
