/*
 * The decisions of a rollout, made by the member that leads it, ps 0.
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s: monotonic
 * seconds, never going back) and reads from it what every member is to do (`order`, `step`) until the next event. One
 * thread at a time. `changes` counts changes that must be on disk before members learn of them: after every event the
 * host compares it with the value it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               | ^          |            |
 *               v |          +-----+------+
 *   trying -> saving               v
 *       idle                   going back -> restoring -> idle    the fleet is on the fallback
 *
 * Staging: every member verifies and stores both versions, and worker 0 writes a checkpoint. The rest depends on the
 * kind of the rollout:
 *
 * - live: every ps switches to the target at the same global step, while training continues. To go back, all switch to
 *   the fallback at once, and then (restoring) worker 0 writes that checkpoint to every shard as a new generation.
 * - job: worker 0 tries the target on a copy of the checkpoint (trying) and writes another one of the whole job
 *   (saving); then (switching) every member restarts in the target, and worker 0 restores. Going back works the same
 *   way. Nothing changes until saving is over.
 * - local: workers restart in the target in waves. The first wave is a single worker, the canary, which is watched for
 *   a while. A ps, whose restart would cost steps, switches at its next start. Going back works the same way.
 *
 * A local rollout may include a program. Then its manifest defines the waves, and the first has a canary of each
 * architecture; a member counts as restarted once a handshake reports the new build, and a worker once it has also made
 * a step in it. If canaries are much slower than before, the rollout goes no further. When the
 * workers are done, worker 0 writes a checkpoint, and every ps restarts at once, which costs a generation. ps 0 goes
 * last; when it is back in the target, the rollout continues.
 *
 * A disruption budget limits how many workers may be away at once, restarting or failed. The first failure (other than
 * of the canary) pauses the rollout: no other member restarts until the failed one is back or the operator resumes,
 * which continues without it, as if it had been off. If more fail than the budget allows, all go back.
 *
 * A live change belongs to one generation. If that ends before all have switched, for instance because a ps is lost,
 * some members would begin the next one in the target and some in the fallback, so all go back.
 *
 * A target under which the job would already be over when it comes into force is refused: there would be nothing to
 * watch, and a number that is too small by mistake would end the job for good.
 *
 * Watching: for healthy_s, and until there were steps, every member must report, steps must be made, and losses must
 * stay finite and near their old values. Going back is never abandoned.
 *
 * Workers that the config does not list (cluster.elastic) take part once they report during staging, or have staged
 * later, until they fall silent or are late. Then nobody waits for them, and the rollout is abandoned because of one
 * only if it reports why it can't follow. They catch up when they are back.
 *
 * A listed worker that had been silent for ROLLOUT_IDLE_TIMEOUT_S when the rollout began is off, and treated the same
 * way; the chief is always awaited. The set of workers that were off is stored for a restarted leader, which would
 * otherwise wait for a worker that the job does without.
 *
 * A job that waits for workers (cluster.min_workers) can take another config, too, which may end its wait. It is kept
 * waiting until all have switched, so that a live change comes before any step; missing workers are treated like
 * unlisted ones; and while it waits, neither steps nor ready workers are required. It is watched until it has trained
 * for healthy_s.
 */
#ifndef PS_ROLLOUT_DECIDE_H
#define PS_ROLLOUT_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/member.h"

/* --- State --- */

/*
 * The state of a rollout: its members, its plan, the vitals of training, and its progress.
 *
 */

/* Stored on disks by name; never rename. */
enum rollout_state {
    ROLLOUT_IDLE,
    ROLLOUT_STAGING,
    ROLLOUT_SWITCHING,
    ROLLOUT_WATCHING,
    ROLLOUT_GOING_BACK,
    ROLLOUT_RESTORING,
    ROLLOUT_TRYING,
    ROLLOUT_SAVING,
};

/* Stored on disks: never renumber. Of two kinds, the later one prevails. */
enum rollout_kind { ROLLOUT_LIVE, ROLLOUT_LOCAL, ROLLOUT_JOB };

/* How the last one ended. */
enum rollout_outcome { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_NOT_BEGUN, OUTCOME_WENT_BACK };

