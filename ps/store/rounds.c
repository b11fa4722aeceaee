/* An outer optimizer is a separate train section. For robust means values are sorted as integers of the same order. */
#include "ps/store/rounds.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* --- The outer optimizer --- */

struct config_train outer_train(const struct config_train *train)
{
    struct config_train outer = *train;
    if (!config_has_rounds(train)) {
        return outer;
    }
    outer.optimizer = train->outer_optimizer == OUTER_AVERAGE ? OPTIMIZER_SGD
                      : train->outer_optimizer == OUTER_ADAM  ? OPTIMIZER_ADAM
                                                              : OPTIMIZER_MOMENTUM;
    outer.is_outer = true;
    outer.nesterov = train->outer_optimizer == OUTER_NESTEROV;
    outer.lazy_updates = false;
    outer.learning_rate =
        train->outer_learning_rate > 0 ? train->outer_learning_rate : config_default_outer_rate(train->outer_optimizer);
    outer.momentum = outer.beta1 = train->outer_momentum;
    outer.beta2 = 0.99;
    outer.epsilon = 1e-3;
    outer.retries = 0; /* the workers' own steps are smaller */
    outer.lr_decay = 1.0;
    outer.lr_warmup_steps = outer.lr_cosine_steps = 0;
    outer.l1 = outer.l2 = outer.weight_decay = 0.0;
    return outer;
}

double outer_squares(double so_far, const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        so_far += (double)values[i] * (double)values[i];
    }
    return so_far;
}

double outer_freshness(double staleness)
{
    return 1 / sqrt(1 + staleness);
}

float outer_clip(double squares, double most)
{
    const double norm = sqrt(squares);
    return most > 0 && norm > most ? (float)(most / norm) : 1.0f;
}

/* --- Robust means --- */

/*
 * Values are sorted by Batcher's sorting network: the same comparisons for every float, so that neighbouring floats are
 * sorted in vectors.
 */

enum { TILE = 16 /* floats sorted side by side */ };

int robust_cut(const struct config_train *train, int count)
{
    const int most = (count - 1) / 2;
    if (train->aggregate == AGGREGATE_MEAN) {
        return -1;
    }
    const int cut = (int)floor(train->trim * count + 1e-9);
    return train->aggregate == AGGREGATE_MEDIAN || cut > most ? most : cut;
}

size_t robust_scratch(int workers)
{
    return (size_t)workers * TILE * sizeof(int32_t);
}

/* Its own inverse. */
static inline int32_t ordered(int32_t bits)
{
    return bits < 0 ? bits ^ INT32_MAX : bits;
}

static void load(int32_t (*keys)[TILE], const float *const *values, const float *scales, int workers, size_t at,
                 size_t count)
{
    for (int k = 0; k < workers; k++) {
        float scaled[TILE] = {0};
        int32_t bits[TILE];
        for (size_t i = 0; values[k] && i < count; i++) {
            scaled[i] = values[k][at + i] * scales[k] + 0.0f; /* never -0: some rows of zeros are not sent */
        }
        memcpy(bits, scaled, sizeof bits);
        for (int i = 0; i < TILE; i++) {
            keys[k][i] = ordered(bits[i]);
        }
    }
}

static inline void exchange(int32_t *restrict low, int32_t *restrict high)
{
    for (int i = 0; i < TILE; i++) {
        const int32_t a = low[i], b = high[i];
        low[i] = a < b ? a : b;
        high[i] = a < b ? b : a;
    }
}

/* Knuth, The Art of Computer Programming 3, 5.2.2, algorithm M. */
static void sort(int32_t (*keys)[TILE], int count)
{
    int top = 1;
    while (top * 2 < count) {
        top *= 2;
    }
    for (int p = top; p > 0; p /= 2) {
        for (int q = top, r = 0, d = p;; q /= 2) {
            for (int i = 0; i + d < count; i++) {
                if ((i & p) == r) {
                    exchange(keys[i], keys[i + d]);
                }
            }
            if (q == p) {
                break;
            }
            d = q - p;
            r = p;
        }
    }
}

static void add_up(float *sum, int32_t (*keys)[TILE], int first, int end)
{
    for (int k = first; k < end; k++) {
        int32_t bits[TILE];
        float value[TILE];
        for (int i = 0; i < TILE; i++) {
            bits[i] = ordered(keys[k][i]);
        }
        memcpy(value, bits, sizeof value);
        for (int i = 0; i < TILE; i++) {
            sum[i] = k == first ? value[i] : sum[i] + value[i];
        }
    }
}

void robust_mean(float *out, const float *const *values, const float *scales, int workers, int cut, size_t count,
                 void *scratch)
{
    int32_t(*keys)[TILE] = scratch;
    const float left = (float)(workers - 2 * cut);
    for (size_t at = 0; at < count; at += TILE) {
        const size_t here = count - at < TILE ? count - at : TILE;
        float sum[TILE];
        load(keys, values, scales, workers, at, here);
        sort(keys, workers);
        add_up(sum, keys, cut, workers - cut);
        for (size_t i = 0; i < here; i++) {
            out[at + i] = sum[i] / left;
        }
    }
}
