/*
 * Which cluster is simulated, and how it trains: machines, config and rows, drawn from the run's seed. What changes
 * later, and concerns several files, is here, too.
 */
#ifndef TESTS_SIMULATE_SETUP_H
#define TESTS_SIMULATE_SETUP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

struct machine;

enum { PS_MAX_SIMULATED = 8, WORKERS_MAX_SIMULATED = 16, SETUP_MOST_SETTINGS = 40 };

/* Of the model: its rows are padded to 16 columns in memory, and the last one has the biases. */
enum { SETUP_COLUMNS = 4, SETUP_ROWS = 16, SETUP_FLOATS = (SETUP_ROWS + 1) * 16 };

/* A learning rate at which losses are no longer finite, once a shard has made a step with it. */
enum { SETUP_BAD_RATE = 64 };

extern struct setup {
    int ps, workers; /* workers: including the unlisted ones, which come last, and join and leave */
    int listed;
    bool synchronous;
    bool bfloat16;                                    /* on the wire */
    bool int8;                                        /* the same, and gradients, or everything, as int8 */
    int local_steps;                                  /* per round; above 1, each worker has its own data */
    double participation, over_selection, deadline_s; /* of rounds; participation 1: all are selected */
    int buffer;     /* asynchronous rounds: differences per step; 0: the rounds are not asynchronous */
    bool has_table; /* workers learn from files of rows, not from images */
    int64_t last_step;
    int64_t save_steps;
    int seed;                                 /* train.seed */
    double slowness_s[WORKERS_MAX_SIMULATED]; /* of each worker's step */
    double not_finite;                        /* how often a gradient is not finite */
    struct machine *gone;                     /* a worker that will be lost for good; NULL: none */
    int late; /* listed workers that come so late that a job waiting for them is given other configs */
    /* Changes during the run. */
    bool may_rot;  /* the chief's disk may break its promises, and does so once */
    bool rotten;   /* no checkpoint can be read until the disk is repaired */
    bool diverged; /* no loss is finite, until the shards are restored */
} setup;

/* Examples that a worker has. */
static inline int setup_examples(int worker)
{
    enum { EXAMPLES = 64 };
    return setup.local_steps > 1 ? EXAMPLES - worker : EXAMPLES;
}

/* How many of them it holds out. */
static inline int setup_held_out(int worker)
{
    return setup.has_table ? 0 : (worker + 1) % 4;
}

/* Asynchronous: pushes that make a step. */
static inline int setup_pushes_of_step(void)
{
    return setup.buffer > 0 ? setup.buffer : 1;
}

/* Draws it, and adds its machines, whose main is `run`. rolls: for rollouts, during which training does not end. */
void setup_draw(bool rolls, int (*run)(struct machine *machine));

/* The config, as flags; without job_name and task_index. */
const struct config_setting *setup_settings(int *count);

bool setup_is_ps(const struct machine *machine);
struct machine *setup_chief(void);

#endif
