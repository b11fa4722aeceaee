/*
 * Inside the job: what its parts share. job.c keeps the whole together (actions, what is waited for, time).
 * membership.c decides who is there, and places.c gives numbers to those who come without one; pushes.c decides about
 * asynchronous pushes, synchronous.c about steps in common, and rounds.c who is asked for one; generation.c answers the
 * chief.
 */
#ifndef PS_JOB_INTERNAL_H
#define PS_JOB_INTERNAL_H

#include "ps/job/job.h"

/* Leaves an action about a worker for the host: JOB_PROBE or JOB_CUT. To leave it twice is to leave it once. */
void job_act(struct job *job, enum job_action_kind kind, int worker);

/* Leaves a line for the log; if there are too many, it is only counted. */
void job_say(struct job *job, enum log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Answers a request by an error. */
void job_deny(struct verdict *verdict, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does this ps decide on synchronous steps? */
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

/* To be called whenever a worker came or the model got ready. */
void job_start_if_complete(struct job *job);

/* What holds for every request that needs parameters; false: denied. */
bool job_check_training(struct job *job, int worker, uint64_t incarnation, uint32_t generation, double now_s,
                        struct verdict *verdict);

/* Counts a gradient that is not finite, and tells of some. */
void job_note_not_finite(struct job *job, int worker);

/* No push waits for its step. */
void job_forget_buffer(struct job *job);

/* A global step has come: takes up what was scheduled for it. */
void job_take_due(struct job *job);
void job_set_end(struct job *job); /* last_step, as the config says */

/* Synchronous training: begins and ends with the job, gathers the next step, and sees whether it can be decided. */
bool job_create_gathering(struct job *job, int ps, struct error *error);
void job_set_replicas(struct job *job); /* as the config says */
void job_gather(struct job *job, double now_s);
void job_consider(struct job *job, double now_s);

/* Rounds (rounds.c). All of the coordinator: whoever is asked for the present one, if nobody was before. */
void job_ask(struct job *job, double now_s);
/* Some more who are there; false: all are asked already. */
bool job_ask_more(struct job *job, double now_s);
bool job_asks_some(const struct job *job);             /* here: this ps decides who is asked */
bool job_is_asked(const struct job *job, int worker);  /* for the present round */
bool job_is_late(const struct job *job, double now_s); /* has the present round lasted long enough? */
/* The present round is made of gathered.taken. */
void job_count_round(struct job *job);

/* A ps that stood still itself (stopped, or its machine asleep) must not hold that against anybody. */
void job_extend_leases(struct job *job, double seconds);

/* Time passes for the leases; false once all are looked at, true if actions have to be taken first. */
bool job_tick_leases(struct job *job, double now_s);

#endif
