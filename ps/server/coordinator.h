/*
 * The coordinator of rollouts of a new config: every ps takes part, and ps 0 leads (ps/rollout/decide.h). rollout.c
 * makes it and leads; requests/rollout.c and requests/programs.c answer. Not to be taken for the ps that decides on
 * synchronous steps, which job.coordinator names.
 */
#ifndef PS_SERVER_COORDINATOR_H
#define PS_SERVER_COORDINATOR_H

#include "observe/board.h"
#include "ps/rollout/agent.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"
#include "ps/server/internal.h"

/* By which the version came that a rollout goes back to: for members that are behind it. */
struct former_manifest {
    uint8_t *bytes; /* NULL: it came otherwise */
    size_t size;
    struct manifest_programs programs;
    bool is_damaged; /* there is one, and it can't be read */
};

struct rollout_coordinator {
    struct server *server;
    struct agent *agent;
    int64_t scheduled; /* step of the switch that the shard was told of; -1: none. The agent's thread's */

    /* Of ps 0; guarded by the server's lock */
    bool leads;
    struct rollout rollout;
    uint8_t *manifest; /* of the current rollout or the last one; NULL: none */
    size_t manifest_size;
    struct former_manifest former;
    uint8_t hash[MANIFEST_HASH]; /* of the manifest */
    char author[MANIFEST_MAX_NAME + 1];
    struct audit_meter meter;               /* of what is refused */
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of its target and fallback */
    uint64_t highest;                       /* ever proposed */
    bool proposing;                         /* one is about to be stored and begun */
    uint64_t stored;                        /* rollout.changes that are on disk */
    enum rollout_state stored_state;        /* likewise; what members are told */
    bool has_versions;
    struct versions versions;
    double ticked_s;
    double rated_s, fastest; /* steps per second lately, at their fastest: a switch must not come too soon */
    int64_t rated_step;
    uint32_t rated_generation;        /* a restore is no step */
    float *losses;                    /* [job.worker_count] as in the message `report` */
    struct manifest_programs carried; /* of the manifest */
    struct programs programs;         /* that are kept here, to be handed on */
    pthread_mutex_t taking_in; /* one piece of a program at a time: a file's lock keeps out other processes alone */
    struct manifest_program offered; /* by an operator, who is to bring it; no digest: none */
    double budget, budget_s;         /* bytes that may be handed on, as of then */
};

/* --- To the server --- */

/* *coordinator: NULL before; to be destroyed even if this fails. */
bool coordinator_create(struct rollout_coordinator **coordinator, struct server *server, struct error *error);
void coordinator_destroy(struct rollout_coordinator *coordinator); /* NULL is fine */
/* Time passes; what must be on the disk is written. Some times a second, by the main thread, unlocked. */
void coordinator_tick(struct rollout_coordinator *coordinator);

/* Is it the digest of a version whose members are let in: of the other one, while one comes or goes? Unlocked. */
bool coordinator_knows(struct rollout_coordinator *coordinator, const char *digest);
/* Is there such a member, by this ps's own lists of hosts or by those of the last rollout? */
bool coordinator_has(const struct rollout_coordinator *coordinator, struct member who);

/* The version in force here, and its digest. */
void coordinator_version(struct rollout_coordinator *coordinator, uint64_t *version,
                         char digest[CONFIG_DIGEST_HEX + 1]);
/* Adds to the message what was edited by hand here. */
void coordinator_drift(struct rollout_coordinator *coordinator, char *message, size_t size);
void coordinator_show(const struct rollout_coordinator *coordinator, struct board_rollout *shown); /* locked */

/* --- Between rollout.c and requests/ --- */

/* Appends to this machine's audit log. Any thread, unlocked. */
void coordinator_audit(const struct rollout_coordinator *coordinator, const char *who, const char *what,
                       uint64_t version, const char *outcome);
/* What is refused costs its sender nothing, so not all of it is written down. Unlocked. */
void coordinator_note_refusal(struct rollout_coordinator *coordinator, const char *who, const char *what,
                              uint64_t version, const char *why);

/* The state of training. Locked. */
struct rollout_vitals coordinator_vitals(const struct rollout_coordinator *coordinator);

/*
 * By its version, so that one that is not begun after all does not take the place of the last: ps 0 needs that for
 * members that were away. Unlocked.
 */
bool coordinator_store_manifest(const struct rollout_coordinator *coordinator, uint64_t target, const uint8_t *bytes,
                                size_t size, struct error *error);
/* Before a manifest with this fallback is taken; from disk, so unlocked. */
void coordinator_find_former(const struct rollout_coordinator *coordinator, uint64_t fallback,
                             struct former_manifest *former);
/* Owns the bytes of both from now on. Locked. */
void coordinator_take_manifest(struct rollout_coordinator *coordinator, const struct manifest *manifest, uint8_t *bytes,
                               size_t size, const struct former_manifest *former);
/* *bytes: NULL if there is none, or no memory; the caller frees it. Locked. */
void coordinator_copy_manifest(const struct rollout_coordinator *coordinator, uint8_t **bytes, size_t *size);
/* The same, for a member in this version that is told to catch up: the one by which it comes to where it is to be. */
void coordinator_copy_manifest_for(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                   uint64_t version, uint8_t **bytes, size_t *size);
/* A program that may be handed on; NULL: none is known by that digest. Locked. */
const struct manifest_program *coordinator_program(const struct rollout_coordinator *coordinator, const char *digest);

/* What a member in this version is told now; it counts as delivered. Locked. */
enum rollout_order coordinator_order_for(struct rollout_coordinator *coordinator, struct member who, uint64_t version);
/*
 * The version that a member with this order takes for the fleet's. Where processes restart, ps 0 may be in the target
 * already and yet go back: who was away comes to the fallback first, so that he has its program, too. Locked.
 */
uint64_t coordinator_in_force(const struct rollout_coordinator *coordinator, enum rollout_order order);
/* Does the manifest go with it? A member that catches up forgets what it had. Locked. */
bool coordinator_needs_manifest(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                uint64_t target);
/* Takes a member's report. Locked. */
void coordinator_hear(struct rollout_coordinator *coordinator, struct member who, const char *program,
                      const struct message_report *report);

/*
 * What a manifest must be to count here: signed, of this fleet, with what this place needs to keep versions. Unlocked.
 */
bool coordinator_accepts(const struct rollout_coordinator *coordinator, const uint8_t *bytes, size_t size,
                         struct manifest *manifest, struct error *error);

#endif
