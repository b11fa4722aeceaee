/*
 * The leader's decisions. decide.h describes the states and transitions; here is the reasoning behind them.
 *
 * Write down what could be lost before it matters: every member has both versions on disk (staging) before any member
 * runs the new one, the host stores a change of state before any member learns of it, and going back needs neither a
 * key nor the operator. From this follows:
 *
 * - Until a member may run the target, giving up costs nothing and simply ends the rollout. After that, giving up means
 *   going back, without a time limit: a fleet split between two versions is worse than any wait.
 * - A live change applies from one global step on, which must still lie ahead when the last member hears of it. Members
 *   poll; the slowest one's interval, measured during staging, determines how far ahead is far enough.
 * - When the whole job restarts, ps 0 goes last, since the others hear of it only from ps 0.
 * - A leader that was restarted, or stood still, has no evidence yet: it waits before it judges.
 *
 * This file has who takes part, and whose silence counts; the orders to members; the texts for people; the transitions;
 * what the states wait for; and one function for each state. waves.c has who restarts in which wave.
 */
#include "ps/rollout/decide.h"

#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"

/* A live change takes effect this far ahead, at least and at most; members report at very different intervals. */
static const double MARGIN_S = 2.0, MOST_MARGIN_S = 20.0;
static const int REPORTS = 3; /* of the slowest member: it may just miss one, and the next may be late */
enum { MARGIN_STEPS = 20 };

/* Every member polls more often than this. */
static const double LEADER_WAITS_S = 1.0;

/* By train_steps or epochs, whichever ends the job. */
#define ROLLOUT_OVER                                                                                                   \
    "the job would be over after step %lld, by train.train_steps or train.epochs, and would be at step %lld by then: " \
    "raise them; to end the job now, stop worker 0, which saves it"

/* A loss above this bound is a deterioration: batches differ by far less. */
static const double WORSE_FACTOR = 4.0, WORSE_BY = 1.0, WORSE_FOR_S = 1.0;

/* One machine's stall is shorter. */
static const double SLOW_FOR_S = 5.0;

/* --- Members --- */

/*
 * Silence counts only against members that owe an answer: listed ones that were present when the rollout began. Workers
 * that come and go, or were off, never hold up the others.
 */

_Static_assert((int)ROLLOUT_MAX_LISTED >= (int)CONFIG_MAX_HOSTS, "every worker that can be listed has a bit");

bool rollout_create(struct rollout *rollout, int ps, int workers, int room)
{
    *rollout = (struct rollout){.count = ps + room,
                                .members = calloc((size_t)ps + (size_t)room, sizeof(struct rollout_member))};
    for (int i = 0; rollout->members && i < rollout->count; i++) {
        const bool listed = i < ps + workers;
        rollout->members[i] = (struct rollout_member){.who = i < ps ? (struct member){MEMBER_PS, i}
                                                                    : (struct member){MEMBER_WORKER, i - ps},
                                                      .listed = listed,
                                                      .awaited = listed,
                                                      .takes_part = listed,
                                                      .heard_s = -1,
                                                      .pace = {.since_s = -1, .rate = -1, .before = -1}};
    }
    return rollout->members;
}

void rollout_destroy(struct rollout *rollout)
{
    free(rollout->members);
    *rollout = (struct rollout){.count = 0};
}

/* NULL: there is no such member. */
static struct rollout_member *members_find(const struct rollout *rollout, struct member who)
{
    for (int i = 0; i < rollout->count; i++) {
        if (rollout->members[i].who.role == who.role && rollout->members[i].who.index == who.index) {
            return &rollout->members[i];
        }
    }
    return NULL;
}

bool rollout_is_here(const struct rollout_member *member, double now_s)
{
    return member->heard_s >= 0 && now_s - member->heard_s < ROLLOUT_IDLE_TIMEOUT_S;
}

int rollout_count_members(const struct rollout *rollout)
{
    int count = 0;
    for (int i = 0; i < rollout->count; i++) {
        count += rollout->members[i].takes_part;
    }
    return count;
}

static bool may_be_off(struct member who)
{
    return who.role == MEMBER_WORKER && !rollout_is_chief(who);
}

