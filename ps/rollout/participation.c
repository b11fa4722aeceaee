/* Who takes part in a rollout, and whose silence counts. */
#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "ps/rollout/internal.h"

_Static_assert((int)ROLLOUT_MAX_LISTED >= (int)CONFIG_MAX_HOSTS, "every worker that can be listed has a bit");

bool rollout_is_here(const struct rollout_member *member, double now_s)
{
    return member->heard_s >= 0 && now_s - member->heard_s < ROLLOUT_IDLE_TIMEOUT_S;
}

int rollout_participation(const struct rollout *rollout)
{
    int takers = 0;
    for (int i = 0; i < rollout->count; i++) {
        takers += rollout->members[i].takes_part;
    }
    return takers;
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

void participation_note_absent(struct rollout *rollout, double now_s)
{
    rollout->absent = (struct rollout_absent){{0}};
    for (int i = 0; i < rollout->count; i++) {
        const int worker = rollout->members[i].who.index;
        if (is_off(&rollout->members[i], now_s) && worker < ROLLOUT_MAX_LISTED) {
            rollout->absent.bits[worker / 8] |= (uint8_t)(1 << worker % 8);
        }
    }
}

/* Of a job that waited for workers it is not known after a restart who was there. */
void participation_choose(struct rollout *rollout, bool known, double now_s)
{
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        const bool here = known && rollout_is_here(member, now_s);
        const bool may_miss =
            rollout_is_absent(&rollout->absent, member->who) || (!known && rollout->waited && may_be_off(member->who));
        member->awaited = member->listed && !may_miss;
        member->takes_part = member->awaited || (here && member->version == rollout->fallback);
    }
}

bool participation_joins_in(const struct rollout *rollout, const struct rollout_member *member, bool concerns)
{
    const bool has_it = concerns && member->phase != PHASE_NONE && member->phase != PHASE_FAILED;
    return rollout->state != ROLLOUT_IDLE &&
           (has_it || member->version == rollout->target ||
            (rollout->state == ROLLOUT_STAGING && member->version == rollout->fallback));
}

void participation_let_go(struct rollout *rollout, double now_s)
{
    for (int i = 0; i < rollout->count; i++) {
        struct rollout_member *member = &rollout->members[i];
        member->takes_part = member->awaited || (member->takes_part && rollout_is_here(member, now_s));
    }
}

bool participation_too_few(const struct rollout *rollout, const struct rollout_plan *plan, double now_s,
                           char message[256])
{
    const struct rollout_demand *demands[] = {&plan->to, &plan->from};
    for (int k = 0; k < 2; k++) {
        int there = demands[k]->listed, first = -1;
        for (int i = 0; i < rollout->count; i++) {
            const struct rollout_member *member = &rollout->members[i];
            if (is_off(member, now_s) && member->who.index < demands[k]->listed) {
                there--;
                first = first < 0 ? member->who.index : first;
            }
        }
        if (first >= 0 && there < demands[k]->least) {
            snprintf(
                message, 256,
                "worker %d is off, and the job would start anew and wait for %d workers (min_workers), where %d can "
                "come: start it, or roll out a lower cluster.min_workers first",
                first, demands[k]->least, there);
            return true;
        }
    }
    return false;
}

void participation_describe_absent(const struct rollout *rollout, char text[PARTICIPATION_TEXT])
{
    enum { NAMED = 3 };
    char names[NAMED][MEMBER_TEXT];
    int count = 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *member = &rollout->members[i];
        if (member->listed && !member->takes_part && rollout_is_absent(&rollout->absent, member->who)) {
            if (count < NAMED) {
                member_format(&member->who, ' ', names[count]);
            }
            count++;
        }
    }
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && i < NAMED; i++) {
        const char *before = i == 0 ? "; without " : i == count - 1 ? " and " : ", ";
        used += (size_t)snprintf(text + used, PARTICIPATION_TEXT - used, "%s%s", before, names[i]);
    }
    if (count > NAMED) {
        used += (size_t)snprintf(text + used, PARTICIPATION_TEXT - used, " and %d more", count - NAMED);
    }
    if (count > 0) {
        snprintf(text + used, PARTICIPATION_TEXT - used, ", which %s off", count == 1 ? "is" : "are");
    }
}
