/*
 * Hardware-specific functions. Tests that run the kernels on a CPU (tests/cuda/fake) replace this file with plain
 * versions of these few functions and run everything else unchanged.
 */
#ifndef CUDA_KERNELS_MACHINE_CUH
#define CUDA_KERNELS_MACHINE_CUH

#include <stdint.h>

#include "cuda/kernels/params.h"

/* The block's dynamic shared memory. */
static __device__ __forceinline__ void *shared_memory()
{
    extern __shared__ float4 shared_floats[];
    return shared_floats;
}

/* Starts an asynchronous copy of 16 aligned bytes from global to shared memory; on older GPUs, copies them at once. */
static __device__ __forceinline__ void copy_start(void *shared, const void *global)
{
#if __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}

/* Waits for all copies started by this thread. */
static __device__ __forceinline__ void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* One more block has arrived; who sees this also sees what its threads wrote before their barrier. */
static __device__ __forceinline__ void counter_arrive(uint32_t *counter)
{
    asm volatile("red.release.gpu.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/* Waits until that many have arrived. Counters wrap around, so the difference decides. */
static __device__ __forceinline__ void counter_await(const uint32_t *counter, uint32_t wanted)
{
    uint32_t arrived;
    do {
        asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
    } while ((int32_t)(arrived - wanted) < 0);
}

/* Blocks with the largest tiles per multiprocessor; compilers for the newest need too many registers for two. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
constexpr int LARGE_RESIDENT = 1;
#else
constexpr int LARGE_RESIDENT = 2;
#endif

/* Whether there are tensor cores for tf32 and bfloat16. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
constexpr bool TENSOR_CORES = true;
#else
constexpr bool TENSOR_CORES = false;
#endif

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

static __device__ __forceinline__ void tensor_multiply_tf32(const float *a, const float *b, float (&sum)[4])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}

/* The upper halves of two floats, that is, their bfloat16 values. */
static __device__ __forceinline__ uint32_t tensor_pair(float low, float high)
{
    return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632u);
}

#endif

/*
 * sum += a x b by a warp, of numbers rounded beforehand (excess bits are dropped): a [16, 16],
 * b [16, 8]. With group = lane / 4 and quad = lane % 4, a lane brings for each half of the depth (h = 0, 1)
 *     a[4 * h + 0, 1, 2, 3]: rows group, group + 8, group, group + 8 at depth 8 * h + quad, the same, + 4, the same
 *     b[2 * h + 0, 1]: column group, at depth 8 * h + quad and 8 * h + quad + 4
 * and has sum[0..3]: row group, columns 2 * quad and 2 * quad + 1; row group + 8, the same. That is the layout of the
 * PTX ISA's m16n8k8 for tf32, twice. bfloat16 has one instruction for the whole depth, which takes pairs of neighbours;
 * it gets pairs that are 4 apart, in both operands, which only changes the order of the sum.
 */
static __device__ __forceinline__ void tensor_multiply(bool tf32, const float (&a)[8], const float (&b)[4],
                                                       float (&sum)[4])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    if (tf32) {
        tensor_multiply_tf32(a, b, sum);
        tensor_multiply_tf32(a + 4, b + 2, sum);
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(tensor_pair(a[0], a[2])), "r"(tensor_pair(a[1], a[3])), "r"(tensor_pair(a[4], a[6])),
              "r"(tensor_pair(a[5], a[7])), "r"(tensor_pair(b[0], b[1])), "r"(tensor_pair(b[2], b[3])));
    }
#else
    (void)tf32, (void)a, (void)b, (void)sum;
#endif
}

#endif
