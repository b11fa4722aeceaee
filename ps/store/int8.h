/*
 * int8: floats as bytes that share a scale. Every INT8_BLOCK floats are a block, the last one may be shorter; its scale
 * is the largest magnitude in it / 127, and each float is sent as the nearest multiple of that, ties to even. The
 * sender adds the rounding error to what it sends next (error feedback: Karimireddy et al., "Error Feedback Fixes
 * SignSGD and other Gradient Compression Schemes", 2019).
 *
 * The encoding of n floats: the scales of all blocks, as float32, then n bytes in two's complement. A block with a
 * float that is not finite, or of magnitude 2^127 or more, has the scale NaN, so that the receiver decodes the whole
 * block as not finite; a block of zeros, or of floats too small for a normal scale, has the scale 0.
 *
 * The bits depend neither on this CPU's instructions nor on whether it flushes denormals.
 */
#ifndef PS_STORE_INT8_H
#define PS_STORE_INT8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { INT8_BLOCK = 64 };

static inline size_t int8_blocks(size_t n)
{
    return (n + INT8_BLOCK - 1) / INT8_BLOCK;
}

static inline size_t int8_size(size_t n)
{
    return n + int8_blocks(n) * sizeof(float);
}

/* Writes int8_size(n) bytes, and leaves the rounding errors in `values`: zeros for a block that is not finite. */
void int8_round(uint8_t *bytes, float *values, size_t n);

/* Decodes them. False: a scale is below 0, or infinite, which int8_round never writes. */
bool int8_widen(float *values, const uint8_t *bytes, size_t n);

#endif
