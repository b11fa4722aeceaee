/*
 * bfloat16: the upper half of a float32. Rounding is to nearest, ties to even, as TensorFlow and the GPUs do; what is
 * not a number stays that.
 */
#ifndef PS_BFLOAT16_H
#define PS_BFLOAT16_H

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

#endif
