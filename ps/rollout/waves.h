/*
 * The order of restarts in a local rollout, the limit on absent members, and the speed of restarted ones. Part of the
 * decisions (decide.h), and like them without clock, threads or files.
 */
#ifndef PS_ROLLOUT_WAVES_H
#define PS_ROLLOUT_WAVES_H

#include <stdbool.h>

#include "ps/rollout/state.h"

/*
 * In a local rollout members restart in waves: member n of the order belongs to the first wave that reaches beyond n.
 * Workers go from the last one down to worker 0, then every ps, so that the canary is the member missed least. With a
 * new program there is a canary of each architecture, and awaited members go before those that come and go, since a bad
 * program's silence must be noticed.
 */
int waves_place(const struct rollout *rollout, struct member who);

/* The number of workers that take part. */
int waves_workers(const struct rollout *rollout);

/* The number of members restarted when the next wave is complete. */
int waves_next(const struct rollout *rollout);

/* --- Members that can't follow --- */

/*
 * True if the rollout tolerates that this member can't follow, for the reason already set: a budget allows it, and it
 * is neither a ps, nor worker 0, nor a canary. The rollout is then paused.
 */
bool waves_bear(struct rollout *rollout, struct rollout_member *member);

/* True if it is paused. Ends the pause if no participating member is out any more. */
bool waves_pause(struct rollout *rollout);

/* Continues without the members that could not follow, as if they had been off since the rollout began. */
void waves_leave_behind(struct rollout *rollout);

/* --- Speed --- */

void pace_heard(const struct rollout *rollout, struct rollout_member *member, double now_s);

enum pace_verdict { PACE_FINE, PACE_UNKNOWN, PACE_SLOW, PACE_STILL_SLOW };

/* Compares the canaries' speed with their previous one. PACE_SLOW: `reason` names the slow one. PACE_STILL_SLOW:
   also in a count that ended after rollout->slow_since_s, since one count of a few steps may be slow by chance. */
enum pace_verdict pace_of_canaries(const struct rollout *rollout, const struct rollout_vitals *vitals,
                                   char reason[ROLLOUT_MESSAGE]);

#endif
