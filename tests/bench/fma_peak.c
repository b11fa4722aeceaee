/* The highest FMA rate of one core, the yardstick for dense kernels. */
#include "tests/bench/fma_peak.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/cpu.h"

static void measure(const char *name, float (*peak)(long rounds), int lanes, double seconds)
{
    const long rounds = 1000000;
    volatile float kept = peak(rounds);
    double best = 0.0;
    double start = clock_monotonic_s();
    double now = start;
    while (now - start < seconds) {
        double before = now;
        kept = peak(rounds);
        now = clock_monotonic_s();
        double rate = (double)rounds * FMA_PEAK_CHAINS * lanes * 2 / (now - before);
        best = rate > best ? rate : best;
    }
    (void)kept;
    printf("%s %.1f GFLOP/s\n", name, best * 1e-9);
}

void fma_peak_print(double seconds)
{
    const struct cpu_features *features = cpu_features_get();
    if (features->avx2 && features->fma) {
        measure("avx2", fma_peak_avx2, 8, seconds);
    }
    if (features->avx512) {
        measure("avx512", fma_peak_avx512, 16, seconds);
    }
}
