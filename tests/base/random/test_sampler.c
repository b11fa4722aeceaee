/* The sampler must visit every example once per epoch, in orders that look random and are independent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/random/sampler.h"
#include "tests/check.h"

enum { MAX_EXAMPLES = 65537 };

static uint32_t order_a[MAX_EXAMPLES], order_b[MAX_EXAMPLES];

static void fill_order(uint32_t *order, uint64_t seed, uint32_t task, uint32_t examples, int64_t epoch)
{
    struct sampler sampler = {.seed = seed, .task = task, .examples = examples, .batch_size = 1};
    struct sampler_order prepared;
    sampler_order_make(&prepared, &sampler, epoch);
    for (uint32_t i = 0; i < examples; i++) {
        order[i] = sampler_index(&prepared, i);
    }
}

static void test_every_example_once(void **state)
{
    static const uint32_t sizes[] = {1, 2, 3, 7, 8, 99, 100, 101, 255, 256, 257, 1000, 55000, 60000, 65536, 65537};
    static uint8_t seen[MAX_EXAMPLES];
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            fill_order(order_a, 42, 1, sizes[s], epoch);
            memset(seen, 0, sizeof seen);
            for (uint32_t i = 0; i < sizes[s]; i++) {
                assert_true(order_a[i] < sizes[s]);
                assert_int_equal(seen[order_a[i]], 0);
                seen[order_a[i]] = 1;
            }
        }
    }
}

static void test_batches_cover_an_epoch(void **state)
{
    static const uint32_t cases[][2] = {{1, 1}, {1, 100}, {7, 3}, {100, 100}, {101, 100}, {99, 100}, {1000, 7}};
    static uint8_t seen[1000];
    int32_t indexes[100];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct sampler sampler = {.seed = 9, .task = 0, .examples = cases[c][0], .batch_size = cases[c][1]};
        int64_t batches = sampler_epoch_batches(&sampler);
        assert_int_equal(batches, (cases[c][0] + cases[c][1] - 1) / cases[c][1]);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, sizeof seen);
            uint32_t total = 0;
            for (int64_t b = 0; b < batches; b++) {
                int count = sampler_draw(&sampler, epoch * batches + b, indexes);
                assert_true(count > 0 && (uint32_t)count <= cases[c][1]);
                assert_true((uint32_t)count == cases[c][1] || b == batches - 1);
                for (int i = 0; i < count; i++) {
                    assert_int_equal(seen[indexes[i]]++, 0);
                }
                total += (uint32_t)count;
            }
            assert_int_equal(total, cases[c][0]);
        }
    }
}

static void test_a_draw_depends_on_nothing_else(void **state)
{
    struct sampler sampler = {.seed = 3, .task = 2, .examples = 55000, .batch_size = 100};
    int32_t first[100], other[100], again[100];
    sampler_draw(&sampler, 777777, first);
    sampler_draw(&sampler, 5, other);
    sampler_draw(&sampler, 777777, again);
    assert_memory_equal(first, again, sizeof first);
    /* Beyond 2^32 epochs, where a truncated counter would start again. */
    struct sampler tiny = {.seed = 3, .task = 2, .examples = 100, .batch_size = 100};
    sampler_draw(&tiny, 5, first);
    sampler_draw(&tiny, 5 + ((int64_t)1 << 32), other);
    assert_memory_not_equal(first, other, sizeof first);
    struct sampler largest = {.seed = 1, .task = 0, .examples = INT32_MAX, .batch_size = 100};
    assert_int_equal(sampler_draw(&largest, sampler_epoch_batches(&largest) - 1, other), INT32_MAX % 100);
    for (int i = 0; i < INT32_MAX % 100; i++) {
        assert_true(other[i] >= 0);
    }
}

/* A change of the order breaks resumed runs and the agreement of CPU and GPU: it must be deliberate. */
static void test_known_order(void **state)
{
    struct sampler sampler = {.seed = 1, .task = 0, .examples = 55000, .batch_size = 8};
    static const int32_t want[] = {13876, 3624, 22624, 3000, 36026, 42553, 48193, 14964};
    int32_t indexes[8];
    assert_int_equal(sampler_draw(&sampler, 0, indexes), 8);
    if (memcmp(indexes, want, sizeof want) != 0) {
        for (int i = 0; i < 8; i++) {
            print_message("%d, ", indexes[i]);
        }
        fail_msg("the order of seed 1 has changed");
    }
}

/* The chi-square statistic of counts over equally likely cells, in standard deviations from its expected value. */
static double chi_square_sigmas(const uint32_t *counts, uint32_t cells, double expected, double mean, double variance)
{
    double sum = 0;
    for (uint32_t i = 0; i < cells; i++) {
        double difference = counts[i] - expected;
        sum += difference * difference / expected;
    }
    return (sum - mean) / sqrt(variance);
}

