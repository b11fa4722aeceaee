/*
 * The loops over packed floats, compiled once per instruction set: ps/store/codec.c includes this for the baseline,
 * ps/store/codec_avx2.c and ps/store/codec_avx512.c, compiled for the instruction sets in their names, rename their
 * table first. Only tests include it elsewhere.
 */
#ifndef PS_STORE_CODEC_LOOPS_H
#define PS_STORE_CODEC_LOOPS_H

#include <float.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "ps/store/codec.h"

struct codec_loops {
    void (*narrow)(uint16_t *restrict halves, const float *restrict values, size_t n);
    void (*widen)(float *restrict values, const uint16_t *restrict halves, size_t n);
    uint32_t (*feed_back)(uint16_t *restrict halves, float *restrict remainders, const float *restrict values,
                          size_t n);
    size_t (*encode_delta)(uint8_t *restrict encoded, uint16_t *restrict known, const uint16_t *restrict halves,
                           size_t n, bool in_full);
    size_t (*apply_delta)(uint16_t *restrict known, const uint8_t *restrict encoded, size_t size, size_t n);
    void (*int8_round)(uint8_t *restrict bytes, float *restrict values, size_t n);
    void (*int8_widen)(float *restrict values, const uint8_t *restrict bytes, size_t n);
};

extern const struct codec_loops codec_baseline, codec_avx2, codec_avx512;

#ifndef CODEC_LOOPS
#define CODEC_LOOPS codec_baseline
#endif

/* --- bfloat16 --- */

static void loop_narrow(uint16_t *restrict halves, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        halves[i] = bfloat16_round(values[i]);
    }
}

static void loop_widen(float *restrict values, const uint16_t *restrict halves, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        values[i] = bfloat16_widen(halves[i]);
    }
}

/* Not 0 if any half is not. */
static uint32_t loop_feed_back(uint16_t *restrict halves, float *restrict remainders, const float *restrict values,
                               size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        float sum = values[i] + remainders[i];
        uint16_t half = bfloat16_round(sum);
        float left = sum - bfloat16_widen(half);
        halves[i] = half;
        remainders[i] = left - left == 0.0f ? left : 0.0f;
        any |= (uint32_t)half << 17; /* tests for zero of either sign */
    }
    return any;
}

/*
 * --- Differences ---
 *
 * The bits per block are practically random, so a branch would often be mispredicted: every block is packed, and
 * unpacked, in all ways, and the fitting one is kept. The compiler maps vectors of half a block to the instruction
 * set's.
 */

enum { HALF_BLOCK = BFLOAT16_BLOCK / 2 };

typedef uint16_t words __attribute__((vector_size(HALF_BLOCK * 2)));
typedef int16_t signed_words __attribute__((vector_size(HALF_BLOCK * 2)));
typedef uint8_t octets __attribute__((vector_size(HALF_BLOCK)));
typedef int8_t signed_octets __attribute__((vector_size(HALF_BLOCK)));
typedef uint64_t quads __attribute__((vector_size(HALF_BLOCK * 2)));

/*
 * Encodes one whole block; returns the bits per half. Encodings that do not fit go beyond the 64 bytes that a block
 * takes at most, where the next block overwrites them.
 */
