/* Chains of fused multiply-adds that never wait for memory or for each other. */
#include <immintrin.h>

#include "tests/bench/fma_peak.h"

float fma_peak_avx2(long rounds)
{
    __m256 chains[FMA_PEAK_CHAINS];
    const __m256 factor = _mm256_set1_ps(0.999f);
    const __m256 term = _mm256_set1_ps(0.001f);
    for (int i = 0; i < FMA_PEAK_CHAINS; i++) {
        chains[i] = _mm256_set1_ps((float)i);
    }
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < FMA_PEAK_CHAINS; i++) {
            chains[i] = _mm256_fmadd_ps(chains[i], factor, term);
        }
    }
    __m256 sum = chains[0];
    for (int i = 1; i < FMA_PEAK_CHAINS; i++) {
        sum = _mm256_add_ps(sum, chains[i]);
    }
    return _mm256_cvtss_f32(sum);
}
