/*
 * With data_sharding chief: what the data are like, asked of worker 0 by a worker that has none, before it makes
 * anything whose size follows from them.
 */
#ifndef WORKER_REMOTE_DATA_SHAPE_H
#define WORKER_REMOTE_DATA_SHAPE_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"
#include "worker/dataset.h"

/* Must it be asked? Of pictures the config says enough, unless layers follow from them. */
bool data_shape_is_unknown(const struct config *config);

/*
 * Waits for worker 0. Fills in the layers and the loss that follow from the data, and of a table how rows become inputs
 * and what they look like; the dataset has no rows. False also if the process is asked to leave.
 */
bool data_shape_learn(struct dataset *dataset, struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error);

#endif
