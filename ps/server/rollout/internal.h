/*
 * Inside a ps's part in rollouts, its coordinator (see ps/server/internal.h): what coordinator.c, proposals.c and reports.c share. Every ps
 * has an agent (ps/rollout/agent.h); ps 0 leads: it takes proposals, decides by ps/rollout/decide.h, and answers reports.
 * What it decided is on its disk before anybody is told.
 */
#ifndef PS_SERVER_ROLLOUT_INTERNAL_H
#define PS_SERVER_ROLLOUT_INTERNAL_H

#include "ps/rollout/agent.h"
#include "ps/rollout/manifest.h"
#include "ps/server/internal.h"

struct rollout_coordinator {
    struct server *server;
    struct agent *agent;
    int64_t scheduled; /* step of the switch that the shard was told of; -1: none. The agent's thread's */

    /* --- Of ps 0; guarded by the server's lock --- */
    bool leads;
    struct rollout rollout;
    uint8_t *manifest; /* of the rollout at hand or the last one; NULL: none */
    size_t manifest_size;
    char author[MANIFEST_MAX_NAME + 1];
    char digests[2][CONFIG_DIGEST_HEX + 1]; /* of its target and fallback */
    uint64_t highest;                       /* ever proposed */
    bool proposing;                         /* one is about to be stored and begun */
    uint64_t stored;                        /* rollout.changes that are on the disk */
    enum rollout_state stored_state;        /* likewise; what members are told */
    bool has_versions;
    struct versions versions;
    double ticked_s; /* when it was looked at last */
    double rated_s,
        fastest; /* steps per second lately, at their fastest: the step to switch at must not come too soon */
    int64_t rated_step;
    uint32_t rated_generation; /* a restore is no step */
    float *losses;             /* [job.worker_count] as in the message `report` */
};

/* What another ps than ps 0 says. */
extern const char rollout_coordinator_not_here[];

/* The manifest's bytes are the coordinator's from now on. Locked. */
void rollout_coordinator_take_manifest(struct rollout_coordinator *coordinator, const struct manifest *manifest,
                                       uint8_t *bytes, size_t size);
/*
 * Where that of this version's rollout is (ps/rollout/lineage.h), so that one that is not begun, after all, does not take the
 * place of the last: ps 0 needs it for whoever was away.
 */
bool rollout_coordinator_store_manifest(const struct rollout_coordinator *coordinator, uint64_t target,
                                        const uint8_t *bytes, size_t size, struct error *error);

/* How training is. Locked. */
struct rollout_vitals rollout_coordinator_vitals(const struct rollout_coordinator *coordinator);

/* agent_options.ask, of ps 0: the agent there reports to itself. */
bool rollout_coordinator_ask_self(void *context, const struct message_report *report, struct agent_answer *answer,
                                  struct error *error);

#endif
