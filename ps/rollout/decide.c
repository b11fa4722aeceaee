/*
 * The leader's decisions. decide.h has the states and how they follow each other; here is why they do.
 *
 * One idea carries all of it: whatever can be lost must have been written down before it matters. So everybody has
 * both versions on disk (staging) before anybody runs the new one, the host stores a change of state before it tells
 * members of it, and going back needs neither a key nor the operator. What follows from it:
 *
 * - Until a member may run the target, giving up costs nothing and simply ends the rollout. From then on giving up
 *   means to go back, and that has no time limit: half a fleet on each version would be worse than any wait.
 * - A live change counts from one global step on, and that step must still lie ahead when the last member hears of
 *   it. Members poll; the slowest one's interval, measured while it staged, says how far ahead is far enough.
 * - In a restart of the whole job ps 0 goes last, since the others hear of it only from ps 0.
 * - A leader that was itself started again, or stood still, has no evidence at all yet: it waits before it judges.
 *
 * In this file: from state to state, what the states wait for, and the states, one function for each. Who takes part,
 * and whose silence counts, is in members.c; what a member is told, in orders.c; who restarts with which wave, in
 * waves.c; words for people are in describe.c.
 */
#include "ps/rollout/decide.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ps/rollout/members.h"
#include "ps/rollout/waves.h"

/* A live change takes effect this far ahead, at least and at most; members report at very different intervals. */
static const double MARGIN_S = 2.0, MOST_MARGIN_S = 20.0;
static const int REPORTS = 3; /* of the slowest member: one may just be missed, another be late */
enum { MARGIN_STEPS = 20 };

/* Every member polls more often than that. */
static const double LEADER_WAITS_S = 1.0;

/* By train_steps or epochs, whichever ends the job. */
#define ROLLOUT_OVER                                                                                                   \
    "the job would be over after step %lld, by train.train_steps or train.epochs, and would be at step %lld by then: " \
    "raise them; to end the job now, stop worker 0, which saves it"

/* A loss above this bound is worse than before: single batches differ by far less. */
static const double WORSE_FACTOR = 4.0, WORSE_BY = 1.0, WORSE_FOR_S = 1.0;

/* A pause of one machine is shorter. */
static const double SLOW_FOR_S = 5.0;

/* --- From state to state --- */

bool rollout_state_is_risky(enum rollout_state state)
{
    return state == ROLLOUT_SWITCHING || state == ROLLOUT_WATCHING || state == ROLLOUT_GOING_BACK ||
           state == ROLLOUT_RESTORING;
}

static void enter(struct rollout *rollout, enum rollout_state state, double now_s)
{
    rollout->state = state;
    rollout->began_s = rollout->moved_s = now_s;
    rollout->bad_since_s = rollout->slow_since_s = -1;
    rollout->is_paused = false;
    rollout->leader_may_go = false;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].delivered = false;
    }
    rollout->changes++;
}

static void end_rollout(struct rollout *rollout, enum rollout_outcome outcome, double now_s)
{
    rollout->outcome = outcome;
    rollout->absent = (struct rollout_absent){{0}};
    enter(rollout, ROLLOUT_IDLE, now_s);
}

static void give_reason(struct rollout *rollout, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void give_reason(struct rollout *rollout, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(rollout->reason, sizeof rollout->reason, format, arguments);
    va_end(arguments);
}

/* Before anybody has switched there is nothing to undo. */
static void give_up(struct rollout *rollout, double now_s)
{
    if (rollout->state == ROLLOUT_SWITCHING || rollout->state == ROLLOUT_WATCHING) {
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    } else {
        end_rollout(rollout, OUTCOME_NOT_BEGUN, now_s);
    }
}

/* For a member that can't follow, which the budget may bear; the reason stands. */
static void give_up_for(struct rollout *rollout, struct rollout_member *member, double now_s)
{
    if (!waves_bear(rollout, member)) {
        give_up(rollout, now_s);
    }
}

/*
 * What losses under the target are compared with. As long as a worker has told none since it joined, those of others
 * may be of a model that was given up since, so that the worst of them bounds nothing. That is looked at once more when
 * all is staged: by then a worker has usually made a step.
 */
static void note_loss_before(struct rollout *rollout, const struct rollout_vitals *vitals)
{
    rollout->guessed = vitals->unsure;
    rollout->loss_before =
        rollout->may_lose || vitals->waits || vitals->unsure ? fmax(vitals->loss, vitals->guess) : vitals->loss;
}

/* The last wave: every ps, at once. */
static void begin_ps_turn(struct rollout *rollout, double now_s)
{
    rollout->ps_turn = PS_RESTARTS;
    rollout->wave = rollout->count;
    rollout->wave_s = now_s;
    rollout->leader_may_go = false;
    rollout->began_s = now_s;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].delivered = false;
    }
}

