/* The kernels for AVX-512 (F, BW, VL, DQ). */
#include <immintrin.h>

#include "base/kernels/kernels_loops.h"

#define KERNELS_TABLE      kernels_avx512
#define KERNELS_NAME       "avx512"
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

static int simd_compress(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset, float *value)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i step = _mm512_set1_epi32(16 * stride);
    const __m512 scale = _mm512_set1_ps(1.0f / 255.0f);
    __m512i at = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(stride));
    int entries = 0;
    for (int i = 0; i < count; i += 16, at = _mm512_add_epi32(at, step)) {
        __m512i a = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(even + i)));
        __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(odd + i)));
        __m512i either = _mm512_or_si512(a, b);
        __mmask16 set = _mm512_test_epi32_mask(either, either);
        __m512 first = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_maskz_compress_epi32(set, a)), scale);
        __m512 second = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_maskz_compress_epi32(set, b)), scale);
        _mm512_storeu_ps(value + 2 * entries, _mm512_permutex2var_ps(first, low, second));
        _mm512_storeu_ps(value + 2 * entries + 16, _mm512_permutex2var_ps(first, high, second));
        _mm512_storeu_si512(offset + entries, _mm512_maskz_compress_epi32(set, at));
        entries += __builtin_popcount(set);
    }
    return pad_entries(entries, offset, value);
}

#include "base/kernels/kernels_simd.h"
