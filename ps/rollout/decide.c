#include "ps/rollout/inside.h"

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

/* A loss counts as worse than before above this: single batches differ by much less. */
static const double WORSE_FACTOR = 4.0, WORSE_BY = 1.0, WORSE_FOR_S = 1.0;

bool rollout_create(struct rollout *rollout, int ps, int workers)
{
    *rollout = (struct rollout){.count = ps + workers,
                                .members = calloc((size_t)ps + (size_t)workers, sizeof(struct rollout_member))};
    for (int i = 0; rollout->members != NULL && i < rollout->count; i++) {
        rollout->members[i] = (struct rollout_member){
            .who = i < ps ? (struct member){MEMBER_PS, i} : (struct member){MEMBER_WORKER, i - ps}, .heard_s = -1};
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
}

bool rollout_begin(struct rollout *rollout, const struct rollout_plan *plan, const struct rollout_vitals *vitals,
                   double now_s, char sentence[256])
{
    if (rollout->state != ROLLOUT_IDLE) {
        snprintf(sentence, 256, "the rollout of version %llu is under way (%s): one at a time",
                 (unsigned long long)rollout->target, rollout_state_name(rollout->state));
        return false;
    }
    if (!vitals->training) {
        snprintf(sentence, 256, "the job is not training now: try again when `trainer status` shows that it is");
        return false;
    }
    take_plan(rollout, plan, vitals->loss);
    rollout->reason[0] = '\0';
    rollout->slowest_s = 0;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].phase = PHASE_NONE;
        rollout->members[i].sentence[0] = '\0';
    }
    enter(rollout, ROLLOUT_STAGING, now_s);
    return true;
}

void rollout_resume(struct rollout *rollout, enum rollout_state state, const struct rollout_plan *plan,
                    double loss_before, const char *reason, double now_s)
{
    take_plan(rollout, plan, loss_before);
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
    snprintf(member->sentence, sizeof member->sentence, "%s", report->sentence);
    bool watched = rollout->state == ROLLOUT_WATCHING && rollout->kind != ROLLOUT_LIVE;
    bool forward = rollout->state == ROLLOUT_STAGING || rollout->state == ROLLOUT_TRYING ||
                   rollout->state == ROLLOUT_SAVING || rollout->state == ROLLOUT_SWITCHING || watched;
    if (concerns && forward && (report->phase == PHASE_FAILED || report->phase == PHASE_LATE)) {
        char name[MEMBER_TEXT];
        member_format(&who, ' ', name);
        give_reason(rollout, "%s: %s", name, report->sentence);
        give_up(rollout, now_s);
    }
}

static bool wave_is_in(const struct rollout *rollout, const struct rollout_member **missing)
{
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (rollout_place(rollout, member->who) < rollout->wave && !rollout_is_in(rollout, member)) {
            *missing = member;
            return false;
        }
    }
    return true;
}

/* Has everybody come so far? The first who has not goes to *missing. */
static bool all_in(const struct rollout *rollout, const struct rollout_member **missing)
{
    for (int i = 0; i < rollout->count; i++) {
        if (!rollout_is_in(rollout, &rollout->members[i])) {
            *missing = &rollout->members[i];
            return false;
        }
    }
    return true;
}

static void time_out(struct rollout *rollout, const struct rollout_member *missing, const char *what, double since_s,
                     double limit_s, double now_s)
{
    char name[MEMBER_TEXT];
    if (now_s - since_s >= limit_s) {
        member_format(&missing->who, ' ', name);
        give_reason(rollout, "%s did not %s within %.0f s%s%s", name, what, limit_s,
                    missing->sentence[0] != '\0' ? ": " : "", missing->sentence);
        give_up(rollout, now_s);
    }
}

static void tick_staging(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const struct rollout_member *missing = NULL;
    if (!all_in(rollout, &missing)) {
        time_out(rollout, missing, "stage it", rollout->began_s, ROLLOUT_STAGE_S, now_s);
        return;
    }
    if (rollout->kind == ROLLOUT_JOB) {
        enter(rollout, ROLLOUT_TRYING, now_s);
        return;
    }
    if (rollout->kind == ROLLOUT_LIVE) {
        double margin_s = fmin(MARGIN_S + REPORTS * rollout->slowest_s, MOST_MARGIN_S);
        rollout->step = vitals->global_step + MARGIN_STEPS + (int64_t)(margin_s * fmax(0, vitals->steps_per_s));
    }
    begin_switching(rollout, vitals, now_s);
    rollout->moved_step = vitals->global_step;
}

