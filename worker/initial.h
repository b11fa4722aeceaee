/* Where a new run begins: at what the initializer draws, or at another run's parameters (train.warm_start). */
#ifndef WORKER_INITIAL_H
#define WORKER_INITIAL_H

#include <stdbool.h>
#include <stddef.h>

#include "base/config.h"
#include "base/error.h"
#include "ps/store/model.h"

/*
 * Fills values [model->float_count] with a new run's parameters; slots, averages and steps are the caller's, and begin
 * anew. source: in words, for logs. Fails if train.warm_start names no good checkpoint, or one of another model: then
 * the error says what differs.
 */
bool initial_parameters(const struct config *config, const struct model *model, float *values, char *source,
                        size_t source_size, struct error *error);

#endif
