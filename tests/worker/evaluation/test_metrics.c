/* Metrics compared with scikit-learn's, and evaluations of tables based on them. */
#include <math.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "tests/check.h"
#include "tests/random.h"
#include "tests/vectors/metrics_vectors.h"
#include "tests/worker/values_engine.h"
#include "worker/evaluation/evaluate.h"
#include "worker/evaluation/metrics.h"

enum { MOST = 400 };

/* As in make_metrics.py. */
static void case_values(int *values, int count, uint64_t salt)
{
    uint64_t state = 12345 + salt;
    for (int i = 0; i < count; i++) {
        state = (state * 1103515245 + 12345) % (UINT64_C(1) << 31);
        values[i] = (int)(state / 65536 % 1000);
    }
}

static void assert_equal(double wanted, double got)
{
    if (!(fabs(wanted - got) <= 1e-9 * (1 + fabs(wanted)))) {
        fail_msg("expected %.17g, got %.17g", wanted, got);
    }
}

static int make_scored(struct scored *scored, int count)
{
    int values[MOST], more[MOST];
    case_values(values, count, 1);
    case_values(more, count, 2);
    for (int i = 0; i < count; i++) {
        bool positive = i == 0 || (i > 1 && (values[i] + more[i] / 2) % 1000 > 600);
        const int step = values[i] / 25; /* few distinct scores: many ties */
        scored[i] = (struct scored){.score = step / 40.0, .positive = positive};
    }
    return count;
}

TEST(ranks)
{
    for (size_t i = 0; i < sizeof of_scores / sizeof of_scores[0]; i++) {
        struct scored scored[MOST];
        int count = make_scored(scored, of_scores[i].count);
        metrics_sort(scored, count);
        assert_equal(of_scores[i].roc_auc, metrics_roc_auc(scored, count));
        assert_equal(of_scores[i].average_precision, metrics_average_precision(scored, count));
    }
    const struct scored same[] = {{0.5, true}, {0.5, true}};
    assert_true(isnan(metrics_roc_auc(same, 2)));
    assert_equal(1, metrics_average_precision(same, 2));
}

/* Compared with a comparison sort: scores of every size and sign, distinct or many alike. */
TEST(any_scores_are_sorted)
{
    struct test_random random = test_random_begin("any_scores_are_sorted");
    for (int round = 0; round < 300; round++) {
        struct scored scored[MOST];
        double wanted[MOST];
        const int count = test_random_below(&random, MOST + 1), kinds = 1 + test_random_below(&random, 40);
        for (int i = 0; i < count; i++) {
            const double size = ldexp(1 + test_random_below(&random, kinds), test_random_below(&random, 40) - 20);
            scored[i] = (struct scored){.score = test_random_below(&random, 2) ? size : -size, .positive = size > 1};
            wanted[i] = -scored[i].score;
        }
        metrics_sort(scored, count);
        metrics_quantile(wanted, count, 0.5); /* sorts */
        for (int i = 0; i < count; i++) {
            assert_true(scored[i].score == -wanted[i]);
            assert_int_equal(scored[i].positive, fabs(scored[i].score) > 1);
        }
    }
}

TEST(labels)
{
    for (size_t i = 0; i < sizeof of_labels / sizeof of_labels[0]; i++) {
        int label[MOST], predicted[MOST], agree[MOST], count = of_labels[i].count, classes = of_labels[i].classes;
        int64_t confusions[7 * 7] = {0};
        case_values(label, count, 3);
        case_values(predicted, count, 4);
        case_values(agree, count, 5);
        for (int k = 0; k < count; k++) {
            int from = label[k] % classes;
            confusions[from * classes + (agree[k] % 3 > 0 ? from : predicted[k] % classes)]++;
        }
        assert_equal(of_labels[i].balanced_accuracy, metrics_balanced_accuracy(confusions, classes));
        assert_equal(of_labels[i].f1, metrics_f1(confusions, classes));
        assert_equal(of_labels[i].mcc, metrics_mcc(confusions, classes));
        assert_int_equal(of_labels[i].first, confusions[0]);
        assert_int_equal(of_labels[i].last, confusions[(classes - 1) * classes]);
    }
}

