/*
 * The members of a rollout: who there is, who takes part, and whose silence counts. Part of the decisions (decide.h),
 * and like them without clock, threads or files.
 */
#ifndef PS_ROLLOUT_MEMBERS_H
#define PS_ROLLOUT_MEMBERS_H

#include <stdbool.h>

#include "ps/rollout/state.h"

/* ps, workers: the numbers listed; room: of all workers, including those that may join. False if out of memory. */
bool rollout_create(struct rollout *rollout, int ps, int workers, int room);
void rollout_destroy(struct rollout *rollout);

/* False for a ps and the chief, which are always awaited. */
bool rollout_is_absent(const struct rollout_absent *absent, struct member who);

/* True if it has reported recently. */
bool rollout_is_here(const struct rollout_member *member, double now_s);

/* The number of members that take part. */
int rollout_count_members(const struct rollout *rollout);

/* NULL: there is no such member. */
struct rollout_member *members_find(const struct rollout *rollout, struct member who);

/* Sets the rollout's `absent`: workers that are off, or in another version than the fallback. */
void members_note_absent(struct rollout *rollout, double now_s);

/*
 * Sets who takes part and who is awaited, as a rollout begins. known: false after a restart of the leader, which has
 * heard from nobody yet. Nor can it know which workers were present if the job waited for some, so then only the chief
 * and every ps are awaited.
 */
void members_choose(struct rollout *rollout, bool known, double now_s);

/* True if a member that did not take part does so from now on. concerns: its report is about this rollout. */
bool members_may_join(const struct rollout *rollout, const struct rollout_member *member, bool concerns);

/* Drops silent members that nobody awaits. */
void members_let_go(struct rollout *rollout, double now_s);

/*
 * True, with a message, if a job that restarts would wait for workers that are off or behind, in the plan's target or
 * back in its fallback.
 */
bool members_would_wait(const struct rollout *rollout, const struct rollout_plan *plan, double now_s,
                        char message[ROLLOUT_MESSAGE]);

#endif
