/*
 * Validations of the training loop: when there is one, on whose rows, what the next checkpoint records of it, and when
 * it ends the run.
 */
#include "tests/check.h"
#include "tests/worker/loop.h"

#include "base/cli/command.h"

static const char *run(int wanted_status)
{
    const char *text;
    assert_int_equal(loop_run(&text), wanted_status);
    return text;
}

static void begin_again(void)
{
    loop_tear_down(NULL);
    loop_set_up(NULL);
}

/* Held, evaluated, recorded, reported, released: in this order. */
TEST_WITH(a_validation, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 2;
    loop.config.train.ema_decay = 0.9;
    loop.config.output.validate_steps = 1;
    loop.finds_threshold = true;
    loop.found[1] = (struct loop_found){.correct = 10, .images = 20, .loss = 1, .threshold = 0.75};
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "step 1\nhold\nit validates\nevaluate on averages\n"
                                 "summary of the validation at 1, 0 validators\n"
                                 "validation: worker 5, epoch 1, step 1, accuracy, best 0.5 at 1, 0 validators\n"
                                 "observed validation at 1, accuracy\nobserved model\nrelease the best\nsave the best\n"
                                 "step 2\nhold\nit validates\nevaluate on averages\n"
                                 "summary of the validation at 2, 0 validators\n"
                                 "validation: worker 5, epoch 1, step 2, accuracy, best 0.5 at 1, 0 validators\n"
                                 "observed validation at 2, accuracy\nobserved model\nrelease\nsave\nsettle\n"));
    assert_int_equal(loop.info.metric, METRIC_ACCURACY);
    assert_true(loop.info.validation_score == 0.5 && loop.info.best_score == 0.5);
    assert_int_equal(loop.info.best_step, 1);
    assert_int_equal(loop.info.bad_validations, 1); /* equal is no better */
    assert_true(loop.info.has_threshold && loop.info.threshold == 0.75);
}

/* A loss improves as it falls; without a threshold no earlier one is kept. */
TEST_WITH(a_metric_that_falls, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 3;
    loop.config.train.best_metric = METRIC_LOSS;
    loop.config.output.validate_steps = 1;
    loop.finds_threshold = loop.info.has_threshold = true;
    loop.info.threshold = 1;
    loop.found[1] = (struct loop_found){.images = 20, .loss = 0.5, .threshold = NAN};
    loop.found[2] = (struct loop_found){.images = 20, .loss = 0.75, .threshold = NAN};
    const char *text = run(COMMAND_DONE);
    assert_int_equal(times(text, "release the best\n"), 2);
    assert_true(loop.info.best_score == 0.5 && loop.info.validation_score == 0.75);
    assert_int_equal(loop.info.best_step, 2);
    assert_int_equal(loop.info.bad_validations, 1);
    assert_true(!loop.info.has_threshold && loop.info.threshold == 0);
}

/* Small validation sets have few different accuracies: of equal ones the lower loss is better, for patience, too. */
TEST_WITH(of_equal_scores_the_lower_loss, loop_set_up, loop_tear_down)
{
    loop.config.train.train_steps = 4;
    loop.config.output.validate_steps = 1;
    loop.found[1] = (struct loop_found){.correct = 10, .images = 20, .loss = 0.5, .threshold = NAN};
    loop.found[2] = (struct loop_found){.correct = 10, .images = 20, .loss = 0.75, .threshold = NAN};
    run(COMMAND_DONE);
    assert_int_equal(loop.info.best_step, 2);
    assert_true(loop.info.best_score == 0.5 && loop.info.best_loss == 0.5);
    assert_int_equal(loop.info.bad_validations, 2);
}

/* An undefined score is not the best, and counts as no better. */
TEST_WITH(a_score_that_is_not_defined, loop_set_up, loop_tear_down)
{
    loop.config.train.best_metric = METRIC_F1;
    loop.config.train.train_steps = 2;
    loop.config.output.validate_steps = 1;
    loop.found[0].f1 = NAN;
    loop.found[1] = (struct loop_found){.images = 20, .loss = 1, .f1 = 0.25, .threshold = NAN};
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "release\nsave\nstep 2\n"));
    assert_int_equal(times(text, "release the best\n"), 1);
    assert_int_equal(loop.info.best_step, 2);
    assert_int_equal(loop.info.bad_validations, 0);
}

