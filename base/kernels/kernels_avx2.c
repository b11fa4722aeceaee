/* The kernels for AVX2 with FMA. */
#include <immintrin.h>

#include "base/kernels/kernels_bytes.h"
#include "base/kernels/kernels_loops.h"

#define KERNELS_TABLE      kernels_avx2
#define KERNELS_NAME       "avx2"
#define KERNELS_STRIP      64
#define KERNELS_DENSE_FROM 0.5f
#define VEC_LANES          8
#define VEC_COLUMNS        4
#define VEC_TILE           12
#define VEC_UNROLL         4
#define VEC_SETS           1

#define VEC static inline __attribute__((always_inline))

typedef __m256 vec;

VEC vec vec_load(const float *from)
{
    return _mm256_loadu_ps(from);
}

VEC void vec_store(float *to, vec a)
{
    _mm256_storeu_ps(to, a);
}

VEC vec vec_zero(void)
{
    return _mm256_setzero_ps();
}

VEC vec vec_set(float a)
{
    return _mm256_set1_ps(a);
}

VEC vec vec_broadcast(const float *from)
{
    return _mm256_broadcast_ss(from);
}

VEC vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}

VEC vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}

VEC vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}

VEC vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}

VEC vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}

VEC vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}

VEC vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}

VEC vec vec_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a x 2^n, -127 <= n <= 127: the exponent's bits are built by hand; 2^-127 becomes 0. */
VEC vec vec_scale(vec a, vec n)
{
    __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}

/* a < b ? then : otherwise, lane by lane */
VEC vec vec_select_less(vec a, vec b, vec then, vec otherwise)
{
    return _mm256_blendv_ps(otherwise, then, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

/* The first `count` lanes of a, the others of b. */
VEC vec vec_first(int count, vec a, vec b)
{
    __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes)));
}

VEC float vec_sum(vec a)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

VEC float vec_largest(vec a)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

static const uint64_t positions[256] = {POSITIONS_TABLE};

static int simd_compress(int count, const uint8_t *even, const uint8_t *odd, int stride, uint32_t *offset, float *value)
{
    const __m256i strides = _mm256_set1_epi32(stride);
    const __m256 scale = _mm256_set1_ps(1.0f / 255.0f);
    int entries = 0;
    for (int i = 0; i < count; i += 8) {
        __m128i a = _mm_loadl_epi64((const __m128i *)(const void *)(even + i));
        __m128i b = _mm_loadl_epi64((const __m128i *)(const void *)(odd + i));
        unsigned set = ~(unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(_mm_or_si128(a, b), _mm_setzero_si128())) & 0xffu;
        __m128i order = _mm_loadl_epi64((const __m128i *)(const void *)&positions[set]);
        __m128i both = _mm_unpacklo_epi8(_mm_shuffle_epi8(a, order), _mm_shuffle_epi8(b, order));
        __m256 first = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(both));
        __m256 second = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(both, 8)));
        _mm256_storeu_ps(value + 2 * entries, _mm256_mul_ps(first, scale));
        _mm256_storeu_ps(value + 2 * entries + 8, _mm256_mul_ps(second, scale));
        __m256i at = _mm256_add_epi32(_mm256_cvtepu8_epi32(order), _mm256_set1_epi32(i));
        _mm256_storeu_si256((__m256i *)(void *)(offset + entries), _mm256_mullo_epi32(at, strides));
        entries += __builtin_popcount(set);
    }
    return pad_entries(entries, offset, value);
}

#include "base/kernels/kernels_simd.h"