/* vitals NULL: not known yet. */
static void begin_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    if (vitals && rollout->guessed) {
        note_loss_before(rollout, vitals);
    }
    enter(rollout, ROLLOUT_SWITCHING, now_s);
    rollout->generation = vitals ? vitals->generation : 0;
    rollout->wave = 0;
    rollout->wave = waves_next(rollout);
    rollout->is_first_wave = true;
    rollout->wave_s = now_s;
    rollout->settled_s = -1;
}

static void take_plan(struct rollout *rollout, const struct rollout_plan *plan, double loss_before)
{
    rollout->target = plan->target;
    rollout->fallback = plan->fallback;
    rollout->kind = plan->kind;
    rollout->healthy_s = plan->healthy_s;
    rollout->loss_before = loss_before;
    rollout->may_lose = plan->may_lose;
    rollout->brings_program = plan->brings_program;
    rollout->waves = plan->brings_program ? plan->waves : (struct rollout_waves){.count = 0};
    rollout->ps_turn = PS_STAYS;
    rollout->guessed = false;
    rollout->step = 0;
    rollout->waited = plan->waited;
    rollout->absent = plan->absent;
    rollout->last_step = plan->last_step;
    rollout->waits = rollout->at_once = false;
}

bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[ROLLOUT_MESSAGE])
{
    if (rollout->state != ROLLOUT_IDLE) {
        snprintf(message, ROLLOUT_MESSAGE,
                 "the rollout of version %llu is in progress (%s), and only one can be at a time; `trainer rollout "
                 "abort` ends it",
                 (unsigned long long)rollout->target, rollout_state_name(rollout->state));
        return false;
    }
    if (!vitals->training) {
        snprintf(message, ROLLOUT_MESSAGE,
                 "the job is not training now: try again once `trainer status` shows that it is");
        return false;
    }
    if (plan->last_step > 0 && vitals->global_step >= plan->last_step) {
        snprintf(message, ROLLOUT_MESSAGE, ROLLOUT_OVER, (long long)plan->last_step, (long long)vitals->global_step);
        return false;
    }
    const bool restarts = plan->kind == ROLLOUT_JOB || plan->brings_program;
    if (restarts && !vitals->waits && members_would_wait(rollout, plan, now_s, message)) {
        return false;
    }
    take_plan(rollout, plan, vitals->loss);
    note_loss_before(rollout, vitals);
    rollout->reason[0] = '\0';
    rollout->slowest_s = rollout->steps_per_s = 0;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].phase = PHASE_NONE;
        rollout->members[i].message[0] = '\0';
        rollout->members[i].is_out = false;
    }
    rollout->waited = rollout->waits = vitals->waits;
    members_note_absent(rollout, now_s);
    members_choose(rollout, true, now_s);
    enter(rollout, ROLLOUT_STAGING, now_s);
    return true;
}

