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

/* Pixels, 0..1, of a batch's images; the rows in memory are padded with zeros. */
struct images {
    typedef uint32_t packed; /* four pixels */
    const uint8_t *images;
    const int32_t *indexes;
    int stride, count, pixels;
    __device__ __forceinline__ int line(int i) const
    {
        return i < count ? indexes[i] : -1;
    }
    __device__ __forceinline__ packed load(int line, int at) const
    {
        return line >= 0 && at < pixels ? *(const uint32_t *)&images[(size_t)line * stride + at] : 0;
    }
    static __device__ __forceinline__ float4 unpack(packed four, int at)
    {
        const float scale = 1.0f / 255.0f;
        (void)at;
        return {byte_of(four, 0, FLOAT_2_23) * scale, byte_of(four, 1, FLOAT_2_23) * scale,
                byte_of(four, 2, FLOAT_2_23) * scale, byte_of(four, 3, FLOAT_2_23) * scale};
    }
};

struct images_by_row : images {
    enum { ALONG_DEPTH = true };
};

/*
 * The same transposed, with one more pixel that is always 1: the biases' input. It is 1 even for images that do not
 * exist, whose deltas are 0.
 */
struct images_by_pixel : images {
    enum { ALONG_DEPTH = false };
    __device__ __forceinline__ float4 unpack(packed four, int at) const
    {
        const int one = pixels - at;
        return images::unpack(four | (one >= 0 && one < 4 ? 255u << 8 * one : 0u), at);
    }
};

/* A matrix of floats; `cols` is less than the stride only by padding. */
struct float_matrix {
    typedef float4 packed;
    const float *values;
    int stride, rows, cols;
    __device__ __forceinline__ int line(int i) const
    {
        return i < rows ? i : -1;
    }
    __device__ __forceinline__ packed load(int line, int at) const
    {
        float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
        if (line >= 0 && at < cols) {
            four = *(const float4 *)&values[(size_t)line * stride + at];
        }
        return four;
    }
    __device__ __forceinline__ float4 unpack(packed four, int at) const
    {
        if (at + 4 > cols) {
            four.x = at < cols ? four.x : 0.0f;
            four.y = at + 1 < cols ? four.y : 0.0f;
            four.z = at + 2 < cols ? four.z : 0.0f;
            four.w = 0.0f;
        }
        return four;
    }
};

/* Its rows are the product's rows (a) or columns (b). */
struct matrix_by_row : float_matrix {
    enum { ALONG_DEPTH = true };
};

/* Its rows are the product's depth. */
struct matrix_by_depth : float_matrix {
    enum { ALONG_DEPTH = false };
};

/* The same, with one more column that is always 1. */
struct matrix_and_one : float_matrix {
    enum { ALONG_DEPTH = false };
    __device__ __forceinline__ float4 unpack(packed four, int at) const
    {
        four = float_matrix::unpack(four, at);
        if (at <= cols && at + 4 > cols) {
            four.x = at == cols ? 1.0f : four.x;
            four.y = at + 1 == cols ? 1.0f : four.y;
            four.z = at + 2 == cols ? 1.0f : four.z;
            four.w = at + 3 == cols ? 1.0f : four.w;
        }
        return four;
    }
};

/* Images or a matrix, chosen at run time: one product instead of two halves the code. */
template <class Images, class Matrix> struct either {
    enum { ALONG_DEPTH = Images::ALONG_DEPTH };
    static_assert((int)Images::ALONG_DEPTH == (int)Matrix::ALONG_DEPTH, "threads must walk both alike");
    typedef float4 packed; /* images: in x */
    bool has_images;
    Images images;
    Matrix matrix;
    __device__ __forceinline__ int line(int i) const
    {
        return has_images ? images.line(i) : matrix.line(i);
    }
    __device__ __forceinline__ packed load(int line, int at) const
    {
        return has_images ? float4{__uint_as_float(images.load(line, at)), 0.0f, 0.0f, 0.0f} : matrix.load(line, at);
    }
    __device__ __forceinline__ float4 unpack(packed four, int at) const
    {
        return has_images ? images.unpack(__float_as_uint(four.x), at) : matrix.unpack(four, at);
    }
};

/* --- forward --- */

