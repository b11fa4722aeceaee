/* Samples of numbers and their quantiles; times as they are written. */
#include "tests/check.h"
#include "worker/data/table/sample.h"

#include <math.h>
#include <string.h>

#include "worker/data/table/timestamp.h"

TEST(quantiles_of_all_that_fits)
{
    static const double shares[] = {0, 0.25, 0.5, 0.9, 1};
    double quantiles[5];
    struct sample sample;
    assert_true(sample_create(&sample, 2, 0));
    for (int i = 0; i < 101; i++) {
        double *kept = sample_add(&sample);
        assert_non_null(kept);
        kept[0] = 100 - i;
        kept[1] = i % 2 == 0 ? (double)NAN : i;
    }
    assert_true(sample_quantile(&sample, 0, shares, 5, quantiles));
    for (int i = 0; i < 5; i++) {
        assert_true(fabs(quantiles[i] - 100 * shares[i]) < 1e-9);
    }
    assert_true(sample_quantile(&sample, 1, shares, 5, quantiles)); /* of 1, 3, ... 99 */
    assert_true(quantiles[0] == 1 && quantiles[2] == 50 && quantiles[4] == 99);
    sample_clear(&sample);
    assert_true(sample_quantile(&sample, 0, shares, 1, quantiles) && isnan(quantiles[0]));
    sample_free(&sample);
}

/* Ties, few values, one value, none; otherwise as numpy.quantile has them. */
TEST(edges_of_bins_are_quantiles)
{
    static const double quarters[] = {0, 25, 50, 75, 100}, merged[] = {0, 75, 100}, few[] = {-1, 2, 7};
    static const struct {
        const double *edges;
        int count;
    } expected[] = {{quarters, 5}, {merged, 3}, {few, 3}, {quarters, 1}, {NULL, 0}};
    double edges[5];
    struct sample sample;
    assert_true(sample_create(&sample, 5, 0));
    for (int i = 0; i < 101; i++) {
        double *kept = sample_add(&sample);
        assert_non_null(kept);
        kept[0] = 100 - i;
        kept[1] = i < 60 ? 0 : i; /* three of five edges are 0 */
        kept[2] = i % 5 == 0 ? (double)NAN : few[i % 3];
        kept[3] = 0;
        kept[4] = (double)NAN;
    }
    for (int column = 0; column < 5; column++) {
        int count = -1;
        assert_true(sample_edges(&sample, column, 4, edges, &count));
        assert_int_equal(count, expected[column].count);
        for (int i = 0; i < count; i++) {
            assert_true(edges[i] == expected[column].edges[i]);
        }
    }
    sample_free(&sample);
}

TEST(more_rows_than_fit_are_thinned_evenly)
{
    static const double shares[] = {0.1, 0.5, 0.9};
    enum { ROWS = 300000 };
    double quantiles[3];
    struct sample sample;
    assert_true(sample_create(&sample, 1, 4096 * sizeof(double)));
    for (int i = 0; i < ROWS; i++) {
        double *kept = sample_add(&sample);
        if (kept) {
            *kept = i;
        }
        assert_in_range(sample.count, 0, 4096);
    }
    assert_true(sample.count > 4096 / 4);
    assert_true(sample_quantile(&sample, 0, shares, 3, quantiles));
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(quantiles[i] / ROWS - shares[i]) < 0.03);
    }
    sample_free(&sample);
}

TEST(times_are_numbers_or_dates)
{
    static const struct {
        const char *text;
        double time;
    } good[] = {{"0", 0},
                {"-12.5", -12.5},
                {"1970-01-01", 0},
                {" 2000-03-01 ", 951868800},
                {"2024-02-29T12:30", 1709209800},
                {"2024-02-29 12:30:15.25", 1709209815.25},
                {"2024-02-29T12:30:15Z", 1709209815},
                {"2024-02-29T12:30:15+02:00", 1709202615},
                {"2024-02-29T12:30:15-0130", 1709215215},
                {"1969-12-31 23:59:59", -1}};
    static const char *const bad[] = {"",
                                      "soon",
                                      "2024-13-01",
                                      "2024-1-41",
                                      "2024-01-32",
                                      "2024-01-01T25",
                                      "01.02.24x",
                                      "2024-01-01 12:60",
                                      "2024-01-01Zx"};
    double time;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(timestamp_parse(good[i].text, strlen(good[i].text), DATES_AUTO, &time));
        assert_true(time == good[i].time);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(timestamp_parse(bad[i], strlen(bad[i]), DATES_AUTO, &time));
    }
}

TEST(dates_have_orders_and_parts)
{
    double time;
    static const struct {
        const char *text;
        unsigned orders;
    } ordered[] = {{"2024-02-29", ORDER_ANY},
                   {"2024/2/29", ORDER_ANY},
                   {"29.2.2024", ORDER_DMY},
                   {"3/4/2024", ORDER_DMY | ORDER_MDY},
                   {"13/4/24", ORDER_DMY},
                   {"4/13/2024 1:30 PM", ORDER_MDY},
                   {"12 Mar 2024", ORDER_ANY},
                   {"12-MAR-24", ORDER_ANY},
                   {"March 12, 2024", ORDER_ANY},
                   {"Tue, 12 Mar 2024 10:00:00 GMT", ORDER_ANY},
                   {"12:30", ORDER_ANY},
                   {"2024-05", ORDER_ANY},
                   {"30/2/2024", 0},
                   {"13/13/2024", 0},
                   {"192.168.1.1", 0},
                   {"555-1234", 0},
                   {"1.2.3", 0},
                   {"may", 0},
                   {"12", 0},
                   {"1/2", 0},
                   {"12:61", 0}};
    for (size_t i = 0; i < sizeof ordered / sizeof ordered[0]; i++) {
        if (timestamp_orders(ordered[i].text, strlen(ordered[i].text)) != ordered[i].orders) {
            fail_msg("%s", ordered[i].text);
        }
    }
    assert_true(timestamp_read("3/4/24 12:05 AM", 15, DATES_DMY, &time));
    assert_true(time == 1712102700);
    assert_true(timestamp_read("24/4/3", 6, DATES_YMD, &time));
    assert_true(time == 1712102400);
    assert_true(timestamp_read("Apr 3, 2024", 11, DATES_DMY, &time));
    assert_true(time == 1712102400);
    double parts[DATE_PARTS];
    timestamp_parts(1712147400, parts); /* Wednesday, 2024-04-03 12:30 */
    assert_true(parts[DATE_YEAR] == 2024 && parts[DATE_MONTH] == 4 && parts[DATE_DAY] == 3);
    assert_true(parts[DATE_WEEKDAY] == 2 && parts[DATE_HOUR] == 12.5 && parts[DATE_SECONDS] == 1712147400);
    timestamp_parts(-1, parts);
    assert_true(parts[DATE_YEAR] == 1969 && parts[DATE_MONTH] == 12 && parts[DATE_DAY] == 31);
}

int main(void)
{
    return check_run(NULL, NULL);
}
