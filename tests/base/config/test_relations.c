/* Relations between keys, by flags and by file. */
#include "base/config.h"

#include <stdio.h>
#include <string.h>

#include "tests/check.h"

enum { MOST = 6 };

/* flags: name, text, name, text, ..., NULL. */
static bool load(struct config *config, const char *json, const char *const *flags, struct error *error)
{
    struct config_setting settings[MOST];
    int count = 0;
    for (; flags[2 * count]; count++) {
        assert_true(count < MOST);
        settings[count] = (struct config_setting){flags[2 * count], flags[2 * count + 1]};
    }
    return config_parse(config, "config.json", (const uint8_t *)json, strlen(json), settings, count, error);
}

static void refuse(const char *json, const char *const *flags, const char *expected)
{
    struct config config;
    struct error error;
    if (load(&config, json, flags, &error)) {
        config_free(&config);
        fail_msg("accepted, and should say: %s", expected);
    }
    assert_string_equal(error.text, expected);
}

static void accept(struct config *config, const char *json, const char *const *flags)
{
    struct error error;
    if (!load(config, json, flags, &error)) {
        fail_msg("%s", error.text);
    }
}

#define FLAGS(...) ((const char *const[]){__VA_ARGS__, NULL, NULL})
#define NO_FLAGS   ((const char *const[]){NULL, NULL})

TEST(what_a_fold_is)
{
    struct config config;
    static const char *const wrong[] = {"0/5", "6/5", "1/1", "1/21", "1", "1/5/", "1/5x", " 1/5", "-1/5", "1/+5"};
    int fold, folds;
    struct error error;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char expected[128];
        snprintf(expected, sizeof expected, "--fold: must be which part of how many, at most 20, as 2/5, not \"%s\"",
                 wrong[i]);
        refuse("{}", FLAGS("target", "y", "fold", wrong[i]), expected);
    }
    refuse("{}", FLAGS("fold", "1/5"), "--fold: divides the rows of a table, and there is no target; remove it");
    refuse("{}", FLAGS("target", "y", "fold", "1/5", "validation_size", "9"),
           "--fold: and validation_size both set which rows are held out; remove one of the two");
    refuse("{}", FLAGS("target", "y", "fold", "1/5", "time", "t"),
           "--fold: holds out rows at random, and data.time the latest ones; remove one of the two");
    accept(&config, "{\"data\": {\"fold\": \"5/5\", \"target\": [\"y\"]}}", NO_FLAGS);
    assert_true(config_parse_fold(config.data.fold, &fold, &folds, &error));
    assert_int_equal(fold, 5);
    assert_int_equal(folds, 5);
    config_free(&config);
}

TEST(what_checkpoints_need)
{
    struct config config;
    refuse("{}", FLAGS("save_steps", "100"),
           "--save_steps: has no effect without a folder for checkpoints; set train_dir");
    refuse("{\"output\": {\n\"max_to_keep\": 7}}", NO_FLAGS,
           "config.json:2:16: output.max_to_keep: has no effect without a folder for checkpoints; set train_dir");
    accept(&config, "{}", FLAGS("save_steps", "100", "train_dir", "x"));
    config_free(&config);
    /* In a cluster the keys are the job's, the folder is worker 0's, and a job's config has no folder. */
    const char fleet[] = "{\"cluster\": {\"ps_hosts\": [\"a:1\"], \"worker_hosts\": [\"b:1\", \"c:1\"]},"
                         "\"output\": {\"save_steps\": 100}}";
    accept(&config, fleet, NO_FLAGS);
    config_free(&config);
    accept(&config, fleet, FLAGS("job_name", "ps"));
    config_free(&config);
    accept(&config, fleet, FLAGS("job_name", "worker", "task_index", "1"));
    config_free(&config);
    refuse(fleet, FLAGS("job_name", "worker", "task_index", "0"),
           "config.json:1:92: output.save_steps: has no effect without a folder for checkpoints; set train_dir");
    accept(&config, "{\"output\": {\"save_model_secs\": 600, \"save_steps\": 0, \"train_dir\": \"\"}}", NO_FLAGS);
    config_free(&config);
    accept(&config, "{}", FLAGS("save_model_secs", "0"));
    config_free(&config);
}

