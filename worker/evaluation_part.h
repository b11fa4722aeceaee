/*
 * What an evaluation counted, as bytes, so that evaluations of one model on different rows can be merged: the result is
 * that of an evaluation of all rows, but that ROC AUC, average precision and the threshold follow from scores in bins
 * (worker/metrics.h), and that sums are rounded as they are added.
 *
 * The bytes, one after another: counts, as LEB128, seven bits to a byte, the lowest first; sums, as float64. Of counts
 * in a row, a zero is followed by how many more zeros come after it. The kind of loss, outputs, classes, cells of the
 * table of confusions and bins; examples, those right, the sum of losses; in a row each class's examples and those
 * right, the confusions, the bins; for each target, of numbers, the count, then the sums of struct regression in their
 * order. A reader checks all of it: they come from another machine.
 */
#ifndef WORKER_EVALUATION_PART_H
#define WORKER_EVALUATION_PART_H

#include "worker/evaluate.h"

/* Most bytes that evaluation_part_write takes. */
size_t evaluation_part_room(const struct evaluation *evaluation);

/* Writes what the last evaluate() counted; returns the bytes. */
size_t evaluation_part_write(const struct evaluation *evaluation, uint8_t *bytes);

/*
 * Adds what another evaluation of the same options counted; evaluation_measure is due after the last one. False, and
 * nothing is added: they are damaged, or of another kind of evaluation, or not finite.
 */
bool evaluation_part_add(struct evaluation *evaluation, const uint8_t *bytes, size_t size, struct error *error);

#endif
