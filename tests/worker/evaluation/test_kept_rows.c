/* A checkpoint's kept rows: engines give its answers, whatever the network, and another model does not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "tests/check.h"
#include "tests/worker/network.h"
#include "worker/evaluation/kept_rows.h"

enum { ROWS = 6 };

struct scene {
    struct config config;
    struct model model;
    struct dataset dataset;
    struct examples rows;
    struct checkpoint_state state;
    struct engine *engine;
    char *text;
};

/* Numbers, and ones in some columns. */
static void make_rows(struct scene *scene, int numbers, int codes, struct test_random *random)
{
    const int inputs = scene->model.widths[0];
    const struct examples like = {.inputs = inputs, .numbers = numbers, .codes = codes};
    assert_true(examples_create(&scene->rows, &like, ROWS));
    scene->rows.count = ROWS;
    for (int i = 0; i < ROWS * numbers; i++) {
        scene->rows.values[i] = 3 * test_random_float(random);
    }
    for (int i = 0; i < ROWS * codes; i++) { /* column c has every codes-th position from c on */
        const int share = (inputs - numbers) / codes, first = i % codes * share;
        scene->rows.places[i] = test_random_below(random, 3) == 0 ? -1 : first + test_random_below(random, share);
    }
}

static void make_engine(struct scene *scene)
{
    const float *averages = scene->state.vectors[STORE_AVERAGES];
    const struct engine_options options = {
        .model = &scene->model, .config = &scene->config, .like = &scene->rows, .only_forward = true};
    struct error error = {""};
    if (!cpu_engine_create(&scene->engine, &options, &error) ||
        !scene->engine->table->write(scene->engine, STORE_PARAMETERS, 0, scene->model.float_count,
                                     averages ? averages : scene->state.vectors[STORE_PARAMETERS], &error)) {
        fail_msg("%s", error.text);
    }
}

/* codes 0, numbers 0: images. */
static void begin(struct scene *scene, const int *layers, int layer_count, int numbers, int codes,
                  struct test_random *random)
{
    memset(scene, 0, sizeof *scene);
    test_config(&scene->config, &scene->model, layers, layer_count, 1);
    scene->config.output.kept_rows = 4;
    scene->config.train.ema_decay = test_random_below(random, 2) ? 0.9 : 0;
    scene->config.train.cpu_kernels = test_random_below(random, 2) ? CPU_KERNELS_AUTO : CPU_KERNELS_REFERENCE;
    scene->model.activation = (enum activation)test_random_below(random, ACTIVATION_IDENTITY + 1);
    checkpoint_state_create(&scene->state, &scene->model, &scene->config.train);
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (scene->state.vectors[v]) {
            model_initialise(&scene->model, &scene->config.model, test_random_below(random, 1 << 20),
                             scene->state.vectors[v]);
        }
    }
    if (numbers + codes > 0) {
        make_rows(scene, numbers, codes, random);
    } else {
        test_examples(&scene->rows, &scene->model, ROWS, 40, random);
    }
    scene->dataset.validation = scene->rows;
    scene->config.train.ema_decay = 0; /* for the engine, as when serving */
    make_engine(scene);
    scene->text = kept_rows_write(&scene->config, &scene->dataset, NULL, &scene->state);
}

static void end(struct scene *scene)
{
    scene->engine->table->destroy(scene->engine);
    checkpoint_state_destroy(&scene->state);
    examples_free(&scene->rows);
    free(scene->text);
}

static bool check(const struct scene *scene, const char *text, int *count, struct error *error)
{
    return kept_rows_check(text, &scene->model, &scene->rows, PRECISION_FLOAT32, scene->engine, count, error);
}

TEST(engines_answer_as_it_says)
{
    static const int widths[] = {1, 2, 10, 17, 100};
    struct test_random random = test_random_begin("engines_answer_as_it_says");
    for (int round = 0; round < 40; round++) {
        const int numbers = test_random_below(&random, 3) * 7, codes = test_random_below(&random, 3);
        int layers[4] = {numbers + codes > 0 ? numbers + 11 * codes : 1 + test_random_below(&random, 800)};
        const int count = 2 + test_random_below(&random, 3);
        for (int i = 1; i < count; i++) {
            layers[i] = widths[test_random_below(&random, 5)];
        }
        struct scene scene;
        struct error error = {""};
        int checked = 0;
        begin(&scene, layers, count, numbers, codes, &random);
        assert_non_null(scene.text);
        if (!check(&scene, scene.text, &checked, &error)) {
            fail_msg("%s", error.text);
        }
        assert_int_equal(checked, 4);
        end(&scene);
    }
}

TEST(another_model_does_not)
{
    struct test_random random = test_random_begin("another_model_does_not");
    struct scene scene;
    struct error error = {""};
    int count = -1;
    begin(&scene, (const int[]){20, 8, 3}, 3, 0, 0, &random);
    float bias = 5;
    assert_true(scene.engine->table->write(scene.engine, STORE_PARAMETERS, scene.model.variables[3].offset + 1, 1,
                                           &bias, &error));
    assert_false(check(&scene, scene.text, &count, &error));
    assert_non_null(strstr(error.text, "stored row 0 gives"));
    assert_non_null(strstr(error.text, "for output 1"));
    assert_int_equal(count, 0);
    bias = NAN;
    assert_true(
        scene.engine->table->write(scene.engine, STORE_PARAMETERS, scene.model.variables[3].offset, 1, &bias, &error));
    assert_false(check(&scene, scene.text, &count, &error));
    assert_non_null(strstr(error.text, "gives nan for output 0"));
    end(&scene);
}