bool rollout_is_absent(const struct rollout_absent *absent, struct member who)
{
    return may_be_off(who) && who.index < ROLLOUT_MAX_LISTED &&
           (absent->bits[who.index / 8] & (1 << who.index % 8)) != 0;
}

static bool is_off(const struct rollout_member *member, double now_s)
{
    return member->listed && may_be_off(member->who) && !rollout_is_here(member, now_s);
}

/* In a different version from the rest. It catches up by itself if it can, so nobody waits for it. */
static bool is_behind(const struct rollout_member *member, uint64_t fallback)
{
    return member->listed && may_be_off(member->who) && member->version != fallback;
}

/* Sets the rollout's `absent`: workers that are off, or in another version than the fallback. */
static void members_note_absent(struct rollout *rollout, double now_s)
{
    rollout->absent = (struct rollout_absent){{0}};
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        const int worker = member->who.index;
        if ((is_off(member, now_s) || is_behind(member, rollout->fallback)) && worker < ROLLOUT_MAX_LISTED) {
            rollout->absent.bits[worker / 8] |= (uint8_t)(1 << worker % 8);
        }
    }
}

/*
 * Sets who takes part and who is awaited, as a rollout begins. known: false after a restart of the leader, which has
 * heard from nobody yet. Nor can it know which workers were present if the job waited for some, so then only the chief
 * and every ps are awaited.
 */
static void members_choose(struct rollout *rollout, bool known, double now_s)
{
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        const bool here = known && rollout_is_here(member, now_s);
        const bool may_miss =
            rollout_is_absent(&rollout->absent, member->who) || (!known && rollout->waited && may_be_off(member->who));
        member->awaited = member->listed && !may_miss;
        member->takes_part = member->awaited || (here && member->version == rollout->fallback);
        member->is_late = false;
    }
}

/* True if a member that did not take part does so from now on. concerns: its report is about this rollout. */
static bool members_may_join(const struct rollout *rollout, const struct rollout_member *member, bool concerns)
{
    const bool has_it = concerns && member->phase != PHASE_NONE && member->phase != PHASE_FAILED;
    return rollout->state != ROLLOUT_IDLE &&
           (has_it || member->version == rollout->target ||
            (rollout->state == ROLLOUT_STAGING && member->version == rollout->fallback));
}

static bool is_first_to_try(const struct rollout *rollout, const struct rollout_member *member)
{
    return rollout->state == ROLLOUT_SWITCHING && rollout->brings_program && rollout->is_first_wave &&
           member->takes_part && waves_place(rollout, member->who) < rollout->wave;
}

/*
 * A member that nobody awaits may leave without a word. But a canary that hangs in the new program is just as silent,
 * so it has time to come back and report that before another one tries the same. Until then it doesn't count as ready,
 * whatever it reported before.
 */
static void members_drop_silent(struct rollout *rollout, double now_s)
{
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        if (!member->takes_part || member->awaited || rollout_is_here(member, now_s)) {
            continue;
        }
        const bool tries = is_first_to_try(rollout, member);
        member->ready = false;
        if (!tries || now_s - rollout->wave_s >= ROLLOUT_SWITCH_S) {
            member->takes_part = false;
            rollout->wave_s = tries ? now_s : rollout->wave_s; /* another one takes its place */
        }
    }
}

/*
 * True, with a message, if a job that restarts would wait for workers that are off or behind, in the plan's target or
 * back in its fallback.
 */
static bool members_would_wait(const struct rollout *rollout, const struct rollout_plan *plan, double now_s,
                               char message[ROLLOUT_MESSAGE])
{
    const struct rollout_demand *demands[] = {&plan->to, &plan->from};
    for (int k = 0; k < 2; k++) {
        const struct rollout_member *first = NULL;
        int there = demands[k]->listed;
        for (int i = 0; i < rollout->count; i++) {
            const struct rollout_member *member = &rollout->members[i];
            const bool may_come = !is_off(member, now_s) && !is_behind(member, plan->fallback);
            if (!may_come && member->who.index < demands[k]->listed) {
                there--;
                first = first ? first : member;
            }
            /* Elastic ones count once they are there. */
            there += member->who.role == MEMBER_WORKER && member->who.index >= demands[k]->listed &&
                     rollout_is_here(member, now_s) && member->version == plan->fallback;
        }
        if (first && there < demands[k]->least) {
            snprintf(
                message, ROLLOUT_MESSAGE,
                "worker %d is %s, and the job would restart and wait for %d workers (min_workers), of which %d can "
                "come: start it, or roll out a lower cluster.min_workers first",
                first->who.index, is_off(first, now_s) ? "off" : "behind", demands[k]->least, there);
            return true;
        }
    }
    return false;
}

