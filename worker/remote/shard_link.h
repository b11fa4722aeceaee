/* The links of workers and operators to parameter servers and to worker 0 (net/link.h), according to the config. */
#ifndef WORKER_REMOTE_SHARD_LINK_H
#define WORKER_REMOTE_SHARD_LINK_H

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"

/* ps: index into ps_hosts. identity and traffic are borrowed. */
bool shard_link_create(struct link *link, const struct config *config, int ps, const struct identity *identity,
                       struct traffic *traffic, struct error *error);

/* To worker 0, for batches. */
bool shard_link_create_to_chief(struct link *link, const struct config *config, const struct identity *identity,
                                struct traffic *traffic, struct error *error);

#endif
