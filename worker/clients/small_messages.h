/*
 * Packed messages (cluster.wire_dtype int8, cluster.wire_top) where one process plays many workers. Nothing is sent;
 * but what a client pushes is packed and unpacked again, and a round begins with the model as sent to clients. So the
 * bits are those of a cluster with one ps (worker/remote/exchange/outbox.h, ps/store/codec.h).
 *
 * Memory: 4 bytes x floats x 6, the largest size of packed floats, and 4 bytes x floats for each client that has taken
 * part in a round, for the residual of its messages.
 */
#ifndef WORKER_CLIENTS_SMALL_MESSAGES_H
#define WORKER_CLIENTS_SMALL_MESSAGES_H

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

struct small_messages;

/* Does this config need them? Otherwise messages are whole, or (bfloat16) refused. */
bool small_messages_are_known(const struct config_cluster *cluster);

/* model and config are borrowed. */
bool small_messages_create(struct small_messages **messages, const struct model *model, const struct config *config,
                           int clients, struct error *error);
void small_messages_destroy(struct small_messages *messages); /* NULL is fine */

/* All clients have these parameters, as after a restore; residuals are cleared. */
void small_messages_forget(struct small_messages *messages, const float *parameters);

/* Where a client's difference goes; then how it arrives, [float_count], valid until the next one. */
struct gradient_sink small_messages_sink(struct small_messages *messages, int client);
const float *small_messages_deliver(struct small_messages *messages, int client);

/* A step was made: sends all clients the change. Then the parameters as they have them, [float_count]. */
void small_messages_tell(struct small_messages *messages, const float *parameters);
const float *small_messages_sent_model(const struct small_messages *messages);

/*
 * Saves and loads the residuals of both directions, in files beside this step's checkpoint
 * (worker/remote/exchange/residual_files.h). Without files the state is as after small_messages_forget.
 */
bool small_messages_keep(const struct small_messages *messages, int64_t step, struct error *error);
bool small_messages_recall(struct small_messages *messages, int64_t step, const float *parameters, struct error *error);

#endif