/* A result by another metric neither ends the run nor compares with new ones. */
TEST_WITH(a_record_of_another_metric, loop_set_up, loop_tear_down)
{
    for (int same = 0; same < 2; same++) {
        begin_again();
        loop.config.train.best_metric = METRIC_F1;
        loop.config.train.target_metric = 0.5;
        loop.config.train.patience = 3;
        loop.config.train.train_steps = 1;
        loop.config.output.validate_steps = 1;
        loop.found[0].f1 = 0.25;
        loop.start.record.metric = loop.info.metric = same ? METRIC_F1 : METRIC_LOSS;
        loop.start.record.best_score = loop.info.best_score = 0.75;
        loop.start.record.bad_validations = loop.info.bad_validations = 7;
        const char *text = run(COMMAND_DONE);
        assert_int_equal(times(text, "done: validation f1 0.5 reached, 0 steps"), same);
        assert_int_equal(times(text, "step 1\n"), !same);
        assert_int_equal(times(text, "release the best\n"), !same);
        assert_int_equal(loop.info.metric, METRIC_F1);
        assert_true(loop.info.best_score == (same ? 0.75 : 0.25));
        assert_int_equal(loop.info.bad_validations, same ? 7 : 0);
    }
}

/* A record without a metric is of accuracy. */
TEST_WITH(a_record_of_no_metric, loop_set_up, loop_tear_down)
{
    loop.config.train.target_accuracy = 0.5;
    loop.start.record.best_score = 0.5;
    assert_int_equal(times(run(COMMAND_DONE), "conclude, 0.5: validation accuracy 0.5 reached\n"), 1);
    begin_again();
    loop.config.train.best_metric = METRIC_F1;
    loop.config.train.target_metric = 0.5;
    loop.start.record.best_score = 0.75;
    assert_int_equal(times(run(COMMAND_DONE), ": last step reached\n"), 1);
}

/* A target is reached or not, without tolerance; a loss must fall to its target. */
TEST_WITH(targets, loop_set_up, loop_tear_down)
{
    static const struct {
        enum metric metric;
        double best, target, accuracy;
        bool ends;
    } cases[] = {{METRIC_ACCURACY, 0.5, 0, 0.5, true},   {METRIC_ACCURACY, 0.5, 0, 0.51, false},
                 {METRIC_ACCURACY, 0.5, 0, 0.4, true},   {METRIC_LOSS, 0.5, 0.5, 0, true},
                 {METRIC_LOSS, 0.5, 0.6, 0, true},       {METRIC_LOSS, 0.5, 0.4, 0, false},
                 {METRIC_ACCURACY, NAN, 0, 0.4, false},  {METRIC_LOSS, NAN, 0.4, 0, false},
                 {METRIC_ACCURACY, 0.5, 0.9, 0.4, false} /* the newer key comes first */};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        begin_again();
        loop.config.train.best_metric = loop.start.record.metric = cases[i].metric;
        loop.config.train.target_metric = cases[i].target;
        loop.config.train.target_accuracy = cases[i].accuracy;
        loop.start.record.best_score = cases[i].best;
        assert_int_equal(times(run(COMMAND_DONE), "step 1\n"), !cases[i].ends);
    }
}

/* After this many consecutive validations without improvement, including those before a restart; 0: never. */
TEST_WITH(patience, loop_set_up, loop_tear_down)
{
    loop.config.train.patience = 2;
    loop.config.output.validate_steps = 1;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "conclude, 0.5: no better validation 2 times in a row\n"));
    assert_int_equal(loop.training.global_step, 3);
    const int before[] = {0, 1, 2, 9};
    for (int i = 0; i < 4; i++) {
        begin_again();
        loop.config.train.patience = i < 3 ? 2 : 0;
        loop.start.record.bad_validations = before[i];
        assert_int_equal(times(run(COMMAND_DONE), "step 1\n"), i != 2);
    }
}

