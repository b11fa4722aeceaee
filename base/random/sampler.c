/* Whole batches; the inline part of the sampler, shared with CUDA, is in the header. */
#include "base/random/sampler.h"

#include <assert.h>

int sampler_draw(const struct sampler *sampler, int64_t step, int32_t *indexes)
{
    assert(sampler->examples > 0 && sampler->examples <= INT32_MAX && sampler->batch_size > 0 && step >= 0);
    int64_t batches = sampler_epoch_batches(sampler);
    struct sampler_order order;
    sampler_order_make(&order, sampler, step / batches);
    uint32_t first = (uint32_t)(step % batches * sampler->batch_size);
    uint32_t left = sampler->examples - first;
    uint32_t count = left < sampler->batch_size ? left : sampler->batch_size;
    for (uint32_t i = 0; i < count; i++) {
        indexes[i] = (int32_t)sampler_index(&order, first + i);
    }
    return (int)count;
}
