/* Checkpoints: what is written reads back, damage of any kind is reported, mismatches are described precisely. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "ps/checkpoint/checkpoint.h"
#include "ps/checkpoint/internal.h"
#include "ps/checkpoint/safetensors.h"
#include "tests/check.h"
#include "tests/random.h"
#include "tests/ps/checkpoint/reading.h"

static char folder[] = "/tmp/test_checkpoint.XXXXXX";
static char path[sizeof folder + 32];

static struct config_model model_config(int hidden)
{
    return (struct config_model){.layers = {5, hidden, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
}

static struct config_train train_config(enum optimizer_kind kind, double ema_decay)
{
    return (struct config_train){
        .optimizer = kind, .ema_decay = ema_decay, .learning_rate = 0.1, .lr_decay = 1, .adagrad_init = 0.1};
}

static char some_group[] = "the \"group\"", some_time[] = "time\\of day";

static const struct checkpoint_info some_info = {
    .global_step = 1234567890123,
    .seed = -5,
    .validation_score = 0.98123456789012345,
    .best_score = 1.0 / 3.0,
    .best_step = 77,
    .bad_validations = 3,
    .config_digest = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    .has_threshold = true,
    .threshold = 0.1,
    .loss = LOSS_HUBER,
    .huber_delta = 1.0 / 7,
    .quantile = 0.9,
    .fleet_version = 42,
    .preprocessing = "{\"columns\": \"\\u00e9 \\\\ more\"}",
    .test_share = 1.0 / 9,
    .group = some_group,
    .time = some_time,
    .class_names = "[\"cat\",\"\\\\ dog\"]",
    .kept_rows = "[0.001,[[0,255],[],[1.5,-2]]]",
};

/* A state of random numbers, except padding. */
static void fill(struct checkpoint_state *state, struct test_random *random)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        for (int i = 0; i < state->model->variable_count && state->vectors[v]; i++) {
            const struct variable *variable = &state->model->variables[i];
            for (int row = 0; row < variable->rows; row++) {
                for (int col = 0; col < variable->cols; col++) {
                    state->vectors[v][variable->offset + (size_t)row * (size_t)variable->stride + (size_t)col] =
                        test_random_float(random);
                }
            }
        }
    }
}

static bool same_values(const struct checkpoint_state *a, const struct checkpoint_state *b)
{
    for (int v = 0; v < STORE_VECTORS; v++) {
        for (int i = 0; i < a->model->variable_count && a->vectors[v]; i++) {
            const struct variable *variable = &a->model->variables[i];
            for (int row = 0; row < variable->rows; row++) {
                size_t at = variable->offset + (size_t)row * (size_t)variable->stride;
                if (memcmp(a->vectors[v] + at, b->vectors[v] + at, (size_t)variable->cols * sizeof(float)) != 0) {
                    return false;
                }
            }
        }
    }
    return true;
}

struct fixture {
    struct config_model config;
    struct model model;
    struct config_train train;
    struct checkpoint_state state;
};

static void begin(struct fixture *fixture, int hidden, enum optimizer_kind kind, double ema_decay)
{
    fixture->config = model_config(hidden);
    model_layout(&fixture->model, &fixture->config);
    fixture->train = train_config(kind, ema_decay);
    checkpoint_state_create(&fixture->state, &fixture->model, &fixture->train);
}

static void write_some(struct fixture *fixture, struct test_random *random)
{
    struct error error = {""};
    fill(&fixture->state, random);
    if (!checkpoint_write(path, &fixture->state, &some_info, &error)) {
        fail_msg("%s", error.text);
    }
}

static void what_is_written_comes_back(void **unused)
{
    struct test_random random = test_random_begin("what_is_written_comes_back");
    for (int kind = 0; kind < 5; kind++) {
        for (int ema = 0; ema < 2; ema++) {
            struct fixture written, read;
            int hidden = 1 + test_random_below(&random, 40);
            begin(&written, hidden, (enum optimizer_kind)kind, ema * 0.99);
            begin(&read, hidden, (enum optimizer_kind)kind, ema * 0.99);
            write_some(&written, &random);
            struct checkpoint_info info;
            struct error error = {""};
            if (!read_checkpoint(path, &read.state, &info, &error)) {
                fail_msg("%s", error.text);
            }
            assert_true(same_values(&written.state, &read.state));
            assert_int_equal(info.global_step, some_info.global_step);
            assert_int_equal(info.seed, some_info.seed);
            assert_true(info.validation_score == some_info.validation_score);
            assert_true(info.best_score == some_info.best_score);
            assert_int_equal(info.best_step, some_info.best_step);
            assert_int_equal(info.bad_validations, some_info.bad_validations);
            assert_string_equal(info.config_digest, some_info.config_digest);
            assert_int_equal(info.fleet_version, some_info.fleet_version);
            assert_true(info.has_threshold && info.threshold == some_info.threshold);
            assert_true(info.loss == some_info.loss && info.huber_delta == some_info.huber_delta);
            assert_true(info.quantile == some_info.quantile);
            /* Adagrad divides by the root of its slot: padding must be as at the start. */
            if (kind == OPTIMIZER_ADAGRAD && read.model.variables[0].cols < read.model.variables[0].stride) {
                assert_true(read.state.vectors[STORE_SLOT0][read.model.variables[0].cols] == 0.1f);
            }
            checkpoint_state_destroy(&written.state);
            checkpoint_state_destroy(&read.state);
        }
    }
}

