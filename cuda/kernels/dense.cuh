/*
 * The passes through a network of any depth and width, one kernel per layer and direction.
 *
 * Each comes in three tile sizes and for tensor cores; the host chooses. Forward and backward kernels do nothing once
 * the call has been stopped. Images are read as bytes wherever needed, and never stored as floats.
 */
#ifndef CUDA_KERNELS_DENSE_CUH
#define CUDA_KERNELS_DENSE_CUH

#include "cuda/kernels/elements.cuh"
#include "cuda/kernels/machine.cuh"
#include "cuda/kernels/params.h"

/* --- Products in float32 --- */

/*
 * One tile of a matrix product by one thread block, in float32, with every sum in a fixed order.
 *
 * c(m, n) = sum over l in depth of a(m, l) x b(l, n). The depth is cut into SLICES parts, which groups of threads sum
 * in parallel and then add in order: small products have too few tiles to fill a GPU. Results pass through shared
 * memory to `finish` row by row, so that its code is compiled once and its stores coalesce.
 *
 * An operand is read in packed groups of four neighbours in memory. ALONG_DEPTH: they differ in l, not in m or n.
 * line(i) is the row in memory of row i of the matrix, -1 if there is none. load(line, at) reads places at..at + 3 of
 * it, and must not look at what it reads, as that would wait for it: the product of the turn before is computed
 * meanwhile. unpack(packed, at) then makes floats of them, 0 outside the matrix, so that any size works.
 */

template <int ROWS_, int COLS_, int DEPTH_, int TILE_, int SLICES_> struct gemm_shape {
    static constexpr bool TENSOR = false;
    static constexpr int ROWS = ROWS_;
    static constexpr int COLS = COLS_;
    static constexpr int DEPTH = DEPTH_; /* of the part in shared memory at once */
    static constexpr int TILE = TILE_;   /* a thread's own rows and columns: 4 or 8 */
    static constexpr int SLICES = SLICES_;
    static constexpr int GROUP = ROWS / TILE * (COLS / TILE); /* threads that share a slice */
    static constexpr int THREADS = GROUP * SLICES;
    /* Minimum blocks per multiprocessor: limits the registers. */
    static constexpr int RESIDENT = TILE == 4 ? 2 : LARGE_RESIDENT;
    static constexpr int A_PITCH = ROWS + 4;
    static constexpr int B_PITCH = COLS + 4;
    static constexpr int PARTS = TILE / 4; /* groups of four rows per thread */
    static constexpr int PART_ROWS = ROWS / PARTS;
    static constexpr int SLICE_FLOATS = DEPTH * (A_PITCH + B_PITCH); /* of one slice, of one of two buffers */
    static constexpr int STAGE_FLOATS = PART_ROWS * COLS;            /* of one slice's results, for output */
    static constexpr int FLOATS = SLICES * (2 * SLICE_FLOATS > STAGE_FLOATS ? 2 * SLICE_FLOATS : STAGE_FLOATS);
    static constexpr int BYTES = FLOATS * 4;
};

/* No more shared memory than every GPU provides by default. */
typedef gemm_shape<KERNEL_SMALL_TILE, KERNEL_SMALL_TILE, 16, 4, 4> gemm_small;
typedef gemm_shape<KERNEL_MEDIUM_TILE, KERNEL_MEDIUM_TILE, 16, 4, 1> gemm_medium;
typedef gemm_shape<KERNEL_LARGE_TILE, KERNEL_LARGE_TILE, 8, 8, 1> gemm_large;
static_assert(gemm_small::THREADS == KERNEL_BLOCK_THREADS && gemm_small::BYTES == KERNEL_SMALL_BYTES, "as promised");
static_assert(gemm_medium::THREADS == KERNEL_BLOCK_THREADS && gemm_medium::BYTES == KERNEL_MEDIUM_BYTES, "as promised");
static_assert(gemm_large::THREADS == KERNEL_BLOCK_THREADS && gemm_large::BYTES == KERNEL_LARGE_BYTES, "as promised");

