/*
 * The kernels for one instruction set, written once. The including file has defined the type `vec` of VEC_LANES floats,
 * its operations (vec_load, vec_fma, ...), VEC_COLUMNS (most vectors that a gemm tile is wide), VEC_TILE (accumulators
 * of a gemm tile; with operands they must fit the registers), VEC_SETS (sets of 8 accumulators that `sparse` has
 * registers for: 1 or 2) and KERNELS_TABLE, KERNELS_NAME, KERNELS_STRIP, KERNELS_DENSE_FROM for the table.
 *
 * Accumulators are small arrays indexed by constants only, so that the compiler keeps them in registers: every function
 * that has some is inlined with constant sizes, and its loops over them are unrolled.
 */
#include "worker/cpu/kernels.h"

#ifdef KERNELS_TABLE
#include <math.h>

#include "worker/cpu/kernels_bytes.h"
#include "worker/cpu/kernels_loops.h"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

#define KEEP_LOOP __asm__ volatile("" ::: "memory")
/* Has the compiler compute an address once, instead of in every operand that uses it. */
#define COMPUTE(p) __asm__("" : "+r"(p))
/* Keeps a vector in its register: else the compiler loads it anew for every use. */
#if defined(__x86_64__)
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) __asm__("" : "+w"(v))
#endif

#define INLINE static inline __attribute__((always_inline))

/* ---- gemm ---- */

/* A tile of `rows` x `columns` vectors of c, for all of k. */
INLINE void gemm_tile(const int rows, const int columns, const struct gemm *g, size_t a_row, size_t a_col, int i, int j)
{
    vec sum[VEC_TILE];
    const float *a = g->a + (size_t)i * a_row;
    const float *b = g->b + j;
    float *c = g->c + (size_t)i * (size_t)g->c_stride + j;
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < columns; v++) {
            sum[r * columns + v] =
                g->accumulate ? vec_load(c + (size_t)r * (size_t)g->c_stride + v * VEC_LANES) : vec_zero();
        }
    }
    for (int l = g->k; l > 0; l--, a += a_col, b += g->b_stride) {
        vec right[VEC_COLUMNS];
        UNROLL
        for (int v = 0; v < columns; v++) {
            right[v] = vec_load(b + v * VEC_LANES);
            KEEP(right[v]);
        }
        UNROLL
        for (int r = 0; r < rows; r++) {
            vec left = vec_broadcast(a + (size_t)r * a_row);
            UNROLL
            for (int v = 0; v < columns; v++) {
                sum[r * columns + v] = vec_fma(left, right[v], sum[r * columns + v]);
            }
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int v = 0; v < columns; v++) {
            vec_store(c + (size_t)r * (size_t)g->c_stride + v * VEC_LANES, sum[r * columns + v]);
        }
    }
}

/* All rows of a column of tiles. */
INLINE void gemm_columns(const int columns, const struct gemm *g, size_t a_row, size_t a_col, int j)
{
    enum { SIX = 6, TWELVE = 12 };
    int i = 0;
    if (columns == 1) {
        for (; i + TWELVE <= g->m; i += TWELVE) {
            gemm_tile(TWELVE, columns, g, a_row, a_col, i, j);
        }
    }
    const int most = VEC_TILE / columns;
    if (columns > 1 || most < TWELVE) {
        for (; i + most <= g->m; i += most) {
            gemm_tile(most, columns, g, a_row, a_col, i, j);
        }
    }
    for (; i + 4 <= g->m; i += 4) {
        gemm_tile(4, columns, g, a_row, a_col, i, j);
    }
    if (i + 2 <= g->m) {
        gemm_tile(2, columns, g, a_row, a_col, i, j);
        i += 2;
    }
    if (i < g->m) {
        gemm_tile(1, columns, g, a_row, a_col, i, j);
    }
}

INLINE void gemm_all(const struct gemm *g, size_t a_row, size_t a_col)
{
    int j = 0;
    for (; j + VEC_COLUMNS * VEC_LANES <= g->n; j += VEC_COLUMNS * VEC_LANES) {
        gemm_columns(VEC_COLUMNS, g, a_row, a_col, j);
    }
#if VEC_COLUMNS > 2
    if (j + 2 * VEC_LANES <= g->n) {
        gemm_columns(2, g, a_row, a_col, j);
        j += 2 * VEC_LANES;
    }
#endif
    for (; j < g->n; j += VEC_LANES) {
        gemm_columns(1, g, a_row, a_col, j);
    }
}

static void simd_gemm(const struct gemm *g)
{
    if (g->a_row == 1) {
        gemm_all(g, 1, (size_t)g->a_col);
    } else {
        gemm_all(g, (size_t)g->a_row, 1);
    }
}

/* ---- sparse ---- */

