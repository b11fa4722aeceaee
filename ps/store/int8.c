/* Chooses, once, the loops over int8 blocks that this CPU can run; the baseline ones are compiled in here. */
#include "ps/store/int8.h"

#include "base/cpu.h"
#include "ps/store/int8_loops.h"

static const struct int8_loops *loops(void)
{
#if defined(__x86_64__)
    const struct cpu_features *cpu = cpu_features_get();
    if (cpu->avx512) {
        return &int8_avx512;
    }
    if (cpu->avx2) {
        return &int8_avx2;
    }
#endif
    return &int8_baseline;
}

void int8_round(uint8_t *bytes, float *values, size_t n)
{
    loops()->round(bytes, values, n);
}

bool int8_widen(float *values, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < int8_blocks(n); i++) {
        float scale;
        memcpy(&scale, bytes + i * sizeof scale, sizeof scale);
        if (scale < 0.0f || isinf(scale)) {
            return false;
        }
    }
    loops()->widen(values, bytes, n);
    return true;
}
