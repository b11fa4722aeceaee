/*
 * The passes through a network of any depth and width, one kernel per layer and direction.
 *
 * Each comes in three tile sizes and for tensor cores; the host chooses. Forward and backward kernels do nothing once
 * the call has been stopped. Images are read as bytes wherever needed, and never stored as floats.
 */
#ifndef CUDA_KERNELS_DENSE_CUH
#define CUDA_KERNELS_DENSE_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/tensor.cuh"

/* --- operands --- */

/* Rows of a batch's images by columns of pixels, 0..1. */
struct images_by_row {
    enum { ALONG_DEPTH = true };
    const uint8_t *images;
    const int32_t *indexes;
    int stride, count, pixels;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        return m < count && l < pixels ? (float)images[(size_t)indexes[m] * stride + l] * (1.0f / 255.0f) : 0.0f;
    }
};

/* The same transposed, with one more pixel that is always 1: the biases' input. */
struct images_by_pixel {
    enum { ALONG_DEPTH = false };
    const uint8_t *images;
    const int32_t *indexes;
    int stride, count, pixels;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        if (l >= count || m >= pixels) {
            return l < count && m == pixels ? 1.0f : 0.0f;
        }
        return (float)images[(size_t)indexes[l] * stride + m] * (1.0f / 255.0f);
    }
};

/* A matrix whose rows are the product's rows (a) or columns (b). */
struct matrix_by_row {
    enum { ALONG_DEPTH = true };
    const float *values;
    int stride, rows, cols;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        return m < rows && l < cols ? values[(size_t)m * stride + l] : 0.0f;
    }
};

/* A matrix whose rows are the product's depth. */
struct matrix_by_depth {
    enum { ALONG_DEPTH = false };
    const float *values;
    int stride, rows, cols;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        return l < rows && m < cols ? values[(size_t)l * stride + m] : 0.0f;
    }
};

/* The same, with one more column that is always 1. */
struct matrix_and_one {
    enum { ALONG_DEPTH = false };
    const float *values;
    int stride, rows, cols;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        if (l >= rows || m >= cols) {
            return l < rows && m == cols ? 1.0f : 0.0f;
        }
        return values[(size_t)l * stride + m];
    }
};

/* One of two operands, chosen at run time: one product instead of two halves the code. */
template <class First, class Second> struct either {
    enum { ALONG_DEPTH = First::ALONG_DEPTH };
    static_assert((int)First::ALONG_DEPTH == (int)Second::ALONG_DEPTH, "threads must walk both alike");
    bool is_first;
    First first;
    Second second;
    __device__ __forceinline__ float operator()(int m, int l) const
    {
        return is_first ? first(m, l) : second(m, l);
    }
};

/* --- forward --- */

/* Applied to a layer's sums: bias, activation, dropout. */
struct forward_finish {
    const struct kernel_network *network;
    int number;
    bool training;
    uint32_t task;
    int64_t step;
    __device__ __forceinline__ void operator()(int m, int n, float c) const
    {
        const struct kernel_layer &layer = network->layer[number];
        size_t at = (size_t)m * layer.pitch + n;
        float z = c + network->vectors.parameters[layer.biases + n];
        if (number + 1 == network->layers) {
            layer.activations[at] = z;
            return;
        }
        float a = activate(network->activation, z);
        layer.activations[at] = a;
        if (training && network->dropout.threshold > 0) {
            layer.outputs[at] = a * drop_factor(network->dropout, task, step, number, m, n);
        }
    }
};

template <class S>
static __device__ __forceinline__ void forward_layer(const struct kernel_network &network,
                                                     const struct kernel_source &source, int number, int training)
{
    const struct kernel_progress &progress = *network.progress;
    if (progress.stopped) {
        return;
    }
    const struct kernel_layer &layer = network.layer[number];
    const int count = progress.count;
    const int across = tiles_along(layer.out, S::COLS);
    const int row = blockIdx.x / across * S::ROWS;
    const int col = blockIdx.x % across * S::COLS;
    if (row >= count) {
        return;
    }
    const struct forward_finish finish = {&network, number, training != 0, progress.task, progress.step};
    const struct matrix_by_depth weights = {network.vectors.parameters + layer.weights, layer.stride, layer.in,
                                            layer.out};
    const float *floats = training ? layer.below_trained : layer.below;
    if constexpr (S::TENSOR) {
        const struct either<images_by_row, matrix_by_row> below = {
            floats == nullptr, {source.images, network.indexes, network.image_stride, count, layer.in},
            {
                floats, layer.below_pitch, count, layer.in
            }
        };
        product_tile<S>(network.precision, {row, col}, count, layer.out, layer.in, below, weights, finish);
    } else if (floats == nullptr) {
        const struct images_by_row below = {source.images, network.indexes, network.image_stride, count, layer.in};
        product_tile<S>(network.precision, {row, col}, count, layer.out, layer.in, below, weights, finish);
    } else {
        const struct matrix_by_row below = {floats, layer.below_pitch, count, layer.in};
        product_tile<S>(network.precision, {row, col}, count, layer.out, layer.in, below, weights, finish);
    }
}