INLINE void fetch(const int columns, const float *row)
{
    UNROLL
    for (int v = 0; v < columns; v += 16 / VEC_LANES) {
        __builtin_prefetch(row + v * VEC_LANES);
    }
}

/* One entry: a row of `in`, times the values of both rows of the pair. */
INLINE void sparse_entry(const int columns, const float *row, const float *value, vec *sum)
{
    vec first = vec_broadcast(value);
    vec second = vec_broadcast(value + 1);
    UNROLL
    for (int v = 0; v < columns; v++) {
        vec right = vec_load(row + v * VEC_LANES);
        KEEP(right);
        sum[v] = vec_fma(first, right, sum[v]);
        sum[columns + v] = vec_fma(second, right, sum[columns + v]);
    }
}

/*
 * Two entries at a time. Few accumulators leave the multipliers waiting for each other: then the two entries have sets
 * of their own, added up in the end.
 */
INLINE void sparse_columns(const int columns, const int sets, const struct sparse *s, int j)
{
    const float *in = s->in + j;
    for (int i = 0; i < s->pairs; i++) {
        size_t r = s->order[i];
        float *even = s->out + 2 * r * (size_t)s->out_stride + j;
        float *odd = even + s->out_stride;
        if (s->ahead) {
            fetch(columns, s->ahead + (size_t)s->ahead_rows[2 * i] * (size_t)s->ahead_stride + j);
            fetch(columns, s->ahead + (size_t)s->ahead_rows[2 * i + 1] * (size_t)s->ahead_stride + j);
        }
        if (s->accumulate && i + 1 < s->pairs) {
            const float *next = s->out + 2 * (size_t)s->order[i + 1] * (size_t)s->out_stride + j;
            fetch(columns, next);
            fetch(columns, next + s->out_stride);
        }
        vec sum[16];
        UNROLL
        for (int v = 0; v < columns; v++) {
            sum[v] = s->accumulate ? vec_load(even + v * VEC_LANES) : vec_zero();
            sum[columns + v] = s->accumulate ? vec_load(odd + v * VEC_LANES) : vec_zero();
        }
        UNROLL
        for (int v = 2 * columns; v < 2 * columns * sets; v++) {
            sum[v] = vec_zero();
        }
        /* Counting up to zero leaves one counter for both arrays. */
        size_t end = s->start[r + 1];
        const uint32_t *offset = s->offset + end;
        const float *value = s->value + 2 * end;
        for (ptrdiff_t e = (ptrdiff_t)s->start[r] - (ptrdiff_t)end; e < 0; e += 2) {
            sparse_entry(columns, in + offset[e], value + 2 * e, sum);
            sparse_entry(columns, in + offset[e + 1], value + 2 * e + 2, sum + 2 * columns * (sets - 1));
        }
        UNROLL
        for (int v = 0; v < columns; v++) {
            int other = 2 * columns * (sets - 1) + v;
            vec_store(even + v * VEC_LANES, sets == 2 ? vec_add(sum[v], sum[other]) : sum[v]);
            vec_store(odd + v * VEC_LANES,
                      sets == 2 ? vec_add(sum[columns + v], sum[columns + other]) : sum[columns + v]);
        }
    }
}

static void simd_sparse(const struct sparse *s)
{
    int j = 0;
    for (; j + 4 * VEC_LANES <= s->n; j += 4 * VEC_LANES) {
        sparse_columns(4, VEC_SETS, s, j);
    }
    switch ((s->n - j) / VEC_LANES) {
    case 3:
        sparse_columns(3, VEC_SETS, s, j);
        break;
    case 2:
        sparse_columns(2, 2, s, j);
        break;
    case 1:
        sparse_columns(1, 2, s, j);
        break;
    default:
        break;
    }
}

INLINE void scatter_entry(float *out, const float *value, vec even, vec odd)
{
    vec sum = vec_fma(vec_broadcast(value), even, vec_load(out));
    vec_store(out, vec_fma(vec_broadcast(value + 1), odd, sum));
}

static void simd_scatter(const struct scatter *s)
{
    for (int j = 0; j < s->n; j += VEC_LANES) {
        for (int r = 0; r < s->pairs; r++) {
            vec even = vec_load(s->in + (size_t)s->in_rows[2 * r] * (size_t)s->in_stride + j);
            vec odd = vec_load(s->in + (size_t)s->in_rows[2 * r + 1] * (size_t)s->in_stride + j);
            for (uint32_t e = s->start[r]; e < s->start[r + 1]; e += 2) {
                scatter_entry(s->out + s->offset[e] + j, s->value + 2 * e, even, odd);
                scatter_entry(s->out + s->offset[e + 1] + j, s->value + 2 * e + 2, even, odd);
            }
        }
    }
}

/* ---- copies: not memcpy, for musl's is slow at a few hundred bytes; KEEP_LOOP keeps the compiler from calling it ---- */

