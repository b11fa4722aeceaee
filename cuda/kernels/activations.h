/* Activations and their derivatives of single elements, shared by C and CUDA. */
#ifndef CUDA_KERNELS_ACTIVATIONS_H
#define CUDA_KERNELS_ACTIVATIONS_H

#include <math.h>

#include "base/config/kinds.h"

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

#endif