TEST(numbers)
{
    for (size_t i = 0; i < sizeof of_numbers / sizeof of_numbers[0]; i++) {
        int target[MOST], predicted[MOST], count = of_numbers[i].count;
        struct regression regression = {0};
        case_values(target, count, 6);
        case_values(predicted, count, 7);
        for (int k = 0; k < count; k++) {
            regression_add(&regression, target[k] / 100.0 + of_numbers[i].mean,
                           predicted[k] / 150.0 + of_numbers[i].mean, 0.8);
        }
        assert_equal(of_numbers[i].mae, regression_mae(&regression));
        assert_equal(of_numbers[i].rmse, regression_rmse(&regression));
        assert_true(fabs(of_numbers[i].r2 - regression_r2(&regression)) < 1e-6);
        assert_equal(of_numbers[i].pinball, regression_pinball(&regression));
    }
}

/* No threshold does better than the chosen one. */
TEST(the_best_threshold)
{
    struct scored scored[MOST];
    struct pr_point point;
    double f1;
    int count = make_scored(scored, MOST);
    metrics_sort(scored, count);
    double threshold = metrics_best_threshold(scored, count, METRIC_F1, &f1);
    metrics_pr_point(scored, count, threshold, &point);
    assert_equal(f1, 2 * point.precision * point.recall / (point.precision + point.recall));
    for (int i = 0; i <= 100; i++) {
        metrics_pr_point(scored, count, i / 100.0, &point);
        assert_int_equal(point.true_positives + point.false_positives + point.true_negatives + point.false_negatives,
                         count);
        assert_true(point.true_positives == 0 ||
                    2 * point.precision * point.recall / (point.precision + point.recall) <= f1 + 1e-12);
    }
}

/*
 * For every metric by which a threshold is chosen: none of a thousand others does better, nor does predicting no
 * always.
 */
TEST(the_best_threshold_of_each_metric)
{
    static const enum metric kinds[] = {METRIC_ACCURACY, METRIC_BALANCED_ACCURACY, METRIC_MCC, METRIC_F1};
    struct scored scored[MOST];
    int count = make_scored(scored, MOST);
    metrics_sort(scored, count);
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        double best, found = NAN;
        double threshold = metrics_best_threshold(scored, count, kinds[k], &best);
        for (int i = -1; i <= 1000; i++) {
            struct pr_point point;
            metrics_pr_point(scored, count, i < 0 ? threshold : i / 1000.0, &point);
            const int64_t table[4] = {point.true_negatives, point.false_positives, point.false_negatives,
                                      point.true_positives};
            double worth = kinds[k] == METRIC_ACCURACY            ? (double)(table[0] + table[3]) / count
                           : kinds[k] == METRIC_BALANCED_ACCURACY ? metrics_balanced_accuracy(table, 2)
                           : kinds[k] == METRIC_MCC               ? metrics_mcc(table, 2)
                                                                  : metrics_f1_of(table, 2, 1);
            found = i < 0 ? worth : found;
            assert_true(worth <= best + 1e-12);
        }
        assert_equal(best, found);
    }
    assert_int_equal(metrics_of_threshold(METRIC_ROC_AUC), METRIC_ACCURACY);
    assert_int_equal(metrics_of_threshold(METRIC_LOSS), METRIC_ACCURACY);
    assert_int_equal(metrics_of_threshold(METRIC_F1), METRIC_F1);
    /* A gap around a half is decided at a half, and if yes is never right nothing is predicted as yes. */
    struct scored gap[] = {{0.9, true}, {0.2, false}}, wrong[] = {{0.9, false}, {0.8, false}};
    double best;
    assert_equal(0.5, metrics_best_threshold(gap, 2, METRIC_ACCURACY, &best));
    assert_true(metrics_best_threshold(wrong, 2, METRIC_ACCURACY, &best) > 0.9 && best == 1);
}

TEST(quantiles)
{
    double values[] = {4, 1, 3, 2, 10};
    assert_equal(3, metrics_quantile(values, 5, 0.5));
    assert_equal(4 + 0.6 * 6, metrics_quantile(values, 5, 0.9)); /* numpy.quantile([1, 2, 3, 4, 10], 0.9) */
    assert_equal(10, metrics_quantile(values, 5, 1));
    assert_true(isnan(metrics_quantile(values, 0, 0.5)));
    const float outputs[] = {1, 2, 3}, inputs[] = {1, 0, 0};
    assert_equal(13.0 / 3, metrics_reconstruction_error(outputs, inputs, 3));
}

/* --- evaluations --- */

static void run(struct evaluation *evaluation, const struct config_train *train, const struct examples *examples)
{
    struct error error;
    const struct evaluation_options options = {
        .train = train, .outputs = examples->numbers, .rows = examples->count, .targets = examples->targets};
    evaluation_create(evaluation, &options);
    assert_true(evaluate(evaluation, &values_engine, false, examples, &error));
}

