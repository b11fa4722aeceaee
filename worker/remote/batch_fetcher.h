/*
 * A worker's half of data_sharding chief: fetches batches from worker 0 ahead of time, on its own thread. It recovers
 * by itself, whichever side restarts, and continues with the next batch needed.
 *
 * Memory: FETCHED_BATCHES batches. The training thread calls the functions. Waits are logged with what they wait for,
 * and end when given_up returns true or the process is stopped.
 */
#ifndef WORKER_REMOTE_BATCH_FETCHER_H
#define WORKER_REMOTE_BATCH_FETCHER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/shard_link.h"

enum { FETCHED_BATCHES = 6 /* fetched ahead, at most */ };

struct batch_fetcher;

struct batch_fetcher_options {
    const struct config *config; /* borrowed, like all of them */
    const struct examples *like; /* for rows, their format; for images NULL */
    const struct identity *identity;
    struct traffic *traffic;
    bool (*given_up)(void *context);
    void *context;
};

bool batch_fetcher_create(struct batch_fetcher **fetcher, const struct batch_fetcher_options *options,
                          struct error *error);
void batch_fetcher_destroy(struct batch_fetcher *fetcher); /* NULL is fine */

/* What worker 0 says about the data. */
struct batch_fetcher_facts {
    int train, validation; /* number of examples */
    char description[320];
};

/* Waits for worker 0. Call it before the first batch_fetcher_take. */
enum exchange_result batch_fetcher_ask(struct batch_fetcher *fetcher, struct batch_fetcher_facts *facts,
                                       struct error *error);

/*
 * Waits for batch `number` of this worker. What `batch` points to stays valid until the next call. Consecutive numbers
 * need no wait if the network keeps up; other numbers are allowed.
 */
enum exchange_result batch_fetcher_take(struct batch_fetcher *fetcher, int64_t number, struct batch *batch,
                                        struct error *error);

#endif
