/*
 * bfloat16: the upper half of a float32. Rounding is to nearest, ties to even, as TensorFlow and the GPUs do; what is
 * not a number stays that.
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
    uint32_t quiet = (bits >> 16) | 0x40u; /* keeps a NaN one, whatever its lower bits were */
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
 * Rounds values + remainders, and keeps in remainders what that takes away. What is not finite leaves as it is, and no
 * remainder. True if some half is not zero.
 */
bool bfloat16_feed_back(uint16_t *halves, float *remainders, const float *values, size_t n);

/*
 * Differences: how halves travel to somebody who knows what they were before. From one step to the next most weights
 * move by a few units in the last place of a bfloat16, if at all, so that 4 bits do where 16 would be sent otherwise.
 *
 * Every 32 halves are a block: a byte that says how many bits each takes, then
 *      0: nothing; none has changed;
 *      4: 16 bytes; byte j has the changes of half j, in its lower bits, and of half j + 16, as two's complement;
 *      8: 32 bytes, the changes as two's complement;
 *     16: 64 bytes, the halves themselves, little-endian.
 * A change is the difference of two halves as 16-bit integers. What remains at the end, fewer than 32, is a block of 0
 * or 16 bits each.
 */
enum { BFLOAT16_BLOCK = 32 };

/* Room for telling n halves: what it takes at most, and what is written behind that meanwhile. */
static inline size_t bfloat16_told_room(size_t n)
{
    return n * sizeof(uint16_t) + n / BFLOAT16_BLOCK + 1 + BFLOAT16_BLOCK;
}

/* Brings `known` up to `halves`, and writes how to `told`; returns its bytes. in_full: the listener knows nothing. */
size_t bfloat16_tell(uint8_t *told, uint16_t *known, const uint16_t *halves, size_t n, bool in_full);

/* The same from what was told: at most `size` bytes. Returns how many it took; 0: they make no sense. n: at least 1. */
size_t bfloat16_learn(uint16_t *known, const uint8_t *told, size_t size, size_t n);

#endif
