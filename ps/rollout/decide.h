/*
 * What a rollout does next: the decisions of the member that leads it, ps 0.
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s:
 * monotonic seconds, never going back) and reads from it what every member is to do (`order`, `step`) until the next
 * event. One thread at a time. `changes` counts what must be on disk before members hear of it: the host compares it
 * after every event with what it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               | ^          |            |
 *               v |          +-----+------+
 *   trying -> saving               v
 *       idle                   going back -> restoring -> idle    the fleet is on the fallback
 *
 * Staging: every member has verified and stored both versions, and worker 0 has written a checkpoint. What follows
 * depends on what changes, the kind of the rollout:
 *
 * - live: every ps takes the target from the same global step on, while training goes on. To go back, all take the
 *   fallback at once, and then (restoring) worker 0 writes that checkpoint to every shard as a new generation.
 * - job: worker 0 tries the target on a copy of the checkpoint (trying) and writes one more of the whole job
 *   (saving); then (switching) every member restarts in the target, and worker 0 restores. Going back is the same
 *   way. Until saving is over nothing has changed.
 * - local: workers restart in the target in waves. The first wave is a single worker, the canary, which is watched
 *   for a while. A ps, whose restart would cost steps, takes it at its next start. Going back is the same way.
 *
 * A local rollout may bring a program. Then the waves are those of its manifest; a member counts as restarted once it
 * says in a handshake that it is the new build, and a worker once it has made a step in it. When the workers have,
 * worker 0 writes a checkpoint, and every ps restarts at once, which costs a generation. ps 0 goes last; when it comes
 * back in the target, the rollout goes on.
 *
 * A live change belongs to one generation. If that ends before all have switched, as it does when a ps is lost, some
 * would begin the next one with the target and some without, so all go back.
 *
 * A target under which the job would be over before it is in force is not rolled out: there would be nothing to
 * watch, and a number that is too small by mistake would end a job for good.
 *
 * Watching: for healthy_s, and until that has brought steps, every member must be heard of, steps must be made, and
 * losses must stay finite and near what they were. Going back is never given up.
 *
 * Workers that the config does not list (cluster.elastic) take part from when they are heard of during staging, or
 * have staged it later, until they fall silent or are late. Nobody waits for them then, and the rollout is given up
 * for one only if it says why it can't. What they missed they are told when they are back.
 *
 * A listed worker that was not heard of for ROLLOUT_IDLE_TIMEOUT_S when the rollout began is off, and treated the
 * same way; the chief is always waited for. Who was off is part of what a restarted leader must know, or it would
 * wait from then on for a worker that the whole job does without.
 *
 * A job that waits for workers (cluster.min_workers) can be given another config too, which may be what it waits for.
 * It is kept waiting until all have switched, so that a live change comes before any step; missing workers are
 * treated like unlisted ones; and as long as it waits, neither steps nor ready workers are asked for. It is watched
 * until it has trained for healthy_s.
 */
#ifndef PS_ROLLOUT_DECIDE_H
#define PS_ROLLOUT_DECIDE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/member.h"

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
const char *rollout_state_name(enum rollout_state state);
bool rollout_state_by_name(const char *name, enum rollout_state *state);

/* Is something in force, or about to be, that may have to be undone? */
bool rollout_state_is_risky(enum rollout_state state);

/* Stored on disks: never renumber. The later of two counts for more. */
enum rollout_kind { ROLLOUT_LIVE, ROLLOUT_LOCAL, ROLLOUT_JOB };

/* How the last one ended. */
enum rollout_outcome { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_NOT_BEGUN, OUTCOME_WENT_BACK };

/* What members are told. The values travel: never renumber. */
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

/* How far a member is with the current rollout. The values travel: never renumber. */
enum rollout_phase {
    PHASE_NONE = 0,
    PHASE_STAGED = 1,
    PHASE_SWITCHED = 2,
    PHASE_BACK = 3,
    PHASE_RESTORED = 4,
    PHASE_FAILED = 5, /* it can't; its message says why */
    PHASE_LATE = 6,   /* a ps heard of the step after it */
    PHASE_TRIED = 7,
    PHASE_SAVED = 8,
};

enum {
    ROLLOUT_STAGE_S = 60,        /* for all to stage */
    ROLLOUT_SWITCH_S = 60,       /* for all to switch, from the order on; for each wave */
    ROLLOUT_TRY_S = 180,         /* for worker 0 to try it */
    ROLLOUT_SAVE_S = 60,         /* for worker 0 to save */
    ROLLOUT_CANARY_S = 5,        /* the canary is watched this long, or healthy_s if that is less */
    ROLLOUT_RETURN_S = 60,       /* for a member that is lost while watched, to be back */
    ROLLOUT_IDLE_TIMEOUT_S = 10, /* a member silent for this long is not healthy */
    ROLLOUT_STANDING_S = 20      /* nor is a job that makes no step for this long */
};

enum { ROLLOUT_MAX_LISTED = 1024 };

/* Workers of the list that were off when the rollout began: bit i % 8 of bits[i / 8] is worker i's. */
struct rollout_absent {
    uint8_t bits[ROLLOUT_MAX_LISTED / 8];
};
/* False for a ps and the chief, which are always waited for. */
bool rollout_is_absent(const struct rollout_absent *absent, struct member who);

