/*
 * Who takes the steps of clients, several at a time: players, each with a thread and an engine of its own, so that
 * nobody waits for another one within a step. Whoever is free takes the next client. What comes of clients is handed
 * over in the order of their numbers, so the bits are those of one player who takes them one after another.
 *
 * There is one player for each thread of the engine inside, where that is the CPU's and a round has enough clients;
 * else one, who plays on the engine inside. Memory: of each, what local_steps and a CPU engine of one thread take.
 */
#ifndef WORKER_CLIENTS_PLAYERS_H
#define WORKER_CLIENTS_PLAYERS_H

#include "worker/clients/partition.h"
#include "worker/engine.h"
#include "worker/local_steps.h"

struct players;

/* Everything is borrowed; the examples are those that it is a partition of. At most `in_round` clients take part in a
 * round. */
bool players_create(struct players **players, struct engine *inside, const struct engine_options *options,
                    const struct examples *examples, const struct partition *partition, int in_round,
                    struct error *error);
void players_destroy(struct players *players); /* NULL is fine */

struct players_round {
    const int *clients; /* [count], ascending */
    int count;
    const float *parameters; /* that it begins with; the engine inside has them */
    int64_t global_step;
    /* Ends the local steps of client number `at` of these; called for one after another, in their order. */
    bool (*ends)(void *context, int at, struct local_steps *steps, struct error *error);
    void *context;
};

/*
 * Adds to the result what the clients' steps did. A loss that is not finite, of the first client that has one, gives
 * the round up: result->finite says so.
 */
bool players_play(struct players *players, const struct players_round *round, struct train_result *result,
                  struct error *error);

#endif
