/* What each ps has done in its present generation, by the calls that the oracle's files intercept. */
#ifndef TESTS_SIMULATE_RECORDS_H
#define TESTS_SIMULATE_RECORDS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/simulate/setup.h"

struct job;
struct machine;

/* Pushes to a ps in a generation; steps of a run. */
enum { RECORDS_MOST_PUSHES = 8192, RECORDS_MAX_STEPS = 8192 };

/* A push that a ps accepted. */
struct accepted {
    int worker;
    uint64_t incarnation, sequence;
    bool applied;
};

/* What a ps was told to aggregate. */
struct replicas {
    int now, next;
    bool has_next;
    int64_t step; /* from which it is the next */
};

/* What a ps has done in its present generation. */
struct ps_record {
    struct job *job; /* NULL: it is not running */
    struct replicas replicas;
    uint32_t generation;
    bool restored;
    int64_t restored_step, seen_step, applied;
    double applied_s;
    struct accepted pushes[RECORDS_MOST_PUSHES];
    int push_count;
    int64_t asked_for[WORKERS_MAX_SIMULATED]; /* the last round for which a worker knows it is selected; -1: none */
    float mean[SETUP_FLOATS]; /* asynchronous rounds: of `gathered` differences, whose total weight is `weight` */
    int gathered;
    double weight;
    int64_t step; /* for which they wait */
};

extern struct ps_record records[PS_MAX_SIMULATED];

/* Of the running machine. */
struct ps_record *records_here(void);
void records_begin(struct job *job);

void records_forget(const struct machine *machine); /* its process has ended */
/* A ps's job; NULL: its process is not running, or has none yet. */
const struct job *records_job(int ps);

#endif
