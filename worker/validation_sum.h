/*
 * Validations of one model by several workers, each on rows of its own, added up: what worker 0 finds, then what others
 * tell (worker/evaluation_part.h), and who fares worst.
 */
#ifndef WORKER_VALIDATION_SUM_H
#define WORKER_VALIDATION_SUM_H

#include "worker/evaluate.h"
#include "worker/validators.h"

/* Zeros are fine to destroy. */
struct validation_sum {
    struct evaluation *into; /* borrowed, from begin to end */
    uint8_t *own;            /* what it held at first */
    size_t own_size;
    struct worker_score *scores; /* [room] */
    int room, count;
};

/* For evaluations like this one, of so many workers at most. */
bool validation_sum_create(struct validation_sum *sum, const struct evaluation *like, int workers, struct error *error);
void validation_sum_destroy(struct validation_sum *sum);

/* into: what worker 0 found, which others' counts are added to. */
void validation_sum_begin(struct validation_sum *sum, struct evaluation *into, enum metric metric);

/* As if nobody else's had been added. */
void validation_sum_again(struct validation_sum *sum);

/* False: it does not count, and the error says why. What comes beyond the room is left out. */
bool validation_sum_add(struct validation_sum *sum, const struct worker_score *score, const uint8_t *bytes, size_t size,
                        struct error *error);

/* The figures of all, and how each fares: validators->missing is left as it is. */
void validation_sum_end(struct validation_sum *sum, enum metric metric, struct validators *validators);

#endif
