/*
 * Live keys at a worker: what a rollout changes in its config during training, and, for the chief, the checkpoint
 * before it and the way back. The agent's thread (ps/rollout/participant.h) brings a new config; the training thread
 * adopts it between two steps.
 */
#ifndef WORKER_REMOTE_LIVE_CONFIG_H
#define WORKER_REMOTE_LIVE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "observe/board.h"
#include "ps/identity.h"
#include "worker/remote/chief.h"
#include "worker/remote/shard_link.h"

struct live_config;

/*
 * Call before opening any link: if this process may still be in another version than ps 0, its links are held
 * (traffic).
 */
void live_config_hold(struct traffic *traffic, const struct config *config);

/*
 * config: as at process start; model: its own, with what follows from the data. chief: NULL except for worker 0.
 * Everything is borrowed. Links are no longer held once ps 0 is in this version and, except for worker 0, has a model.
 */
bool live_config_create(struct live_config **live, const struct config *config, const struct config_model *model,
                        struct identity *identity, struct chief *chief, struct traffic *traffic, struct error *error);
void live_config_destroy(struct live_config *live); /* NULL is fine */

/*
 * The training thread's, after every step: adopts what is due at this step into its config. True if something changed:
 * then everything derived from the config must be derived again. finite: false while steps fail because the loss is not
 * finite.
 */
bool live_config_look(struct live_config *live, struct config *config, int64_t global_step, float loss, bool finite);

/* The training thread's: this worker is about to join; it has joined, and takes part in training. NULL is fine. */
void live_config_note_joining(struct live_config *live);
void live_config_note_joined(struct live_config *live);

/* Must this process end for a rollout, to restart or for good? Any thread; live NULL is fine. */
enum live_config_end { LIVE_STAYS, LIVE_RESTARTS, LIVE_LEAVES };
enum live_config_end live_config_end(struct live_config *live);

/* The rollout under way (ps/rollout/participant.h). Any thread; live NULL is fine. */
void live_config_show(struct live_config *live, struct board_rollout *shown);

/* Adds what is known of drift to a message about this worker. */
void live_config_drift(struct live_config *live, char message[256]);

/* May members with a config of this digest work with this one? Any thread. */
bool live_config_knows(struct live_config *live, const char *digest);

/* True while a rollout is under way or being undone: then the rollout handles a bad loss. Any thread. */
bool live_config_is_rolling(struct live_config *live);

/* --- Trials --- */

/*
 * A trial of a job's config: a few steps on a copy of the newest checkpoint, in a separate process on this machine, so
 * that a crash does not take this process down.
 */

/*
 * then: what this process would run with; the trial works in CONFIG.d/trial. Fails if the checkpoint does not fit and
 * nothing of it may be dropped, or if the trial fails; the error quotes its last message. given_up: called several
 * times a second; ends the trial.
 */
bool trial_run(const struct config *then, const char *train_dir, bool may_lose, bool (*given_up)(void *context),
               void *context, struct error *error);

#endif