static void tensors_are_named_as_tensorflows_and_plain(void **unused)
{
    struct test_random random = test_random_begin("tensors_are_named_as_tensorflows_and_plain");
    struct fixture fixture;
    begin(&fixture, 7, OPTIMIZER_ADAM, 0.9);
    write_some(&fixture, &random);
    uint8_t *bytes;
    size_t size, header_size;
    struct error error = {""};
    struct safetensors *file = malloc(sizeof *file);
    assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
    assert_true(safetensors_header_size(bytes, size, &header_size, &error));
    assert_true(safetensors_decode(file, bytes, header_size, size, &error));
    assert_int_equal(header_size % SAFETENSORS_DATA_ALIGN, 0);
    const char *const suffixes[] = {"", "/Adam", "/Adam_1", "/ExponentialMovingAverage"};
    assert_int_equal(file->tensor_count, 4 * 4);
    for (int v = 0; v < 4; v++) {
        for (int i = 0; i < 4; i++) {
            const struct variable *variable = &fixture.model.variables[i];
            char name[64];
            snprintf(name, sizeof name, "%s%s", variable->name, suffixes[v]);
            const struct safetensors_tensor *tensor = safetensors_find(file, name);
            assert_non_null(tensor);
            assert_int_equal(tensor->dimensions, variable->is_weights ? 2 : 1);
            assert_int_equal(tensor->shape[0], variable->is_weights ? variable->rows : variable->cols);
            assert_memory_equal(bytes + tensor->offset, fixture.state.vectors[v] + variable->offset,
                                (size_t)variable->cols * sizeof(float));
        }
    }
    free(file);
    free(bytes);
    checkpoint_state_destroy(&fixture.state);
}

