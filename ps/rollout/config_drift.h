/*
 * Drift: config.json was edited by hand. A version that was rolled out takes precedence until the file has a higher
 * fleet.version, so the edit has no effect, and drift reports it. The edit is not undone.
 *
 * CONFIG.d/base holds the digest of the file as it was when its version, or the first one after it, came into force.
 * One thread at a time.
 */
#ifndef PS_ROLLOUT_CONFIG_DRIFT_H
#define PS_ROLLOUT_CONFIG_DRIFT_H

#include <stdint.h>
#include <sys/stat.h>

#include "base/config.h"

enum { CONFIG_DRIFT_HEX = 64, CONFIG_DRIFT_TEXT = 256 };

struct config_drift {
    const struct config *config; /* as the process was started; borrowed */
    char base[CONFIG_DRIFT_HEX + 1];
    struct stat seen;
    char text[CONFIG_DRIFT_TEXT]; /* the report; "": no drift */
};

/* Without a config file there is none. */
void config_drift_begin(struct config_drift *drift, const struct config *config);

/* Writes CONFIG.d/base if there is a folder of versions: the next process must know it, too. */
void config_drift_keep(const struct config_drift *drift);

/* Looks at the file again if it was touched; cheap. */
void config_drift_look(struct config_drift *drift);

/* fleet.version of the file as it is now; 0 if it says nothing or can't be read. */
int64_t config_drift_file_version(const struct config *config);

#endif
