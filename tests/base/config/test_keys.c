/* The table's invariants on which the code that reads it relies. */
#include "base/config/keys.h"
#include "tests/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/no_memory.h"

TEST(names_are_unique)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        for (const struct config_key *other = key + 1; other->section; other++) {
            bool same_name = strcmp(key->name, other->name) == 0;
            assert_false(same_name && strcmp(key->section, other->section) == 0);
            assert_false(same_name && !key->no_flag && !other->no_flag);
            assert_int_not_equal(key->offset, other->offset);
        }
        if (!key->no_flag) {
            assert_ptr_equal(config_key_by_flag(key->name), key);
            assert_string_not_equal(key->name, "config");
            assert_string_not_equal(key->name, "help");
        }
        assert_ptr_equal(config_key_by_path(key->section, key->name), key);
    }
    assert_null(config_key_by_flag("version"));
}

TEST(sections_stand_together)
{
    for (const struct config_key *key = config_keys + 1; key->section; key++) {
        bool begins = strcmp(key->section, key[-1].section) != 0;
        for (const struct config_key *earlier = config_keys; begins && earlier < key; earlier++) {
            assert_string_not_equal(earlier->section, key->section);
        }
    }
}

/* A default is a value like any other, and every value shown can be typed in again. */
TEST(texts_read_back)
{
    struct config config;
    struct error error;
    config_defaults(&config);
    static const char *const values[][2] = {{"layers", "784,1,65536,10"},
                                            {"ps_hosts", "a:1,[fe80::1]:65535"},
                                            {"device", "gpu:63"},
                                            {"l2", "0.1"},
                                            {"learning_rate", "3.0000000000000004e-05"},
                                            {"seed", "9007199254740991"},
                                            {"time_limit", "90"},
                                            {"data_dir", "a b/\xC3\xA4"},
                                            {"log_format", "json"},
                                            {"issync", "true"},
                                            {"validation_size", "500"},
                                            {"validation_size", "auto"},
                                            {"batch_size", "auto"},
                                            {"learning_rate", "auto"},
                                            {"train_steps", "auto"},
                                            {"optimizer", "auto"},
                                            {"epsilon", "1e-08"},
                                            {"worker_hosts", ""}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const struct config_key *key = config_key_by_flag(values[i][0]);
        assert_true(config_key_set_text(key, &config, values[i][1], &error));
        char *text = config_key_text(key, &config);
        assert_string_equal(text, values[i][1]);
        free(text);
    }
    for (const struct config_key *key = config_keys; key->section; key++) {
        assert_true(config_key_set_text(key, &config, key->initial, &error));
        assert_true(config_key_is_default(key, &config));
    }
    config_free(&config);
}

TEST(json_reads_back)
{
    struct config config, copy;
    struct error error;
    config_defaults(&config);
    config_defaults(&copy);
    for (const struct config_key *key = config_keys; key->section; key++) {
        int element;
        cJSON *json = config_key_json(key, &config);
        char *printed = cJSON_PrintUnformatted(json);
        cJSON *parsed = cJSON_Parse(printed);
        assert_true(config_key_set_json(key, &copy, parsed, &element, &error));
        char *text = config_key_text(key, &copy), *expected = config_key_text(key, &config);
        assert_string_equal(text, expected);
        free(text);
        free(expected);
        free(printed);
        cJSON_Delete(parsed);
        cJSON_Delete(json);
    }
    config_free(&config);
    config_free(&copy);
}

/* Recognising a default needs no memory: a job's text, and which files are read, depend on it. */
TEST(defaults_need_no_memory)
{
    static const char *const others[][2] = {
        {"layers", "784,10"},     {"hidden", "5"},     {"validation_size", "0"}, {"seed", "9007199254740991"},
        {"ps_hosts", "a:1"},      {"target", "class"}, {"towers", "gpu:0"},      {"device", "gpu:1"},
        {"test_files", "t*.csv"}, {"batch_size", "7"}, {"learning_rate", "1"},   {"optimizer", "adam"},
        {"issync", "true"}};
    struct config config;
    struct error error;
    config_defaults(&config);
    for (const struct config_key *key = config_keys; key->section; key++) {
        assert_true(config_key_set_text(key, &config, key->initial, &error));
    }
    no_memory_from(1, INT_MAX - 1);
    for (const struct config_key *key = config_keys; key->section; key++) {
        if (!config_key_is_default(key, &config)) {
            no_memory_end();
            fail_msg("%s.%s", key->section, key->name);
        }
    }
    assert_int_equal(no_memory_end(), 0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const struct config_key *key = config_key_by_flag(others[i][0]);
        assert_true(config_key_set_text(key, &config, others[i][1], &error));
        no_memory_from(1, INT_MAX - 1);
        assert_false(config_key_is_default(key, &config));
        assert_int_equal(no_memory_end(), 0);
    }
    config.train.placement[0] = LAYER_ON_CPU; /* no flag sets it */
    assert_false(config_key_is_default(config_key_by_path("train", "placement"), &config));
    config_free(&config);
}

/* A refused value leaves the old one in place. */
TEST(refusal_changes_nothing)
{
    struct config config;
    struct error error;
    config_defaults(&config);
    static const char *const wrong[][3] = {{"layers", "1,2,x", "784,500,10"}, {"ps_hosts", "b:1,c", "a:1"},
                                           {"batch_size", "0", "auto"},       {"optimizer", "x", "auto"},
                                           {"device", "tpu", "auto"},         {"data_dir", "\x01", "data"},
                                           {"validation_size", "-1", "auto"}, {"validation_size", "Auto", "auto"}};
    assert_true(config_key_set_text(config_key_by_flag("ps_hosts"), &config, "a:1", &error));
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const struct config_key *key = config_key_by_flag(wrong[i][0]);
        assert_false(config_key_set_text(key, &config, wrong[i][1], &error));
        char *text = config_key_text(key, &config);
        assert_string_equal(text, wrong[i][2]);
        free(text);
    }
    config_free(&config);
}

TEST(descriptions_are_for_readers)
{
    for (const struct config_key *key = config_keys; key->section; key++) {
        assert_non_null(key->description);
        assert_int_not_equal(key->description[strlen(key->description) - 1], '.');
        assert_true(strlen(key->description) > 8);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
