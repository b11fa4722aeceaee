/*
 * Local steps that a worker takes from a shared model, and the resulting difference: the worker's half of a round
 * (train.local_steps; ps/store/rounds.h is the other half).
 *
 * A round begins with the parameters in the engine and a fresh optimizer, so that its result depends only on the model,
 * the config and the examples: a worker has no state that outlives a round. The learning rate is that of the round's
 * global step. At the end the difference between first and last parameters goes to a sink as a gradient, and the engine
 * has the first parameters again, since the shards' answers are changes of those.
 *
 * proximal_mu: each update also moves the parameters by learning rate x proximal_mu towards the round's first ones.
 * With sgd that is the gradient of the added term (Li et al., "Federated Optimization in Heterogeneous Networks", 2020:
 * FedProx); with other optimizers it is applied apart from the gradient, as weight_decay is.
 *
 * Memory: 4 bytes x floats x (2 + the optimizer's slots). One thread.
 */
#ifndef WORKER_LOCAL_STEPS_H
#define WORKER_LOCAL_STEPS_H

#include "base/config.h"
#include "base/error.h"
#include "worker/engine.h"

struct local_steps;

/* model and engine are borrowed. The engine's own optimizer is not used. */
struct local_steps *local_steps_create(const struct model *model, struct engine *engine,
                                       const struct config_train *train);
void local_steps_destroy(struct local_steps *steps); /* NULL is fine */

/* train: with the live keys that are in force now. */
bool local_steps_begin(struct local_steps *steps, const struct config_train *train, int64_t global_step,
                       struct error *error);

/* Takes one step and adds it to the result. A loss that is not finite changes nothing: result->finite says so. */
bool local_steps_take(struct local_steps *steps, const struct batch *batch, struct train_result *result,
                      struct error *error);

/* sink: NULL abandons the round. */
bool local_steps_end(struct local_steps *steps, const struct gradient_sink *sink, struct error *error);

#endif
