/*
 * What a rollout is made of: its members, its plan, what is known of training, and how far it has come (decide.h says
 * what all of it means). For those who decide, here and in waves.c, and for those who show it.
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

/* How many workers have restarted when each wave is complete; what they leave is one more wave. */
enum { ROLLOUT_MAX_WAVES = 8, ROLLOUT_ARCHITECTURES = 8 };

#define ROLLOUT_PERCENT (UINT32_C(1) << 31)

struct rollout_waves {
    int count;
    uint32_t items[ROLLOUT_MAX_WAVES]; /* a number, or ROLLOUT_PERCENT and a share of all */
    uint32_t budget;      /* likewise, how many may be away at once; 0: a wave, and the first error ends it */
    uint32_t least_speed; /* in percent of a worker's speed before; 0: no bound */
};

/* How many steps a second a worker's process makes. */
struct rollout_pace {
    double since_s; /* of what is being counted; -1: nothing is */
    int64_t steps;  /* as of then */
    bool of_target;
    double rate, before; /* lately, and before the rollout; -1: not known */
    double seconds;      /* that rate is of */
};

struct rollout_member {
    struct member who;
    enum rollout_phase phase;
    double heard_s; /* -1: never */
    uint64_t version;
    bool listed;      /* in the config; others come and go */
    bool awaited;     /* its silence counts: listed, and a ps, the chief, or there when the rollout began */
    bool takes_part;  /* in the current rollout; all that are awaited do */
    bool is_late;     /* it came when the others were changing over already, and is no canary beside one of them */
    bool ready;       /* it takes part in training */
    bool told;        /* the order of the current state */
    bool runs_target; /* of a rollout that brings a program */
    bool is_out;      /* it could not follow, which the budget bears */
    int architecture; /* as in its report */
    int64_t steps;    /* of a worker's process */
    struct rollout_pace pace;
    char message[256];
};

/* What a member says about itself. */
struct rollout_report {
    enum rollout_phase phase; /* of `target` */
    uint64_t version;         /* in force there */
    uint64_t target;          /* that it staged; 0: none */
    bool ready;               /* it takes part in training, or serves */
    bool runs_target;         /* it says that it is a build that the rollout brings */
    int architecture;         /* below ROLLOUT_ARCHITECTURES: one for all that take the same program; 0: not known */
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
    int count;                      /* with those that may join */
    char reason[512];               /* why it ended or goes back */
    double began_s;                 /* the state */
    double bad_since_s, moved_s;
    double slow_since_s; /* -1: it is not */
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
    bool is_paused;               /* local: no other member restarts */
    char pause[256];              /* why */
    enum rollout_ps_turn ps_turn; /* of such a rollout */
    bool leader_may_go;           /* all others know of the restart */
    uint64_t changes;             /* of the state; see above */
};

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

#endif
