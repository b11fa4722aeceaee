/*
 * A ps's part in rollouts of a new config: every ps takes part, and ps 0 leads (ps/rollout/decide.h). coordinator.c
 * creates and drives it; rollouts.c answers requests. Not to be confused with the ps that
 * decides on synchronous steps, which is job.coordinator.
 */
#ifndef PS_SERVER_COORDINATOR_H
#define PS_SERVER_COORDINATOR_H

#include "base/board_member.h"
#include "ps/rollout/participant.h"
#include "ps/rollout/history.h"
#include "ps/rollout/manifest.h"
#include "ps/server/internal.h"

/* The manifest that brought the version to which a rollout goes back: for members that are behind it. */
struct former_manifest {
    uint8_t *bytes; /* NULL: it came some other way */
    size_t size;
    struct manifest_programs programs;
    bool is_damaged; /* it exists but can't be read */
};

struct rollout_coordinator {
    struct server *server;
    struct agent *agent;
    int64_t scheduled; /* the step of the switch, as ordered of the shard; -1: none. The agent's thread's */

    /* Of ps 0 only; guarded by the server's lock */
    bool leads;
    struct rollout rollout;
    uint8_t *manifest; /* of the current rollout or the last one; NULL: none */
    size_t manifest_size;
    struct former_manifest former;
    uint8_t hash[MANIFEST_HASH]; /* of the manifest */
    char author[MANIFEST_MAX_NAME + 1];
    struct audit_meter meter;               /* limits how many refusals are written */
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of its target and fallback */
    uint64_t highest;                       /* highest ever proposed */
    uint64_t resumed_s;                     /* as in struct record */
    bool proposing;                         /* a proposal is about to be stored and begun */
    uint64_t stored;                        /* number of rollout.changes that are on disk */
    enum rollout_state stored_state;        /* likewise; this is what members see */
    bool has_versions;
    struct versions versions;
    double ticked_s;
    double looked_s;         /* the last time, for the repair of a damaged manifest */
    double rated_s, fastest; /* recent maximum of steps per second: a switch must not come too soon */
    int64_t rated_step;
    uint32_t rated_generation;        /* to recognise a restore, which is not a step */
    float *losses;                    /* [job.worker_count] as in the message `report` */
    struct manifest_programs carried; /* of the manifest */
    struct programs programs;         /* the programs kept here, to be sent to members */
    pthread_mutex_t upload_lock;      /* serialises pieces of a program: a file lock excludes other processes only */
    struct manifest_program offered;  /* announced by an operator who will send it; no digest: none */
    double budget, budget_s;          /* bytes that may be sent to members, as of budget_s */
};

/* --- To the server --- */

/* *coordinator: NULL before the call; destroy it even if this fails. */
bool coordinator_create(struct rollout_coordinator **coordinator, struct server *server, struct error *error);
void coordinator_destroy(struct rollout_coordinator *coordinator); /* NULL is fine */
/* Advances time, and writes what must be on disk. The main thread calls it several times a second, unlocked. */
void coordinator_tick(struct rollout_coordinator *coordinator);

/* May members in the version with this digest connect? During a rollout both versions may. Unlocked. */
bool coordinator_knows_digest(struct rollout_coordinator *coordinator, const char *digest);
/* Is there such a member, according to this ps's own lists of hosts or those of the last rollout? Unlocked. */
bool coordinator_has_member(const struct rollout_coordinator *coordinator, struct member who);

/* The version in force here, and its digest. */
void coordinator_version(struct rollout_coordinator *coordinator, uint64_t *version,
                         char digest[CONFIG_DIGEST_HEX + 1]);
/* Adds to the message which keys were edited by hand on this machine. */
void coordinator_drift(struct rollout_coordinator *coordinator, char *message, size_t size);
void coordinator_show(const struct rollout_coordinator *coordinator, struct board_rollout *shown); /* locked */

/* --- To rollouts.c --- */

/* Appends to this machine's audit log. Any thread, unlocked. */
void coordinator_audit(const struct rollout_coordinator *coordinator, const char *who, const char *what,
                       uint64_t version, const char *outcome);
/* Logs a refusal. Refusals cost their sender nothing, so only some are written. Unlocked. */
void coordinator_log_refusal(struct rollout_coordinator *coordinator, const char *who, const char *what,
                             uint64_t version, const char *why);

/* The state of training. Locked. */
struct rollout_vitals coordinator_vitals(const struct rollout_coordinator *coordinator);

/*
 * Stores a manifest under its version, so that one whose rollout never begins does not replace the last one, which ps 0
 * needs for members that were away. Unlocked.
 */
bool coordinator_store_manifest(const struct rollout_coordinator *coordinator, uint64_t target, const uint8_t *bytes,
                                size_t size, struct error *error);
/* Call before accepting a manifest with this fallback. Reads files, so unlocked. */
void coordinator_find_former(const struct rollout_coordinator *coordinator, uint64_t fallback,
                             struct former_manifest *former);
/* Takes ownership of the bytes of both. Locked. */
void coordinator_take_manifest(struct rollout_coordinator *coordinator, const struct manifest *manifest, uint8_t *bytes,
                               size_t size, const struct former_manifest *former);
/* Copies the manifest; *bytes: NULL if there is none or memory ran out; the caller frees it. Locked. */
void coordinator_copy_manifest(const struct rollout_coordinator *coordinator, uint8_t **bytes, size_t *size);
/* The same for a member in this version that has to catch up: the manifest that leads it to where it should be. */
void coordinator_copy_manifest_for(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                   uint64_t version, uint8_t **bytes, size_t *size);
/* A program that may be sent to members; NULL: none with that digest is known. Locked. */
const struct manifest_program *coordinator_program(const struct rollout_coordinator *coordinator, const char *digest);

/* The order for a member in this version; it counts as delivered. Locked. */
enum rollout_order coordinator_order_for(struct rollout_coordinator *coordinator, struct member who, uint64_t version);
/*
 * The version that a member with this order should take for the fleet's. Where processes restart, ps 0 may already be
 * in the target and yet go back: then a member that was away moves to the fallback first, so that it has the fallback's
 * program too. Locked.
 */
uint64_t coordinator_in_force(const struct rollout_coordinator *coordinator, enum rollout_order order);
/* Must the manifest be sent along? A member that catches up has forgotten what it had. Locked. */
bool coordinator_needs_manifest(const struct rollout_coordinator *coordinator, enum rollout_order order,
                                uint64_t target);
/* Processes a member's report. Locked. */
void coordinator_on_report(struct rollout_coordinator *coordinator, struct member who, const char *program,
                           const struct message_report *report);

#endif