/* Worker 0 has something to do. */
static void tick_chief(struct rollout *rollout, const struct rollout_vitals *vitals, const char *what, double limit_s,
                       enum rollout_state next, double now_s)
{
    const struct rollout_member *missing = NULL;
    if (!all_in(rollout, &missing)) {
        time_out(rollout, missing, what, rollout->began_s, limit_s, now_s);
    } else if (next == ROLLOUT_SWITCHING) {
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
        all_told = all_told && (rollout->members[i].told || rollout_is_leader(rollout->members[i].who));
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
    if (vitals->global_step != rollout->moved_step) {
        rollout->moved_step = vitals->global_step;
        rollout->moved_s = now_s;
    }
    if (isnan(vitals->loss) || isinf(vitals->loss)) {
        give_reason(rollout, "the loss is not finite any more, after step %lld", (long long)vitals->global_step);
        return;
    }
    if (now_s - rollout->moved_s >= ROLLOUT_STANDING_S) {
        give_reason(rollout, "no step was made for %d s", ROLLOUT_STANDING_S);
        return;
    }
    for (int i = 0; i < rollout->count; i++) {
        char name[MEMBER_TEXT];
        /* Whoever is starting anew is waited for by the wave. */
        bool starts = rollout->state == ROLLOUT_SWITCHING && !rollout_is_in(rollout, &rollout->members[i]);
        if (!starts && now_s - rollout->members[i].heard_s >= ROLLOUT_SILENT_S) {
            member_format(&rollout->members[i].who, ' ', name);
            give_reason(rollout, "%s was not heard of for %d s", name, ROLLOUT_SILENT_S);
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
    const struct rollout_member *missing = NULL;
    bool ill;
    if (look(rollout, vitals, now_s, &ill)) {
        return;
    }
    if (!wave_is_in(rollout, &missing)) {
        rollout->settled_s = -1;
        time_out(rollout, missing, "start anew", rollout->wave_s, ROLLOUT_SWITCH_S, now_s);
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
    const struct rollout_member *missing = NULL;
    if (rollout->kind == ROLLOUT_LOCAL && rollout->wave < rollout->count) {
        tick_waves(rollout, vitals, now_s);
        return;
    }
    if (rollout->kind == ROLLOUT_LIVE && vitals->generation != rollout->generation) {
        give_reason(rollout, "the model was restored while members switched");
        give_up(rollout, now_s);
        return;
    }
    if (all_in(rollout, &missing)) {
        enter(rollout, ROLLOUT_WATCHING, now_s);
        rollout->moved_step = vitals->global_step;
        rollout->proof_step = vitals->global_step + vitals->under_way + 1;
        return;
    }
    if (!isfinite(vitals->loss)) { /* whoever has switched makes no steps, and those that wait for one never will */
        give_reason(rollout, "the loss is not finite any more, after step %lld", (long long)vitals->global_step);
        give_up(rollout, now_s);
        return;
    }
    let_leader_go(rollout, now_s);
    time_out(rollout, missing, rollout->kind == ROLLOUT_LIVE ? "switch" : "start anew", rollout->wave_s,
             ROLLOUT_SWITCH_S, now_s);
}

static void tick_watching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const struct rollout_member *missing = NULL;
    bool ill;
    if (vitals->over) {
        end(rollout, OUTCOME_DONE, now_s);
        return;
    }
    if (look(rollout, vitals, now_s, &ill)) {
        return;
    }
    if (!all_in(rollout, &missing)) {
        time_out(rollout, missing, "come back", rollout->began_s, rollout->healthy_s + ROLLOUT_RETURN_S, now_s);
    } else if (!ill && now_s - rollout->began_s >= rollout->healthy_s && vitals->training &&
               vitals->global_step >= rollout->proof_step) {
        end(rollout, OUTCOME_DONE, now_s);
    }
}

/* Whoever is gone will hear of it when it is back; only what computes and stores now is waited for. */
static void tick_going_back(struct rollout *rollout, double now_s)
{
    let_leader_go(rollout, now_s);
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        bool needed = rollout_is_chief(member->who) || member->who.role == MEMBER_PS ||
                      (member->heard_s >= 0 && now_s - member->heard_s < ROLLOUT_SILENT_S);
        if (needed && !rollout_is_in(rollout, member)) {
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

bool rollout_abort(struct rollout *rollout, double now_s, char sentence[256])
{
    if (rollout->state == ROLLOUT_IDLE || rollout->state == ROLLOUT_GOING_BACK || rollout->state == ROLLOUT_RESTORING) {
        snprintf(sentence, 256, "there is no rollout to abort: it is %s", rollout_state_name(rollout->state));
        return false;
    }
    give_reason(rollout, "the operator aborted it");
    give_up(rollout, now_s);
    return true;
}
