/*
 * The kernels in plain C: tests compare the others with them, and CPUs without AVX2 run them.
 */
#include "base/kernels.h"

#include <math.h>
#include <string.h>

#include "base/kernels/kernels_loops.h"

enum { LANES = 16 };

static void reference_gemm(const struct gemm *g)
{
    for (int i = 0; i < g->m; i++) {
        float *c = g->c + (size_t)i * (size_t)g->c_stride;
        if (!g->accumulate) {
            memset(c, 0, (size_t)g->n * sizeof *c);
        }
        for (int l = 0; l < g->k; l++) {
            float a = g->a[(size_t)i * (size_t)g->a_row + (size_t)l * (size_t)g->a_col];
            const float *b = g->b + (size_t)l * (size_t)g->b_stride;
            for (int j = 0; j < g->n; j++) {
                c[j] += a * b[j];
            }
        }
    }
}

static void reference_sparse(const struct sparse *s)
{
    for (int i = 0; i < s->pairs; i++) {
        int r = s->order[i];
        for (int odd = 0; odd < 2; odd++) {
            float *out = s->out + (size_t)(2 * r + odd) * (size_t)s->out_stride;
            if (!s->accumulate) {
                memset(out, 0, (size_t)s->n * sizeof *out);
            }
            for (uint32_t e = s->start[r]; e < s->start[r + 1]; e++) {
                const float *in = row_behind(s->in, s->offset[e]);
                for (int j = 0; j < s->n; j++) {
                    out[j] += s->value[2 * e + (uint32_t)odd] * in[j];
                }
            }
        }
    }
}

static void reference_scatter(const struct scatter *s)
{
    for (int r = 0; r < s->pairs; r++) {
        for (uint32_t e = s->start[r]; e < s->start[r + 1]; e++) {
            float *out = out_behind(s->out, s->offset[e]);
            for (int odd = 0; odd < 2; odd++) {
                const float *in = s->in + (size_t)s->in_rows[2 * r + odd] * (size_t)s->in_stride;
                for (int j = 0; j < s->n; j++) {
                    out[j] += s->value[2 * e + (uint32_t)odd] * in[j];
                }
            }
        }
    }
}

static void reference_drop(const struct drop *d)
{
    for (int r = 0; r < d->rows; r++) {
        for (int j = 0; j < d->n; j++) {
            int at = r * d->stride + j;
            bool drops = dropout_drops(d->dropout, &d->batch, d->layer, d->places[r], d->first + j);
            d->mask[at] = drops ? 0.0f : d->dropout->scale;
            d->out[at] = d->in[at] * d->mask[at];
        }
    }
}

static float softmax_row(const struct softmax *s, float *row, int label, uint8_t *correct)
{
    int best = 0;
    for (int j = 1; j < s->classes; j++) {
        if (!(row[j] <= row[best])) {
            best = j;
        }
    }
    float largest = row[best];
    float target = row[label];
    float smoothed = s->smoothing > 0.0f ? loop_smoothing_loss(s, row, target) : 0.0f;
    row[0] = expf(row[0] - largest);
    float sum = row[0];
    for (int j = 1; j < s->classes; j++) {
        row[j] = expf(row[j] - largest);
        sum += row[j];
    }
    for (int j = 0; j < s->classes; j++) {
        row[j] = row[j] / sum * s->scale;
    }
    loop_subtract_target(s, row, label);
    *correct = best == label;
    return logf(sum) + (largest - target) + smoothed;
}

static void reference_softmax(const struct softmax *s)
{
    for (int r = 0; r < s->rows; r++) {
        float *row = s->logits + (size_t)r * (size_t)s->stride;
        s->losses[r] = softmax_row(s, row, s->labels[r], &s->correct[r]);
        for (int j = s->classes; j % LANES != 0; j++) {
            row[j] = 0.0f;
        }
    }
}

static float sigmoid_loss(float z, float wanted, float smoothing, float *slope)
{
    float target = wanted + smoothing * (0.5f - wanted);
    float small = expf(-fabsf(z));
    *slope = (z < 0.0f ? small : 1.0f) / (1.0f + small) - target;
    return (z > 0.0f ? z : 0.0f) - z * target + log1pf(small);
}