static void write_bytes(const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void refused(const char *what, size_t where)
{
    struct checkpoint_file *file;
    struct error error = {""};
    enum checkpoint_status status = checkpoint_open(&file, path, &error);
    if (status != CHECKPOINT_DAMAGED || file || !strstr(error.text, path)) {
        fail_msg("%s %zu: status %d, \"%s\"", what, where, (int)status, error.text);
    }
}

static void truncated_anywhere_or_one_bit_off_it_is_refused(void **unused)
{
    struct test_random random = test_random_begin("truncated_anywhere_or_one_bit_off_it_is_refused");
    struct fixture fixture;
    begin(&fixture, 2, OPTIMIZER_MOMENTUM, 0);
    write_some(&fixture, &random);
    uint8_t *bytes;
    size_t size;
    struct error error = {""};
    assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
    for (size_t length = 0; length < size; length++) {
        write_bytes(bytes, length);
        refused("cut to", length);
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        write_bytes(bytes, size);
        refused("flipped bit", bit);
        bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    uint8_t *longer = calloc(1, size + 1);
    memcpy(longer, bytes, size);
    write_bytes(longer, size + 1);
    refused("longer by", 1);
    write_bytes(bytes, size);
    struct checkpoint_file *file;
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    checkpoint_close(file);
    free(longer);
    free(bytes);
    checkpoint_state_destroy(&fixture.state);
}

static void misfit(const struct fixture *here, const char *const *expected)
{
    struct checkpoint_info info;
    struct error error = {""};
    struct checkpoint_state state = here->state;
    assert_false(read_checkpoint(path, &state, &info, &error));
    assert_non_null(strstr(error.text, path));
    for (; *expected; expected++) {
        if (!strstr(error.text, *expected)) {
            fail_msg("\"%s\" does not say \"%s\"", error.text, *expected);
        }
    }
}

static void a_misfit_says_what_differs(void **unused)
{
    struct test_random random = test_random_begin("a_misfit_says_what_differs");
    struct fixture written, here;
    begin(&written, 7, OPTIMIZER_MOMENTUM, 0);
    write_some(&written, &random);

    begin(&here, 8, OPTIMIZER_MOMENTUM, 0);
    misfit(&here, (const char *const[]){"layer0/weights is [5,7] there and [5,8] here",
                                        "layers 5,7,3 there, 5,8,3 here", "--layers=5,7,3", NULL});
    checkpoint_state_destroy(&here.state);

    begin(&here, 7, OPTIMIZER_ADAM, 0);
    misfit(&here, (const char *const[]){"the optimizer is momentum there and adam here", "--optimizer=momentum", NULL});
    checkpoint_state_destroy(&here.state);

    begin(&here, 7, OPTIMIZER_MOMENTUM, 0.99);
    misfit(&here, (const char *const[]){"no moving averages", "ema_decay is 0.99 here", "--ema_decay=0", NULL});
    checkpoint_state_destroy(&here.state);

    begin(&here, 7, OPTIMIZER_MOMENTUM, 0);
    here.model.activation = ACTIVATION_RELU;
    misfit(&here, (const char *const[]){"activation is tanh there and relu here", "--activation=tanh", NULL});
    checkpoint_state_destroy(&here.state);

    struct config_model deeper = {.layers = {5, 7, 7, 3}, .layer_count = 4, .activation = ACTIVATION_TANH};
    begin(&here, 7, OPTIMIZER_MOMENTUM, 0);
    model_layout(&here.model, &deeper);
    misfit(&here,
           (const char *const[]){"2 layers of weights there and 3 here", "layers 5,7,3 there, 5,7,7,3 here", NULL});
    checkpoint_state_destroy(&here.state);
    checkpoint_state_destroy(&written.state);
}

/* The file with `from` replaced by `to`, of the same length, and a matching digest. */
static void rewrite(const uint8_t *bytes, size_t size, const char *from, const char *to)
{
    static const char name[] = "\"digest\":\"";
    struct error error;
    crypto_generichash_state hash;
    char hex[DIGEST_HEX + 1];
    assert_int_equal(strlen(from), strlen(to));
    uint8_t *changed = malloc(size);
    memcpy(changed, bytes, size);
    uint8_t *at = memmem(changed, size, from, strlen(from)), *digest = memmem(changed, size, name, strlen(name));
    assert_true(at && digest);
    memcpy(at, to, strlen(to));
    memcpy(digest + strlen(name), ZERO_DIGEST, DIGEST_HEX);
    assert_true(checkpoint_start_digest(&hash, path, &error));
    crypto_generichash_update(&hash, changed, size);
    checkpoint_digest_hex(&hash, hex);
    memcpy(digest + strlen(name), hex, DIGEST_HEX);
    write_bytes(changed, size);
    free(changed);
}

/* Intact by its digest, and yet unusable: another program's, or a later one's. */
static void what_metadata_cannot_say(void **unused)
{
    static const struct {
        const char *from, *to, *says;
    } cases[] = {
        {"\"layers\":\"5,7,3\"", "\"layers\":\"5,x,3\"", "no list of widths"},
        {"\"layers\":\"5,7,3\"", "\"layers\":\"5,0,3\"", "no list of widths"},
        {"\"layers\":\"5,7,3\"", "\"layers\":\"5;7;3\"", "no list of widths"},
        {"\"layers\":\"5,7,3\"", "\"layers\":\"5,7,,\"", "no list of widths"},
        {"\"layers\":\"5,7,3\"", "\"layers\":\"    7\"", "no list of widths"},
        {"\"layers\":\"5,7,3\"", "\"lawers\":\"5,7,3\"", "\"layers\" in its metadata is missing"},
        {"\"activation\":\"tanh\"", "\"activation\":\"tank\"",
         "its activation is \"tank\", which this program does not"},
        {"\"activation\"", "\"activitaon\"", "\"activation\" in its metadata is missing"},
        {"\"global_step\":\"1234567890123\"", "\"global_step\":\"-234567890123\"", "not a number from 0 to"},
        {"\"global_step\":\"1234567890123\"", "\"global_step\":\"123456789012x\"", "not a number from 0 to"},
        {"\"format_version\":\"1\"", "\"format_version\":\"0\"", "not a number from 1 to"},
        {"\"format_version\":\"1\"", "\"format_version\":\"9\"", "this program reads"},
        {"\"format\"", "\"farmot\"", "\"format\" in its metadata is missing"},
        {"\"bad_validations\":\"3\"", "\"bad_validations\":\"-\"", "not a number from 0 to"},
        {"\"best_step\":\"77\"", "\"best_step\":\"7 \"", "not a number from"},
        {"\"fleet_version\":\"42\"", "\"fleet_version\":\"4x\"", "not a number from"},
        {"\"seed\":\"-5\"", "\"seed\":\"--\"", "not a number from"},
        {"\"optimizer\"", "\"optimiser\"", "\"optimizer\" in its metadata is missing"},
        {"\"config_digest\"", "\"config_dijest\"", "\"config_digest\" in its metadata is missing"},
        {"\":\"0.981234", "\":\"x.981234", "not a number"},
        {"\":\"0.333333", "\":\"0.3333x3", "not a number"},
    };
    struct test_random random = test_random_begin("what_metadata_cannot_say");
    struct fixture fixture;
    struct checkpoint_file *file;
    struct error error;
    uint8_t *bytes;
    size_t size;
    begin(&fixture, 7, OPTIMIZER_SGD, 0);
    write_some(&fixture, &random);
    assert_true(file_read(path, 1 << 20, &bytes, &size, &error));
    rewrite(bytes, size, "\"seed\":\"-5\"", "\"seed\":\"+7\"");
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    assert_int_equal(checkpoint_file_info(file)->seed, 7);
    checkpoint_close(file);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rewrite(bytes, size, cases[i].from, cases[i].to);
        assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_UNREADABLE);
        assert_null(file);
        if (!strstr(error.text, cases[i].says) || !strstr(error.text, path)) {
            fail_msg("\"%s\" instead of \"%s\"", error.text, cases[i].says);
        }
    }
    free(bytes);
    checkpoint_state_destroy(&fixture.state);
}

