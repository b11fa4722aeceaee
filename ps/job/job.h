/*
 * What a ps decides: who is a member, who may do what, when a push counts, when training starts and when it is over.
 *
 * A state machine without clock, threads or sockets. Its host tells it what happened and when (now_s: monotonic
 * seconds, never going back), gets a verdict at once, and then takes the actions that came of it by job_next_action.
 * What a request has to wait for is a question to be asked again after the next event (job_ready, job_may_answer).
 * One thread at a time; strings in arguments are borrowed for the call. It holds no parameters: the host applies what
 * it is told to apply (ps/shard.h), so that a simulator may hold anything instead.
 *
 * Synchronous training (cluster.issync): ps/job/aggregation.h says which gradients make a step. A complete gradient is
 * staged; once the step is decided, the host takes it (job_take_step), applies it to its shard, and says so
 * (job_step_applied): only then are the pushes of that step answered.
 *
 * Asynchronous training: each push that counts is a global step; with train.buffer_size every so many of them are one,
 * and each ps counts for itself.
 *
 * Every step needs all ps. A worker that is heard here and cannot reach another ps says so in its heartbeats; from then
 * on it counts as lost, so that nobody waits for it, until it says that it reaches all.
 *
 * Members are the workers of worker_hosts (and, with cluster.elastic, some beyond), 0 being the chief; operators only
 * ask and are not kept track of. A worker may have several connections at once, all of one incarnation.
 *
 * Life of the job: WAITING until the chief begins a restore, RESTORING until it ends it, TRAINING until the chief ends
 * the job, then DONE or FAILED. A later begin_restore, with a higher generation, starts again from wherever it stands.
 */
#ifndef PS_JOB_JOB_H
#define PS_JOB_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "net/endpoint.h"
#include "net/frame.h"
#include "net/handshake.h"
#include "net/member.h"
#include "net/message.h"
#include "ps/job/aggregation.h"
#include "ps/job/plan.h"

enum {
    JOB_FENCED = 16,           /* incarnations of a worker that are remembered as replaced, the latest */
    JOB_MAX_LINES = 16,        /* for the log that are kept until they are taken; more are counted */
    JOB_ASK_MS = 500,          /* who is told JOB_ASK_AGAIN does so more often than that */
    JOB_PROBE_MS = 1000,       /* a worker has so long to show that it lives, when another claims its place */
    JOB_TICK_MS = 1000,        /* ticks that are further apart than this tell of a ps that stood still */
    JOB_END_MS = 4000,         /* workers have so long to leave once the job is over */
    JOB_WAITED_FOR_MS = 10000, /* between two log lines about what is being waited for */
};

/* What a restored job may begin with, so that no sum or product of steps and batches overflows later on. */
#define JOB_MAX_STEP    (INT64_C(1) << 52)
#define JOB_MAX_BATCHES (INT64_C(1) << 40)

/* What is known of a worker. */
struct job_worker {
    uint64_t incarnation; /* 0: never seen */
    uint64_t fenced[JOB_FENCED];
    int fenced_next;
    char peer[ENDPOINT_TEXT]; /* where it connected from last */
    char program[65], digest[65];
    uint64_t fleet_version;
    int connections;
    int held;          /* requests of it that wait on our side: so it need not speak */
    double heard_s;    /* when it was last heard of */
    double gone_s;     /* when its last connection ended, if connections == 0 */
    bool present;      /* said hello, and was neither lost nor left since */
    bool lost;         /* its lease ran out, or it is cut off */
    bool cut_off;      /* it says itself that it can't reach every ps: no push of it can count before it can */
    double cut_off_s;  /* since when */
    bool left;         /* in order */
    bool counts;       /* takes part in max_staleness: it pulled or pushed */
    int64_t clock;     /* its pushes, on a scale that all workers share: one that joins begins where the slowest is,
                          and the first one anywhere */
    uint64_t sequence; /* the last push that was decided on */
    enum push_outcome outcome; /* of that push */
    int64_t staleness;         /* of that push */
    int64_t applied;
    int64_t not_finite;
    int64_t stale;         /* synchronous: gradients that came too late for their step */
    int64_t asked, missed; /* rounds that it was asked for, and those of them that were made without it */
    float cosine, norm;    /* of its last difference in a round: to the mean, and in itself; NaN: not known */
    int64_t taken_step;    /* synchronous: the last step that its gradient was part of; -1: none */
    uint64_t newcomer;     /* an incarnation that claims the place; 0: none */
    double probe_s;        /* since when the older one is being probed for it */
    double asked_s;        /* when it asked last */
    uint64_t probe;        /* counts the probes: what the pong has to repeat */
    bool answered;         /* the older one did */
    bool to_probe, to_cut; /* actions to be taken */