/* --- The orders to members in each state, and when they have done it --- */

/*
 * The version of a config does not determine which program runs, nor does a running program prove that it works: a step
 * does.
 */
static bool works_in_program(const struct rollout *rollout, const struct rollout_member *member)
{
    const bool steps = member->who.role == MEMBER_PS || rollout->waits || member->steps > 0;
    return !rollout->brings_program || (member->runs_target && steps);
}

/* True if this member has done what the current state requires of all, or takes no part. */
static bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member)
{
    const bool live = rollout->kind == ROLLOUT_LIVE;
    const bool may_wait = rollout->waits && member->who.role == MEMBER_WORKER;
    const bool ready = member->heard_s >= 0 && (member->ready || may_wait);
    const bool in_target = member->version == rollout->target && works_in_program(rollout, member);
    if (!member->takes_part) {
        return true;
    }
    switch (rollout->state) {
    case ROLLOUT_STAGING:
        return member->phase == PHASE_STAGED;
    case ROLLOUT_SWITCHING:
        return live ? member->phase == PHASE_SWITCHED : ready && in_target;
    case ROLLOUT_WATCHING:
        return ready && (live ? member->phase == PHASE_SWITCHED : in_target);
    case ROLLOUT_GOING_BACK:
        return live ? member->phase == PHASE_BACK || member->phase == PHASE_RESTORED
                    : ready && member->version == rollout->fallback;
    case ROLLOUT_RESTORING:
        return member->phase == PHASE_RESTORED || !rollout_is_chief(member->who);
    case ROLLOUT_TRYING:
        return member->phase == PHASE_TRIED || !rollout_is_chief(member->who);
    case ROLLOUT_SAVING:
        return member->phase == PHASE_SAVED || !rollout_is_chief(member->who);
    case ROLLOUT_IDLE:
        break;
    }
    return true;
}

bool rollout_holds_job(const struct rollout *rollout)
{
    return rollout->kind == ROLLOUT_LIVE && rollout->waited &&
           (rollout->state == ROLLOUT_STAGING || (rollout->state == ROLLOUT_SWITCHING && rollout->at_once));
}

int64_t rollout_order_step(const struct rollout *rollout)
{
    return rollout->state == ROLLOUT_SWITCHING && !rollout->at_once ? rollout->step : 0;
}

/* While members restart: who has no place in the wave waits, and ps 0 may have to. */
static enum rollout_order restart_order(const struct rollout *rollout, struct member who, enum rollout_order order)
{
    const struct rollout_member *member = members_find(rollout, who);
    const bool has_a_place = member && member->takes_part && waves_place(rollout, who) < rollout->wave;
    if (rollout->kind == ROLLOUT_LOCAL && order == ORDER_RESTART && !has_a_place) {
        return ORDER_STAGE;
    }
    if (rollout->kind == ROLLOUT_LOCAL && rollout->ps_turn == PS_WAITS_FOR_SAVE && rollout_is_chief(who) &&
        order == ORDER_RESTART) {
        return ORDER_SAVE;
    }
    const bool with_leader = rollout->kind == ROLLOUT_JOB || rollout->brings_program;
    return with_leader && rollout_is_leader(who) && !rollout->leader_may_restart ? ORDER_STAGE : order;
}

enum rollout_order rollout_order(const struct rollout *rollout, struct member who)
{
    const bool live = rollout->kind == ROLLOUT_LIVE;
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        break;
    case ROLLOUT_STAGING:
        return ORDER_STAGE;
    case ROLLOUT_TRYING:
        return rollout_is_chief(who) ? ORDER_TRY : ORDER_STAGE;
    case ROLLOUT_SAVING:
        return rollout_is_chief(who) ? ORDER_SAVE : ORDER_STAGE;
    case ROLLOUT_SWITCHING:
    case ROLLOUT_WATCHING:
        return live ? ORDER_SWITCH : restart_order(rollout, who, ORDER_RESTART);
    case ROLLOUT_GOING_BACK:
        return live ? ORDER_BACK : restart_order(rollout, who, ORDER_RETURN);
    case ROLLOUT_RESTORING:
        return rollout_is_chief(who) ? ORDER_RESTORE : ORDER_BACK;
    }
    return ORDER_NOTHING;
}

