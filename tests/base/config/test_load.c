/* Files and flags to a struct config: what is refused, with which message and position, and which source wins. */
#include "base/config.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/config/keys.h"

static bool parse(struct config *config, const char *json, const struct config_setting *settings, int count,
                  struct error *error)
{
    return config_parse(config, "config.json", (const uint8_t *)json, strlen(json), settings, count, error);
}

static void refuse(const char *json, const char *expected)
{
    struct config config;
    struct error error;
    if (parse(&config, json, NULL, 0, &error)) {
        config_free(&config);
        fail_msg("accepted: %s", json);
    }
    assert_string_equal(error.text, expected);
    assert_null(config.origins);
    assert_null(config.path);
}

static void refuse_flag(const char *flag, const char *text, const char *expected)
{
    struct config config;
    struct error error;
    struct config_setting setting = {flag, text};
    if (config_parse(&config, NULL, NULL, 0, &setting, 1, &error)) {
        config_free(&config);
        fail_msg("accepted: --%s=%s", flag, text);
    }
    assert_string_equal(error.text, expected);
}

static void accept(struct config *config, const char *json, const char *flag, const char *text)
{
    struct error error = {""};
    struct config_setting setting = {flag, text};
    if (!parse(config, json, &setting, flag ? 1 : 0, &error)) {
        fail_msg("%s", error.text);
    }
}

static void unknown_names_get_the_nearest(void **state)
{
    refuse("{\"train\": {\"bach_size\": 1}}",
           "config.json:1:12: train.bach_size: unknown key; did you mean train.batch_size?");
    refuse("{\n  \"train\": {\n    \"layers\": [1, 2]\n  }\n}",
           "config.json:3:5: train.layers: unknown key; did you mean model.layers?");
    refuse("{\"train\": {\"zzzzzzzz\": 1}}",
           "config.json:1:12: train.zzzzzzzz: unknown key; `trainer help config` lists them");
    refuse("{\"modle\": {}}", "config.json:1:2: modle: unknown section; did you mean model?");
    refuse("{\"batch_size\": 1}", "config.json:1:2: batch_size: not a section; this key belongs in section train");
    refuse("{\"qqqqqq\": 1}", "config.json:1:2: qqqqqq: unknown section; `trainer help config` lists them");
}

static void wrong_types(void **state)
{
    refuse("{\"train\": {\"batch_size\": \"100\"}}",
           "config.json:1:26: train.batch_size: must be auto or an integer from 1 to 65536, not \"100\"");
    refuse("{\"train\": {\"batch_size\": 1.5}}",
           "config.json:1:26: train.batch_size: must be auto or an integer from 1 to 65536, not 1.5");
    refuse("{\"train\": {\"batch_size\": null}}",
           "config.json:1:26: train.batch_size: must be auto or an integer from 1 to 65536, not null");
    refuse("{\"train\": {\"nesterov\": 1}}", "config.json:1:24: train.nesterov: must be true or false, not 1");
    refuse("{\"train\": {\"optimizer\": \"adma\"}}",
           "config.json:1:25: train.optimizer: must be sgd, momentum, adagrad, "
           "adadelta, adam, rmsprop, ftrl or auto, not \"adma\"; did you mean adam?");
    refuse("{\"model\": {\"layers\": 784}}",
           "config.json:1:22: model.layers: must be a list of 2 to 16 integers from 1 to 65536, not 784");
    refuse("{\"model\": {\"layers\": [784, \"500\", 10]}}",
           "config.json:1:28: model.layers[1]: must be a list of 2 to 16 integers from 1 to 65536, not \"500\"");
    refuse("{\"model\": {\"layers\": [10]}}",
           "config.json:1:22: model.layers: must be a list of 2 to 16 integers from 1 to 65536, not a single one");
    refuse("{\"data\": {\"data_dir\": [\"a\"]}}",
           "config.json:1:23: data.data_dir: must be a string of at most 4096 bytes without control characters, "
           "not an array");
    refuse("{\"train\": {\"device\": \"gpu:64\"}}",
           "config.json:1:22: train.device: must be auto, cpu, gpu or gpu:N with N from 0 to 63, not \"gpu:64\"");
    refuse("{\"train\": []}", "config.json:1:11: train: must be an object of keys: {\"train\": {...}}");
    refuse("[]", "config.json:1:1: expected one object: {\"model\": {...}, \"train\": {...}, ...}");
}