    uint64_t place_key; /* whose number this is (job_place); 0: nobody's */
    double placed_s;    /* when it was given */

    /* From its last heartbeat. */
    uint8_t state; /* enum member_state */
    int64_t global_step, local_step;
    float steps_per_s, loss;
    uint32_t reported_staleness;
    uint64_t retries, bytes_in, bytes_out, memory_bytes;
    float cpu_percent, gpu_percent;
    char host[256], device[129], message[256];
};

enum job_action_kind {
    JOB_LOG,   /* text at `level` */
    JOB_PROBE, /* ping every idle connection of this worker's incarnation, with job_probe_nonce */
    JOB_CUT,   /* end every connection of this worker that is not of this incarnation */
};
struct job_action {
    enum job_action_kind kind;
    enum log_level level;
    int worker;
    uint64_t incarnation;
    char text[512];
};

struct job_line {
    enum log_level level;
    char text[512];
};

struct job {
    struct config config; /* its lists and texts are borrowed; its live keys are those in force */
    struct config next;   /* of which the live keys are in force from next_step on; only if has_next */
    bool has_next;
    int64_t next_step;
    struct member identity;
    struct job_worker *workers; /* [worker_count] */
    int worker_count;           /* config_worker_room */
    enum job_state state;
    uint32_t generation;
    int64_t global_step;   /* steps that accepted pushes make, on top of the step that was restored */
    int64_t last_step;     /* 0: no bound */
    int64_t epoch_batches; /* of one worker; 0: not known */
    bool started;          /* min_workers were there once, in this generation or before */
    bool kept;             /* it is not to start, even if all are there */

    int coordinator; /* the first ps that holds anything: it decides on synchronous steps, and who is to wait */

    /* Synchronous training. */
    bool synchronous;
    int *shards;                 /* [ps]: number of what it holds among the shards; -1: it holds nothing */
    struct aggregation gathered; /* shards: all of them at the coordinator, one's own at others */
    bool *awaited;               /* [worker_count], for aggregation_decide */
    unsigned char *last_set;     /* [worker_count]: whose gradients the last step was made of */
    int64_t last_set_step;       /* -1: none in this generation */
    bool stepping;               /* the host is applying the step that was decided */
    int *step_workers;           /* [worker_count]: of that step */
    double gathering_s;          /* since when the present step is being gathered */
    unsigned char *asked;        /* [worker_count]: for the present round, at the coordinator, if it asks some */
    bool has_asked;              /* for the present round */
    uint64_t asks;               /* counts how often somebody was asked */
    double asked_s;              /* when somebody was asked last for the present round */
    uint64_t changes;            /* counts what a follower has to tell the coordinator */
    bool told_absent;            /* said once that some workers never came */

    /* Asynchronous rounds (train.buffer_size): pushes that wait for the next step, which the last of so many makes. */
    int buffered;
    double buffered_staleness; /* of these, all together */
    double mean_staleness;     /* of those that the last step was made of; NaN: none yet */

    double began_s, ended_s, told_s;
    double ticked_s; /* when job_tick was called last */
    float test_accuracy;
    char message[256]; /* of the chief's end_job */
    /* Actions: what is to be done about workers stands with them, once each, so that only lines can be too many. */
    int workers_to_act_on; /* probes and cuts that are not taken yet */
    int first_to_act_on;   /* no worker before it is one of them */
    struct job_line lines[JOB_MAX_LINES];
    int line_count, line_next;
    int unsaid;         /* lines that there was no room for */
    int tick_next;      /* worker that job_tick looks at next */
    double lease_due_s; /* no lease is over before: workers need not be looked at */
};

