/* The fast buckets compared with a search through the limits; values on a limit, beyond all limits, or not finite. */
#include "worker/summary/summary.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "tests/check.h"

#include "tests/random.h"

static struct histogram histogram;

TEST(limits_grow_by_a_tenth)
{
    assert_true(histogram_limit(0) == -DBL_MAX);
    assert_true(histogram_limit(HISTOGRAM_SIDE) == 0);
    assert_true(histogram_limit(HISTOGRAM_SIDE + 1) == 1e-12);
    assert_true(histogram_limit(HISTOGRAM_BUCKETS - 1) == DBL_MAX);
    for (int i = HISTOGRAM_SIDE + 2; i < HISTOGRAM_BUCKETS - 1; i++) {
        assert_true(fabs(histogram_limit(i) / histogram_limit(i - 1) - 1.1) < 1e-9);
        assert_true(histogram_limit(i) == -histogram_limit(HISTOGRAM_BUCKETS - 1 - i));
    }
    assert_true(histogram_limit(HISTOGRAM_BUCKETS - 2) < 1e20 && histogram_limit(HISTOGRAM_BUCKETS - 2) > 9e19);
}

/* Every finite value lies in the bucket that it is counted in. */
static void check_value(float value)
{
    int found = -1;
    histogram_clear(&histogram);
    histogram_add(&histogram, &value, 1);
    for (int i = 0; i < HISTOGRAM_BUCKETS; i++) {
        if (histogram_count(&histogram, i) > 0) {
            assert_int_equal(histogram_count(&histogram, i), 1);
            assert_int_equal(found, -1);
            found = i;
        }
    }
    assert_true(found > 0);
    assert_true((double)value <= histogram_limit(found)); /* on the limit itself: below zero only */
    assert_true((double)value < histogram_limit(found) || value < 0);
    assert_true((double)value >= histogram_limit(found - 1));
}

TEST(every_value_in_its_bucket)
{
    struct test_random random = test_random_begin(__func__);
    for (int i = 0; i < 20000; i++) {
        uint32_t bits = (uint32_t)test_random_next(&random);
        float value;
        memcpy(&value, &bits, sizeof value);
        if (isfinite(value)) {
            check_value(value);
        }
        check_value(test_random_float(&random));
    }
    for (int i = 1; i < HISTOGRAM_BUCKETS - 1; i++) {
        float limit = (float)histogram_limit(i);
        check_value(limit);
        check_value(nextafterf(limit, INFINITY));
        check_value(nextafterf(limit, -INFINITY));
    }
    check_value(0.0f);
    check_value(-0.0f);
    check_value(FLT_MAX);
    check_value(-FLT_MAX);
    check_value(FLT_TRUE_MIN);
    check_value(-FLT_TRUE_MIN);
}

TEST(measures)
{
    struct test_random random = test_random_begin(__func__);
    float values[1000];
    for (int count = 0; count < 40; count++) {
        double sum = 0, squares = 0, minimum = INFINITY, maximum = -INFINITY;
        histogram_clear(&histogram);
        for (int i = 0; i < 3 * count; i++) {
            values[i] = test_random_float(&random);
            sum += (double)values[i];
            squares += (double)values[i] * (double)values[i];
            minimum = fmin(minimum, (double)values[i]);
            maximum = fmax(maximum, (double)values[i]);
        }
        for (int part = 0; part < 3; part++) {
            histogram_add(&histogram, values + (size_t)part * (size_t)count, (size_t)count);
        }
        assert_int_equal(histogram.count, 3 * count);
        assert_true(fabs(histogram.sum - sum) < 1e-9 && fabs(histogram.squares - squares) < 1e-9);
        assert_true(count == 0 || ((double)histogram.minimum == minimum && (double)histogram.maximum == maximum));
    }
}

TEST(what_is_no_number_is_left_out)
{
    const float values[] = {1, NAN, -2, INFINITY, -INFINITY, 3, 4, 5, 6, 7};
    histogram_clear(&histogram);
    histogram_add(&histogram, values, 10);
    assert_int_equal(histogram.count, 7);
    assert_true(histogram.sum == 24 && histogram.minimum == -2 && histogram.maximum == 7);
    histogram_clear(&histogram);
    histogram_add(&histogram, values + 1, 1);
    assert_true(histogram.count == 0 && histogram.sum == 0 && histogram.minimum == 0);
}

/* What is written: ascending limits, no two adjacent empty buckets, all values. */
TEST(encoded)
{
    const float values[] = {-5, 0, 0, 1e-3f, 1e-3f, 1e-3f, 1e6f};
    struct proto proto = {0};
    histogram_clear(&histogram);
    histogram_add(&histogram, values, 7);
    histogram_encode(&histogram, &proto, 5);
    struct proto_reader reader = proto_read(proto.bytes, proto.size);
    struct proto_field field, limits = {0}, counts = {0};
    assert_true(proto_next(&reader, &field) && field.number == 5);
    reader = proto_read(field.bytes, field.size);
    while (proto_next(&reader, &field)) {
        limits = field.number == 6 ? field : limits;
        counts = field.number == 7 ? field : counts;
    }
    assert_false(reader.damaged);
    assert_int_equal(limits.size, counts.size);
    double previous_limit = -INFINITY, previous_count = 1, sum = 0;
    for (size_t i = 0; i < limits.size / 8; i++) {
        double limit, count;
        memcpy(&limit, limits.bytes + 8 * i, sizeof limit);
        memcpy(&count, counts.bytes + 8 * i, sizeof count);
        assert_true(limit > previous_limit && (count > 0 || previous_count > 0));
        previous_limit = limit;
        previous_count = count;
        sum += count;
    }
    assert_true(sum == 7 && limits.size / 8 == 9 && previous_limit == DBL_MAX);
    proto_free(&proto);
}

int main(void)
{
    return check_run(NULL, NULL);
}
