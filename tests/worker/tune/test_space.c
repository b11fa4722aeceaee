/* A space of configs by its bytes: what is taken, what is refused and where, and what is drawn. */
#include "worker/tune/tune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/random.h"

static struct config config;
static struct space space;
static struct error error;

static bool parse(const char *text)
{
    return space_parse(&space, "s.json", text, strlen(text), &config, &error);
}

static void refuse(const char *text, const char *why)
{
    if (parse(text)) {
        fail_msg("accepted, and should say: %s", why);
    }
    assert_string_equal(error.text, why);
    assert_int_equal(space.count, 0);
}

static int begin(void **state)
{
    return config_parse(&config, "none", NULL, 0, NULL, 0, &error) ? 0 : -1;
}

static int end(void **state)
{
    config_free(&config);
    return 0;
}

TEST(values_and_ranges)
{
    assert_true(parse("{\"train.learning_rate\": {\"min\": 1e-4, \"max\": 0.1, \"log\": true},"
                      "\"hidden\": [[128], [256, 256], \"auto\"], \"optimizer\": [\"adam\"],"
                      "\"bins\": {\"min\": 4, \"max\": 8}, \"dropout\": {\"min\": 0, \"max\": 0.5}}"));
    assert_int_equal(space.count, 5);
    assert_true(space.keys[0].is_log && !space.keys[0].is_integer && space.keys[0].maximum == 0.1);
    assert_string_equal(space.keys[1].values[1], "256,256");
    assert_string_equal(space.keys[1].values[2], "auto");
    assert_int_equal(space.keys[2].value_count, 1);
    assert_true(space.keys[3].is_integer && !space.keys[3].is_log);
    space_free(&space);
}

TEST(errors_say_what_where_and_why)
{
    refuse("", "s.json:1:1: expected a value, got the end of the file");
    refuse("[]", "s.json:1:1: expected an object of keys to search: {\"learning_rate\": {\"min\": 0.001, \"max\": 0.1, "
                 "\"log\": true}, \"hidden\": [[128], [256, 256]]}");
    refuse("{\"lerning_rate\": [1]}", "s.json:1:2: lerning_rate: unknown key; did you mean learning_rate?");
    refuse("{\n  \"dropout\": [0, 1.5]}", "s.json:2:18: dropout: must be a number from 0 to less than 1, not 1.5");
    refuse("{\"hidden\": [[128], [0]]}",
           "s.json:1:21: hidden: must be auto or a list of at most 14 integers from 1 to 65536, not 0");
    refuse("{\"dropout\": []}", "s.json:1:13: dropout: has 0 values; give from 1 to 256");
    refuse("{\"dropout\": 0.5}", "s.json:1:13: dropout: must be a list of values, or a range: {\"min\": ..., \"max\": "
                                 "...}");
    refuse("{\"dropout\": [0], \"train.dropout\": [1]}", "s.json:1:18: dropout: duplicate key; remove one");
    refuse("{\"dropout\": {\"min\": 0, \"max\": 1}}",
           "s.json:1:31: dropout: must be a number from 0 to less than 1, not 1");
    refuse("{\"dropout\": {\"min\": 0.5, \"max\": 0.5}}", "s.json:1:13: dropout: a range needs \"min\" below \"max\"");
    refuse("{\"dropout\": {\"min\": 0.5}}", "s.json:1:13: dropout: a range needs \"min\" below \"max\"");
    refuse("{\"dropout\": {\"min\": 0, \"max\": 0.5, \"log\": true}}",
           "s.json:1:13: dropout: \"log\" needs a \"min\" above 0");
    refuse("{\"dropout\": {\"min\": 0, \"max\": 0.5, \"log\": 1}}",
           "s.json:1:43: dropout: \"log\" must be true or false");
    refuse("{\"dropout\": {\"min\": \"0\"}}", "s.json:1:21: dropout: \"min\" must be a number");
    refuse("{\"dropout\": {\"min\": 0, \"min\": 0}}", "s.json:1:24: duplicate name \"min\"; remove one");
    refuse("{\"dropout\": {\"low\": 0}}",
           "s.json:1:14: dropout: unknown member \"low\"; a range has min and max, and may have log and int");
    refuse("{\"optimizer\": {\"min\": 0, \"max\": 1}}",
           "s.json:1:15: optimizer: is no number, so it needs a list of values: [...]");
    refuse("{\"l2\": {\"min\": 0.5, \"max\": 2, \"int\": true}}",
           "s.json:1:8: l2: is an integer, and so must be \"min\" and \"max\"");
}

