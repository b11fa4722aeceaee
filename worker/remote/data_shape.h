/*
 * With data_sharding chief: a worker without data asks worker 0 what the data are like, before it creates anything
 * whose size depends on them.
 */
#ifndef WORKER_REMOTE_DATA_SHAPE_H
#define WORKER_REMOTE_DATA_SHAPE_H

#include <stdbool.h>

#include "base/config.h"
#include "base/error.h"
#include "net/link.h"
#include "ps/identity.h"
#include "worker/dataset.h"

/* Is that necessary? For images the config is enough, unless layer widths follow from them. */
bool data_shape_is_unknown(const struct config *config);

/*
 * Waits for worker 0. Fills in the layers and the loss that follow from the data, and for a table how rows become
 * inputs and their format; the dataset has no rows. Also false if the process is told to stop.
 */
bool data_shape_learn(struct dataset *dataset, struct config *config, const struct identity *identity,
                      struct traffic *traffic, struct error *error);

#endif
