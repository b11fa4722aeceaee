/* Samples of numbers and their quantiles; times as they are written. */
#include "worker/data/table/sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "worker/data/table/timestamp.h"

static void quantiles_of_all_that_fits(void **state)
{
    (void)state;
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

static void more_rows_than_fit_are_thinned_evenly(void **state)
{
    (void)state;
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

static void times_are_numbers_or_dates(void **state)
{
    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_of_all_that_fits),
        cmocka_unit_test(more_rows_than_fit_are_thinned_evenly),
        cmocka_unit_test(times_are_numbers_or_dates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