TEST(two_classes_by_softmax_or_sigmoid)
{
    const struct config_train softmax = {.loss = LOSS_AUTO, .threshold = CONFIG_AUTO},
                              sigmoid = {.loss = LOSS_SIGMOID, .threshold = CONFIG_AUTO};
    float z[] = {-2, 1, 0.5f, 3, -0.25f}, both[10], wanted[] = {0, 1, 0, 1, 1};
    int32_t label[] = {0, 1, 0, 1, 1};
    for (int i = 0; i < 5; i++) {
        both[2 * i] = 1;
        both[2 * i + 1] = 1 + z[i];
    }
    const struct examples one = {
        .count = 5, .inputs = 1, .numbers = 1, .values = z, .targets = 1, .target_values = wanted};
    const struct examples two = {.count = 5, .inputs = 2, .numbers = 2, .values = both, .classes = 2, .labels = label};
    struct evaluation by_sigmoid, by_softmax;
    struct error error;
    run(&by_sigmoid, &sigmoid, &one);
    run(&by_softmax, &softmax, &two);
    assert_true(evaluation_is_binary(&by_sigmoid) && evaluation_is_binary(&by_softmax));
    assert_equal(0.6, evaluation_accuracy(&by_sigmoid));
    assert_equal(5.0 / 6, by_sigmoid.metrics[METRIC_ROC_AUC]);
    assert_equal(2.0 / 3, by_sigmoid.metrics[METRIC_F1]); /* of yes; the mean of both by softmax */
    assert_equal((2.0 / 3 + 0.5) / 2, by_softmax.metrics[METRIC_F1]);
    static const enum metric same[] = {METRIC_ACCURACY,          METRIC_LOSS, METRIC_LOG_LOSS,
                                       METRIC_BALANCED_ACCURACY, METRIC_MCC,  METRIC_ROC_AUC,
                                       METRIC_AVERAGE_PRECISION};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        assert_equal(evaluation_metric(&by_sigmoid, same[i]), evaluation_metric(&by_softmax, same[i]));
    }
    assert_equal(by_sigmoid.threshold, by_softmax.threshold);
    assert_true(by_sigmoid.threshold > 0 && isnan(by_sigmoid.metrics[METRIC_RMSE]));
    /* Both decide by the given threshold. */
    by_sigmoid.decision = by_softmax.decision = 0.4; /* of -0.25 the probability is 0.44; 0.5 and 1 stay wrong */
    assert_true(evaluate(&by_sigmoid, &values_engine, false, &one, &error) &&
                evaluate(&by_softmax, &values_engine, false, &two, &error));
    assert_equal(0.8, evaluation_accuracy(&by_sigmoid));
    assert_equal(0.8, evaluation_accuracy(&by_softmax));
    assert_int_equal(by_softmax.confusions[3], 3);
    evaluation_destroy(&by_sigmoid);
    evaluation_destroy(&by_softmax);
}

/* Numbers are measured in the table's units, the loss in the model's. */
TEST(numbers_in_their_own_units)
{
    const struct config_train train = {.loss = LOSS_MSE, .quantile = 0.5};
    float outputs[] = {0, 1, -1, 0.5f}, wanted[] = {1, 1, -1, -0.5f};
    double means[] = {100, 0}, scales[] = {10, 2};
    const struct examples examples = {.count = 2,
                                      .inputs = 2,
                                      .numbers = 2,
                                      .values = outputs,
                                      .targets = 2,
                                      .target_values = wanted,
                                      .target_means = means,
                                      .target_scales = scales};
    struct evaluation evaluation;
    run(&evaluation, &train, &examples);
    assert_equal((1.0 + 0 + 0 + 1) / 4, evaluation.loss);
    assert_equal((10.0 / 2 + 2.0 / 2) / 2, evaluation.metrics[METRIC_MAE]);
    assert_equal((sqrt(50) + sqrt(2)) / 2, evaluation.metrics[METRIC_RMSE]);
    assert_equal((1 - 100.0 / 200 + 1 - 4.0 / 4.5) / 2, evaluation.metrics[METRIC_R2]);
    assert_true(isnan(evaluation.metrics[METRIC_ROC_AUC]));
    evaluation_destroy(&evaluation);
}

int main(void)
{
    return check_run(NULL, NULL);
}
