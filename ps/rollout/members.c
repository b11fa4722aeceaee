/*
 * Silence is evidence only against those who owe an answer: listed members that were there when the rollout began.
 * Workers that come and go, or were off, never hold up the others.
 */
#include "ps/rollout/members.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/config.h"
#include "ps/rollout/waves.h"

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

struct rollout_member *members_find(const struct rollout *rollout, struct member who)
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

/* In another version than the others: it follows by itself, if it can, which is no reason to wait for it. */
static bool is_behind(const struct rollout_member *member, uint64_t fallback)
{
    return member->listed && may_be_off(member->who) && member->version != fallback;
}

void members_note_absent(struct rollout *rollout, double now_s)
{
    rollout->absent = (struct rollout_absent){{0}};
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        const int worker = member->who.index;
        if (is_off(member, now_s) || is_behind(member, rollout->fallback)) {
            rollout->absent.bits[worker / 8] |= (uint8_t)(1 << worker % 8);
        }
    }
}

void members_choose(struct rollout *rollout, bool known, double now_s)
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

bool members_may_join(const struct rollout *rollout, const struct rollout_member *member, bool concerns)
{
    const bool has_it = concerns && member->phase != PHASE_NONE && member->phase != PHASE_FAILED;
    return rollout->state != ROLLOUT_IDLE &&
           (has_it || member->version == rollout->target ||
            (rollout->state == ROLLOUT_STAGING && member->version == rollout->fallback));
}

static bool is_first_to_try(const struct rollout *rollout, const struct rollout_member *member)
{
    return rollout->state == ROLLOUT_SWITCHING && rollout->brings_program && rollout->is_first_wave &&
           waves_place(rollout, member->who) < rollout->wave;
}

/*
 * Whoever came by itself may leave without a word. But a canary that hangs in the new program is just as silent: it has
 * time to come back from it and say so, before another one is to try the same. Until it does, it shows nothing,
 * whatever it said before.
 */
void members_let_go(struct rollout *rollout, double now_s)
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
            rollout->wave_s = tries ? now_s : rollout->wave_s; /* its place is another's, from now on */
        }
    }
}

bool members_would_wait(const struct rollout *rollout, const struct rollout_plan *plan, double now_s,
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
