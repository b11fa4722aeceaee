/* An operator's connection to ps 0 for rollouts. Used by one thread. */
#ifndef WORKER_REMOTE_OPERATOR_ROLLOUT_CLIENT_H
#define WORKER_REMOTE_OPERATOR_ROLLOUT_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "net/operator_key.h"
#include "ps/rollout/manifest.h"
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
    PROPOSAL_UNANSWERED, /* the connection is closed; only ps 0 knows whether it accepted */
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

/* --- The fleet --- */

/*
 * What a fleet runs, for an operator who is about to sign something. It comes from ps 0, which may be an impostor with
 * the fleet's key; so it is compared with what can't be forged: manifests that the operator has signed, and the config
 * of the operator's own machine. If neither confirms it, a person must decide.
 */

enum { FLEET_VIEW_DOUBT = 256 };

struct fleet_view {
    struct config running;
    char *job, *local;                 /* its texts, as in the message `rollout`; "": none */
    char *earlier, *earlier_local;     /* what was in force before; "": nothing is known */
    uint64_t highest;                  /* highest version ever proposed */
    struct manifest_programs programs; /* in force, according to a signed manifest; count 0: nothing is known */
    bool brought_programs;             /* this very version brought them */
    uint8_t *manifest;                 /* as ps 0 sent it; NULL: none */
    size_t manifest_size;
    /* Why `running`, or the previous config, rests on ps 0's word alone; "": it does not. */
    char doubt[FLEET_VIEW_DOUBT], earlier_doubt[FLEET_VIEW_DOUBT];
};

/*
 * keys: whose signatures count; NULL: none. here: this machine's own config. False if ps 0 does not answer, or claims
 * something that no fleet of this operator can have in force. Call fleet_view_free after a failure, too.
 */
bool fleet_view_ask(struct fleet_view *view, struct rollout_client *client, const struct config *here,
                    const struct operator_keys *keys, struct error *error);
void fleet_view_free(struct fleet_view *view);

/* True if this is what the fleet runs, word for word. */
bool fleet_view_is_running(const struct fleet_view *view, const struct manifest_config *config);

/* --- The programs of a rollout --- */

struct rollout_programs {
    struct manifest_programs programs;     /* for the manifest; count 0: none */
    uint8_t *bytes[MANIFEST_MAX_PROGRAMS]; /* of each; NULL: the fleet has it */
};

/* As the operator gave them; NULL: the default. */
struct rollout_flags {
    const char *rate;        /* MB a second */
    const char *waves;       /* "1,10%,50%,100%" */
    const char *budget;      /* "3" or "5%" */
    const char *least_speed; /* "50%" */
};

/*
 * Reads the files, separated by commas (NULL: none), each a complete trainer for another architecture. Call
 * rollout_programs_free after a failure, too.
 */
bool rollout_programs_read(struct rollout_programs *programs, const char *files, const struct rollout_flags *flags,
                           struct error *error);
void rollout_programs_free(struct rollout_programs *programs);

/*
 * Programs that the fleet runs become the fallback, and stay where no other comes. in_force: of the manifest in force.
 */
void rollout_programs_follow(struct rollout_programs *programs, const struct manifest_programs *in_force);

/* Prints one line for each new program. */
void rollout_programs_show(const struct rollout_programs *programs);

/* Sends ps 0 the programs that it lacks. manifest: as signed. */
bool rollout_programs_bring(const struct rollout_programs *programs, struct rollout_client *client,
                            const uint8_t *manifest, size_t manifest_size, struct error *error);

#endif
