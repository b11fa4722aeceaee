/*
 * Small messages (cluster.wire_dtype int8, cluster.wire_top) where one process plays many workers. Nothing travels; but
 * what a client pushes is packed and unpacked again, and a round begins with the model as it was sent to clients. So
 * the bits are those of a cluster with one ps (worker/remote/exchange/outbox.h, ps/store/sent_model.h).
 *
 * Memory: 4 bytes x floats x 6, what packed floats take at most, and 4 bytes x floats for each client that has taken
 * part in a round, for the residual of its messages.
 */
#ifndef WORKER_CLIENTS_SMALL_MESSAGES_H
#define WORKER_CLIENTS_SMALL_MESSAGES_H

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "ps/store/store.h"

struct small_messages;

/* Are those of this config played here? Others are whole, or (bfloat16) refused. */
bool small_messages_are_known(const struct config_cluster *cluster);

/* model and config are borrowed. */
bool small_messages_create(struct small_messages **messages, const struct model *model, const struct config *config,
                           int clients, struct error *error);
void small_messages_destroy(struct small_messages *messages); /* NULL is fine */

/* All know these parameters, as after a restore; there is no residual. */
void small_messages_forget(struct small_messages *messages, const float *parameters);

/* Where a client's difference goes; then what arrives of it, [float_count], until the next one. */
struct gradient_sink small_messages_sink(struct small_messages *messages, int client);
const float *small_messages_deliver(struct small_messages *messages, int client);

/* A step was made: tells all of it. Then what they know, [float_count]. */
void small_messages_tell(struct small_messages *messages, const float *parameters);
const float *small_messages_sent_model(const struct small_messages *messages);

/*
 * The residuals of both ways, in files beside the checkpoint of this step (worker/remote/exchange/residual_files.h),
 * and from there. Where there are none it is as after small_messages_forget.
 */
bool small_messages_keep(const struct small_messages *messages, int64_t step, struct error *error);
bool small_messages_recall(struct small_messages *messages, int64_t step, const float *parameters, struct error *error);

#endif
