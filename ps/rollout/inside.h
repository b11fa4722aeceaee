/* Inside the leader's decisions: decide.c moves from state to state, orders.c says what members are to do meanwhile. */
#ifndef PS_ROLLOUT_INSIDE_H
#define PS_ROLLOUT_INSIDE_H

#include "ps/rollout/decide.h"

static inline bool rollout_is_chief(struct member who)
{
    return who.role == MEMBER_WORKER && who.index == 0;
}

static inline bool rollout_is_leader(struct member who)
{
    return who.role == MEMBER_PS && who.index == 0;
}

/* NULL: there is no such member. */
struct rollout_member *rollout_find(const struct rollout *rollout, struct member who);

/* A local rollout's order: the n-th is a part of the first wave that has more than n members. */
int rollout_place(const struct rollout *rollout, struct member who);

#endif