/* config: as the process was started; what its lists and texts point to is borrowed. */
bool job_create(struct job *job, const struct config *config, int ps, double now_s, struct error *error);
void job_destroy(struct job *job);

/* Takes the next action in order; false if there is none. To be called until it says so after every event. */
bool job_next_action(struct job *job, struct job_action *action);

bool job_has_actions(const struct job *job);

/*
 * Somebody says hello, from an address. Returns 0 (welcome: the connection counts from now on, and job_disconnected
 * must follow), an enum refusal with a message, or JOB_ASK_AGAIN: an older incarnation is being probed, ask again soon.
 */
enum { JOB_ASK_AGAIN = 0xffff };
uint16_t job_hello(struct job *job, const struct peer *who, const char *address, double now_s, struct error *message);
void job_disconnected(struct job *job, int worker, uint64_t incarnation, double now_s);

/*
 * A number beyond worker_hosts for a worker that has none: the one that it was given before, as its key (not 0) tells,
 * or else a free one; if all are taken, that of the one who has been away for longest, and for a lease at least. -1:
 * there is none, and the verdict says why.
 */
struct verdict;
int job_place(struct job *job, uint64_t key, double now_s, struct verdict *verdict);

/* What a ping to this worker is to carry, so that its pong tells a probe that it lives. */
uint64_t job_probe_nonce(const struct job *job, int worker);
void job_pong(struct job *job, int worker, uint64_t incarnation, uint64_t nonce);

/* Any message came from this worker. */
void job_heard(struct job *job, int worker, uint64_t incarnation, double now_s);
void job_heartbeat(struct job *job, int worker, uint64_t incarnation, const struct message_heartbeat *heartbeat,
                   double now_s);

/* True if this incarnation is the worker's, and not one that was replaced. */
bool job_is_current(const struct job *job, int worker, uint64_t incarnation);

/* What is to be done with a request. */
struct verdict {
    uint16_t code; /* enum error_code to answer with, and `message`; 0: go on */
    enum push_outcome outcome;
    char message[256];
};

/*
 * A push is complete. code 0: answer with `outcome`; PUSH_APPLIED: apply it first. generation: of its frames.
 */
struct job_push {
    uint32_t generation;
    uint64_t sequence;
    int64_t base_step;
    bool finite;
    int64_t token; /* synchronous: the step it belongs to */
};
void job_push(struct job *job, int worker, uint64_t incarnation, const struct job_push *push, double now_s,
              struct verdict *verdict);

/* Would the next push that counts make a step? Always, but with train.buffer_size. */
bool job_is_about_to_step(const struct job *job);

/*
 * May the answer to this worker's last push go out, or would it get too far ahead of the slowest one (max_staleness)?
 * Always, but at the coordinator.
 * While the host waits, it says so by job_hold(+1), and by job_hold(-1) afterwards.
 */
bool job_may_answer(const struct job *job, int worker);
void job_hold(struct job *job, int worker, uint64_t incarnation, int change, double now_s);

/*
 * Synchronous pushes. job_stage is asked when the first frame is there: *receive says whether the gradient is to be
 * received into the worker's stage (true), or read and dropped, since the step has it or is over. job_staged is told
 * when the last frame is in, whether it was received or not. Then the answer waits until job_settled, and is the
 * verdict that it gives: PUSH_APPLIED or PUSH_APPLIED_BEFORE if the gradient was part of its step.
 */
void job_stage(struct job *job, int worker, uint64_t incarnation, const struct job_push *push, double now_s,
               struct verdict *verdict, bool *receive);
void job_staged(struct job *job, int worker, uint64_t incarnation, const struct job_push *push, bool received,
                double now_s, struct verdict *verdict);
bool job_settled(struct job *job, int worker, uint64_t incarnation, const struct job_push *push,
                 struct verdict *verdict);

/* A step that is to be applied. */
struct job_step {
    uint32_t generation;
    int64_t step;
    int count;
    const int *workers; /* [count], ascending; the job's, until it gives the next step */
};

/* True, once for every step: it is decided, and the caller applies it. One is applied at a time. */
bool job_take_step(struct job *job, struct job_step *step);
void job_step_applied(struct job *job, const struct job_step *step, bool applied, double now_s);

