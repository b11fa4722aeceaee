#include "ps/rollout/internal.h"

struct rollout_member *rollout_find(const struct rollout *rollout, struct member who)
{
    for (int i = 0; i < rollout->count; i++) {
        if (rollout->members[i].who.role == who.role && rollout->members[i].who.index == who.index) {
            return &rollout->members[i];
        }
    }
    return NULL;
}

bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member)
{
    const bool live = rollout->kind == ROLLOUT_LIVE;
    const bool may_wait = rollout->waits && member->who.role == MEMBER_WORKER;
    const bool ready = member->heard_s >= 0 && (member->ready || may_wait);
    if (!member->takes_part) {
        return true;
    }
    switch (rollout->state) {
    case ROLLOUT_STAGING:
        return member->phase == PHASE_STAGED;
    case ROLLOUT_SWITCHING:
        return live ? member->phase == PHASE_SWITCHED : ready && member->version == rollout->target;
    case ROLLOUT_WATCHING:
        return ready && (live ? member->phase == PHASE_SWITCHED : member->version == rollout->target);
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

/* Workers from the last one down to worker 0, then every ps: the canary is the one that is missed least. */
int rollout_place(const struct rollout *rollout, struct member who)
{
    int before = who.role == MEMBER_PS ? who.index : 0;
    for (int i = 0; i < rollout->count; i++) {
        const struct rollout_member *other = &rollout->members[i];
        before += other->takes_part && other->who.role == MEMBER_WORKER &&
                  (who.role == MEMBER_PS || other->who.index > who.index);
    }
    return before;
}

bool rollout_keeps_waiting(const struct rollout *rollout)
{
    return rollout->kind == ROLLOUT_LIVE && rollout->waited &&
           (rollout->state == ROLLOUT_STAGING || (rollout->state == ROLLOUT_SWITCHING && rollout->at_once));
}

int64_t rollout_order_step(const struct rollout *rollout)
{
    return rollout->state == ROLLOUT_SWITCHING && !rollout->at_once ? rollout->step : 0;
}

/* While all start anew. */
static enum rollout_order restart_order(const struct rollout *rollout, struct member who, enum rollout_order order)
{
    const struct rollout_member *member = rollout_find(rollout, who);
    const bool has_a_place = member != NULL && member->takes_part && rollout_place(rollout, who) < rollout->wave;
    if (rollout->kind == ROLLOUT_LOCAL && order == ORDER_RESTART && !has_a_place) {
        return ORDER_STAGE;
    }
    return rollout->kind == ROLLOUT_JOB && rollout_is_leader(who) && !rollout->leader_may_go ? ORDER_STAGE : order;
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

void rollout_told(struct rollout *rollout, struct member who)
{
    struct rollout_member *member = rollout_find(rollout, who);
    if (member != NULL) {
        member->told = true;
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
    /* One between the two was gone back from while its member was away, which knows by its own manifest whereto. */
    return is_fallback && version < rollout->target ? ORDER_CATCH_UP : ORDER_NOTHING;
}