void rollout_delivered(struct rollout *rollout, struct member who)
{
    struct rollout_member *member = members_find(rollout, who);
    if (member) {
        member->delivered = true;
    }
}

enum rollout_order rollout_catch_up(const struct rollout *rollout, uint64_t in_force, uint64_t version)
{
    const bool live = rollout->kind == ROLLOUT_LIVE;
    bool is_target = in_force == rollout->target, is_fallback = in_force == rollout->fallback;
    if (version == in_force || (!is_target && !is_fallback)) {
        return ORDER_NOTHING;
    }
    if (is_target && version < in_force) {
        return live && version == rollout->fallback ? ORDER_SWITCH : ORDER_CATCH_UP;
    }
    if (is_fallback && version == rollout->target) {
        return live ? ORDER_BACK : ORDER_CATCH_UP;
    }
    /* The fleet left a version between the two while this member was away; its own manifest says where it goes. */
    return is_fallback && version < rollout->target ? ORDER_CATCH_UP : ORDER_NOTHING;
}

/* --- A rollout in words, for the log, the operator and the record on disk --- */

static const char *const state_names[] = {"idle",       "staging",   "switching", "watching",
                                          "going back", "restoring", "trying",    "saving"};
enum { STATES = sizeof state_names / sizeof *state_names };

enum { ABSENT_TEXT = 128 };

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

/* How many are where they should be; name: the first one that is not, or "nobody". */
static int count_in(const struct rollout *rollout, char name[MEMBER_TEXT])
{
    int there = 0;
    snprintf(name, MEMBER_TEXT, "nobody");
    for (int i = rollout->count - 1; i >= 0; i--) {
        const struct rollout_member *member = &rollout->members[i];
        if (!rollout_is_in(rollout, member)) {
            member_format(&member->who, ' ', name);
        } else if (member->takes_part) {
            there++;
        }
    }
    return there;
}

static void describe_last(const struct rollout *rollout, char *text, size_t size)
{
    unsigned long long target = rollout->target, fallback = rollout->fallback;
    switch (rollout->outcome) {
    case OUTCOME_NONE:
        snprintf(text, size, "no rollout since this ps started");
        break;
    case OUTCOME_DONE:
        if (rollout->kind == ROLLOUT_LIVE) {
            snprintf(text, size, "version %llu is in force, since step %lld", target, (long long)rollout->step);
        } else {
            snprintf(text, size, "version %llu is in force", target);
        }
        break;
    case OUTCOME_NOT_BEGUN:
        snprintf(text, size, "version %llu was not rolled out, version %llu stays in force: %s", target, fallback,
                 rollout->reason);
        break;
    case OUTCOME_WENT_BACK:
        snprintf(text, size, "went back from version %llu to version %llu: %s", target, fallback, rollout->reason);
        break;
    }
}

static const char *describe_wave(const struct rollout *rollout)
{
    return rollout->ps_turn == PS_RESTARTS         ? "every ps last"
           : rollout->ps_turn == PS_WAITS_FOR_SAVE ? "worker 0 saves the job before every ps does"
           : rollout->is_first_wave                ? "the canary first"
                                                   : "the canary is well";
}

static void describe_switching(const struct rollout *rollout, int there, const char *name, char *text, size_t size)
{
    unsigned long long target = rollout->target;
    switch (rollout->kind) {
    case ROLLOUT_LIVE:
        snprintf(text, size, "switching to version %llu at step %lld: %d of %d members done, waiting for %s", target,
                 (long long)rollout->step, there, rollout_count_members(rollout), name);
        break;
    case ROLLOUT_LOCAL:
        if (rollout->is_paused) {
            snprintf(text, size,
                     "version %llu is paused, %d of %d members run it: %s; `trainer rollout resume` continues without, "
                     "`trainer rollout abort` rolls back",
                     target, there, rollout_count_members(rollout), rollout->pause);
            break;
        }
        snprintf(text, size, "restarting in version %llu in waves, %s: %d of %d members done", target,
                 describe_wave(rollout), there, rollout_count_members(rollout));
        break;
    case ROLLOUT_JOB:
        snprintf(text, size, "all restart in version %llu: %d of %d members done, waiting for %s", target, there,
                 rollout_count_members(rollout), name);
        break;
    }
}