/* Orders to members. Values on the wire: never renumber. */
enum rollout_order {
    ORDER_NOTHING = 0,
    ORDER_STAGE = 1,   /* verify and store both versions */
    ORDER_SWITCH = 2,  /* take the target from global step `step` on */
    ORDER_BACK = 3,    /* take the fallback, at once */
    ORDER_RESTORE = 4, /* worker 0: write the checkpoint from before */
    ORDER_TRY = 5,     /* worker 0: try the target on a copy of the checkpoint */
    ORDER_SAVE = 6,    /* worker 0: one more checkpoint, the last before it restarts */
    ORDER_RESTART = 7, /* restart in the target */
    ORDER_RETURN = 8,  /* restart in the fallback */
    ORDER_CATCH_UP = 9 /* restart in the version that the fleet came to while the member was away */
};

/* A member's progress in the current rollout. Values on the wire: never renumber. */
enum rollout_phase {
    PHASE_NONE = 0,
    PHASE_STAGED = 1,
    PHASE_SWITCHED = 2,
    PHASE_BACK = 3,
    PHASE_RESTORED = 4,
    PHASE_FAILED = 5, /* it can't follow; its message says why */
    PHASE_LATE = 6,   /* a ps learned of the step only after it */
    PHASE_TRIED = 7,
    PHASE_SAVED = 8,
};

enum {
    ROLLOUT_STAGE_S = 60,        /* for all to stage */
    ROLLOUT_SWITCH_S = 60,       /* for all to switch, from the order on; per wave */
    ROLLOUT_TRY_S = 180,         /* for worker 0 to try it */
    ROLLOUT_SAVE_S = 60,         /* for worker 0 to save */
    ROLLOUT_CANARY_S = 5,        /* the canary is watched this long, or healthy_s if that is less */
    ROLLOUT_RETURN_S = 60,       /* for a member lost during watching to come back */
    ROLLOUT_IDLE_TIMEOUT_S = 10, /* a member silent for this long is not healthy */
    ROLLOUT_STANDING_S = 20      /* a job without a step for this long is not healthy */
};

enum { ROLLOUT_MAX_LISTED = 1024, ROLLOUT_MESSAGE = 256 /* room for a reason */ };

/* Workers of the list that were off when the rollout began: bit i % 8 of bits[i / 8] is worker i's. */
struct rollout_absent {
    uint8_t bits[ROLLOUT_MAX_LISTED / 8];
};

/* Cumulative numbers of workers restarted after each wave; the remaining ones are one more wave. */
enum { ROLLOUT_MAX_WAVES = 8, ROLLOUT_ARCHITECTURES = 8 };

#define ROLLOUT_PERCENT (UINT32_C(1) << 31)

struct rollout_waves {
    int count;
    uint32_t items[ROLLOUT_MAX_WAVES]; /* a number, or ROLLOUT_PERCENT and a share of all */
    uint32_t budget;      /* likewise, how many may be away at once; 0: a wave, and the first error ends the rollout */
    uint32_t least_speed; /* in percent of a worker's previous speed; 0: no limit */
};

/* The steps per second of a worker's process. */
struct rollout_pace {
    double since_s; /* start of the count; -1: not counting */
    int64_t steps;  /* at that time */
    bool of_target;
    double rate, before; /* recent, and before the rollout; -1: not known */
    double seconds;      /* the period that rate was measured over */
};

struct rollout_member {
    struct member who;
    enum rollout_phase phase;
    double heard_s; /* -1: never */
    uint64_t version;
    bool listed;      /* in the config; others come and go */
    bool awaited;     /* its silence counts: listed, and a ps, the chief, or present when the rollout began */
    bool takes_part;  /* in the current rollout; all awaited members do */
    bool is_late;     /* it joined while others were already switching, and is not a canary beside one of them */
    bool ready;       /* it takes part in training */
    bool delivered;   /* it was sent the current state's order */
    bool runs_target; /* in a rollout that includes a program */
    bool is_out;      /* it could not follow, within the budget */
    int architecture; /* as in its report */
    int64_t steps;    /* of a worker's process */
    struct rollout_pace pace;
    char message[256];
};

