/*
 * Files that are whole by their digest and yet of another model, another program or a later one: what is wrong with
 * them is said to the word, and what they hold is taken as far as it goes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <math.h>

#include "ps/checkpoint/internal.h"
#include "tests/check.h"

static char folder[64], path[96];
static struct error error;

/* --- Files --- */

struct entry {
    const char *key, *value;
};

struct tensor {
    const char *name;
    int dimensions;
    int64_t shape[2];
};

enum { ENTRIES = 13, MOST_TENSORS = 12, HEADER = 1 << 16 };

static const struct entry usual[ENTRIES] = {
    {"format", FORMAT_NAME},  {"format_version", "1"}, {"global_step", "9"},     {"seed", "1"},
    {"layers", "5,7,3"},      {"activation", "tanh"},  {"optimizer", "sgd"},     {"validation_accuracy", "0.5"},
    {"best_accuracy", "0.5"}, {"best_step", "8"},      {"bad_validations", "0"}, {"config_digest", ""},
    {"fleet_version", "2"}};

static const struct tensor parameters[] = {{"layer0/weights", 2, {5, 7}},
                                           {"layer0/biases", 1, {7, 0}},
                                           {"layer1/weights", 2, {7, 3}},
                                           {"layer1/biases", 1, {3, 0}},
                                           {NULL, 0, {0, 0}}};

/* A file of these tensors, whose floats are 0, 1, 2 ...; changes: entries in place of usual ones (NULL: none), and
 * more; they end with a key of NULL. */
static void craft(const struct tensor *tensors, const struct entry *changes)
{
    static char header[HEADER];
    struct safetensors_writer writer;
    crypto_generichash_state hash;
    char hex[DIGEST_HEX + 1];
    safetensors_write_begin(&writer, header, sizeof header);
    for (int i = 0; i < ENTRIES; i++) {
        const char *value = usual[i].value;
        for (const struct entry *change = changes; change->key; change++) {
            value = strcmp(change->key, usual[i].key) == 0 ? change->value : value;
        }
        if (value) {
            safetensors_write_metadata(&writer, usual[i].key, value);
        }
    }
    for (const struct entry *change = changes; change->key; change++) {
        bool is_usual = false;
        for (int i = 0; i < ENTRIES; i++) {
            is_usual = is_usual || strcmp(change->key, usual[i].key) == 0;
        }
        if (!is_usual) {
            safetensors_write_metadata(&writer, change->key, change->value);
        }
    }
    const size_t at = safetensors_write_metadata(&writer, "digest", ZERO_DIGEST);
    for (; tensors->name; tensors++) {
        safetensors_write_tensor(&writer, tensors->name, tensors->dimensions, tensors->shape);
    }
    const size_t data_size = (size_t)writer.data_size, size = safetensors_write_end(&writer);
    float *data = calloc(1, data_size + 1);
    for (size_t i = 0; i < data_size / sizeof *data; i++) {
        data[i] = (float)i;
    }
    assert_true(size > 0 && checkpoint_start_digest(&hash, path, &error));
    crypto_generichash_update(&hash, (const uint8_t *)header, size);
    crypto_generichash_update(&hash, (const uint8_t *)data, data_size);
    checkpoint_digest_hex(&hash, hex);
    memcpy(header + at, hex, DIGEST_HEX);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fwrite(header, 1, size, file) == size && fwrite(data, 1, data_size, file) == data_size);
    assert_int_equal(fclose(file), 0);
    free(data);
}

/* With that entry; NULL: it can be opened, or else what is said. */
static const char *opened_with(const char *key, const char *value, struct checkpoint_file **file)
{
    craft(parameters, (const struct entry[]){{key, value}, {NULL, NULL}});
    error.text[0] = '\0';
    const enum checkpoint_status status = checkpoint_open(file, path, &error);
    assert_int_equal(status, *file ? CHECKPOINT_OPENED : CHECKPOINT_UNREADABLE);
    const size_t length = strlen(path);
    assert_true(*file || strncmp(error.text, path, length) == 0);
    return *file ? NULL : error.text + length;
}

