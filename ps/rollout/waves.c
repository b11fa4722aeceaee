/*
 * Waves, and what may fail in them. A canary should find what is wrong with a program; later waves what is wrong with
 * machines, so that an error there need not end the rollout, up to the operator's budget.
 *
 * A program's speed is compared with the same worker's before, because machines differ. If workers do not wait for each
 * other, the others, which stay in the old program, show how much of a difference has other causes.
 */
#include "ps/rollout/decide.h"

#include <math.h>
#include <stdio.h>

/* A speed is known after this many steps, or this long; near the bound a canary is measured at most this long. */
static const double PACE_S = 1.0, PACE_STEPS = 10.0, MOST_PACE_S = 15.0;
static const double NEW_SHARE = 0.3; /* weight of the last measurement in the speed before a rollout */

static bool is_worker_here(const struct rollout_member *member)
{
    return member->takes_part && member->who.role == MEMBER_WORKER;
}

/* --- The order --- */

/* Workers by index, the last one first; with a program, those that would be missed come first, late ones last. */
static bool goes_before(const struct rollout *rollout, const struct rollout_member *one,
                        const struct rollout_member *other)
{
    if (rollout->brings_program && one->awaited != other->awaited) {
        return one->awaited;
    }
    if (rollout->brings_program && one->is_late != other->is_late) {
        return other->is_late;
    }
    return one->who.index > other->who.index;
}

/* For each architecture, the worker that goes first; NULL: there is none. A config alone is the same for all. */
struct canaries {
    const struct rollout_member *of[ROLLOUT_ARCHITECTURES];
};

static struct canaries find_canaries(const struct rollout *rollout)
{
    struct canaries canaries = {{NULL}};
    for (int i = 0; i < rollout->count && rollout->brings_program; i++) {
        const struct rollout_member *member = &rollout->members[i];
        const struct rollout_member **first = &canaries.of[member->architecture];
        if (is_worker_here(member) && (!*first || goes_before(rollout, member, *first))) {
            *first = member;
        }
    }
    return canaries;
}

static bool is_canary(const struct canaries *canaries, const struct rollout_member *member)
{
    return canaries->of[member->architecture] == member;
}

static int count_canaries(const struct rollout *rollout)
{
    const struct canaries canaries = find_canaries(rollout);
    int count = 0;
    for (int i = 0; i < ROLLOUT_ARCHITECTURES; i++) {
        count += canaries.of[i] ? 1 : 0;
    }
    return count;
}

int waves_place(const struct rollout *rollout, struct member who)
{
    const struct canaries canaries = find_canaries(rollout);
    const struct rollout_member none = {.who = who}, *own = &none;
    int before = who.role == MEMBER_PS ? who.index : 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *other = &rollout->members[i];
        own = other->who.role == who.role && other->who.index == who.index ? other : own;
    }
    const bool is_first = is_canary(&canaries, own);
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *other = &rollout->members[i];
        const bool is_other_first = is_canary(&canaries, other);
        const bool goes_first = is_first == is_other_first ? goes_before(rollout, other, own) : is_other_first;
        before += is_worker_here(other) && (who.role == MEMBER_PS || goes_first);
    }
    return before;
}

int waves_workers(const struct rollout *rollout)
{
    int workers = 0;
    for (int i = 0; i < rollout->count; i++) {
        workers += is_worker_here(&rollout->members[i]);
    }
    return workers;
}

/* A number, or a share of all workers, rounded up. */
static int amount(uint32_t item, int workers)
{
    const uint32_t number = item & ~ROLLOUT_PERCENT;
    const uint64_t wanted = (item & ROLLOUT_PERCENT) != 0 ? ((uint64_t)workers * number + 99) / 100 : number;
    return wanted < (uint64_t)workers ? (int)wanted : workers;
}

static int count_out(const struct rollout *rollout)
{
    int out = 0;
    for (int i = 0; i < rollout->count; i++) {
        out += rollout->members[i].is_out;
    }
    return out;
}

/* According to the manifest, whose waves contain only workers. */
static int planned_wave(const struct rollout *rollout, int workers)
{
    for (int i = 0; i < rollout->waves.count; i++) {
        const int wanted = amount(rollout->waves.items[i], workers);
        if (wanted > rollout->wave) {
            return wanted;
        }
    }
    return workers;
}

int waves_next(const struct rollout *rollout)
{
    const int workers = waves_workers(rollout);
    int next = planned_wave(rollout, workers);
    if (rollout->waves.count == 0) {
        const int doubled = 2 * rollout->wave + 1;
        next = rollout->brings_program && doubled > workers && rollout->wave < workers ? workers : doubled;
    }
    if (rollout->wave == 0) {
        const int canaries = count_canaries(rollout);
        return next > canaries ? next : canaries;
    }
    if (rollout->waves.budget > 0) {
        const int budget = amount(rollout->waves.budget, workers) - count_out(rollout);
        const int most = rollout->wave + (budget > 1 ? budget : 1);
        next = next < most ? next : most;
    }
    return next;
}

/* --- Members that can't follow --- */

