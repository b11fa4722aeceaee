/* bfloat16: rounding, and differences, the same with every instruction set. */
#include "ps/store/codec.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

#include "base/cpu.h"
#define CODEC_LOOPS codec_here /* compiled here again, with the tests' checks */
#include "ps/store/codec_loops.h"
#include "tests/random.h"

enum { MOST = 700 };

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

/* As the header describes it, byte by byte; memory of exactly its size. */
static size_t encode_plainly(uint8_t *encoded, const uint16_t *known, const uint16_t *halves, size_t n, bool in_full)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i += BFLOAT16_BLOCK) {
        size_t count = n - i < BFLOAT16_BLOCK ? n - i : BFLOAT16_BLOCK;
        int least = 0, most = 0;
        for (size_t j = i; j < i + count; j++) {
            int16_t change = (int16_t)(uint16_t)(halves[j] - known[j]);
            least = change < least ? change : least;
            most = change > most ? change : most;
        }
        int bits = least == 0 && most == 0 ? 0 : least >= -8 && most < 8 ? 4 : least >= -128 && most < 128 ? 8 : 16;
        bits = in_full || (bits != 0 && count < BFLOAT16_BLOCK) ? 16 : bits;
        encoded[at++] = (uint8_t)bits;
        for (size_t j = i; bits == 16 && j < i + count; j++) {
            encoded[at++] = (uint8_t)halves[j];
            encoded[at++] = (uint8_t)(halves[j] >> 8);
        }
        for (size_t j = i; bits == 8 && j < i + count; j++) {
            encoded[at++] = (uint8_t)(halves[j] - known[j]);
        }
        for (size_t j = i; bits == 4 && j < i + 16; j++) {
            encoded[at++] = (uint8_t)(((halves[j] - known[j]) & 15) | ((halves[j + 16] - known[j + 16]) & 15) << 4);
        }
    }
    return at;
}

static void change_some(struct test_random *random, uint16_t *halves, size_t n)
{
    static const int reach[] = {1, 3, 8, 9, 100, 128, 129, 40000};
    for (size_t i = 0; i < n; i += BFLOAT16_BLOCK) {
        int kind = test_random_below(random, 10);
        for (size_t j = i; kind < 8 && j < n && j < i + BFLOAT16_BLOCK; j++) {
            int by = test_random_below(random, 2 * reach[kind]) - reach[kind];
            halves[j] = (uint16_t)(halves[j] + (test_random_below(random, 3) ? by : 0));
        }
    }
}

TEST(differences_arrive)
{
    struct test_random random = test_random_begin("differences");
    const struct codec_loops *loops[4];
    const int count = all_loops(loops);
    for (int round = 0; round < 400; round++) {
        size_t n = 1 + (size_t)test_random_below(&random, round < 100 ? 70 : MOST);
        uint16_t *halves = malloc(n * sizeof *halves), *before = malloc(n * sizeof *halves);
        uint8_t *plain = malloc(bfloat16_encoded_room(n));
        for (size_t i = 0; i < n; i++) {
            before[i] = halves[i] = (uint16_t)test_random_below(&random, 65536);
        }
        change_some(&random, halves, n);
        bool in_full = round % 7 == 0;
        size_t size = encode_plainly(plain, before, halves, n, in_full);
        for (int k = 0; k < count; k++) {
            uint16_t *known = malloc(n * sizeof *known), *applied = malloc(n * sizeof *known);
            uint8_t *encoded = malloc(bfloat16_encoded_room(n));
            memcpy(known, before, n * sizeof *known);
            memcpy(applied, before, n * sizeof *known);
            assert_int_equal(loops[k]->encode_delta(encoded, known, halves, n, in_full), size);
            assert_memory_equal(encoded, plain, size);
            assert_memory_equal(known, halves, n * sizeof *known);
            uint8_t *exact = malloc(size); /* so that overreads are noticed */
            memcpy(exact, encoded, size);
            assert_int_equal(loops[k]->apply_delta(applied, exact, size, n), size);
            assert_memory_equal(applied, halves, n * sizeof *known);
            free(exact);
            free(encoded);
            free(known);
            free(applied);
        }
        free(plain);
        free(before);
        free(halves);
    }
}

TEST(nonsense_is_refused)
{
    struct test_random random = test_random_begin("nonsense");
    const struct codec_loops *loops[4];
    const int count = all_loops(loops);
    for (int round = 0; round < 2000; round++) {
        size_t n = 1 + (size_t)test_random_below(&random, 200), room = bfloat16_encoded_room(n);
        uint16_t *known = calloc(n, sizeof *known), *halves = calloc(n, sizeof *halves);
        uint8_t *encoded = malloc(room);
        change_some(&random, halves, n);
        size_t size = bfloat16_encode_delta(encoded, known, halves, n, false);
        size_t cut = (size_t)test_random_below(&random, (int)size);
        uint8_t *short_one = malloc(cut > 0 ? cut : 1);
        memcpy(short_one, encoded, cut);
        for (int k = 0; k < count; k++) {
            assert_int_equal(loops[k]->apply_delta(known, short_one, cut, n), 0);
        }
        short_one[0] = (uint8_t)(1 + test_random_below(&random, 3)); /* an invalid width */
        for (int k = 0; k < count; k++) {
            assert_int_equal(loops[k]->apply_delta(known, short_one, cut, n), 0);
        }
        free(short_one);
        free(encoded);
        free(halves);
        free(known);
    }
}

TEST(errors_of_rounding_are_kept)
{
    enum { N = 70 };
    static const float nothing[N];
    struct test_random random = test_random_begin("feed back");
    uint16_t halves[N];
    float values[N], remainders[N], before[N];
    for (int n = 1; n <= N; n++) {
        memset(remainders, 0, sizeof remainders);
        assert_false(bfloat16_feed_back(halves, remainders, nothing, (size_t)n));
        for (int i = 0; i < n; i++) {
            values[i] = i == 5 ? INFINITY : test_random_float(&random);
            before[i] = remainders[i] = ldexpf(test_random_float(&random), -9);
        }
        assert_true(bfloat16_feed_back(halves, remainders, values, (size_t)n));
        for (int i = 0; i < n; i++) {
            const float wanted = values[i] + before[i];
            assert_int_equal(halves[i], bfloat16_round(wanted));
            assert_true(remainders[i] == (i == 5 ? 0 : wanted - bfloat16_widen(halves[i])));
        }
        memset(values, 0, sizeof values);
        memset(remainders, 0, sizeof remainders);
        values[n - 1] = 1;
        assert_true(bfloat16_feed_back(halves, remainders, values, (size_t)n)); /* one is enough */
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