/* The loss of one output, and its slope. */
static float loss_of(const struct output_loss *s, float z, float wanted, float *slope)
{
    float e = z - wanted, sign = (float)((e > 0.0f) - (e < 0.0f));
    switch (s->kind) {
    case LOSS_SIGMOID:
        return sigmoid_loss(z, wanted, s->smoothing, slope);
    case LOSS_MAE:
        *slope = sign;
        return fabsf(e);
    case LOSS_HUBER:
        *slope = fabsf(e) < s->huber_delta ? e : s->huber_delta * sign;
        return fabsf(e) < s->huber_delta ? 0.5f * e * e : s->huber_delta * (fabsf(e) - 0.5f * s->huber_delta);
    case LOSS_QUANTILE:
        *slope = e < 0.0f ? -s->quantile : e > 0.0f ? 1.0f - s->quantile : 0.0f;
        return e < 0.0f ? -s->quantile * e : (1.0f - s->quantile) * e;
    case LOSS_AUTO:
    case LOSS_SOFTMAX:
    case LOSS_MSE:
        break;
    }
    *slope = 2.0f * e;
    return e * e;
}

static void reference_output_loss(const struct output_loss *s)
{
    for (int r = 0; r < s->rows; r++) {
        float *row = s->outputs + (size_t)r * (size_t)s->stride;
        const float *wanted = s->wanted + (size_t)r * (size_t)s->wanted_stride;
        float sum = 0.0f, slope;
        s->correct[r] = loop_is_right(s, row, wanted);
        for (int j = 0; j < s->targets; j++) {
            sum += loss_of(s, row[j], wanted[j], &slope);
            row[j] = slope * (s->scale / (float)s->targets);
        }
        for (int j = s->targets; j % LANES != 0; j++) {
            row[j] = 0.0f;
        }
        s->losses[r] = sum / (float)s->targets;
    }
}

static void reference_sum_rows(const struct row_sums *s)
{
    for (int r = 0; r < s->rows; r++) {
        float *out = s->out + (size_t)r * (size_t)s->out_stride;
        if (!s->accumulate) {
            memset(out, 0, (size_t)s->n * sizeof *out);
        }
        for (uint32_t e = s->start[r]; e < s->start[r + 1]; e++) {
            const float *in = s->in + (size_t)s->index[e] * s->in_stride;
            for (int j = 0; j < s->n; j++) {
                out[j] += in[j];
            }
        }
    }
}

static void reference_sum_bins(const struct bin_sums *s)
{
    for (int r = 0; r < s->rows; r++) {
        float *out = s->out + (size_t)r * (size_t)s->out_stride;
        for (int c = 0; c < s->columns; c++) {
            const size_t at = (size_t)r * (size_t)s->columns + (size_t)c;
            for (int i = s->first[c]; i <= s->bin[at]; i++) {
                const float filled = i < s->bin[at] ? 1.0f : s->share[at];
                for (int j = 0; j < s->n; j++) {
                    out[j] += filled * s->in[(size_t)i * s->in_stride + (size_t)j];
                }
            }
        }
    }
}

static void reference_bin_gradient(const struct bin_gradients *g)
{
    for (int c = 0; c < g->columns; c++) {
        for (int i = g->first[c]; i < g->first[c + 1]; i++) {
            float *out = g->out + (size_t)i * (size_t)g->out_stride;
            memset(out, 0, (size_t)g->n * sizeof *out);
            for (uint32_t e = g->start[i]; e < g->start[g->first[c + 1]]; e++) {
                const float filled = e < g->start[i + 1] ? g->share[e] : 1.0f;
                for (int j = 0; j < g->n; j++) {
                    out[j] += filled * g->in[(size_t)g->row[e] * g->in_stride + (size_t)j];
                }
            }
        }
    }
}