void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s)
{
    take_plan(rollout, plan, loss_before);
    members_choose(rollout, false, now_s);
    rollout->state = state;
    if (state == ROLLOUT_SWITCHING && plan->kind == ROLLOUT_JOB) {
        begin_switching(rollout, NULL, now_s);
    } else if (plan->brings_program && plan->leader_is_in_target && state == ROLLOUT_SWITCHING) {
        begin_switching(rollout, NULL, now_s);
        begin_ps_turn(rollout, now_s);
    } else if (state == ROLLOUT_GOING_BACK || state == ROLLOUT_RESTORING) {
        give_reason(rollout, "%s", reason);
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    } else if (state != ROLLOUT_IDLE) {
        give_reason(rollout, "ps 0 was restarted while the rollout was %s", rollout_state_name(state));
        give_up(rollout, now_s);
    }
}

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s)
{
    struct rollout_member *member = members_find(rollout, who);
    if (!member) {
        return;
    }
    if (rollout->state == ROLLOUT_STAGING && member->heard_s >= rollout->began_s) {
        rollout->slowest_s = fmax(rollout->slowest_s, now_s - member->heard_s);
    }
    member->heard_s = now_s;
    member->version = report->version;
    member->ready = report->ready;
    member->runs_target = report->runs_target;
    member->architecture = report->architecture;
    member->steps = report->steps;
    pace_heard(rollout, member, now_s);
    bool concerns = rollout->state != ROLLOUT_IDLE && report->target == rollout->target;
    member->phase = concerns ? report->phase : PHASE_NONE;
    snprintf(member->message, sizeof member->message, "%s", report->message);
    const bool took_part = member->takes_part;
    member->takes_part = took_part || members_may_join(rollout, member, concerns);
    member->is_late = took_part ? member->is_late : rollout->state == ROLLOUT_SWITCHING;
    member->is_out = member->is_out && member->takes_part == took_part;
    bool watched = rollout->state == ROLLOUT_WATCHING && rollout->kind != ROLLOUT_LIVE;
    bool forward = rollout->state == ROLLOUT_STAGING || rollout->state == ROLLOUT_TRYING ||
                   rollout->state == ROLLOUT_SAVING || rollout->state == ROLLOUT_SWITCHING || watched;
    if (concerns && forward && took_part && (report->phase == PHASE_FAILED || report->phase == PHASE_LATE)) {
        char name[MEMBER_TEXT];
        member_format(&who, ' ', name);
        give_reason(rollout, "%s: %s", name, report->message);
        give_up_for(rollout, member, now_s);
    }
}

bool rollout_abort(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE])
{
    if (rollout->state == ROLLOUT_IDLE || rollout->state == ROLLOUT_GOING_BACK || rollout->state == ROLLOUT_RESTORING) {
        snprintf(message, ROLLOUT_MESSAGE, "there is no rollout to abort: it is %s",
                 rollout_state_name(rollout->state));
        return false;
    }
    give_reason(rollout, "the operator aborted it");
    give_up(rollout, now_s);
    return true;
}

bool rollout_go_on(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE])
{
    if (rollout->state != ROLLOUT_SWITCHING || !rollout->is_paused) {
        snprintf(message, ROLLOUT_MESSAGE, "there is no rollout that is paused: it is %s",
                 rollout_state_name(rollout->state));
        return false;
    }
    waves_leave_behind(rollout);
    rollout->is_paused = false;
    rollout->wave_s = now_s;
    rollout->changes++;
    return true;
}

void rollout_stood_still(struct rollout *rollout, double seconds)
{
    rollout->began_s += seconds;
    rollout->moved_s += seconds;
    rollout->wave_s += seconds;
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        member->heard_s += member->heard_s >= 0 ? seconds : 0;
    }
}

void rollout_moves(struct rollout *rollout, double now_s)
{
    if (rollout->state == ROLLOUT_STAGING) {
        rollout->began_s = now_s;
    }
}

/* --- What the states wait for --- */

/* The first member below that place that is not where the state wants it, awaited ones before others; NULL: all are. */
static struct rollout_member *first_missing(const struct rollout *rollout, int places)
{
    struct rollout_member *missing = NULL;
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        if (!rollout_is_in(rollout, member) && !member->is_out && waves_place(rollout, member->who) < places &&
            (!missing || (member->awaited && !missing->awaited))) {
            missing = member;
        }
    }
    return missing;
}

static void give_up_waiting(struct rollout *rollout, struct rollout_member *member, const char *what, double limit_s,
                            const char *message, double now_s)
{
    char name[MEMBER_TEXT];
    member_format(&member->who, ' ', name);
    give_reason(rollout, "%s did not %s within %.0f s%s%s", name, what, limit_s, message[0] != '\0' ? ": " : "",
                message);
    give_up_for(rollout, member, now_s);
}

/* The same, with a limit: an awaited member that is late is a reason to give up, any other is left behind. */
static bool are_all_in(struct rollout *rollout, int places, const char *what, double since_s, double limit_s,
                       double now_s)
{
    struct rollout_member *missing = first_missing(rollout, places);
    const bool late = now_s - since_s >= limit_s;
    if (missing && late && missing->awaited) {
        give_up_waiting(rollout, missing, what, limit_s, missing->message, now_s);
        return false;
    }
    return !missing || late;
}

