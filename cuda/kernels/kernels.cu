/* The kernels' entry points, which the host finds by name; compiled into one fatbin. */
#include "cuda/kernels/batch.cuh"
#include "cuda/kernels/dense.cuh"
#include "cuda/kernels/sharded.cuh"

extern "C" __global__ void __launch_bounds__(KERNEL_BLOCK_THREADS)
    draw(const __grid_constant__ struct kernel_network network, const __grid_constant__ struct kernel_source source)
{
    draw_batch(network, source);
}

extern "C" __global__ void __launch_bounds__(KERNEL_BLOCK_THREADS)
    spread(const __grid_constant__ struct kernel_network network, const __grid_constant__ struct kernel_source source)
{
    spread_row(network, source);
}

extern "C" __global__ void __launch_bounds__(KERNEL_BLOCK_THREADS)
    loss(const __grid_constant__ struct kernel_network network, const __grid_constant__ struct kernel_source source)
{
    loss_batch(network, source);
}

extern "C" __global__ void __launch_bounds__(KERNEL_BLOCK_THREADS)
    measure(const __grid_constant__ struct kernel_network network)
{
    measure_gradient(network);
}

extern "C" __global__ void __launch_bounds__(KERNEL_BLOCK_THREADS)
    apply(const __grid_constant__ struct kernel_network network, int how, float weight)
{
    apply_row(network, how, weight);
}

#define DENSE_KERNELS(size)                                                                                            \
    extern "C" __global__ void __launch_bounds__(gemm_##size::THREADS, gemm_##size::RESIDENT)                          \
        forward_##size(const __grid_constant__ struct kernel_network network,                                          \
                       const __grid_constant__ struct kernel_source source, int number, int training)                  \
    {                                                                                                                  \
        forward_layer<gemm_##size>(network, source, number, training);                                                 \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(gemm_##size::THREADS, gemm_##size::RESIDENT)                          \
        delta_##size(const __grid_constant__ struct kernel_network network, int number)                                \
    {                                                                                                                  \
        delta_layer<gemm_##size>(network, number);                                                                     \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(gemm_##size::THREADS, gemm_##size::RESIDENT) gradient_##size(         \
        const __grid_constant__ struct kernel_network network, const __grid_constant__ struct kernel_source source,    \
        int number, int first, int parts, int mode, float weight)                                                      \
    {                                                                                                                  \
        gradient_layers<gemm_##size>(network, source, number, first, parts, mode, weight);                             \
    }

DENSE_KERNELS(small)
DENSE_KERNELS(medium)
DENSE_KERNELS(large)
DENSE_KERNELS(tensor)

extern "C" __global__ void __launch_bounds__(SHARD_THREADS, 1)
    train_sharded_4(const __grid_constant__ struct kernel_network network,
                    const __grid_constant__ struct kernel_source source,
                    const __grid_constant__ struct kernel_shards shards)
{
    train_sharded<4>(network, source, shards);
}

extern "C" __global__ void __launch_bounds__(SHARD_THREADS, 1)
    train_sharded_8(const __grid_constant__ struct kernel_network network,
                    const __grid_constant__ struct kernel_source source,
                    const __grid_constant__ struct kernel_shards shards)
{
    train_sharded<8>(network, source, shards);
}
