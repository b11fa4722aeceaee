/*
 * The state of a rollout: its members, its plan, the vitals of training, and its progress (decide.h explains it all).
 * For the code that decides (decide.c, members.c, orders.c, waves.c), and for the code that shows it.
 */
#ifndef PS_ROLLOUT_STATE_H
#define PS_ROLLOUT_STATE_H

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
    double loss;  /* the worst of all workers; NaN: one is not finite */
    double guess; /* the loss of an untrained model; infinite: not known */
    bool unsure;  /* a present worker has reported no loss since it joined */
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
    bool guessed;       /* not all workers had reported loss_before */
    double slowest_s;   /* the longest time between two reports of a member while it staged */
    double steps_per_s; /* the maximum since it began: training is slower while members check a candidate */
    int wave;           /* local: this many members, in the order of waves, are ordered to restart */
    double wave_s;      /* since when */
    bool is_first_wave; /* the canary */
    double settled_s;   /* when the canary was in the target; -1: it is not */
    bool brings_program;
    struct rollout_waves waves;
    bool is_paused;               /* local: no other member restarts */
    char pause[256];              /* why */
    enum rollout_ps_turn ps_turn; /* of such a rollout */
    bool leader_may_go;           /* all others know of the restart */
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

#endif