static inline unsigned encode_delta_block(uint8_t *restrict to, uint16_t *restrict known,
                                          const uint16_t *restrict halves, bool in_full)
{
    words low, high, low_change, high_change;
    memcpy(&low, halves, sizeof low);
    memcpy(&high, halves + HALF_BLOCK, sizeof high);
    memcpy(&low_change, known, sizeof low);
    memcpy(&high_change, known + HALF_BLOCK, sizeof high);
    low_change = low - low_change;
    high_change = high - high_change;
    words sizes = (low_change << 1 ^ (words)((signed_words)low_change >> 15)) | /* 0, -1, 1, -2 as 0, 1, 2, 3 */
                  (high_change << 1 ^ (words)((signed_words)high_change >> 15));
    quads either = (quads)sizes;
    uint64_t bits = either[0] | either[1] | either[2] | either[3];
    unsigned beyond_0 = (bits != 0) | in_full;
    unsigned beyond_4 = ((bits & 0xfff0fff0fff0fff0u) != 0) | in_full;
    unsigned beyond_8 = ((bits & 0xff00ff00ff00ff00u) != 0) | in_full;
    octets low_bytes = __builtin_convertvector(low_change, octets);
    octets high_bytes = __builtin_convertvector(high_change, octets);
    octets nibbles = (low_bytes & 15) | high_bytes << 4;
    uint8_t *bytes_to = to + (size_t)beyond_8 * 64, *nibbles_to = to + (size_t)beyond_4 * 64;
    memcpy(known, &low, sizeof low);
    memcpy(known + HALF_BLOCK, &high, sizeof high);
    memcpy(to, &low, sizeof low);
    memcpy(to + sizeof low, &high, sizeof high);
    memcpy(bytes_to, &low_bytes, sizeof low_bytes);
    memcpy(bytes_to + sizeof low_bytes, &high_bytes, sizeof high_bytes);
    memcpy(nibbles_to, &nibbles, sizeof nibbles);
    return 4 * beyond_0 + 4 * beyond_4 + 8 * beyond_8;
}

static size_t loop_encode_delta(uint8_t *restrict encoded, uint16_t *restrict known, const uint16_t *restrict halves,
                                size_t n, bool in_full)
{
    uint8_t *to = encoded;
    size_t i = 0;
    for (; n - i >= BFLOAT16_BLOCK; i += BFLOAT16_BLOCK) {
        unsigned bits = encode_delta_block(to + 1, known + i, halves + i, in_full);
        *to = (uint8_t)bits;
        to += 1 + bits * BFLOAT16_BLOCK / 8;
    }
    if (i < n) {
        size_t bytes = (n - i) * sizeof *halves;
        bool changed = in_full || memcmp(known + i, halves + i, bytes) != 0;
        *to++ = changed ? 16 : 0;
        if (changed) {
            memcpy(to, halves + i, bytes);
            memcpy(known + i, halves + i, bytes);
            to += bytes;
        }
    }
    return (size_t)(to - encoded);
}

/* Decodes a whole block of `bits` bits per half; 64 bytes must be readable, whatever they hold. */
static inline void apply_delta_block(uint16_t *restrict known, const uint8_t *restrict from, unsigned bits)
{
    const words zero = {0};
    const words is_4 = zero - (uint16_t)(bits == 4), is_8 = zero - (uint16_t)(bits == 8);
    const words is_16 = zero - (uint16_t)(bits == 16);
    words low, high, new_low, new_high;
    signed_octets low_bytes, high_bytes;
    memcpy(&low, known, sizeof low);
    memcpy(&high, known + HALF_BLOCK, sizeof high);
    memcpy(&new_low, from, sizeof low);
    memcpy(&new_high, from + sizeof low, sizeof high);
    memcpy(&low_bytes, from, sizeof low_bytes);
    memcpy(&high_bytes, from + sizeof low_bytes, sizeof high_bytes);
    words low_change = (words) __builtin_convertvector(low_bytes, signed_words);
    words high_change = (words) __builtin_convertvector(high_bytes, signed_words);
    words low_nibble = (words)((signed_words)(low_change << 12) >> 12);
    words high_nibble = (words)((signed_words)low_change >> 4);
    low = (low & ~is_16) + (new_low & is_16) + (low_change & is_8) + (low_nibble & is_4);
    high = (high & ~is_16) + (new_high & is_16) + (high_change & is_8) + (high_nibble & is_4);
    memcpy(known, &low, sizeof low);
    memcpy(known + HALF_BLOCK, &high, sizeof high);
}

