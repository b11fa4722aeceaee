/* Medians and trimmed means, compared with a sort of each float's values. */
#include <stdlib.h>
#include <string.h>

#include "ps/store/rounds.h"
#include "tests/check.h"
#include "tests/random.h"

enum { MOST = 70, FLOATS = 100 };

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void compare(struct test_random *random, int workers, int cut)
{
    static float values[MOST][FLOATS], out[FLOATS];
    const float *pointers[MOST];
    float scales[MOST];
    void *scratch = malloc(robust_scratch(workers));
    const size_t count = 1 + (size_t)test_random_below(random, FLOATS);
    for (int k = 0; k < workers; k++) {
        for (size_t i = 0; i < count; i++) {
            values[k][i] = test_random_below(random, 4) == 0 ? 0.0f : test_random_float(random);
        }
        pointers[k] = test_random_below(random, 5) == 0 ? NULL : values[k];
        scales[k] = test_random_below(random, 2) == 0 ? 1.0f : 0.25f;
    }
    robust_mean(out, pointers, scales, workers, cut, count, scratch);
    for (size_t i = 0; i < count; i++) {
        float sorted[MOST];
        for (int k = 0; k < workers; k++) {
            sorted[k] = pointers[k] ? values[k][i] * scales[k] + 0.0f : 0.0f;
        }
        qsort(sorted, (size_t)workers, sizeof *sorted, by_value);
        float sum = sorted[cut];
        for (int k = cut + 1; k < workers - cut; k++) {
            sum += sorted[k];
        }
        const float expected = sum / (float)(workers - 2 * cut);
        assert_memory_equal(&out[i], &expected, sizeof expected);
    }
    free(scratch);
}

TEST(test_what_is_left_is_the_middle)
{
    struct test_random random = test_random_begin("robust");
    for (int workers = 1; workers <= MOST; workers++) {
        for (int cut = 0; cut <= (workers - 1) / 2; cut += 1 + workers / 8) {
            compare(&random, workers, cut);
        }
    }
}

TEST(test_how_many_are_left_out)
{
    struct config_train train = {.aggregate = AGGREGATE_MEAN, .trim = 0.1};
    assert_int_equal(robust_cut(&train, 10), -1);
    train.aggregate = AGGREGATE_MEDIAN;
    assert_int_equal(robust_cut(&train, 1), 0);
    assert_int_equal(robust_cut(&train, 2), 0);
    assert_int_equal(robust_cut(&train, 5), 2);
    assert_int_equal(robust_cut(&train, 6), 2);
    train.aggregate = AGGREGATE_TRIMMED_MEAN;
    assert_int_equal(robust_cut(&train, 9), 0);
    assert_int_equal(robust_cut(&train, 10), 1); /* 0.1 is a little more than a tenth */
    assert_int_equal(robust_cut(&train, 30), 3);
    train.trim = 0.49;
    assert_int_equal(robust_cut(&train, 4), 1);
    assert_int_equal(robust_cut(&train, 3), 1);
}

/* Fewer than half may send anything. */
TEST(test_a_few_who_lie_change_little)
{
    float values[5][1] = {{0.9f}, {1e38f}, {1.1f}, {-1e38f}, {1.0f}}, out[1];
    const float *pointers[5] = {values[0], values[1], values[2], values[3], values[4]};
    const float scales[5] = {1, 1, 1, 1, 1};
    void *scratch = malloc(robust_scratch(5));
    robust_mean(out, pointers, scales, 5, 2, 1, scratch);
    assert_float_equal(out[0], 1.0f, 0);
    robust_mean(out, pointers, scales, 5, 1, 1, scratch);
    assert_float_equal(out[0], 1.0f, 1e-6f);
    free(scratch);
}

TEST(test_long_differences_are_scaled_down)
{
    const float difference[] = {3, 0, -4};
    const double squares = outer_squares(outer_squares(0, difference, 1), difference + 1, 2);
    assert_float_equal(squares, 25, 0);
    assert_float_equal(outer_clip(squares, 0), 1, 0);
    assert_float_equal(outer_clip(squares, 5), 1, 0);
    assert_float_equal(outer_clip(squares, 1), 0.2f, 1e-9f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
