/*
 * A member's side of a rollout: verifies manifests, keeps both versions beside its config, switches when ordered to,
 * and reports its progress. The host handles what a change means for training.
 *
 * Orders are idempotent and may arrive any number of times, and after restarts on either side; a member that was away
 * does at once what the others did in steps. One thread at a time. It also detects drift (config_drift_begin).
 */
#ifndef PS_ROLLOUT_PARTICIPANT_H
#define PS_ROLLOUT_PARTICIPANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "base/board_member.h"
#include "base/config.h"
#include "base/config/versions.h"
#include "base/error.h"
#include "base/process/program.h"
#include "net/message.h"
#include "ps/identity.h"
#include "ps/rollout/decide.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"

/* --- Drift --- */

/*
 * Drift: config.json was edited by hand. A version that was rolled out takes precedence until the file has a higher
 * fleet.version, so the edit has no effect, and drift reports it. The edit is not undone.
 *
 * CONFIG.d/base holds the digest of the file as it was when its version, or the first one after it, came into force.
 * One thread at a time.
 */

enum { CONFIG_DRIFT_HEX = 64, CONFIG_DRIFT_TEXT = 256 };

struct config_drift {
    const struct config *config; /* as the process was started; borrowed */
    char base[CONFIG_DRIFT_HEX + 1];
    struct stat seen;
    char text[CONFIG_DRIFT_TEXT]; /* the report; "": no drift */
};

/* --- The program of a target --- */

/*
 * The program that a rollout's target runs in, on this machine. Records on disk which program each of the two versions
 * runs in, keeps the running one to go back to, receives the new one unless it is here, and removes programs that no
 * version needs any more. Part of a participant (participant.h), which decides when to restart in it; one thread at a
 * time.
 */

struct target_program { /* zeros: the target has none */
    bool is_new;        /* it is another program than the fallback's */
    bool is_due;        /* it is not on this machine yet */
    struct programs programs;
    char digest[PROGRAM_DIGEST_HEX + 1];
    uint64_t size;
    bool is_open; /* this process receives it; else another one of this machine does, or none yet */
    struct program_intake intake;
};

/* --- The participant --- */

/* Whether a member has taken the config. */
enum participant_switch { SWITCH_PENDING, SWITCH_DONE, SWITCH_LATE };

struct participant_host {
    void *context;
    /*
     * Checks that this machine has the memory and disk for it. NULL: yes. `then` is the config this process would run
     * with.
     */
    bool (*check)(void *context, const struct config *then, struct error *error);
    /* Worker 0: saves a checkpoint: before anything changes, since it may have to be restored, and once more before it
       restarts. NULL for others. */
    bool (*save)(void *context, struct error *error);
    /* Worker 0: tries the target on a copy of the checkpoint. NULL for others. */
    bool (*try_out)(void *context, const struct config *then, bool may_lose, struct error *error);
    /* Switches to `config`, valid until the next one, from this global step on (0: at once); called until done. */
    enum participant_switch (*switch_to)(void *context, const struct config *config, int64_t step);
    /* Worker 0: restores what was saved before anything changed. NULL for others. */
    bool (*restore)(void *context, struct error *error);
    /* The rollout is over, or never began: releases what was prepared. NULL: nothing to do. */
    void (*settle)(void *context);
    /* True if it takes part in training. NULL: it does. */
    bool (*ready)(void *context);
    /* Makes the process shut down cleanly, and then restart unless for_good. Returns at once. */
    void (*leave)(void *context, bool for_good);
    bool stays; /* local keys cause no restart; they wait for the next one */
};

struct rollout_participant {
    const struct config *config; /* as the process was started; borrowed */
    struct participant_host host;
    struct member who;
    bool prepared; /* a checkpoint to go back to is saved, and the rollout is not settled yet */
    bool leaving;  /* the host has to leave: nothing more to do */
    struct config_drift drift;
    struct versions versions;
    struct operator_keys operators;
    uint64_t version;                   /* in force */
    char digest[CONFIG_DIGEST_HEX + 1]; /* of it */
    uint64_t target;                    /* staged; 0: none */
    uint64_t fallback;                  /* of the target; 0: not known, or not signed */
    bool misreads;                      /* this program reads the configs differently from what was signed */
    enum rollout_kind kind;
    bool may_lose;
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of both; "" unless members in the other version are admitted */
    struct config configs[2];               /* both; freed with the participant or when the next is staged */
    struct config then;                     /* the config this process would run with in the target */
    char author[MANIFEST_MAX_NAME + 1];
    enum rollout_phase phase;
    struct target_program program;
    uint64_t floor;           /* as this process wrote it (base/config/versions.h); 0: not yet */
    bool floor_failed;        /* it could not be written, and that was logged */
    struct audit_meter meter; /* for received manifests */
    uint32_t refusals;        /* orders ignored since a refusal: it is not tried again at each */
    double failed_s;          /* when this process learned that its predecessor died in the version it is ordered to */
    enum rollout_order tried; /* the last order of the current phase that completed or failed */
    char message[256];
};

/* An order to a member. */
struct participant_order {
    enum rollout_order order;
    bool settled; /* no rollout is in progress */
    uint64_t target;
    uint64_t in_force; /* the version that the fleet is in, or goes back to */
    int64_t step;
    const uint8_t *manifest; /* NULL unless included */
    size_t manifest_size;
};

/* Without a config file or operator.pub it takes part in no rollout, and reports that when asked to. */
void participant_create(struct rollout_participant *participant, const struct config *config, struct member who,
                        const struct participant_host *host);
void participant_destroy(struct rollout_participant *participant); /* zeros are fine */

void participant_act(struct rollout_participant *participant, const struct participant_order *order);
void participant_report(const struct rollout_participant *participant,
                        struct rollout_report *report); /* borrows the message */

/* The next bytes of a program that it needs from ps 0; false: none. Pass received bytes to participant_take. */
bool participant_wants(const struct rollout_participant *participant, const char **digest, uint64_t *offset);
void participant_take(struct rollout_participant *participant, uint64_t offset, const void *bytes, size_t size);

/* operator.pub beside the config. */
bool participant_key_path(const struct config *config, char *path, size_t size, struct error *error);

/* --- The agent --- */

/*
 * The thread through which a member takes part in rollouts: it repeatedly reports this member's progress to ps 0 and
 * carries out the orders in the answers, over its own connection (or, on ps 0 itself, by a call).
 */

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

/* A description of drift (participant_drift); "": none known. Any thread. */
void agent_drift(struct agent *agent, char text[CONFIG_DRIFT_TEXT]);

/*
 * True for the digest of the version in force, or of the last rollout's other version if its members may work with this
 * one. Any thread.
 */
bool agent_knows(struct agent *agent, const char *digest);

#endif
