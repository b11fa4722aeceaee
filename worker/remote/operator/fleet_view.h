/*
 * What a fleet runs, for an operator who is about to sign something. It comes from ps 0, which may be an impostor with
 * the fleet's key; so it is compared with what can't be forged: manifests that the operator has signed, and the config
 * of the operator's own machine. If neither confirms it, a person must decide.
 */
#ifndef WORKER_REMOTE_OPERATOR_FLEET_VIEW_H
#define WORKER_REMOTE_OPERATOR_FLEET_VIEW_H

#include <stdint.h>

#include "base/config.h"
#include "net/operator_key.h"
#include "ps/rollout/manifest.h"
#include "worker/remote/operator/rollout_client.h"

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
 * key: whose signatures count; NULL: none. here: this machine's own config. False if ps 0 does not answer, or claims
 * something that no fleet of this operator can have in force. Call fleet_view_free after a failure, too.
 */
bool fleet_view_ask(struct fleet_view *view, struct rollout_client *client, const struct config *here,
                    const uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);
void fleet_view_free(struct fleet_view *view);

#endif
