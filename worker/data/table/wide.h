/* 128-bit integers, for products of two 64-bit ones. */
#ifndef WORKER_DATA_TABLE_WIDE_H
#define WORKER_DATA_TABLE_WIDE_H

#include <stdint.h>

__extension__ typedef unsigned __int128 wide;

/* The XOR of the product's halves: a good hash of the two. */
static inline uint64_t wide_mix(uint64_t a, uint64_t b)
{
    const wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