/* Would the job be over before this step? Nothing has changed so far, so that nothing needs undoing. */
static bool would_be_over(struct rollout *rollout, int64_t step, double now_s)
{
    if (rollout->last_step == 0 || step < rollout->last_step) {
        return false;
    }
    give_reason(rollout, ROLLOUT_OVER, (long long)rollout->last_step, (long long)step);
    give_up(rollout, now_s);
    return true;
}

/* ps 0 restarts last, or else the others would not hear of it in time. */
static void let_leader_go(struct rollout *rollout, double now_s)
{
    bool all_delivered = true;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        all_delivered = all_delivered && (member->delivered || !member->takes_part || rollout_is_leader(member->who));
    }
    rollout->leader_may_go = all_delivered || now_s - rollout->began_s >= LEADER_WAITS_S;
}

/* What is wrong now, as the reason; "" if nothing is. *at_once: there is no need for a second look. */
static void find_trouble(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *at_once)
{
    *at_once = true;
    rollout->reason[0] = '\0';
    if (vitals->global_step < rollout->moved_step) { /* restored since: the proof starts over there */
        rollout->proof_step = vitals->global_step + vitals->under_way + 1;
    }
    if (vitals->global_step != rollout->moved_step || rollout->waits) {
        rollout->moved_step = vitals->global_step;
        rollout->moved_s = now_s;
    }
    if (isnan(vitals->loss) || isinf(vitals->loss)) {
        give_reason(rollout, "the loss is no longer finite, after step %lld", (long long)vitals->global_step);
        return;
    }
    const double standing_s = ROLLOUT_STANDING_S + (rollout->kind == ROLLOUT_JOB ? vitals->may_come_s : 0);
    if (now_s - rollout->moved_s >= standing_s) {
        give_reason(rollout, "no step was made for %.0f s", standing_s);
        return;
    }
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        char name[MEMBER_TEXT];
        /* A member that is restarting is the business of its wave. */
        bool starts = rollout->state == ROLLOUT_SWITCHING && !rollout_is_in(rollout, member);
        if (member->awaited && !starts && !member->is_out && now_s - member->heard_s >= ROLLOUT_IDLE_TIMEOUT_S) {
            member_format(&member->who, ' ', name);
            give_reason(rollout, "%s was not heard from for %d s", name, ROLLOUT_IDLE_TIMEOUT_S);
            if (!waves_bear(rollout, member)) {
                return;
            }
            rollout->reason[0] = '\0';
        }
    }
    *at_once = false;
    double bound = WORSE_FACTOR * rollout->loss_before + WORSE_BY;
    if (vitals->loss > bound) {
        give_reason(rollout, "the loss is %.4g, and was %.4g before", vitals->loss, rollout->loss_before);
    }
}

/* True if it looks so bad that it was given up. */
static bool look_for_trouble(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *trouble)
{
    bool at_once;
    find_trouble(rollout, vitals, now_s, &at_once);
    *trouble = rollout->reason[0] != '\0';
    rollout->bad_since_s = !*trouble ? -1 : rollout->bad_since_s < 0 ? now_s : rollout->bad_since_s;
    if (*trouble && (at_once || now_s - rollout->bad_since_s >= WORSE_FOR_S)) {
        give_up(rollout, now_s);
        return true;
    }
    return false;
}

/* --- The states --- */

static void tick_staging(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    rollout->steps_per_s = fmax(rollout->steps_per_s, vitals->steps_per_s);
    if (!are_all_in(rollout, INT_MAX, "stage it", rollout->began_s, ROLLOUT_STAGE_S, now_s)) {
        return;
    }
    if (rollout->kind == ROLLOUT_JOB) {
        enter(rollout, ROLLOUT_TRYING, now_s);
        return;
    }
    rollout->at_once = rollout->waits;
    if (rollout->kind == ROLLOUT_LIVE && rollout->waited && !vitals->training) {
        if (now_s - rollout->began_s >= ROLLOUT_STAGE_S) {
            give_up_waiting(rollout, members_find(rollout, (struct member){MEMBER_WORKER, 0}), "restore the model",
                            ROLLOUT_STAGE_S, "", now_s);
        }
        return;
    }
    if (rollout->kind == ROLLOUT_LIVE && rollout->at_once) {
        rollout->step = vitals->global_step;
    } else if (rollout->kind == ROLLOUT_LIVE) {
        double margin_s = fmin(MARGIN_S + REPORTS * rollout->slowest_s, MOST_MARGIN_S);
        rollout->step = vitals->global_step + MARGIN_STEPS + (int64_t)(margin_s * rollout->steps_per_s);
    }
    if (rollout->kind == ROLLOUT_LIVE && would_be_over(rollout, rollout->step, now_s)) {
        return;
    }
    begin_switching(rollout, vitals, now_s);
    rollout->moved_step = vitals->global_step;
}

