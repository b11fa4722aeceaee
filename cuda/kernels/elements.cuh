/* Functions of single elements: dropout and the optimizers' update. */
#ifndef CUDA_KERNELS_ELEMENTS_CUH
#define CUDA_KERNELS_ELEMENTS_CUH

#include "cuda/kernels/activations.h"
#include "cuda/kernels/params.h"
#include "ps/store/optimizer_math.h"

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
