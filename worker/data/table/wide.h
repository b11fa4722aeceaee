/* Integers of 128 bits: enough for the product of two of 64. */
#ifndef WORKER_DATA_TABLE_WIDE_H
#define WORKER_DATA_TABLE_WIDE_H

#include <stdint.h>

__extension__ typedef unsigned __int128 wide;

/* Both halves of the product, folded: a good hash of the two. */
static inline uint64_t wide_mix(uint64_t a, uint64_t b)
{
    const wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
