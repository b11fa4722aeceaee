/*
 * Who restarts when in a local rollout, how many may be away meanwhile, and how fast those are that have. Parts of the
 * decisions (decide.h), and like them without clock, threads or files.
 */
#ifndef PS_ROLLOUT_WAVES_H
#define PS_ROLLOUT_WAVES_H

#include <stdbool.h>

#include "ps/rollout/state.h"

/*
 * In a local rollout members restart in waves: the n-th belongs to the first wave of more than n. Workers go from the
 * last one down to worker 0, then every ps, so that the canary is the member that would be missed least. In a new
 * program there is a canary of each architecture, and those whose silence counts go before those that come and go: what
 * a bad one silences must be noticed.
 */
int waves_place(const struct rollout *rollout, struct member who);

/* Workers that take part. */
int waves_workers(const struct rollout *rollout);

/* How many members have restarted when the next wave is complete. */
int waves_next(const struct rollout *rollout);

/* --- Those that can't follow --- */

/*
 * True if the rollout bears that this member can't follow, for the reason that stands: a budget allows it, and it is
 * neither a ps, nor worker 0, nor a canary. It is paused then.
 */
bool waves_bear(struct rollout *rollout, struct rollout_member *member);

/* Does it pause? No longer if nobody that takes part is out. */
bool waves_pause(struct rollout *rollout);

/* Leaves those behind that could not follow, as if they had been off since the rollout began. */
void waves_leave_behind(struct rollout *rollout);

/* --- How fast --- */

void pace_heard(const struct rollout *rollout, struct rollout_member *member, double now_s);

enum pace_verdict { PACE_FINE, PACE_UNKNOWN, PACE_SLOW, PACE_STILL_SLOW };

/* Of the canaries, beside what they made before; slow: says which, in reason. Still slow: also in a count that ended
   after rollout->slow_since_s, for one count of a few steps may be so by chance. */
enum pace_verdict pace_of_canaries(const struct rollout *rollout, const struct rollout_vitals *vitals,
                                   char reason[256]);

#endif
