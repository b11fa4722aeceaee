/*
 * The decisions of a ps: membership, permissions, whether a push counts, and when training starts and ends.
 *
 * A state machine without clock, threads or sockets. Its host reports each event with its time (now_s: monotonic
 * seconds, never going back), gets a verdict at once, and then executes the resulting actions from job_next_action. To
 * wait for a condition, the host queries it again after each event (job_ready, job_may_answer). One thread at a time;
 * strings in arguments are borrowed for the call. It holds no parameters: the host applies gradients when told to
 * (ps/shard.h), so that a simulator may hold anything instead.
 *
 * Synchronous training (cluster.issync): struct aggregation decides which gradients form a step. A complete gradient is
 * staged; once the step is decided, the host takes it (job_take_step), applies it to its shard, and reports that
 * (job_step_applied): only then are the pushes of that step answered.
 *
 * Asynchronous training: each push that counts is a global step; with train.buffer_size, every buffer_size pushes are
 * one, and each ps counts for itself.
 *
 * Every step needs all ps. A worker that reaches this ps but not another reports that in its heartbeats; it then counts
 * as lost, so that nobody waits for it, until it reports that it reaches all.
 *
 * A worker is waited for from when it asks for the model, its data loaded; joining and heartbeats alone hold nothing.
 * After that it is waited for as long as it works: one that owes a gradient for longer than a lease
 * and several times its usual time is idle until its next push, whatever its heartbeats say, and so is one that was
 * started several times without a push. The chief is exempt: without it there is no job.
 *
 * Members are the workers of worker_hosts (and, with cluster.elastic, some beyond), 0 being the chief; operators only
 * query and are not tracked. A worker may have several connections at once, all of one incarnation.
 *
 * States of the job: WAITING until the chief begins a restore, RESTORING until it ends it, TRAINING until the chief
 * ends the job, then DONE or FAILED. A later begin_restore, with a higher generation, restarts it from any state.
 */
#ifndef PS_JOB_JOB_H
#define PS_JOB_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/log.h"
#include "net/handshake.h"
#include "net/member.h"
#include "net/message.h"
#include "net/socket.h"
#include "ps/job/plan.h"

/* --- Aggregation --- */

/*
 * Which gradients form a synchronous step: the decision of tf.train.SyncReplicasOptimizer, as a state machine without
 * clock, threads or sockets.
 *
 * A gradient comes in parts, one per shard, and is whole once every shard has its part. A worker has one gradient per
 * step, whichever of its processes sent it and however often: it is identified by (step, worker), so it cannot count
 * twice. The step is decided when enough gradients are whole, which fixes its set; shards apply the set in the order of
 * the workers' numbers, so the sum does not depend on the order of arrival.
 *
 * Enough means `wanted`, or, if fewer workers are awaited, one from each of those; never fewer than `least`. A gradient
 * that some shard found not finite does not count, and its worker is not awaited until it sends another.
 *
 * Of several ps, the first that holds parameters (the coordinator) decides; the others (followers) report their parts
 * to it, and receive the set. They never disagree: the next step's gradients are computed on all shards' answers, so no
 * step can be decided before all have applied the previous one.
 */

struct aggregation {
    int workers, shards; /* shards: the number of shards tracked */
    int wanted, least;
    int64_t step;         /* being collected */
    unsigned char *parts; /* [workers * shards]: enum aggregation_part */
    unsigned char *taken; /* [workers]: whether the decision includes it */
    int taken_count;
    bool decided;
};

enum aggregation_part { PART_MISSING = 0, PART_HERE = 1, PART_NOT_FINITE = 2 };

/* wanted: at least 1; least <= wanted. */
bool aggregation_create(struct aggregation *aggregation, int workers, int shards, int wanted, int least,
                        struct error *error);
void aggregation_destroy(struct aggregation *aggregation); /* fine on zeros */

/* Resets everything and starts collecting `step`. */
void aggregation_begin(struct aggregation *aggregation, int64_t step);