/* Applied to a layer's sums: bias, activation, dropout. */
struct forward_finish {
    enum { AHEAD = 1 };
    const struct kernel_network *network;
    int number;
    bool training;
    uint32_t task;
    int64_t step;
    __device__ __forceinline__ float read(int, int n) const
    {
        return network->vectors.parameters[network->layer[number].biases + n];
    }
    __device__ __forceinline__ void operator()(int m, int n, float c, float bias) const
    {
        const struct kernel_layer &layer = network->layer[number];
        size_t at = (size_t)m * layer.pitch + n;
        float z = c + bias;
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
    const struct matrix_by_depth weights = {
        {network.vectors.parameters + layer.weights, layer.stride, layer.in, layer.out}};
    const struct gemm_depth depth = {0, layer.in};
    const float *floats = training ? layer.below_trained : layer.below;
    if constexpr (S::TENSOR) {
        const struct either<images_by_row, matrix_by_row> below = {
            floats == nullptr, {{source.images, network.indexes, network.image_stride, count, layer.in}},
            {
                {
                    floats, layer.below_pitch, count, layer.in
                }
            }
        };
        product_tile<S>(network.precision, {row, col}, count, layer.out, depth, below, weights, finish);
    } else if (floats == nullptr) {
        const struct images_by_row below = {{source.images, network.indexes, network.image_stride, count, layer.in}};
        product_tile<S>(network.precision, {row, col}, count, layer.out, depth, below, weights, finish);
    } else {
        const struct matrix_by_row below = {{floats, layer.below_pitch, count, layer.in}};
        product_tile<S>(network.precision, {row, col}, count, layer.out, depth, below, weights, finish);
    }
}

/* --- backward --- */

/* From gradients of a layer's outputs to those of its pre-activations. */
struct delta_finish {
    enum { AHEAD = 2 };
    const struct kernel_network *network;
    int number;
    uint32_t task;
    int64_t step;
    __device__ __forceinline__ float read(int m, int n) const
    {
        const struct kernel_layer &layer = network->layer[number];
        return __ldg(&layer.activations[(size_t)m * layer.pitch + n]);
    }
    __device__ __forceinline__ void operator()(int m, int n, float c, float activation) const
    {
        const struct kernel_layer &layer = network->layer[number];
        size_t at = (size_t)m * layer.pitch + n;
        if (network->dropout.threshold > 0) {
            c *= drop_factor(network->dropout, task, step, number, m, n);
        }
        layer.deltas[at] = derive(network->activation, activation, c);
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
    const struct matrix_by_row deltas = {{above.deltas, above.pitch, count, above.out}};
    const struct matrix_by_row weights = {
        {network.vectors.parameters + above.weights, above.stride, above.in, above.out}};
    product_tile<S>(network.precision, {row, col}, count, above.in, {0, above.out}, deltas, weights, finish);
}

/* --- gradients --- */

/* Row `in` of a layer's gradient belongs to its biases. */
struct gradient_finish {
    enum { AHEAD = 1 };
    const struct kernel_network *network;
    const struct kernel_layer *layer;
    const struct update *updates; /* of this step: biases, weights */
    float *gradient;              /* the network's, or one of its parts */
    int mode;
    float weight;
    __device__ __forceinline__ float read(int, int) const
    {
        return 0.0f;
    }
    __device__ __forceinline__ void operator()(int m, int n, float c, float) const
    {
        bool bias = m == layer->in;
        uint64_t at = bias ? layer->biases + n : layer->weights + (uint64_t)m * layer->stride + n;
        if (mode == GRADIENT_UPDATE) {
            const struct kernel_vectors &to = network->vectors;
            update_element(&updates[!bias], c, to.parameters, to.slot0, to.slot1, to.averages, at);
        } else if (mode == GRADIENT_STORE) {
            gradient[at] = weight * c;
        } else {
            gradient[at] += weight * c;
        }
    }
};

/* Tile `tile` of the gradient of a layer's weights and biases, from one of several parts of the batch. */
template <class S>
static __device__ __forceinline__ void gradient_tile(const struct kernel_network &network,
                                                     const struct kernel_source &source, int number, int tile, int part,
                                                     int parts, int mode, float weight)
{
    const struct kernel_progress &progress = *network.progress;
    const struct kernel_layer &layer = network.layer[number];
    const int count = progress.count;
    const int across = tiles_along(layer.out, S::COLS);
    const int row = tile / across * S::ROWS;
    const int col = tile % across * S::COLS;
    const int share = tiles_along(count, parts * S::DEPTH) * S::DEPTH;
    const struct gemm_depth depth = {min(part * share, count), min((part + 1) * share, count)};
    const struct update *updates =
        mode == GRADIENT_UPDATE ? network.updates + 2 * (progress.step - progress.first_step) : nullptr;
    float *gradient = network.gradient + part * network.part_floats;
    const struct gradient_finish finish = {&network, &layer, updates, gradient, mode, weight};
    const struct matrix_by_depth deltas = {{layer.deltas, layer.pitch, count, layer.out}};
    const float *floats = layer.below_trained;
    if constexpr (S::TENSOR) {
        const struct either<images_by_pixel, matrix_and_one> below = {
            floats == nullptr, {{source.images, network.indexes, network.image_stride, count, layer.in}},
            {
                {
                    floats, layer.below_pitch, count, layer.in
                }
            }
        };
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, depth, below, deltas, finish);
    } else if (floats == nullptr) {
        const struct images_by_pixel below = {{source.images, network.indexes, network.image_stride, count, layer.in}};
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, depth, below, deltas, finish);
    } else {
        const struct matrix_and_one below = {{floats, layer.below_pitch, count, layer.in}};
        product_tile<S>(network.precision, {row, col}, layer.in + 1, layer.out, depth, below, deltas, finish);
    }
}

/*
 * Tiles from `first` on of all layers from `number` on, by `parts` blocks of the grid each; if there are several, the
 * parts of the gradient are to be stored, and added up later (APPLY_PARTS).
 */
template <class S>
static __device__ __forceinline__ void gradient_layers(const struct kernel_network &network,
                                                       const struct kernel_source &source, int number, int first,
                                                       int parts, int mode, float weight)
{
    if (network.progress->stopped) {
        return;
    }
    int tile = first + (int)blockIdx.x / parts;
    for (; number < network.layers; number++) {
        const struct kernel_layer &layer = network.layer[number];
        int tiles = tiles_along(layer.in + 1, S::ROWS) * tiles_along(layer.out, S::COLS);
        if (tile < tiles) {
            gradient_tile<S>(network, source, number, tile, (int)blockIdx.x % parts, parts, mode, weight);
            return;
        }
        tile -= tiles;
    }
}

#endif