bool waves_within_budget(struct rollout *rollout, struct rollout_member *member)
{
    const bool may = rollout->state == ROLLOUT_SWITCHING && rollout->kind == ROLLOUT_LOCAL &&
                     rollout->ps_turn == PS_STAYS && !rollout->is_first_wave && member->who.role == MEMBER_WORKER &&
                     !rollout_is_chief(member->who) && member->who.index < ROLLOUT_MAX_LISTED;
    if (!may || rollout->waves.budget == 0) {
        return false;
    }
    if (!member->is_out) {
        if (count_out(rollout) >= amount(rollout->waves.budget, waves_workers(rollout))) {
            return false;
        }
        member->is_out = true;
        rollout->is_paused = true;
        snprintf(rollout->pause, sizeof rollout->pause, "%.255s", rollout->reason);
        rollout->changes++;
    }
    return true;
}

bool waves_is_paused(struct rollout *rollout)
{
    bool pauses = false;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        pauses = pauses || (member->is_out && member->takes_part);
    }
    if (rollout->is_paused && !pauses) {
        rollout->is_paused = false;
        rollout->changes++;
    }
    return pauses;
}

void waves_exclude_failed(struct rollout *rollout)
{
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        if (member->is_out && member->takes_part) {
            const bool had_a_place = waves_place(rollout, member->who) < rollout->wave; /* another takes its place */
            rollout->absent.bits[member->who.index / 8] |= (uint8_t)(1 << member->who.index % 8);
            member->awaited = member->takes_part = false;
            rollout->wave -= had_a_place;
        }
    }
}

/* --- How fast --- */

static void begin_count(struct rollout_member *member, double now_s)
{
    member->pace.since_s = now_s;
    member->pace.steps = member->steps;
    member->pace.of_target = member->runs_target;
}

/*
 * By chance a count of steps may be below its expectation: up to this many may have been expected, within the usual 95%
 * of a Poisson count, whose range steps of nearly equal duration never reach.
 */
static double may_have_been(double made)
{
    return made + 2 + 2 * sqrt(made + 1);
}

static bool is_too_few(double made, double bound)
{
    return may_have_been(made) < bound;
}

/* For a canary in the target: is it fast enough, or certainly too slow? In between, counting continues. */
static bool is_clear(const struct rollout *rollout, const struct rollout_pace *pace, double made, double expected)
{
    const double bound = expected * rollout->waves.least_speed / 100.0;
    return expected >= PACE_STEPS && (!pace->of_target || made >= bound || is_too_few(made, bound));
}

void pace_on_report(const struct rollout *rollout, struct rollout_member *member, double now_s)
{
    struct rollout_pace *pace = &member->pace;
    const int64_t made = member->steps - pace->steps;
    const double seconds = now_s - pace->since_s;
    if (member->steps == 0 || pace->since_s < 0 || made < 0 || member->runs_target != pace->of_target) {
        pace->rate = -1;
        begin_count(member, now_s);
        return;
    }
    const double expected = pace->before > 0 && rollout->state != ROLLOUT_IDLE ? pace->before * seconds : (double)made;
    if (seconds < PACE_S || (seconds < MOST_PACE_S && !is_clear(rollout, pace, (double)made, expected))) {
        return;
    }
    pace->rate = (double)made / seconds;
    pace->seconds = seconds;
    if (rollout->state == ROLLOUT_IDLE) {
        pace->before = pace->before < 0 ? pace->rate : NEW_SHARE * pace->rate + (1 - NEW_SHARE) * pace->before;
    }
    begin_count(member, now_s);
}

/* The speed of the workers that stay in the old program, relative to before: other causes slow them down, too. */
static double share_of_others(const struct rollout *rollout)
{
    double rate = 0, before = 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (is_worker_here(member) && !member->runs_target && member->pace.rate >= 0 && member->pace.before > 0) {
            rate += member->pace.rate;
            before += member->pace.before;
        }
    }
    return before > 0 ? fmin(rate / before, 1) : 1;
}

enum pace_verdict pace_of_canaries(const struct rollout *rollout, const struct rollout_vitals *vitals,
                                   char reason[ROLLOUT_MESSAGE])
{
    const double others = vitals->in_step ? 1 : share_of_others(rollout);
    const double share = others * rollout->waves.least_speed / 100.0;
    const struct canaries canaries = find_canaries(rollout);
    enum pace_verdict found = PACE_FINE;
    for (int i = 0; i < rollout->count && share > 0 && !rollout->waits; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (!is_canary(&canaries, member) || !(member->pace.before > 0)) {
            continue;
        }
        if (!member->pace.of_target || member->pace.rate < 0) {
            found = PACE_UNKNOWN;
        } else if (is_too_few(member->pace.rate * member->pace.seconds,
                              share * member->pace.before * member->pace.seconds)) {
            snprintf(reason, ROLLOUT_MESSAGE,
                     "worker %d makes %.3g steps/s in the new program, but made %.3g before: less than %u%%",
                     member->who.index, member->pace.rate, member->pace.before, rollout->waves.least_speed);
            const bool again = rollout->slow_since_s >= 0 && member->pace.since_s > rollout->slow_since_s;
            return again ? PACE_STILL_SLOW : PACE_SLOW;
        }
    }
    return found;
}
