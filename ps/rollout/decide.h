/*
 * What a rollout does next: the decisions of the member that leads it (ps 0).
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s: monotonic
 * seconds, never going back), and reads from it what every member is to do (`order`, `step`), until the next event. One
 * thread at a time. What must be on the disk before members hear of it is said by `changes`: the host compares it after
 * every event with what it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               | ^          |            |
 *               v |          +-----+------+
 *   trying -> saving               v
 *       idle                   going back -> restoring -> idle    the fleet is on the fallback
 *
 * Staging: every member has verified and stored both versions, and worker 0 has a checkpoint of the moment. Then it
 * depends on what changes, the kind of the rollout:
 *
 * - live: every ps takes the target from the same global step on, while training goes on. To go back, everybody takes the
 *   fallback at once, and then (restoring) worker 0 writes that checkpoint to every shard as a new generation.
 * - job: worker 0 tries the target on a copy of the checkpoint (trying) and makes one more of the whole job (saving);
 *   then (switching) every member starts itself anew in the target, and worker 0 restores. Going back is the same way.
 *   Until saving is over nothing has changed.
 * - local: workers start themselves anew in the target in waves, the first of a single one, the canary, which is watched
 *   for a while; a ps, whose restart would cost steps, takes it at its next start. So does going back.
 *
 * A live change is one of a generation: if that ends before all have switched, as it does when a ps is lost, then some
 * would begin the next one with the target and some without, so that all go back.
 *
 * A target under which the job would be over before it is in force is not begun: there would be nothing to watch, and a
 * number that is too small by mistake would end a job for good.
 *
 * Watching: for healthy_s, and until steps came of it, everybody must be heard of, steps must be made, and losses stay
 * finite and near what they were.
 * Going back is never given up.
 *
 * Where the config lets workers join that it does not list (cluster.elastic), those take part like all others from when
 * they are heard of while it is staged, or have staged it later, until they are silent, or late: then nobody waits for
 * them, and nothing is given up for them, unless one says why it can't. Whatever they missed they hear when they are back.
 *
 * A worker of the list that was not heard of for ROLLOUT_IDLE_TIMEOUT_S when the rollout began is off, and like those that are not
 * listed: it takes part once it is back. The chief is asked for always. Who was off is a part of what a leader must know that
 * starts anew, or else one that the whole job does without would be waited for from then on.
 *
 * A job that waits for workers (cluster.min_workers) can be given another config, too, which may be what it waits for. It is
 * kept waiting until all have switched, so that a live change is one before any step; workers that are not there are like
 * those that are not listed; and as long as it waits, neither steps nor workers that are ready are asked for. It is watched
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
    ORDER_RESTORE = 4, /* worker 0: write the checkpoint of before */
    ORDER_TRY = 5,     /* worker 0: try the target on a copy of the checkpoint */
    ORDER_SAVE = 6,    /* worker 0: one more checkpoint, the last before it starts anew */
    ORDER_RESTART = 7, /* start anew in the target */
    ORDER_RETURN = 8,  /* start anew in the fallback */
    ORDER_CATCH_UP = 9 /* start anew in the version that the fleet is on, which came while the member was away */
};

/* How far a member is with the rollout at hand. The values travel: never renumber. */
enum rollout_phase {
    PHASE_NONE = 0,
    PHASE_STAGED = 1,
    PHASE_SWITCHED = 2,
    PHASE_BACK = 3,
    PHASE_RESTORED = 4,
    PHASE_FAILED = 5, /* it can't, and its message says why */
    PHASE_LATE = 6,   /* a ps was told of the step when it was over */
    PHASE_TRIED = 7,
    PHASE_SAVED = 8,
};

enum {
    ROLLOUT_STAGE_S = 60,        /* for all to stage */
    ROLLOUT_SWITCH_S = 60,       /* for all to switch, from the order on; for each wave */
    ROLLOUT_TRY_S = 180,         /* for worker 0 to try it */
    ROLLOUT_SAVE_S = 60,         /* for worker 0 to save */
    ROLLOUT_CANARY_S = 5,        /* that the canary is watched for, or healthy_s if that is less */
    ROLLOUT_RETURN_S = 60,       /* for a member that is lost while it is watched, to be back */
    ROLLOUT_IDLE_TIMEOUT_S = 10, /* a member not heard of for so long is not healthy */
    ROLLOUT_STANDING_S = 20      /* the same for steps that are not made */
};

enum { ROLLOUT_MAX_LISTED = 1024 };

