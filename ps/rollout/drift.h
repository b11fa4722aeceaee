/*
 * Has somebody edited config.json by hand? A version that was rolled out counts for more than the file, until that has a
 * higher fleet.version; so the edit has no effect, and somebody should know. It is not undone.
 *
 * CONFIG.d/base holds the digest of the file as it was when its version, or the first one after it, came into force.
 */
#ifndef PS_ROLLOUT_DRIFT_H
#define PS_ROLLOUT_DRIFT_H

#include <stdbool.h>
#include <sys/stat.h>

#include "base/config.h"

enum { DRIFT_HEX = 64, DRIFT_TEXT = 256 };

struct drift {
    const struct config *config; /* as the process was started; borrowed */
    char base[DRIFT_HEX + 1];
    struct stat seen;
    char text[DRIFT_TEXT]; /* "": none */
};

void drift_begin(struct drift *drift, const struct config *config);

/* Where there is a folder of versions: the next process shall know it, too. */
void drift_keep(const struct drift *drift);

/* Looks at the file again if it was touched; cheap. */
void drift_look(struct drift *drift);

/* fleet.version of the file as it is now; 0 if it says nothing or can't be read. */
int64_t drift_file_version(const struct config *config);

#endif
