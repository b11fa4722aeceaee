/*
 * x86-64 features come from cpuid, and from xgetbv for the registers that the operating system saves on a task switch:
 * a processor may have AVX that the kernel or hypervisor does not enable. (gcc's __builtin_cpu_supports would do, but
 * some static libgcc builds lack its start-up code.)
 */
#include "base/cpu.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum {
    XCR0_SSE_AVX = 0x06,               /* XMM and YMM state */
    XCR0_AVX512 = XCR0_SSE_AVX | 0xE0, /* and opmask, upper ZMM, high ZMM */
};

static uint32_t enabled_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

static void read_model(char *model, size_t size)
{
    uint32_t words[13] = {0};
    uint32_t highest = (uint32_t)__get_cpuid_max(0x80000000u, NULL);
    if (highest < 0x80000004u) {
        return;
    }
    for (uint32_t part = 0; part < 3; part++) {
        uint32_t *four = words + 4 * part;
        __cpuid(0x80000002u + part, four[0], four[1], four[2], four[3]);
    }
    const char *text = (const char *)words;
    text += strspn(text, " ");
    snprintf(model, size, "%s", text);
    for (size_t length = strlen(model); length > 0 && model[length - 1] == ' '; length--) {
        model[length - 1] = '\0';
    }
}

static void detect(struct cpu_features *features)
{
    uint32_t a, b, c, d;
    features->sse2 = true; /* part of x86-64 */
    read_model(features->model, sizeof features->model);
    if (!__get_cpuid(1, &a, &b, &c, &d)) {
        return;
    }
    features->aesni = (c & bit_AES) != 0;
    if (!(c & bit_OSXSAVE)) {
        return;
    }
    uint32_t state = enabled_state();
    if ((state & XCR0_SSE_AVX) != XCR0_SSE_AVX) {
        return;
    }
    features->avx = (c & bit_AVX) != 0;
    features->fma = features->avx && (c & bit_FMA) != 0;
    features->f16c = features->avx && (c & bit_F16C) != 0;
    if (!features->avx || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        return;
    }
    const uint32_t avx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    features->avx2 = (b & bit_AVX2) != 0;
    features->vaes = features->avx2 && (c & (bit_VAES | bit_VPCLMULQDQ)) == (bit_VAES | bit_VPCLMULQDQ);
    features->avx512 = (state & XCR0_AVX512) == XCR0_AVX512 && (b & avx512) == avx512;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

static void detect(struct cpu_features *features)
{
    const unsigned long aes = 1ul << 3; /* HWCAP_AES */
    features->neon = true;              /* part of aarch64 */
    features->aes = (getauxval(AT_HWCAP) & aes) != 0;
}
#else
static void detect(struct cpu_features *features)
{
    (void)features;
}
#endif

static struct cpu_features found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void detect_once(void)
{
    detect(&found);
}

const struct cpu_features *cpu_features_get(void)
{
    pthread_once(&once, detect_once);
    return &found;
}

void cpu_features_text(const struct cpu_features *features, char *text, size_t size)
{
    const struct {
        bool has;
        const char *name;
    } sets[] = {
        {features->sse2, "sse2"}, {features->avx, "avx"},       {features->avx2, "avx2"},   {features->fma, "fma"},
        {features->f16c, "f16c"}, {features->avx512, "avx512"}, {features->aesni, "aesni"}, {features->vaes, "vaes"},
        {features->neon, "neon"}, {features->aes, "aes"},
    };
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        if (sets[i].has) {
            int written = snprintf(text + used, size - used, "%s%s", used > 0 ? " " : "", sets[i].name);
            if (written < 0 || (size_t)written >= size - used) {
                return;
            }
            used += (size_t)written;
        }
    }
}
