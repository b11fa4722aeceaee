/* An operator's connection to ps 0 for rollouts. Used by one thread. */
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

/* Does not connect yet. Call rollout_client_close after a failure, too. */
bool rollout_client_open(struct rollout_client *client, const struct config *config, struct error *error);
void rollout_client_close(struct rollout_client *client);

/*
 * Connects within half a minute, logging what it waits for. False at once if nobody listens there, or ps 0 refuses us.
 */
bool rollout_client_reach(struct rollout_client *client, struct error *error);

/* ps 0's answer, within seconds, or NULL. It lies in the link's channel and is valid until the next use. */
const struct message_rollout *rollout_client_ask(struct rollout_client *client, struct error *error);

/* The manifest in that answer; the caller frees it. *bytes NULL: none. */
bool rollout_client_manifest(struct rollout_client *client, uint8_t **bytes, size_t *size, struct error *error);

enum proposal {
    PROPOSAL_TAKEN,      /* the rollout has begun */
    PROPOSAL_REFUSED,    /* for the reason in the error */
    PROPOSAL_UNANSWERED, /* the connection is closed; only ps 0 can tell whether it accepted */
};

/* Sends ps 0 a manifest, after an answer to rollout_client_ask. */
enum proposal rollout_client_propose(struct rollout_client *client, const uint8_t *bytes, size_t size, double healthy_s,
                                     struct error *error);

/*
 * Sends ps 0 a program that a signed manifest names: announces it, then sends its bytes piece by piece. *there: how
 * much of it ps 0 has then. The error says so if ps 0 is too old for this.
 */
bool rollout_client_offer(struct rollout_client *client, const char *digest, const uint8_t *manifest, size_t size,
                          uint64_t *there, struct error *error);
bool rollout_client_put(struct rollout_client *client, const char *digest, uint64_t offset, const uint8_t *bytes,
                        size_t size, uint64_t *there, struct error *error);

/* bytes: a signed abort (ps/rollout/manifest.h). */
bool rollout_client_abort(struct rollout_client *client, const char *who, const uint8_t *bytes, size_t size,
                          struct error *error);

#endif
