/*
 * Who of several clients has which training examples, when one process plays them all: a pure function of the examples'
 * labels, the seed and the kind.
 *
 *     iid            shuffled, and cut into equal parts
 *     order          equal parts in the order of the files, as data_sharding=disjoint cuts them
 *     shards:S       by label, cut into S parts a client, which are dealt out at random: each client sees few classes
 *                    (McMahan et al. 2017, section 3, with S = 2)
 *     dirichlet:A    each class is divided in proportions drawn from a Dirichlet distribution of parameter A: the
 *                    smaller, the more unlike the clients are (Hsu et al. 2019)
 *
 * Without a kind data.data_sharding says it, as in a cluster of that many workers: all have all, or equal parts in the
 * order of the files (disjoint).
 */
#ifndef WORKER_CLIENTS_PARTITION_H
#define WORKER_CLIENTS_PARTITION_H

#include "base/config.h"
#include "base/error.h"
#include "worker/data/examples.h"

struct partition {
    int clients;
    int32_t *order; /* indexes of examples, by client; NULL: every client has all, in their order */
    int32_t *first; /* [clients + 1]: where each client's begin in `order` */
    int examples;   /* per client, if order is NULL */
};

/* kind NULL: by data.data_sharding. Every client gets at least one example. */
bool partition_create(struct partition *partition, const char *kind, int clients, const struct examples *examples,
                      const struct config *config, struct error *error);
void partition_destroy(struct partition *partition); /* zeros are fine */

static inline int partition_count(const struct partition *partition, int client)
{
    return partition->order ? partition->first[client + 1] - partition->first[client] : partition->examples;
}

/* --- Rows held out --- */

/*
 * Rows that each client of a process holds out of its own part to validate on, as a worker does with data_sharding=own:
 * the first validation_size of them. They are copied, so that each client's lie together.
 */

/* Zeros are safe to destroy. */
struct held_out {
    struct examples examples; /* by client */
    int32_t *first;           /* [clients + 1] */
};

/* Takes them from a partition with an order; examples: the partition's. */
bool held_out_create(struct held_out *held_out, struct partition *partition, const struct examples *examples,
                     const struct config *config, struct error *error);
void held_out_destroy(struct held_out *held_out);

struct examples held_out_of(const struct held_out *held_out, int client);
int held_out_most(const struct held_out *held_out, int clients); /* the most that any client has */

#endif