static void simd_fill(int rows, int n, const float *row, float *to, int stride)
{
    for (int j = 0; j < n; j += VEC_LANES) {
        vec value = row ? vec_load(row + j) : vec_zero();
        float *at = to + j;
        for (int r = 0; r < rows; r++, at += stride) {
            vec_store(at, value);
            KEEP_LOOP;
        }
    }
}

INLINE int64_t gather_groups(const int groups, int rows, const uint8_t *from, size_t stride, const int32_t *indexes,
                             uint8_t *to, uint8_t *seen)
{
    vec_bytes any[KERNEL_BLOCK / 16];
    UNROLL
    for (int g = 0; g < groups; g++) {
        any[g] = bytes_load(seen + 16 * g);
    }
    int64_t zeros = 0;
    for (int r = 0; r < rows; r++, to += 16 * groups) {
        const uint8_t *row = from + (size_t)(indexes ? indexes[r] : r) * stride;
        vec_bytes zero = bytes_zero(); /* how many, by lanes */
        UNROLL
        for (int g = 0; g < groups; g++) {
            vec_bytes value = bytes_load(row + 16 * g);
            bytes_store(to + 16 * g, value);
            any[g] = bytes_or(any[g], value);
            zero = bytes_count_zeros(zero, value);
        }
        zeros += bytes_sum(zero);
    }
    UNROLL
    for (int g = 0; g < groups; g++) {
        bytes_store(seen + 16 * g, any[g]);
    }
    return (int64_t)rows * 16 * groups - zeros;
}

static int64_t simd_gather(int rows, int cols, const uint8_t *from, size_t stride, const int32_t *indexes, uint8_t *to,
                           uint8_t *seen)
{
    switch (cols / 16) {
    case 1:
        return gather_groups(1, rows, from, stride, indexes, to, seen);
    case 2:
        return gather_groups(2, rows, from, stride, indexes, to, seen);
    case 3:
        return gather_groups(3, rows, from, stride, indexes, to, seen);
    case 4:
        return gather_groups(4, rows, from, stride, indexes, to, seen);
    case 5:
        return gather_groups(5, rows, from, stride, indexes, to, seen);
    case 6:
        return gather_groups(6, rows, from, stride, indexes, to, seen);
    default:
        return gather_groups(KERNEL_BLOCK / 16, rows, from, stride, indexes, to, seen);
    }
}

/* ---- functions ---- */

/*
 * e^x for x <= 88: 2^n x e^r with |r| <= ln 2 / 2, e^r by the polynomial of Cephes' expf (relative error 2e-7; below
 * -87 it becomes 0). NaN stays NaN: the operand that min and max return then is their second.
 */
INLINE vec vec_exp(vec x)
{
    x = vec_max(vec_set(-88.0f), vec_min(vec_set(88.0f), x));
    vec n = vec_round(vec_mul(x, vec_set(1.44269504088896341f)));
    vec r = vec_fma(n, vec_set(-0.693359375f), x);
    r = vec_fma(n, vec_set(2.12194440e-4f), r);
    vec p = vec_set(1.9875691500e-4f);
    p = vec_fma(p, r, vec_set(1.3981999507e-3f));
    p = vec_fma(p, r, vec_set(8.3334519073e-3f));
    p = vec_fma(p, r, vec_set(4.1665795894e-2f));
    p = vec_fma(p, r, vec_set(1.6666665459e-1f));
    p = vec_fma(p, r, vec_set(5.0000001201e-1f));
    p = vec_fma(p, vec_mul(r, r), vec_add(r, vec_set(1.0f)));
    return vec_scale(p, n);
}

/* tanh: odd polynomial where 1 - 2 / (e^2x + 1) would cancel (Cephes' tanhf). */
INLINE vec vec_tanh(vec x)
{
    vec square = vec_mul(x, x);
    vec p = vec_set(-5.70498872745e-3f);
    p = vec_fma(p, square, vec_set(2.06390887954e-2f));
    p = vec_fma(p, square, vec_set(-5.37397155531e-2f));
    p = vec_fma(p, square, vec_set(1.33314422036e-1f));
    p = vec_fma(p, square, vec_set(-3.33332819422e-1f));
    vec small = vec_fma(vec_mul(p, square), x, x);
    vec one = vec_set(1.0f);
    vec bounded = vec_max(vec_set(-10.0f), vec_min(vec_set(10.0f), x));
    vec large = vec_sub(one, vec_div(vec_set(2.0f), vec_add(vec_exp(vec_add(bounded, bounded)), one)));
    return vec_select_less(square, vec_set(0.625f * 0.625f), small, large);
}

