/*
 * The ends of a table model's ONNX graph: from raw columns to the first layer, and from the last layer to predictions,
 * with the inputs and outputs of `trainer predict`.
 *
 * Inputs, [batch, 1], named as the columns: float64 for a number (NaN: missing; arithmetic is in double as in
 * training), text for a category, without surrounding blanks ("", "NA" and the like: missing). Outputs:
 *
 *     classes      prediction, text [batch, 1]; probabilities, float32 [batch, classes]
 *     flags        prediction, int64 [batch, targets]; probabilities, float32 [batch, targets]
 *     numbers      prediction, float64 [batch, targets], in the units of the table
 *     the inputs   error, float64 [batch, 1]; flag, int64 [batch, 1], if the model has a threshold
 *
 * Each category costs one look-up of its weights, however many there are.
 */
#ifndef WORKER_EXPORT_ONNX_TABLE_H
#define WORKER_EXPORT_ONNX_TABLE_H

#include <stdbool.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "worker/data/table/schema.h"

#define ONNX_TABLE_OUTPUTS "trainer/outputs" /* the name of the last layer's output */

/* False if a column has the name of another value of the graph. */
bool onnx_table_check(const struct schema *schema, struct error *error);

/* From the columns to the first layer's sums, under the name `sums`. */
void onnx_table_inputs(struct proto *graph, const struct schema *schema, const struct model *model, const char *sums);

/* From the outputs of the last layer to the predictions; threshold as in struct trained. */
void onnx_table_outputs(struct proto *graph, const struct schema *schema, double threshold);

#endif
