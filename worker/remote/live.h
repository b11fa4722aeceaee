/*
 * Live keys at a worker: what a rollout changes in its config while it trains, and, for the chief, the checkpoint before
 * and the way back to it. The agent's thread (ps/rollout/agent.h) brings a new config; the thread that trains takes it up
 * between two steps.
 */
#ifndef WORKER_REMOTE_LIVE_H
#define WORKER_REMOTE_LIVE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/self.h"
#include "worker/plan.h"
#include "worker/remote/chief.h"

struct live;

/* chief: NULL but for worker 0. All is borrowed. */
bool live_create(struct live **live, const struct config *config, struct self *self, struct chief *chief,
                 struct error *error);
void live_destroy(struct live *live); /* NULL is fine */

/*
 * By the thread that trains, after every step: takes up what is due at this step, into its config and plan. finite: false
 * while steps fail because the loss is not.
 */
void live_look(struct live *live, struct config *config, struct plan *plan, int64_t global_step, float loss,
               bool finite);

/* True while a rollout is made or undone: a bad loss is for it to deal with. Any thread. */
bool live_is_rolling(struct live *live);

#endif
