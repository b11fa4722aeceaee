/*
 * The chief's half of data_sharding chief (the in-graph way): batches for workers without data on disk. It listens on
 * the chief's own address in worker_hosts, and sends each worker on request the batches that the worker would have
 * drawn itself. They depend only on seed, worker and number, so nothing is remembered about workers, and either side
 * can be restarted.
 *
 * The connection provides back-pressure: a worker asks for as many batches as it has room for, and its thread here
 * waits until they are taken. Memory: one batch per connected worker.
 */
#ifndef WORKER_REMOTE_DATA_SERVER_H
#define WORKER_REMOTE_DATA_SERVER_H

#include <sys/uio.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/identity.h"
#include "worker/data/dataset.h"

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

/*
 * A batch of rows travels as its arrays, one after another: labels or targets, weights, numbers and categories, where
 * there are any. Finds those of the first `count` rows; returns how many arrays.
 */
enum { BATCH_PARTS = 6 };
int batch_row_parts(const struct examples *rows, int count, struct iovec parts[BATCH_PARTS]);

#endif
