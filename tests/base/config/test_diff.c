/* Differences between configurations. */
#include <stdlib.h>
#include <string.h>

#include "base/config/keys.h"
#include "tests/check.h"

static void parse(struct config *config, const char *text)
{
    struct error error = {""};
    if (!config_parse(config, "c.json", (const uint8_t *)text, strlen(text), NULL, 0, &error)) {
        fail_msg("%s", error.text);
    }
}

TEST(names_what_differs)
{
    struct config before, after;
    struct config_diff diff;
    char line[256];
    parse(&before, "{\"train\": {\"learning_rate\": 0.5, \"num_threads\": 1}}");
    parse(&after, "{\"fleet\": {\"version\": 9}, \"model\": {\"layers\": [784, 10]}, "
                  "\"train\": {\"learning_rate\": 0.25, \"num_threads\": 2}}");
    config_diff(&diff, &before, &after, SCOPE_JOB);
    assert_int_equal(diff.count, 2); /* the version does not count */
    config_diff_line(&diff.changes[0], line, sizeof line);
    assert_string_equal(line, "model.layers                 784,500,10 -> 784,10  (job)");
    config_diff_line(&diff.changes[1], line, sizeof line);
    assert_string_equal(line, "train.learning_rate          0.5 -> 0.25  (live)");
    config_diff_free(&diff);
    config_diff(&diff, &before, &after, SCOPE_MACHINE);
    assert_int_equal(diff.count, 1);
    assert_string_equal(diff.changes[0].key->name, "num_threads");
    config_diff_free(&diff);
    config_free(&before);
    config_free(&after);
}

TEST(finds_nothing_between_equals)
{
    struct config before, after;
    struct config_diff diff;
    parse(&before, "{}");
    parse(&after, "{\"train\": {\"micro_batches\": 1}}"); /* set or by default */
    config_diff(&diff, &before, &after, SCOPE_JOB);
    assert_int_equal(diff.count, 0);
    config_diff_free(&diff);
    config_diff_free(&diff);
    config_free(&before);
    config_free(&after);
}

/* config_parse reads back what config_job_text writes: versions are stored and sent this way. */
TEST(job_text_is_a_config)
{
    struct config before, after;
    char digest[CONFIG_DIGEST_HEX + 1], again[CONFIG_DIGEST_HEX + 1];
    parse(&before, "{\"train\": {\"optimizer\": \"adam\", \"epochs\": 3}, \"cluster\": {\"ps_hosts\": [\"a:1\"], "
                   "\"worker_hosts\": [\"b:1\", \"c:1\"]}, \"fleet\": {\"name\": \"f\", \"version\": 3}}");
    char *text = config_job_text(&before);
    assert_non_null(text);
    parse(&after, text);
    config_digest(&before, digest);
    config_digest(&after, again);
    assert_string_equal(digest, again);
    cJSON_free(text);
    config_free(&before);
    config_free(&after);
}

/* Every live key and no other: all must be plain values. */
TEST(takes_live_keys_alone)
{
    struct config config, other;
    struct error error;
    int taken = 0;
    parse(&config, "{}");
    parse(&other, "{\"model\": {\"layers\": [784, 10]}, \"cluster\": {\"worker_hosts\": [\"a:1\"]}}");
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (key->change == CHANGE_LIVE) {
            assert_int_equal(key->scope, SCOPE_JOB);
            char *was = config_key_text(key, &config);
            bool differs = false;
            for (const char *const *text = (const char *const[]){"1", "0.5", "0", "2", NULL}; *text && !differs;
                 text++) {
                if (config_key_set_text(key, &other, *text, &error)) {
                    char *is = config_key_text(key, &other);
                    differs = strcmp(was, is) != 0;
                    free(is);
                }
            }
            assert_true(differs);
            free(was);
            taken++;
        }
    }
    assert_true(taken > 30);
    struct config_train train = config.train;
    config_take_live_train(&train, &other.train);
    config_take_live(&config, &other);
    for (const struct config_key *key = config_keys; key->section; key++) {
        char *here = config_key_text(key, &config), *there = config_key_text(key, &other);
        bool named = strcmp(key->name, "layers") == 0 || strcmp(key->name, "worker_hosts") == 0;
        if ((strcmp(here, there) == 0) == named) {
            fail_msg("%s: %s and %s", key->name, here, there);
        }
        free(here);
        free(there);
    }
    assert_memory_equal(&train, &config.train, sizeof train);
    config_free(&config);
    config_free(&other);
}

int main(void)
{
    return check_run(NULL, NULL);
}