/* How many workers have restarted when each wave is complete; what they leave is one more wave. */
enum { ROLLOUT_MAX_WAVES = 8 };

#define ROLLOUT_PERCENT (UINT32_C(1) << 31)

struct rollout_waves {
    int count;
    uint32_t items[ROLLOUT_MAX_WAVES]; /* a number, or ROLLOUT_PERCENT and a share of all */
};

struct rollout_member {
    struct member who;
    enum rollout_phase phase;
    double heard_s; /* -1: never */
    uint64_t version;
    bool listed;      /* in the config; others come and go */
    bool awaited;     /* its silence counts: listed, and a ps, the chief, or there when the rollout began */
    bool takes_part;  /* in the current rollout; all that are awaited do */
    bool ready;       /* it takes part in training */
    bool told;        /* the order of the current state */
    bool runs_target; /* of a rollout that brings a program */
    int64_t steps;    /* of a worker's process */
    char message[256];
};

/* What a member says about itself. */
struct rollout_report {
    enum rollout_phase phase; /* of `target` */
    uint64_t version;         /* in force there */
    uint64_t target;          /* that it staged; 0: none */
    bool ready;               /* it takes part in training, or serves */
    bool runs_target;         /* it says that it is a build that the rollout brings */
    int64_t steps;            /* that a worker has made since its process began */
    const char *message;
};

/* The state of training, as far as the leader knows. */
struct rollout_vitals {
    int64_t global_step;
    double steps_per_s;
    double loss;  /* the worst of all workers; NaN: one is not finite */
    double guess; /* the loss of a model that has learnt nothing; infinite: nobody can tell */
    bool unsure;  /* a worker that is here has told no loss since it joined */
    uint32_t generation;
    int under_way;     /* steps that may still come from gradients computed already */
    double may_come_s; /* a step may wait this long for workers not seen yet; 0: none does */
    bool training;     /* false: the job has no model yet, restores or is over */
    bool waits;        /* training is to begin once more workers are there */
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
    int count;                      /* with those that may join */
    char reason[512];               /* why it ended or goes back */
    double began_s;                 /* the state */
    double bad_since_s, moved_s;
    int64_t moved_step;
    int64_t proof_step;  /* watching: only steps from here on show what the target does */
    uint32_t generation; /* that was switched */
    double loss_before;
    bool may_lose;      /* of the plan */
    bool guessed;       /* not all workers had told loss_before */
    double slowest_s;   /* the longest time between two reports of a member while it staged */
    double steps_per_s; /* the most since it began: training is slower while members check a candidate */
    int wave;           /* local: this many members, in the order of waves, are told to restart */
    double wave_s;      /* since when */
    bool is_first_wave; /* the canary */
    double settled_s;   /* when the wave was complete; -1: it is not */
    bool brings_program;
    struct rollout_waves waves;
    enum rollout_ps_turn ps_turn; /* of such a rollout */
    bool leader_may_go;           /* all others know of the restart */
    uint64_t changes;             /* of the state; see above */
};

/* ps and workers: how many are listed; room: for all workers, with those that may join. False without memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers, int room);
void rollout_destroy(struct rollout *rollout);

/* How many workers a config lists, and how many of them a job needs before it begins to train. */
struct rollout_demand {
    int listed, least; /* least 0: nothing is known */
};

/* What to roll out. */
struct rollout_plan {
    uint64_t target, fallback; /* versions */
    enum rollout_kind kind;
    double healthy_s;
    int64_t last_step; /* of the job, under the target; 0: none */
    struct rollout_demand to, from;
    bool may_lose;              /* what the model has learnt */
    bool brings_program;        /* only of ROLLOUT_LOCAL */
    struct rollout_waves waves; /* likewise; none: they double */

    /* For rollout_resume. */
    bool leader_is_in_target;
    bool waited;
    struct rollout_absent absent;
};

/*
 * False, with a message, while another one is under way, or if the job would be over, or if, once all have restarted,
 * it would wait for workers that are off. The host has checked the manifest.
 */
bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[256]);

/*
 * The leader was restarted during a rollout; `state` is what it had stored. A job that was restarting goes on, for the
 * leader is a part of it, and so does a rollout that brings a program if the leader is in it by now; anything else that
 * may have switched goes back. reason: why it was going back already.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s);

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The leader itself stood still for this long: what others did not do or say meanwhile is not held against them. */
void rollout_stood_still(struct rollout *rollout, double seconds);

/* Programs are on their way: staging takes longer then. */
void rollout_moves(struct rollout *rollout, double now_s);

/* False, with a message, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char message[256]);

/* Must the job not begin to train yet? */
bool rollout_keeps_waiting(const struct rollout *rollout);

/* What this member is to do, and from which step on (0: at once); rollout_told once it has been told. */
int64_t rollout_order_step(const struct rollout *rollout);
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);
void rollout_told(struct rollout *rollout, struct member who);

/*
 * What a member that was away is to do, whose version is not the one in force at ps 0: while no rollout is under way,
 * or before it can take part in one.
 */
enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version);

/* Is this member where the current state wants everybody to be? True for one that takes no part. */
bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member);

/* Was it heard of lately? */
bool rollout_is_here(const struct rollout_member *member, double now_s);

/* How many take part. */
int rollout_count_members(const struct rollout *rollout);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

#endif
