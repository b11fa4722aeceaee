/*
 * Pushes in flight while the next step computes (cluster.pipeline_depth): a thread exchanges gradients with the shards,
 * one after another and in order, while the engine computes the next one.
 *
 * A step computes on parameters that include all pushes but the last `depth`. The shards' answers are collected in a
 * mirror of the parameters, and reach the engine only between steps. A push counts as it does without a pipeline:
 * exactly once, in order; it is answered when max_staleness allows, before the next one is sent.
 *
 * Memory: 4 bytes x floats x (2 + gradients), of which there are depth + 1 (bfloat16 ones take 6 bytes each). The
 * training thread calls all functions; while a push is in flight (between pipeline_push and pipeline_drain) it must not
 * use the push_pull.
 */
#ifndef WORKER_REMOTE_EXCHANGE_PIPELINE_H
#define WORKER_REMOTE_EXCHANGE_PIPELINE_H

#include "base/error.h"
#include "worker/engine.h"
#include "worker/remote/exchange/outbox.h"
#include "worker/remote/exchange/push_pull.h"

struct pipeline;

/* depth: at least 1. Everything is borrowed; from now on the exchange's parameters land in the mirror. */
bool pipeline_create(struct pipeline **pipeline, struct push_pull *exchange, struct engine *engine, int depth,
                     struct error *error);

/* Waits for the push in flight, which ends soon if exchange->given_up returns true. NULL is fine. */
void pipeline_destroy(struct pipeline *pipeline);

/* The outbox of the next gradient: begin it, and fill it. */
struct outbox *pipeline_outbox(struct pipeline *pipeline);

/*
 * Hands over that gradient, waits until at most `depth` are in flight, and copies the newest parameters into the
 * engine. The answer sums those received since the last call; *answers is their number; if it is 0 the answer is
 * meaningless. Any result but EXCHANGE_OK is that of some push; those after it were not sent, and pipeline_drain drops
 * them.
 */
enum exchange_result pipeline_push(struct pipeline *pipeline, const struct push_note *note, struct push_answer *answer,
                                   int *answers, struct error *error);

/* The same without another gradient: waits until none is in flight. Afterwards the exchange may be used directly. */
enum exchange_result pipeline_drain(struct pipeline *pipeline, struct push_answer *answer, int *answers,
                                    struct error *error);

/* Copies what landed in the mirror into the engine, after direct use of the exchange. */
bool pipeline_load(struct pipeline *pipeline, struct error *error);

#endif
