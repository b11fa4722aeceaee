#include "ps/rollout/decide.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Orders travel in what members ask for several times a second; the step must not be over when the last one hears of it. */
static const double MARGIN_S = 2.0;
enum { MARGIN_STEPS = 20 };

/* A loss counts as worse than before above this: single batches differ by much less. */
static const double WORSE_FACTOR = 4.0, WORSE_BY = 1.0, WORSE_FOR_S = 1.0;

static const char *const state_names[] = {"idle", "staging", "switching", "watching", "going back", "restoring"};
enum { STATES = sizeof state_names / sizeof *state_names };

const char *rollout_state_name(enum rollout_state state)
{
    return (size_t)state < STATES ? state_names[state] : "unknown";
}

bool rollout_state_by_name(const char *name, enum rollout_state *state)
{
    for (int i = 0; i < STATES; i++) {
        if (strcmp(name, state_names[i]) == 0) {
            *state = (enum rollout_state)i;
            return true;
        }
    }
    return false;
}

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

static struct rollout_member *find(const struct rollout *rollout, struct member who)
{
    for (int i = 0; i < rollout->count; i++) {
        if (rollout->members[i].who.role == who.role && rollout->members[i].who.index == who.index) {
            return &rollout->members[i];
        }
    }
    return NULL;
}

static void enter(struct rollout *rollout, enum rollout_state state, double now_s)
{
    rollout->state = state;
    rollout->began_s = rollout->moved_s = now_s;
    rollout->bad_since_s = -1;
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
    if (rollout->state == ROLLOUT_STAGING) {
        end(rollout, OUTCOME_NOT_BEGUN, now_s);
    } else {
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    }
}

bool rollout_begin(struct rollout *rollout, uint64_t target, uint64_t fallback, double healthy_s,
                   const struct rollout_vitals *vitals, double now_s, char sentence[256])
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
    rollout->target = target;
    rollout->fallback = fallback;
    rollout->healthy_s = healthy_s;
    rollout->loss_before = vitals->loss;
    rollout->reason[0] = '\0';
    rollout->step = 0;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].phase = PHASE_NONE;
        rollout->members[i].sentence[0] = '\0';
    }
    enter(rollout, ROLLOUT_STAGING, now_s);
    return true;
}

void rollout_resume(struct rollout *rollout, enum rollout_state state, uint64_t target, uint64_t fallback, double now_s)
{
    rollout->target = target;
    rollout->fallback = fallback;
    give_reason(rollout, "ps 0 was started again while it was %s", rollout_state_name(state));
    rollout->state = state;
    if (state != ROLLOUT_IDLE) {
        give_up(rollout, now_s);
    }
}

void rollout_heard(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s)
{
    struct rollout_member *member = find(rollout, who);
    if (member == NULL) {
        return;
    }
    member->heard_s = now_s;
    member->version = report->version;
    bool concerns = rollout->state != ROLLOUT_IDLE && report->target == rollout->target;
    member->phase = concerns ? report->phase : PHASE_NONE;
    snprintf(member->sentence, sizeof member->sentence, "%s", report->sentence);
    bool forward = rollout->state == ROLLOUT_STAGING || rollout->state == ROLLOUT_SWITCHING;
    if (concerns && forward && (report->phase == PHASE_FAILED || report->phase == PHASE_LATE)) {
        char name[MEMBER_TEXT];
        member_format(&who, ' ', name);
        give_reason(rollout, "%s: %s", name, report->sentence);
        give_up(rollout, now_s);
    }
}

/* Has everybody who matters come so far? The first who has not goes to *missing. */
static bool all_in(const struct rollout *rollout, enum rollout_phase phase, const struct rollout_member **missing)
{
    for (int i = 0; i < rollout->count; i++) {
        if (rollout->members[i].phase != phase) {
            *missing = &rollout->members[i];
            return false;
        }
    }
    return true;
}

static void time_out(struct rollout *rollout, const struct rollout_member *missing, const char *what, double limit_s,
                     double now_s)
{
    char name[MEMBER_TEXT];
    if (now_s - rollout->began_s >= limit_s) {
        member_format(&missing->who, ' ', name);
        give_reason(rollout, "%s did not %s within %.0f s%s%s", name, what, limit_s,
                    missing->sentence[0] != '\0' ? ": " : "", missing->sentence);
        give_up(rollout, now_s);
    }
}

static void tick_staging(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const struct rollout_member *missing = NULL;
    if (!all_in(rollout, PHASE_STAGED, &missing)) {
        time_out(rollout, missing, "stage it", ROLLOUT_STAGE_S, now_s);
        return;
    }
    rollout->step = vitals->global_step + MARGIN_STEPS + (int64_t)(MARGIN_S * fmax(0, vitals->steps_per_s));
    enter(rollout, ROLLOUT_SWITCHING, now_s);
}

static void tick_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const struct rollout_member *missing = NULL;
    if (all_in(rollout, PHASE_SWITCHED, &missing)) {
        enter(rollout, ROLLOUT_WATCHING, now_s);
        rollout->moved_step = vitals->global_step;
        return;
    }
    time_out(rollout, missing, "switch", ROLLOUT_SWITCH_S, now_s);
}

