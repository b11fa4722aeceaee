/* A connection to ps 0, as an operator who asks about rollouts, or for one. One thread. */
#ifndef WORKER_REMOTE_OPERATOR_DESK_LINK_H
#define WORKER_REMOTE_OPERATOR_DESK_LINK_H

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

/* Connects, within half a minute, saying whom it waits for. False at once where nobody listens, or we are refused. */
bool desk_link_reach(struct desk_link *link, struct error *error);

/* What ps 0 says, within some seconds, or NULL; it lies in the link's channel, until that is used again. */
const struct message_rollout *desk_link_ask(struct desk_link *link, struct error *error);

enum proposal {
    PROPOSAL_TAKEN,      /* the rollout is begun */
    PROPOSAL_REFUSED,    /* for the reason in the error */
    PROPOSAL_UNANSWERED, /* the connection is closed; whether ps 0 has it, it alone can tell */
};

/* Gives ps 0 a manifest, after it was asked something. */
enum proposal desk_link_propose(struct desk_link *link, const uint8_t *bytes, size_t size, double healthy_s,
                                struct error *error);

bool desk_link_abort(struct desk_link *link, const char *who, struct error *error);

#endif