/*
 * Rounds of some (train.participation): the coordinator asks a share of those who are there, in the order of
 * ps/job/round.h, and more of them once too few of the asked can come. job_token is the step that this worker's next
 * push may belong to, where `step` is the shard's: that one, or -1: it is not asked (or this ps can't tell).
 */
int64_t job_token(const struct job *job, int worker, int64_t step);

/* Is there a step that is decided and not yet applied? */
bool job_has_step(const struct job *job);

/* Between ps. At the coordinator: what a follower has; and the set of a step that is decided, if it is that one. */
void job_report(struct job *job, int ps, uint32_t generation, int64_t step, const bool *finite, const bool *not_finite,
                double now_s, struct verdict *verdict);
/*
 * At a follower. taken: [worker_count]. False: no coordinator decides so, for the set is empty, or has a gradient that
 * is not complete here.
 */
bool job_apply_decision(struct job *job, uint32_t generation, int64_t step, const bool *taken);
bool job_is_follower(const struct job *job);

/*
 * Who keeps a synchronous step waiting: "waiting for worker 2 (d:2222) to push step 41, 12 s". False: nobody, or not
 * for long, and the message is empty.
 */
bool job_describe_wait(struct job *job, double now_s, char message[256]);

/* A pull: code 0 if parameters are there and training may run. */
void job_pull(struct job *job, int worker, uint64_t incarnation, uint32_t generation, double now_s,
              struct verdict *verdict);

/*
 * Is there nothing to wait for any more? If there is, `message` says what, and since when; else it is empty, or says
 * that training is over.
 */
bool job_ready(struct job *job, double now_s, char message[256]);
/* Are there parameters, even if workers are missing? */
bool job_initialised(const struct job *job);

/* The chief's requests. `worker` asks: others than the chief get ERROR_NOT_ALLOWED. */
void job_begin_restore(struct job *job, int worker, uint32_t generation, const char *source, double now_s,
                       struct verdict *verdict);
void job_write(struct job *job, int worker, uint32_t generation, struct verdict *verdict);
/* May the restore end so? Asked before the shard is opened for it; job_end_restore then agrees. */
void job_check_restored(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                        struct verdict *verdict);
void job_end_restore(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                     double now_s, struct verdict *verdict);
/* orders: of a step to come, which may be asked for while the model is being written. */
void job_snapshot(struct job *job, int worker, uint32_t generation, bool orders, struct verdict *verdict);
void job_end(struct job *job, int worker, const struct message_end_job *message, double now_s, struct verdict *verdict);

/*
 * From this global step on (the number of steps made before it; at once, if it is reached) the live keys of `config`
 * are in force: who is waited for, how many gradients make a step, when training is over. A synchronous step that is
 * decided already stays as it is. What was scheduled before and is not in force yet is forgotten; what is in force
 * stays so when an earlier step is restored.
 */
void job_schedule(struct job *job, const struct config *config, int64_t step, double now_s);

/*
 * The last step of the job under another config, whatever of it differs; 0: none. With other batches about, where
 * epochs bound it: only workers count the images.
 */
int64_t job_last_step_under(const struct job *job, const struct config *config);

/* Global steps of an epoch under these live keys; 0: not known. */
int64_t job_epoch_steps(const struct job *job, const struct config *config, int64_t epoch_batches);

/* A job that waits for workers goes on waiting, no matter who comes, until this is taken back. */
void job_keep_waiting(struct job *job, bool keep);

/* In order: it will not come back with this incarnation. */
void job_leave(struct job *job, int worker, uint64_t incarnation, const char *message, double now_s);

/* Time passes: leases run out, probes end. To be called some times a second, and as often as it returns true. */
bool job_tick(struct job *job, double now_s);

/* May the ps go? The job is over, and everybody was told, or had JOB_END_MS to hear it. */
bool job_may_exit(const struct job *job, double now_s);

/* For status. */
enum member_state job_worker_state(const struct job *job, int worker);
uint64_t job_dropped(const struct job *job);    /* gradients of all workers that were not used */
uint64_t job_not_finite(const struct job *job); /* those of them that were not finite; the rest came too late */
/* What is being waited for, or how the job ended; may be empty. */
void job_describe(struct job *job, double now_s, char message[256]);
int job_present(const struct job *job); /* workers that are here */

#endif