/* Positions [begin, end) in the depth of a product; begin is a multiple of 4, unless there are none. */
struct gemm_depth {
    int begin, end;
};

/* A piece of an operand, moved through registers into shared memory [depth, width]. */
template <class S, class Operand, int WIDTH, int PITCH> struct gemm_piece {
    static constexpr int GROUPS = WIDTH * S::DEPTH / 4 / S::GROUP;
    static_assert(GROUPS * 4 * S::GROUP == WIDTH * S::DEPTH, "every thread loads the same amount");
    typename Operand::packed value[GROUPS];
    int line[GROUPS]; /* of the next load: known a turn ahead, as an image's takes a load of its own */

    static __device__ __forceinline__ void place(int i, int thread, int &w, int &l)
    {
        int e = i * S::GROUP + thread;
        l = Operand::ALONG_DEPTH ? e % (S::DEPTH / 4) * 4 : e / (WIDTH / 4);
        w = Operand::ALONG_DEPTH ? e / (S::DEPTH / 4) : e % (WIDTH / 4) * 4;
    }

    /* The lines of the first piece; w: of the operand's rows or columns, l: in the depth. */
    __device__ __forceinline__ void begin(const Operand &operand, int thread, int first_w, int first_l, int end_l)
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            int w, l;
            place(i, thread, w, l);
            line[i] = Operand::ALONG_DEPTH  ? operand.line(first_w + w)
                      : first_l + l < end_l ? operand.line(first_l + l)
                                            : -1;
        }
    }

    __device__ __forceinline__ void load(const Operand &operand, int thread, int first_w, int first_l, int end_l)
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            int w, l;
            place(i, thread, w, l);
            if (Operand::ALONG_DEPTH) {
                value[i] = operand.load(first_l + l < end_l ? line[i] : -1, first_l + l);
            } else {
                value[i] = operand.load(line[i], first_w + w);
                line[i] = first_l + S::DEPTH + l < end_l ? operand.line(first_l + S::DEPTH + l) : -1;
            }
        }
    }

    /* first_w, first_l: as of the load. */
    template <class Round>
    __device__ __forceinline__ void store(const Operand &operand, float *shared, int thread, int first_w, int first_l,
                                          const Round &round) const
    {
#pragma unroll
        for (int i = 0; i < GROUPS; i++) {
            int w, l;
            place(i, thread, w, l);
            float4 four = operand.unpack(value[i], Operand::ALONG_DEPTH ? first_l + l : first_w + w);
            four = {round(four.x), round(four.y), round(four.z), round(four.w)};
            if (Operand::ALONG_DEPTH) {
                shared[l * PITCH + w] = four.x;
                shared[(l + 1) * PITCH + w] = four.y;
                shared[(l + 2) * PITCH + w] = four.z;
                shared[(l + 3) * PITCH + w] = four.w;
            } else {
                *(float4 *)&shared[l * PITCH + w] = four;
            }
        }
    }
};

struct gemm_exact {
    __device__ __forceinline__ float operator()(float value) const
    {
        return value;
    }
};

template <class S>
static __device__ __forceinline__ void gemm_multiply(const float *a, const float *b, int row, int col,
                                                     float (&sum)[S::TILE][S::TILE])
{
#pragma unroll
    for (int l = 0; l < S::DEPTH; l++) {
        __align__(16) float x[S::TILE];
        __align__(16) float y[S::TILE];
#pragma unroll
        for (int i = 0; i < S::PARTS; i++) {
            *(float4 *)&x[4 * i] = *(const float4 *)&a[l * S::A_PITCH + i * S::PART_ROWS + 4 * row];
            *(float4 *)&y[4 * i] = *(const float4 *)&b[l * S::B_PITCH + i * (S::COLS / S::PARTS) + 4 * col];
        }
#pragma unroll
        for (int i = 0; i < S::TILE; i++) {
#pragma unroll
            for (int j = 0; j < S::TILE; j++) {
                sum[i][j] = __fmaf_rn(x[i], y[j], sum[i][j]);
            }
        }
    }
}

