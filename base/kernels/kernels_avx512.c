/* The kernels for AVX-512 (F, BW, VL, DQ). */
#include <immintrin.h>

#include "base/kernels/kernels_loops.h"

#define KERNELS_TABLE      kernels_avx512
#define KERNELS_NAME       "avx512"
#define KERNELS_PARTS      simd_pack_parts
#define KERNELS_UNPACK     simd_unpack
#define KERNELS_STRIP      64
#define KERNELS_DENSE_FROM 0.5f
#define VEC_LANES          16
#define VEC_COLUMNS        4
#define VEC_TILE           24
#define VEC_UNROLL         1
#define VEC_SETS           2

#define VEC static inline __attribute__((always_inline))

typedef __m512 vec;

VEC vec vec_load(const float *from)
{
    return _mm512_loadu_ps(from);
}

VEC void vec_store(float *to, vec a)
{
    _mm512_storeu_ps(to, a);
}

VEC vec vec_zero(void)
{
    return _mm512_setzero_ps();
}

VEC vec vec_set(float a)
{
    return _mm512_set1_ps(a);
}

VEC vec vec_broadcast(const float *from)
{
    return _mm512_set1_ps(*from);
}

VEC vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}

VEC vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}

VEC vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}

VEC vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}

VEC vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}

VEC vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}

VEC vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}

VEC vec vec_round(vec a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a x 2^n */
VEC vec vec_scale(vec a, vec n)
{
    return _mm512_scalef_ps(a, n);
}

/* a < b ? then : otherwise, lane by lane */
VEC vec vec_select_less(vec a, vec b, vec then, vec otherwise)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), otherwise, then);
}

/* The first `count` lanes of a, the others of b. */
VEC vec vec_first(int count, vec a, vec b)
{
    return _mm512_mask_blend_ps((__mmask16)((1u << count) - 1), b, a);
}

VEC float vec_sum(vec a)
{
    return _mm512_reduce_add_ps(a);
}

VEC float vec_largest(vec a)
{
    return _mm512_reduce_max_ps(a);
}

enum { PACKED = KERNEL_BLOCK + 16 + KERNEL_ENTRIES };

static void simd_unpack(int count, int stride, const uint32_t *packed, uint32_t *offset, float *value)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512i strides = _mm512_set1_epi32(stride), byte = _mm512_set1_epi32(0xff);
    const __m512 scale = _mm512_set1_ps(1.0f / 255.0f);
    for (int i = 0; i < count; i += 16) {
        __m512i entry = _mm512_loadu_si512(packed + i);
        __m512 first = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(entry, byte)), scale);
        __m512 second = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(entry, 8), byte)), scale);
        _mm512_storeu_ps(value + 2 * i, _mm512_permutex2var_ps(first, low, second));
        _mm512_storeu_ps(value + 2 * i + 16, _mm512_permutex2var_ps(first, high, second));
        _mm512_storeu_si512(offset + i, _mm512_mullo_epi32(_mm512_srli_epi32(entry, 16), strides));
    }
}

/* Appends the nonzero bytes of one of two rows, packed as for unpack, in one part or in three (struct parts). */
VEC int pack_into(const int parts, int count, const uint8_t *even, const uint8_t *odd, uint32_t *to, int ends[3])
{
    uint32_t packed[2][PACKED];
    /* The first part is complete in place; what follows it waits until its end is known. */
    uint32_t *const kept[3] = {to, packed[0], packed[1]};
    const __m512i step = _mm512_set1_epi32(16 << 16);
    __m512i at = _mm512_slli_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), 16);
    int counts[3] = {0}, entries = 0;
    for (int i = 0; i < count; i += 16, at = _mm512_add_epi32(at, step)) {
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)(even + i));
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(odd + i));
        __mmask16 in_a = _mm_test_epi8_mask(a, a), in_b = _mm_test_epi8_mask(b, b);
        __m512i bytes = _mm512_or_si512(_mm512_cvtepu8_epi32(a), _mm512_slli_epi32(_mm512_cvtepu8_epi32(b), 8));
        const __mmask16 in[3] = {parts == 1 ? in_a | in_b : in_a & in_b, in_a & (__mmask16)~in_b,
                                 in_b & (__mmask16)~in_a};
        for (int part = 0; part < parts; part++) {
            _mm512_storeu_si512(kept[part] + counts[part],
                                _mm512_maskz_compress_epi32(in[part], _mm512_or_si512(at, bytes)));
            counts[part] += __builtin_popcount(in[part]);
        }
    }
    for (int part = 0; part < parts; part++) {
        for (int i = 0; part > 0 && i < counts[part]; i += 16) {
            _mm512_storeu_si512(to + entries + i, _mm512_loadu_si512(kept[part] + i));
        }
        for (entries += counts[part]; entries % KERNEL_ENTRIES != 0; entries++) {
            to[entries] = to[entries - 1] & 0xffff0000u;
        }
        ends[part] = entries;
    }
    return entries;
}

static int simd_compress(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset, float *value)
{
    uint32_t packed[PACKED];
    int ends[3], entries = pack_into(1, count, even, odd, packed, ends);
    simd_unpack(entries, stride, packed, offset, value);
    return entries;
}

static int simd_pack_parts(int count, const uint8_t *even, const uint8_t *odd, uint32_t *packed, struct parts *parts)
{
    int ends[3], entries = pack_into(3, count, even, odd, packed, ends);
    *parts = (struct parts){(uint8_t)ends[0], (uint8_t)ends[1]};
    return entries;
}

#include "base/kernels/kernels_simd.h"
