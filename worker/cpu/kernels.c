/* Which of the kernel tables this machine uses. */
#include "worker/cpu/kernels.h"

#include "base/cpu.h"

static bool has_avx2(void)
{
    return cpu_features_get()->avx2 && cpu_features_get()->fma;
}

static bool refuse(const char *name, const char *needs, struct error *error)
{
    return error_set(error, "--cpu_kernels=%s: this CPU has no %s; use --cpu_kernels=auto", name, needs);
}

bool kernels_choose(const struct kernels **kernels, const char **why, enum cpu_kernels wanted, struct error *error)
{
    *kernels = &kernels_reference;
    *why = wanted == CPU_KERNELS_AUTO ? "the CPU has no AVX2" : "as asked";
#if defined(__x86_64__)
    bool automatic = wanted == CPU_KERNELS_AUTO;
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
#else
    if (wanted == CPU_KERNELS_AVX2 || wanted == CPU_KERNELS_AVX512) {
        return refuse(wanted == CPU_KERNELS_AVX2 ? "avx2" : "avx512", "x86-64 instructions", error);
    }
#endif
    return true;
}