static void describe_state(const struct rollout *rollout, char *text, size_t size)
{
    unsigned long long target = rollout->target, fallback = rollout->fallback;
    char name[MEMBER_TEXT];
    const int there = count_in(rollout, name);
    switch (rollout->state) {
    case ROLLOUT_IDLE:
        describe_last(rollout, text, size);
        break;
    case ROLLOUT_STAGING:
        snprintf(text, size, "staging version %llu: %d of %d members have it, waiting for %s", target, there,
                 rollout_count_members(rollout), name);
        break;
    case ROLLOUT_TRYING:
        snprintf(text, size, "worker 0 tries version %llu on a copy of the checkpoint", target);
        break;
    case ROLLOUT_SAVING:
        snprintf(text, size, "worker 0 saves the job before the restart in version %llu", target);
        break;
    case ROLLOUT_SWITCHING:
        describe_switching(rollout, there, name, text, size);
        break;
    case ROLLOUT_WATCHING:
        snprintf(text, size, "watching version %llu for %g s%s", target, rollout->healthy_s,
                 rollout->waits ? ", once enough workers are present" : "");
        break;
    case ROLLOUT_GOING_BACK:
        snprintf(text, size, "going back to version %llu: %d of %d members done, waiting for %s; %s", fallback, there,
                 rollout_count_members(rollout), name, rollout->reason);
        break;
    case ROLLOUT_RESTORING:
        snprintf(text, size, "worker 0 restores the checkpoint from before version %llu; %s", target, rollout->reason);
        break;
    }
}

/* "; without worker 2, worker 5 and 3 more, which are off", or "". */
static void describe_absent(const struct rollout *rollout, char text[ABSENT_TEXT])
{
    enum { NAMED = 3 };
    char names[NAMED][MEMBER_TEXT];
    int count = 0, behind = 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (member->listed && !member->takes_part && rollout_is_absent(&rollout->absent, member->who)) {
            if (count < NAMED) {
                member_format(&member->who, ' ', names[count]);
            }
            count++;
            behind += member->heard_s >= 0 && member->version != rollout->fallback;
        }
    }
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < NAMED; i++) {
        const char *before = i == 0 ? "; without " : i == count - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, ABSENT_TEXT - used, "%s%s", before, names[i]);
    }
    if (count > NAMED) {
        used += (size_t)snprintf(text + used, ABSENT_TEXT - used, " and %d more", count - NAMED);
    }
    if (count > 0) {
        const char *how = behind == 0 ? "off" : behind == count ? "behind" : "off or behind";
        snprintf(text + used, ABSENT_TEXT - used, ", which %s %s", count == 1 ? "is" : "are", how);
    }
}

void rollout_describe(const struct rollout *rollout, char *text, size_t size)
{
    char absent[ABSENT_TEXT];
    describe_state(rollout, text, size);
    if (rollout->state != ROLLOUT_IDLE) {
        const size_t used = strlen(text);
        describe_absent(rollout, absent);
        snprintf(text + used, size - used, "%s", absent);
    }
}

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
    rollout->leader_may_restart = false;
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
static void roll_back(struct rollout *rollout, double now_s)
{
    if (rollout->state == ROLLOUT_SWITCHING || rollout->state == ROLLOUT_WATCHING) {
        enter(rollout, ROLLOUT_GOING_BACK, now_s);
    } else {
        end_rollout(rollout, OUTCOME_NOT_BEGUN, now_s);
    }
}

/* For a member that can't follow, if the budget doesn't tolerate that. The reason is set already. */
static void roll_back_for(struct rollout *rollout, struct rollout_member *member, double now_s)
{
    if (!waves_within_budget(rollout, member)) {
        roll_back(rollout, now_s);
    }
}

