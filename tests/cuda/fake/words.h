// CUDA's keywords and functions, as far as the kernels use them, for g++ -include: the real sources run on a CPU.
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
struct alignas(8) uint2 {
    uint32_t x, y;
};

static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline unsigned min(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

static inline int max(int a, int b)
{
    return a > b ? a : b;
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
    const char *all = fake_exchange(mask, &value, sizeof value);
    memcpy(&value, all + (threadIdx.x % 32 ^ static_cast<unsigned>(lanes)) * fake_lane_bytes, sizeof value);
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
template <class T> static inline T __ldg(const T *at)
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
static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
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

// Counterparts of cuda/kernels/machine.cuh.
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

constexpr bool TENSOR_CORES = true;
constexpr int LARGE_RESIDENT = 1;

// As the PTX ISA defines m16n8k8 for tf32, twice. Tensor cores ignore the bits of a number beyond its format: without
// rounding the result differs.
static inline void tensor_multiply(bool tf32, const float (&a)[8], const float (&b)[4], float (&sum)[4])
{
    struct {
        float a[8], b[4];
    } mine, other;
    static_assert(sizeof mine <= fake_lane_bytes, "fits");
    memcpy(mine.a, a, sizeof mine.a);
    memcpy(mine.b, b, sizeof mine.b);
    const char *all = fake_exchange(0xffffffffu, &mine, sizeof mine);
    const uint32_t kept = tf32 ? 0xffffe000u : 0xffff0000u;
    float rows[2][16], cols[2][16]; // of the four elements that this lane has
    for (unsigned quad = 0; quad < 4; quad++) {
        const unsigned group = threadIdx.x % 32 / 4;
        memcpy(&other, all + (4 * group + quad) * fake_lane_bytes, sizeof other);
        for (unsigned e = 0; e < 8; e++) {
            rows[e % 2][e / 4 * 8 + e / 2 % 2 * 4 + quad] = __uint_as_float(__float_as_uint(other.a[e]) & kept);
        }
        for (unsigned j = 0; j < 2; j++) {
            memcpy(&other, all + (4 * (threadIdx.x % 4 * 2 + j) + quad) * fake_lane_bytes, sizeof other);
            for (unsigned e = 0; e < 4; e++) {
                cols[j][e / 2 * 8 + e % 2 * 4 + quad] = __uint_as_float(__float_as_uint(other.b[e]) & kept);
            }
        }
    }
    for (unsigned e = 0; e < 4; e++) {
        for (unsigned l = 0; l < 16; l++) {
            sum[e] = __builtin_fmaf(rows[e / 2][l], cols[e % 2][l], sum[e]);
        }
    }
}

#endif
