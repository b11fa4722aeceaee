/*
 * One tile of a matrix product on tensor cores by one thread block: the counterpart of gemm.cuh for tf32 and bfloat16.
 *
 * By definition, which tests check: every operand is rounded to the format when stored to shared memory, and products
 * are accumulated in float32. Parameters, activations, gradients and updates stay float32.
 *
 * The format is a run-time parameter: only the innermost instruction differs, and code for every architecture is large
 * already. GPUs before sm_80 have neither format; there these kernels are empty, and the host does not launch them.
 */
#ifndef CUDA_KERNELS_TENSOR_CUH
#define CUDA_KERNELS_TENSOR_CUH

#include "cuda/kernels/gemm.cuh"

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

#endif
