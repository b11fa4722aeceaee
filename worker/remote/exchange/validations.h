/*
 * Validations on workers' own rows: each worker reports its results to the ps that decides on steps, and the chief
 * fetches them all.
 */
#ifndef WORKER_REMOTE_EXCHANGE_VALIDATIONS_H
#define WORKER_REMOTE_EXCHANGE_VALIDATIONS_H

#include "worker/remote/exchange/push_pull.h"

/* A worker's own validation of a step's model. */
struct own_validation {
    int64_t step;
    int64_t examples;
    double score; /* of the deciding metric; NaN: undefined */
    bool rises;   /* a larger one is better */
};

/* bytes: the results (worker/evaluation/validation.h), at most VALIDATIONS_BYTES. */
#define VALIDATIONS_BYTES (1 << 20)
enum exchange_result validations_report(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                        size_t size, struct error *error);

/* Receives other workers' results. */
struct validations_receiver {
    void (*begin)(void *context); /* starts over, if a connection broke */
    /* size 0: the worker reported only its score, or memory ran out. */
    void (*take)(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size);
    void *context;
};

/*
 * As the chief: the other workers' results for own->step, in the order of their indexes. Waits for those with that
 * model, at most wait_s; *missing: how many of them did not report.
 */
enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_receiver *receiver, int *missing, struct error *error);

#endif
