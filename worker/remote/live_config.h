/*
 * Live keys at a worker: what a rollout changes in its config while it trains, and, for the chief, the checkpoint
 * before and the way back to it. The agent's thread (ps/rollout/agent.h) brings a new config; the thread that trains
 * takes it up between two steps.
 */
#ifndef WORKER_REMOTE_LIVE_CONFIG_H
#define WORKER_REMOTE_LIVE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/identity.h"
#include "worker/remote/chief.h"
#include "observe/board.h"
#include "worker/remote/shard_link.h"

struct live_config;

/* Before any link is tried: if this process may still be in another version than ps 0, its links are held (traffic). */
void live_config_hold(struct traffic *traffic, const struct config *config);

/*
 * config: as the process was started; model: its own, with what follows from the data. chief: NULL but for worker 0.
 * All is borrowed. Links are no longer held once ps 0 is in this version and, but for worker 0, has a model.
 */
bool live_config_create(struct live_config **live, const struct config *config, const struct config_model *model,
                        struct identity *identity, struct chief *chief, struct traffic *traffic, struct error *error);
void live_config_destroy(struct live_config *live); /* NULL is fine */

/*
 * By the thread that trains, after every step: takes what is due at this step into its config. True if there was
 * something: then what was derived from the config must be derived again. finite: false while steps fail because the
 * loss is not.
 */
bool live_config_look(struct live_config *live, struct config *config, int64_t global_step, float loss, bool finite);

/* By the thread that trains: this worker is about to join; it has, and takes part in training. NULL is fine. */
void live_config_note_joining(struct live_config *live);
void live_config_note_joined(struct live_config *live);

/* Does a rollout want this process to end, to restart or for good? Any thread; live NULL is fine. */
enum live_config_end { LIVE_STAYS, LIVE_RESTARTS, LIVE_LEAVES };
enum live_config_end live_config_end(struct live_config *live);

/* The rollout under way (ps/rollout/agent.h). Any thread; live NULL is fine. */
void live_config_show(struct live_config *live, struct board_rollout *shown);

/* Adds what is known of drift to a message about this worker. */
void live_config_drift(struct live_config *live, char message[256]);

/* Is this the digest of a version whose members may work with this one? Any thread. */
bool live_config_knows(struct live_config *live, const char *digest);

/* True while a rollout is under way or being undone: a bad loss is for it to handle. Any thread. */
bool live_config_is_rolling(struct live_config *live);

#endif
