/*
 * An evaluation's counts, serialized, so that evaluations of one model on different rows can be merged. The result
 * equals that of an evaluation of all rows, except that ROC AUC, average precision and the threshold follow from binned
 * scores (worker/metrics.h), and that sums round as they are added.
 *
 * Encoding: counts as LEB128 (seven bits to a byte, lowest first), sums as float64. In an array of counts, a zero is
 * followed by the number of further zeros. The order: the kind of loss, outputs, classes, cells of the confusion matrix
 * and bins; examples, correct ones, the sum of losses; as one array each class's examples and correct ones, the
 * confusions, the bins; for each numeric target the count, then the sums of struct regression in their order. A reader
 * checks everything, since the bytes come from another machine.
 */
#ifndef WORKER_EVALUATION_PART_H
#define WORKER_EVALUATION_PART_H

#include "worker/evaluate.h"

/* Most bytes that evaluation_part_write takes. */
size_t evaluation_part_room(const struct evaluation *evaluation);

/* Writes what the last evaluate() counted; returns the bytes. */
size_t evaluation_part_write(const struct evaluation *evaluation, uint8_t *bytes);

/*
 * Adds the counts of another evaluation with the same options; call evaluation_measure after the last one. Returns
 * false and adds nothing if the bytes are damaged, of another kind of evaluation, or not finite.
 */
bool evaluation_part_add(struct evaluation *evaluation, const uint8_t *bytes, size_t size, struct error *error);

#endif