/* The results in shared memory, [slices][rows, COLS], of which the first is (first_row, first_col) of the product. */
template <int FLOATS, int COLS, int SLICES, class Finish>
static __device__ __forceinline__ void gemm_finish(const float *shared, int first_row, int first_col, int rows,
                                                   int cols, const Finish &finish)
{
    static_assert(FLOATS % (Finish::AHEAD * KERNEL_BLOCK_THREADS) == 0, "every thread finishes the same number");
#pragma unroll 1
    for (int first = threadIdx.x; first < FLOATS; first += Finish::AHEAD * KERNEL_BLOCK_THREADS) {
        float with[Finish::AHEAD];
#pragma unroll
        for (int i = 0; i < Finish::AHEAD; i++) {
            int e = first + i * KERNEL_BLOCK_THREADS;
            int m = first_row + e / COLS;
            int n = first_col + e % COLS;
            with[i] = m < rows && n < cols ? finish.read(m, n) : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < Finish::AHEAD; i++) {
            int e = first + i * KERNEL_BLOCK_THREADS;
            int m = first_row + e / COLS;
            int n = first_col + e % COLS;
            float c = shared[e];
#pragma unroll
            for (int slice = 1; slice < SLICES; slice++) {
                c += shared[slice * FLOATS + e];
            }
            if (m < rows && n < cols) {
                finish(m, n, c, with[i]);
            }
        }
    }
}

/*
 * The tile whose first element is (first_row, first_col); rows x cols is the whole product. Called by all threads of a
 * block of S::THREADS, with S::BYTES of shared memory. finish(m, n, c, finish.read(m, n)) is called once for each
 * element of the product; Finish::AHEAD elements are read before they are finished, so that their loads overlap.
 */
template <class S, class A, class B, class Finish>
static __device__ __forceinline__ void gemm_tile(int first_row, int first_col, int rows, int cols,
                                                 struct gemm_depth depth, const A &a, const B &b, const Finish &finish)
{
    float *shared = (float *)shared_memory();
    const int slice = threadIdx.x / S::GROUP;
    const int thread = threadIdx.x % S::GROUP;
    const int row = thread / (S::COLS / S::TILE);
    const int col = thread % (S::COLS / S::TILE);
    const int pieces = (depth.end - depth.begin + S::DEPTH - 1) / S::DEPTH;
    const int turns =
        (pieces + S::SLICES - 1) / S::SLICES; /* the same for all threads, so that all reach the barriers */
    const int first = depth.begin + slice * turns * S::DEPTH;
    float *mine = shared + slice * 2 * S::SLICE_FLOATS;
    gemm_piece<S, A, S::ROWS, S::A_PITCH> next_a;
    gemm_piece<S, B, S::COLS, S::B_PITCH> next_b;
    next_a.begin(a, thread, first_row, first, depth.end);
    next_b.begin(b, thread, first_col, first, depth.end);
    __align__(16) float sum[S::TILE][S::TILE];
#pragma unroll
    for (int i = 0; i < S::TILE; i++) {
#pragma unroll
        for (int j = 0; j < S::TILE; j++) {
            sum[i][j] = 0.0f;
        }
    }
    /* A turn's pieces are loaded while the previous turn is multiplied; in this form the code has one copy of each. */
#pragma unroll 1
    for (int turn = 0; turn <= turns; turn++) {
        if (turn < turns) {
            next_a.load(a, thread, first_row, first + turn * S::DEPTH, depth.end);
            next_b.load(b, thread, first_col, first + turn * S::DEPTH, depth.end);
        }
        if (turn > 0) {
            const float *buffer = mine + (turn - 1) % 2 * S::SLICE_FLOATS;
            gemm_multiply<S>(buffer, buffer + S::DEPTH * S::A_PITCH, row, col, sum);
        }
        if (turn < turns) {
            float *buffer = mine + turn % 2 * S::SLICE_FLOATS;
            const int first_l = first + turn * S::DEPTH;
            next_a.store(a, buffer, thread, first_row, first_l, gemm_exact());
            next_b.store(b, buffer + S::DEPTH * S::A_PITCH, thread, first_col, first_l, gemm_exact());
        }
        __syncthreads(); /* one barrier suffices: a thread that is a turn ahead writes the other buffer */
    }
#pragma unroll
    for (int part = 0; part < S::PARTS; part++) {
        if (part > 0) {
            __syncthreads();
        }
        float *stage = shared + slice * S::STAGE_FLOATS;
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
            for (int j = 0; j < S::PARTS; j++) {
                *(float4 *)&stage[(4 * row + i) * S::COLS + j * (S::COLS / S::PARTS) + 4 * col] =
                    *(const float4 *)&sum[4 * part + i][4 * j];
            }
        }
        __syncthreads();
        gemm_finish<S::STAGE_FLOATS, S::COLS, S::SLICES>(shared, first_row + part * S::PART_ROWS, first_col, rows, cols,
                                                         finish);
    }
}

