/* What the leader of rollouts (ps/rollout/decide.h) must know after a restart: CONFIG.d/rollout. */
#ifndef PS_ROLLOUT_RECORD_H
#define PS_ROLLOUT_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config/versions.h"
#include "base/error.h"
#include "ps/rollout/decide.h"

struct record {
    enum rollout_state state;
    struct rollout_plan plan; /* but last_step, to and from */
    double loss_before;
    uint64_t highest; /* ever proposed */
    char reason[512]; /* why it goes back */
};

/* Atomically: the old one or the new. */
bool record_store(const struct versions *versions, const struct record *record, struct error *error);

/* *there: false if there is none. A damaged one is an error that names the file. */
bool record_read(const struct versions *versions, bool *there, struct record *record, struct error *error);

#endif
