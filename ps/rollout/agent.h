/*
 * The thread by which a member takes part in rollouts: it tells ps 0 how far this member is and does what it is told,
 * again and again, by a connection of its own (or, on ps 0 itself, by a call).
 */
#ifndef PS_ROLLOUT_AGENT_H
#define PS_ROLLOUT_AGENT_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "net/message.h"
#include "observe/board.h"
#include "ps/rollout/config_drift.h"
#include "ps/rollout/participant.h"
#include "ps/identity.h"

struct agent;

/* What ps 0 answers. `manifest` is the receiver's to free. */
struct agent_answer {
    struct participant_order order;
    enum rollout_state state;
    bool has_model; /* ps 0 */
};

struct agent_options {
    const struct config *config; /* all is borrowed */
    struct identity *identity;   /* changed when a version comes into force */
    struct member who;
    struct participant_host host;
    float (*loss)(void *context); /* as in the message `report`; NULL: none */
    /* What ps 0 said just now: its version, and whether it has a model. NULL: no matter. On the agent's thread. */
    void (*heard)(void *context, uint64_t version, bool has_model);
    /* On ps 0: answers a report at once. NULL: ps 0 is asked by network. */
    bool (*ask)(void *context, const struct message_report *report, struct agent_answer *answer, struct error *error);
    void *context;
};

/* *agent is set before the thread begins, so that what it calls of its owner may use it. */
bool agent_create(struct agent **agent, const struct agent_options *options, struct error *error);
void agent_destroy(struct agent *agent); /* ends the thread; NULL is fine */

/*
 * Is a rollout being made or undone, as far as this member knows? Then a bad loss is for ps 0 to deal with. Any
 * thread.
 */
bool agent_is_rolling(struct agent *agent);

/* The version in force, and its digest. Any thread. */
void agent_version(struct agent *agent, uint64_t *version, char digest[CONFIG_DIGEST_HEX + 1]);

/* Is that member listed in either version of the last rollout, as far as this one knows? Any thread. */
bool agent_has_member(struct agent *agent, struct member who);

/* The rollout under way, as far as this member was told of it: version, phase and what it changes. Any thread. */
void agent_show(struct agent *agent, struct board_rollout *shown);

/* What is known of drift (ps/rollout/config_drift.h); "": nothing. Any thread. */
void agent_drift(struct agent *agent, char text[CONFIG_DRIFT_TEXT]);

/* Is it the digest of that, or of the other version of the last rollout, whose members may work with this one's? Any
 * thread. */
bool agent_knows(struct agent *agent, const char *digest);

#endif