static __host__ __device__ __forceinline__ int tiles_along(int size, int tile)
{
    return (size + tile - 1) / tile;
}

/* --- Products on tensor cores --- */

/*
 * One tile of a matrix product on tensor cores by one thread block: the counterpart of the above for tf32 and bfloat16.
 *
 * By definition, which tests check: every operand is rounded to the format when stored to shared memory, and products
 * are accumulated in float32. Parameters, activations, gradients and updates stay float32.
 *
 * The format is a run-time parameter: only the innermost instruction differs, and code for every architecture is large
 * already. GPUs before sm_80 have neither format; there these kernels are empty, and the host does not launch them.
 */

struct gemm_tensor {
    static constexpr bool TENSOR = true;
    static constexpr int ROWS = KERNEL_TENSOR_TILE;
    static constexpr int COLS = KERNEL_TENSOR_TILE;
    static constexpr int DEPTH = TENSOR_DEPTH; /* depth in shared memory at once */
    static constexpr int GROUP = KERNEL_BLOCK_THREADS;
    static constexpr int THREADS = GROUP;
    static constexpr int RESIDENT = 2;
    static constexpr int WARP_ROWS = 32; /* of the tile, one warp's */
    static constexpr int WARP_COLS = 16;
    static constexpr int PITCH = ROWS + 8; /* 8 lanes side by side and 4 below one another have no bank conflicts */
    static constexpr int BUFFER_FLOATS = 2 * DEPTH * PITCH; /* of both operands, one of two buffers */
    static constexpr int BYTES = 4 * (2 * BUFFER_FLOATS > ROWS * COLS ? 2 * BUFFER_FLOATS : ROWS * COLS);
};
static_assert(gemm_tensor::BYTES == KERNEL_TENSOR_BYTES, "as promised");
static_assert(gemm_tensor::WARP_ROWS * gemm_tensor::WARP_COLS * gemm_tensor::THREADS / KERNEL_WARP ==
                  gemm_tensor::ROWS * gemm_tensor::COLS,
              "every element has its warp");

/*
 * Rounds to the nearest number of the format: tf32 has 10 bits of fraction, ties go away from zero as in cvt.rna;
 * bfloat16 has 7, ties go to even as in cvt.rn. NaN stays NaN.
 */
static __device__ __forceinline__ float tensor_round(int precision, float value)
{
    uint32_t bits = __float_as_uint(value);
    bits = precision == PRECISION_TF32 ? (bits + 0x1000u) & 0xffffe000u
                                       : (bits + 0x7fffu + (bits >> 16 & 1u)) & 0xffff0000u;
    return value != value ? value : __uint_as_float(bits);
}

struct tensor_rounding {
    int precision;
    __device__ __forceinline__ float operator()(float value) const
    {
        return tensor_round(precision, value);
    }
};

/*
 * sum[i][j] += a warp's 16 rows i x 8 columns j, of both operands' DEPTH in shared memory. row, col: the lane's first.
 */