static void evaluation_takes_the_averages_whatever_the_optimizer(void **unused)
{
    struct test_random random = test_random_begin("evaluation_takes_the_averages_whatever_the_optimizer");
    for (int ema = 0; ema < 2; ema++) {
        struct fixture fixture;
        begin(&fixture, 7, OPTIMIZER_ADAM, ema * 0.9);
        write_some(&fixture, &random);
        struct checkpoint_file *file;
        struct error error = {""};
        assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
        struct config_model config = {.init_stddev = 3};
        checkpoint_file_model(file, &config);
        assert_int_equal(config.layer_count, 3);
        assert_int_equal(config.layers[1], 7);
        assert_int_equal(config.activation, ACTIVATION_TANH);
        assert_true(config.init_stddev == 3);
        assert_int_equal(checkpoint_file_info(file)->best_step, 77);
        float *values = malloc(fixture.model.float_count * sizeof *values);
        bool averaged;
        assert_true(
            checkpoint_load_parameters(file, &fixture.model, CHECKPOINT_BEST_WEIGHTS, values, &averaged, &error));
        assert_int_equal(averaged, ema);
        const float *expected = fixture.state.vectors[ema ? STORE_AVERAGES : STORE_PARAMETERS];
        assert_memory_equal(values, expected, fixture.model.float_count * sizeof *values);
        free(values);
        checkpoint_close(file);
        checkpoint_state_destroy(&fixture.state);
    }
}

static void failures_name_the_file(void **unused)
{
    struct checkpoint_file *file;
    struct error error = {""};
    assert_int_equal(checkpoint_open(&file, "/nowhere/model.safetensors", &error), CHECKPOINT_UNREADABLE);
    assert_non_null(strstr(error.text, "/nowhere/model.safetensors"));
    assert_int_equal(checkpoint_open(&file, folder, &error), CHECKPOINT_UNREADABLE);
    struct fixture fixture;
    begin(&fixture, 7, OPTIMIZER_SGD, 0);
    assert_false(checkpoint_write("/nowhere/model.safetensors", &fixture.state, &some_info, &error));
    assert_non_null(strstr(error.text, "/nowhere/model.safetensors"));
    checkpoint_state_destroy(&fixture.state);
}

static void a_named_pipe_is_not_waited_for(void **unused)
{
    char fifo[sizeof folder + 32];
    struct checkpoint_file *file;
    struct error error;
    snprintf(fifo, sizeof fifo, "%s/fifo", folder);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(60);
    assert_int_equal(checkpoint_open(&file, fifo, &error), CHECKPOINT_UNREADABLE);
    alarm(0);
    assert_non_null(strstr(error.text, "is not a regular file"));
    remove(fifo);
}

static void what_a_table_held_out_is_known(void **unused)
{
    struct test_random random = test_random_begin("what_a_table_held_out_is_known");
    struct fixture written;
    struct checkpoint_file *file;
    struct error error = {""};
    begin(&written, 3, OPTIMIZER_SGD, 0);
    write_some(&written, &random);
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    const struct checkpoint_info *info = checkpoint_file_info(file);
    assert_string_equal(info->preprocessing, some_info.preprocessing);
    assert_true(info->test_share == some_info.test_share);
    assert_string_equal(info->group, some_group);
    assert_string_equal(info->time, some_time);
    assert_string_equal(info->class_names, some_info.class_names);
    assert_string_equal(info->kept_rows, some_info.kept_rows);
    checkpoint_close(file);
    checkpoint_state_destroy(&written.state);
}

