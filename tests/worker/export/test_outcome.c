/* What outputs mean, by the formulas, for each task; and decisions by the threshold that a checkpoint contains. */
#include <math.h>
#include <string.h>

#include "tests/check.h"
#include "worker/data/table/schema.h"
#include "worker/export/outcome.h"

static void make(struct trained *trained, struct schema *schema, enum schema_task task, int units, double threshold)
{
    static double means[] = {100, -1}, scales[] = {10, 0.5};
    *schema = (struct schema){.task = task, .target_means = means, .target_scales = scales};
    *trained = (struct trained){.schema = schema, .threshold = threshold};
    trained->model.layer_count = 1;
    trained->model.widths[1] = units;
}

TEST(test_classes)
{
    struct trained trained;
    struct schema schema;
    struct outcome outcome;
    const float outputs[] = {9, 9, 9, 0, 1, 2};
    char name[OUTCOME_NAME];
    make(&trained, &schema, TASK_CLASS, 3, NAN);
    assert_true(outcome_create(&outcome, &trained));
    outcome_find(&trained, outputs, NULL, 1, &outcome);
    const double sum = 1 + exp(1) + exp(2);
    assert_int_equal(outcome.best, 2);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(outcome.values[i] - exp(i) / sum) < 1e-15);
    }
    outcome_free(&outcome);
    trained.schema = NULL;
    char cat[] = "cat", dog[] = "dog", *names[] = {cat, dog};
    trained.classes = (struct names){.items = names, .count = 2};
    assert_string_equal(outcome_name(&trained, 1, name), "dog");
    assert_string_equal(outcome_name(&trained, 7, name), "7");
    assert_string_equal(outcome_kind_name(&trained), "probabilities");
}

TEST(test_the_threshold_decides_between_two)
{
    struct trained trained;
    struct schema schema;
    struct outcome outcome;
    const float outputs[] = {0, -1};
    for (int i = 0; i < 3; i++) {
        make(&trained, &schema, TASK_CLASS, 2, i == 0 ? (double)NAN : i == 1 ? 0.2 : 0.3);
        assert_true(outcome_create(&outcome, &trained));
        outcome_find(&trained, outputs, NULL, 0, &outcome); /* 0.27 for the second one */
        assert_int_equal(outcome.best, i == 1);
        outcome_free(&outcome);
    }
}

TEST(test_flags)
{
    struct trained trained;
    struct schema schema;
    struct outcome outcome;
    const float outputs[] = {0, -1};
    make(&trained, &schema, TASK_FLAGS, 2, 0.1); /* a choice among several has no threshold */
    assert_true(outcome_create(&outcome, &trained));
    outcome_find(&trained, outputs, NULL, 0, &outcome);
    assert_true(outcome.values[0] == 0.5 && fabs(outcome.values[1] - 1 / (1 + exp(1))) < 1e-15);
    assert_true(outcome_flag(&outcome, 0) && !outcome_flag(&outcome, 1));
    outcome_free(&outcome);
    make(&trained, &schema, TASK_FLAGS, 1, 0.6);
    assert_true(outcome_create(&outcome, &trained));
    outcome_find(&trained, outputs, NULL, 0, &outcome);
    assert_false(outcome_flag(&outcome, 0));
    outcome_free(&outcome);
}

TEST(test_numbers_and_errors)
{
    struct trained trained;
    struct schema schema;
    struct outcome outcome;
    const float outputs[] = {2, 4}, wanted[] = {1, 1};
    make(&trained, &schema, TASK_NUMBERS, 2, NAN);
    assert_true(outcome_create(&outcome, &trained));
    outcome_find(&trained, outputs, NULL, 0, &outcome);
    assert_true(outcome.values[0] == 120 && outcome.values[1] == 1);
    outcome_free(&outcome);
    for (int i = 0; i < 2; i++) {
        make(&trained, &schema, TASK_INPUTS, 2, i == 0 ? 4.9 : 5);
        assert_true(outcome_create(&outcome, &trained));
        outcome_find(&trained, outputs, wanted, 0, &outcome);
        assert_true(outcome.count == 1 && outcome.values[0] == 5);
        assert_int_equal(outcome_flag(&outcome, 0), i == 0);
        outcome_free(&outcome);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
