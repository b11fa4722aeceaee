/*
 * Inside the job: what its parts share. job.c keeps the whole together (actions, what is waited for, time), and
 * membership.c, pushes.c and generation.c decide about workers, gradients and the chief's requests.
 */
#ifndef PS_JOB_INSIDE_H
#define PS_JOB_INSIDE_H

#include "ps/job/job.h"

/* Leaves an action for the host; worker -1: of nobody. */
struct job_action *job_act(struct job *job, enum job_action_kind kind, int worker);

/* Leaves a line for the log. */
void job_say(struct job *job, enum log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Answers a request by an error. */
void job_deny(struct verdict *verdict, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static inline bool job_is_over(const struct job *job)
{
    return job->state == JOB_DONE || job->state == JOB_FAILED;
}

/* To be called whenever a worker came or the model got ready. */
void job_start_if_complete(struct job *job);

/* Time passes for the leases; false once all are looked at, true if actions have to be taken first. */
bool job_tick_leases(struct job *job, double now_s);

#endif
