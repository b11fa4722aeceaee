/*
 * Features of this CPU: instruction sets that the processor has and the operating system supports.
 */
#ifndef BASE_CPU_H
#define BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

struct cpu_features {
    bool sse2;
    bool avx;
    bool avx2;
    bool fma;
    bool f16c;
    bool avx512; /* all of F, BW, VL and DQ */
    bool aesni;
    bool vaes; /* VAES and VPCLMULQDQ, at the width of AVX or AVX-512, whichever is present */
    bool neon;
    bool aes;       /* aarch64's AES instructions */
    char model[49]; /* the processor's own name for itself, trimmed; "" if it has none */
};

/* Tells the CPU that this thread spins. */
static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Always the same answer; any thread may ask. Features of other architectures are false. */
const struct cpu_features *cpu_features_get(void);

/* The instruction sets, separated by blanks: "sse2 avx avx2 fma". */
void cpu_features_text(const struct cpu_features *features, char *text, size_t size);

#endif
