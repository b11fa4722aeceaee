/* A checkpoint's contents besides its tensors, and its parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <math.h>

#include "ps/checkpoint/checkpoint.h"
#include "tests/check.h"

static char folder[64], path[96];
static struct config_model layers;
static struct model model;
static struct config_train train;
static struct checkpoint_state state;
static struct checkpoint_file *file;
static struct error error;

static void make_state(int hidden, enum optimizer_kind optimizer, double ema_decay)
{
    layers = (struct config_model){.layers = {5, hidden, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
    train = (struct config_train){
        .optimizer = optimizer, .ema_decay = ema_decay, .learning_rate = 0.1, .lr_decay = 1, .adagrad_init = 0.1};
    model_layout(&model, &layers);
    checkpoint_state_create(&state, &model, &train);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (size_t i = 0; state.vectors[vector] && i < model.float_count; i++) {
            state.vectors[vector][i] = (float)i + 1000.0f * (float)vector;
        }
    }
}

static int enter(void **unused)
{
    strcpy(folder, "/tmp/info-XXXXXX");
    if (!mkdtemp(folder)) {
        return 1;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    file = NULL;
    make_state(7, OPTIMIZER_SGD, 0);
    return 0;
}

static int leave(void **unused)
{
    checkpoint_close(file);
    checkpoint_state_destroy(&state);
    unlink(path);
    return rmdir(folder);
}

/* Written and read back. */
static const struct checkpoint_info *kept(const struct checkpoint_info *info)
{
    checkpoint_close(file);
    if (!checkpoint_write(path, &state, info, &error) || checkpoint_open(&file, path, &error) != CHECKPOINT_OPENED) {
        fail_msg("%s", error.text);
    }
    return checkpoint_file_info(file);
}

static void scores_are_of_the_metric_that_was_chosen(void **unused)
{
    for (enum metric metric = METRIC_AUTO; metric < METRICS; metric++) {
        const struct checkpoint_info written = {
            .metric = metric, .validation_score = 0.25, .best_score = 0.5, .config_digest = ""};
        const struct checkpoint_info *read = kept(&written);
        assert_int_equal(read->metric, metric == METRIC_AUTO ? METRIC_ACCURACY : metric);
        assert_true(read->validation_score == 0.25 && read->best_score == 0.5);
        assert_false(read->has_threshold);
        const struct checkpoint_info unknown = {.metric = metric, .validation_score = NAN, .best_score = NAN};
        read = kept(&unknown);
        assert_true(isnan(read->validation_score) && isnan(read->best_score));
        const struct checkpoint_info none = {.metric = metric};
        read = kept(&none);
        assert_true(read->validation_score == 0 && read->best_score == 0);
    }
}

static void the_loss_is_kept_with_what_belongs_to_it(void **unused)
{
    for (enum loss_kind loss = LOSS_AUTO; loss <= LOSS_QUANTILE; loss++) {
        const struct checkpoint_info written = {.loss = loss, .huber_delta = 0.125, .quantile = 0.75};
        const struct checkpoint_info *read = kept(&written);
        assert_int_equal(read->loss, loss);
        const bool is_of_numbers = loss >= LOSS_MSE;
        assert_true(read->huber_delta == (is_of_numbers ? 0.125 : 0));
        assert_true(read->quantile == (is_of_numbers ? 0.75 : 0));
    }
}

static void what_is_not_said_is_not_there(void **unused)
{
    const struct checkpoint_info written = {.test_share = -1};
    const struct checkpoint_info *read = kept(&written);
    assert_null(read->preprocessing);
    assert_null(read->class_names);
    assert_null(read->kept_rows);
    assert_true(!read->group || read->group[0] == '\0');
    assert_true(!read->time || read->time[0] == '\0');
    assert_true(read->test_share < 0);
    assert_string_equal(read->config_digest, "");
    assert_string_equal(checkpoint_path(file), path);
}

