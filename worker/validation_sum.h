/*
 * The sum of several workers' validations of one model, each on its own rows: worker 0's result, then those that others
 * report (worker/evaluation_part.h), and which workers do worst.
 */
#ifndef WORKER_VALIDATION_SUM_H
#define WORKER_VALIDATION_SUM_H

#include "worker/evaluate.h"
#include "worker/validators.h"

/* Zeros are fine to destroy. */
struct validation_sum {
    struct evaluation *into; /* borrowed, from begin to end */
    uint8_t *own;            /* its initial content: worker 0's counts */
    size_t own_size;
    struct worker_score *scores; /* [room] */
    int room, count;
};

/* For evaluations like this one, by at most `workers` workers. */
void validation_sum_create(struct validation_sum *sum, const struct evaluation *like, int workers);
void validation_sum_destroy(struct validation_sum *sum);

/* into: worker 0's result, to which others' counts are added. */
void validation_sum_begin(struct validation_sum *sum, struct evaluation *into, enum metric metric);

/* Starts over with worker 0's result alone. */
void validation_sum_again(struct validation_sum *sum);

/* False: it does not count, and the error says why. Results beyond the room are ignored. */
bool validation_sum_add(struct validation_sum *sum, const struct worker_score *score, const uint8_t *bytes, size_t size,
                        struct error *error);

/* Computes the overall metrics and each worker's score. Leaves validators->missing as it is. */
void validation_sum_end(struct validation_sum *sum, enum metric metric, struct validators *validators);

#endif