TEST(what_early_stopping_needs)
{
    struct config config;
    refuse("{\"data\": {\"validation_size\": 0}}", FLAGS("target_accuracy", "0.97"),
           "--target_accuracy: needs validation images; set validation_size above 0");
    refuse("{\"data\": {\"validation_size\": 0}, \"train\": {\"patience\": 3}}", NO_FLAGS,
           "config.json:1:56: train.patience: counts validations; set validation_size above 0");
    refuse("{\"data\": {\"validation_size\": 0}}", FLAGS("target_metric", "0.9", "best_metric", "roc_auc"),
           "--target_metric: needs validation examples; set validation_size above 0");
    refuse("{}", FLAGS("target_accuracy", "0.97", "best_metric", "f1"),
           "--target_accuracy: cannot be combined with best_metric=f1; set target_metric instead");
    refuse("{}", FLAGS("target_accuracy", "0.97", "target_metric", "0.97"),
           "--target_accuracy: and target_metric cannot be combined; remove one of the two");
    accept(&config, "{\"data\": {\"validation_size\": 0}}", NO_FLAGS);
    config_free(&config);
    accept(&config, "{\"data\": {\"validation_size\": \"auto\"}}", FLAGS("target_accuracy", "0.97"));
    config_free(&config);
}

TEST(steps_that_are_too_large)
{
    struct config config;
    refuse(
        "{}", FLAGS("batch_size", "65536", "micro_batches", "17"),
        "--micro_batches: 17 micro-batches of 65536 images make a step of 1114112 images, above the limit of 1048576");
    accept(&config, "{}", FLAGS("batch_size", "65536", "micro_batches", "16"));
    config_free(&config);
    refuse("{}", FLAGS("nesterov", "true", "optimizer", "adam"), "--nesterov: needs optimizer momentum, not adam");
    refuse("{}", FLAGS("l1", "0.1", "optimizer", "adam"), "--l1: needs optimizer ftrl, not adam");
    refuse(
        "{}", FLAGS("weight_decay", "0.1", "optimizer", "ftrl"),
        "--weight_decay: cannot be combined with optimizer ftrl, which derives weights from its slots; use l2 instead");
}

TEST(which_bound_ends_the_run)
{
    struct config config;
    accept(&config, "{}", NO_FLAGS);
    assert_true(config.train.train_steps > 0);
    assert_true(config.train.epochs == 0);
    config_free(&config);

    accept(&config, "{}", FLAGS("epochs", "2.5"));
    assert_int_equal(config.train.train_steps, 0);
    assert_true(config.train.epochs == 2.5);
    config_free(&config);

    accept(&config, "{\"train\": {\"train_steps\": 500}}", FLAGS("epochs", "3"));
    assert_int_equal(config.train.train_steps, 0);
    config_free(&config);

    accept(&config, "{\"train\": {\"epochs\": 3}}", FLAGS("train_steps", "500"));
    assert_int_equal(config.train.train_steps, 500);
    assert_true(config.train.epochs == 0);
    config_free(&config);

    accept(&config, "{\"train\": {\"epochs\": 3, \"train_steps\": 500}}", NO_FLAGS);
    assert_int_equal(config.train.train_steps, 500);
    assert_true(config.train.epochs == 3);
    config_free(&config);

    accept(&config, "{\"train\": {\"epochs\": 0}}", NO_FLAGS);
    assert_true(config.train.train_steps > 0);
    config_free(&config);
}

