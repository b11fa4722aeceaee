/* Measures the most floating-point operations per second that one core of this machine can do. */
#ifndef TESTS_BENCH_FMA_PEAK_H
#define TESTS_BENCH_FMA_PEAK_H

/* Prints a line "INSTRUCTIONS GFLOP/s" for each instruction set that this CPU has. */
void fma_peak_print(double seconds);

/* Runs `rounds` x FMA_PEAK_CHAINS independent fused multiply-adds of 8 or 16 floats each. */
enum { FMA_PEAK_CHAINS = 12 };
float fma_peak_avx2(long rounds);
float fma_peak_avx512(long rounds);

#endif
