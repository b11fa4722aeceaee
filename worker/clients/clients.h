/*
 * One process that plays many workers: an engine whose steps are rounds (train.local_steps). In each, some of the
 * clients (all, or a share: ps/job/round.h) take steps of their own from the shared model, one client after
 * another on the engine inside, and the outer optimizer applies the mean of what they did.
 *
 * The bits are those of a cluster of that many workers with the same data, of which as many take part: clients draw
 * what workers of their numbers draw, and are added up in that order. So local steps and optimizers can be chosen
 * on one machine.
 *
 * Memory, beside the engine inside: 4 bytes x floats x (4 + the slots of both optimizers + averages), and 4 bytes for
 * each example; nothing for a client, unless differences are clipped or not averaged: then 4 bytes x floats for each
 * that takes part.
 */
#ifndef WORKER_CLIENTS_CLIENTS_H
#define WORKER_CLIENTS_CLIENTS_H

#include "worker/engine.h"

enum { CLIENTS_MAX = 100000 };

struct clients_options {
    int count;             /* 1..CLIENTS_MAX */
    const char *partition; /* worker/clients/partition.h; NULL: by data.data_sharding */
};

/* Has each of them a part of the examples, and not all? */
static inline bool clients_divide_data(const struct clients_options *options, const struct config *config)
{
    return options->partition || config->data.data_sharding == SHARDING_DISJOINT;
}

/*
 * Takes over `inside`, after a failure too; it was created for the model, to make steps and nothing else. What the
 * options point to is borrowed.
 */
bool clients_engine_create(struct engine **engine, struct engine *inside, const struct engine_options *options,
                           const struct clients_options *clients, struct error *error);

#endif