/* The chief validates, if it has rows to validate on and a model to hold. */
TEST_WITH(when_there_is_a_validation, loop_set_up, loop_tear_down)
{
    loop.config.output.validate_steps = 2;
    assert_int_equal(times(run(COMMAND_DONE), "hold\n"), 3);
    begin_again();
    loop.config.output.validate_steps = 2;
    loop.dataset.validation.count = 0;
    assert_int_equal(times(run(COMMAND_DONE), "hold\n"), 0);
    begin_again();
    loop.config.output.validate_steps = 2;
    loop.dataset.validation.count = 0;
    loop.training.validates_as_all = true;
    assert_int_equal(times(run(COMMAND_DONE), "hold\n"), 3);
    begin_again();
    loop.config.output.validate_steps = 2;
    loop.training.test = NULL;
    loop.end_at_finish = TRAINING_BY_OTHERS;
    assert_int_equal(times(run(COMMAND_DONE), "hold\n"), 0);
    begin_again();
    loop.config.output.validate_steps = 3;
    loop.no_model = true;
    const char *text = run(COMMAND_DONE);
    assert_int_equal(times(text, "hold: not now\nsave\n"), 2);
    assert_null(strstr(text, "it validates"));
    assert_null(strstr(text, "release"));
}

/* Others report their results on their own rows; if training ends meanwhile nothing is recorded. */
TEST_WITH(validations_with_others, loop_set_up, loop_tear_down)
{
    loop.table.gather = loop_gather;
    loop.config.output.validate_steps = 3;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "evaluate\ngather at 6, accuracy\nsummary of the validation at 6, 3 validators\n"));
    assert_non_null(strstr(text, "step 6, accuracy, best 0.333333 at 3, 3 validators\n"));
    begin_again();
    loop.table.gather = loop_gather;
    loop.gathers_nothing = true;
    loop.config.output.validate_steps = 2;
    text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "gather at 2, accuracy\nrelease\nsave\nsettle\nfinish\n"));
    assert_null(strstr(text, "validation:"));
}

/* A model without a finite result ends the run, and so does a failing engine; nothing of it is saved. */
TEST_WITH(validations_that_fail, loop_set_up, loop_tear_down)
{
    for (int engine = 0; engine < 2; engine++) {
        begin_again();
        loop.config.output.validate_steps = 2;
        loop.found[0].loss = NAN;
        loop.engine_fails = engine;
        listen_in();
        const char *text = run(COMMAND_FAILED);
        const char *said = heard();
        assert_non_null(strstr(said, engine ? "the engine failed" : "the validation loss is nan after step 2 at "));
        assert_non_null(strstr(text, "evaluate\nrelease\nfinish\n"));
        assert_null(strstr(text, "validation:"));
        assert_int_equal(loop.training.has_diverged, !engine);
        assert_true(isnan(loop.info.best_score));
    }
}

/* Nobody had rows: there is no result. */
TEST_WITH(a_validation_of_nothing, loop_set_up, loop_tear_down)
{
    loop.config.output.validate_steps = 2;
    loop.found[0].images = 0;
    const char *text = run(COMMAND_DONE);
    assert_int_equal(times(text, "it validates\nevaluate\nrelease\n"), 3);
    assert_null(strstr(text, "validation:"));
    assert_true(isnan(loop.info.validation_score));
}

/* The last model gets its threshold without a validation that counts; without a threshold there is nothing to do. */
TEST_WITH(the_threshold_of_the_last_model, loop_set_up, loop_tear_down)
{
    loop.finds_threshold = true;
    loop.found[0].threshold = 0.25;
    const char *text = run(COMMAND_DONE);
    assert_non_null(strstr(text, "step 6\nhold\nevaluate\nrelease\nsave\nsettle\n"));
    assert_int_equal(times(text, "hold\n"), 1);
    assert_true(loop.info.has_threshold && loop.info.threshold == 0.25);
    assert_true(isnan(loop.info.best_score) && loop.info.bad_validations == 0);
    begin_again();
    assert_int_equal(times(run(COMMAND_DONE), "hold\n"), 0);
    begin_again();
    loop.finds_threshold = loop.no_model = true;
    text = run(COMMAND_DONE);
    assert_int_equal(times(text, "hold: not now\n"), 1);
    assert_null(strstr(text, "release"));
    begin_again();
    loop.finds_threshold = loop.engine_fails = true;
    loop.found[0].threshold = 0.25;
    listen_in();
    text = run(COMMAND_FAILED);
    heard();
    assert_non_null(strstr(text, "evaluate\nrelease\n"));
    assert_false(loop.info.has_threshold);
}

