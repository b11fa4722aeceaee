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

#endif
