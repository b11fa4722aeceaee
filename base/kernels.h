/*
 * The inner loops of a network's passes, one table per instruction set. The CPU engine chooses one at run time; layers
 * that train.placement puts beside a GPU use the reference (cuda/device/host.c).
 *
 * kernels_reference.c is the readable version. kernels_avx2.c, kernels_avx512.c and kernels_neon.c each define a few
 * primitives and share kernels_simd.h. All tables compute the same up to the rounding of sums; within one table every
 * sum has a fixed order, which depends neither on how callers split rows nor on threads.
 *
 * Unless stated otherwise, `n` below is a number of floats that is a multiple of `lanes`, and arrays of rows of n
 * floats start on 64-byte boundaries with strides that are multiples of 16 floats. The reference asks for none of this,
 * except that softmax and output_loss pad their rows.
 */
#ifndef BASE_KERNELS_H
#define BASE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/config.h"
#include "base/error.h"
#include "base/random/dropout.h"

enum {
    KERNEL_CHUNK = 128, /* samples processed at once: their indexes fit a byte */
    KERNEL_BLOCK = 208, /* most pixels of a block, a multiple of 16: a quarter of a digit */
    KERNEL_NARROW = 16, /* most outputs of a last layer that is computed as partial sums */
    KERNEL_STRIP = 128, /* most floats in a strip of columns */
    KERNEL_ENTRIES = 2, /* processed together */
    KERNEL_SLACK = 64,  /* entries that `compress`, `pack_parts` and `unpack` may write beyond the last */
    KERNEL_AMONG = 64,  /* images, itself included, among which `pair` searches for a similar one */
};

/* c[i][j] (+)= sum over l of A(i, l) x b[l][j], l ascending; A(i, l) = a[i * a_row + l * a_col]. */
struct gemm {
    int m, n, k;
    const float *a;
    int a_row, a_col;
    const float *b;
    int b_stride;
    float *c;
    int c_stride;
    bool accumulate;
    /* Row i of `ahead` is prefetched with row i of c. NULL: no prefetching. */
    const float *ahead;
    int ahead_stride;
};

/*
 * How the entries of a pair are divided: the first `both` are of both rows, those up to `even` of the even row alone,
 * the rest of the odd one. Each part is a multiple of KERNEL_ENTRIES.
 */
struct parts {
    uint8_t both, even;
};

/*
 * out[2r][j] (+)= sum over entries e of pair r, in order, of value[2e] x (in + offset[e])[j]; out[2r + 1] with value[2e
 * + 1].
 *
 * Rows are processed in pairs that share many entries, as neighbouring pixels or images of one class do: each load
 * serves both. The entries of pair r are start[r] .. start[r + 1] - 1, a multiple of KERNEL_ENTRIES (padded with values
 * 0, which may repeat an offset). `order` groups pairs with the same number of entries, which helps the branch
 * predictor. With `parts`, entries of only one of the two rows are multiplied for that row alone.
 */
struct sparse {
    int pairs, n;
    const uint8_t *order;
    const uint32_t *start;
    const struct parts *parts; /* of each pair; NULL: all entries are of both rows */
    const uint32_t *offset;    /* in bytes */
    const float *value;
    const float *in;
    float *out;
    int out_stride;
    bool accumulate;
    /*
     * Rows ahead_rows[2i] and [2i + 1] of `ahead` are prefetched with the ith pair. NULL, or `accumulate`: no
     * prefetching.
     */
    const float *ahead;
    const int32_t *ahead_rows;
    int ahead_stride;
};

/*
 * The product with the transpose: (out + offset[e])[j] += value[2e] x in[even][j] + value[2e + 1] x in[odd][j] for the
 * entries e of pair r, with rows even = in_rows[2r] and odd = in_rows[2r + 1]. For n of one or two vectors this beats
 * `sparse`, and it needs no separate index.
 */
struct scatter {
    int pairs, n;
    const uint32_t *start;
    const uint32_t *offset;
    const float *value;
    const float *in;
    const int32_t *in_rows; /* partner of a last, unpaired one: any valid row, with values 0 */
    int in_stride;
    float *out;
};