/*
 * Records a part of a worker's gradient for the present step. An existing part stays, unless it was not finite. No
 * effect once the step is decided.
 */
void aggregation_add(struct aggregation *aggregation, int shard, int worker, bool finite);

enum aggregation_part aggregation_get(const struct aggregation *aggregation, int shard, int worker);

/* The worker's gradient over all shards: PART_HERE if it is whole. */
enum aggregation_part aggregation_whole(const struct aggregation *aggregation, int worker);

/*
 * Decides the step if there are enough gradients; true if it is decided, now or before. is_awaited: [workers], those
 * worth waiting for; whole gradients of others count, too.
 */
bool aggregation_decide(struct aggregation *aggregation, const bool *is_awaited);

/* Takes over the coordinator's set. */
void aggregation_apply_decision(struct aggregation *aggregation, const bool *taken);

/* The number of gradients that the step can still get, and of whole ones among them. */
void aggregation_count(const struct aggregation *aggregation, const bool *is_awaited, int *possible, int *whole);

enum {
    JOB_FENCED = 16,         /* replaced incarnations remembered per worker, the latest */
    JOB_MAX_LINES = 16,      /* log lines kept until taken; further ones are counted */
    JOB_MESSAGE = 256,       /* room for what a job says of itself */
    JOB_RETRY_MS = 500,      /* a host that got JOB_RETRY asks again more often than this */
    JOB_PROBE_MS = 1000,     /* time for a worker to prove that it is alive, when another claims its place */
    JOB_TICK_MS = 1000,      /* ticks further apart than this mean that the ps stood still */
    JOB_END_MS = 4000,       /* time for workers to leave once the job is over */
    JOB_WAIT_LOG_MS = 10000, /* interval between log lines about the same wait */
    JOB_USUAL_TIMES = 4,     /* a gradient may take this many times as long as those before, and a lease */
    JOB_BARREN_STARTS = 2,   /* starts in a row without a push, after which a worker is not waited for */
};

/* Limits on what a job may be restored with, so that no sum or product of steps and batches overflows later. */
#define JOB_MAX_STEP    (INT64_C(1) << 52)
#define JOB_MAX_BATCHES (INT64_C(1) << 40)

/* The state of a worker. */
struct job_worker {
    uint64_t incarnation; /* 0: never seen */
    uint64_t fenced[JOB_FENCED];
    int fenced_next;
    char peer[ENDPOINT_TEXT]; /* address of its last connection */
    char program[65], digest[65];
    uint64_t fleet_version;
    int connections;
    int held;          /* its requests that wait on our side: meanwhile it need not send anything */
    double heard_s;    /* when it was last heard from */
    double gone_s;     /* when its last connection ended, if connections == 0 */
    bool present;      /* has joined, and has not been lost, failed nor left since */
    bool lost;         /* its lease expired, or it is cut off */
    bool cut_off;      /* it reports that it can't reach every ps: no push of it can count until it can */
    double cut_off_s;  /* since when */
    bool left;         /* cleanly, by its own request */
    bool ready;        /* has asked for the model, or pushed: its data are loaded */
    bool idle;         /* owes a gradient for too long: not waited for until its next push */
    double worked_s;   /* when it became ready, sent something of a push, or got the answer to one */
    double turn_s;     /* when it could begin to compute: it became ready, pulled, or got the answer to a push */
    double took_s;     /* how long its gradients take, the longest of late; 0: not known */
    bool pushed;       /* in this incarnation */
    bool pushed_last;  /* its last request was a push, not a pull */
    int barren;        /* starts in a row that ended without a push, though training ran */
    int failures;      /* errors in a row with which its processes ended; 0 once it is ready */
    char failure[256]; /* the last of these errors */
    bool counts;       /* counts for max_staleness: it has pulled or pushed */
    int64_t clock;     /* its pushes, on a scale shared by all workers: one that joins starts at the slowest one's,
                          the first anywhere */
    uint64_t sequence; /* the last push that was decided on */
    enum push_outcome outcome; /* of that push */
    int64_t staleness;         /* of that push */
    int64_t applied;
    int64_t not_finite;
    int64_t stale;         /* synchronous: gradients that arrived too late for their step */
    int64_t asked, missed; /* rounds it was asked for, and those completed without it */
    float cosine, norm;    /* of its last difference in a round: cosine to the mean, and its norm; NaN: not known */
    int64_t taken_step;    /* synchronous: the last step that included its gradient; -1: none */
    uint64_t challenger;   /* an incarnation that claims its place; 0: none */
    double probe_s;        /* when probing the older one began */
    double challenged_s;   /* when the challenger asked last */
    uint64_t probe;        /* number of the probe, which the pong must repeat */
    bool answered;         /* the older one answered the probe */
    bool to_probe, to_cut; /* pending actions */

