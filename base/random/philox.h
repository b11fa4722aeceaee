/*
 * Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
 * 3", SC 2011). A number is a pure function of a 64-bit key and a 128-bit counter, so CPU, GPU and a resumed run draw
 * the same ones, in any order and from any thread. Shared by C and CUDA: no state, no libm in the integer part.
 */
#ifndef BASE_RANDOM_PHILOX_H
#define BASE_RANDOM_PHILOX_H

#include <stdint.h>

#ifdef __CUDACC__
#define PHILOX_INLINE static __host__ __device__ inline
#else
#define PHILOX_INLINE static inline
#endif

struct philox_key {
    uint32_t word[2];
};

struct philox_block {
    uint32_t word[4];
};

/* The purpose of a stream; streams of one seed never overlap. */
enum random_purpose {
    RANDOM_INITIALISER = 1, /* counter: variable, element */
    RANDOM_SHUFFLE = 2,     /* counter: task, epoch */
    RANDOM_SYNTHETIC = 3,   /* counter: image, draw */
    RANDOM_DROPOUT = 4,     /* counter: step, layer, element */
    RANDOM_TRIALS = 5,      /* counter: trial, dimension of the space */
};

PHILOX_INLINE struct philox_key philox_key(uint64_t seed)
{
    struct philox_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    return key;
}

PHILOX_INLINE struct philox_block philox(struct philox_key key, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3)
{
    struct philox_block block = {{c0, c1, c2, c3}};
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * block.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * block.word[2];
        struct philox_block next = {{(uint32_t)(product1 >> 32) ^ block.word[1] ^ key.word[0], (uint32_t)product1,
                                     (uint32_t)(product0 >> 32) ^ block.word[3] ^ key.word[1], (uint32_t)product0}};
        block = next;
        key.word[0] += 0x9E3779B9u;
        key.word[1] += 0xBB67AE85u;
    }
    return block;
}

/* Uniform in [0, 1), a multiple of 2^-24: exact in float32. */
PHILOX_INLINE float philox_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

#endif
