/*
 * The kernels for one instruction set, written once. The including file has defined the type `vec` of VEC_LANES floats,
 * its operations (vec_load, vec_fma, ...), VEC_COLUMNS (most vectors that a gemm tile is wide), VEC_TILE (accumulators
 * of a gemm tile; with operands they must fit the registers), VEC_UNROLL (rows of b that gemm takes between two jumps),
 * VEC_SETS (sets of 8 accumulators that `sparse` has registers for: 1 or 2) and KERNELS_TABLE, KERNELS_NAME,
 * KERNELS_STRIP, KERNELS_DENSE_FROM for the table, and KERNELS_PARTS and KERNELS_UNPACK if it has pack_parts.
 *
 * Accumulators are small arrays indexed only by constants, so that the compiler keeps them in registers: every function
 * with accumulators is inlined with constant sizes, and its loops over them are unrolled.
 */
#include "base/kernels.h"

#ifdef KERNELS_TABLE
#include <math.h>

#include "base/kernels/kernels_bytes.h"
#include "base/kernels/kernels_loops.h"

#if defined(__clang__)
#define UNROLL      _Pragma("clang loop unroll(full)")
#define UNROLL_GEMM _Pragma("clang loop unroll_count(4)")
#else
#define UNROLL      _Pragma("GCC unroll 32")
#define UNROLL_GEMM _Pragma("GCC unroll GEMM_UNROLL")
#endif

#define KEEP_LOOP __asm__ volatile("" ::: "memory")
/* Makes the compiler compute an address once, instead of in every operand that uses it. */
#define COMPUTE(p) __asm__("" : "+r"(p))
/* Keeps a vector in its register: otherwise the compiler reloads it for every use. */
#if defined(__x86_64__)
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) __asm__("" : "+w"(v))
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE void fetch(const int columns, const float *row)
{
    UNROLL
    for (int v = 0; v < columns; v += 16 / VEC_LANES) {
        __builtin_prefetch(row + v * VEC_LANES);
    }
}

/* --- gemm --- */

enum { GEMM_UNROLL = VEC_UNROLL }; /* as a constant for the pragma */

/*
 * Adds one row of b to a tile. Of its vectors and the elements of a, the smaller set stays in registers, and the others
 * are loaded one by one. When another thread shares the core, the limit is the number of instructions per
 * multiplication, loads above all, which is smallest when rows and columns are about equal.
 */
