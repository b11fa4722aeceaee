/* What a participant does before it takes a version: all that may speak against it is found out now. */
#ifndef PS_ROLLOUT_STAGE_H
#define PS_ROLLOUT_STAGE_H

#include "ps/rollout/participant.h"

/* Verifies the order's manifest, keeps both versions, and prepares. The participant has forgotten the last one. */
bool stage_manifest(struct rollout_participant *participant, const struct participant_order *order,
                    struct error *error);

/* Verifies it for a member that was away, keeps the version that is in force, and switches to it. */
bool stage_catch_up(struct rollout_participant *participant, const struct participant_order *order,
                    struct error *error);

#endif
