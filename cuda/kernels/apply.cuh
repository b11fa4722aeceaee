/*
 * Passes over the gradient of the whole network, for the cases where it cannot be applied as it is computed: clipping
 * by norm (worker/cpu/clip.h), which needs the whole gradient first, micro-batches, and gradients computed in parts.
 *
 * Each block handles one row: of a layer's weights, or its biases, which count as one more row.
 */
#ifndef CUDA_KERNELS_APPLY_CUH
#define CUDA_KERNELS_APPLY_CUH

#include "cuda/kernels/batch.cuh"
#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/machine.cuh"

struct gradient_row {
    uint64_t first; /* of its floats in the flat vector */
    int floats;
    bool weights;
    bool of_host; /* its parameters are on the host */
};

static __device__ __forceinline__ struct gradient_row row_of_block(const struct kernel_network &network)
{
    int row = blockIdx.x;
    int number = 0;
    while (row > network.layer[number].in) {
        row -= network.layer[number].in + 1;
        number++;
    }
    const struct kernel_layer &layer = network.layer[number];
    bool weights = row < layer.in;
    return {weights ? layer.weights + (uint64_t)row * layer.stride : layer.biases, layer.out, weights,
            (network.host_layers >> number & 1) != 0};
}

/* The gradient's norm, and from it the clipping factor; the last block to finish adds up. */
static __device__ __forceinline__ void measure_gradient(const struct kernel_network &network)
{
    double *scratch = (double *)shared_memory(); /* [KERNEL_WARP], then a flag */
    int *last = (int *)(scratch + KERNEL_WARP);
    struct kernel_progress *progress = network.progress;
    if (progress->stopped) {
        return;
    }
    const struct gradient_row row = row_of_block(network);
    double sum = 0.0;
#pragma unroll 2
    for (int n = threadIdx.x; n < row.floats; n += KERNEL_BLOCK_THREADS) {
        double value = network.gradient[row.first + n];
        sum += value * value;
    }
    sum = block_sum<KERNEL_BLOCK_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        network.squares[blockIdx.x] = sum;
        __threadfence();
        *last = atomicAdd(&progress->ticket, 1u) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (*last) {
        sum = 0.0;
#pragma unroll 2
        for (int i = threadIdx.x; i < (int)gridDim.x; i += KERNEL_BLOCK_THREADS) {
            sum += network.squares[i];
        }
        sum = block_sum<KERNEL_BLOCK_THREADS>(sum, scratch);
        if (threadIdx.x == 0) {
            double norm = sqrt(sum);
            progress->ticket = 0;
            progress->factor = norm <= network.clip_norm ? 1.0f : (float)(network.clip_norm / norm);
        }
    }
}

static __device__ __forceinline__ void apply_row(const struct kernel_network &network, int how, float weight)
{
    const struct kernel_progress &progress = *network.progress;
    if (progress.stopped) {
        return;
    }
    const struct gradient_row row = row_of_block(network);
    if (row.of_host && (how == APPLY_GRADIENT || how == APPLY_CLIPPED || how == APPLY_COLLECTED)) {
        return;
    }
    const struct update *update = network.updates + 2 * (progress.step - progress.first_step) + row.weights;
    const struct kernel_vectors &to = network.vectors;
    const bool clips = how != APPLY_GRADIENT && how != APPLY_PARTS && how != APPLY_COLLECTED;
    const float factor = clips ? progress.factor : 1.0f;
    const float *from = how == APPLY_COLLECTED ? network.collected : network.gradient;
#pragma unroll 1
    for (int n = threadIdx.x; n < row.floats; n += KERNEL_BLOCK_THREADS) {
        const uint64_t at = row.first + n;
        float g = factor * from[at];
#pragma unroll 4
        for (int part = 1; how == APPLY_PARTS && part < network.parts; part++) {
            g += from[part * network.part_floats + at];
        }
        if (how == CLIP_COLLECT_FIRST) {
            network.collected[at] = weight * g;
        } else if (how == CLIP_COLLECT) {
            network.collected[at] += weight * g;
        } else if (how == CLIP_IN_PLACE) {
            network.gradient[at] = g;
        } else {
            update_element(update, g, to.parameters, to.slot0, to.slot1, to.averages, at);
        }
    }
}

#endif
