// CUDA's words and functions, as far as the kernels use them, for g++ -include: the true sources run on a CPU.
#ifndef TESTS_CUDA_FAKE_WORDS_H
#define TESTS_CUDA_FAKE_WORDS_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <stdint.h>

#include "tests/cuda/fake/grid.h"

using std::isfinite;

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (fake_here->thread)
#define blockIdx  (fake_here->block)
#define blockDim  (fake_here->block_dim)
#define gridDim   (fake_here->grid_dim)

struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};

static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static inline void __syncthreads()
{
    fake_barrier(0);
}
static inline int __syncthreads_or(int value)
{
    return fake_barrier(value);
}
static inline void __threadfence()
{
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = fake_shuffle_xor(mask, bits, lanes);
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class T> static inline T atomicAdd(T *at, T value)
{
    T before = *at;
    *at += value;
    return before;
}
template <class T> static inline T __ldcg(const T *at)
{
    return *at;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}
static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline long long __float2ll_rn(float value)
{
    return llrintf(value);
}
static inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
    uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
    uint32_t result = 0;
    for (int i = 0; i < 4; i++) {
        result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
    }
    return result;
}

// The twins of cuda/kernels/machine.cuh.
#define CUDA_KERNELS_MACHINE_CUH

static inline void *shared_memory()
{
    return fake_shared_memory();
}
static inline void copy_start(void *shared, const void *global)
{
    *static_cast<uint4 *>(shared) = *static_cast<const uint4 *>(global);
}
static inline void copies_wait()
{
}
static inline void counter_arrive(uint32_t *counter)
{
    ++*counter;
}
static inline void counter_await(const uint32_t *counter, uint32_t wanted)
{
    while (static_cast<int32_t>(*counter - wanted) < 0) {
        fake_yield();
    }
}

#endif
