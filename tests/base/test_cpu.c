/* CPU features compared with the compiler's detection and the kernel's. */
#include "base/cpu.h"
#include "tests/check.h"

#include <string.h>

TEST(agrees_with_the_compiler)
{
#if defined(__x86_64__)
    const struct cpu_features *features = cpu_features_get();
    __builtin_cpu_init();
    assert_true(features->sse2);
    assert_int_equal(features->avx, __builtin_cpu_supports("avx") != 0);
    assert_int_equal(features->avx2, __builtin_cpu_supports("avx2") != 0);
    assert_int_equal(features->fma, __builtin_cpu_supports("fma") != 0);
    bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    assert_int_equal(features->avx512, avx512);
#else
    skip();
#endif
}

TEST(text_lists_what_is_there)
{
    const struct cpu_features features = {.sse2 = true, .avx = true, .avx2 = true, .fma = true};
    char text[64];
    cpu_features_text(&features, text, sizeof text);
    assert_string_equal(text, "sse2 avx avx2 fma");
    cpu_features_text(&(struct cpu_features){0}, text, sizeof text);
    assert_string_equal(text, "");
}

int main(void)
{
    return check_run(NULL, NULL);
}