static void refused(const char *key, const char *value, const char *says)
{
    struct checkpoint_file *file;
    const char *said = opened_with(key, value, &file);
    if (!said || strcmp(said, says) != 0) {
        fail_msg("%s=%s: \"%s\" instead of \"%s\"", key, value ? value : "none", said ? said : "nothing", says);
    }
}

static struct checkpoint_info taken(const char *key, const char *value)
{
    struct checkpoint_file *file;
    const char *said = opened_with(key, value, &file);
    if (said) {
        fail_msg("%s=%s: %s", key, value, said);
    }
    const struct checkpoint_info info = *checkpoint_file_info(file);
    checkpoint_close(file);
    return info;
}

static int enter(void **state)
{
    strcpy(folder, "/tmp/foreign-XXXXXX");
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}

static int leave(void **state)
{
    unlink(path);
    return rmdir(folder);
}

/* --- What its metadata say --- */

TEST_WITH(texts_have_their_room, enter, leave)
{
    static char digest[CONFIG_DIGEST_HEX + 2];
    taken("optimizer", "an optimizer of thirty-one byte");
    refused("optimizer", "an optimizer of thirty-two bytes", ": \"optimizer\" in its metadata is too long");
    refused("format", FORMAT_NAME "s", ": \"format\" in its metadata is too long");
    refused("format", "trainer", ": is a trainer of version 1, this program reads trainer-checkpoint up to version 1");
    refused("format", NULL, ": \"format\" in its metadata is missing");
    refused("format_version", "2",
            ": is a trainer-checkpoint of version 2, this program reads trainer-checkpoint up to version 1");
    memset(digest, 'a', CONFIG_DIGEST_HEX);
    assert_string_equal(taken("config_digest", digest).config_digest, digest);
    digest[CONFIG_DIGEST_HEX] = 'a';
    refused("config_digest", digest, ": \"config_digest\" in its metadata is too long");
}

TEST_WITH(whole_numbers_have_their_ends, enter, leave)
{
    assert_int_equal(taken("bad_validations", "2147483647").bad_validations, 2147483647);
    refused("bad_validations", "2147483648",
            ": \"bad_validations\" in its metadata is \"2147483648\", not a number from 0 to 2147483647");
    refused("bad_validations", "-1",
            ": \"bad_validations\" in its metadata is \"-1\", not a number from 0 to 2147483647");
    refused("bad_validations", "", ": \"bad_validations\" in its metadata is \"\", not a number from 0 to 2147483647");
    assert_int_equal(taken("global_step", "0").global_step, 0);
    refused("global_step", "9223372036854775808",
            ": \"global_step\" in its metadata is \"9223372036854775808\", not a number from 0 to 9223372036854775807");
    refused("global_step", "00000000000000000000000000000009", ": \"global_step\" in its metadata is too long");
    assert_int_equal(taken("global_step", "0000000000000000000000000000009").global_step, 9);
}

TEST_WITH(fractions_are_read_to_their_end, enter, leave)
{
    refused("best_accuracy", "", ": \"best_accuracy\" in its metadata is \"\", not a number");
    refused("best_accuracy", "0.5x", ": \"best_accuracy\" in its metadata is \"0.5x\", not a number");
    refused("validation_accuracy", NULL, ": \"validation_accuracy\" in its metadata is missing");
    refused("threshold", "high", ": \"threshold\" in its metadata is \"high\", not a number");
    assert_true(taken("threshold", "0").has_threshold);
    assert_false(taken("seed", "1").has_threshold);
    /* What was not measured is -1 with an accuracy, and nothing else is. */
    assert_true(taken("best_accuracy", "0").best_score == 0);
    assert_true(isnan(taken("best_accuracy", "-1").best_score));
    assert_true(taken("validation_accuracy", "0").validation_score == 0);
    assert_true(isnan(taken("validation_accuracy", "-1").validation_score));
}

