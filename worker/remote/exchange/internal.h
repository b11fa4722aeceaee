/*
 * Inside push and pull: what its parts share. push_pull.c has the links and the way into the engine; pull.c joins and
 * pulls; push.c pushes, and takes the answers.
 */
#ifndef WORKER_REMOTE_EXCHANGE_INTERNAL_H
#define WORKER_REMOTE_EXCHANGE_INTERNAL_H

#include "base/simulation.h"
#include "worker/remote/exchange/push_pull.h"

enum { PUSH_FRAME_RANGES = SMALLER(4096, 2) /* of a push's frame, at most */ };

/* Is the process asked to leave, or does the caller give up? */
bool push_pull_must_stop(const struct push_pull *exchange);

/* Is the model lost that this worker trains on, so that nothing which is waited for will come? The error says how. */
bool push_pull_must_rejoin(const struct push_pull *exchange, struct error *error);

/*
 * Waits until the link is open. EXCHANGE_REJOIN: the ps is another process than the one that our parameters are from.
 */
enum exchange_result push_pull_open_link(struct push_pull *exchange, struct shard_part *part, struct error *error);

/* What parameters are to travel as, from a ps that we have a link to. */
enum dtype push_pull_dtype(const struct push_pull *exchange, const struct shard_part *part);

/* Brings the sent model into the engine, of what this ps holds. */
bool push_pull_load_sent_model(struct push_pull *exchange, const struct shard_part *part, struct error *error);

/* An error that a ps answered with: what it means for us. */
enum exchange_result push_pull_by_code(uint16_t code);

/* The ps that decides on synchronous steps: the first that holds something. */
struct shard_part *push_pull_decider(const struct push_pull *exchange);

/* Some shard is at this step. */
void push_pull_note_step(struct push_pull *exchange, int64_t step);

/* A ps answered with this token: that of who decides on steps, the first that holds something, says who is asked. */
void push_pull_note_token(struct push_pull *exchange, const struct shard_part *part, int64_t token);

/*
 * Synchronous: shards answer at steps of their own when others are faster; what is behind is pulled until all are at
 * one step.
 */
enum exchange_result push_pull_align(struct push_pull *exchange, struct error *error);

#endif
