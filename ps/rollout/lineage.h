/*
 * Where the config of this process comes from: the last rollout that this machine took part in, by CONFIG.d/manifest.
 * Its signature was checked when it came.
 */
#ifndef PS_ROLLOUT_LINEAGE_H
#define PS_ROLLOUT_LINEAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/versions.h"
#include "ps/rollout/decide.h"

struct lineage {
    uint64_t target, fallback;
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of both */
    enum rollout_kind kind;
    bool may_lose;
};

/* False: there was none, or its manifest can't be read. */
bool lineage_read(const struct config *config, struct lineage *lineage);

/* That of the rollout by which this version came here; false likewise. */
bool lineage_of(const struct config *config, uint64_t version, struct lineage *lineage);

/* Is this process in the version that the last rollout led to? Then it may not be settled yet. */
bool lineage_is_fresh(const struct config *config);

/* CONFIG.d/00000005.manifest: by which this version came. They stay. */
bool lineage_path(const struct config *config, uint64_t version, char path[VERSIONS_PATH], struct error *error);

/*
 * May a checkpoint that was written under this digest be taken over as far as it fits, though it does not fit whole? So it
 * is where rollouts lead from it to here, one after another (the next one may come before there is a checkpoint of the
 * last), or one from here to it. *may_lose: that the operator said so for one of them.
 */
bool lineage_adopts(const struct config *config, const char *digest, bool *may_lose);

#endif
