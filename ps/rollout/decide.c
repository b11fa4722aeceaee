#include "ps/rollout/internal.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Orders travel in what members ask for several times a second; the step must not be over when the last one hears of it. */
static const double MARGIN_S = 2.0, MOST_MARGIN_S = 20.0;
static const int REPORTS = 3; /* of the slowest member: one may just be missed, another be late */
enum { MARGIN_STEPS = 20 };

/* Every member asks more often than that. */
static const double LEADER_WAITS_S = 1.0;

/* train_steps or epochs, by what the job makes of them. */
#define ROLLOUT_OVER                                                                                                   \
    "the job would be over after step %lld, by train.train_steps or train.epochs, and it is at step %lld by then: "    \
    "let them be more, or to end the job now stop worker 0, which saves it"

/* A loss counts as worse than before above this: single batches differ by much less. */
static const double WORSE_FACTOR = 4.0, WORSE_BY = 1.0, WORSE_FOR_S = 1.0;

bool rollout_create(struct rollout *rollout, int ps, int workers, int room)
{
    *rollout = (struct rollout){.count = ps + room,
                                .members = calloc((size_t)ps + (size_t)room, sizeof(struct rollout_member))};
    for (int i = 0; rollout->members != NULL && i < rollout->count; i++) {
        const bool listed = i < ps + workers;
        rollout->members[i] = (struct rollout_member){.who = i < ps ? (struct member){MEMBER_PS, i}
                                                                    : (struct member){MEMBER_WORKER, i - ps},
                                                      .listed = listed,
                                                      .awaited = listed,
                                                      .takes_part = listed,
                                                      .heard_s = -1};
    }
    return rollout->members != NULL;
}

void rollout_destroy(struct rollout *rollout)
{
    free(rollout->members);
    *rollout = (struct rollout){.count = 0};
}

bool rollout_state_is_risky(enum rollout_state state)
{
    return state == ROLLOUT_SWITCHING || state == ROLLOUT_WATCHING || state == ROLLOUT_GOING_BACK ||
           state == ROLLOUT_RESTORING;
}

static void enter(struct rollout *rollout, enum rollout_state state, double now_s)
{
    rollout->state = state;
    rollout->began_s = rollout->moved_s = now_s;
    rollout->bad_since_s = -1;
    rollout->leader_may_go = false;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].told = false;
    }
    rollout->changes++;
}

static void end(struct rollout *rollout, enum rollout_outcome outcome, double now_s)
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

/* Before anybody switched nothing needs undoing; afterwards everything does. */
static void give_up(struct rollout *rollout, double now_s)
{
    if (rollout->state == ROLLOUT_SWITCHING || rollout->state == ROLLOUT_WATCHING) {
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    } else {
        end(rollout, OUTCOME_NOT_BEGUN, now_s);
    }
}

/* vitals NULL: not known yet. */
static void begin_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    enter(rollout, ROLLOUT_SWITCHING, now_s);
    rollout->generation = vitals != NULL ? vitals->generation : 0;
    rollout->wave = 1;
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
    rollout->step = 0;
    rollout->waited = plan->waited;
    rollout->absent = plan->absent;
    rollout->last_step = plan->last_step;
    rollout->waits = rollout->at_once = false;
}

bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char message[256])
{
    if (rollout->state != ROLLOUT_IDLE) {
        snprintf(message, 256,
                 "the rollout of version %llu is under way (%s): one at a time; `trainer rollout abort` takes it back",
                 (unsigned long long)rollout->target, rollout_state_name(rollout->state));
        return false;
    }
    if (!vitals->training) {
        snprintf(message, 256, "the job is not training now: try again when `trainer status` shows that it is");
        return false;
    }
    if (plan->last_step > 0 && vitals->global_step >= plan->last_step) {
        snprintf(message, 256, ROLLOUT_OVER, (long long)plan->last_step, (long long)vitals->global_step);
        return false;
    }
    if (plan->kind == ROLLOUT_JOB && !vitals->waits && participation_too_few(rollout, plan, now_s, message)) {
        return false;
    }
    take_plan(rollout, plan, vitals->loss);
    rollout->reason[0] = '\0';
    rollout->slowest_s = rollout->steps_per_s = 0;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].phase = PHASE_NONE;
        rollout->members[i].message[0] = '\0';
    }
    rollout->waited = rollout->waits = vitals->waits;
    participation_note_absent(rollout, now_s);
    participation_choose(rollout, true, now_s);
    enter(rollout, ROLLOUT_STAGING, now_s);
    return true;
}

void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s)
{
    take_plan(rollout, plan, loss_before);
    participation_choose(rollout, false, now_s);
    rollout->state = state;
    if (state == ROLLOUT_SWITCHING && plan->kind == ROLLOUT_JOB) {
        begin_switching(rollout, NULL, now_s);
    } else if (state == ROLLOUT_GOING_BACK || state == ROLLOUT_RESTORING) {
        give_reason(rollout, "%s", reason);
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    } else if (state != ROLLOUT_IDLE) {
        give_reason(rollout, "ps 0 was started again while it was %s", rollout_state_name(state));
        give_up(rollout, now_s);
    }
}

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s)
{
    struct rollout_member *member = rollout_find(rollout, who);
    if (member == NULL) {
        return;
    }
    if (rollout->state == ROLLOUT_STAGING && member->heard_s >= rollout->began_s) {
        rollout->slowest_s = fmax(rollout->slowest_s, now_s - member->heard_s);
    }
    member->heard_s = now_s;
    member->version = report->version;
    member->ready = report->ready;
    bool concerns = rollout->state != ROLLOUT_IDLE && report->target == rollout->target;
    member->phase = concerns ? report->phase : PHASE_NONE;
    snprintf(member->message, sizeof member->message, "%s", report->message);
    const bool took_part = member->takes_part;
    member->takes_part = took_part || participation_joins_in(rollout, member, concerns);
    bool watched = rollout->state == ROLLOUT_WATCHING && rollout->kind != ROLLOUT_LIVE;
    bool forward = rollout->state == ROLLOUT_STAGING || rollout->state == ROLLOUT_TRYING ||
                   rollout->state == ROLLOUT_SAVING || rollout->state == ROLLOUT_SWITCHING || watched;
    if (concerns && forward && took_part && (report->phase == PHASE_FAILED || report->phase == PHASE_LATE)) {
        char name[MEMBER_TEXT];
        member_format(&who, ' ', name);
        give_reason(rollout, "%s: %s", name, report->message);
        give_up(rollout, now_s);
    }
}

/* Has everybody come so far whose place is below that? Else the first who has not, those first who are awaited. */
static const struct rollout_member *first_missing(const struct rollout *rollout, int places)
{
    const struct rollout_member *missing = NULL;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (!rollout_is_in(rollout, member) && rollout_place(rollout, member->who) < places &&
            (missing == NULL || (member->awaited && !missing->awaited))) {
            missing = member;
        }
    }
    return missing;
}

static void time_out(struct rollout *rollout, struct member who, const char *what, double limit_s, const char *message,
                     double now_s)
{
    char name[MEMBER_TEXT];
    member_format(&who, ' ', name);
    give_reason(rollout, "%s did not %s within %.0f s%s%s", name, what, limit_s, message[0] != '\0' ? ": " : "",
                message);
    give_up(rollout, now_s);
}

