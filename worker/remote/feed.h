/*
 * A worker's half of data_sharding chief: batches that worker 0 sends, fetched ahead by a thread of its own, which
 * comes back by itself after trouble, whoever was started again, and goes on with the batch that is wanted next.
 *
 * Memory: FEED_BATCHES batches. The functions are the training thread's. Waits are named in the log and end when
 * given_up says so or the process is asked to leave.
 */
#ifndef WORKER_REMOTE_FEED_H
#define WORKER_REMOTE_FEED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/self.h"
#include "worker/engine.h"
#include "worker/remote/exchange/push_pull.h"
#include "worker/remote/shard_link.h"

enum { FEED_BATCHES = 6 /* fetched ahead, at most */ };

struct feed;

struct feed_options {
    const struct config *config; /* borrowed, as all of them */
    const struct self *self;
    struct traffic *traffic;
    bool (*given_up)(void *context);
    void *context;
};

bool feed_create(struct feed **feed, const struct feed_options *options, struct error *error);
void feed_destroy(struct feed *feed); /* NULL is fine */

/* What worker 0 says of the data. */
struct feed_facts {
    int train, validation; /* images */
    char description[320];
};

/* Waits for worker 0. To be called before the first batch is taken. */
enum push_pull_end feed_ask(struct feed *feed, struct feed_facts *facts, struct error *error);

/*
 * Waits for batch `number` of this worker. What `batch` points to stays until the next call. Numbers that follow one
 * another cost no waiting if the network keeps up; others may be asked for as well.
 */
enum push_pull_end feed_take(struct feed *feed, int64_t number, struct batch *batch, struct error *error);

#endif