/* A member's report about itself. */
struct rollout_report {
    enum rollout_phase phase; /* of `target` */
    uint64_t version;         /* in force there */
    uint64_t target;          /* the version it staged; 0: none */
    bool ready;               /* it takes part in training, or serves */
    bool runs_target;         /* it reports a build that the rollout includes */
    int architecture; /* below ROLLOUT_ARCHITECTURES: the same for all that run the same program; 0: not known */
    int64_t steps;    /* a worker's steps since its process started */
    const char *message;
};

/* The state of training, as far as the leader knows. */
struct rollout_vitals {
    int64_t global_step;
    double steps_per_s;
    double loss;        /* the worst of all workers; NaN: one is not finite */
    double chance_loss; /* the loss of an untrained model; infinite: not known */
    bool unsure;        /* a present worker has reported no loss since it joined */
    uint32_t generation;
    int under_way;     /* steps that may still result from gradients already computed */
    double may_come_s; /* a step may wait this long for workers not seen yet; 0: no step does */
    bool training;     /* false: the job has no model yet, restores or is over */
    bool waits;        /* training begins once more workers are present */
    bool in_step;      /* workers wait for each other, so that a slow one slows all */
    bool over;         /* the job is done */
};

/* When every ps restarts in a new program. */
enum rollout_ps_turn { PS_STAYS, PS_WAITS_FOR_SAVE, PS_RESTARTS };

struct rollout {
    enum rollout_state state;
    enum rollout_outcome outcome; /* of the last one */
    enum rollout_kind kind;
    uint64_t target, fallback; /* versions */
    int64_t step;              /* of ORDER_SWITCH */
    int64_t last_step;         /* under the target; 0: none */
    bool waited;               /* the job waited for workers when the rollout began */
    bool waits;                /* and still does */
    struct rollout_absent absent;
    bool at_once; /* ORDER_SWITCH: no step can be made meanwhile */
    double healthy_s;
    struct rollout_member *members; /* [count] */
    int count;                      /* including those that may join */
    char reason[512];               /* why it ended or goes back */
    double began_s;                 /* the state */
    double bad_since_s, moved_s;
    double slow_since_s; /* -1: it is not */
    int64_t moved_step;
    int64_t proof_step;  /* watching: only steps from here on reflect the target */
    uint32_t generation; /* in which members switched */
    double loss_before;
    bool may_lose;      /* of the plan */
    bool is_estimate;   /* not all workers had reported loss_before */
    double slowest_s;   /* the longest time between two reports of a member while it staged */
    double steps_per_s; /* the maximum since it began: training is slower while members check a candidate */
    int wave;           /* local: this many members, in the order of waves, are ordered to restart */
    double wave_s;      /* since when */
    bool is_first_wave; /* the canary */
    double settled_s;   /* when the wave was complete; -1: it is not */
    bool brings_program;
    struct rollout_waves waves;
    bool is_paused;               /* local: no other member restarts */
    char pause[256];              /* why */
    enum rollout_ps_turn ps_turn; /* of such a rollout */
    bool leader_may_restart;      /* all others know of the restart */
    uint64_t changes;             /* of the state; see decide.h */
};

/* The workers that a config lists, and the number that a job needs to begin training. */
struct rollout_demand {
    int listed, least; /* least 0: not known */
};

/* What to roll out. */
struct rollout_plan {
    uint64_t target, fallback; /* versions */
    enum rollout_kind kind;
    double healthy_s;
    int64_t last_step; /* of the job, under the target; 0: none */
    struct rollout_demand to, from;
    bool may_lose;              /* parameters of the model may be lost */
    bool brings_program;        /* only of ROLLOUT_LOCAL */
    struct rollout_waves waves; /* likewise; none: waves double */

    /* For rollout_resume. */
    bool leader_is_in_target;
    bool waited;
    struct rollout_absent absent;
};

/* Worker 0. */
static inline bool rollout_is_chief(struct member who)
{
    return who.role == MEMBER_WORKER && who.index == 0;
}

/* ps 0. */
static inline bool rollout_is_leader(struct member who)
{
    return who.role == MEMBER_PS && who.index == 0;
}

