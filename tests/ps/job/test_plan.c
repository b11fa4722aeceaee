/* The plan compared with a plain walk over all steps that counts batches one by one. */
#include "ps/job/plan.h"
#include "tests/check.h"

#include <math.h>

static struct plan make_plan(int64_t epoch_batches, int micro_batches, int64_t train_steps, double epochs,
                             int64_t log_steps, int64_t validate_steps)
{
    struct config config = {.train = {.micro_batches = micro_batches, .train_steps = train_steps, .epochs = epochs},
                            .output = {.log_steps = log_steps, .validate_steps = validate_steps}};
    struct plan plan;
    plan_begin(&plan, &config, epoch_batches);
    return plan;
}

TEST(epochs_are_those_of_a_walk)
{
    for (int64_t batches = 1; batches <= 12; batches++) {
        for (int micro = 1; micro <= 15; micro++) {
            struct plan plan = make_plan(batches, micro, 0, 0, 0, 0);
            int64_t drawn = 0;
            for (int64_t step = 1; step <= 60; step++) {
                assert_int_equal(plan_epoch(&plan, step), drawn / batches + 1);
                int64_t epochs_before = drawn / batches;
                drawn += micro;
                int64_t epochs_after = drawn / batches;
                for (int64_t epoch = epochs_before + 1; epoch <= epochs_after; epoch++) {
                    assert_int_equal(plan_epoch_end(&plan, epoch), step);
                }
            }
        }
    }
}

/* Going from due step to due step visits exactly the due ones. */
TEST(nothing_due_is_passed_over)
{
    for (int64_t log_steps = 0; log_steps <= 7; log_steps++) {
        for (int64_t validate_steps = 0; validate_steps <= 7; validate_steps++) {
            struct plan plan = make_plan(5, 1, 100, 0, log_steps, validate_steps);
            int64_t step = 0;
            for (int64_t s = 1; s <= 100; s++) {
                bool due = s == 100 || plan_log_due(&plan, s - 1, s) || plan_validation_due(&plan, s - 1, s);
                assert_int_equal(due, step + plan_steps_to_due(&plan, step) == s);
                if (due) {
                    step = s;
                }
            }
        }
    }
}

TEST(validation_falls_on_epoch_ends)
{
    struct plan plan = make_plan(550, 1, 30000, 0, 100, 0);
    assert_true(plan_validation_due(&plan, 549, 550));
    assert_true(plan_validation_due(&plan, 1099, 1100));
    assert_false(plan_validation_due(&plan, 548, 549));
    assert_false(plan_validation_due(&plan, 0, 0));
    assert_false(plan_log_due(&plan, 0, 0));
    assert_true(plan_validation_due(&plan, 540, 560)); /* others took the step itself */
    assert_true(plan_log_due(&plan, 199, 201));
    assert_false(plan_log_due(&plan, 200, 299));
    assert_int_equal(plan_epoch(&plan, 1234), 3);
}

/* More batches in a step than in an epoch: every step ends some epoch, and validates once. */
TEST(steps_may_be_longer_than_epochs)
{
    struct plan plan = make_plan(3, 10, 4, 0, 0, 0);
    for (int64_t step = 1; step <= 4; step++) {
        assert_true(plan_validation_due(&plan, step - 1, step));
        assert_int_equal(plan_steps_to_due(&plan, step - 1), 1);
    }
}

TEST(the_nearer_bound_ends_the_run)
{
    assert_int_equal(make_plan(550, 1, 0, 0, 0, 0).last_step, INT64_MAX);
    assert_int_equal(make_plan(550, 1, 300, 1, 0, 0).last_step, 300);
    assert_int_equal(make_plan(550, 1, 3000, 1, 0, 0).last_step, 550);
    assert_int_equal(make_plan(550, 4, 0, 1, 0, 0).last_step, 138);
    assert_int_equal(make_plan(10, 1, 0, 0.1, 0, 0).last_step, 1);
    assert_int_equal(make_plan(550, 1, 0, 1e300, 0, 0).last_step, INT64_MAX);
    for (int tenths = 1; tenths <= 1000; tenths++) { /* decimal rounding must not add a step */
        assert_int_equal(make_plan(550, 1, 0, tenths / 10.0, 0, 0).last_step, 55 * tenths);
    }
}

TEST(a_job_counts_the_gradients_of_its_steps)
{
    struct config config = {.cluster = {.worker_hosts.count = 4}, .train = {.epochs = 2, .micro_batches = 1}};
    struct plan plan;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.last_step, 1100);
    config.cluster.issync = true;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.last_step, 275);
    config.cluster.replicas_to_aggregate = 3;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.last_step, 367);
    assert_int_equal(plan_epoch_end(&plan, 1), 184);
}

/* Each of 4 workers draws its share of a round: 10 batches, or all that it has. */
TEST(a_round_is_a_step)
{
    struct config config = {.cluster = {.worker_hosts.count = 4, .issync = true},
                            .train = {.epochs = 2, .micro_batches = 1, .local_steps = 10}};
    struct plan plan;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.last_step, 28); /* 1,100 batches of 40 */
    assert_int_equal(plan_epoch(&plan, 14), 1);
    assert_int_equal(plan_epoch(&plan, 15), 2);
    config.train.local_steps = 1;
    config.train.local_epochs = 3;
    config.data.data_sharding = SHARDING_DISJOINT;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.batches_per_step, 4 * 3 * 138);
    assert_int_equal(plan.last_step, 1);
    config.data.data_sharding = SHARDING_SHUFFLED;
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.batches_per_step, 4 * 3 * 550);
    plan_begin_rounds(&plan, &config, 550, 100, 10); /* 10 of 100 clients */
    assert_int_equal(plan.batches_per_step, 10 * 3 * 6);
    config.cluster.issync = false;
    config.train.buffer_size = 7; /* differences, from any worker */
    plan_begin_job(&plan, &config, 550);
    assert_int_equal(plan.batches_per_step, 7 * 3 * 550);
}

int main(void)
{
    return check_run(NULL, NULL);
}
