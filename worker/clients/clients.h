/*
 * One process that plays many workers: an engine whose steps are rounds (train.local_steps). In each, some of the
 * clients (all, or a share: ps/job/round.h) take steps of their own from the shared model, some at a time
 * (worker/clients/players.h), and the outer optimizer applies the mean of what they did.
 *
 * The bits are those of a cluster of that many workers with the same data, of which as many take part: clients draw
 * what workers of their numbers draw, and are added up in that order; what they send may be small
 * (worker/clients/small_messages.h). So local steps and optimizers can be chosen on one machine.
 *
 * With data_sharding=own and a partition each client holds rows of its own part out, and those of the last round
 * validate on them, as workers do.
 *
 * Memory, beside the engine inside and players: 4 bytes x floats x (2 + the outer optimizer's slots + averages), and 4
 * bytes for each example; nothing for a client, unless messages are small, or differences clipped or not averaged: then
 * 4 bytes x floats for each that takes part.
 */
#ifndef WORKER_CLIENTS_CLIENTS_H
#define WORKER_CLIENTS_CLIENTS_H

#include "worker/clients/held_out.h"
#include "worker/clients/partition.h"
#include "worker/dataset.h"
#include "worker/engine.h"
#include "worker/evaluate.h"
#include "worker/validators.h"

enum { CLIENTS_MAX = 100000 };

struct clients_options {
    int count;             /* 1..CLIENTS_MAX */
    const char *partition; /* worker/clients/partition.h; NULL: by data.data_sharding */
    bool exchanges;        /* what they send is as large as it is among workers */
};

/* Has each of them a part of the examples, and not all? */
static inline bool clients_divide_data(const struct clients_options *options, const struct config *config)
{
    return options->partition || config->data.data_sharding == SHARDING_DISJOINT;
}

/* Does each of them validate on rows of its own? */
static inline bool clients_hold_out(const struct clients_options *options, const struct config *config)
{
    return options->partition && config->data.data_sharding == SHARDING_OWN;
}

/* Who has which examples. Zeros are fine to destroy. */
struct clients_data {
    struct examples examples; /* that they have together; borrowed */
    struct partition partition;
    struct held_out held_out; /* zeros: nobody holds out rows of its own */
};
bool clients_data_create(struct clients_data *data, const struct clients_options *options,
                         const struct dataset *dataset, const struct config *config, struct error *error);
void clients_data_destroy(struct clients_data *data);

/* The data set as worker 0, the chief, has it: with the rows that it holds out. All lies in others' memory. */
struct dataset clients_dataset(const struct clients_data *data, const struct dataset *dataset);

/*
 * Takes over `inside`, after a failure too; it was created for the model, to make steps and nothing else. What the
 * options point to is borrowed, and so are the data.
 */
bool clients_engine_create(struct engine **engine, struct engine *inside, const struct engine_options *options,
                           const struct clients_options *clients, const struct clients_data *data, struct error *error);

/*
 * Adds to what client 0 found, of the present model, what all who took part in the last round find on the rows that
 * they hold out.
 */
bool clients_validate(struct engine *engine, enum metric metric, struct evaluation *evaluation,
                      struct validators *validators, struct error *error);

#endif