    uint64_t index_key; /* key of the worker that has this number (job_assign_index); 0: free */
    double assigned_s;  /* when the number was assigned */
    bool claimed;       /* a worker has joined with it since; until then the assignment keeps nobody else out */

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
    struct config next;   /* its live keys come into force at next_step; only if has_next */
    bool has_next;
    int64_t next_step;
    struct member identity;
    struct job_worker *workers; /* [worker_count] */
    int worker_count;           /* config_worker_room */
    enum job_state state;
    uint32_t generation;
    int64_t global_step;   /* the restored step plus the steps made by accepted pushes */
    int64_t last_step;     /* 0: no bound */
    int64_t epoch_batches; /* of one worker; 0: not known */
    bool started;          /* min_workers were present once, in this generation or before */
    bool kept;             /* it must not start, even if all are present */

    int coordinator; /* the first ps that holds anything: it decides on synchronous steps, and who must wait */

    /* Synchronous training. */
    bool synchronous;
    int *shards;                 /* [ps]: index of its shard; -1: it holds nothing */
    struct aggregation gathered; /* shards: all at the coordinator, only its own at others */
    bool *awaited;               /* [worker_count], for aggregation_decide */
    unsigned char *last_set;     /* [worker_count]: workers whose gradients formed the last step */
    int64_t last_set_step;       /* -1: none in this generation */
    bool stepping;               /* the host is applying the decided step */
    int *step_workers;           /* [worker_count]: of that step */
    double gathering_s;          /* when collecting the present step began */
    unsigned char *asked; /* [worker_count]: asked for the present round; at the coordinator, if it asks only some */
    bool has_selected;    /* for the present round */
    uint64_t asks;        /* number of times that workers were asked */
    double asked_s;       /* when workers were last asked for the present round */
    uint64_t changes;     /* counts changes that a follower must report to the coordinator */
    bool logged_absent;   /* it was logged that some workers never came */

    /*
     * Asynchronous rounds (train.buffer_size): pushes buffered for the next step, which the last of buffer_size makes.
     */
    int buffered;
    double buffered_staleness; /* sum over these */
    double mean_staleness;     /* over the pushes of the last step; NaN: none yet */

    double began_s, ended_s, logged_s;
    double ticked_s; /* when job_tick was called last */
    float test_accuracy;
    char message[256]; /* of the chief's end_job */
    /* Actions. Those on workers are flags in the workers, so that only log lines can be too many. */
    int workers_to_act_on; /* pending probes and cuts */
    int first_to_act_on;   /* index of the first worker with one, or a lower one */
    struct job_line lines[JOB_MAX_LINES];
    int line_count, line_next;
    int dropped_lines;  /* lines dropped because the list was full */
    int tick_next;      /* worker that job_tick looks at next */
    double lease_due_s; /* no lease expires before this: workers need not be checked */
};

/* config: as the process was started; its lists and texts are borrowed. */
bool job_create(struct job *job, const struct config *config, int ps, double now_s, struct error *error);
void job_destroy(struct job *job);

/* Takes the next action in order; false if there is none. After every event, call it until it returns false. */
bool job_next_action(struct job *job, struct job_action *action);

bool job_has_actions(const struct job *job);

