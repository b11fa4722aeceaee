/*
 * Where the config of this process comes from: the last rollout that this machine took part in, by CONFIG.d/manifest.
 * Its signature was checked when it came.
 */
#ifndef PS_ROLLOUT_LINEAGE_H
#define PS_ROLLOUT_LINEAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "ps/rollout/decide.h"

struct lineage {
    uint64_t target, fallback;
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of both */
    enum rollout_kind kind;
    bool may_lose;
};

/* False: there was none, or its manifest can't be read. */
bool lineage_read(const struct config *config, struct lineage *lineage);

/* Is this process in the version that the last rollout led to? Then it may not be settled yet. */
bool lineage_is_fresh(const struct config *config);

/*
 * May a checkpoint that was written under this digest be taken over as far as it fits, though it does not fit whole? So it
 * is where a rollout leads from it to here, or from here to it. *may_lose: that the operator said so.
 */
bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose);

#endif
