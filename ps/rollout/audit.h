/* The audit log of a machine: CONFIG.d/audit.log, one JSON object a line, only ever appended to. */
#ifndef PS_ROLLOUT_AUDIT_H
#define PS_ROLLOUT_AUDIT_H

#include <stdint.h>

#include "base/config/versions.h"

/*
 * Who did what when, to which version, and what came of it: {"when":"2024-05-01T12:00:00Z","member":"ps 0",
 * "who":"me@desk","what":"stage","version":5,"outcome":"done"}. A line that can't be written is a warning in the log.
 */
void audit_write(const struct versions *versions, const char *member, const char *who, const char *what,
                 uint64_t version, const char *outcome);

#endif
