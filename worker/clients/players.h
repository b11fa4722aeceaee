/*
 * Players take the steps of several clients at a time, each with its own thread and engine, so that none waits for
 * another within a step. An idle player takes the next client. Results are delivered in the order of clients, so the
 * bits are those of one player that takes the clients one after another.
 *
 * There is one player per thread of the engine inside, if that is a CPU engine and a round has enough clients;
 * otherwise a single player uses the engine inside. Memory: for each player, that of local_steps and of a CPU engine
 * with one thread.
 */
#ifndef WORKER_CLIENTS_PLAYERS_H
#define WORKER_CLIENTS_PLAYERS_H

#include "worker/clients/partition.h"
#include "worker/engine.h"
#include "worker/local_steps.h"

struct players;

/* Everything is borrowed; the examples are the partition's. At most `in_round` clients take part in a round. */
bool players_create(struct players **players, struct engine *inside, const struct engine_options *options,
                    const struct examples *examples, const struct partition *partition, int in_round,
                    struct error *error);
void players_destroy(struct players *players); /* NULL is fine */

struct players_round {
    const int *clients; /* [count], ascending */
    int count;
    const float *parameters; /* at the start; the engine inside has them */
    int64_t global_step;
    /* Ends the local steps of the client at position `at`; called for each in turn. */
    bool (*ends)(void *context, int at, struct local_steps *steps, struct error *error);
    void *context;
};

/*
 * Adds up what the clients' steps did. If a client's loss is not finite, the round is given up: result->finite is
 * false.
 */
bool players_play(struct players *players, const struct players_round *round, struct train_result *result,
                  struct error *error);

#endif
