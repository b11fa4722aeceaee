/* Chains of fused multiply-adds that never wait for memory or for each other. */
#include <immintrin.h>

#include "tests/bench/fma_peak.h"

float fma_peak_avx512(long rounds)
{
    __m512 chains[FMA_PEAK_CHAINS];
    const __m512 factor = _mm512_set1_ps(0.999f);
    const __m512 term = _mm512_set1_ps(0.001f);
    for (int i = 0; i < FMA_PEAK_CHAINS; i++) {
        chains[i] = _mm512_set1_ps((float)i);
    }
    for (long round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < FMA_PEAK_CHAINS; i++) {
            chains[i] = _mm512_fmadd_ps(chains[i], factor, term);
        }
    }
    __m512 sum = chains[0];
    for (int i = 1; i < FMA_PEAK_CHAINS; i++) {
        sum = _mm512_add_ps(sum, chains[i]);
    }
    return _mm512_cvtss_f32(sum);
}
