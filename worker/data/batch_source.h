/*
 * What batches are drawn from: examples in memory, or those that stream from files. A batch is a function of seed, task
 * and step alone, so that engines, workers and the chief that draws for them agree on it, and so does a resumed run.
 *
 * One thread at a time. Memory: 4 bytes for each example of a batch, and the examples themselves where they stream.
 */
#ifndef WORKER_DATA_BATCH_SOURCE_H
#define WORKER_DATA_BATCH_SOURCE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/random/sampler.h"
#include "worker/data/examples.h"
#include "worker/data/streaming.h"
#include "worker/engine.h"

struct batch_source {
    const struct examples *examples; /* borrowed, as the next one */
    struct streaming *streaming;     /* where they come from if they are not in memory; else NULL */
    struct sampler sampler;          /* its task is the first one's, of who draws for several */
    int32_t *indexes;                /* [batch_size]; 0, 1, ... where they stream */
    struct examples streamed;        /* [batch_size] of them, where they stream; else zeros */
};

/* A source whose creation failed must be destroyed, too. */
bool batch_source_create(struct batch_source *source, const struct examples *examples, struct streaming *streaming,
                         const struct sampler *sampler, struct error *error);
void batch_source_destroy(struct batch_source *source); /* fine on zeros */

/*
 * Batch `step` of a task, which stays until the next one is drawn. Fails only where examples stream and can't be read
 * any more.
 */
bool batch_source_draw(struct batch_source *source, uint32_t task, int64_t step, struct batch *batch,
                       struct error *error);

#endif