TEST_WITH(metrics_and_losses_are_known_ones, enter, leave)
{
    struct checkpoint_file *file;
    refused("best_metric", "beauty", ": its best_metric is \"beauty\", which this program does not know");
    refused("best_metric", "roc_auc", ": \"validation_roc_auc\" in its metadata is missing");
    refused("best_metric", "a metric whose name has forty-eight characters...",
            ": \"best_metric\" in its metadata is too long");
    craft(parameters,
          (const struct entry[]){
              {"best_metric", "roc_auc"}, {"validation_roc_auc", "-2"}, {"best_roc_auc", "0.75"}, {NULL, NULL}});
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    assert_int_equal(checkpoint_file_info(file)->metric, METRIC_ROC_AUC);
    assert_true(checkpoint_file_info(file)->validation_score == -2);
    assert_true(checkpoint_file_info(file)->best_score == 0.75);
    checkpoint_close(file);
    refused("loss", "regret", ": its loss is \"regret\", which this program does not know");
    refused("loss", "a loss with the name of so many b", ": \"loss\" in its metadata is too long");
    refused("loss", "mse", ": \"huber_delta\" in its metadata is missing");
    assert_int_equal(taken("loss", "softmax").loss, LOSS_SOFTMAX);
    assert_int_equal(taken("seed", "1").loss, LOSS_AUTO);
    refused("test_share", "some", ": \"test_share\" in its metadata is \"some\", not a number");
    assert_true(taken("test_share", "0").test_share == 0);
    assert_true(taken("seed", "1").test_share == -1);
}

TEST_WITH(escapes_are_those_of_json, enter, leave)
{
    static const char *const keys[] = {"preprocessing", "group", "time", "class_names", "kept_rows"};
    char says[80];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(says, sizeof says, ": \"%s\" in its metadata cannot be read", keys[i]);
        refused(keys[i], "a lone half of a pair: \\ud800", says);
    }
}

