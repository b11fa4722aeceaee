/* Evaluations of parts of the rows, merged, compared with one of all rows. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "tests/check.h"
#include "tests/random.h"
#include "tests/worker/values_engine.h"
#include "worker/evaluation/validation.h"

enum { ROWS = 600, PARTS = 5, MOST_OUTPUTS = 4 };

static struct test_random chance;

static struct {
    float values[ROWS * MOST_OUTPUTS], wanted[ROWS * MOST_OUTPUTS];
    int32_t labels[ROWS];
} rows;

static double draw(void)
{
    return (double)test_random_below(&chance, 1 << 20) / (1 << 20);
}

/* Informative scores: the wanted class is more likely. */
static void make_rows(int outputs)
{
    for (int i = 0; i < ROWS; i++) {
        rows.labels[i] = test_random_below(&chance, outputs > 1 ? outputs : 2);
        for (int k = 0; k < outputs; k++) {
            rows.values[i * outputs + k] = (float)(4 * draw() - 2 + (rows.labels[i] == k));
            rows.wanted[i * outputs + k] = (float)test_random_below(&chance, 2);
        }
    }
}

static struct examples part_of(int outputs, int targets, int first, int count)
{
    return (struct examples){.count = count,
                             .inputs = outputs,
                             .numbers = outputs,
                             .values = rows.values + first * outputs,
                             .classes = targets > 0 ? 0 : outputs,
                             .labels = rows.labels + first,
                             .targets = targets,
                             .target_values = rows.wanted + first * outputs};
}

static void create(struct evaluation *evaluation, const struct config_train *train, int outputs, int targets)
{
    const struct evaluation_options options = {
        .train = train, .outputs = outputs, .rows = ROWS, .targets = targets, .bins = true};
    evaluation_create(evaluation, &options);
}

static bool is_near(double one, double other)
{
    return (isnan(one) && isnan(other)) || fabs(one - other) <= 1e-9 * (1 + fabs(one));
}

/* The share of yes-no pairs in the same bin: twice the possible error of ROC AUC. */
static double pairs_in_one_bin(const struct evaluation *evaluation, int unit)
{
    const int64_t *bins = evaluation->bins + unit * METRICS_BINS * 2;
    double all = 0, none = 0, same = 0;
    for (int i = 0; i < METRICS_BINS; i++) {
        none += (double)bins[2 * i];
        all += (double)bins[2 * i + 1];
        same += (double)bins[2 * i] * (double)bins[2 * i + 1];
    }
    return same / (all * none);
}

static void compare(const struct evaluation *merged, const struct evaluation *whole)
{
    assert_int_equal(merged->images, whole->images);
    assert_int_equal(merged->correct, whole->correct);
    assert_true(is_near(merged->loss, whole->loss));
    assert_memory_equal(merged->class_images, whole->class_images, (size_t)whole->classes * sizeof(int64_t));
    if (whole->confusions) {
        assert_memory_equal(merged->confusions, whole->confusions, evaluation_cells(whole) * sizeof(int64_t));
    }
    double off = 0;
    for (int unit = 0; whole->bins && unit < whole->units; unit++) {
        off += pairs_in_one_bin(whole, unit) / 2 / whole->units;
    }
    for (int i = 0; i < METRICS; i++) {
        const double difference = fabs(merged->metrics[i] - whole->metrics[i]);
        if (i == METRIC_ROC_AUC && whole->bins) {
            assert_true(difference <= off + 1e-9);
        } else if (i == METRIC_AVERAGE_PRECISION && whole->bins) {
            assert_true(difference < 0.05);
        } else {
            assert_true(is_near(merged->metrics[i], whole->metrics[i]));
        }
    }
}

