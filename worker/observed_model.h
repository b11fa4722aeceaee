/*
 * The views into the model on the page of a run: for pictures the first layer's weights and the worst mistakes, for
 * tables each column's weight; how often which class is taken for which. Taken at validations, at most every few seconds; served on request.
 */
#ifndef WORKER_OBSERVED_MODEL_H
#define WORKER_OBSERVED_MODEL_H

#include "ps/store/model.h"
#include "worker/evaluate.h"

struct schema;

/*
 * evaluation: of these examples by this engine, just now; schema: of a table, or NULL. Training thread only; does
 * nothing while observation is off.
 */
void observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                    const struct examples *examples, const struct schema *schema, int64_t global_step);

#endif
