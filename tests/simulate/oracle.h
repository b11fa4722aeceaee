/* What must hold whatever happens to a cluster. */
#ifndef TESTS_SIMULATE_ORACLE_H
#define TESTS_SIMULATE_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"

enum { WORKERS_MAX_SIMULATED = 16, ORACLE_MAX_STEPS = 8192, ORACLE_COLUMNS = 4, ORACLE_ROWS = 16 };

/* A learning rate at which losses are not finite any more, once a shard has made a step with it. */
enum { ORACLE_BAD_RATE = 64 };

/* What the run is, as cluster.c chose it. */
extern struct oracle {
    int ps, workers; /* workers: with those that are not listed, which come last, and come and go */
    int listed;
    bool synchronous;
    bool bfloat16;                                    /* on the wire */
    bool int8;                                        /* that, and gradients, or all, as int8 */
    bool rotten;                                      /* no checkpoint can be read until somebody repairs the disk */
    int local_steps;                                  /* of a round; above 1, each worker has data of its own */
    double participation, over_selection, deadline_s; /* of rounds; participation 1: all are asked */
    int buffer;     /* asynchronous rounds: differences that make a step; 0: there are none such */
    bool has_table; /* workers learn from files of rows, not from pictures */
    int64_t last_step;
    int64_t save_steps;
    int seed;                                 /* train.seed */
    double slowness_s[WORKERS_MAX_SIMULATED]; /* of a step of each worker */
    double not_finite;                        /* how often a gradient is not */
    bool diverged;                            /* all losses are not, until the shards are restored */
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

/* Once a process: sets only what does not begin as zero, for runs are many and touch little of the rest. */
void oracle_begin(void);

/* After every event of a machine. */
struct machine;
void oracle_check(const struct machine *machine);
void oracle_forget(const struct machine *machine); /* its process is gone */
/* The chief's disk broke its word: of its checkpoints, this is the newest that can be expected to be found. */
void oracle_lose(int64_t newest_step);
/* Were steps made at different learning rates by different shards, and not undone yet? */
bool oracle_is_mixed(void);
/* A ps's job; NULL: its process does not run, or has none yet. */
const struct job *oracle_job(int ps);
/* At the end of a run that came to its end. undisturbed: there were no faults. */
void oracle_check_end(bool undisturbed);

#endif