/* Over many epochs each position must get each example equally often, and each example every other one as neighbour. */
static void check_uniform(uint32_t examples, int epochs, uint64_t seed)
{
    static uint32_t single[100 * 100], pair[100 * 100];
    memset(single, 0, sizeof single);
    memset(pair, 0, sizeof pair);
    for (int epoch = 0; epoch < epochs; epoch++) {
        fill_order(order_a, seed, 0, examples, epoch);
        for (uint32_t i = 0; i < examples; i++) {
            single[i * examples + order_a[i]]++;
        }
        for (uint32_t i = 0; i + 1 < examples; i++) {
            uint32_t a = order_a[i], b = order_a[i + 1];
            pair[a * (examples - 1) + (b > a ? b - 1 : b)]++; /* the diagonal cannot occur: leave it out */
        }
    }
    /* A table of permutations has (n - 1)^2 degrees of freedom: its statistic is n / (n - 1) times that chi-square. */
    double n = examples, expected = epochs / n;
    double sigmas = chi_square_sigmas(single, examples * examples, expected, n * (n - 1), 2 * n * n);
    double pairs = n * (n - 1);
    double pair_sigmas = chi_square_sigmas(pair, examples * (examples - 1), expected, pairs - 1, 2 * pairs);
    if (fabs(sigmas) > 5 || fabs(pair_sigmas) > 5) {
        fail_msg("seed %llu, %u examples: positions %.1f, pairs %.1f standard deviations off", (unsigned long long)seed,
                 examples, sigmas, pair_sigmas);
    }
}

static void test_uniform(void **state)
{
    for (uint64_t seed = 0; seed < 4; seed++) {
        check_uniform(10, 10000, seed);
        check_uniform(31, 10000, seed);
        check_uniform(99, 5000, seed);
        check_uniform(100, 5000, seed);
    }
}

/* Every order of a few examples must come up equally often: too small a network favours some and misses others. */
static void test_all_orders_of_few(void **state)
{
    for (uint32_t n = 2; n <= 4; n++) {
        uint32_t counts[256] = {0}, orders = n == 2 ? 2 : n == 3 ? 6 : 24, found = 0;
        for (int epoch = 0; epoch < 24000; epoch++) {
            fill_order(order_a, 5, 0, n, epoch);
            uint32_t code = 0;
            for (uint32_t i = 0; i < n; i++) {
                code = code << 2 | order_a[i];
            }
            counts[code]++;
        }
        for (uint32_t i = 0; i < 256; i++) {
            if (counts[i] > 0) {
                counts[found++] = counts[i];
            }
        }
        assert_int_equal(found, orders);
        double sigmas = chi_square_sigmas(counts, orders, 24000.0 / orders, orders - 1, 2.0 * (orders - 1));
        assert_true(sigmas < 5);
    }
}

static double correlation(uint32_t examples)
{
    double mean = (examples - 1) / 2.0, covariance = 0, variance = 0;
    for (uint32_t i = 0; i < examples; i++) {
        covariance += (order_a[i] - mean) * (order_b[i] - mean);
        variance += (i - mean) * (i - mean);
    }
    return covariance / variance;
}

static void check_unrelated(uint32_t examples, const char *what)
{
    double r = correlation(examples) * sqrt((double)examples); /* standard normal if unrelated */
    uint32_t same = 0, same_step = 0;
    for (uint32_t i = 0; i < examples; i++) {
        same += order_a[i] == order_b[i];
        same_step += i > 0 && order_a[i] - order_a[i - 1] == order_b[i] - order_b[i - 1];
    }
    /* Both numbers are about Poisson with mean 1: 15 would occur once in 10^12 trials. */
    if (r > 5.5 || r < -5.5 || same > 15 || same_step > 15) {
        fail_msg("%s, %u examples: correlation %.1f sigma, %u in the same place, %u equal steps", what, examples, r,
                 same, same_step);
    }
}

static void test_tasks_epochs_and_seeds_are_unrelated(void **state)
{
    static const uint32_t sizes[] = {1000, 55000, 65536};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        fill_order(order_a, 1, 0, sizes[s], 0);
        for (uint32_t other = 1; other < 20; other++) {
            fill_order(order_b, 1, other, sizes[s], 0);
            check_unrelated(sizes[s], "tasks");
            fill_order(order_b, 1, 0, sizes[s], other);
            check_unrelated(sizes[s], "epochs");
            fill_order(order_b, 1 + other, 0, sizes[s], 0);
            check_unrelated(sizes[s], "seeds");
        }
        for (uint32_t i = 0; i < sizes[s]; i++) {
            order_b[i] = i;
        }
        check_unrelated(sizes[s], "the files' own order");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_example_once),
        cmocka_unit_test(test_batches_cover_an_epoch),
        cmocka_unit_test(test_a_draw_depends_on_nothing_else),
        cmocka_unit_test(test_known_order),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_all_orders_of_few),
        cmocka_unit_test(test_tasks_epochs_and_seeds_are_unrelated),
    };
    return cmocka_run_group_tests_name("sampler", tests, NULL, NULL);
}