/* The same; whoever is late is a reason to give up, or, if it comes and goes, to go on without. */
static bool have_come(struct rollout *rollout, int places, const char *what, double since_s, double limit_s,
                      double now_s)
{
    const struct rollout_member *missing = first_missing(rollout, places);
    const bool late = now_s - since_s >= limit_s;
    if (missing != NULL && late && missing->awaited) {
        time_out(rollout, missing->who, what, limit_s, missing->message, now_s);
        return false;
    }
    return missing == NULL || late;
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

static void tick_staging(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    rollout->steps_per_s = fmax(rollout->steps_per_s, vitals->steps_per_s);
    if (!have_come(rollout, INT_MAX, "stage it", rollout->began_s, ROLLOUT_STAGE_S, now_s)) {
        return;
    }
    if (rollout->kind == ROLLOUT_JOB) {
        enter(rollout, ROLLOUT_TRYING, now_s);
        return;
    }
    rollout->at_once = rollout->waits;
    if (rollout->kind == ROLLOUT_LIVE && rollout->waited && !vitals->training) {
        if (now_s - rollout->began_s >= ROLLOUT_STAGE_S) {
            time_out(rollout, (struct member){MEMBER_WORKER, 0}, "restore the model", ROLLOUT_STAGE_S, "", now_s);
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

/* Worker 0 has something to do. */
static void tick_chief(struct rollout *rollout, const struct rollout_vitals *vitals, const char *what, double limit_s,
                       enum rollout_state next, double now_s)
{
    if (!have_come(rollout, INT_MAX, what, rollout->began_s, limit_s, now_s)) {
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

/* ps 0 starts anew as the last one, or else the others would not hear of it in time. */
static void let_leader_go(struct rollout *rollout, double now_s)
{
    bool all_told = true;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        all_told = all_told && (member->told || !member->takes_part || rollout_is_leader(member->who));
    }
    rollout->leader_may_go = all_told || now_s - rollout->began_s >= LEADER_WAITS_S;
}

/* What is wrong now, "" if nothing; *at_once: it needs no second look. */
static void find_illness(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *at_once)
{
    *at_once = true;
    rollout->reason[0] = '\0';
    if (vitals->global_step < rollout->moved_step) { /* restored since: it begins anew there */
        rollout->proof_step = vitals->global_step + vitals->under_way + 1;
    }
    if (vitals->global_step != rollout->moved_step || rollout->waits) {
        rollout->moved_step = vitals->global_step;
        rollout->moved_s = now_s;
    }
    if (isnan(vitals->loss) || isinf(vitals->loss)) {
        give_reason(rollout, "the loss is not finite any more, after step %lld", (long long)vitals->global_step);
        return;
    }
    const double standing_s = ROLLOUT_STANDING_S + (rollout->kind == ROLLOUT_JOB ? vitals->may_come_s : 0);
    if (now_s - rollout->moved_s >= standing_s) {
        give_reason(rollout, "no step was made for %.0f s", standing_s);
        return;
    }
    for (int i = 0; i < rollout->count; i++) {
        char name[MEMBER_TEXT];
        /* Whoever is starting anew is waited for by the wave. */
        bool starts = rollout->state == ROLLOUT_SWITCHING && !rollout_is_in(rollout, &rollout->members[i]);
        if (rollout->members[i].takes_part && !starts &&
            now_s - rollout->members[i].heard_s >= ROLLOUT_IDLE_TIMEOUT_S) {
            member_format(&rollout->members[i].who, ' ', name);
            give_reason(rollout, "%s was not heard of for %d s", name, ROLLOUT_IDLE_TIMEOUT_S);
            return;
        }
    }
    *at_once = false;
    double bound = WORSE_FACTOR * rollout->loss_before + WORSE_BY;
    if (vitals->loss > bound) {
        give_reason(rollout, "the loss is %.4g, and was %.4g before", vitals->loss, rollout->loss_before);
    }
}

/* True if it looks so bad that it was given up. */
static bool look(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *ill)
{
    bool at_once;
    find_illness(rollout, vitals, now_s, &at_once);
    *ill = rollout->reason[0] != '\0';
    rollout->bad_since_s = !*ill ? -1 : rollout->bad_since_s < 0 ? now_s : rollout->bad_since_s;
    if (*ill && (at_once || now_s - rollout->bad_since_s >= WORSE_FOR_S)) {
        give_up(rollout, now_s);
        return true;
    }
    return false;
}

static void tick_waves(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    bool ill;
    if (look(rollout, vitals, now_s, &ill)) {
        return;
    }
    if (!have_come(rollout, rollout->wave, "start anew", rollout->wave_s, ROLLOUT_SWITCH_S, now_s)) {
        rollout->settled_s = -1;
        return;
    }
    rollout->settled_s = rollout->settled_s < 0 ? now_s : rollout->settled_s;
    double watched_s = rollout->wave > 1 ? 0 : fmin(rollout->healthy_s, ROLLOUT_CANARY_S);
    if (!ill && now_s - rollout->settled_s >= watched_s) {
        rollout->wave = 2 * rollout->wave + 1;
        rollout->wave_s = now_s;
        rollout->settled_s = -1;
    }
}

static void tick_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const char *what = rollout->kind == ROLLOUT_LIVE ? "switch" : "start anew";
    if (rollout->kind == ROLLOUT_LOCAL && rollout->wave < rollout_participation(rollout)) {
        tick_waves(rollout, vitals, now_s);
        return;
    }
    if (rollout->kind == ROLLOUT_LIVE && vitals->generation != rollout->generation) {
        give_reason(rollout, "the model was restored while members switched");
        give_up(rollout, now_s);
        return;
    }
    /* Whoever has switched makes no steps then, and those that wait for one never will. */
    if (!isfinite(vitals->loss) && first_missing(rollout, INT_MAX) != NULL) {
        give_reason(rollout, "the loss is not finite any more, after step %lld", (long long)vitals->global_step);
        give_up(rollout, now_s);
        return;
    }
    let_leader_go(rollout, now_s);
    if (have_come(rollout, INT_MAX, what, rollout->wave_s, ROLLOUT_SWITCH_S, now_s)) {
        enter(rollout, ROLLOUT_WATCHING, now_s);
        rollout->moved_step = vitals->global_step;
        rollout->proof_step = vitals->global_step + vitals->under_way + 1;
    }
}

static void tick_watching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    bool ill;
    if (vitals->over) {
        end(rollout, OUTCOME_DONE, now_s);
        return;
    }
    if (look(rollout, vitals, now_s, &ill)) {
        return;
    }
    if (rollout->waits) { /* only steps will tell */
        rollout->began_s = now_s;
    }
    const double limit_s = rollout->healthy_s + ROLLOUT_RETURN_S;
    if (have_come(rollout, INT_MAX, "come back", rollout->began_s, limit_s, now_s) && !ill &&
        now_s - rollout->began_s >= rollout->healthy_s && vitals->training &&
        vitals->global_step >= rollout->proof_step) {
        end(rollout, OUTCOME_DONE, now_s);
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
        end(rollout, OUTCOME_WENT_BACK, now_s);
    }
}

static void tick_restoring(struct rollout *rollout, double now_s)
{
    const struct rollout_member *chief = rollout_find(rollout, (struct member){MEMBER_WORKER, 0});
    if (chief != NULL && chief->phase == PHASE_RESTORED) {
        end(rollout, OUTCOME_WENT_BACK, now_s);
    }
}

void rollout_tick(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    rollout->waits = rollout->waited && vitals->waits;
    participation_let_go(rollout, now_s);
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

bool rollout_abort(struct rollout *rollout, double now_s, char message[256])
{
    if (rollout->state == ROLLOUT_IDLE || rollout->state == ROLLOUT_GOING_BACK || rollout->state == ROLLOUT_RESTORING) {
        snprintf(message, 256, "there is no rollout to abort: it is %s", rollout_state_name(rollout->state));
        return false;
    }
    give_reason(rollout, "the operator aborted it");
    give_up(rollout, now_s);
    return true;
}