/* What is auto follows from the kind of data; what is set stays, and the rest goes with it. */
TEST(what_auto_means)
{
    struct config config;
    accept(&config, "{}", NO_FLAGS);
    assert_true(config.train.optimizer == OPTIMIZER_SGD && config.train.learning_rate == 0.5);
    assert_true(config.train.batch_size == 100 && config.train.train_steps == 10000 && config.train.patience == 0);
    assert_true(config.model.net_count == 0 && config.train.ema_decay == 0);
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y"));
    assert_true(config.train.optimizer == OPTIMIZER_ADAM && config.train.learning_rate == 0.002);
    assert_true(config.train.train_steps == 0 && config.train.epochs == 300 && config.train.patience == 30);
    assert_true(config_was_chosen(&config, "train", "batch_size"));
    assert_true(config_was_chosen(&config, "model", "ensemble") && config.model.net_count == 2);
    assert_true(config.model.views[0] == VIEW_RAW && config.model.views[1] == VIEW_PIECEWISE);
    assert_true(config_was_chosen(&config, "train", "ema_decay") && config.train.ema_decay == 0.99);
    config_free(&config);

    static const char *const one_net[][2] = {{"hidden", "8"},   {"layers", "4,8,2"},      {"encoding", "ple"},
                                             {"device", "gpu"}, {"data_sharding", "own"}, {"local_steps", "2"}};
    for (size_t i = 0; i < sizeof one_net / sizeof *one_net; i++) {
        accept(&config, "{}", FLAGS("target", "y", one_net[i][0], one_net[i][1]));
        assert_true(config.model.net_count == 0 && config.train.ema_decay == 0);
        assert_true(config_was_chosen(&config, "model", "ensemble"));
        config_free(&config);
    }
    accept(&config, "{}", FLAGS("target", "y", "ensemble", "raw:1", "ema_decay", "0.5"));
    assert_true(config.model.net_count == 1 && config.train.ema_decay == 0.5);
    assert_false(config_was_chosen(&config, "model", "ensemble") || config_was_chosen(&config, "train", "ema_decay"));
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y", "optimizer", "sgd"));
    assert_true(config.train.learning_rate == config_default_learning_rate(OPTIMIZER_SGD, true));
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y", "epochs", "20"));
    assert_true(config.train.train_steps == 0 && config.train.epochs == 20 && config.train.patience == 0);
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y", "train_steps", "1000"));
    assert_true(config.train.train_steps == 1000 && config.train.epochs == 0 && config.train.patience == 0);
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y", "validation_size", "0"));
    assert_true(config.train.epochs == 100 && config.train.patience == 0);
    config_free(&config);

    accept(&config, "{}", FLAGS("target", "y", "data_sharding", "own", "ps_hosts", "a:1", "worker_hosts", "b:1"));
    assert_true(config.train.train_steps == 10000 && config.train.epochs == 0 && config.train.patience == 0);
    config_free(&config);
}

TEST(what_synchronous_training_needs)
{
    struct config config;
    refuse("{}", FLAGS("replicas_to_aggregate", "2"),
           "--replicas_to_aggregate: applies to synchronous training only; set issync=1 or remove it");
    refuse("{}", FLAGS("min_replicas", "2"),
           "--min_replicas: applies to synchronous training only; set issync=1 or remove it");
    refuse("{}", FLAGS("issync", "1", "worker_hosts", "b:1,c:1", "replicas_to_aggregate", "3"),
           "--replicas_to_aggregate: no step could ever complete: worker_hosts lists 2, fewer than 3");
    refuse("{}", FLAGS("issync", "1", "worker_hosts", "b:1,c:1", "min_replicas", "3"),
           "--min_replicas: must be at most 2, the gradients per step, not 3");
    refuse("{}", FLAGS("issync", "1", "max_staleness", "1"),
           "--max_staleness: applies to asynchronous training only; issync drops stale gradients: set it to 0");
    refuse("{}", FLAGS("issync", "1", "pipeline_depth", "1"),
           "--pipeline_depth: would make every gradient stale, and issync drops stale gradients: set it to 0");
    accept(&config, "{}",
           FLAGS("issync", "1", "worker_hosts", "b:1,c:1", "replicas_to_aggregate", "1", "min_replicas", "1"));
    config_free(&config);
}

static void refuse_role(const char *const *flags, const char *expected)
{
    struct config config;
    struct error error;
    accept(&config, "{}", flags);
    assert_false(config_check_role(&config, &error));
    assert_string_equal(error.text, expected);
    config_free(&config);
}

TEST(what_roles_need)
{
    struct config config;
    struct error error;
    refuse_role(FLAGS("job_name", "ps"), "cluster.ps_hosts: is empty; job_name=ps needs the addresses of all ps");
    refuse_role(FLAGS("job_name", "worker", "ps_hosts", "a:1"),
                "cluster.worker_hosts: is empty; job_name=worker needs the addresses of all workers");
    refuse_role(FLAGS("job_name", "worker", "ps_hosts", "a:1", "worker_hosts", "b:1,c:1", "task_index", "2"),
                "--task_index: must be from 0 to 1 (worker_hosts lists 2), not 2");
    accept(&config, "{}", FLAGS("job_name", "worker", "ps_hosts", "a:1", "worker_hosts", "b:1,c:1", "task_index", "1"));
    assert_true(config_check_role(&config, &error));
    config_free(&config);
    accept(&config, "{}", FLAGS("task_index", "5"));
    assert_true(config_check_role(&config, &error));
    config_free(&config);
}

int main(void)
{
    return check_run(NULL, NULL);
}