/*
 * out[r][j] (+)= sum over entries e of row r, in order, of in[index[e]][j]; they are start[r] .. start[r + 1] - 1. It
 * is the product with a sparse matrix of ones.
 */
struct row_sums {
    int rows, n;
    const uint32_t *start;
    const int32_t *index;
    const float *in;
    size_t in_stride;
    float *out;
    int out_stride;
    bool accumulate;
};

/*
 * The first layer on encoded numbers (worker/data/examples.h), whose bins are rows of weights: those of column c are
 * first[c] .. first[c + 1] - 1, at most KERNEL_BLOCK in all. In row r column c fills the bins before bin[r][c], and
 * `share` of that one: out[r][j] += sum over c, in order, of in[i][j] for the bins i before it, and share x its
 * in[i][j]. A table of sums makes two operations on vectors of it, however many the bins are.
 */
struct bin_sums {
    int rows, n, columns;
    const int32_t *first; /* [columns + 1] */
    const int32_t *bin;   /* [rows, columns] */
    const float *share;   /* [rows, columns] */
    const float *in;
    size_t in_stride;
    float *out;
    int out_stride;
};

/*
 * The product with the transpose, for the gradient. Entries start[i] .. start[i + 1] - 1 are the rows that end in bin
 * i: out[i][j] = sum over them of share[e] x in[row[e]][j], and over the entries of the column's later bins of
 * in[row[e]][j].
 */
struct bin_gradients {
    int n, columns;
    const int32_t *first;  /* [columns + 1] */
    const uint32_t *start; /* [first[columns] + 1] */
    const int32_t *row;
    const float *share;
    const float *in;
    size_t in_stride;
    float *out;
    int out_stride;
};

/*
 * mask[r][j] = 0 or scale, by base/random/dropout.h for unit first + j of image places[r]; out[r][j] = in[r][j] x
 * mask[r][j].
 */
struct drop {
    const struct dropout *dropout;
    struct dropout_batch batch;
    int layer;
    int rows, n, stride;
    int first;
    const int32_t *places;
    const float *in;
    float *mask;
    float *out;
};

/* Summary of an image, to find similar ones: one bit for each of 128 pixels, whether it is zero. */
struct signature {
    uint64_t bits[2];
    int32_t place; /* in the batch */
};

/*
 * Softmax cross-entropy of rows of logits, in place: row r becomes (softmax - target) x scale. The target is one-hot,
 * or with label smoothing (1 - smoothing) x onehot(labels[r]) + smoothing / classes (Szegedy et al., "Rethinking the
 * Inception architecture", 2015, as tf.losses.softmax_cross_entropy does).
 */
struct softmax {
    int rows;
    int classes;
    float *logits; /* [rows, classes rounded up to lanes]; the padding becomes zero */
    int stride;
    const int32_t *labels;
    float scale;
    float smoothing;
    float *losses;    /* [rows]: cross-entropy of each row; not finite if a logit is not */
    uint8_t *correct; /* [rows]: 1 if the first of the largest logits is that of the label */
};

/*
 * The losses that are sums over outputs, in place: row r becomes the gradient of (scale x its loss). A row's loss is
 * the mean over its targets of, with e = output - wanted:
 *
 *     LOSS_SIGMOID   cross-entropy of sigmoid(output), with label smoothing towards 1/2
 *     LOSS_MSE       e^2
 *     LOSS_MAE       |e|
 *     LOSS_HUBER     e^2 / 2 where |e| <= huber_delta, else huber_delta x (|e| - huber_delta / 2)
 *     LOSS_QUANTILE  -quantile x e where e < 0, else (1 - quantile) x e
 */
struct output_loss {
    enum loss_kind kind;
    int rows, targets;
    float *outputs; /* [rows, targets rounded up to lanes]; the padding becomes zero */
    int stride;
    const float *wanted; /* [rows, targets rounded up to 16], the padding zero */
    int wanted_stride;
    float scale;
    float smoothing, huber_delta, quantile;
    float *losses;    /* [rows]; not finite if an output is not */
    uint8_t *correct; /* [rows]: 1 if every sigmoid is on the right side of 1/2; 0 for other losses */
};

