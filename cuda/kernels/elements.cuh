/* Functions of single elements: activations and their derivatives, losses, dropout and the optimizers' update. */
#ifndef CUDA_KERNELS_ELEMENTS_CUH
#define CUDA_KERNELS_ELEMENTS_CUH

#include <math.h>

#include "base/config/kinds.h"
#include "cuda/kernels/params.h"
#include "ps/store/optimizer_math.h"

/* --- Activations --- */

#ifdef __CUDACC__
#define ACTIVATION_INLINE static __host__ __device__ __forceinline__
#else
#define ACTIVATION_INLINE static inline __attribute__((always_inline))
#endif

/* The formulas of base/kernels/kernels_reference.c; NaN stays NaN. */
ACTIVATION_INLINE float activate(int activation, float z)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return z < 0.0f ? 0.0f : z;
    case ACTIVATION_SIGMOID:
        return 1.0f / (1.0f + expf(-z));
    case ACTIVATION_TANH:
        return tanhf(z);
    default:
        return z;
    }
}

/* delta x f'(z), given a = f(z). */
ACTIVATION_INLINE float derive(int activation, float a, float delta)
{
    switch (activation) {
    case ACTIVATION_RELU:
        return a > 0.0f ? delta : 0.0f;
    case ACTIVATION_SIGMOID:
        return delta * (a * (1.0f - a));
    case ACTIVATION_TANH:
        return delta * (1.0f - a * a);
    default:
        return delta;
    }
}

/* --- Losses --- */

/* Losses that are sums over outputs, and their slopes, of single outputs: as struct output_loss of base/kernels.h. */

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

/* --- Pixels, dropout and updates --- */

/* Byte i of a word as a float, given FLOAT_2_23: inserted into the low bits of 2^23, which is then subtracted. */
static __device__ __forceinline__ float byte_of(uint32_t word, int i, uint32_t float_2_23)
{
    return __uint_as_float(__byte_perm(word, float_2_23, 0x7650u + i)) - 8388608.0f;
}

/* The dropout factor of a unit of hidden layer `layer`: 0, or the scale. Not inlined: it is long. */
inline __device__ __noinline__ float drop_factor(const struct dropout &dropout, uint32_t task, int64_t step, int layer,
                                                 int place, int unit)
{
    struct dropout_batch batch = {task, step};
    return dropout_drops(&dropout, &batch, layer, place, unit) ? 0.0f : dropout.scale;
}

/* Updates element `at` of all vectors. Not inlined: it contains every optimizer. */
inline __device__ __noinline__ void update_element(const struct update *shared, float g, float *parameters,
                                                   float *slot0, float *slot1, float *averages, uint64_t at)
{
    optimizer_element(shared, g, parameters, slot0, slot1, averages, at);
}

#endif
