/* What each row counts in the loss: by a column of the table, by its class, or both. */
#ifndef WORKER_DATA_TABLE_WEIGHTS_H
#define WORKER_DATA_TABLE_WEIGHTS_H

#include <stdbool.h>

#include "base/error.h"
#include "worker/data/examples.h"
#include "worker/data/table/schema.h"

/*
 * class_weights: "" for none, "balanced" (rows / (classes x rows of the class), as scikit-learn's), or
 * "name:weight,..." with 1 for classes that are not named. They apply to the rows behind the first `held_out`, which
 * are trained on. Then all weights are scaled to a mean of 1 over those. name: of the data, for errors.
 */
bool weights_settle(struct examples *examples, int held_out, const struct schema *schema, const char *class_weights,
                    const char *name, struct error *error);

#endif