/* What is wrong now, "" if nothing; *at_once: it needs no second look. */
static void find_illness(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *at_once)
{
    *at_once = true;
    rollout->reason[0] = '\0';
    if (vitals->global_step > rollout->moved_step) {
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
        if (now_s - rollout->members[i].heard_s >= ROLLOUT_SILENT_S) {
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

static void tick_watching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    const struct rollout_member *missing = NULL;
    bool at_once;
    if (vitals->over) {
        end(rollout, OUTCOME_DONE, now_s);
        return;
    }
    find_illness(rollout, vitals, now_s, &at_once);
    bool ill = rollout->reason[0] != '\0';
    rollout->bad_since_s = !ill ? -1 : rollout->bad_since_s < 0 ? now_s : rollout->bad_since_s;
    if (ill && (at_once || now_s - rollout->bad_since_s >= WORSE_FOR_S)) {
        give_up(rollout, now_s);
    } else if (!ill && now_s - rollout->began_s >= rollout->healthy_s && vitals->training &&
               all_in(rollout, PHASE_SWITCHED, &missing)) {
        end(rollout, OUTCOME_DONE, now_s);
    }
}

/* Whoever is gone will hear of it when it is back; only what computes and stores now is waited for. */
static void tick_going_back(struct rollout *rollout, double now_s)
{
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        bool chief = member->who.role == MEMBER_WORKER && member->who.index == 0;
        bool needed = chief || member->who.role == MEMBER_PS ||
                      (member->heard_s >= 0 && now_s - member->heard_s < ROLLOUT_SILENT_S);
        if (needed && member->phase != PHASE_BACK && member->phase != PHASE_RESTORED) {
            return;
        }
    }
    enter(rollout, ROLLOUT_RESTORING, now_s);
}

static void tick_restoring(struct rollout *rollout, double now_s)
{
    const struct rollout_member *chief = find(rollout, (struct member){MEMBER_WORKER, 0});
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
    }
}

bool rollout_abort(struct rollout *rollout, double now_s, char sentence[256])
{
    bool forward =
        rollout->state == ROLLOUT_STAGING || rollout->state == ROLLOUT_SWITCHING || rollout->state == ROLLOUT_WATCHING;
    if (!forward) {
        snprintf(sentence, 256, "there is no rollout to abort: it is %s", rollout_state_name(rollout->state));
        return false;
    }
    give_reason(rollout, "the operator aborted it");
    give_up(rollout, now_s);
    return true;
}

enum rollout_order rollout_order(const struct rollout *rollout, struct member who)
{
    bool chief = who.role == MEMBER_WORKER && who.index == 0;
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        break;
    case ROLLOUT_STAGING:
        return ORDER_STAGE;
    case ROLLOUT_SWITCHING:
    case ROLLOUT_WATCHING:
        return ORDER_SWITCH;
    case ROLLOUT_GOING_BACK:
        return ORDER_BACK;
    case ROLLOUT_RESTORING:
        return chief ? ORDER_RESTORE : ORDER_BACK;
    }
    return ORDER_NOTHING;
}

void rollout_describe(const struct rollout *rollout, char *text, size_t size)
{
    static const enum rollout_phase wanted[] = {PHASE_NONE,     PHASE_STAGED, PHASE_SWITCHED,
                                                PHASE_SWITCHED, PHASE_BACK,   PHASE_RESTORED};
    const struct rollout_member *missing = NULL;
    unsigned long long target = rollout->target, fallback = rollout->fallback;
    int there = 0;
    for (int i = 0; i < rollout->count; i++) {
        bool in = rollout->members[i].phase == wanted[rollout->state];
        there += in;
        missing = in || missing != NULL ? missing : &rollout->members[i];
    }
    char name[MEMBER_TEXT] = "nobody";
    if (missing != NULL) {
        member_format(&missing->who, ' ', name);
    }
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        switch (rollout->outcome) {
        case OUTCOME_NONE:
            snprintf(text, size, "no rollout since this ps was started");
            break;
        case OUTCOME_DONE:
            snprintf(text, size, "version %llu is in force, since step %lld", target, (long long)rollout->step);
            break;
        case OUTCOME_NOT_BEGUN:
            snprintf(text, size, "version %llu was not begun, version %llu stays: %s", target, fallback,
                     rollout->reason);
            break;
        case OUTCOME_WENT_BACK:
            snprintf(text, size, "went back from version %llu to version %llu: %s", target, fallback, rollout->reason);
            break;
        }
        break;
    case ROLLOUT_STAGING:
        snprintf(text, size, "staging version %llu: %d of %d members have it, waiting for %s", target, there,
                 rollout->count, name);
        break;
    case ROLLOUT_SWITCHING:
        snprintf(text, size, "switching to version %llu at step %lld: %d of %d members did, waiting for %s", target,
                 (long long)rollout->step, there, rollout->count, name);
        break;
    case ROLLOUT_WATCHING:
        snprintf(text, size, "watching version %llu for %g s", target, rollout->healthy_s);
        break;
    case ROLLOUT_GOING_BACK:
        snprintf(text, size, "going back to version %llu: %d of %d members did, waiting for %s; %s", fallback, there,
                 rollout->count, name, rollout->reason);
        break;
    case ROLLOUT_RESTORING:
        snprintf(text, size, "worker 0 restores the checkpoint of before version %llu; %s", target, rollout->reason);
        break;
    }
}
