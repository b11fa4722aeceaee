/*
 * Loops simple enough for the compiler to vectorise: every kernel file includes them, and so compiles them for its
 * instruction set.
 */
#ifndef BASE_KERNELS_KERNELS_LOOPS_H
#define BASE_KERNELS_KERNELS_LOOPS_H

#include "base/kernels.h"

#include <string.h>

/* Pads to the multiple of KERNEL_ENTRIES that `compress` promises. */
static inline int pad_entries(int entries, uint32_t *offset, float *value)
{
    for (; entries % KERNEL_ENTRIES != 0; entries++) {
        offset[entries] = offset[entries - 1];
        value[2 * entries] = 0.0f;
        value[2 * entries + 1] = 0.0f;
    }
    return entries;
}

/* The row of floats at a byte offset from another one. */
static inline const float *row_behind(const float *row, uint32_t bytes)
{
    return (const float *)(const void *)((const char *)row + bytes);
}

static inline float *out_behind(float *row, uint32_t bytes)
{
    return (float *)(void *)((char *)row + bytes);
}

/* 8 Philox blocks side by side: word w of block i is word[w][i]. */
struct philox_lanes {
    uint32_t word[4][DROPOUT_BLOCKS];
};

static inline void loop_philox(struct philox_key key, struct philox_lanes *lanes)
{
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < DROPOUT_BLOCKS; i++) {
            uint64_t product0 = (uint64_t)0xD2511F53u * lanes->word[0][i];
            uint64_t product1 = (uint64_t)0xCD9E8D57u * lanes->word[2][i];
            uint32_t word1 = lanes->word[1][i];
            uint32_t word3 = lanes->word[3][i];
            lanes->word[0][i] = (uint32_t)(product1 >> 32) ^ word1 ^ key.word[0];
            lanes->word[1][i] = (uint32_t)product1;
            lanes->word[2][i] = (uint32_t)(product0 >> 32) ^ word3 ^ key.word[1];
            lanes->word[3][i] = (uint32_t)product0;
        }
        key.word[0] += 0x9E3779B9u;
        key.word[1] += 0xBB67AE85u;
    }
}

/* The masks of one group of units. */
static inline void loop_dropout_group(const struct drop *d, int32_t place, int group, float mask[DROPOUT_UNITS])
{
    struct philox_lanes lanes;
    for (int i = 0; i < DROPOUT_BLOCKS; i++) {
        uint32_t counter[4];
        dropout_counter(&d->batch, d->layer, place, (uint32_t)(group * DROPOUT_BLOCKS + i), counter);
        for (int w = 0; w < 4; w++) {
            lanes.word[w][i] = counter[w];
        }
    }
    loop_philox(philox_key(d->dropout->seed), &lanes);
    for (int k = 0; k < DROPOUT_UNITS / DROPOUT_BLOCKS; k++) {
        for (int i = 0; i < DROPOUT_BLOCKS; i++) {
            uint32_t half = lanes.word[k / 2][i] >> 16 * (k % 2) & 0xffffu;
            mask[k * DROPOUT_BLOCKS + i] = half < d->dropout->threshold ? 0.0f : d->dropout->scale;
        }
    }
}

static inline void loop_drop(const struct drop *d)
{
    for (int r = 0; r < d->rows; r++) {
        const float *in = d->in + (size_t)r * (size_t)d->stride;
        float *mask = d->mask + (size_t)r * (size_t)d->stride;
        float *out = d->out + (size_t)r * (size_t)d->stride;
        for (int j = 0; j < d->n;) {
            float masks[DROPOUT_UNITS];
            int skip = (d->first + j) % DROPOUT_UNITS;
            int count = DROPOUT_UNITS - skip < d->n - j ? DROPOUT_UNITS - skip : d->n - j;
            loop_dropout_group(d, d->places[r], (d->first + j) / DROPOUT_UNITS, masks);
            for (int i = 0; i < count; i++) {
                mask[j + i] = masks[skip + i];
                out[j + i] = in[j + i] * masks[skip + i];
            }
            j += count;
        }
    }
}