/* --- Members --- */

/*
 * The members of a rollout: who there is, who takes part, and whose silence counts.
 */

/* ps, workers: the numbers listed; room: of all workers, including those that may join. False if out of memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers, int room);
void rollout_destroy(struct rollout *rollout);

/* False for a ps and the chief, which are always awaited. */
bool rollout_is_absent(const struct rollout_absent *absent, struct member who);

/* True if it has reported recently. */
bool rollout_is_here(const struct rollout_member *member, double now_s);

/* The number of members that take part. */
int rollout_count_members(const struct rollout *rollout);

/* --- Decisions --- */

const char *rollout_state_name(enum rollout_state state);
bool rollout_state_by_name(const char *name, enum rollout_state *state);

/* True if something is in force, or about to be, that may have to be undone. */
bool rollout_state_is_risky(enum rollout_state state);

/*
 * False, with a message, if another rollout is in progress, if the job would be over, or if after the restart it would
 * wait for workers that are off. The host has checked the manifest.
 */
bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[ROLLOUT_MESSAGE]);

/*
 * The leader was restarted during a rollout; `state` is its stored state. A rollout that restarts the whole job
 * continues, since that includes the leader, and so does one of a program that the leader now runs; any other that may
 * have switched goes back. reason: why it was already going back.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s);

void rollout_on_report(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The leader itself stood still for this long: extends all deadlines of others accordingly. */
void rollout_extend_deadlines(struct rollout *rollout, double seconds);

/* Programs are being transferred: extends staging. */
void rollout_note_transfer(struct rollout *rollout, double now_s);

/* False, with a message, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE]);

/* Continues without the members that could not follow. False, with a message, if it is not paused. */
bool rollout_continue(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE]);

/* True if the job must not begin to train yet. */
bool rollout_holds_job(const struct rollout *rollout);

/* The order for this member, and the step from which it applies (0: at once); once it was sent: rollout_delivered. */
int64_t rollout_order_step(const struct rollout *rollout);
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);
void rollout_delivered(struct rollout *rollout, struct member who);

/*
 * The order for a member that was away and whose version is not the one in force at ps 0, while there is no rollout, or
 * before it can take part in one.
 */
enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

/* --- Waves --- */

/*
 * The order of restarts in a local rollout, the limit on absent members, and the speed of restarted ones. Part of the
 * decisions (decide.h), and like them without clock, threads or files.
 */

/*
 * In a local rollout members restart in waves: member n of the order belongs to the first wave that reaches beyond n.
 * Workers go from the last one down to worker 0, then every ps, so that the canary is the member missed least. With a
 * new program there is a canary of each architecture, and awaited members go before those that come and go, since a bad
 * program's silence must be noticed.
 */
int waves_place(const struct rollout *rollout, struct member who);

/* The number of workers that take part. */
int waves_workers(const struct rollout *rollout);

/* The number of members restarted when the next wave is complete. */
int waves_next(const struct rollout *rollout);

/* --- Members that can't follow --- */

/*
 * True if the rollout tolerates that this member can't follow, for the reason already set: a budget allows it, and it
 * is neither a ps, nor worker 0, nor a canary. The rollout is then paused.
 */
bool waves_within_budget(struct rollout *rollout, struct rollout_member *member);

/* True if it is paused. Ends the pause if no participating member is out any more. */
bool waves_is_paused(struct rollout *rollout);

/* Continues without the members that could not follow, as if they had been off since the rollout began. */
void waves_exclude_failed(struct rollout *rollout);

/* --- Speed --- */

void pace_on_report(const struct rollout *rollout, struct rollout_member *member, double now_s);

enum pace_verdict { PACE_FINE, PACE_UNKNOWN, PACE_SLOW, PACE_STILL_SLOW };

/* Compares the canaries' speed with their previous one. PACE_SLOW: `reason` names the slow one. PACE_STILL_SLOW:
   also in a count that ended after rollout->slow_since_s, since one count of a few steps may be slow by chance. */
enum pace_verdict pace_of_canaries(const struct rollout *rollout, const struct rollout_vitals *vitals,
                                   char reason[ROLLOUT_MESSAGE]);

#endif