/* Some parts are empty. */
static void merge(const struct config_train *train, int outputs, int targets)
{
    struct evaluation whole, part, merged;
    struct error error;
    int first = 0;
    make_rows(outputs);
    create(&whole, train, outputs, targets);
    create(&part, train, outputs, targets);
    create(&merged, train, outputs, targets);
    evaluation_clear(&merged);
    const struct examples all = part_of(outputs, targets, 0, ROWS);
    assert_true(evaluate(&whole, &values_engine, false, &all, &error));
    uint8_t *bytes = malloc(evaluation_part_room(&part));
    for (int i = 0; i < PARTS; i++) {
        const int left = ROWS - first;
        const int count = i == PARTS - 1 ? left : i == 1 ? 0 : test_random_below(&chance, left + 1);
        const struct examples own = part_of(outputs, targets, first, count);
        assert_true(evaluate(&part, &values_engine, false, &own, &error));
        const size_t size = evaluation_part_write(&part, bytes);
        assert_in_range(size, 1, evaluation_part_room(&part));
        assert_true(evaluation_part_add(&merged, bytes, size, &error));
        first += count;
    }
    evaluation_measure(&merged);
    compare(&merged, &whole);
    free(bytes);
    evaluation_destroy(&whole);
    evaluation_destroy(&part);
    evaluation_destroy(&merged);
}

TEST(merged_parts_are_the_whole)
{
    const struct config_train classes = {.loss = LOSS_AUTO}, sigmoid = {.loss = LOSS_SIGMOID},
                              numbers = {.loss = LOSS_MSE, .quantile = 0.3};
    merge(&classes, 2, 0);
    merge(&classes, 4, 0);
    merge(&sigmoid, 1, 1);
    merge(&sigmoid, 3, 3);
    merge(&numbers, 1, 1);
    merge(&numbers, 3, 3);
}

/* Foreign bytes, truncated or changed: they are refused, or they are other counts; never half of them are added. */
TEST(damaged_bytes_add_nothing)
{
    const struct config_train train = {.loss = LOSS_AUTO};
    struct evaluation part, merged;
    struct error error;
    make_rows(3);
    create(&part, &train, 3, 0);
    create(&merged, &train, 3, 0);
    const struct examples all = part_of(3, 0, 0, ROWS);
    assert_true(evaluate(&part, &values_engine, false, &all, &error));
    uint8_t *bytes = malloc(evaluation_part_room(&part));
    const size_t size = evaluation_part_write(&part, bytes);
    for (size_t cut = 0; cut < size; cut++) {
        assert_false(evaluation_part_add(&merged, bytes, cut, &error));
    }
    for (int i = 0; i < 300; i++) {
        const size_t at = (size_t)test_random_below(&chance, (int)size);
        const uint8_t was = bytes[at];
        bytes[at] = (uint8_t)test_random_below(&chance, 256);
        if (evaluation_part_add(&merged, bytes, size, &error)) {
            evaluation_clear(&merged);
        }
        bytes[at] = was;
        assert_int_equal(merged.images, 0);
        for (int k = 0; k < 9; k++) {
            assert_int_equal(merged.confusions[k], 0);
        }
    }
    part.loss_sum = NAN;
    assert_false(evaluation_part_add(&merged, bytes, evaluation_part_write(&part, bytes), &error));
    free(bytes);
    evaluation_destroy(&part);
    evaluation_destroy(&merged);
}

TEST(a_bin_is_a_sixteenth_of_a_logit)
{
    assert_int_equal(metrics_bin(0), 0);
    assert_int_equal(metrics_bin(1), METRICS_BINS - 1);
    assert_int_equal(metrics_bin(0.5), METRICS_BINS / 2);
    assert_int_equal(metrics_bin(nextafter(0.5, 0)), METRICS_BINS / 2 - 1);
    assert_int_equal(metrics_bin(1 / (1 + exp(-1.03))), METRICS_BINS / 2 + 16);
    assert_int_equal(metrics_bin(NAN), 0);
    /* Only scores above the threshold count as yes. */
    int64_t bins[METRICS_BINS * 2] = {0};
    bins[2 * 300 + 1] = 5;
    bins[2 * 200] = 7;
    const double threshold = metrics_bins_best_threshold(bins, METRIC_ACCURACY);
    assert_true(threshold == 0.5 && metrics_bins_roc_auc(bins) == 1 && metrics_bins_average_precision(bins) == 1);
    bins[2 * 310] = 1;
    assert_true(metrics_bins_roc_auc(bins) == 7.0 / 8);
}

int main(void)
{
    chance = test_random_begin("evaluation_part");
    return check_run(NULL, NULL);
}
