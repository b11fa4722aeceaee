/* Vectors of 16 bytes, available on every supported processor; the kernel files use them to move pixels. */
#ifndef BASE_KERNELS_KERNELS_BYTES_H
#define BASE_KERNELS_KERNELS_BYTES_H

#include <stdint.h>

#define BYTES static inline __attribute__((always_inline))

#if defined(__x86_64__)
#include <immintrin.h>

typedef __m128i vec_bytes;

BYTES vec_bytes bytes_load(const uint8_t *from)
{
    return _mm_loadu_si128((const __m128i *)(const void *)from);
}

BYTES void bytes_store(uint8_t *to, vec_bytes a)
{
    _mm_storeu_si128((__m128i *)(void *)to, a);
}

BYTES vec_bytes bytes_zero(void)
{
    return _mm_setzero_si128();
}

BYTES vec_bytes bytes_or(vec_bytes a, vec_bytes b)
{
    return _mm_or_si128(a, b);
}

/* count, and 1 more in each lane where a is 0 */
BYTES vec_bytes bytes_count_zeros(vec_bytes count, vec_bytes a)
{
    return _mm_sub_epi8(count, _mm_cmpeq_epi8(a, _mm_setzero_si128()));
}

BYTES int64_t bytes_sum(vec_bytes a)
{
    a = _mm_sad_epu8(a, _mm_setzero_si128());
    return _mm_cvtsi128_si64(a) + _mm_extract_epi64(a, 1);
}

/* a0 b0 a1 b1 ... of the lower and of the upper halves */
BYTES vec_bytes bytes_zip_low(vec_bytes a, vec_bytes b)
{
    return _mm_unpacklo_epi8(a, b);
}

BYTES vec_bytes bytes_zip_high(vec_bytes a, vec_bytes b)
{
    return _mm_unpackhi_epi8(a, b);
}

#elif defined(__aarch64__)
#include <arm_neon.h>

typedef uint8x16_t vec_bytes;

BYTES vec_bytes bytes_load(const uint8_t *from)
{
    return vld1q_u8(from);
}

BYTES void bytes_store(uint8_t *to, vec_bytes a)
{
    vst1q_u8(to, a);
}

BYTES vec_bytes bytes_zero(void)
{
    return vdupq_n_u8(0);
}

BYTES vec_bytes bytes_or(vec_bytes a, vec_bytes b)
{
    return vorrq_u8(a, b);
}

BYTES vec_bytes bytes_count_zeros(vec_bytes count, vec_bytes a)
{
    return vsubq_u8(count, vceqzq_u8(a));
}

BYTES int64_t bytes_sum(vec_bytes a)
{
    return (int64_t)vaddlvq_u8(a);
}

BYTES vec_bytes bytes_zip_low(vec_bytes a, vec_bytes b)
{
    return vzip1q_u8(a, b);
}

BYTES vec_bytes bytes_zip_high(vec_bytes a, vec_bytes b)
{
    return vzip2q_u8(a, b);
}
#endif

/* POSITIONS(mask): the positions of the bits set in a mask of 8, in order, as the bytes of a number. */
#define POSITION(mask, bit)                                                                                            \
    (((mask) >> (bit)&1) ? (uint64_t)(bit) << (8 * __builtin_popcount((mask) & ((1u << (bit)) - 1))) : 0)
#define POSITIONS(mask)                                                                                                \
    (POSITION(mask, 0) | POSITION(mask, 1) | POSITION(mask, 2) | POSITION(mask, 3) | POSITION(mask, 4) |               \
     POSITION(mask, 5) | POSITION(mask, 6) | POSITION(mask, 7))
#define POSITIONS_4(mask)  POSITIONS(mask), POSITIONS((mask) + 1), POSITIONS((mask) + 2), POSITIONS((mask) + 3)
#define POSITIONS_16(mask) POSITIONS_4(mask), POSITIONS_4((mask) + 4), POSITIONS_4((mask) + 8), POSITIONS_4((mask) + 12)
#define POSITIONS_64(mask)                                                                                             \
    POSITIONS_16(mask), POSITIONS_16((mask) + 16), POSITIONS_16((mask) + 32), POSITIONS_16((mask) + 48)
#define POSITIONS_TABLE POSITIONS_64(0u), POSITIONS_64(64u), POSITIONS_64(128u), POSITIONS_64(192u)

#endif