/*
 * A peer says hello, from an address. Returns 0 (welcome: the connection counts from now on, and job_disconnected must
 * follow), an enum refusal with a message, or JOB_RETRY: an older incarnation is being probed, ask again soon.
 */
enum { JOB_RETRY = 0xffff };
uint16_t job_hello(struct job *job, const struct peer *who, const char *address, double now_s, struct error *message);
void job_disconnected(struct job *job, int worker, uint64_t incarnation, double now_s);

/*
 * Assigns a number beyond worker_hosts to a worker without one: the one assigned before to its key (not 0), else a free
 * one; if all are taken, that of the worker that has been away longest, and for at least a lease; else the one that
 * was assigned first and with which nobody has joined. -1: there is none, and the verdict says why: ERROR_NOT_READY if
 * one may become free.
 */
struct verdict;
int job_assign_index(struct job *job, uint64_t key, double now_s, struct verdict *verdict);

/* The nonce for a ping to this worker; its pong answers the probe. */
uint64_t job_probe_nonce(const struct job *job, int worker);
void job_pong(struct job *job, int worker, uint64_t incarnation, uint64_t nonce);

/* Any message arrived from this worker. */
void job_touch(struct job *job, int worker, uint64_t incarnation, double now_s);
void job_heartbeat(struct job *job, int worker, uint64_t incarnation, const struct message_heartbeat *heartbeat,
                   double now_s);

/* It asks for the model, or its first request is a push: its data are loaded, and from now on it is waited for. */
void job_note_ready(struct job *job, int worker, uint64_t incarnation, double now_s);

/* True if this is the worker's current incarnation, not a replaced one. */
bool job_is_current(const struct job *job, int worker, uint64_t incarnation);

/* How to answer a request. */
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

/* True if the next push that counts makes a step: always, unless train.buffer_size is set. */
bool job_is_about_to_step(const struct job *job);

/*
 * True if the answer to this worker's last push may be sent: it must not get too far ahead of the slowest one
 * (max_staleness). Always true except at the coordinator. The host calls job_hold(+1) when it begins to wait, and
 * job_hold(-1) afterwards.
 */
bool job_may_answer(const struct job *job, int worker);
void job_hold(struct job *job, int worker, uint64_t incarnation, int change, double now_s);

/*
 * Synchronous pushes. Call job_stage on the first frame: *receive says whether to receive the gradient into the
 * worker's stage (true), or to read and drop it, since the step has it or is over. Call job_staged after the last
 * frame, whether it was received or not. The answer then waits for job_settled, and is its verdict: PUSH_APPLIED or
 * PUSH_APPLIED_BEFORE if the gradient was part of its step.
 */
void job_stage(struct job *job, int worker, uint64_t incarnation, const struct job_push *push, double now_s,
               struct verdict *verdict, bool *receive);
void job_staged(struct job *job, int worker, uint64_t incarnation, const struct job_push *push, bool received,
                double now_s, struct verdict *verdict);
bool job_settled(struct job *job, int worker, uint64_t incarnation, const struct job_push *push,
                 struct verdict *verdict);

/* A step to be applied. */
struct job_step {
    uint32_t generation;
    int64_t step;
    int count;
    const int *workers; /* [count], ascending; owned by the job, valid until the next step */
};

/* True once for every decided step, which the caller then applies. One is applied at a time. */
bool job_take_step(struct job *job, struct job_step *step);
void job_step_applied(struct job *job, const struct job_step *step, bool applied, double now_s);

/*
 * Partial rounds (train.participation): the coordinator asks a share of the present workers, in the order of
 * ps/job/plan.h, and more of them once too few of those asked can deliver. job_token is the step that this worker's
 * next push may belong to, given the shard's `step`: that step, or -1: it is not asked (or this ps can't tell).
 */
int64_t job_token(const struct job *job, int worker, int64_t step);

/* True if a decided step is not yet applied. */
bool job_has_step(const struct job *job);