static __device__ __forceinline__ void tensor_multiply_all(int precision, const float *a, const float *b, int row,
                                                           int col, float (&sum)[2][2][4])
{
    typedef gemm_tensor S;
    const int quad = threadIdx.x % 4;
    float x[2][8];
    float y[2][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int l = 8 * half + quad;
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                x[i][4 * half + e] = a[(l + e / 2 * 4) * S::PITCH + row + 16 * i + e % 2 * 8];
            }
#pragma unroll
            for (int e = 0; e < 2; e++) {
                y[i][2 * half + e] = b[(l + e * 4) * S::PITCH + col + 8 * i];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            tensor_multiply(precision == PRECISION_TF32, x[i], y[j], sum[i][j]);
        }
    }
}

/* Where a tile begins in its product. */
struct tile_corner {
    int row, col;
};

/* As gemm_tile, whose operands and `finish` it takes; with gemm_tensor::BYTES of shared memory. */
template <class A, class B, class Finish>
static __device__ __forceinline__ void tensor_tile(int precision, tile_corner first, int rows, int cols,
                                                   struct gemm_depth depth, const A &a, const B &b,
                                                   const Finish &finish)
{
    typedef gemm_tensor S;
    float *shared = (float *)shared_memory();
    const int thread = threadIdx.x;
    const int warp = thread / KERNEL_WARP;
    const int lane = thread % KERNEL_WARP;
    const int row = warp % (S::ROWS / S::WARP_ROWS) * S::WARP_ROWS + lane / 4;
    const int col = warp / (S::ROWS / S::WARP_ROWS) * S::WARP_COLS;
    const int turns = (depth.end - depth.begin + S::DEPTH - 1) / S::DEPTH;
    const struct tensor_rounding rounding = {precision};
    gemm_piece<S, A, S::ROWS, S::PITCH> next_a;
    gemm_piece<S, B, S::COLS, S::PITCH> next_b;
    next_a.begin(a, thread, first.row, depth.begin, depth.end);
    next_b.begin(b, thread, first.col, depth.begin, depth.end);
    float sum[2][2][4];
#pragma unroll
    for (int i = 0; i < 16; i++) {
        sum[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
#pragma unroll 1
    for (int turn = 0; turn <= turns; turn++) { /* as in gemm_tile */
        if (turn < turns) {
            next_a.load(a, thread, first.row, depth.begin + turn * S::DEPTH, depth.end);
            next_b.load(b, thread, first.col, depth.begin + turn * S::DEPTH, depth.end);
        }
        if (turn > 0) {
            const float *buffer = shared + (turn - 1) % 2 * S::BUFFER_FLOATS;
            tensor_multiply_all(precision, buffer, buffer + S::DEPTH * S::PITCH, row, col + lane / 4, sum);
        }
        if (turn < turns) {
            float *buffer = shared + turn % 2 * S::BUFFER_FLOATS;
            const int first_l = depth.begin + turn * S::DEPTH;
            next_a.store(a, buffer, thread, first.row, first_l, rounding);
            next_b.store(b, buffer + S::DEPTH * S::PITCH, thread, first.col, first_l, rounding);
        }
        __syncthreads();
    }
#pragma unroll
    for (int e = 0; e < 16; e++) {
        int m = row + e / 8 * 16 + e / 2 % 2 * 8;
        int n = col + e / 4 % 2 * 8 + lane % 4 * 2 + e % 2;
        shared[m * S::COLS + n] = sum[e / 8][e / 4 % 2][e % 4];
    }
    __syncthreads();
    gemm_finish<S::ROWS * S::COLS, S::COLS, 1>(shared, first.row, first.col, rows, cols, finish);
}

/* A tile of whichever kind S is. */
template <class S, class A, class B, class Finish>
static __device__ __forceinline__ void product_tile(int precision, tile_corner first, int rows, int cols,
                                                    struct gemm_depth depth, const A &a, const B &b,
                                                    const Finish &finish)
{
    if constexpr (S::TENSOR) {
        if constexpr (TENSOR_CORES) {
            tensor_tile(precision, first, rows, cols, depth, a, b, finish);
        }
    } else {
        gemm_tile<S>(first.row, first.col, rows, cols, depth, a, b, finish);
    }
}

/* --- Layers --- */

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
