/* The chief's requests: generations of the training state, snapshots, the end. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ps/job/internal.h"

static bool check_chief(int worker, const char *what, struct verdict *verdict)
{
    memset(verdict, 0, sizeof *verdict);
    if (worker != 0) {
        job_deny(verdict, ERROR_NOT_ALLOWED, "only worker 0, the chief, may ask for %s", what);
    }
    return worker == 0;
}

void job_begin_restore(struct job *job, int worker, uint32_t generation, const char *source, double now_s,
                       struct verdict *verdict)
{
    if (!check_chief(worker, "begin_restore", verdict)) {
        return;
    }
    if (!generation_is_later(generation, job->generation)) {
        job_deny(verdict, ERROR_OLD_GENERATION, "a new generation must be later than %u, not %u", job->generation,
                 generation);
        return;
    }
    job->state = JOB_RESTORING;
    job->generation = generation;
    job->began_s = job->logged_s = now_s;
    job->test_accuracy = NAN;
    job->message[0] = '\0';
    job_forget_buffer(job);
    for (int i = 0; i < job->worker_count; i++) {
        job->workers[i].counts = false;
        job->workers[i].taken_step = -1;
    }
    job_say(job, LOG_INFO, "worker 0 (%s) writes the model of generation %u: %s", job->workers[0].peer, generation,
            source);
}

void job_write(struct job *job, int worker, uint32_t generation, struct verdict *verdict)
{
    if (!check_chief(worker, "a write", verdict)) {
        return;
    }
    if (generation != job->generation) {
        job_deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the one being written, %u", generation,
                 job->generation);
    } else if (job->state != JOB_RESTORING) {
        job_deny(verdict, ERROR_BAD_REQUEST, "nothing can be written before begin_restore");
    }
}

void job_check_restored(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                        struct verdict *verdict)
{
    job_write(job, worker, generation, verdict);
    if (verdict->code != 0) {
        return;
    }
    if (global_step < 0 || global_step > JOB_MAX_STEP || epoch_batches < 0 || epoch_batches > JOB_MAX_BATCHES) {
        job_deny(verdict, ERROR_BAD_REQUEST,
                 "a job can't continue at step %lld, with %lld batches per epoch: expected 0 to %lld, and 0 to %lld",
                 (long long)global_step, (long long)epoch_batches, (long long)JOB_MAX_STEP, (long long)JOB_MAX_BATCHES);
    }
}

void job_end_restore(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                     double now_s, struct verdict *verdict)
{
    job_check_restored(job, worker, generation, global_step, epoch_batches, verdict);
    if (verdict->code != 0) {
        return;
    }
    job->state = JOB_TRAINING;
    job->global_step = global_step;
    job->epoch_batches = epoch_batches;
    job_set_end(job);
    job->began_s = job->logged_s = now_s;
    job_say(job, LOG_INFO, "the model of generation %u is complete, at global step %lld", generation,
            (long long)global_step);
    job->last_set_step = -1;
    job_take_due(job);
    job_gather(job, now_s);
    job_start_if_complete(job);
}

void job_snapshot(struct job *job, int worker, uint32_t generation, bool orders, struct verdict *verdict)
{
    if (!check_chief(worker, "a snapshot", verdict)) {
        return;
    }
    /* Ordering before releasing any worker ensures that the first steps are not missed. */
    if (!job_initialised(job) && !(orders && job->state == JOB_RESTORING)) {
        job_deny(verdict, ERROR_NOT_READY, "there is no model yet");
    } else if (generation != job->generation) {
        job_deny(verdict, ERROR_OLD_GENERATION, "generation %u is not the current one, %u", generation,
                 job->generation);
    }
}

void job_end(struct job *job, int worker, const struct message_end_job *message, double now_s, struct verdict *verdict)
{
    if (!check_chief(worker, "end_job", verdict)) {
        return;
    }
    if (message->job_state != JOB_DONE && message->job_state != JOB_FAILED) {
        job_deny(verdict, ERROR_BAD_REQUEST, "a job ends done (3) or failed (4), not %d", message->job_state);
        return;
    }
    if (job_is_over(job)) {
        return;
    }
    job->state = (enum job_state)message->job_state;
    job->ended_s = now_s;
    job->test_accuracy = message->test_accuracy;
    snprintf(job->message, sizeof job->message, "%s", message->message);
    bool has_text = job->message[0] != '\0';
    job_say(job, job->state == JOB_DONE ? LOG_INFO : LOG_ERROR, "worker 0 (%s): training %s at global step %lld%s%s",
            job->workers[0].peer, job->state == JOB_DONE ? "is over" : "failed", (long long)message->global_step,
            has_text ? ": " : "", job->message);
}
