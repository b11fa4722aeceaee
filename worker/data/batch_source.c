/* Streaming examples are copied out of their window, one after another; of those in memory, only indexes. */
#include "worker/data/batch_source.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

bool batch_source_create(struct batch_source *source, const struct examples *examples, struct streaming *streaming,
                         const struct sampler *sampler, struct error *error)
{
    const uint32_t size = sampler->batch_size;
    *source = (struct batch_source){.examples = examples, .streaming = streaming, .sampler = *sampler};
    source->indexes = must_zero(size, sizeof *source->indexes, "batches: choose a smaller --batch_size");
    for (uint32_t i = 0; streaming && i < size; i++) {
        source->indexes[i] = (int32_t)i;
    }
    return !streaming || streaming_create_batch(streaming, &source->streamed, error);
}

void batch_source_destroy(struct batch_source *source)
{
    free(source->indexes);
    examples_free(&source->streamed);
    memset(source, 0, sizeof *source);
}

bool batch_source_draw(struct batch_source *source, uint32_t task, int64_t step, struct batch *batch,
                       struct error *error)
{
    *batch = (struct batch){.examples = source->examples, .indexes = source->indexes, .task = task, .step = step};
    if (source->streaming) {
        batch->examples = &source->streamed;
        if (!streaming_draw(source->streaming, task, step, &source->streamed, error)) {
            return false;
        }
        batch->count = source->streamed.count;
        return true;
    }
    struct sampler sampler = source->sampler;
    sampler.task = task;
    batch->count = sampler_draw(&sampler, step, source->indexes);
    return true;
}