TEST(keys_that_would_make_trials_incomparable)
{
    refuse("{\"epochs\": [1]}", "s.json:1:2: epochs: sets how long a trial is, which the search decides; give it as a "
                                "flag for all trials");
    refuse("{\"target\": [[\"a\"]]}",
           "s.json:1:2: target: sets what trials are compared by, which must be the same for "
           "all; give it as a flag");
    refuse("{\"num_threads\": [1]}",
           "s.json:1:2: num_threads: says where and how a process runs, not what it learns; leave it out");
    refuse("{\"train_dir\": [\"x\"]}",
           "s.json:1:2: train_dir: says where and how a process runs, not what it learns; leave it out");
    refuse("{\"loss\": [\"mae\"]}", "s.json:1:2: loss: changes the loss, by which trials are compared; set "
                                    "--best_metric to compare them by");
    config.train.best_metric = METRIC_MAE;
    assert_true(parse("{\"loss\": [\"mae\", \"huber\"]}"));
    config.train.best_metric = METRIC_AUTO;
    space_free(&space);
}

TEST(trial_0_is_the_config_itself)
{
    struct config_setting settings[SPACE_MOST_KEYS];
    char *texts[SPACE_MOST_KEYS];
    assert_true(parse("{\"dropout\": [0.1, 0.2]}"));
    assert_int_equal(space_draw(&space, 1, 0, settings, texts), 0);
    space_free(&space);
}

TEST(draws_are_within_the_space_and_by_the_seed)
{
    struct config_setting settings[SPACE_MOST_KEYS];
    char *texts[SPACE_MOST_KEYS];
    enum { DRAWS = 4000 };
    int of_value[3] = {0}, of_bins[3] = {0}, low = 0;
    char first[64] = "", other[64] = "";
    assert_true(parse("{\"learning_rate\": {\"min\": 1e-4, \"max\": 1, \"log\": true}, \"dropout\": [0, 0.1, 0.2],"
                      "\"bins\": {\"min\": 4, \"max\": 6}}"));
    for (int i = 1; i <= DRAWS; i++) {
        assert_int_equal(space_draw(&space, 7, i, settings, texts), 3);
        const double rate = strtod(texts[0], NULL);
        const long bins = strtol(texts[2], NULL, 10);
        assert_true(rate >= 1e-4 && rate <= 1 && strlen(texts[0]) <= 8);
        assert_true(bins >= 4 && bins <= 6);
        low += rate < 1e-2;
        of_bins[bins - 4]++;
        of_value[strcmp(texts[1], "0") == 0 ? 0 : strcmp(texts[1], "0.1") == 0 ? 1 : 2]++;
        assert_string_equal(settings[0].flag, "learning_rate");
        snprintf(i == 1 ? first : other, sizeof first, "%s", i <= 2 ? texts[0] : "");
        for (int k = 0; k < 3; k++) {
            free(texts[k]);
        }
        if (i == 2) {
            assert_string_not_equal(first, other);
        }
    }
    assert_in_range(low, DRAWS * 45 / 100, DRAWS * 55 / 100); /* half of the logarithm's range */
    for (int k = 0; k < 3; k++) {
        assert_in_range(of_value[k], DRAWS * 30 / 100, DRAWS * 37 / 100);
        assert_in_range(of_bins[k], DRAWS * 30 / 100, DRAWS * 37 / 100);
    }
    assert_int_equal(space_draw(&space, 7, 1, settings, texts), 3);
    assert_string_equal(texts[0], first);
    for (int k = 0; k < 3; k++) {
        free(texts[k]);
    }
    assert_int_equal(space_draw(&space, 8, 1, settings, texts), 3);
    assert_string_not_equal(texts[0], first);
    for (int k = 0; k < 3; k++) {
        free(texts[k]);
    }
    space_free(&space);
}