/*
 * Notes what losses under the target will be compared with. While a worker has reported none since it joined, the
 * others' may be of a model that was discarded since, and their maximum bounds nothing. They are noted again when all
 * have staged: by then, that worker has usually made a step.
 */
static void note_loss_before(struct rollout *rollout, const struct rollout_vitals *vitals)
{
    rollout->is_estimate = vitals->unsure;
    rollout->loss_before =
        rollout->may_lose || vitals->waits || vitals->unsure ? fmax(vitals->loss, vitals->chance_loss) : vitals->loss;
}

/* The last wave: every ps, at once. */
static void begin_ps_turn(struct rollout *rollout, double now_s)
{
    rollout->ps_turn = PS_RESTARTS;
    rollout->wave = rollout->count;
    rollout->wave_s = now_s;
    rollout->leader_may_restart = false;
    rollout->began_s = now_s;
    for (int i = 0; i < rollout->count; i++) {
        rollout->members[i].delivered = false;
    }
}

/* vitals NULL: not known yet. */
static void begin_switching(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    if (vitals && rollout->is_estimate) {
        note_loss_before(rollout, vitals);
    }
    enter(rollout, ROLLOUT_SWITCHING, now_s);
    rollout->generation = vitals ? vitals->generation : 0;
    rollout->ps_turn = PS_STAYS;
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
    rollout->is_estimate = false;
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
        roll_back(rollout, now_s);
    }
}

void rollout_on_report(struct rollout *rollout, struct member who, const struct rollout_report *report, double now_s)
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
    pace_on_report(rollout, member, now_s);
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
        roll_back_for(rollout, member, now_s);
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
    roll_back(rollout, now_s);
    return true;
}

bool rollout_continue(struct rollout *rollout, double now_s, char message[ROLLOUT_MESSAGE])
{
    if (rollout->state != ROLLOUT_SWITCHING || !rollout->is_paused) {
        snprintf(message, ROLLOUT_MESSAGE, "there is no rollout that is paused: it is %s",
                 rollout_state_name(rollout->state));
        return false;
    }
    waves_exclude_failed(rollout);
    rollout->is_paused = false;
    rollout->wave_s = now_s;
    rollout->changes++;
    return true;
}

void rollout_extend_deadlines(struct rollout *rollout, double seconds)
{
    rollout->began_s += seconds;
    rollout->moved_s += seconds;
    rollout->wave_s += seconds;
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        member->heard_s += member->heard_s >= 0 ? seconds : 0;
    }
}

void rollout_note_transfer(struct rollout *rollout, double now_s)
{
    if (rollout->state == ROLLOUT_STAGING) {
        rollout->began_s = now_s;
    }
}

/* --- What the states wait for --- */

/* The first member before that place that has not done what the state requires, awaited ones first; NULL: none. */
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

static void roll_back_on_timeout(struct rollout *rollout, struct rollout_member *member, const char *what,
                                 double limit_s, const char *message, double now_s)
{
    char name[MEMBER_TEXT];
    member_format(&member->who, ' ', name);
    give_reason(rollout, "%s did not %s within %.0f s%s%s", name, what, limit_s, message[0] != '\0' ? ": " : "",
                message);
    roll_back_for(rollout, member, now_s);
}

/* True if none is missing. After the time limit it gives up for an awaited member, and does without any other. */
static bool are_all_in(struct rollout *rollout, int places, const char *what, double since_s, double limit_s,
                       double now_s)
{
    struct rollout_member *missing = first_missing(rollout, places);
    const bool late = now_s - since_s >= limit_s;
    if (missing && late && missing->awaited) {
        roll_back_on_timeout(rollout, missing, what, limit_s, missing->message, now_s);
        return false;
    }
    return !missing || late;
}

/* If the job would be over before this step, gives up: nothing has changed yet that would need undoing. */
static bool would_be_over(struct rollout *rollout, int64_t step, double now_s)
{
    if (rollout->last_step == 0 || step < rollout->last_step) {
        return false;
    }
    give_reason(rollout, ROLLOUT_OVER, (long long)rollout->last_step, (long long)step);
    roll_back(rollout, now_s);
    return true;
}

