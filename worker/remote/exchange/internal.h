/*
 * Internal to push and pull. push_pull.c has the links and the way into the engine; pull.c joins and pulls; push.c
 * pushes and reads the answers.
 */
#ifndef WORKER_REMOTE_EXCHANGE_INTERNAL_H
#define WORKER_REMOTE_EXCHANGE_INTERNAL_H

#include "base/simulation.h"
#include "worker/remote/exchange/push_pull.h"

enum { PUSH_FRAME_RANGES = SMALLER(4096, 2) /* per frame of a push */ };

/* Was the process told to stop, or does the caller give up? */
bool push_pull_must_stop(const struct push_pull *exchange);

/* Is the model lost that this worker trains on, so that waiting is pointless? The error says how. */
bool push_pull_must_rejoin(const struct push_pull *exchange, struct error *error);

/* Waits until the link is open. EXCHANGE_REJOIN: the ps is not the process that our parameters are from. */
enum exchange_result push_pull_open_link(struct push_pull *exchange, struct shard_part *part, struct error *error);

/* The dtype in which a connected ps sends parameters. */
enum dtype push_pull_dtype(const struct push_pull *exchange);

/* Copies the sent model into the engine, as far as this ps holds it. */
bool push_pull_load_sent_model(struct push_pull *exchange, const struct shard_part *part, struct error *error);

/* Decides what an error answered by a ps means. */
enum exchange_result push_pull_by_code(uint16_t code);

/* The ps that decides on synchronous steps: the first with parameters. */
struct shard_part *push_pull_decider(const struct push_pull *exchange);

/* Some shard is at this step. */
void push_pull_note_step(struct push_pull *exchange, int64_t step);

/*
 * A ps answered with this token: the one of the ps that decides on steps, the first with parameters, says whether we
 * are selected.
 */
void push_pull_note_token(struct push_pull *exchange, const struct shard_part *part, int64_t token);

/*
 * Synchronous: when others are faster, shards answer at different steps; those behind are pulled until all are at one
 * step.
 */
enum exchange_result push_pull_align(struct push_pull *exchange, struct error *error);

#endif
