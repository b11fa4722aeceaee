/* int8 blocks: as the header describes them, the same with every instruction set; nothing is lost. */
#include "ps/store/codec.h"
#include "tests/check.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/cpu.h"
#define CODEC_LOOPS codec_here /* compiled here again, with the tests' checks */
#include "ps/store/codec_loops.h"
#include "tests/random.h"

enum { MOST = 300 };

/* The loops that this CPU can run. */
static int all_loops(const struct codec_loops *loops[4])
{
    int count = 0;
    loops[count++] = &codec_here;
    loops[count++] = &codec_baseline;
#if defined(__x86_64__)
    if (cpu_features_get()->avx2) {
        loops[count++] = &codec_avx2;
    }
    if (cpu_features_get()->avx512) {
        loops[count++] = &codec_avx512;
    }
#endif
    return count;
}

/* A float at a time. */
static void round_plainly(uint8_t *bytes, float *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t first = i / INT8_BLOCK * INT8_BLOCK;
        float largest = 0;
        bool finite = true;
        if (i > first) {
            continue;
        }
        const size_t end = n < first + INT8_BLOCK ? n : first + INT8_BLOCK;
        for (size_t k = first; k < end; k++) {
            largest = fmaxf(largest, fabsf(values[k]));
            finite = finite && fabsf(values[k]) < 0x1p127f;
        }
        float scale = !finite ? NAN : largest / 127.0f >= FLT_MIN ? largest / 127.0f : 0.0f;
        memcpy(bytes + i / INT8_BLOCK * sizeof scale, &scale, sizeof scale);
        for (size_t k = first; k < end; k++) {
            const float inverse = 1.0f / scale;
            const float whole = scale > 0 ? nearbyintf(values[k] * inverse) + 0.0f : 0.0f; /* no -0 */
            bytes[int8_blocks(n) * sizeof scale + k] = (uint8_t)(int8_t)whole;
            values[k] = !finite ? 0.0f : scale > 0 ? values[k] - scale * whole : values[k];
        }
    }
}

/* Various sizes, zeros, and now and then a value that is not finite. */
static void make(struct test_random *random, float *values, size_t n)
{
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, FLT_MIN, 1e-45f, 127.0f};
    const int size = test_random_below(random, 250) - 140;
    for (size_t i = 0; i < n; i++) {
        values[i] = ldexpf(test_random_float(random), size);
        if (test_random_below(random, 200) == 0) {
            values[i] = odd[test_random_below(random, (int)(sizeof odd / sizeof *odd))];
        }
    }
}

TEST(all_round_alike)
{
    struct test_random random = test_random_begin("int8");
    const struct codec_loops *loops[4];
    const int count = all_loops(loops);
    for (int round = 0; round < 2000; round++) {
        const size_t n = 1 + (size_t)test_random_below(&random, MOST), size = int8_size(n);
        float *values = malloc(n * sizeof *values), *left = malloc(n * sizeof *left),
              *there = malloc(n * sizeof *there);
        float *widened = malloc(n * sizeof *widened);
        uint8_t *wanted = malloc(size), *bytes = malloc(size);
        make(&random, values, n);
        memcpy(left, values, n * sizeof *left);
        round_plainly(wanted, left, n);
        for (int k = 0; k < count; k++) {
            memcpy(there, values, n * sizeof *there);
            loops[k]->int8_round(bytes, there, n);
            for (size_t i = 0; i < int8_blocks(n); i++) { /* any NaN is as good */
                float a, b;
                memcpy(&a, wanted + i * sizeof a, sizeof a);
                memcpy(&b, bytes + i * sizeof b, sizeof b);
                assert_true(memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)));
            }
            const size_t scales = int8_blocks(n) * sizeof(float);
            assert_memory_equal(bytes + scales, wanted + scales, n);
            assert_memory_equal(there, left, n * sizeof *left);
            loops[k]->int8_widen(widened, bytes, n);
            for (size_t i = 0; i < n; i++) {
                float scale;
                memcpy(&scale, wanted + i / INT8_BLOCK * sizeof scale, sizeof scale);
                const float expected = scale * (float)(int8_t)wanted[scales + i];
                assert_true(memcmp(&widened[i], &expected, sizeof expected) == 0 ||
                            (isnan(scale) && isnan(widened[i])));
                if (!isnan(scale)) { /* half a step, plus rounding in computing it */
                    assert_true(fabsf(left[i]) <= scale * 0.5001f || scale == 0.0f);
                    assert_true(fabs((double)values[i] - (double)widened[i] - (double)left[i]) <=
                                fabs((double)values[i]) * 0x1p-22);
                }
            }
        }
        free(values);
        free(left);
        free(there);
        free(widened);
        free(wanted);
        free(bytes);
    }
}

/* Round by round, with the residual added to the next: everything arrives, up to the last residual. */
TEST(what_is_left_arrives_later)
{
    enum { N = 150, ROUNDS = 60 };
    struct test_random random = test_random_begin("int8 feedback");
    float sums[N] = {0}, widened[N];
    double owed[N] = {0};
    uint8_t bytes[N + 3 * sizeof(float)];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < N; i++) {
            const float value = test_random_float(&random);
            sums[i] += value;
            owed[i] += (double)value;
        }
        int8_round(bytes, sums, N);
        assert_true(int8_widen(widened, bytes, N));
        for (int i = 0; i < N; i++) {
            owed[i] -= (double)widened[i];
        }
    }
    for (int i = 0; i < N; i++) {
        assert_true(fabs(owed[i] - (double)sums[i]) < 1e-5);
        assert_true(fabs(owed[i]) < 1.01 / 254);
    }
}

TEST(scales_that_make_no_sense_are_refused)
{
    static const struct {
        float scale;
        bool good;
    } cases[] = {{1.0f, true},   {0.0f, true},      {-0.0f, true},      {NAN, true},
                 {-1.0f, false}, {INFINITY, false}, {-INFINITY, false}, {1e-45f, true}};
    uint8_t bytes[65 + 2 * sizeof(float)] = {0};
    float values[65];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t block = 0; block < 2; block++) {
            memset(bytes, 0, sizeof bytes);
            memcpy(bytes + block * sizeof(float), &cases[i].scale, sizeof(float));
            assert_int_equal(int8_widen(values, bytes, 65), cases[i].good);
            if (cases[i].good) {
                assert_true(isnan(values[block == 0 ? 0 : 64]) == isnan(cases[i].scale));
            }
        }
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