/* ps 0 restarts last, or the others would not hear of it in time. */
static void allow_leader_restart(struct rollout *rollout, double now_s)
{
    bool all_delivered = true;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        all_delivered = all_delivered && (member->delivered || !member->takes_part || rollout_is_leader(member->who));
    }
    rollout->leader_may_restart = all_delivered || now_s - rollout->began_s >= LEADER_WAITS_S;
}

/* Sets the reason to what is wrong now, "" if nothing is. *at_once: it is certain, and need not last. */
static void find_failure(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *at_once)
{
    *at_once = true;
    rollout->reason[0] = '\0';
    if (vitals->global_step < rollout->moved_step) { /* the model was restored: the proof starts over */
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
        /* Its wave waits for a member that is restarting, with its own limit. */
        bool starts = rollout->state == ROLLOUT_SWITCHING && !rollout_is_in(rollout, member);
        if (member->awaited && !starts && !member->is_out && now_s - member->heard_s >= ROLLOUT_IDLE_TIMEOUT_S) {
            member_format(&member->who, ' ', name);
            give_reason(rollout, "%s was not heard from for %d s", name, ROLLOUT_IDLE_TIMEOUT_S);
            if (!waves_within_budget(rollout, member)) {
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

/* True if it gave up. */
static bool check_failures(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s, bool *trouble)
{
    bool at_once;
    find_failure(rollout, vitals, now_s, &at_once);
    *trouble = rollout->reason[0] != '\0';
    rollout->bad_since_s = !*trouble ? -1 : rollout->bad_since_s < 0 ? now_s : rollout->bad_since_s;
    if (*trouble && (at_once || now_s - rollout->bad_since_s >= WORSE_FOR_S)) {
        roll_back(rollout, now_s);
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
            roll_back_on_timeout(rollout, members_find(rollout, (struct member){MEMBER_WORKER, 0}), "restore the model",
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

/* Trying and saving, in which only worker 0 has something to do. */
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

/* All workers run the new program. Their progress must survive the restart of every ps. */
static void wait_for_save(struct rollout *rollout, double now_s)
{
    struct rollout_member *chief = members_find(rollout, (struct member){MEMBER_WORKER, 0});
    if (rollout->ps_turn == PS_STAYS) {
        rollout->ps_turn = PS_WAITS_FOR_SAVE;
        rollout->wave_s = now_s;
    } else if (chief && chief->phase == PHASE_SAVED) {
        begin_ps_turn(rollout, now_s);
    } else if (chief && now_s - rollout->wave_s >= ROLLOUT_SAVE_S) {
        roll_back_on_timeout(rollout, chief, "save the job", ROLLOUT_SAVE_S, chief->message, now_s);
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
        roll_back(rollout, now_s);
    }
    return pace == PACE_FINE;
}

static void begin_next_wave(struct rollout *rollout, double now_s)
{
    rollout->wave = waves_next(rollout);
    rollout->is_first_wave = false;
    rollout->wave_s = now_s;
    rollout->settled_s = -1;
}

static void tick_waves(struct rollout *rollout, const struct rollout_vitals *vitals, double now_s)
{
    bool trouble;
    if (check_failures(rollout, vitals, now_s, &trouble)) {
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
    if (waves_is_paused(rollout)) {
        rollout->wave_s = now_s; /* a pause makes nobody late */
        rollout->settled_s = -1;
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
        roll_back(rollout, now_s);
        return;
    }
    /* Members that have switched then make no more steps, so those still waiting for the step would wait forever. */
    if (!isfinite(vitals->loss) && first_missing(rollout, INT_MAX)) {
        give_reason(rollout, "the loss is no longer finite, after step %lld", (long long)vitals->global_step);
        roll_back(rollout, now_s);
        return;
    }
    allow_leader_restart(rollout, now_s);
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
    if (check_failures(rollout, vitals, now_s, &trouble)) {
        return;
    }
    if (rollout->waits) { /* only steps prove anything */
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
 * Only members that compute or store now are waited for; a worker that is gone will hear of it when it returns. A
 * leader that has just restarted has heard from nobody yet: silence counts from its own start, or it would declare the
 * rollout over while workers still run the target.
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
    allow_leader_restart(rollout, now_s);
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
    members_drop_silent(rollout, now_s);
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
