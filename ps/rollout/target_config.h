/*
 * A rollout's configs on this machine: whether this program reads them as they were signed, and what would keep a
 * process from running in the target. Looks, and changes nothing. One thread at a time.
 */
#ifndef PS_ROLLOUT_TARGET_CONFIG_H
#define PS_ROLLOUT_TARGET_CONFIG_H

#include <stdbool.h>

#include "base/config.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "ps/rollout/manifest.h"

/*
 * Parses a signed config. Fails if this program reads it differently from the one that signed it. name: "target" or
 * "fallback", for the error. The caller frees *config, also after a failure.
 */
bool target_config_parse(const struct manifest_config *from, const char *name, struct config *config,
                         struct error *error);

/*
 * *then: the config that a process started like this one, in `own`, would have in the target. Fails if that differs
 * from what was signed: a flag or the environment changes it, or the local file, which takes precedence unless its
 * version is lower. The caller frees *then, also after a failure.
 */
bool target_config_apply(const struct config *own, const struct manifest_config *target, struct config *then,
                         struct error *error);

/* True if there is room for versions and logs. */
bool target_config_has_disk(const struct versions *versions, struct error *error);

/* Resolves the hosts that are new or moved: a misspelt name would leave half the fleet waiting. May take seconds. */
bool target_config_resolves(const struct config_cluster *before, const struct config_cluster *after,
                            struct error *error);

#endif