static void out_of_range(void **state)
{
    refuse("{\"train\": {\"batch_size\": 0}}",
           "config.json:1:26: train.batch_size: must be auto or an integer from 1 to 65536, not 0");
    refuse("{\"train\": {\"momentum\": 1}}",
           "config.json:1:24: train.momentum: must be a number from 0 to less than 1, not 1");
    refuse("{\"train\": {\"lr_decay\": 0}}",
           "config.json:1:24: train.lr_decay: must be a number above 0 and at most 1, not 0");
    refuse("{\"train\": {\"learning_rate\": 1e999}}",
           "config.json:1:29: train.learning_rate: must be auto or a number above 0 and at most 1e+38, not inf");
    refuse("{\"train\": {\"seed\": 9007199254740992}}",
           "config.json:1:20: train.seed: must be an integer from 0 to 9007199254740991, not 9007199254740992");
    refuse("{\"model\": {\"layers\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}}",
           "config.json:1:55: model.layers[16]: must be a list of 2 to 16 integers from 1 to 65536, not more of them");
}

static void duplicates(void **state)
{
    refuse("{\"train\": {\"seed\": 1, \"seed\": 2}}", "config.json:1:23: duplicate name \"seed\"; remove one");
    refuse("{\"train\": {\"seed\": 1, \"\\u0073eed\": 2}}", "config.json:1:23: train.seed: duplicate key; remove one");
    refuse("{\"train\": {\"seed\": 1},\n \"train\": {}}", "config.json:2:2: duplicate name \"train\"; remove one");
    refuse("{\"cluster\": {\"ps_hosts\": [\"a:1\", \"a:1\"]}}",
           "config.json:1:34: cluster.ps_hosts[1]: duplicate address \"a:1\"");
    refuse("{\"cluster\": {\"ps_hosts\": [\"a:1\"], \"worker_hosts\": [\"b:1\", \"a:1\"]}}",
           "config.json:1:51: cluster.worker_hosts: a:1 is also in ps_hosts; every process needs its own port");
}

static void not_json(void **state)
{
    refuse("{\"train\": {\"seed\": 1,}}", "config.json:1:21: trailing comma; remove it");
    refuse("{\n  // one\n}", "config.json:2:3: JSON has no comments; remove this one");
    refuse("", "config.json:1:1: expected a value, got the end of the file");
    refuse("{\"train\": {\"\xC3\xA4\": \"\xE4\"}}", "config.json:1:18: byte 0xE4 is not UTF-8; save the file as UTF-8");
}

static void wrong_hosts(void **state)
{
    refuse("{\"cluster\": {\"ps_hosts\": [\"a\"]}}",
           "config.json:1:27: cluster.ps_hosts[0]: \"a\" is not an address: missing port; write host:port");
    refuse("{\"cluster\": {\"ps_hosts\": [7]}}",
           "config.json:1:27: cluster.ps_hosts[0]: must be a string like host:port");
    refuse_flag("ps_hosts", "a:1,,b:2", "--ps_hosts: \"\" is not an address: it is empty; is there a comma too many?");
}

static void wrong_flags(void **state)
{
    refuse_flag("batch_size", "many", "--batch_size: must be auto or an integer from 1 to 65536, not \"many\"");
    refuse_flag("batch_size", "", "--batch_size: must be auto or an integer from 1 to 65536, not \"\"");
    refuse_flag("batch_size", "0x10", "--batch_size: must be auto or an integer from 1 to 65536, not \"0x10\"");
    refuse_flag("learning_rate", "nan",
                "--learning_rate: must be auto or a number above 0 and at most 1e+38, not \"nan\"");
    refuse_flag("learning_rate", "0.1 ",
                "--learning_rate: must be auto or a number above 0 and at most 1e+38, not \"0.1 \"");
    refuse_flag("layers", "784,,10", "--layers: must be a list of 2 to 16 integers from 1 to 65536, not \"784,,10\"");
    refuse_flag("issync", "maybe", "--issync: must be true or false, not \"maybe\"");
    refuse_flag("device", "gpu:", "--device: must be auto, cpu, gpu or gpu:N with N from 0 to 63, not \"gpu:\"");
    refuse_flag("data_dir", "a\nb",
                "--data_dir: must be a string of at most 4096 bytes without control characters, not one with control "
                "characters");
}

