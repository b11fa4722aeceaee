/* Validation by several workers, each on rows of its own: their results as bytes, the sum, and who does worst. */
#ifndef WORKER_EVALUATION_VALIDATION_H
#define WORKER_EVALUATION_VALIDATION_H

#include <stdint.h>

#include "worker/evaluation/evaluate.h"

/* --- Who validated, each on its own rows --- */

/* The score on one worker's own rows. */
struct worker_score {
    int worker;
    int64_t examples;
    double score; /* of the metric that decides; NaN: not defined */
};

struct validators {
    const struct worker_score *scores; /* [count], the worst first; borrowed, until the next validation */
    int count;                         /* this process among them; 0: nobody else validates */
    int worst;                         /* of them, the worst tenth; 0 if there is only one */
    int missing;                       /* workers that hold the model but did not report in time */
};

/* --- An evaluation as bytes --- */

/*
 * An evaluation's counts, serialized, so that evaluations of one model on different rows can be merged. The result
 * equals that of an evaluation of all rows, except that ROC AUC, average precision and the threshold follow from binned
 * scores (worker/evaluation/metrics.h), and that sums round as they are added.
 *
 * Encoding: counts as LEB128 (seven bits to a byte, lowest first), sums as float64. In an array of counts, a zero is
 * followed by the number of further zeros. The order: the kind of loss, outputs, classes, cells of the confusion matrix
 * and bins; examples, correct ones, the sum of losses; as one array each class's examples and correct ones, the
 * confusions, the bins; for each numeric target the count, then the sums of struct regression in their order. A reader
 * checks everything, since the bytes come from another machine.
 */

/* Most bytes that evaluation_part_write takes. */
size_t evaluation_part_room(const struct evaluation *evaluation);

/* Writes what the last evaluate() counted; returns the bytes. */
size_t evaluation_part_write(const struct evaluation *evaluation, uint8_t *bytes);

/*
 * Adds the counts of another evaluation with the same options; call evaluation_measure after the last one. Returns
 * false and adds nothing if the bytes are damaged, of another kind of evaluation, or not finite.
 */
bool evaluation_part_add(struct evaluation *evaluation, const uint8_t *bytes, size_t size, struct error *error);

/* --- The sum of several workers' validations --- */

/*
 * The sum of several workers' validations of one model, each on its own rows: worker 0's result, then those that others
 * report, and which workers do worst.
 */

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