/* A table without numbers has no ple nets, and a run of a single net has no bins. */
TEST(the_usual_space_of_a_table_without_numbers)
{
    struct config of_table;
    const struct config_setting settings[] = {{"target", "y"}};
    static const char *const nets[] = {"raw:1,ple:1", "raw:2", ""};
    for (int i = 0; i < 3; i++) {
        int ensembles = 0;
        assert_true(config_parse(&of_table, "none", NULL, 0, settings, 1, &error));
        space_usual(&space, &of_table, false);
        space_fit(&space, nets[i]);
        assert_int_equal(space.count, 8 - i);
        for (int k = 0; k < space.count; k++) {
            ensembles += strcmp(space.keys[k].key->name, "ensemble") == 0 ? space.keys[k].value_count : 0;
        }
        assert_int_equal(ensembles, i < 2 ? 2 : 0);
        space_free(&space);
        config_free(&of_table);
    }
}

/* What a user has set is not searched. */
TEST(usual_spaces)
{
    struct config of_table;
    const struct config_setting settings[] = {{"target", "y"}, {"hidden", "64"}, {"encoding", "none"}};
    assert_true(config_parse(&of_table, "none", NULL, 0, settings, 1, &error));
    space_usual(&space, &of_table, false);
    assert_int_equal(space.count, 8);
    assert_true(fabs(space.keys[0].minimum - 0.0005) < 1e-12 && fabs(space.keys[0].maximum - 0.008) < 1e-12);
    space_free(&space);
    space_usual(&space, &of_table, true);
    assert_int_equal(space.count, 6);
    space_free(&space);
    config_free(&of_table);
    assert_true(config_parse(&of_table, "none", NULL, 0, settings, 3, &error));
    space_usual(&space, &of_table, false);
    for (int i = 0; i < space.count; i++) {
        assert_string_not_equal(space.keys[i].key->name, "hidden");
        assert_string_not_equal(space.keys[i].key->name, "ensemble");
        assert_string_not_equal(space.keys[i].key->name, "bins");
    }
    space_free(&space);
    config_free(&of_table);
    space_usual(&space, &config, false);
    assert_int_equal(space.count, 5);
    space_free(&space);
}

/* Changed bytes are taken or refused, and never read beyond. */
TEST(any_bytes)
{
    static const char whole[] = "{\"learning_rate\": {\"min\": 1e-4, \"max\": 0.1, \"log\": true}, \"hidden\": [[128], "
                                "[256, 256]], \"optimizer\": [\"adam\", \"sgd\"], \"bins\": {\"min\": 4, \"max\": 8}}";
    struct test_random random = test_random_begin("space");
    for (int i = 0; i < 3000; i++) {
        const size_t size = (size_t)test_random_below(&random, sizeof whole);
        char *text = malloc(size + 1); /* of exactly its size */
        assert_non_null(text);
        memcpy(text, whole, size);
        text[size] = '\0';
        for (int k = test_random_below(&random, 3); k > 0 && size > 0; k--) {
            text[test_random_below(&random, (int)size)] = "{}[]\",:0-9eaz\\"[test_random_below(&random, 14)];
        }
        if (space_parse(&space, "s.json", text, size, &config, &error)) {
            space_free(&space);
        }
        free(text);
    }
    assert_true(parse(whole));
    space_free(&space);
}

int main(void)
{
    return check_run(begin, end);
}
