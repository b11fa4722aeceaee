/*
 * The thread through which a member takes part in rollouts: it repeatedly reports this member's progress to ps 0 and
 * carries out the orders in the answers, over its own connection (or, on ps 0 itself, by a call).
 */
#ifndef PS_ROLLOUT_AGENT_H
#define PS_ROLLOUT_AGENT_H

#include <stdbool.h>

#include "base/board_member.h"
#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "ps/rollout/participant.h"
#include "ps/identity.h"

struct agent;

/* The answer of ps 0. The receiver frees `manifest`. */
struct agent_answer {
    struct participant_order order;
    enum rollout_state state;
    bool has_model;   /* ps 0 */
    uint64_t revoked; /* the number of ps 0's list of revoked keys; 0: none */
};

struct agent_options {
    const struct config *config; /* all pointers are borrowed */
    struct identity *identity;   /* updated when a version comes into force */
    struct member who;
    struct participant_host host;
    float (*loss)(void *context); /* as in the message `report`; NULL: none */
    /*
     * Called with each answer of ps 0: its version, and whether it has a model. NULL: not wanted. On the agent's
     * thread.
     */
    void (*heard)(void *context, uint64_t version, bool has_model);
    /* On ps 0: answers a report at once. NULL: ps 0 is asked over the network. */
    bool (*ask)(void *context, const struct message_report *report, struct agent_answer *answer, struct error *error);
    void *context;
};

/* Sets *agent before the thread starts, so that the owner's callbacks may use it. */
bool agent_create(struct agent **agent, const struct agent_options *options, struct error *error);
void agent_destroy(struct agent *agent); /* ends the thread; NULL is fine */

/*
 * True if a rollout is being applied or undone, as far as this member knows; ps 0 then handles a bad loss. Any thread.
 */
bool agent_is_rolling(struct agent *agent);

/* The version in force, and its digest. Any thread. */
void agent_version(struct agent *agent, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1]);

/* True if either version of the last rollout lists that member, as far as this one knows. Any thread. */
bool agent_has_member(struct agent *agent, struct member who);

/* The current rollout, as far as this member knows it: version, phase and changes. Any thread. */
void agent_show(struct agent *agent, struct board_rollout *shown);

/* A description of drift (ps/rollout/participant.h); "": none known. Any thread. */
void agent_drift(struct agent *agent, char text[CONFIG_DRIFT_TEXT]);

/*
 * True for the digest of the version in force, or of the last rollout's other version if its members may work with this
 * one. Any thread.
 */
bool agent_knows(struct agent *agent, const char *digest);

#endif
