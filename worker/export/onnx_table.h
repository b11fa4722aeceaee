/*
 * What an ONNX graph of a table's model has around the layers: raw columns in, answers out, as `trainer predict` reads
 * and gives them.
 *
 * Inputs, [batch, 1] and called as the columns: float64 of a number (NaN: missing; arithmetic is in double as in
 * training), text of a category, without blanks around it ("", "NA" and its like: missing). Outputs:
 *
 *     classes      prediction, text [batch, 1]; probabilities, float32 [batch, classes]
 *     flags        prediction, int64 [batch, targets]; probabilities, float32 [batch, targets]
 *     numbers      prediction, float64 [batch, targets], in the units of the table
 *     the inputs   error, float64 [batch, 1]; flag, int64 [batch, 1], if the model has a threshold
 *
 * Categories cost a look-up of their weights each, however many there are.
 */
#ifndef WORKER_EXPORT_ONNX_TABLE_H
#define WORKER_EXPORT_ONNX_TABLE_H

#include <stdbool.h>

#include "base/encoding/proto.h"
#include "base/error.h"
#include "ps/store/model.h"
#include "worker/data/table/schema.h"

#define ONNX_TABLE_OUTPUTS "trainer/outputs" /* the value that the last layer has to give */

/* False if a column is called as some other value of the graph. */
bool onnx_table_check(const struct schema *schema, struct error *error);

/* From the columns to the first layer's sums, under the name `sums`. */
void onnx_table_inputs(struct proto *graph, const struct schema *schema, const struct model *model, const char *sums);

/* From the outputs of the last layer to the answers; threshold as in struct trained. */
void onnx_table_outputs(struct proto *graph, const struct schema *schema, double threshold);

#endif