/* --- backward --- */

/* From gradients of a layer's outputs to those of its pre-activations. */
struct delta_finish {
    const struct kernel_network *network;
    int number;
    uint32_t task;
    int64_t step;
    __device__ __forceinline__ void operator()(int m, int n, float c) const
    {
        const struct kernel_layer &layer = network->layer[number];
        size_t at = (size_t)m * layer.pitch + n;
        if (network->dropout.threshold > 0) {
            c *= drop_factor(network->dropout, task, step, number, m, n);
        }
        layer.deltas[at] = derive(network->activation, layer.activations[at], c);
    }
};

/* The deltas of hidden layer `number`, from those of the layer above. */
template <class S> static __device__ __forceinline__ void delta_layer(const struct kernel_network &network, int number)
{
    const struct kernel_progress &progress = *network.progress;
    if (progress.stopped) {
        return;
    }
    const struct kernel_layer &above = network.layer[number + 1];
    const int count = progress.count;
    const int across = tiles_along(above.in, S::COLS);
    const int row = blockIdx.x / across * S::ROWS;
    const int col = blockIdx.x % across * S::COLS;
    if (row >= count) {
        return;
    }
    const struct delta_finish finish = {&network, number, progress.task, progress.step};
    const struct matrix_by_row deltas = {above.deltas, above.pitch, count, above.out};
    const struct matrix_by_row weights = {network.vectors.parameters + above.weights, above.stride, above.in,
                                          above.out};
    product_tile<S>(network.precision, {row, col}, count, above.in, above.out, deltas, weights, finish);
}

/* --- gradients --- */

/* Row `in` of a layer's gradient belongs to its biases. */
struct gradient_finish {
    const struct kernel_network *network;
    const struct kernel_layer *layer;
    const struct update *updates; /* of this step: biases, weights */
    int mode;
    float weight;
    __device__ __forceinline__ void operator()(int m, int n, float c) const
    {
        bool bias = m == layer->in;
        uint64_t at = bias ? layer->biases + n : layer->weights + (uint64_t)m * layer->stride + n;
        if (mode == GRADIENT_UPDATE) {
            const struct kernel_vectors &to = network->vectors;
            update_element(&updates[!bias], c, to.parameters, to.slot0, to.slot1, to.averages, at);
        } else if (mode == GRADIENT_STORE) {
            network->gradient[at] = weight * c;
        } else {
            network->gradient[at] += weight * c;
        }
    }
};

/* Tile `tile` of the gradient of a layer's weights and biases. */
template <class S>
static __device__ __forceinline__ void gradient_tile(const struct kernel_network &network,
                                                     const struct kernel_source &source, int number, int tile, int mode,
                                                     float weight)
{
    const struct kernel_progress &progress = *network.progress;
    const struct kernel_layer &layer = network.layer[number];
    const int count = progress.count;
    const int across = tiles_along(layer.out, S::COLS);
    const int row = tile / across * S::ROWS;
    const int col = tile % across * S::COLS;
    const struct update *updates =
        mode == GRADIENT_UPDATE ? network.updates + 2 * (progress.step - progress.first_step) : nullptr;
    const struct gradient_finish finish = {&network, &layer, updates, mode, weight};
    const struct matrix_by_depth deltas = {layer.deltas, layer.pitch, count, layer.out};
    const float *floats = layer.below_trained;
    if constexpr (S::TENSOR) {
        const struct either<images_by_pixel, matrix_and_one> below = {
            floats == nullptr, {source.images, network.indexes, network.image_stride, count, layer.in},
            {
                floats, layer.below_pitch, count, layer.in
            }
        };
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, count, below, deltas, finish);
    } else if (floats == nullptr) {
        const struct images_by_pixel below = {source.images, network.indexes, network.image_stride, count, layer.in};
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, count, below, deltas, finish);
    } else {
        const struct matrix_and_one below = {floats, layer.below_pitch, count, layer.in};
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, count, below, deltas, finish);
    }
}

/* Tiles [first, first + blocks) of all layers from `number` on, one per block of the grid. */
template <class S>
static __device__ __forceinline__ void gradient_layers(const struct kernel_network &network,
                                                       const struct kernel_source &source, int number, int first,
                                                       int mode, float weight)
{
    if (network.progress->stopped) {
        return;
    }
    int tile = first + blockIdx.x;
    for (; number < network.layers; number++) {
        const struct kernel_layer &layer = network.layer[number];
        int tiles = tiles_along(layer.in + 1, S::ROWS) * tiles_along(layer.out, S::COLS);
        if (tile < tiles) {
            gradient_tile<S>(network, source, number, tile, mode, weight);
            return;
        }
        tile -= tiles;
    }
}

#endif
