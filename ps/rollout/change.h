/* What it takes to go from one config to another, and whether a process can. The classes of keys are those of their table. */
#ifndef PS_ROLLOUT_CHANGE_H
#define PS_ROLLOUT_CHANGE_H

#include <stdbool.h>

#include "base/config.h"
#include "base/config/keys.h"
#include "base/error.h"
#include "net/member.h"
#include "ps/rollout/decide.h"

/*
 * The kind of rollout that leads from one job config to the other: live if every key that differs is so by its table
 * (base/config/keys.c); local if none differs and keys of single machines do; else job. Fails, naming the key, where none
 * leads there: what a fleet is called and how it talks can't change under it, ps only come and go at the end of their list,
 * and workers, too, though one may go on under another address.
 */
bool change_kind(const struct config *before, const struct config *after, bool local_differs, enum rollout_kind *kind,
                 struct error *error);

/* Fails if a flag or TF_CONFIG of this process sets a key that `after` has otherwise: it would win again. */
bool change_is_free(const struct config *here, const struct config *after, struct error *error);

/* A key of single machines that may be the same on all: not one that says who a machine is or where it keeps things. */
bool change_goes_to_machines(const struct config_key *key);

/* Is there such a member in this config, or room for it? */
bool change_has_member(const struct config *config, struct member who);

#endif
