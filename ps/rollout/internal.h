/*
 * Inside the leader's decisions: decide.c moves from state to state, orders.c says what members are to do meanwhile, takers.c
 * who takes part.
 */
#ifndef PS_ROLLOUT_INTERNAL_H
#define PS_ROLLOUT_INTERNAL_H

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

/* ---- takers.c ---- */

/* At the beginning: who is off. */
void participation_note_absent(struct rollout *rollout, double now_s);

/* known: who is here was heard of already; after a restart of the leader nobody was. */
void participation_choose(struct rollout *rollout, bool known, double now_s);

/* Of one that is not awaited and was not known to take part. concerns: its phase is of this rollout. */
bool participation_joins_in(const struct rollout *rollout, const struct rollout_member *member, bool concerns);

/* Whoever came by themselves go without a word, too. */
void participation_let_go(struct rollout *rollout, double now_s);

/* Of a job that is to start anew: would it wait for workers that are off, in the target or back in the fallback? */
bool participation_too_few(const struct rollout *rollout, const struct rollout_plan *plan, double now_s,
                           char message[256]);

/* "; without worker 2, worker 5 and 3 others, which are off", or "". */
enum { PARTICIPATION_TEXT = 128 };
void participation_describe_absent(const struct rollout *rollout, char text[PARTICIPATION_TEXT]);

#endif