static void flags_override_the_file(void **state)
{
    struct config config;
    accept(&config, "{\"train\": {\"batch_size\": 32, \"seed\": 7}, \"output\": {\"log_format\": \"json\"}}",
           "batch_size", "64");
    assert_int_equal(config.train.batch_size, 64);
    assert_int_equal(config.train.seed, 7);
    assert_int_equal(config.output.log_format, LOG_JSON);
    assert_int_equal(config.train.micro_batches, 1);
    const struct config_origin *seed = config_origin_of(&config, config_key_by_flag("seed"));
    assert_int_equal(seed->source, SOURCE_FILE);
    assert_int_equal(seed->column, 38);
    assert_int_equal(config_origin_of(&config, config_key_by_flag("batch_size"))->source, SOURCE_FLAG);
    assert_int_equal(config_origin_of(&config, config_key_by_flag("epochs"))->source, SOURCE_DEFAULT);
    config_free(&config);
    config_free(&config);
}

static void lists_by_flag(void **state)
{
    struct config config;
    accept(&config, "{}", "layers", "784,10");
    assert_int_equal(config.model.layer_count, 2);
    assert_int_equal(config.model.layers[0], 784);
    assert_int_equal(config.model.layers[1], 10);
    assert_int_equal(config.model.layers[2], 0);
    config_free(&config);
    accept(&config, "{\"cluster\": {\"ps_hosts\": [\"x:1\"]}}", "ps_hosts", "a:1,[::1]:2,10.0.0.1:3");
    assert_int_equal(config.cluster.ps_hosts.count, 3);
    assert_string_equal(config.cluster.ps_hosts.items[1], "[::1]:2");
    config_free(&config);
    accept(&config, "{\"cluster\": {\"ps_hosts\": [\"x:1\"]}}", "ps_hosts", "");
    assert_int_equal(config.cluster.ps_hosts.count, 0);
    config_free(&config);
}

static void devices(void **state)
{
    struct config config;
    accept(&config, "{}", "device", "gpu:3");
    assert_int_equal(config.train.device, DEVICE_GPU);
    assert_int_equal(config.train.device_index, 3);
    config_free(&config);
    accept(&config, "{\"train\": {\"device\": \"gpu:3\"}}", "device", "cpu");
    assert_int_equal(config.train.device, DEVICE_CPU);
    assert_int_equal(config.train.device_index, 0);
    config_free(&config);
}

/*
 * Programs in use compute a config's digest from the keys that they know. From the first release on it may only change
 * if they can no longer train with this one: a new key of the job needs omit_default, as that of tests/other_key.
 */
static void digest_of_the_defaults(void **state)
{
    struct config config;
    char digest[CONFIG_DIGEST_HEX + 1];
    static const char known[] = "197db7a51c51521736f6bfe06ff1ec332647ce01942ca6d34c5670ff324f6f1a";
    config_defaults(&config);
    config_digest(&config, digest);
    assert_string_equal(digest, known);
    config_free(&config);
    for (const struct config_key *key = config_keys; key->section; key++) {
        assert_true(!key->omit_default || key->scope == SCOPE_JOB);
    }
    accept(&config, "{\"cluster\": {\"wire_top\": 0.5}}", NULL, NULL);
    char *text = config_job_text(&config);
    assert_non_null(strstr(text, "\"wire_top\":0.5"));
    config_digest(&config, digest);
    assert_string_not_equal(digest, known);
    free(text);
    config_free(&config);
}