static void reference_activate(enum activation activation, int n, float *z)
{
    for (int i = 0; i < n; i++) {
        switch (activation) {
        case ACTIVATION_RELU:
            z[i] = z[i] < 0.0f ? 0.0f : z[i];
            break;
        case ACTIVATION_SIGMOID:
            z[i] = 1.0f / (1.0f + expf(-z[i]));
            break;
        case ACTIVATION_TANH:
            z[i] = tanhf(z[i]);
            break;
        case ACTIVATION_IDENTITY:
            break;
        }
    }
}

static void reference_fill(int rows, int n, const float *row, float *to, int stride)
{
    for (int r = 0; r < rows; r++, to += stride) {
        if (row) {
            memcpy(to, row, (size_t)n * sizeof *to);
        } else {
            memset(to, 0, (size_t)n * sizeof *to);
        }
    }
}

static int64_t reference_gather(int rows, int cols, const uint8_t *from, size_t stride, const int32_t *indexes,
                                uint8_t *to, uint8_t *seen)
{
    int64_t set = 0;
    for (int r = 0; r < rows; r++, to += cols) {
        memmove(to, from + (size_t)(indexes ? indexes[r] : r) * stride, (size_t)cols);
        for (int c = 0; c < cols; c++) {
            seen[c] |= to[c];
            set += to[c] != 0;
        }
    }
    return set;
}

static int reference_compress(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset,
                              float *value)
{
    int entries = 0;
    for (int i = 0; i < count; i++) {
        if (even[i] != 0 || odd[i] != 0) {
            offset[entries] = (uint32_t)(i * stride);
            value[2 * entries] = (float)even[i] * (1.0f / 255.0f);
            value[2 * entries + 1] = (float)odd[i] * (1.0f / 255.0f);
            entries++;
        }
    }
    return pad_entries(entries, offset, value);
}

static int reference_pack_parts(int count, const uint8_t *even, const uint8_t *odd, uint32_t *packed,
                                struct parts *parts)
{
    static const bool has_even[] = {true, true, false}, has_odd[] = {true, false, true};
    int entries = 0, ends[3];
    for (int part = 0; part < 3; part++) {
        for (int i = 0; i < count; i++) {
            if ((even[i] != 0) == has_even[part] && (odd[i] != 0) == has_odd[part]) {
                packed[entries++] = (uint32_t)i << 16 | (uint32_t)odd[i] << 8 | even[i];
            }
        }
        for (; entries % KERNEL_ENTRIES != 0; entries++) {
            packed[entries] = packed[entries - 1] & 0xffff0000u;
        }
        ends[part] = entries;
    }
    *parts = (struct parts){(uint8_t)ends[0], (uint8_t)ends[1]};
    return entries;
}

static void reference_unpack(int count, int stride, const uint32_t *packed, uint32_t *offset, float *value)
{
    for (int i = 0; i < count; i++) {
        offset[i] = (packed[i] >> 16) * (uint32_t)stride;
        value[2 * i] = (float)(packed[i] & 0xff) * (1.0f / 255.0f);
        value[2 * i + 1] = (float)(packed[i] >> 8 & 0xff) * (1.0f / 255.0f);
    }
}

static void reference_transpose_bytes(int rows, int cols, const uint8_t *from, uint8_t *to)
{
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < cols; c++) {
            to[c * rows + r] = from[r * cols + c];
        }
    }
}

const struct kernels kernels_reference = {
    .name = "reference",
    .lanes = LANES,
    .strip_floats = 64,
    .dense_from = 0.5f,
    .gemm = reference_gemm,
    .sparse = reference_sparse,
    .scatter = reference_scatter,
    .sum_rows = reference_sum_rows,
    .sum_bins = reference_sum_bins,
    .bin_gradient = reference_bin_gradient,
    .softmax = reference_softmax,
    .output_loss = reference_output_loss,
    .drop = reference_drop,
    .fill = reference_fill,
    .column_sums = loop_column_sums,
    .add = loop_add,
    .multiply = loop_multiply,
    .activate = reference_activate,
    .derive = loop_derive,
    .transpose = loop_transpose,
    .gather = reference_gather,
    .transpose_bytes = reference_transpose_bytes,
    .compress = reference_compress,
    .pack_parts = reference_pack_parts,
    .unpack = reference_unpack,
    .pair = loop_pair,
    .scale = loop_scale,
};
