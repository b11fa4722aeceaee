/*
 * A worker's half of data_sharding chief: batches that worker 0 sends, fetched ahead by a thread of its own, which
 * recovers by itself, no matter which side was restarted, and goes on with the batch that is wanted next.
 *
 * Memory: FETCHED_BATCHES batches. The functions are the training thread's. Waits are named in the log and end when
 * given_up says so or the process is asked to leave.
 */
#ifndef WORKER_REMOTE_BATCH_FETCHER_H
#define WORKER_REMOTE_BATCH_FETCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/identity.h"
#include "worker/engine.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/shard_link.h"

enum { FETCHED_BATCHES = 6 /* fetched ahead, at most */ };

struct batch_fetcher;

struct batch_fetcher_options {
    const struct config *config; /* borrowed, as all of them */
    const struct examples *like; /* rows, what they look like; pictures: NULL */
    const struct identity *identity;
    struct traffic *traffic;
    bool (*given_up)(void *context);
    void *context;
};

bool batch_fetcher_create(struct batch_fetcher **fetcher, const struct batch_fetcher_options *options,
                          struct error *error);
void batch_fetcher_destroy(struct batch_fetcher *fetcher); /* NULL is fine */

/* What worker 0 says of the data. */
struct batch_fetcher_facts {
    int train, validation; /* examples */
    char description[320];
};

/* Waits for worker 0. To be called before the first batch is taken. */
enum exchange_result batch_fetcher_ask(struct batch_fetcher *fetcher, struct batch_fetcher_facts *facts,
                                       struct error *error);

/*
 * Waits for batch `number` of this worker. What `batch` points to stays until the next call. Numbers that follow one
 * another cost no waiting if the network keeps up; others may be asked for as well.
 */
enum exchange_result batch_fetcher_take(struct batch_fetcher *fetcher, int64_t number, struct batch *batch,
                                        struct error *error);

#endif