static void numbers_are_kept_to_their_ends(void **unused)
{
    static const int64_t ends[] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const struct checkpoint_info written = {.global_step = ends[i] < 0 ? 0 : ends[i],
                                                .seed = ends[i],
                                                .best_step = ends[i],
                                                .fleet_version = ends[i],
                                                .bad_validations = ends[i] > 0 ? INT32_MAX : 0};
        const struct checkpoint_info *read = kept(&written);
        assert_true(read->global_step == written.global_step && read->seed == ends[i]);
        assert_true(read->best_step == ends[i] && read->fleet_version == ends[i]);
        assert_int_equal(read->bad_validations, written.bad_validations);
    }
}

static void a_model_is_known_by_its_layers_and_activation(void **unused)
{
    for (enum activation activation = ACTIVATION_RELU; activation <= ACTIVATION_IDENTITY; activation++) {
        struct config_model read = {.init_stddev = 3};
        model.activation = activation;
        kept(&(struct checkpoint_info){.global_step = 0});
        checkpoint_file_model(file, &read);
        assert_int_equal(read.layer_count, 3);
        assert_true(read.layers[0] == 5 && read.layers[1] == 7 && read.layers[2] == 3);
        assert_int_equal(read.activation, activation);
        assert_true(read.init_stddev == 3);
    }
}

/* More than is read at once. */
static void a_large_one_is_whole(void **unused)
{
    checkpoint_state_destroy(&state);
    make_state(20000, OPTIMIZER_ADAM, 0);
    kept(&(struct checkpoint_info){.global_step = 9});
    struct checkpoint_state read;
    checkpoint_state_create(&read, &model, &train);
    assert_true(checkpoint_load(file, &read, &error));
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        for (int i = 0; state.vectors[vector] && i < model.variable_count; i++) {
            const struct variable *variable = &model.variables[i];
            for (int row = 0; row < variable->rows; row++) {
                const size_t at = variable->offset + (size_t)row * (size_t)variable->stride;
                assert_memory_equal(read.vectors[vector] + at, state.vectors[vector] + at,
                                    (size_t)variable->cols * sizeof(float));
            }
        }
    }
    checkpoint_state_destroy(&read);
}

static void weights_are_raw_or_averaged_as_wanted(void **unused)
{
    static const enum checkpoint_weights which[] = {CHECKPOINT_BEST_WEIGHTS, CHECKPOINT_RAW, CHECKPOINT_AVERAGED};
    float *values = malloc(model.float_count * sizeof *values);
    for (int has_averages = 0; has_averages < 2; has_averages++) {
        checkpoint_state_destroy(&state);
        make_state(7, OPTIMIZER_MOMENTUM, has_averages ? 0.9 : 0);
        kept(&(struct checkpoint_info){.global_step = 9});
        for (int i = 0; i < 3; i++) {
            bool averaged = i % 2 == 0;
            const bool wants = which[i] != CHECKPOINT_RAW && has_averages;
            const bool can = checkpoint_load_parameters(file, &model, which[i], values, &averaged, &error);
            assert_int_equal(can, has_averages || which[i] != CHECKPOINT_AVERAGED);
            if (!can) {
                assert_non_null(strstr(error.text, "has no moving averages"));
                continue;
            }
            assert_int_equal(averaged, wants);
            assert_true(values[0] == state.vectors[wants ? STORE_AVERAGES : STORE_PARAMETERS][0]);
            assert_true(checkpoint_load_parameters(file, &model, which[i], values, NULL, &error));
        }
    }
    struct model other;
    const struct config_model wider = {.layers = {5, 8, 3}, .layer_count = 3, .activation = ACTIVATION_TANH};
    model_layout(&other, &wider);
    assert_false(checkpoint_load_parameters(file, &other, CHECKPOINT_RAW, values, NULL, &error));
    assert_non_null(strstr(error.text, path));
    free(values);
}