/* Trying and saving: worker 0 alone has something to do. */
static void tick_chief(struct rollout *rollout, const struct rollout_vitals *vitals, const char *what, double limit_s,
                       enum rollout_state next, double now_s)
{
    if (!are_all_in(rollout, INT_MAX, what, rollout->began_s, limit_s, now_s)) {
        return;
    }
    if (next == ROLLOUT_SWITCHING && would_be_over(rollout, vitals->global_step, now_s)) {
        return;
    }
    if (next == ROLLOUT_SWITCHING) {
        begin_switching(rollout, vitals, now_s);
    } else {
        enter(rollout, next, now_s);
    }
}

/* All workers work in the new program. What they have learnt is to survive the restart of every ps. */
static void wait_for_save(struct rollout *rollout, double now_s)
{
    struct rollout_member *chief = members_find(rollout, (struct member){MEMBER_WORKER, 0});
    if (rollout->ps_turn == PS_STAYS) {
        rollout->ps_turn = PS_WAITS_FOR_SAVE;
        rollout->wave_s = now_s;
    } else if (chief && chief->phase == PHASE_SAVED) {
        begin_ps_turn(rollout, now_s);
    } else if (chief && now_s - rollout->wave_s >= ROLLOUT_SAVE_S) {
        give_up_waiting(rollout, chief, "save the job", ROLLOUT_SAVE_S, chief->message, now_s);
    }
}

/* Are the canaries known to be fast enough? Gives up if one is too slow for too long. */
static bool are_fast_enough(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    char why[ROLLOUT_MESSAGE];
    if (!rollout->brings_program || !rollout->is_first_wave) {
        return true;
    }
    const enum pace_verdict pace = pace_of_canaries(rollout, vitals, why);
    if (pace < PACE_SLOW) {
        rollout->slow_since_s = -1;
    } else if (rollout->slow_since_s < 0) {
        rollout->slow_since_s = now_s;
    }
    if (pace == PACE_STILL_SLOW && now_s - rollout->slow_since_s >= SLOW_FOR_S) {
        give_reason(rollout, "%s", why);
        give_up(rollout, now_s);
    }
    return pace == PACE_FINE;
}

static void begin_next_wave(struct rollout *rollout, double now_s)
{
    rollout->wave = waves_next(rollout);
    rollout->is_first_wave = false;
    rollout->wave_s = now_s;
}

static void tick_waves(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    bool trouble;
    if (look_for_trouble(rollout, vitals, now_s, &trouble)) {
        return;
    }
    if (rollout->ps_turn == PS_WAITS_FOR_SAVE) {
        wait_for_save(rollout, now_s);
        return;
    }
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        member->is_out = member->is_out && !(member->takes_part && rollout_is_in(rollout, member));
    }
    if (waves_pause(rollout)) {
        rollout->wave_s = now_s; /* who restarts meanwhile is not late for it */
        return;
    }
    if (!are_all_in(rollout, rollout->wave, "restart", rollout->wave_s, ROLLOUT_SWITCH_S, now_s)) {
        rollout->settled_s = -1;
        return;
    }
    rollout->settled_s = rollout->settled_s < 0 ? now_s : rollout->settled_s;
    const double watched_s = rollout->is_first_wave ? fmin(rollout->healthy_s, ROLLOUT_CANARY_S) : 0;
    if (!are_fast_enough(rollout, vitals, now_s) || trouble || now_s - rollout->settled_s < watched_s) {
        return;
    }
    if (rollout->brings_program && rollout->wave >= waves_workers(rollout)) {
        wait_for_save(rollout, now_s);
    } else {
        begin_next_wave(rollout, now_s);
    }
}

