/*
 * The new config of a rollout, on the operator's machine: read, compared with what the fleet runs, and signed.
 */
#ifndef WORKER_REMOTE_OPERATOR_CANDIDATE_H
#define WORKER_REMOTE_OPERATOR_CANDIDATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/rollout/decide.h"
#include "ps/rollout/manifest.h"

/* The file at path, under the same flags as this process's own config. */
bool candidate_load(struct config *new, const struct config *here, const char *path, struct error *error);

/*
 * The keys of single machines that come with the new version: those that the new file sets to something else than the
 * config file here does, and those that came with the version in force and are still in the new file. What says who a
 * machine is, or where it keeps things, can't come.
 */
struct candidate_keys {
    const struct config *here, *new, *before; /* before: with what came with the version in force */
};

/* *text: "" if none come; the caller frees it. */
bool candidate_local(const struct candidate_keys *keys, char **text, struct error *error);
void candidate_show_local(const struct candidate_keys *keys, bool differ);

/* Shows what changes, and says no to what can't. */
bool candidate_check(const struct config *running, const struct config *new, bool local_differs,
                     enum rollout_kind *kind, struct error *error);

/* What the fleet runs, and what it is to run. */
struct candidate {
    const struct config *running, *new;
    const char *job, *local; /* as they run */
    const char *new_local;
    bool may_lose;
};

/* The manifest; the caller frees *bytes. */
bool candidate_sign(const char *key_path, const struct candidate *both, uint8_t **bytes, size_t *size,
                    struct error *error);

/* user@host */
void candidate_author(char author[MANIFEST_MAX_NAME + 1]);

#endif