/* What a progress line shows of it: an accuracy, also from a checkpoint, and no other metric. */
TEST_WITH(what_a_progress_line_shows, loop_set_up, loop_tear_down)
{
    static const struct {
        enum metric metric;
        double score;
        const char *shown;
    } cases[] = {{METRIC_AUTO, 0.75, "validation 0.75\n"},
                 {METRIC_ACCURACY, 0.75, "validation 0.75\n"},
                 {METRIC_LOSS, 0.75, "validation -1\n"},
                 {METRIC_AUTO, NAN, "validation -1\n"}};
    for (int i = 0; i < 4; i++) {
        begin_again();
        loop.config.output.progress = loop.has_terminal = true;
        loop.start.record.metric = cases[i].metric;
        loop.start.record.validation_score = cases[i].score;
        assert_int_equal(times(run(COMMAND_DONE), cases[i].shown), 6);
    }
}

/* The memory for evaluations: for tables the most rows of any part. */
TEST_WITH(rows_to_evaluate, loop_set_up, loop_tear_down)
{
    static const struct {
        int sample, validation, test;
        const char *wanted;
    } cases[] = {{50, 20, 30, "50 rows"}, {5, 20, 10, "20 rows"}, {5, 20, 30, "30 rows"}, {5, 20, -1, "20 rows"}};
    for (int i = 0; i < 4; i++) {
        begin_again();
        loop.dataset.train.inputs = loop.dataset.train.numbers = 4;
        loop.dataset.sample.count = cases[i].sample;
        loop.dataset.validation.count = cases[i].validation;
        loop.test.count = cases[i].test;
        loop.training.test = cases[i].test < 0 ? NULL : &loop.test;
        loop.training.validates_as_all = i == 1;
        loop.end_at_finish = TRAINING_BY_OTHERS;
        const char *text = run(COMMAND_DONE);
        assert_int_equal(times(text, cases[i].wanted), 1);
        assert_int_equal(times(text, ", in bins\n"), i == 1);
    }
    begin_again();
    loop.training.validates_as_all = true; /* images have no scores */
    assert_int_equal(times(run(COMMAND_DONE), ", in bins\n"), 0);
}

/* Can the config's metric be measured? */
TEST_WITH(what_can_be_measured, loop_set_up, loop_tear_down)
{
    struct error error;
    struct config_train *train = &loop.config.train;
    assert_true(training_check_data(&loop.training, &error));
    train->loss = LOSS_MSE;
    assert_false(training_check_data(&loop.training, &error));
    assert_non_null(strstr(error.text, "loss mse does not fit the data, which have classes to learn: "));
    loop.dataset.train.targets = 2;
    assert_true(training_check_data(&loop.training, &error));
    train->loss = LOSS_SOFTMAX;
    assert_false(training_check_data(&loop.training, &error));
    assert_non_null(strstr(error.text, "loss softmax does not fit the data, which have numbers to learn: "));
    train->loss = LOSS_AUTO;
    train->best_metric = METRIC_ACCURACY;
    assert_false(training_check_data(&loop.training, &error));
    assert_non_null(strstr(error.text, "best_metric accuracy is not defined for loss mse"));
    train->best_metric = METRIC_AUTO;
    for (int i = 0; i < 4; i++) {
        train->target_accuracy = i == 1 ? 0.5 : 0;
        train->target_metric = i == 2 ? 0.5 : 0;
        train->patience = i == 3 ? 1 : 0;
        loop.dataset.validation.count = 20;
        assert_true(training_check_data(&loop.training, &error));
        loop.dataset.validation.count = 0;
        assert_int_equal(training_check_data(&loop.training, &error), i == 0);
        assert_true(i == 0 || strstr(error.text, "of 40 examples"));
        loop.training.validates_as_all = true;
        assert_true(training_check_data(&loop.training, &error));
        loop.training.validates_as_all = false;
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
