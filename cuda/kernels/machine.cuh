/*
 * What only the machine itself can do. Tests that run the kernels on a CPU (tests/cuda/fake) bring plain twins of these
 * few functions and leave this file out; everything else they run as it stands.
 */
#ifndef CUDA_KERNELS_MACHINE_CUH
#define CUDA_KERNELS_MACHINE_CUH

#include <stdint.h>

/* The block's dynamic shared memory. */
static __device__ __forceinline__ void *shared_memory()
{
    extern __shared__ float4 shared_floats[];
    return shared_floats;
}

/* Starts a copy of 16 bytes from global into shared memory, both aligned so; where there is no such engine, does it. */
static __device__ __forceinline__ void copy_start(void *shared, const void *global)
{
#if __CUDA_ARCH__ >= 800
    uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
#else
    *(uint4 *)shared = *(const uint4 *)global;
#endif
}

/* Waits for all copies that this thread has started. */
static __device__ __forceinline__ void copies_wait()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* One more has arrived; what the block's threads wrote before their barrier is seen by whoever sees this. */
static __device__ __forceinline__ void counter_arrive(uint32_t *counter)
{
    __threadfence();
    atomicAdd(counter, 1u);
}

/* Waits until so many have arrived. Counters go round: the difference decides. */
static __device__ __forceinline__ void counter_await(const uint32_t *counter, uint32_t wanted)
{
    while ((int32_t)(*(const volatile uint32_t *)counter - wanted) < 0) {
    }
    __threadfence();
}

#endif