struct kernels {
    const char *name;
    int lanes;
    int strip_floats; /* best maximum width of a strip of columns; at most KERNEL_STRIP */
    float dense_from; /* share of nonzero pixels in a block above which the dense loops win */

    void (*gemm)(const struct gemm *gemm);
    void (*sparse)(const struct sparse *sparse);
    void (*scatter)(const struct scatter *scatter);
    void (*sum_rows)(const struct row_sums *sums);
    void (*sum_bins)(const struct bin_sums *sums);
    void (*bin_gradient)(const struct bin_gradients *gradients);
    void (*softmax)(const struct softmax *softmax);
    void (*output_loss)(const struct output_loss *loss);

    void (*drop)(const struct drop *drop);

    /* Sets rows x n of `to` to `row`, or to zero if row is NULL. */
    void (*fill)(int rows, int n, const float *row, float *to, int stride);
    /* sum[j] (+)= sum over rows of from[r][j]. */
    void (*column_sums)(int rows, int n, const float *from, int stride, float *sum, bool accumulate);
    /* to[i] += from[i]. */
    void (*add)(int n, const float *from, float *to);
    /* to[i] *= from[i]. */
    void (*multiply)(int n, const float *from, float *to);
    /* z[i] = f(z[i]). */
    void (*activate)(enum activation activation, int n, float *z);
    /* delta[i] *= f'(z[i]), given a[i] = f(z[i]). */
    void (*derive)(enum activation activation, int n, const float *a, float *delta);
    /* to[c][r] = from[r][c]; the columns of `to` from rows up to n become zero. */
    void (*transpose)(int rows, int cols, const float *from, int from_stride, float *to, int n);

    /*
     * to[r][c] = from[indexes[r] x stride + c], bytes, rows of cols; indexes NULL: r itself. seen[c] |= every byte of
     * column c. Returns the number of nonzero bytes. cols: a multiple of 16, at most KERNEL_BLOCK; `to` may be `from`.
     */
    int64_t (*gather)(int rows, int cols, const uint8_t *from, size_t stride, const int32_t *indexes, uint8_t *to,
                      uint8_t *seen);
    /* to[c][r] = from[r][c], bytes; rows (of from) and cols are multiples of 16 and the strides. */
    void (*transpose_bytes)(int rows, int cols, const uint8_t *from, uint8_t *to);
    /*
     * Appends position x stride and both values / 255 wherever one of two rows of bytes is not zero, then entries of
     * value 0 up to a multiple of KERNEL_ENTRIES; returns the number of entries. count: a multiple of 16.
     */
    int (*compress)(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset, float *value);
    /*
     * The same in three parts, each padded likewise: where both are nonzero, where only the even one is, where only the
     * odd one is. An entry is packed into position x 2^16 + odd byte x 2^8 + even byte. count: at most KERNEL_BLOCK.
     * NULL: parts do not pay with these kernels.
     */
    int (*pack_parts)(int count, const uint8_t *even, const uint8_t *odd, uint32_t *packed, struct parts *parts);
    /* Turns packed entries into position x stride and both values / 255; may write up to KERNEL_SLACK entries more. */
    void (*unpack)(int count, int stride, const uint32_t *packed, uint32_t *offset, float *value);
    /*
     * Reorders images so that 2i and 2i + 1 are similar: each is paired with the one of the KERNEL_AMONG - 1 after it
     * whose signature differs in the fewest bits, the first of equals.
     */
    void (*pair)(int count, struct signature *signatures);
    /* to[i] = bytes[i] / 255. count: a multiple of 16. */
    void (*scale)(int count, const uint8_t *bytes, float *to);
};

extern const struct kernels kernels_reference;
#if defined(__x86_64__)
extern const struct kernels kernels_avx2;
extern const struct kernels kernels_avx512;
#elif defined(__aarch64__)
extern const struct kernels kernels_neon;
#endif

/*
 * Sets *kernels to the requested table, or for CPU_KERNELS_AUTO to the fastest that this CPU supports. Fails if the CPU
 * does not support the requested one. *why (static text) explains the choice.
 */
bool kernels_choose(const struct kernels **kernels, const char **why, enum cpu_kernels wanted, struct error *error);

#endif