/* An empty file, white space, order, other notations of numbers: the job is the same, and so is its digest. */
static void digest_is_of_values(void **state)
{
    struct config config;
    char defaults[CONFIG_DIGEST_HEX + 1], digest[CONFIG_DIGEST_HEX + 1];
    config_defaults(&config);
    config_digest(&config, defaults);
    assert_int_equal(strlen(defaults), CONFIG_DIGEST_HEX);
    config_free(&config);
    static const char *const same[] = {
        "{}",
        "\xEF\xBB\xBF{}\r\n",
        "{\"train\": {\"seed\": 1, \"batch_size\": \"auto\", \"momentum\": 9e-1}, \"model\": "
        "{\"layers\":[784,500,10]}}",
        "{\"model\": {\"layers\": [784, 500, 10]}, \"train\": {\"momentum\": 0.9, \"seed\": 1.0}}",
        "{\"data\": {\"data_dir\": \"elsewhere\"}, \"train\": {\"num_threads\": 3, \"device\": \"cpu\"}}",
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        accept(&config, same[i], NULL, NULL);
        config_digest(&config, digest);
        assert_string_equal(digest, defaults);
        config_free(&config);
    }
    static const char *const other[][2] = {
        {"seed", "2"}, {"layers", "784,10"}, {"optimizer", "adam"}, {"learning_rate", "0.51"}, {"ps_hosts", "a:1"}};
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++) {
        accept(&config, "{}", other[i][0], other[i][1]);
        config_digest(&config, digest);
        assert_string_not_equal(digest, defaults);
        config_free(&config);
    }
}

/* Other members and old checkpoints have hashed the canonical text: its format must not change by accident. */
static void canonical_text(void **state)
{
    struct config config;
    accept(&config, "{\"cluster\": {\"ps_hosts\": [\"a:1\"]}, \"train\": {\"l2\": 1e-4}}", NULL, NULL);
    char *text = config_job_text(&config);
    assert_non_null(text);
    static const char begin[] = "{\"cluster\":{\"ps_hosts\":[\"a:1\"],\"worker_hosts\":[],\"issync\":false,";
    assert_memory_equal(text, begin, strlen(begin));
    assert_non_null(strstr(text, "},\"model\":{\"layers\":[784,500,10],\"hidden\":\"auto\",\"activation\":\"relu\","));
    assert_non_null(strstr(text, "\"l2\":0.0001,"));
    assert_non_null(strstr(text, "\"epsilon\":1e-08,"));
    assert_null(strstr(text, "data_dir"));
    free(text);
    config_free(&config);
}

static void learning_rates(void **state)
{
    struct config config;
    for (int kind = OPTIMIZER_SGD; kind < OPTIMIZER_KINDS; kind++) {
        accept(&config, "{}", "optimizer", config_optimizer_name((enum optimizer_kind)kind));
        assert_int_equal(config.train.optimizer, kind);
        assert_true(config.train.learning_rate > 0);
        assert_true(config.train.learning_rate == config_default_learning_rate((enum optimizer_kind)kind, false));
        config_free(&config);
        accept(&config, "{\"data\": {\"target\": [\"y\"]}}", "optimizer",
               config_optimizer_name((enum optimizer_kind)kind));
        assert_true(config.train.learning_rate == config_default_learning_rate((enum optimizer_kind)kind, true));
        config_free(&config);
    }
    accept(&config, "{\"train\": {\"learning_rate\": 0.25}}", "optimizer", "adam");
    assert_true(config.train.learning_rate == 0.25);
    config_free(&config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(unknown_names_get_the_nearest),
        cmocka_unit_test(wrong_types),
        cmocka_unit_test(out_of_range),
        cmocka_unit_test(duplicates),
        cmocka_unit_test(not_json),
        cmocka_unit_test(wrong_hosts),
        cmocka_unit_test(wrong_flags),
        cmocka_unit_test(flags_override_the_file),
        cmocka_unit_test(lists_by_flag),
        cmocka_unit_test(devices),
        cmocka_unit_test(digest_is_of_values),
        cmocka_unit_test(digest_of_the_defaults),
        cmocka_unit_test(canonical_text),
        cmocka_unit_test(learning_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