/* Between ps. At the coordinator: a follower's report of its parts. */
void job_report(struct job *job, int ps, uint32_t generation, int64_t step, const bool *finite, const bool *not_finite,
                double now_s, struct verdict *verdict);
/*
 * At a follower: takes the coordinator's decision. taken: [worker_count]. False: invalid, since the set is empty, or
 * has a gradient that is not complete here.
 */
bool job_apply_decision(struct job *job, uint32_t generation, int64_t step, const bool *taken);
bool job_is_follower(const struct job *job);

/*
 * Describes what a synchronous step waits for: "waiting for worker 2 (d:2222) to push step 41, 12 s". False: nothing,
 * or not for long, and the message is empty.
 */
bool job_describe_wait(struct job *job, double now_s, char message[JOB_MESSAGE]);

/* A pull: code 0 if there are parameters and training may run. */
void job_pull(struct job *job, int worker, uint64_t incarnation, uint32_t generation, double now_s,
              struct verdict *verdict);

/*
 * True if there is nothing left to wait for; `message` is then empty, or says that training is over. Otherwise
 * `message` says what is awaited, and since when.
 */
bool job_ready(struct job *job, double now_s, char message[JOB_MESSAGE]);
/* True if there are parameters, even if workers are missing. */
bool job_initialised(const struct job *job);

/* The chief's requests. `worker` asks: others than the chief get ERROR_NOT_ALLOWED. */
void job_begin_restore(struct job *job, int worker, uint32_t generation, const char *source, double now_s,
                       struct verdict *verdict);
void job_write(struct job *job, int worker, uint32_t generation, struct verdict *verdict);
/* Checks that the restore may end like this, before the shard is reopened; job_end_restore then agrees. */
void job_check_restored(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                        struct verdict *verdict);
void job_end_restore(struct job *job, int worker, uint32_t generation, int64_t global_step, int64_t epoch_batches,
                     double now_s, struct verdict *verdict);
/* orders: a snapshot of a future step, which may be requested while the model is being written. */
void job_snapshot(struct job *job, int worker, uint32_t generation, bool orders, struct verdict *verdict);
void job_end(struct job *job, int worker, const struct message_end_job *message, double now_s, struct verdict *verdict);

/*
 * Puts the live keys of `config` in force from this global step on (the number of steps made before it; at once, if
 * reached): which workers are awaited, how many gradients form a step, when training is over. An already decided
 * synchronous step is unaffected. Replaces a schedule that is not in force yet; keys in force stay so when an earlier
 * step is restored.
 */
void job_schedule(struct job *job, const struct config *config, int64_t step, double now_s);

/*
 * The last step of the job under another config, however it differs; 0: none. If epochs limit the run and batches
 * differ, it is approximate: only workers count the images.
 */
int64_t job_last_step_under(const struct job *job, const struct config *config);

/* Global steps of an epoch under these live keys; 0: not known. */
int64_t job_epoch_steps(const struct job *job, const struct config *config, int64_t epoch_batches);

/* keep: a job that waits for workers continues to wait, whoever joins, until this is revoked. */
void job_hold_start(struct job *job, bool keep);

/* The worker leaves cleanly: it will not come back in this incarnation. */
void job_leave(struct job *job, int worker, uint64_t incarnation, const char *message, double now_s);

/* Advances time: expires leases and probes. Call it several times a second, and again while it returns true. */
bool job_tick(struct job *job, double now_s);

/* True once the ps may exit: the job is over, and all members know, or had JOB_END_MS to hear it. */
bool job_may_exit(const struct job *job, double now_s);

/* For status. */
enum member_state job_worker_state(const struct job *job, int worker);
uint64_t job_dropped(const struct job *job);    /* unused gradients of all workers */
uint64_t job_not_finite(const struct job *job); /* those of them that were not finite; the rest arrived too late */
/* Describes what the job waits for, or how it ended; may be empty. */
void job_describe(struct job *job, double now_s, char message[JOB_MESSAGE]);
int job_present(const struct job *job); /* workers that take part: present, ready and not idle */

#endif
