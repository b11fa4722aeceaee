/*
 * Private to the job, shared by its parts, of which each calls only those before it: state.c, rounds.c, steps.c, job.c.
 */
#ifndef PS_JOB_INTERNAL_H
#define PS_JOB_INTERNAL_H

#include "ps/job/job.h"

/* Queues an action on a worker for the host: JOB_PROBE or JOB_CUT. Idempotent. */
void job_act(struct job *job, enum job_action_kind kind, int worker);

/* Queues a log line; if there are too many, it is only counted. */
void job_log(struct job *job, enum log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Answers a request with an error. */
void job_deny(struct verdict *verdict, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* True if this ps decides on synchronous steps. */
static inline bool job_is_coordinator(const struct job *job)
{
    return job->synchronous && job->coordinator == job->identity.index;
}

static inline bool job_is_over(const struct job *job)
{
    return job->state == JOB_DONE || job->state == JOB_FAILED;
}

static inline bool job_is_past_end(const struct job *job)
{
    return job_is_over(job) || (job->last_step > 0 && job->global_step >= job->last_step);
}

/* Waited for: it is here, its data are loaded, and it works. */
static inline bool job_takes_part(const struct job_worker *worker)
{
    return worker->present && worker->ready && !worker->idle;
}

/* Something of a push of this worker arrives; is_whole: all of it. */
void job_note_work(struct job *job, int worker, bool is_whole, double now_s);

/* Call it whenever a worker has become ready or the model has. */
void job_start_if_complete(struct job *job);

/* Clears the buffer: no push waits for its step. */
void job_forget_buffer(struct job *job);

/* Called at each new global step: applies what was scheduled for it. */
void job_take_due(struct job *job);
void job_set_end(struct job *job); /* sets last_step by the config */

/* Synchronous training: set up with the job, collect the next step, and check whether it can be decided. */
/*
 * The time at which this worker becomes idle unless it pushes before; INFINITY: nothing is expected of it, or it is not
 * known how long a gradient takes. others_s: how long those of other workers take.
 */
double job_idle_at_s(const struct job *job, int worker, double others_s);
bool job_create_gathering(struct job *job, int ps, struct error *error);
void job_gather(struct job *job, double now_s);
void job_try_decide(struct job *job, double now_s);

/* Rounds (rounds.c), at the coordinator. Selects the workers of the present round, if none were selected before. */
void job_select_workers(struct job *job, double now_s);
/* Asks more of the present workers; false: all are asked already. */
bool job_select_more(struct job *job, double now_s);
bool job_selects_workers(const struct job *job);         /* true at the ps that decides which workers are asked */
bool job_is_selected(const struct job *job, int worker); /* for the present round */
bool job_is_late(const struct job *job, double now_s);   /* the present round has reached its deadline */
/* Records that the present round is made of gathered.taken. */
void job_count_round(struct job *job);

#endif