static size_t loop_apply_delta(uint16_t *restrict known, const uint8_t *restrict encoded, size_t size, size_t n)
{
    const uint8_t *from = encoded;
    for (size_t i = 0; i < n; i += BFLOAT16_BLOCK) {
        size_t count = n - i < BFLOAT16_BLOCK ? n - i : BFLOAT16_BLOCK;
        size_t left = size - (size_t)(from - encoded);
        unsigned bits = left > 0 ? *from++ : UINT_MAX;
        size_t bytes = bits * count / 8;
        bool possible = bits == 0 || bits == 16 || ((bits == 4 || bits == 8) && count == BFLOAT16_BLOCK);
        if (!possible || bytes > left - 1) {
            return 0;
        }
        if (count < BFLOAT16_BLOCK) {
            memcpy(known + i, from, bytes);
        } else if (left > BFLOAT16_BLOCK * sizeof *known) {
            apply_delta_block(known + i, from, bits);
        } else {
            uint8_t last[BFLOAT16_BLOCK * sizeof *known] = {0};
            memcpy(last, from, bytes);
            apply_delta_block(known + i, last, bits);
        }
        from += bytes;
    }
    return (size_t)(from - encoded);
}

/* --- int8 --- */

/* The bits of the largest magnitude; infinities and NaN count as larger than all finite values. */
static inline uint32_t loop_largest(const float *values, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static inline void loop_round_block(int8_t *restrict bytes, float *restrict values, float scale, size_t n)
{
    const float inverse = 1.0f / scale;
    for (size_t i = 0; i < n; i++) {
        const float to_nearest = 0x1.8p23f; /* larger floats have no fraction */
        const float whole = values[i] * inverse + to_nearest - to_nearest;
        bytes[i] = (int8_t)(int32_t)whole;
        values[i] -= scale * whole;
    }
}

static inline void loop_round_any(float *scale_to, int8_t *restrict bytes, float *restrict values, size_t n)
{
    const uint32_t largest = loop_largest(values, n), beyond = 0x7f000000u; /* 2^127: 127 x scale is finite below it */
    float magnitude, scale;
    memcpy(&magnitude, &largest, sizeof magnitude);
    scale = magnitude / 127.0f;
    if (largest < beyond && scale >= FLT_MIN) {
        loop_round_block(bytes, values, scale, n);
    } else {
        const bool finite = largest < beyond;
        scale = finite ? 0.0f : NAN;
        memset(bytes, 0, n);
        for (size_t i = 0; i < n && !finite; i++) {
            values[i] = 0.0f;
        }
    }
    memcpy(scale_to, &scale, sizeof scale);
}

static void loop_int8_round(uint8_t *restrict bytes, float *restrict values, size_t n)
{
    uint8_t *scales = bytes;
    int8_t *to = (int8_t *)bytes + int8_blocks(n) * sizeof(float);
    for (size_t i = 0; i < n; i += INT8_BLOCK, scales += sizeof(float)) {
        float scale;
        if (n - i >= INT8_BLOCK) { /* a count known to the compiler */
            loop_round_any(&scale, to + i, values + i, INT8_BLOCK);
        } else {
            loop_round_any(&scale, to + i, values + i, n - i);
        }
        memcpy(scales, &scale, sizeof scale);
    }
}

static void loop_int8_widen(float *restrict values, const uint8_t *restrict bytes, size_t n)
{
    const uint8_t *scales = bytes;
    const int8_t *from = (const int8_t *)bytes + int8_blocks(n) * sizeof(float);
    for (size_t i = 0; i < n; i += INT8_BLOCK, scales += sizeof(float)) {
        const size_t count = n - i < INT8_BLOCK ? n - i : INT8_BLOCK;
        float scale;
        memcpy(&scale, scales, sizeof scale);
        for (size_t k = 0; k < count; k++) {
            values[i + k] = scale * (float)from[i + k];
        }
    }
}

const struct codec_loops CODEC_LOOPS = {loop_narrow,      loop_widen,      loop_feed_back, loop_encode_delta,
                                        loop_apply_delta, loop_int8_round, loop_int8_widen};

#endif
