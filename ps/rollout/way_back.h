/*
 * A member's way back from a version: the next process starts on probation (base/process/restart.h), and which lower
 * version it may return to is what the operator signed. versions: the folder of the config; version: what this process
 * runs, unless it says otherwise. One thread at a time.
 */
#ifndef PS_ROLLOUT_WAY_BACK_H
#define PS_ROLLOUT_WAY_BACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "ps/rollout/manifest.h"

/* --- Restarts --- */

/* Stores the running version, which may have come with config.json alone, or be older than the manifest's fallback. */
bool way_back_keep(const struct config *config, const struct versions *versions, uint64_t version, struct error *error);

/*
 * Has the next process start in this version's program, on probation: if it keeps crashing, it starts in the fallback
 * again. Both versions are stored.
 */
bool way_back_begin(const char *config_path, uint64_t version, uint64_t fallback, struct error *error);

/*
 * Has the next process start in the program of this version, to which it goes back. That must not fail, or the fleet
 * would wait forever: if the program is missing, the current one runs the version until a supervisor starts the
 * installed one.
 */
void way_back_go(const char *config_path, uint64_t version);

/* --- Probation --- */

/* True, with an error, if this member crashed in that version and was taken back. */
bool way_back_was_taken(const char *config_path, uint64_t version, struct error *error);

/* True if this process is on probation. */
bool way_back_is_open(const char *config_path, uint64_t version);

/* Ends that: the version it would go back to is no longer kept, and crashes from now on have other causes. */
void way_back_end(const char *config_path, uint64_t version);

/* --- What was signed --- */

/*
 * True if the operator signed that a member in this version may go down to the manifest's fallback, in this manifest or
 * in the one that brought the version.
 */
bool way_back_leads_to(const struct config *config, uint64_t version, const struct manifest *manifest);

/*
 * *to: the fallback, or, if that is 0 because the manifest was refused, the fallback in the manifest that brought the
 * running version. False if there is none, or if its files are missing or damaged. Opens the versions.
 */
bool way_back_find(const struct config *config, struct versions *versions, uint64_t version, uint64_t fallback,
                   uint64_t *to);

#endif
