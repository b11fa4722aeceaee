/*
 * Moves the whole training state between a checkpoint_state in memory and the shards, to restore and to take snapshots.
 * One thread at a time; the exchange is the chief's own, not the one it trains with.
 */
#ifndef WORKER_REMOTE_TRANSFER_H
#define WORKER_REMOTE_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "ps/checkpoint/checkpoint.h"
#include "worker/remote/exchange/push_pull.h"

/* What a shard reports about itself. */
struct shard_status {
    bool ready; /* it holds parameters that may be trained on, even if workers are missing */
    uint32_t generation;
    bool over;           /* the job it served has ended */
    int64_t global_step; /* -1 unless ready */
    int retries;         /* as in struct config_train */
};

/* Asks every ps, waiting for those that don't answer. status: [exchange->count]. */
enum exchange_result transfer_status(struct push_pull *exchange, struct shard_status *status, struct error *error);

/* The step of the shard that is furthest. */
enum exchange_result transfer_newest_step(struct push_pull *exchange, int64_t *global_step, struct error *error);

/* The state's counters, for end_restore. */
struct transfer_place {
    int64_t global_step;
    int64_t epoch_batches; /* of one worker */
    int retries;           /* as in struct config_train */
};

/*
 * Begins a generation: writes the state to every shard. source: for logs. A broken connection costs no more than the
 * request in flight; EXCHANGE_REJOIN: a shard has lost what it had of it, or is of another generation.
 */
enum exchange_result transfer_restore(struct push_pull *exchange, uint32_t generation,
                                      const struct checkpoint_state *state, const char *source, struct error *error);
/* Afterwards: releases the waiting workers, which may train only when all shards have all of it. */
enum exchange_result transfer_end_restore(struct push_pull *exchange, const struct transfer_place *place,
                                          struct error *error);

/* The outcome of a request for a snapshot. */
struct snapshot_answer {
    bool taken;          /* by all; false: some have not reached that step, or are past it */
    bool same;           /* at the same step on all */
    int64_t global_step; /* the highest of them */
};

/*
 * Keeps, on every shard, the state at exactly `at_step`, or (-1) the current one. What is not taken within wait_ms
 * stays pending: ask again with the same number. A shard holds one such snapshot; another number replaces it.
 */
enum exchange_result transfer_snapshot(struct push_pull *exchange, uint64_t number, int64_t at_step, uint32_t wait_ms,
                                       struct snapshot_answer *answer, struct error *error);

/*
 * Orders the state at exactly `step` on every shard, or asks about an earlier order. It stays ordered, beside others,
 * until transfer_release.
 */
enum order_state {
    ORDER_PENDING, /* some shard has not reached that step */
    ORDER_TAKEN,   /* all have kept it */
    ORDER_LOST,    /* some shard was past it without keeping it: the error says which */
};
enum exchange_result transfer_order(struct push_pull *exchange, uint64_t number, int64_t step, uint32_t wait_ms,
                                    enum order_state *state, struct error *error);

/* Every shard drops the snapshot. One that can't be reached now drops it when it needs the room. */
void transfer_release(struct push_pull *exchange, uint64_t number);

/* Reads the vectors of a snapshot (which: bit i for vector i) into the state, and releases the snapshot. */
enum exchange_result transfer_read(struct push_pull *exchange, uint64_t number, unsigned which,
                                   struct checkpoint_state *state, struct error *error);

/*
 * Tells every ps that the job is over; one that can't be reached is tried again until the deadline, then skipped: the
 * error names the last one skipped.
 */
bool transfer_end_job(struct push_pull *exchange, const struct message_end_job *message, double deadline_s,
                      struct error *error);

#endif
