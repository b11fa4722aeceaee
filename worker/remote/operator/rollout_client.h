/* A connection to ps 0, as an operator who asks about rollouts, or for one. One thread. */
#ifndef WORKER_REMOTE_OPERATOR_ROLLOUT_CLIENT_H
#define WORKER_REMOTE_OPERATOR_ROLLOUT_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "worker/remote/shard_link.h"

struct rollout_client {
    struct identity identity;
    struct traffic traffic;
    struct link link;
};

/* Connects nowhere yet. Also after a failure, rollout_client_close is due. */
bool rollout_client_open(struct rollout_client *link, const struct config *config, struct error *error);
void rollout_client_close(struct rollout_client *link);

/* Connects, within half a minute, saying whom it waits for. False at once where nobody listens, or we are refused. */
bool rollout_client_reach(struct rollout_client *link, struct error *error);

/* What ps 0 says, within some seconds, or NULL; it lies in the link's channel, until that is used again. */
const struct message_rollout *rollout_client_ask(struct rollout_client *link, struct error *error);

enum proposal {
    PROPOSAL_TAKEN,      /* the rollout is begun */
    PROPOSAL_REFUSED,    /* for the reason in the error */
    PROPOSAL_UNANSWERED, /* the connection is closed; whether ps 0 has it, it alone can tell */
};

/* Gives ps 0 a manifest, after it was asked something. */
enum proposal rollout_client_propose(struct rollout_client *link, const uint8_t *bytes, size_t size, double healthy_s,
                                     struct error *error);

bool rollout_client_abort(struct rollout_client *link, const char *who, struct error *error);

#endif
