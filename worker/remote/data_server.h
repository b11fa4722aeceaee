/*
 * The chief's half of data_sharding chief (the in-graph way): batches for workers that have no data on disk. It listens
 * on the chief's own address of worker_hosts and sends each worker, when it asks, the batches that the worker would
 * have drawn itself: a pure function of seed, worker and number, so nothing is remembered about anybody, and either
 * side may be started again.
 *
 * Back-pressure is the connection's: a worker asks for as many batches as it has room for, and a thread of its own here
 * waits until they are taken. Memory: one batch for each worker that is connected.
 */
#ifndef WORKER_REMOTE_DATA_SERVER_H
#define WORKER_REMOTE_DATA_SERVER_H

#include <sys/uio.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/identity.h"
#include "worker/dataset.h"

struct data_server;

/*
 * Everything is borrowed, and is not changed while the server lives. knows: as in handshake_rules; any thread calls it.
 */
bool data_server_create(struct data_server **server, const struct config *config, const struct identity *identity,
                        const struct dataset *dataset, bool (*knows)(void *context, const char *digest), void *context,
                        struct error *error);
void data_server_destroy(struct data_server *server); /* cuts all connections; NULL is fine */

/* Bytes of a batch as it travels. Of pictures: for each a label of 2 bytes, then all the images. */
static inline size_t batch_bytes(size_t examples, size_t pixels)
{
    return examples * (2 + pixels);
}

/* What stands for pixels where examples are rows, so that a batch takes that many bytes. */
static inline size_t batch_row_pixels(const struct examples *rows)
{
    return examples_bytes(rows) - 2;
}

/*
 * A batch of rows travels as its arrays, one behind the other: labels or targets, weights, numbers and places, as far
 * as there are any. Finds those of the first `count` rows; returns how many arrays.
 */
enum { BATCH_PARTS = 5 };
int batch_row_parts(const struct examples *rows, int count, struct iovec parts[BATCH_PARTS]);

#endif
