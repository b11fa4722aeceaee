/*
 * One process that simulates many workers: an engine whose steps are rounds (train.local_steps). In each round some of
 * the clients (all, or a share: ps/job/plan.h) take their own steps from the shared model, several at a time, and the
 * outer optimizer applies the mean of their differences.
 *
 * The bits are those of a cluster of that many workers with the same data and the same participation: clients draw what
 * workers with their numbers draw, and are added in that order; messages may be packed. So local steps and optimizers
 * can be chosen on one machine.
 *
 * With data_sharding=own and a partition each client holds out rows of its own part, and the clients of the last round
 * validate on them, as workers do.
 *
 * Memory, besides the engine and those of its threads: 4 bytes x floats x (2 + the outer optimizer's slots + averages),
 * and 4 bytes per example. Nothing per client, unless messages are packed, or differences are clipped or not averaged:
 * then 4 bytes x floats for each client of a round.
 */
#ifndef WORKER_CLIENTS_CLIENTS_H
#define WORKER_CLIENTS_CLIENTS_H

#include "worker/clients/partition.h"
#include "worker/data/dataset.h"
#include "worker/engine.h"
#include "worker/evaluation/evaluate.h"
#include "worker/evaluation/validation.h"

enum { CLIENTS_MAX = 100000 };

struct clients_options {
    int count;             /* 1..CLIENTS_MAX */
    const char *partition; /* worker/clients/partition.h; NULL: by data.data_sharding */
    bool exchanges;        /* messages have the sizes of those among workers */
};

/* Does each client have a part of the examples, not all? */
static inline bool clients_divide_data(const struct clients_options *options, const struct config *config)
{
    return options->partition || config->data.data_sharding == SHARDING_DISJOINT;
}

/* Does each client validate on its own rows? */
static inline bool clients_hold_out(const struct clients_options *options, const struct config *config)
{
    return options->partition && config->data.data_sharding == SHARDING_OWN;
}

/* Which client has which examples. Zeros are safe to destroy. */
struct clients_data {
    struct examples examples; /* of all clients; borrowed */
    struct partition partition;
    struct held_out held_out; /* zeros: no client holds out rows */
};
bool clients_data_create(struct clients_data *data, const struct clients_options *options,
                         const struct dataset *dataset, const struct config *config, struct error *error);
void clients_data_destroy(struct clients_data *data);

/* The data set as worker 0, the chief, has it, including the rows that it holds out. Borrows all memory. */
struct dataset clients_dataset(const struct clients_data *data, const struct dataset *dataset);

/*
 * Takes ownership of `inside`, even on failure; it must be created for the model, to take steps and nothing else. What
 * the options point to is borrowed, and so are the data.
 */
bool clients_engine_create(struct engine **engine, struct engine *inside, const struct engine_options *options,
                           const struct clients_options *clients, const struct clients_data *data, struct error *error);

/*
 * Adds to client 0's evaluation of the present model those of all clients of the last round, on the rows that they hold
 * out.
 */
bool clients_validate(struct engine *engine, enum metric metric, struct evaluation *evaluation,
                      struct validators *validators, struct error *error);

#endif