TEST_WITH(layers_are_two_or_more_within_their_bounds, enter, leave)
{
    static const struct {
        const char *layers;
        bool good;
    } cases[] = {{"1,1", true},     {"5", false},       {"", false},     {"1048576,1", true}, {"1048577,1", false},
                 {"1,65536", true}, {"1,65537", false}, {"1,0", false},  {"0,1", false},      {"5,7,", false},
                 {"5,,7", false},   {"5,-7", false},    {"5 ,7", false}, {"5,7;3", false},    {"1,2,3,4,5", true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct checkpoint_file *file;
        char says[120];
        const char *said = opened_with("layers", cases[i].layers, &file);
        snprintf(says, sizeof says, ": \"layers\" in its metadata is \"%s\", no list of widths", cases[i].layers);
        const bool as_wanted = cases[i].good ? !said : said && strcmp(said, says) == 0;
        if (!as_wanted) {
            fail_msg("\"%s\": %s", cases[i].layers, said ? said : "was taken");
        }
        checkpoint_close(file);
    }
    refused("activation", "sine", ": its activation is \"sine\", which this program does not know");
}

/* --- Whether it fits --- */

static struct config_model config;
static struct model model;
static struct config_train train;
static struct checkpoint_state state_here;

static void begin_here(enum optimizer_kind optimizer, double ema_decay)
{
    config = (struct config_model){.layers = {5, 7, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
    train = (struct config_train){
        .optimizer = optimizer, .ema_decay = ema_decay, .learning_rate = 0.1, .lr_decay = 1, .adagrad_init = 0.25};
    model_layout(&model, &config);
    checkpoint_state_create(&state_here, &model, &train);
}

/* Parameters, and these. */
static const struct tensor *with(const struct tensor *more, int count)
{
    static struct tensor all[MOST_TENSORS + 1];
    memcpy(all, parameters, sizeof parameters);
    memcpy(all + 4, more, (size_t)count * sizeof *more);
    all[4 + count] = (struct tensor){NULL, 0, {0, 0}};
    return all;
}

static struct checkpoint_file *open_crafted(const struct tensor *tensors, const char *optimizer)
{
    struct checkpoint_file *file;
    craft(tensors, (const struct entry[]){{"optimizer", optimizer}, {NULL, NULL}});
    if (checkpoint_open(&file, path, &error) != CHECKPOINT_OPENED) {
        fail_msg("%s", error.text);
    }
    return file;
}

static void does_not_fit(const struct tensor *tensors, const char *optimizer, const char *says)
{
    struct checkpoint_file *file = open_crafted(tensors, optimizer);
    char whole[300];
    state_here.vectors[STORE_PARAMETERS][0] = 77;
    assert_false(checkpoint_load(file, &state_here, &error));
    snprintf(whole, sizeof whole, "%s does not fit: %s", path, says);
    assert_string_equal(error.text, whole);
    assert_true(state_here.vectors[STORE_PARAMETERS][0] == 77); /* nothing is taken */
    checkpoint_close(file);
}

static const struct tensor momenta[] = {{"layer0/weights/Momentum", 2, {5, 7}},
                                        {"layer0/biases/Momentum", 1, {7, 0}},
                                        {"layer1/weights/Momentum", 2, {7, 3}},
                                        {"layer1/biases/Momentum", 1, {3, 0}}};

TEST_WITH(each_tensor_must_fit, enter, leave)
{
    begin_here(OPTIMIZER_MOMENTUM, 0);
    struct tensor others[4];
    does_not_fit(with(momenta, 3), "momentum", "layer1/biases/Momentum is not in it");
    memcpy(others, momenta, sizeof others);
    others[2].shape[1] = 4;
    does_not_fit(with(others, 4), "momentum", "layer1/weights/Momentum is [7,4] there and [7,3] here");
    memcpy(others, momenta, sizeof others);
    others[0] = (struct tensor){"layer0/weights/Momentum", 1, {35, 0}};
    does_not_fit(with(others, 4), "momentum", "layer0/weights/Momentum is [35] there and [5,7] here");
    checkpoint_state_destroy(&state_here);
    begin_here(OPTIMIZER_SGD, 0);
    does_not_fit(with(momenta, 4), "sgd", "it has 8 tensors, 4 are needed here");
    struct checkpoint_file *file = open_crafted(with(momenta, 0), "sgd");
    assert_true(checkpoint_load(file, &state_here, &error));
    assert_true(state_here.vectors[STORE_PARAMETERS][model.variables[1].offset] == 35);
    checkpoint_close(file);
    checkpoint_state_destroy(&state_here);
}

static const struct tensor averages[] = {{"layer0/weights/ExponentialMovingAverage", 2, {5, 7}},
                                         {"layer0/biases/ExponentialMovingAverage", 1, {7, 0}},
                                         {"layer1/weights/ExponentialMovingAverage", 2, {7, 3}},
                                         {"layer1/biases/ExponentialMovingAverage", 1, {3, 0}}};

TEST_WITH(averages_must_be_whole, enter, leave)
{
    float *values = NULL;
    begin_here(OPTIMIZER_SGD, 0);
    values = malloc(model.float_count * sizeof *values);
    struct checkpoint_file *file = open_crafted(with(averages, 3), "sgd");
    assert_false(checkpoint_load_parameters(file, &model, CHECKPOINT_BEST_WEIGHTS, values, NULL, &error));
    assert_non_null(strstr(error.text, "layer1/biases/ExponentialMovingAverage is not in it"));
    assert_true(checkpoint_load_parameters(file, &model, CHECKPOINT_RAW, values, NULL, &error));
    assert_true(values[1] == 1);
    model.activation = ACTIVATION_RELU;
    assert_false(checkpoint_load_parameters(file, &model, CHECKPOINT_RAW, values, NULL, &error));
    assert_non_null(strstr(error.text, "activation is tanh there and relu here: give --activation=tanh"));
    checkpoint_close(file);
    free(values);
    checkpoint_state_destroy(&state_here);
}

/* A vector that does not fit begins as it does in a new model: averages at the parameters, slots at their own value. */
TEST_WITH(what_does_not_fit_begins_anew, enter, leave)
{
    char lost[400];
    struct tensor others[4];
    begin_here(OPTIMIZER_ADAGRAD, 0.9);
    memcpy(others, averages, sizeof others);
    others[1].shape[0] = 8;
    struct checkpoint_file *file = open_crafted(with(others, 4), "sgd");
    assert_true(checkpoint_load_fitting(file, &state_here, lost, sizeof lost, &error));
    assert_string_equal(lost, "");
    const size_t at = model.variables[1].offset;
    assert_true(state_here.vectors[STORE_PARAMETERS][at + 1] == 36);
    assert_true(state_here.vectors[STORE_AVERAGES][at + 1] == 36);
    assert_true(state_here.vectors[STORE_AVERAGES][1] == 35 + 7 + 21 + 3 + 1); /* as it is in the file */
    assert_true(state_here.vectors[STORE_SLOT0][at] == 0.25f && state_here.vectors[STORE_SLOT0][0] == 0.25f);
    /* What is said of the loss ends where there is no more room. */
    checkpoint_close(file);
    memcpy(others, parameters, sizeof others);
    others[0].shape[0] = 6;
    others[2].shape[1] = 4;
    file = open_crafted((const struct tensor[]){others[0], others[1], others[2], others[3], {NULL, 0, {0, 0}}}, "sgd");
    assert_true(checkpoint_load_fitting(file, &state_here, lost, sizeof lost, &error));
    assert_string_equal(lost, "layer0/weights [6,7], which would be [5,7]; layer1/weights [7,4], which would be [7,3]");
    char little[44];
    memset(little, 'x', sizeof little);
    assert_true(checkpoint_load_fitting(file, &state_here, little, sizeof little, &error));
    assert_string_equal(little, "layer0/weights [6,7], which would be [5,7]");
    assert_true(checkpoint_load_fitting(file, &state_here, little, 42, &error));
    assert_string_equal(little, "layer0/weights [6,7], which would be [5,7");
    checkpoint_close(file);
    checkpoint_state_destroy(&state_here);
}

/* The disk gives less than it did when the file was opened. */
TEST_WITH(a_file_may_become_shorter_while_it_is_read, enter, leave)
{
    char lost[400];
    begin_here(OPTIMIZER_SGD, 0);
    struct checkpoint_file *file = open_crafted(parameters, "sgd");
    const struct safetensors_tensor *last = safetensors_find(checkpoint_file_tensors(file), "layer1/biases");
    assert_int_equal(truncate(path, (off_t)last->offset), 0);
    assert_false(checkpoint_load(file, &state_here, &error));
    assert_non_null(strstr(error.text, ": became shorter while it was read"));
    assert_false(checkpoint_load_fitting(file, &state_here, lost, sizeof lost, &error));
    float value;
    assert_false(checkpoint_read_tensor(file, last, 0, 1, &value, &error));
    assert_true(checkpoint_read_tensor(file, safetensors_find(checkpoint_file_tensors(file), "layer0/biases"), 6, 1,
                                       &value, &error));
    assert_true(value == 41);
    checkpoint_close(file);
    checkpoint_state_destroy(&state_here);
}

TEST_WITH(a_file_without_a_digest_is_none_of_ours, enter, leave)
{
    struct checkpoint_file *file;
    static const uint8_t bytes[] = "\x02\0\0\0\0\0\0\0{}";
    for (size_t size = 0; size < sizeof bytes; size++) {
        FILE *stream = fopen(path, "wb");
        assert_true(fwrite(bytes, 1, size, stream) == size && fclose(stream) == 0);
        assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_DAMAGED);
        if (size == sizeof bytes - 1) {
            assert_non_null(strstr(error.text, ": has no digest, so it is no checkpoint of this program"));
        } else {
            assert_non_null(strstr(error.text, "is cut off: "));
        }
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
