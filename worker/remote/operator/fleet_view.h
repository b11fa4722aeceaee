/*
 * What a fleet runs, for an operator who is about to sign something. ps 0 says it, and may be an impostor that has the
 * fleet's key; so it is compared with what cannot be forged: manifests that the operator signed before, and the config
 * of the operator's own machine. Where neither says the same, somebody has to look.
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
    char *earlier, *earlier_local;     /* of what was in force before; "": nothing is known of it */
    uint64_t highest;                  /* version that was ever proposed */
    struct manifest_programs programs; /* that are in force, by a signed manifest; count 0: nothing is known of them */
    bool brought_programs;             /* they came with this very version */
    uint8_t *manifest;                 /* as ps 0 sent it; NULL: none */
    size_t manifest_size;
    /* Why `running`, or what was before, rests on the word of ps 0 alone; "": it does not. */
    char doubt[FLEET_VIEW_DOUBT], earlier_doubt[FLEET_VIEW_DOUBT];
};

/*
 * key: whose signature counts; NULL: nobody's. here: this machine's own config. False if ps 0 does not answer, or says
 * what no fleet of this operator's can have in force. fleet_view_free is due after a failure, too.
 */
bool fleet_view_ask(struct fleet_view *view, struct rollout_client *client, const struct config *here,
                    const uint8_t key[OPERATOR_PUBLIC_KEY], struct error *error);
void fleet_view_free(struct fleet_view *view);

#endif
