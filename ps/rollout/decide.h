/*
 * What a rollout does next: the decisions of the member that leads it (ps 0), for changes of live keys.
 *
 * A state machine without clock, threads, sockets or files. Its host tells it what happened and when (now_s: monotonic
 * seconds, never going back), and reads from it what every member is to do (`order`, `step`), until the next event. One
 * thread at a time. What must be on the disk before members hear of it is said by `stored`: the host compares it after
 * every event with what it stored last.
 *
 *     idle -> staging -> switching -> watching -> idle            all went well: the fleet is on the target
 *               |            |            |
 *               v            +-----+------+
 *             idle                 v
 *        (nothing changed)    going back -> restoring -> idle     the fleet is on the fallback
 *
 * Staging: every member has verified and stored both versions, and worker 0 has a checkpoint of the moment. Switching:
 * every ps takes the target from the same global step on. Watching: for healthy_s everybody must be heard of, steps must
 * be made, and losses stay finite and near what they were. Going back: everybody takes the fallback, at once. Restoring:
 * worker 0 writes that checkpoint to every shard as a new generation. Going back is never given up.
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
};
const char *rollout_state_name(enum rollout_state state);
bool rollout_state_by_name(const char *name, enum rollout_state *state);

/* How the last one ended. */
enum rollout_outcome { OUTCOME_NONE, OUTCOME_DONE, OUTCOME_NOT_BEGUN, OUTCOME_WENT_BACK };

/* What members are told. The values travel: never renumber. */
enum rollout_order {
    ORDER_NOTHING = 0,
    ORDER_STAGE = 1,   /* verify and store both versions */
    ORDER_SWITCH = 2,  /* take the target from global step `step` on */
    ORDER_BACK = 3,    /* take the fallback, at once */
    ORDER_RESTORE = 4, /* worker 0: write the checkpoint of before */
};

/* How far a member is with the rollout at hand. The values travel: never renumber. */
enum rollout_phase {
    PHASE_NONE = 0,
    PHASE_STAGED = 1,
    PHASE_SWITCHED = 2,
    PHASE_BACK = 3,
    PHASE_RESTORED = 4,
    PHASE_FAILED = 5, /* it can't, and its sentence says why */
    PHASE_LATE = 6,   /* a ps was told of the step when it was over */
};

enum {
    ROLLOUT_STAGE_S = 60,   /* for all to stage */
    ROLLOUT_SWITCH_S = 60,  /* for all to switch, from the order on */
    ROLLOUT_SILENT_S = 10,  /* a member not heard of for so long is not healthy */
    ROLLOUT_STANDING_S = 20 /* the same for steps that are not made */
};

struct rollout_member {
    struct member who;
    enum rollout_phase phase;
    double heard_s; /* -1: never */
    bool heard_now; /* since this process leads */
    uint64_t version;
    char sentence[256];
};

/* What a member says about itself. */
struct rollout_report {
    enum rollout_phase phase; /* of `target` */
    uint64_t version;         /* in force there */
    uint64_t target;          /* that it staged; 0: none */
    const char *sentence;
};

/* How training is, as far as the leader knows. */
struct rollout_vitals {
    int64_t global_step;
    double steps_per_s;
    double loss;   /* the worst of all workers'; NaN: some are not finite */
    bool training; /* false: the job waits, restores or is over */
    bool over;     /* the job is done */
};

struct rollout {
    enum rollout_state state;
    enum rollout_outcome outcome; /* of the last one */
    uint64_t target, fallback;    /* versions */
    int64_t step;                 /* of ORDER_SWITCH */
    double healthy_s;
    struct rollout_member *members; /* [count] */
    int count;
    char reason[512]; /* why it ended, or goes back */
    double began_s;   /* the state */
    double bad_since_s, moved_s;
    int64_t moved_step;
    double loss_before;
    uint64_t changes; /* counts changes of the state, for whoever stores it */
};

/* ps and workers: how many there are. False without memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers);
void rollout_destroy(struct rollout *rollout);

/* False, with a sentence, while another one is under way. The manifest is the host's business, and was checked. */
bool rollout_begin(struct rollout *rollout, uint64_t target, uint64_t fallback, double healthy_s,
                   const struct rollout_vitals *vitals, double now_s, char sentence[256]);

/*
 * The leader was started again in the middle of one, and `state` is what it had stored. What may have switched goes back.
 */
void rollout_resume(struct rollout *rollout, enum rollout_state state, uint64_t target, uint64_t fallback,
                    double now_s);

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s);
void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s);

/* The operator changed their mind. False, with a sentence, if there is nothing to abort. */
bool rollout_abort(struct rollout *rollout, double now_s, char sentence[256]);

/* What this member is to do. */
enum rollout_order rollout_order(const struct rollout *rollout, struct member who);

/* "switching at step 1200: 3 of 4 members are there, waiting for worker 1" */
void rollout_describe(const struct rollout *rollout, char *text, size_t size);

#endif
