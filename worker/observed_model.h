/*
 * What a look into the model shows on the page of a run: weights of the first layer and the worst mistakes of pictures,
 * how much each column of a table weighs. Taken at validations, every few seconds at most; told when somebody asks.
 */
#ifndef WORKER_OBSERVED_MODEL_H
#define WORKER_OBSERVED_MODEL_H

#include "ps/store/model.h"
#include "worker/evaluate.h"

struct schema;

/*
 * evaluation: of these examples by this engine, just now; schema: of a table, or NULL. The training thread's; does
 * nothing while nobody can look.
 */
void observed_model(const struct evaluation *evaluation, struct engine *engine, const struct model *model,
                    const struct examples *examples, const struct schema *schema);

#endif
