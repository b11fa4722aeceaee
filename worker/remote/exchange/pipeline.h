/*
 * Pushes that are under way while the next step computes (cluster.pipeline_depth): a thread exchanges gradients with
 * the shards, one after another and in order, while the engine works on the next one.
 *
 * A step computes on parameters that hold every push but the last `depth`. What shards answer gathers in a mirror of
 * the parameters, and gets into the engine between steps only. A push counts as it does without a pipeline: exactly
 * once, in order, and it is answered when max_staleness allows it, before the next one leaves.
 *
 * Memory: 4 bytes x floats x (2 + gradients), of which there are depth + 1 (ps: bfloat16's take 6 bytes each).
 * All functions are the training thread's; while a push is under way (between pipeline_push and pipeline_drain) it must
 * leave the push_pull alone.
 */
#ifndef WORKER_REMOTE_EXCHANGE_PIPELINE_H
#define WORKER_REMOTE_EXCHANGE_PIPELINE_H

#include "base/error.h"
#include "worker/engine.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/push_pull.h"

struct pipeline;

/* depth: at least 1. Everything is borrowed; the exchange's parameters land in the mirror from now on. */
bool pipeline_create(struct pipeline **pipeline, struct push_pull *exchange, struct engine *engine, int depth,
                     struct error *error);

/* Waits for the push under way, which ends soon if exchange->given_up says so. NULL is fine. */
void pipeline_destroy(struct pipeline *pipeline);

/* Where the next gradient goes: begin it, and fill it. */
struct outbox *pipeline_outbox(struct pipeline *pipeline);

/*
 * Hands that gradient over, waits until no more than `depth` are under way, and brings the newest parameters there are
 * into the engine. The answer adds up those that have come since the last call; *answers is their count, and if it is 0
 * the answer says nothing. Anything but EXCHANGE_OK is what some push came to; those behind it were not sent, and
 * are forgotten by pipeline_drain.
 */
enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error);

/* The same without another gradient: waits until none is under way. The exchange may be used directly afterwards. */
enum exchange_result pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
                                    struct error *error);

/* Brings what landed in the mirror into the engine, after the exchange was used directly. */
bool pipeline_load(struct pipeline *pipeline, struct error *error);

#endif
