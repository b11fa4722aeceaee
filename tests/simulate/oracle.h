/* What must hold whatever happens to a cluster. */
#ifndef TESTS_SIMULATE_ORACLE_H
#define TESTS_SIMULATE_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

enum { WORKERS_MAX_SIMULATED = 16, ORACLE_MAX_STEPS = 8192, ORACLE_COLUMNS = 4, ORACLE_ROWS = 16 };

/* A learning rate at which losses are no longer finite, once a shard has made a step with it. */
enum { ORACLE_BAD_RATE = 64 };

/* The run's settings, as cluster.c chose them. */
extern struct oracle {
    int ps, workers; /* workers: including the unlisted ones, which come last, and join and leave */
    int listed;
    bool synchronous;
    bool bfloat16;                                    /* on the wire */
    bool int8;                                        /* the same, and gradients, or everything, as int8 */
    bool rotten;                                      /* no checkpoint can be read until the disk is repaired */
    int local_steps;                                  /* per round; above 1, each worker has its own data */
    double participation, over_selection, deadline_s; /* of rounds; participation 1: all are selected */
    int buffer;     /* asynchronous rounds: differences per step; 0: the rounds are not asynchronous */
    bool has_table; /* workers learn from files of rows, not from images */
    int64_t last_step;
    int64_t save_steps;
    int seed;                                 /* train.seed */
    double slowness_s[WORKERS_MAX_SIMULATED]; /* of each worker's step */
    double not_finite;                        /* how often a gradient is not finite */
    bool diverged;                            /* no loss is finite, until the shards are restored */
} oracle;

/* Examples that a worker has. */
static inline int oracle_examples(int worker)
{
    enum { EXAMPLES = 64 };
    return oracle.local_steps > 1 ? EXAMPLES - worker : EXAMPLES;
}

/* How many of them it holds out, and whether the model of a step is right about one of these. */
static inline int oracle_held_out(int worker)
{
    return oracle.has_table ? 0 : (worker + 1) % 4;
}

static inline bool oracle_is_right(int worker, int64_t step, int example)
{
    return (worker + step + example) % 3 != 0;
}

/* The part of a gradient that depends on what it was computed from. */
float engine_mix(float parameter, int worker, int draw, int col);

/* A worker computes a step from these parameters. */
void oracle_sees(int worker, int64_t step, const float *parameters);

/* Once per process: sets only what does not start as zero, because runs are many and touch little of the rest. */
void oracle_begin(void);

/* After every event of a machine. */
struct machine;
void oracle_check(const struct machine *machine);
void oracle_forget(const struct machine *machine); /* its process has ended */
/* The chief's disk broke its promises: this is the newest of its checkpoints that can be expected to be found. */
void oracle_lose(int64_t newest_step);
/* Did shards make steps at different learning rates that have not been undone yet? */
bool oracle_is_mixed(void);
/* A ps's job; NULL: its process is not running, or has none yet. */
const struct job *oracle_job(int ps);
/* At the end of a run that finished. undisturbed: there were no faults. */
void oracle_check_end(bool undisturbed);

#endif