static inline void loop_column_sums(int rows, int n, const float *from, int stride, float *restrict sum,
                                    bool accumulate)
{
    if (!accumulate) {
        memset(sum, 0, (size_t)n * sizeof *sum);
    }
    for (int r = 0; r < rows; r++, from += stride) {
        for (int j = 0; j < n; j++) {
            sum[j] += from[j];
        }
    }
}

static inline void loop_add(int n, const float *restrict from, float *restrict to)
{
    for (int i = 0; i < n; i++) {
        to[i] += from[i];
    }
}

/* What label smoothing adds to the cross-entropy of a row with this largest logit and this logit of the label. */
static inline float loop_smoothing_loss(const struct softmax *s, const float *row, float target)
{
    float sum = 0.0f;
    for (int j = 0; j < s->classes; j++) {
        sum += target - row[j];
    }
    return s->smoothing * sum / (float)s->classes;
}

/* Subtracts the target from (softmax x scale). */
static inline void loop_subtract_target(const struct softmax *s, float *row, int label)
{
    if (s->smoothing > 0.0f) {
        float share = s->scale * s->smoothing / (float)s->classes;
        for (int j = 0; j < s->classes; j++) {
            row[j] -= share;
        }
    }
    row[label] -= s->scale * (1.0f - s->smoothing);
}

/* Of a row of outputs and what was wanted. */
static inline bool loop_is_right(const struct output_loss *s, const float *row, const float *wanted)
{
    int wrong = s->kind != LOSS_SIGMOID;
    for (int j = 0; j < s->targets; j++) {
        wrong |= (row[j] > 0.0f) != (wanted[j] > 0.5f);
    }
    return !wrong;
}

static inline void loop_multiply(int n, const float *restrict from, float *restrict to)
{
    for (int i = 0; i < n; i++) {
        to[i] *= from[i];
    }
}

static inline void loop_derive(enum activation activation, int n, const float *restrict a, float *restrict delta)
{
    switch (activation) {
    case ACTIVATION_RELU:
        for (int i = 0; i < n; i++) {
            delta[i] = a[i] > 0.0f ? delta[i] : 0.0f;
        }
        break;
    case ACTIVATION_SIGMOID:
        for (int i = 0; i < n; i++) {
            delta[i] *= a[i] * (1.0f - a[i]);
        }
        break;
    case ACTIVATION_TANH:
        for (int i = 0; i < n; i++) {
            delta[i] *= 1.0f - a[i] * a[i];
        }
        break;
    case ACTIVATION_IDENTITY:
        break;
    }
}

static inline void loop_transpose(int rows, int cols, const float *restrict from, int from_stride, float *restrict to,
                                  int n)
{
    for (int c = 0; c < cols; c++, to += n) {
        for (int r = 0; r < rows; r++) {
            to[r] = from[(size_t)r * (size_t)from_stride + (size_t)c];
        }
        memset(to + rows, 0, (size_t)(n - rows) * sizeof *to);
    }
}

static inline void loop_pair(int count, struct signature *signatures)
{
    for (; count > 2; count -= 2, signatures += 2) {
        int among = count < KERNEL_AMONG ? count : KERNEL_AMONG;
        const uint64_t first = signatures[0].bits[0], second = signatures[0].bits[1];
        uint64_t best = UINT64_MAX; /* differing bits, then the image's number */
        for (int i = 1; i < among; i++) {
            int differ = __builtin_popcountll(signatures[i].bits[0] ^ first) +
                         __builtin_popcountll(signatures[i].bits[1] ^ second);
            uint64_t found = (uint64_t)differ << 32 | (uint64_t)i;
            best = found < best ? found : best;
        }
        struct signature alike = signatures[best & UINT32_MAX];
        signatures[best & UINT32_MAX] = signatures[1];
        signatures[1] = alike;
    }
}

static inline void loop_scale(int count, const uint8_t *restrict bytes, float *restrict to)
{
    for (int i = 0; i < count; i++) {
        to[i] = (float)bytes[i] * (1.0f / 255.0f);
    }
}

#endif
