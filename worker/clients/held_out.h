/*
 * Rows that each client of a process holds out of its own part to validate on, as a worker does with data_sharding=own:
 * the first validation_size of them. They are copied, so that each client's lie together.
 */
#ifndef WORKER_CLIENTS_HELD_OUT_H
#define WORKER_CLIENTS_HELD_OUT_H

#include "worker/clients/partition.h"

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
