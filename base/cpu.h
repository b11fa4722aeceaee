/*
 * What the CPU that runs this can do: instruction sets that both the processor has and the operating system saves.
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
    bool vaes; /* VAES and VPCLMULQDQ, as wide as what else there is */
    bool neon;
    bool aes;       /* aarch64's instructions for it */
    char model[49]; /* the processor's own name for itself, trimmed; "" if it has none */
};

/* The same answer every time; any thread may ask. What another kind of processor would have is false. */
const struct cpu_features *cpu_features_get(void);

/* The instruction sets as words with blanks between: "sse2 avx avx2 fma". */
void cpu_features_text(const struct cpu_features *features, char *text, size_t size);

#endif
