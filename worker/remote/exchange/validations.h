/*
 * What workers find when they validate on rows of their own: each tells the ps that decides on steps, and the chief
 * asks it for all. A ps of an earlier version is told and asked nothing.
 */
#ifndef WORKER_REMOTE_EXCHANGE_VALIDATIONS_H
#define WORKER_REMOTE_EXCHANGE_VALIDATIONS_H

#include "worker/remote/exchange/push_pull.h"

/* A worker's own validation of the model of a step. */
struct own_validation {
    int64_t step;
    int64_t examples;
    double score; /* of the metric that decides; NaN: not defined */
    bool rises;   /* a larger one is better */
};

/* bytes: what it found (worker/evaluation_part.h), at most VALIDATIONS_BYTES. */
#define VALIDATIONS_BYTES (1 << 20)
enum exchange_result validations_tell(struct push_pull *exchange, const struct own_validation *own, uint8_t *bytes,
                                      size_t size, struct error *error);

/* Who is told what others found. */
struct validations_taker {
    void (*begin)(void *context); /* once more from the first one, if a connection broke */
    /* size 0: it told its score alone, or there is no memory for what it found. */
    void (*take)(void *context, int worker, int64_t examples, double score, const uint8_t *bytes, size_t size);
    void *context;
};

/*
 * As the chief: what others told of own->step, in the order of their numbers. Waits for those who hold the model, for
 * wait_s at most; *missing: how many of them did not tell.
 */
enum exchange_result validations_gather(struct push_pull *exchange, const struct own_validation *own, double wait_s,
                                        const struct validations_taker *taker, int *missing, struct error *error);

#endif
