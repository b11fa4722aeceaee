/* Chooses, once, the loops over bfloat16 arrays that this CPU can run; the baseline ones are compiled in here. */
#include "ps/store/bfloat16.h"

#include "base/cpu.h"
#include "ps/store/bfloat16_loops.h"

static const struct bfloat16_loops *loops(void)
{
#if defined(__x86_64__)
    const struct cpu_features *cpu = cpu_features_get();
    if (cpu->avx512) {
        return &bfloat16_avx512;
    }
    if (cpu->avx2) {
        return &bfloat16_avx2;
    }
#endif
    return &bfloat16_baseline;
}

void bfloat16_from_floats(uint16_t *halves, const float *values, size_t n)
{
    loops()->narrow(halves, values, n);
}

void bfloat16_to_floats(float *values, const uint16_t *halves, size_t n)
{
    loops()->widen(values, halves, n);
}

bool bfloat16_feed_back(uint16_t *halves, float *remainders, const float *values, size_t n)
{
    return loops()->feed_back(halves, remainders, values, n) != 0;
}

size_t bfloat16_tell(uint8_t *encoded, uint16_t *known, const uint16_t *halves, size_t n, bool in_full)
{
    return loops()->tell(encoded, known, halves, n, in_full);
}

size_t bfloat16_learn(uint16_t *known, const uint8_t *encoded, size_t size, size_t n)
{
    return loops()->learn(known, encoded, size, n);
}