static void tick_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const char *what = rollout->kind == ROLLOUT_LIVE ? "switch" : "restart";
    if (rollout->kind == ROLLOUT_LOCAL && rollout->wave < rollout_count_members(rollout)) {
        tick_waves(rollout, vitals, now_s);
        return;
    }
    if (rollout->kind == ROLLOUT_LIVE && vitals->generation != rollout->generation) {
        give_reason(rollout, "the model was restored while members switched");
        give_up(rollout, now_s);
        return;
    }
    /* Members that have switched make no steps then, so those still waiting for their step would wait for ever. */
    if (!isfinite(vitals->loss) && first_missing(rollout, INT_MAX)) {
        give_reason(rollout, "the loss is no longer finite, after step %lld", (long long)vitals->global_step);
        give_up(rollout, now_s);
        return;
    }
    let_leader_go(rollout, now_s);
    if (are_all_in(rollout, INT_MAX, what, rollout->wave_s, ROLLOUT_SWITCH_S, now_s)) {
        enter(rollout, ROLLOUT_WATCHING, now_s);
        rollout->moved_step = vitals->global_step;
        rollout->proof_step = vitals->global_step + vitals->under_way + 1;
    }
}

static void tick_watching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    bool trouble;
    if (vitals->over) {
        end_rollout(rollout, OUTCOME_DONE, now_s);
        return;
    }
    if (look_for_trouble(rollout, vitals, now_s, &trouble)) {
        return;
    }
    if (rollout->waits) { /* only steps will tell */
        rollout->began_s = now_s;
    }
    const double limit_s = rollout->healthy_s + ROLLOUT_RETURN_S;
    if (are_all_in(rollout, INT_MAX, "come back", rollout->began_s, limit_s, now_s) && !trouble &&
        now_s - rollout->began_s >= rollout->healthy_s && vitals->training &&
        vitals->global_step >= rollout->proof_step) {
        end_rollout(rollout, OUTCOME_DONE, now_s);
    }
}

/*
 * A worker that is gone hears of it when it is back, so that only members that compute or store now are waited for. A
 * leader that has just been started again has heard of nobody yet: silence counts from its own start, or else it would
 * call the rollout over while workers still run the target.
 */
static bool must_go_back(const struct rollout *rollout, const struct rollout_member *member, double now_s)
{
    const double since_s = member->heard_s >= 0 ? member->heard_s : rollout->began_s;
    const bool may_be_there = member->heard_s >= 0 || member->awaited;
    return rollout_is_chief(member->who) || member->who.role == MEMBER_PS ||
           (may_be_there && now_s - since_s < ROLLOUT_IDLE_TIMEOUT_S);
}

static void tick_going_back(struct rollout *rollout, double now_s)
{
    let_leader_go(rollout, now_s);
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        const bool in_time = member->awaited || now_s - rollout->began_s < ROLLOUT_RETURN_S;
        if (must_go_back(rollout, member, now_s) && in_time && !rollout_is_in(rollout, member)) {
            return;
        }
    }
    if (rollout->kind == ROLLOUT_LIVE) {
        enter(rollout, ROLLOUT_RESTORING, now_s);
    } else {
        end_rollout(rollout, OUTCOME_WENT_BACK, now_s);
    }
}

static void tick_restoring(struct rollout *rollout, double now_s)
{
    const struct rollout_member *chief = members_find(rollout, (struct member){MEMBER_WORKER, 0});
    if (chief && chief->phase == PHASE_RESTORED) {
        end_rollout(rollout, OUTCOME_WENT_BACK, now_s);
    }
}

void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    rollout->waits = rollout->waited && vitals->waits;
    members_let_go(rollout, now_s);
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        break;
    case ROLLOUT_STAGING:
        tick_staging(rollout, vitals, now_s);
        break;
    case ROLLOUT_SWITCHING:
        tick_switching(rollout, vitals, now_s);
        break;
    case ROLLOUT_WATCHING:
        tick_watching(rollout, vitals, now_s);
        break;
    case ROLLOUT_GOING_BACK:
        tick_going_back(rollout, now_s);
        break;
    case ROLLOUT_RESTORING:
        tick_restoring(rollout, now_s);
        break;
    case ROLLOUT_TRYING:
        tick_chief(rollout, vitals, "try it", ROLLOUT_TRY_S, ROLLOUT_SAVING, now_s);
        break;
    case ROLLOUT_SAVING:
        tick_chief(rollout, vitals, "save the job", ROLLOUT_SAVE_S, ROLLOUT_SWITCHING, now_s);
        break;
    }
}
