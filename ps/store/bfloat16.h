/*
 * bfloat16: the upper half of a float32. Rounding is to nearest, ties to even, as in TensorFlow and on GPUs; NaN stays
 * NaN.
 */
#ifndef PS_STORE_BFLOAT16_H
#define PS_STORE_BFLOAT16_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint16_t bfloat16_round(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u; /* keeps a NaN a NaN, whatever its lower bits */
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

static inline float bfloat16_widen(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Whole arrays, which must not overlap, with the widest instructions of this CPU; the bits do not depend on them. */
void bfloat16_from_floats(uint16_t *halves, const float *values, size_t n);
void bfloat16_to_floats(float *values, const uint16_t *halves, size_t n);

/*
 * Rounds values + remainders, and keeps the rounding errors in remainders. Values that are not finite pass unchanged
 * and leave no remainder. True if any half is not zero.
 */
bool bfloat16_feed_back(uint16_t *halves, float *remainders, const float *values, size_t n);

/*
 * Differences: the encoding of halves for a receiver that knows their previous values. From one step to the next most
 * weights move by a few units in the last place of a bfloat16, if at all, so that 4 bits suffice instead of 16.
 *
 * Every 32 halves are a block: a byte with the number of bits per half, then
 *      0: nothing; no half has changed;
 *      4: 16 bytes; byte j has the changes of half j, in its lower bits, and of half j + 16, as two's complement;
 *      8: 32 bytes, the changes as two's complement;
 *     16: 64 bytes, the halves themselves, little-endian.
 * A change is the difference of two halves as 16-bit integers. A last block of fewer than 32 halves uses 0 or 16 bits
 * each.
 */
enum { BFLOAT16_BLOCK = 32 };

/* Bytes that bfloat16_tell needs for n halves: the largest encoding, and scratch space beyond it. */
static inline size_t bfloat16_encoded_room(size_t n)
{
    return n * sizeof(uint16_t) + n / BFLOAT16_BLOCK + 1 + BFLOAT16_BLOCK;
}

/*
 * Updates `known` to `halves`, and encodes the update to `encoded`; returns its bytes. in_full: the receiver knows
 * nothing.
 */
size_t bfloat16_tell(uint8_t *encoded, uint16_t *known, const uint16_t *halves, size_t n, bool in_full);

/*
 * Updates `known` by what bfloat16_tell encoded, of at most `size` bytes. Returns the bytes read; 0: invalid. n: at
 * least 1.
 */
size_t bfloat16_learn(uint16_t *known, const uint8_t *encoded, size_t size, size_t n);

#endif