static void the_largest_header_fits(void **unused)
{
    struct config_model config = {.layer_count = CONFIG_MAX_LAYERS};
    for (int i = 0; i < CONFIG_MAX_LAYERS; i++) {
        config.layers[i] = i % 2 == 0 ? CONFIG_MAX_WIDTH : 1;
    }
    struct model model;
    model_layout(&model, &config);
    struct config_train train = train_config(OPTIMIZER_ADADELTA, 0.9);
    struct checkpoint_state state;
    struct checkpoint_info info = some_info;
    struct error error = {""};
    /* Widths that keep the data small while names and numbers are as long as they get. */
    checkpoint_state_create(&state, &model, &train);
    if (!checkpoint_write(path, &state, &info, &error) || !read_checkpoint(path, &state, &info, &error)) {
        fail_msg("%s", error.text);
    }
    checkpoint_state_destroy(&state);
}

static int make_folder(void **unused)
{
    if (!mkdtemp(folder)) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    return 0;
}

static int remove_folder(void **unused)
{
    unlink(path);
    return rmdir(folder); /* fails if a temporary file was left behind */
}

/* A change of optimizer keeps the parameters, a change of layers those that fit; losses are reported. */
static void what_fits_is_taken_over(void **unused)
{
    struct test_random random = test_random_begin("what_fits_is_taken_over");
    struct fixture written, same, other;
    struct checkpoint_file *file;
    struct error error = {""};
    char lost[512];
    begin(&written, 7, OPTIMIZER_ADAM, 0);
    write_some(&written, &random);
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);

    begin(&same, 7, OPTIMIZER_MOMENTUM, 0.9);
    fill(&same.state, &random);
    assert_false(checkpoint_load(file, &same.state, &error));
    assert_true(checkpoint_load_fitting(file, &same.state, lost, sizeof lost, &error));
    assert_string_equal(lost, "");
    for (int i = 0; i < same.model.variable_count; i++) {
        const struct variable *variable = &same.model.variables[i];
        for (int row = 0; row < variable->rows; row++) {
            size_t at = variable->offset + (size_t)row * (size_t)variable->stride, bytes = (size_t)variable->cols * 4;
            const float *there = written.state.vectors[STORE_PARAMETERS] + at;
            assert_memory_equal(same.state.vectors[STORE_PARAMETERS] + at, there, bytes);
            assert_memory_equal(same.state.vectors[STORE_AVERAGES] + at, there, bytes);
            assert_true(same.state.vectors[STORE_SLOT0][at] == 0);
        }
    }

    begin(&other, 9, OPTIMIZER_ADAM, 0);
    fill(&other.state, &random);
    const float *last = other.state.vectors[STORE_PARAMETERS] + other.model.variables[3].offset;
    const float first = other.state.vectors[STORE_PARAMETERS][0];
    assert_true(checkpoint_load_fitting(file, &other.state, lost, sizeof lost, &error));
    assert_non_null(strstr(lost, "layer0/weights ["));
    assert_non_null(strstr(lost, ",7], which would be ["));
    assert_null(strstr(lost, "layer1/biases"));
    assert_true(other.state.vectors[STORE_PARAMETERS][0] == first); /* as the caller left it */
    const float *there = written.state.vectors[STORE_PARAMETERS] + written.model.variables[3].offset;
    assert_memory_equal(last, there, (size_t)written.model.variables[3].cols * sizeof *there);

    checkpoint_close(file);
    checkpoint_state_destroy(&other.state);
    checkpoint_state_destroy(&same.state);
    checkpoint_state_destroy(&written.state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(what_fits_is_taken_over),
        cmocka_unit_test(tensors_are_named_as_tensorflows_and_plain),
        cmocka_unit_test(truncated_anywhere_or_one_bit_off_it_is_refused),
        cmocka_unit_test(a_misfit_says_what_differs),
        cmocka_unit_test(what_metadata_cannot_say),
        cmocka_unit_test(evaluation_takes_the_averages_whatever_the_optimizer),
        cmocka_unit_test(failures_name_the_file),
        cmocka_unit_test(a_named_pipe_is_not_waited_for),
        cmocka_unit_test(what_a_table_held_out_is_known),
        cmocka_unit_test(the_largest_header_fits),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