/* Biases subtract what the first row sums to. */
static void cancel(struct scene *scene)
{
    const struct variable *weights = &scene->model.variables[0], *biases = &scene->model.variables[1];
    struct error error;
    for (int v = 0; v < STORE_VECTORS; v++) {
        float *values = scene->state.vectors[v];
        for (int j = 0; values && j < biases->cols; j++) {
            double sum = 0;
            for (int i = 0; i < weights->rows; i++) {
                sum +=
                    (double)scene->rows.values[i] * (double)values[weights->offset + (size_t)(i * weights->stride + j)];
            }
            values[biases->offset + (size_t)j] = (float)-sum;
        }
    }
    const float *averages = scene->state.vectors[STORE_AVERAGES];
    assert_true(scene->engine->table->write(scene->engine, STORE_PARAMETERS, 0, scene->model.float_count,
                                            averages ? averages : scene->state.vectors[STORE_PARAMETERS], &error));
}

/* Sums that nearly cancel: float32 itself is far off, so an engine can't be held to more. */
TEST(digits_that_float32_has_not_are_not_asked_for)
{
    struct test_random random = test_random_begin("digits_that_float32_has_not_are_not_asked_for");
    for (int round = 0; round < 20; round++) {
        struct scene scene;
        struct error error = {""};
        int count;
        begin(&scene, (const int[]){300, 2}, 2, 300, 0, &random);
        for (int i = 0; i < ROWS * 300; i++) {
            scene.rows.values[i] = 1e6F + test_random_float(&random);
        }
        cancel(&scene);
        free(scene.text);
        scene.text = kept_rows_write(&scene.config, &scene.dataset, NULL, &scene.state);
        if (!check(&scene, scene.text, &count, &error)) {
            fail_msg("%s", error.text);
        }
        end(&scene);
    }
}

TEST(some_keep_none)
{
    struct test_random random = test_random_begin("some_keep_none");
    struct scene scene;
    struct error error = {""};
    int count = -1;
    begin(&scene, (const int[]){20, 3}, 2, 0, 0, &random);
    scene.config.data.data_sharding = SHARDING_OWN; /* own rows never leave the machine */
    assert_null(kept_rows_write(&scene.config, &scene.dataset, NULL, &scene.state));
    scene.config.data.data_sharding = SHARDING_SHUFFLED;
    scene.config.output.kept_rows = 0;
    assert_null(kept_rows_write(&scene.config, &scene.dataset, NULL, &scene.state));
    scene.config.output.kept_rows = 4;
    scene.dataset.validation.count = 0;
    assert_null(kept_rows_write(&scene.config, &scene.dataset, NULL, &scene.state));
    char *of_test = kept_rows_write(&scene.config, &scene.dataset, &scene.rows, &scene.state);
    assert_string_equal(of_test, scene.text);
    free(of_test);
    for (int v = 0; v < STORE_VECTORS; v++) {
        if (scene.state.vectors[v]) {
            scene.state.vectors[v][0] = NAN; /* of the first pixel, which may be black */
            scene.state.vectors[v][scene.model.variables[1].offset] = NAN;
        }
    }
    assert_null(kept_rows_write(&scene.config, &scene.dataset, &scene.rows, &scene.state));
    assert_true(check(&scene, NULL, &count, &error));
    assert_int_equal(count, 0);
    end(&scene);
}

/* A file's contents count as far as they fit the model. */
TEST(faulty_texts_are_refused)
{
    static const char *const pictures[] = {
        "",
        "[",
        "{}",
        "[]",
        "[-1]",
        "[\"1\"]",
        "[1e999]",
        "[0,1]",
        "[0,[]]",
        "[0,[[1,2,3],[],[1,2]]]",
        "[0,[[1,2],[],[1]]]",
        "[0,[[1,2],[2],[1,2]]]",
        "[0,[[1,256],[],[1,2]]]",
        "[0,[[1,-1],[],[1,2]]]",
        "[0,[[1,null],[],[1,2]]]",
        "[0,[[1,2],[],[1,2]],7]",
    };
    static const char *const rows[] = {
        "[0,[[1],[1,1],[1,2]]]", "[0,[[1],[0],[1,2]]]",     "[0,[[1],[5],[1,2]]]",
        "[0,[[1],[1.5],[1,2]]]", "[0,[[1],[1,3,4],[1,2]]]", "[0,[[1,2],[],[1,2]]]",
    };
    struct test_random random = test_random_begin("faulty_texts_are_refused");
    struct scene scene;
    struct error error = {""};
    int count;
    begin(&scene, (const int[]){2, 2}, 2, 0, 0, &random);
    for (size_t i = 0; i < sizeof pictures / sizeof pictures[0]; i++) {
        assert_false(check(&scene, pictures[i], &count, &error));
        assert_non_null(strstr(error.text, "kept_rows"));
    }
    end(&scene);
    begin(&scene, (const int[]){5, 2}, 2, 1, 2, &random);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_false(check(&scene, rows[i], &count, &error));
        assert_non_null(strstr(error.text, "kept_rows"));
    }
    assert_true(check(&scene, "[1000,[[1],[1,4],[1,2]]]", &count, &error));
    assert_int_equal(count, 1);
    end(&scene);
}

int main(void)
{
    return check_run(NULL, NULL);
}
