/* data_sharding chief (the in-graph way): batches for workers without data on disk, at both ends. */
#ifndef WORKER_REMOTE_BATCHES_H
#define WORKER_REMOTE_BATCHES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/shard_link.h"

/* --- The chief's half: the server --- */

/*
 * It listens on the chief's own address in worker_hosts, and sends each worker on request the batches that the worker
 * would have drawn itself. They depend only on seed, worker and number, so nothing is remembered about workers, and
 * either side can be restarted.
 *
 * The connection provides back-pressure: a worker asks for as many batches as it has room for, and its thread here
 * waits until they are taken. Memory: one batch per connected worker.
 */

struct data_server;

/*
 * Everything is borrowed, and must not change while the server exists. knows: as in handshake_rules; any thread calls
 * it.
 */
bool data_server_create(struct data_server **server, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error);
void data_server_destroy(struct data_server *server); /* closes all connections; NULL is fine */

/* Size of a batch on the wire. Of images: a label of 2 bytes for each, then all the pixels. */
static inline size_t batch_bytes(size_t examples, size_t pixels)
{
    return examples * (2 + pixels);
}

/* What replaces pixels where examples are rows, so that a batch takes that many bytes. */
static inline size_t batch_row_pixels(const struct examples *rows)
{
    return examples_bytes(rows) - 2;
}

/* --- The other workers' half: the fetcher --- */

/*
 * Fetches batches from worker 0 ahead of time, on its own thread. It recovers
 * by itself, whichever side restarts, and continues with the next batch needed.
 *
 * Memory: FETCHED_BATCHES batches. The training thread calls the functions. Waits are logged with what they wait for,
 * and end when given_up returns true or the process is stopped.
 */

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
