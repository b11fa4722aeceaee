/*
 * One tile of a matrix product by one thread block, in float32, with every sum in a fixed order.
 *
 * c(m, n) = sum over l < depth of a(m, l) x b(l, n). The operands are functors that return 0 outside their matrices, so
 * that any size works; their memory layout decides how threads walk them. The depth is cut into SLICES parts, which
 * groups of threads sum in parallel and then add in order: small products have too few tiles to fill a GPU. Results
 * pass through shared memory to `finish` row by row, so that its code is compiled once and its stores coalesce.
 */
#ifndef CUDA_KERNELS_GEMM_CUH
#define CUDA_KERNELS_GEMM_CUH

#include "cuda/kernels/machine.cuh"
#include "cuda/kernels/params.h"

template <int ROWS_, int COLS_, int DEPTH_, int TILE_, int SLICES_> struct gemm_shape {
    static constexpr bool TENSOR = false;
    static constexpr int ROWS = ROWS_;
    static constexpr int COLS = COLS_;
    static constexpr int DEPTH = DEPTH_; /* of the part in shared memory at once */
    static constexpr int TILE = TILE_;   /* a thread's own rows and columns: 4 or 8 */
    static constexpr int SLICES = SLICES_;
    static constexpr int GROUP = ROWS / TILE * (COLS / TILE); /* threads that share a slice */
    static constexpr int THREADS = GROUP * SLICES;
    static constexpr int RESIDENT = TILE == 4 ? 2 : 1; /* minimum blocks per multiprocessor: limits the registers */
    static constexpr int A_PITCH = ROWS + 4;
    static constexpr int B_PITCH = COLS + 4;
    static constexpr int PARTS = TILE / 4; /* groups of four rows per thread */
    static constexpr int PART_ROWS = ROWS / PARTS;
    static constexpr int SLICE_FLOATS = DEPTH * (A_PITCH + B_PITCH); /* of one slice, of one of two buffers */
    static constexpr int STAGE_FLOATS = PART_ROWS * COLS;            /* of one slice's results, for output */
    static constexpr int FLOATS = SLICES * (2 * SLICE_FLOATS > STAGE_FLOATS ? 2 * SLICE_FLOATS : STAGE_FLOATS);
    static constexpr int BYTES = FLOATS * 4;
    static constexpr int A_LOADS = (ROWS * DEPTH + GROUP - 1) / GROUP;
    static constexpr int B_LOADS = (COLS * DEPTH + GROUP - 1) / GROUP;
};

/* No more shared memory than every GPU provides by default. */
typedef gemm_shape<KERNEL_SMALL_TILE, KERNEL_SMALL_TILE, 16, 4, 4> gemm_small;
typedef gemm_shape<KERNEL_MEDIUM_TILE, KERNEL_MEDIUM_TILE, 16, 4, 1> gemm_medium;
typedef gemm_shape<KERNEL_LARGE_TILE, KERNEL_LARGE_TILE, 8, 8, 1> gemm_large;
static_assert(gemm_small::THREADS == KERNEL_BLOCK_THREADS && gemm_small::BYTES == KERNEL_SMALL_BYTES, "as promised");
static_assert(gemm_medium::THREADS == KERNEL_BLOCK_THREADS && gemm_medium::BYTES == KERNEL_MEDIUM_BYTES, "as promised");
static_assert(gemm_large::THREADS == KERNEL_BLOCK_THREADS && gemm_large::BYTES == KERNEL_LARGE_BYTES, "as promised");

/* A piece of an operand, moved through registers into shared memory [depth, width]. */
template <class S, int WIDTH, int PITCH, int LOADS, bool ALONG_DEPTH> struct gemm_piece {
    float value[LOADS];

    static __device__ __forceinline__ void place(int i, int thread, int &w, int &l)
    {
        int e = i * S::GROUP + thread;
        l = ALONG_DEPTH ? e % S::DEPTH : e / WIDTH;
        w = ALONG_DEPTH ? e / S::DEPTH : e % WIDTH;
    }

    template <class Operand>
    __device__ __forceinline__ void load(const Operand &operand, int thread, int first_w, int first_l, int end_l)
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int w, l;
            place(i, thread, w, l);
            value[i] = first_l + l < end_l && w < WIDTH && l < S::DEPTH ? operand(first_w + w, first_l + l) : 0.0f;
        }
    }

    __device__ __forceinline__ void store(float *shared, int thread) const
    {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            int w, l;
            place(i, thread, w, l);
            if (w < WIDTH && l < S::DEPTH) {
                shared[l * PITCH + w] = value[i];
            }
        }
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

/*
 * The tile whose first element is (first_row, first_col); rows x cols is the whole product. Called by all threads of a
 * block of S::THREADS, with S::BYTES of shared memory. finish(m, n, c) is called once for each element of the product.
 */
template <class S, class A, class B, class Finish>
static __device__ __forceinline__ void gemm_tile(int first_row, int first_col, int rows, int cols, int depth,
                                                 const A &a, const B &b, const Finish &finish)
{
    float *shared = (float *)shared_memory();
    const int slice = threadIdx.x / S::GROUP;
    const int thread = threadIdx.x % S::GROUP;
    const int row = thread / (S::COLS / S::TILE);
    const int col = thread % (S::COLS / S::TILE);
    const int pieces = (depth + S::DEPTH - 1) / S::DEPTH;
    const int turns =
        (pieces + S::SLICES - 1) / S::SLICES; /* the same for all threads, so that all reach the barriers */
    const int first = slice * turns * S::DEPTH;
    float *mine = shared + slice * 2 * S::SLICE_FLOATS;
    gemm_piece<S, S::ROWS, S::A_PITCH, S::A_LOADS, A::ALONG_DEPTH> next_a;
    gemm_piece<S, S::COLS, S::B_PITCH, S::B_LOADS, B::ALONG_DEPTH> next_b;
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
            next_a.load(a, thread, first_row, first + turn * S::DEPTH, depth);
            next_b.load(b, thread, first_col, first + turn * S::DEPTH, depth);
        }
        if (turn > 0) {
            const float *buffer = mine + (turn - 1) % 2 * S::SLICE_FLOATS;
            gemm_multiply<S>(buffer, buffer + S::DEPTH * S::A_PITCH, row, col, sum);
        }
        if (turn < turns) {
            float *buffer = mine + turn % 2 * S::SLICE_FLOATS;
            next_a.store(buffer, thread);
            next_b.store(buffer + S::DEPTH * S::A_PITCH, thread);
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
#pragma unroll 1
        for (int e = threadIdx.x; e < S::STAGE_FLOATS; e += S::THREADS) {
            int m = first_row + part * S::PART_ROWS + e / S::COLS;
            int n = first_col + e % S::COLS;
            float c = shared[e];
#pragma unroll
            for (int i = 1; i < S::SLICES; i++) {
                c += shared[i * S::STAGE_FLOATS + e];
            }
            if (m < rows && n < cols) {
                finish(m, n, c);
            }
        }
    }
}

static __host__ __device__ __forceinline__ int tiles_along(int size, int tile)
{
    return (size + tile - 1) / tile;
}

#endif