/* Workers of the list that were off when the rollout began: bit i % 8 of bits[i / 8] is worker i's. */
struct rollout_absent {
    uint8_t bits[ROLLOUT_MAX_LISTED / 8];
};
bool rollout_is_absent(const struct rollout_absent *absent, struct member who);

struct rollout_member {
    struct member who;
    enum rollout_phase phase;
    double heard_s; /* -1: never */
    uint64_t version;
    bool listed;     /* in the config; others come and go */
    bool awaited;    /* its silence counts: it is listed, and a ps, the chief, or was there when the rollout began */
    bool takes_part; /* in the rollout at hand; all that are awaited do */
    bool ready;      /* it takes part in training */
    bool told;       /* the order of the state at hand */
    char message[256];
};

/* What a member says about itself. */
struct rollout_report {
    enum rollout_phase phase; /* of `target` */
    uint64_t version;         /* in force there */
    uint64_t target;          /* that it staged; 0: none */
    bool ready;               /* it takes part in training, or serves */
    const char *message;
};

/* How training is, as far as the leader knows. */
struct rollout_vitals {
    int64_t global_step;
    double steps_per_s;
    double loss; /* the worst of all workers'; NaN: some are not finite */
    uint32_t generation;
    int under_way;     /* steps that may come yet of gradients that are computed already */
    double may_come_s; /* a step may wait so long for workers that were not seen yet; 0: none does */
    bool training;     /* false: the job has no model yet, restores or is over */
    bool waits;        /* training, but not yet: for more workers */
    bool over;         /* the job is done */
};

struct rollout {
    enum rollout_state state;
    enum rollout_outcome outcome; /* of the last one */
    enum rollout_kind kind;
    uint64_t target, fallback; /* versions */
    int64_t step;              /* of ORDER_SWITCH */
    int64_t last_step;         /* under the target; 0: none */
    bool waited;               /* the job did, for workers, when it began */
    bool waits;                /* and does still */
    struct rollout_absent absent;
    bool at_once; /* ORDER_SWITCH, for no step can be made meanwhile */
    double healthy_s;
    struct rollout_member *members; /* [count] */
    int count;                      /* with those that may join */
    char reason[512];               /* why it ended, or goes back */
    double began_s;                 /* the state */
    double bad_since_s, moved_s;
    int64_t moved_step;
    int64_t proof_step;  /* watching: only steps from here on tell what the target does */
    uint32_t generation; /* that was switched */
    double loss_before;
    double slowest_s;   /* the longest that a member took between two reports while it staged */
    double steps_per_s; /* the most since it began: while members check a candidate, training is slower than after it */
    int wave;           /* local: so many members, in the order of waves, are told to start anew */
    double wave_s;      /* since when */
    double settled_s;   /* since when the wave is complete; -1: it is not */
    bool leader_may_go; /* all others know of a restart */
    uint64_t changes;   /* counts changes of the state, for whoever stores it */
};

/* ps and workers: how many are listed; room: workers with those that may join. False without memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers, int room);
void rollout_destroy(struct rollout *rollout);

/* How many workers a config lists, and how many of them must be there before a job begins to train. */
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

    /* For rollout_resume. */
    bool waited;
    struct rollout_absent absent;
};

/*
 * False, with a message, while another one is under way, or if the job would be over, or, once all have started anew, would
 * wait for workers that are off. The manifest is the host's business, and was checked.
 */
bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[256]);

/*
 * The leader was started again in the middle of one, and `state` is what it had stored. A job that was starting anew goes
 * on doing so, for the leader is a part of it; whatever else may have switched goes back. reason: why it went back already.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s);

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The leader itself stood still for so long: what others did not do or say meanwhile is no fault of theirs. */
void rollout_stood_still(struct rollout *rollout, double seconds);

/* The operator changed their mind. False, with a message, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char message[256]);

/* Is the job to be kept from beginning to train? */
bool rollout_keeps_waiting(const struct rollout *rollout);

/* What this member is to do; rollout_told once it has been told. rollout_order_step: as it is told; 0: at once. */
int64_t rollout_order_step(const struct rollout *rollout);
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);
void rollout_told(struct rollout *rollout, struct member who);

/*
 * What a member is to do that was away and has this version, where ps 0 has another: while none is under way, and before it
 * can take part in one.
 */
enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version);

/* Is this member where the state at hand wants everybody to be? One that takes no part does not keep the others. */
bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member);

/* Heard of lately? */
bool rollout_is_here(const struct rollout_member *member, double now_s);

/* How many take part. */
int rollout_participation(const struct rollout *rollout);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

#endif