static void simd_activate(enum activation activation, int n, float *z)
{
    const vec one = vec_set(1.0f);
    switch (activation) {
    case ACTIVATION_RELU:
        for (int i = 0; i < n; i += VEC_LANES) {
            vec_store(z + i, vec_max(vec_zero(), vec_load(z + i)));
        }
        break;
    case ACTIVATION_SIGMOID:
        for (int i = 0; i < n; i += VEC_LANES) {
            vec_store(z + i, vec_div(one, vec_add(one, vec_exp(vec_sub(vec_zero(), vec_load(z + i))))));
        }
        break;
    case ACTIVATION_TANH:
        for (int i = 0; i < n; i += VEC_LANES) {
            vec_store(z + i, vec_tanh(vec_load(z + i)));
        }
        break;
    case ACTIVATION_IDENTITY:
        break;
    }
}

/* Lanes beyond `classes` count as minus infinity: they are never largest, and their exponential is 0. */
INLINE vec load_logits(const float *row, int j, int classes)
{
    vec z = vec_load(row + j);
    return j + VEC_LANES <= classes ? z : vec_first(classes - j, z, vec_set(-INFINITY));
}

INLINE float softmax_row(const struct softmax *s, float *row, int label, uint8_t *correct)
{
    vec most = vec_set(-INFINITY);
    for (int j = 0; j < s->classes; j += VEC_LANES) {
        most = vec_max(most, load_logits(row, j, s->classes));
    }
    float largest = vec_largest(most);
    float target = row[label];
    float smoothed = s->smoothing > 0.0f ? loop_smoothing_loss(s, row, target) : 0.0f;
    int best = 0;
    while (best < label && row[best] < largest) {
        best++;
    }
    *correct = best == label && !(target < largest);
    vec sums = vec_zero();
    for (int j = 0; j < s->classes; j += VEC_LANES) {
        vec z = vec_sub(load_logits(row, j, s->classes), vec_set(largest));
        vec e = j + VEC_LANES <= s->classes ? vec_exp(z) : vec_first(s->classes - j, vec_exp(z), vec_zero());
        vec_store(row + j, e);
        sums = vec_add(sums, e);
    }
    float sum = vec_sum(sums);
    vec factor = vec_set(s->scale / sum);
    for (int j = 0; j < s->classes; j += VEC_LANES) {
        vec_store(row + j, vec_mul(factor, vec_load(row + j)));
    }
    loop_subtract_target(s, row, label);
    return logf(sum) + (largest - target) + smoothed;
}

static void simd_softmax(const struct softmax *s)
{
    float *row = s->logits;
    for (int r = 0; r < s->rows; r++, row += s->stride) {
        s->losses[r] = softmax_row(s, row, s->labels[r], &s->correct[r]);
    }
}

/* ---- bytes ---- */

/* Four stages of interleaving transpose 16 x 16 bytes. */
INLINE void transpose_16x16(const uint8_t *from, size_t from_stride, uint8_t *to, size_t to_stride)
{
    vec_bytes x[16];
    vec_bytes y[16];
    UNROLL
    for (int i = 0; i < 16; i++) {
        x[i] = bytes_load(from + (size_t)i * from_stride);
    }
    UNROLL
    for (int stage = 0; stage < 4; stage++) {
        UNROLL
        for (int i = 0; i < 8; i++) {
            y[2 * i] = bytes_zip_low(x[i], x[i + 8]);
            y[2 * i + 1] = bytes_zip_high(x[i], x[i + 8]);
        }
        UNROLL
        for (int i = 0; i < 16; i++) {
            x[i] = y[i];
        }
    }
    UNROLL
    for (int i = 0; i < 16; i++) {
        bytes_store(to + (size_t)i * to_stride, x[i]);
    }
}

static void simd_transpose_bytes(int rows, int cols, const uint8_t *from, uint8_t *to)
{
    for (int c = 0; c < cols; c += 16) {
        for (int r = 0; r < rows; r += 16) {
            transpose_16x16(from + (size_t)r * (size_t)cols + (size_t)c, (size_t)cols,
                            to + (size_t)c * (size_t)rows + (size_t)r, (size_t)rows);
        }
    }
}

const struct kernels KERNELS_TABLE = {
    .name = KERNELS_NAME,
    .lanes = VEC_LANES,
    .strip_floats = KERNELS_STRIP,
    .dense_from = KERNELS_DENSE_FROM,
    .gemm = simd_gemm,
    .sparse = simd_sparse,
    .scatter = simd_scatter,
    .softmax = simd_softmax,
    .drop = loop_drop,
    .fill = simd_fill,
    .column_sums = loop_column_sums,
    .add = loop_add,
    .multiply = loop_multiply,
    .activate = simd_activate,
    .derive = loop_derive,
    .transpose = loop_transpose,
    .gather = simd_gather,
    .transpose_bytes = simd_transpose_bytes,
    .compress = simd_compress,
    .scale = loop_scale,
};
#endif
