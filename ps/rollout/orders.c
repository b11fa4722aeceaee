/* What a member is told in each state, and when it has done that. */
#include "ps/rollout/decide.h"

#include "ps/rollout/members.h"
#include "ps/rollout/waves.h"

/* The version of its config does not say which program runs, nor does that one runs say that it works. */
static bool works_in_program(const struct rollout *rollout, const struct rollout_member *member)
{
    const bool steps = member->who.role == MEMBER_PS || rollout->waits || member->steps > 0;
    return !rollout->brings_program || (member->runs_target && steps);
}

bool rollout_is_in(const struct rollout *rollout, const struct rollout_member *member)
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

bool rollout_keeps_waiting(const struct rollout *rollout)
{
    return rollout->kind == ROLLOUT_LIVE && rollout->waited &&
           (rollout->state == ROLLOUT_STAGING || (rollout->state == ROLLOUT_SWITCHING && rollout->at_once));
}

int64_t rollout_order_step(const struct rollout *rollout)
{
    return rollout->state == ROLLOUT_SWITCHING && !rollout->at_once ? rollout->step : 0;
}

/* While all restart. */
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
    return with_leader && rollout_is_leader(who) && !rollout->leader_may_go ? ORDER_STAGE : order;
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
    /* One between the two was gone back from while its member was away, which knows by its own manifest whereto. */
    return version < rollout->target ? ORDER_CATCH_UP : ORDER_NOTHING;
}
