/* Chooses the kernel table for this machine. */
#include "base/kernels.h"

#include "base/cpu.h"

#if defined(__x86_64__)
static bool has_avx2(void)
{
    return cpu_features_get()->avx2 && cpu_features_get()->fma;
}
#endif

static bool refuse(const char *name, const char *needs, struct error *error)
{
    return error_set(error, "--cpu_kernels=%s: this CPU has no %s; use --cpu_kernels=auto", name, needs);
}

#if defined(__x86_64__)
bool kernels_choose(const struct kernels **kernels, const char **why, enum cpu_kernels wanted, struct error *error)
{
    const bool automatic = wanted == CPU_KERNELS_AUTO;
    *kernels = &kernels_reference;
    *why = automatic ? "the CPU has no AVX2" : "as asked";
    if (wanted == CPU_KERNELS_NEON) {
        return refuse("neon", "aarch64 instructions", error);
    }
    if (wanted == CPU_KERNELS_AVX512 || (automatic && cpu_features_get()->avx512)) {
        if (!cpu_features_get()->avx512) {
            return refuse("avx512", "AVX-512 (F, BW, VL, DQ)", error);
        }
        *kernels = &kernels_avx512;
        *why = automatic ? "the CPU has AVX-512" : "as asked";
    } else if (wanted == CPU_KERNELS_AVX2 || (automatic && has_avx2())) {
        if (!has_avx2()) {
            return refuse("avx2", "AVX2 with FMA", error);
        }
        *kernels = &kernels_avx2;
        *why = automatic ? "the CPU has AVX2, but no AVX-512" : "as asked";
    }
    return true;
}
#else
bool kernels_choose(const struct kernels **kernels, const char **why, enum cpu_kernels wanted, struct error *error)
{
    const bool automatic = wanted == CPU_KERNELS_AUTO;
    *kernels = &kernels_reference;
    *why = automatic ? "there are none for this CPU" : "as asked";
    if (wanted == CPU_KERNELS_AVX2 || wanted == CPU_KERNELS_AVX512) {
        return refuse(wanted == CPU_KERNELS_AVX2 ? "avx2" : "avx512", "x86-64 instructions", error);
    }
#if defined(__aarch64__)
    if (wanted != CPU_KERNELS_REFERENCE) {
        *kernels = &kernels_neon;
        *why = automatic ? "every aarch64 CPU has NEON" : "as asked";
    }
#else
    if (wanted == CPU_KERNELS_NEON) {
        return refuse("neon", "aarch64 instructions", error);
    }
#endif
    return true;
}
#endif
