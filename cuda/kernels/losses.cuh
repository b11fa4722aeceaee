/* Losses that are sums over outputs, and their slopes, of single outputs: as struct output_loss of base/kernels.h. */
#ifndef CUDA_KERNELS_LOSSES_CUH
#define CUDA_KERNELS_LOSSES_CUH

#include <math.h>

#include "cuda/kernels/params.h"

static __device__ __forceinline__ float sigmoid_loss(float smoothing, float z, float wanted, float *slope)
{
    const float target = wanted + smoothing * (0.5f - wanted);
    const float small = expf(-fabsf(z));
    *slope = (z < 0.0f ? small : 1.0f) / (1.0f + small) - target;
    return (z > 0.0f ? z : 0.0f) - z * target + log1pf(small);
}

/* Not inlined: it is long. */
inline __device__ __noinline__ float output_loss(const struct kernel_loss &loss, float z, float wanted, float *slope)
{
    const float e = z - wanted;
    const float size = fabsf(e);
    const float sign = (float)((e > 0.0f) - (e < 0.0f));
    switch (loss.kind) {
    case LOSS_SIGMOID:
        return sigmoid_loss(loss.smoothing, z, wanted, slope);
    case LOSS_MAE:
        *slope = sign;
        return size;
    case LOSS_HUBER:
        *slope = size < loss.huber_delta ? e : loss.huber_delta * sign;
        return size < loss.huber_delta ? 0.5f * e * e : loss.huber_delta * (size - 0.5f * loss.huber_delta);
    case LOSS_QUANTILE:
        *slope = e < 0.0f ? -loss.quantile : e > 0.0f ? 1.0f - loss.quantile : 0.0f;
        return e < 0.0f ? -loss.quantile * e : (1.0f - loss.quantile) * e;
    default: /* LOSS_MSE */
        *slope = 2.0f * e;
        return e * e;
    }
}

/* Is an output right? For yes or no, by its sign; other losses have no right answers. */
static __device__ __forceinline__ bool output_is_right(const struct kernel_loss &loss, float z, float wanted)
{
    return loss.kind == LOSS_SIGMOID && (z > 0.0f) == (wanted > 0.5f);
}

#endif