INLINE void gemm_row_high(const int rows, const int columns, const float *a, size_t a_row, const float *b, vec *sum)
{
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

INLINE void gemm_row_wide(const int rows, const int columns, const float *a, size_t a_row, const float *b, vec *sum)
{
    vec left[VEC_COLUMNS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        left[r] = vec_broadcast(a + (size_t)r * a_row);
        KEEP(left[r]);
    }
    UNROLL
    for (int v = 0; v < columns; v++) {
        vec right = vec_load(b + v * VEC_LANES);
        KEEP(right);
        UNROLL
        for (int r = 0; r < rows; r++) {
            sum[r * columns + v] = vec_fma(left[r], right, sum[r * columns + v]);
        }
    }
}

/* A tile of `rows` x `columns` vectors of c, for all of k. */
INLINE void gemm_tile(const int rows, const int columns, const struct gemm *g, size_t a_row, size_t a_col, int i, int j)
{
    vec sum[VEC_TILE];
    const float *a = g->a + (size_t)i * a_row;
    const float *b = g->b + j;
    float *c = g->c + (size_t)i * (size_t)g->c_stride + j;
    UNROLL
    for (int r = 0; r < rows; r++) {
        if (g->ahead) {
            fetch(columns, g->ahead + (size_t)(i + r) * (size_t)g->ahead_stride + j);
        }
        UNROLL
        for (int v = 0; v < columns; v++) {
            sum[r * columns + v] =
                g->accumulate ? vec_load(c + (size_t)r * (size_t)g->c_stride + v * VEC_LANES) : vec_zero();
        }
    }
    UNROLL_GEMM
    for (int l = g->k; l > 0; l--, a += a_col, b += g->b_stride) {
        if (rows < columns) {
            gemm_row_wide(rows, columns, a, a_row, b, sum);
        } else {
            gemm_row_high(rows, columns, a, a_row, b, sum);
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
    if (most > 4) {
        for (; i + 4 <= g->m; i += 4) {
            gemm_tile(4, columns, g, a_row, a_col, i, j);
        }
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

/* --- sparse --- */

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

/* One entry of one row of the pair. */
INLINE void sparse_single(const int columns, const float *row, const float *value, vec *sum)
{
    vec left = vec_broadcast(value);
    UNROLL
    for (int v = 0; v < columns; v++) {
        sum[v] = vec_fma(left, vec_load(row + v * VEC_LANES), sum[v]);
    }
}

enum sparse_part { PART_BOTH, PART_EVEN, PART_ODD };

/* Entries [at, end) of one part; every other one has its own accumulators, if there are two sets. */
INLINE void sparse_part(const enum sparse_part part, const int columns, const int sets, const struct sparse *s,
                        const float *in, size_t at, size_t end, vec *sum)
{
    const float *value = s->value + 2 * at;
    const uint32_t *behind = s->offset + end;
    for (const uint32_t *offset = s->offset + at; offset < behind; offset += KERNEL_ENTRIES) {
        UNROLL
        for (int k = 0; k < KERNEL_ENTRIES; k++) {
            vec *set = sum + 2 * columns * (sets - 1) * (k % 2);
            const float *row = row_behind(in, offset[k]);
            if (part == PART_BOTH) {
                sparse_entry(columns, row, value + 2 * k, set);
            } else if (part == PART_EVEN) {
                sparse_single(columns, row, value + 2 * k, set);
            } else {
                sparse_single(columns, row, value + 2 * k + 1, set + columns);
            }
        }
        value += 2 * KERNEL_ENTRIES;
    }
}

/*
 * KERNEL_ENTRIES at a time. With few accumulators, multiplications would wait for each other: then every other entry
 * has its own set, added up at the end. `accumulate`, `ahead` and `divided` are compile-time constants, so that
 * everything a pair needs stays in registers: most pairs are short.
 */
INLINE void sparse_columns(const int columns, const int sets, const bool accumulate, const bool ahead,
                           const bool divided, const struct sparse *shared, int j)
{
    const struct sparse own = *shared, *s = &own; /* a copy that no store below aliases */
    const float *in = s->in + j;
    const uint8_t *order = s->order, *last = order + s->pairs;
    const size_t stride = (size_t)s->out_stride;
    float *out = s->out + j;
    COMPUTE(in);
    COMPUTE(out);
    for (const int32_t *rows = s->ahead_rows; order < last; order++) {
        const size_t r = *order, begin = s->start[r], end = s->start[r + 1];
        const size_t both = divided ? begin + s->parts[r].both : end, single = divided ? begin + s->parts[r].even : end;
        float *even = out + 2 * r * stride, *odd = even + stride;
        COMPUTE(even);
        COMPUTE(odd);
        if (ahead) {
            fetch(columns, s->ahead + (size_t)rows[0] * (size_t)s->ahead_stride + j);
            fetch(columns, s->ahead + (size_t)rows[1] * (size_t)s->ahead_stride + j);
            rows += 2;
        }
        vec sum[16];
        UNROLL
        for (int v = 0; v < columns; v++) {
            sum[v] = accumulate ? vec_load(even + v * VEC_LANES) : vec_zero();
            sum[columns + v] = accumulate ? vec_load(odd + v * VEC_LANES) : vec_zero();
        }
        UNROLL
        for (int v = 2 * columns; v < 2 * columns * sets; v++) {
            sum[v] = vec_zero();
        }
        sparse_part(PART_BOTH, columns, sets, s, in, begin, both, sum);
        if (divided) {
            sparse_part(PART_EVEN, columns, sets, s, in, both, single, sum);
            sparse_part(PART_ODD, columns, sets, s, in, single, end, sum);
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

INLINE void sparse_all(const bool accumulate, const bool ahead, const bool divided, const struct sparse *s)
{
    int j = 0;
    for (; j + 4 * VEC_LANES <= s->n; j += 4 * VEC_LANES) {
        sparse_columns(4, VEC_SETS, accumulate, ahead, divided, s, j);
    }
    switch ((s->n - j) / VEC_LANES) {
    case 3:
        sparse_columns(3, VEC_SETS, accumulate, ahead, divided, s, j);
        break;
    case 2:
        sparse_columns(2, 2, accumulate, ahead, divided, s, j);
        break;
    case 1:
        sparse_columns(1, 2, accumulate, ahead, divided, s, j);
        break;
    default:
        break;
    }
}

INLINE void sparse_as(const bool divided, const struct sparse *s)
{
    if (s->accumulate) {
        sparse_all(true, false, divided, s);
    } else if (s->ahead) {
        sparse_all(false, true, divided, s);
    } else {
        sparse_all(false, false, divided, s);
    }
}

static void simd_sparse(const struct sparse *s)
{
#ifdef KERNELS_PARTS
    if (s->parts) {
        sparse_as(true, s);
        return;
    }
#endif
    sparse_as(false, s);
}

static void simd_scatter(const struct scatter *scatter)
{
    const struct scatter s = *scatter; /* a copy that no store below aliases */
    for (int j = 0; j < s.n; j += VEC_LANES) {
        float *out = s.out + j;
        for (int r = 0; r < s.pairs; r++) {
            vec even = vec_load(s.in + (size_t)s.in_rows[2 * r] * (size_t)s.in_stride + j);
            vec odd = vec_load(s.in + (size_t)s.in_rows[2 * r + 1] * (size_t)s.in_stride + j);
            size_t end = s.start[r + 1];
            const uint32_t *offset = s.offset + end;
            const float *value = s.value + 2 * end;
            for (ptrdiff_t e = (ptrdiff_t)s.start[r] - (ptrdiff_t)end; e < 0; e += KERNEL_ENTRIES) {
                UNROLL
                for (int k = 0; k < KERNEL_ENTRIES; k++) {
                    float *at = out_behind(out, offset[e + k]);
                    vec sum = vec_fma(vec_broadcast(value + 2 * (e + k)), even, vec_load(at));
                    vec_store(at, vec_fma(vec_broadcast(value + 2 * (e + k) + 1), odd, sum));
                }
            }
        }
    }
}

/* --- sums of rows --- */

INLINE void sums_columns(const int columns, const bool accumulate, const struct row_sums *s, int j)
{
    const float *in = s->in + j;
    const int32_t *index = s->index;
    const uint32_t *start = s->start;
    const size_t in_stride = s->in_stride;
    float *out = s->out + j;
    for (int r = 0; r < s->rows; r++, out += s->out_stride) {
        vec sum[8];
        UNROLL
        for (int v = 0; v < columns; v++) {
            sum[v] = accumulate ? vec_load(out + v * VEC_LANES) : vec_zero();
        }
        for (uint32_t e = start[r], end = start[r + 1]; e < end; e++) {
            const float *row = in + (size_t)index[e] * in_stride;
            UNROLL
            for (int v = 0; v < columns; v++) {
                sum[v] = vec_add(sum[v], vec_load(row + v * VEC_LANES));
            }
        }
        UNROLL
        for (int v = 0; v < columns; v++) {
            vec_store(out + v * VEC_LANES, sum[v]);
        }
    }
}

INLINE void sums_all(const bool accumulate, const struct row_sums *s)
{
    int j = 0;
    for (; j + 8 * VEC_LANES <= s->n; j += 8 * VEC_LANES) {
        sums_columns(8, accumulate, s, j);
    }
    /* The rest in one pass: each further pass would read the index again. */
    switch ((s->n - j) / VEC_LANES) {
    case 7:
        sums_columns(7, accumulate, s, j);
        break;
    case 6:
        sums_columns(6, accumulate, s, j);
        break;
    case 5:
        sums_columns(5, accumulate, s, j);
        break;
    case 4:
        sums_columns(4, accumulate, s, j);
        break;
    case 3:
        sums_columns(3, accumulate, s, j);
        break;
    case 2:
        sums_columns(2, accumulate, s, j);
        break;
    case 1:
        sums_columns(1, accumulate, s, j);
        break;
    default:
        break;
    }
}

static void simd_sum_rows(const struct row_sums *s)
{
    if (s->accumulate) {
        sums_all(true, s);
    } else {
        sums_all(false, s);
    }
}

/* --- encoded numbers --- */

enum { BIN_FLOATS = 32, BIN_VECTORS = BIN_FLOATS / VEC_LANES }; /* of a row at once: the table stays in the L1 cache */

INLINE void bins_below(const int vectors, const struct bin_sums *s, int j, float *below)
{
    for (int c = 0; c < s->columns; c++) {
        vec sum[BIN_VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[v] = vec_zero();
        }
        for (int i = s->first[c]; i < s->first[c + 1]; i++) {
            const float *row = s->in + (size_t)i * s->in_stride + j;
            UNROLL
            for (int v = 0; v < vectors; v++) {
                vec_store(below + i * BIN_FLOATS + v * VEC_LANES, sum[v]);
                sum[v] = vec_add(sum[v], vec_load(row + v * VEC_LANES));
            }
        }
    }
}

INLINE void bins_columns(const int vectors, const struct bin_sums *s, int j, float *below)
{
    bins_below(vectors, s, j, below);
    const float *in = s->in + j, *share = s->share;
    const int32_t *bin = s->bin;
    const size_t in_stride = s->in_stride;
    const int columns = s->columns;
    float *out = s->out + j;
    for (int r = 0; r < s->rows; r++, out += s->out_stride, bin += columns, share += columns) {
        vec sum[BIN_VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[v] = vec_load(out + v * VEC_LANES);
        }
        for (int c = 0; c < columns; c++) {
            const float *full = below + bin[c] * BIN_FLOATS, *row = in + (size_t)bin[c] * in_stride;
            const vec part = vec_broadcast(share + c);
            UNROLL
            for (int v = 0; v < vectors; v++) {
                sum[v] = vec_add(sum[v], vec_load(full + v * VEC_LANES));
                sum[v] = vec_fma(part, vec_load(row + v * VEC_LANES), sum[v]);
            }
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            vec_store(out + v * VEC_LANES, sum[v]);
        }
    }
}

static void simd_sum_bins(const struct bin_sums *s)
{
    _Alignas(64) float below[KERNEL_BLOCK * BIN_FLOATS];
    int j = 0;
    for (; j + BIN_FLOATS <= s->n; j += BIN_FLOATS) {
        bins_columns(BIN_VECTORS, s, j, below);
    }
    for (; j < s->n; j += VEC_LANES) {
        bins_columns(1, s, j, below);
    }
}

/* From the last bin of a column to its first, with the sum of the rows that end in later ones. */
INLINE void bin_gradients_columns(const int vectors, const struct bin_gradients *g, int c, int j)
{
    const float *in = g->in + j, *share = g->share;
    const int32_t *index = g->row;
    const size_t in_stride = g->in_stride;
    vec later[BIN_VECTORS];
    UNROLL
    for (int v = 0; v < vectors; v++) {
        later[v] = vec_zero();
    }
    for (int i = g->first[c + 1] - 1; i >= g->first[c]; i--) {
        float *out = g->out + (size_t)i * (size_t)g->out_stride + j;
        vec sum[BIN_VECTORS];
        UNROLL
        for (int v = 0; v < vectors; v++) {
            sum[v] = later[v];
        }
        for (uint32_t e = g->start[i], end = g->start[i + 1]; e < end; e++) {
            const float *row = in + (size_t)index[e] * in_stride;
            const vec part = vec_broadcast(share + e);
            UNROLL
            for (int v = 0; v < vectors; v++) {
                const vec value = vec_load(row + v * VEC_LANES);
                sum[v] = vec_fma(part, value, sum[v]);
                later[v] = vec_add(later[v], value);
            }
        }
        UNROLL
        for (int v = 0; v < vectors; v++) {
            vec_store(out + v * VEC_LANES, sum[v]);
        }
    }
}

static void simd_bin_gradient(const struct bin_gradients *g)
{
    int j = 0;
    for (; j + BIN_FLOATS <= g->n; j += BIN_FLOATS) {
        for (int c = 0; c < g->columns; c++) {
            bin_gradients_columns(BIN_VECTORS, g, c, j);
        }
    }
    for (; j < g->n; j += VEC_LANES) {
        for (int c = 0; c < g->columns; c++) {
            bin_gradients_columns(1, g, c, j);
        }
    }
}

/*
 * ---- copies: not memcpy, since musl's is slow for a few hundred bytes; KEEP_LOOP keeps the compiler from calling it
 * ----
 */

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
        vec_bytes zero = bytes_zero(); /* counts, by lane */
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
#define GROUPS(count)                                                                                                  \
    case count:                                                                                                        \
        return gather_groups(count, rows, from, stride, indexes, to, seen)
    switch (cols / 16) {
        GROUPS(1);
        GROUPS(2);
        GROUPS(3);
        GROUPS(4);
        GROUPS(5);
        GROUPS(6);
        GROUPS(7);
        GROUPS(8);
        GROUPS(9);
        GROUPS(10);
        GROUPS(11);
        GROUPS(12);
    default:
        return gather_groups(KERNEL_BLOCK / 16, rows, from, stride, indexes, to, seen);
    }
#undef GROUPS
}

/* --- functions --- */

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

/* --- losses without softmax --- */

INLINE vec vec_absolute(vec a)
{
    return vec_max(a, vec_sub(vec_zero(), a));
}

/* log(1 + x) for 0 <= x <= 1, as 2 atanh(x / (2 + x)), whose series ends below a float's precision for 1/3. */
INLINE vec vec_log1p(vec x)
{
    vec s = vec_div(x, vec_add(x, vec_set(2.0f)));
    vec square = vec_mul(s, s);
    vec p = vec_set(1.0f / 15.0f);
    UNROLL
    for (int k = 13; k > 1; k -= 2) {
        p = vec_fma(p, square, vec_set(1.0f / (float)k));
    }
    return vec_mul(vec_add(s, s), vec_fma(p, square, vec_set(1.0f)));
}

/* below where e < 0, above where e > 0, else 0 */
INLINE vec vec_by_sign(vec e, float below, float above)
{
    vec zero = vec_zero();
    return vec_select_less(e, zero, vec_set(below), vec_select_less(zero, e, vec_set(above), zero));
}

INLINE vec sigmoid_loss(vec z, vec wanted, vec smoothing, vec *slope)
{
    vec zero = vec_zero(), one = vec_set(1.0f);
    vec target = vec_fma(smoothing, vec_sub(vec_set(0.5f), wanted), wanted);
    vec small = vec_exp(vec_sub(zero, vec_absolute(z)));
    *slope = vec_sub(vec_div(vec_select_less(z, zero, small, one), vec_add(one, small)), target);
    return vec_add(vec_sub(vec_max(zero, z), vec_mul(z, target)), vec_log1p(small));
}

/* The losses of some outputs, and their slopes. */
INLINE vec loss_of(const enum loss_kind kind, const struct output_loss *s, vec z, vec wanted, vec *slope)
{
    vec e = vec_sub(z, wanted), size = vec_absolute(e);
    if (kind == LOSS_SIGMOID) {
        return sigmoid_loss(z, wanted, vec_set(s->smoothing), slope);
    }
    if (kind == LOSS_MAE) {
        *slope = vec_by_sign(e, -1.0f, 1.0f);
        return size;
    }
    if (kind == LOSS_HUBER) {
        vec delta = vec_set(s->huber_delta);
        *slope = vec_select_less(size, delta, e, vec_by_sign(e, -s->huber_delta, s->huber_delta));
        return vec_select_less(size, delta, vec_mul(vec_set(0.5f), vec_mul(e, e)),
                               vec_mul(delta, vec_sub(size, vec_set(0.5f * s->huber_delta))));
    }
    if (kind == LOSS_QUANTILE) {
        *slope = vec_by_sign(e, -s->quantile, 1.0f - s->quantile);
        return vec_max(vec_mul(vec_set(-s->quantile), e), vec_mul(vec_set(1.0f - s->quantile), e));
    }
    *slope = vec_add(e, e);
    return vec_mul(e, e);
}

INLINE void losses_of(const enum loss_kind kind, const struct output_loss *s)
{
    vec scale = vec_set(s->scale / (float)s->targets);
    for (int r = 0; r < s->rows; r++) {
        float *row = s->outputs + (size_t)r * (size_t)s->stride;
        const float *wanted = s->wanted + (size_t)r * (size_t)s->wanted_stride;
        vec sum = vec_zero();
        s->correct[r] = loop_is_right(s, row, wanted);
        for (int j = 0; j < s->targets; j += VEC_LANES) {
            vec slope, loss = loss_of(kind, s, vec_load(row + j), vec_load(wanted + j), &slope);
            int left = s->targets - j;
            slope = vec_mul(slope, scale);
            vec_store(row + j, left < VEC_LANES ? vec_first(left, slope, vec_zero()) : slope);
            sum = vec_add(sum, left < VEC_LANES ? vec_first(left, loss, vec_zero()) : loss);
        }
        s->losses[r] = vec_sum(sum) / (float)s->targets;
    }
}

static void simd_output_loss(const struct output_loss *s)
{
    switch (s->kind) {
    case LOSS_SIGMOID:
        losses_of(LOSS_SIGMOID, s);
        break;
    case LOSS_MAE:
        losses_of(LOSS_MAE, s);
        break;
    case LOSS_HUBER:
        losses_of(LOSS_HUBER, s);
        break;
    case LOSS_QUANTILE:
        losses_of(LOSS_QUANTILE, s);
        break;
    case LOSS_AUTO:
    case LOSS_SOFTMAX:
    case LOSS_MSE:
        losses_of(LOSS_MSE, s);
        break;
    }
}

/* --- bytes --- */

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
    .sum_rows = simd_sum_rows,
    .sum_bins = simd_sum_bins,
    .bin_gradient = simd_bin_gradient,
    .softmax = simd_softmax,
    .output_loss = simd_output_loss,
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
#ifdef KERNELS_PARTS
    .pack_parts = KERNELS_PARTS,
    .unpack = KERNELS_UNPACK,
#endif
    .pair = loop_pair,
    .scale = loop_scale,
};
#endif