static void tensors_are_read_in_part(void **unused)
{
    float values[10];
    kept(&(struct checkpoint_info){.global_step = 9});
    const struct safetensors_tensor *weights = safetensors_find(checkpoint_file_tensors(file), model.variables[0].name);
    assert_non_null(weights);
    assert_true(checkpoint_read_tensor(file, weights, 5, 4, values, &error)); /* rows of 7: the end of one, and more */
    const float *parameters = state.vectors[STORE_PARAMETERS] + model.variables[0].offset;
    assert_true(values[0] == parameters[5] && values[1] == parameters[6]);
    assert_true(values[2] == parameters[model.variables[0].stride]);
    assert_true(values[3] == parameters[model.variables[0].stride + 1]);
}

/* A model with more or fewer layers, or trained otherwise, loses what it can't use, and reports it. */
static void what_is_lost_is_said(void **unused)
{
    static const struct {
        struct config_model there;
        const char *says;
    } cases[] = {
        {{.layers = {5, 7, 3}, .layer_count = 3, .activation = ACTIVATION_TANH}, ""},
        {{.layers = {5, 7, 3}, .layer_count = 3, .activation = ACTIVATION_RELU},
         "what was learnt with activation tanh, which would be relu"},
        {{.layers = {5, 7}, .layer_count = 2, .activation = ACTIVATION_TANH}, "for which there is no layer"},
        {{.layers = {5, 7, 3, 2}, .layer_count = 4, .activation = ACTIVATION_TANH},
         "the order of layers: 2 of weights there and 3 here"},
    };
    kept(&(struct checkpoint_info){.global_step = 9});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model other;
        struct checkpoint_state read;
        char lost[512] = "something";
        model_layout(&other, &cases[i].there);
        checkpoint_state_create(&read, &other, &train);
        if (!checkpoint_load_fitting(file, &read, lost, sizeof lost, &error)) {
            fail_msg("%s", error.text);
        }
        if (cases[i].says[0] == '\0' ? lost[0] != '\0' : !strstr(lost, cases[i].says)) {
            fail_msg("\"%s\" does not say \"%s\"", lost, cases[i].says);
        }
        assert_true(read.vectors[STORE_PARAMETERS][1] == state.vectors[STORE_PARAMETERS][1]);
        checkpoint_state_destroy(&read);
    }
}

/* Nothing is written that could not be read. */
static void names_may_be_too_many(void **unused)
{
    char *names = malloc(SAFETENSORS_MAX_HEADER + 1);
    memset(names, 'n', SAFETENSORS_MAX_HEADER);
    names[SAFETENSORS_MAX_HEADER] = '\0';
    kept(&(struct checkpoint_info){.kept_rows = "all", .global_step = 5});
    assert_false(
        checkpoint_write(path, &state, &(struct checkpoint_info){.kept_rows = names, .global_step = 6}, &error));
    assert_non_null(
        strstr(error.text, ": the names of columns and categories take 16 MiB, more than a checkpoint holds"));
    checkpoint_close(file);
    assert_int_equal(checkpoint_open(&file, path, &error), CHECKPOINT_OPENED);
    assert_int_equal(checkpoint_file_info(file)->global_step, 5); /* the one before stays */
    free(names);
}

static void a_path_may_be_too_long(void **unused)
{
    static char name[CHECKPOINT_MAX_PATH + 10];
    struct checkpoint_file *none = file;
    memset(name, 'n', sizeof name - 1);
    assert_int_equal(checkpoint_open(&none, name, &error), CHECKPOINT_UNREADABLE);
    assert_null(none);
    checkpoint_close(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, enter, leave)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(scores_are_of_the_metric_that_was_chosen),
        CASE(the_loss_is_kept_with_what_belongs_to_it),
        CASE(what_is_not_said_is_not_there),
        CASE(numbers_are_kept_to_their_ends),
        CASE(a_model_is_known_by_its_layers_and_activation),
        CASE(a_large_one_is_whole),
        CASE(weights_are_raw_or_averaged_as_wanted),
        CASE(tensors_are_read_in_part),
        CASE(what_is_lost_is_said),
        CASE(names_may_be_too_many),
        CASE(a_path_may_be_too_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
