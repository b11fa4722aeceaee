/* A connection to ps 0, as an operator who asks about rollouts, or for one. One thread. */
#ifndef WORKER_REMOTE_DESK_LINK_H
#define WORKER_REMOTE_DESK_LINK_H

#include <stddef.h>
#include <stdint.h>

#include "worker/remote/shard_link.h"

struct desk_link {
    struct self self;
    struct traffic traffic;
    struct shard_link link;
};

/* Connects nowhere yet. Also after a failure, desk_link_close is due. */
bool desk_link_open(struct desk_link *link, const struct config *config, struct error *error);
void desk_link_close(struct desk_link *link);

/* What ps 0 says, within some seconds, or NULL; it lies in the link's channel, until that is used again. */
const struct message_rollout *desk_link_ask(struct desk_link *link, struct error *error);

/* Gives ps 0 a manifest, after it was asked something. True: the rollout is begun. */
bool desk_link_propose(struct desk_link *link, const uint8_t *bytes, size_t size, double healthy_s,
                       struct error *error);

bool desk_link_abort(struct desk_link *link, const char *who, struct error *error);

#endif
