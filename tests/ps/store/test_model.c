/* Layout and initial values: names, strides, padding, distributions, and that only (seed, variable, element) matter. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ps/store/model.h"
#include "tests/check.h"
#include "tests/random.h"

static struct test_random test_seed;

static struct config_model mlp(int hidden)
{
    return (struct config_model){.layers = {784, hidden, 10},
                                 .layer_count = 3,
                                 .activation = ACTIVATION_RELU,
                                 .initializer = INITIALIZER_TRUNCATED_NORMAL,
                                 .init_stddev = 0.1,
                                 .init_bias = 0.1};
}

static float *initial(struct model *model, const struct config_model *config, int64_t seed)
{
    model_layout(model, config);
    float *values = malloc(model->float_count * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < model->float_count; i++) {
        values[i] = NAN;
    }
    model_initialise(model, config, seed, values);
    return values;
}

TEST(layout_names_and_strides)
{
    struct config_model config = mlp(500);
    struct model model;
    model_layout(&model, &config);
    assert_int_equal(model.layer_count, 2);
    assert_int_equal(model.variable_count, 4);
    assert_int_equal(model.parameter_count, 397510);
    const char *names[] = {"layer0/weights", "layer0/biases", "layer1/weights", "layer1/biases"};
    size_t offset = 0;
    for (int i = 0; i < 4; i++) {
        const struct variable *variable = &model.variables[i];
        assert_string_equal(variable->name, names[i]);
        assert_int_equal(variable->offset, offset);
        assert_true(variable->stride >= variable->cols);
        assert_int_equal(variable->stride % MODEL_ROW_ALIGN, 0);
        assert_int_equal(variable->stride / MODEL_ROW_ALIGN % 2, 1);
        assert_int_equal(variable->is_weights, i % 2 == 0);
        offset += (size_t)variable->rows * (size_t)variable->stride;
    }
    assert_int_equal(model.variables[0].rows, 784);
    assert_int_equal(model.variables[0].cols, 500);
    assert_int_equal(model.variables[0].stride, 528);
    assert_int_equal(model.variables[3].rows, 1);
    assert_int_equal(model.float_count, offset);
}

/* Every element has its own place, rows of a panel follow one another by strides, and nothing overlaps. */
TEST(panels_hold_every_element_once)
{
    for (int round = 0; round < 200; round++) {
        int lanes = 1 << test_random_below(&test_seed, 5), width = 1 + test_random_below(&test_seed, 300);
        struct config_model config = mlp(width);
        config.layers[0] = 1 + test_random_below(&test_seed, 20);
        struct model model;
        model_layout(&model, &config);
        int most = (width + lanes - 1) / lanes;
        model_set_panels(&model, 0, 1 + test_random_below(&test_seed, most), lanes);
        const struct variable *weights = &model.variables[0];
        unsigned char *taken = calloc(model.float_count, 1);
        assert_non_null(taken);
        for (int i = 0; i < model.variable_count; i++) {
            const struct variable *variable = &model.variables[i];
            for (int row = 0; row < variable->rows; row++) {
                for (int col = 0; col < variable->cols; col++) {
                    size_t at = variable_at(variable, row, col);
                    assert_in_range(at, variable->offset, model.float_count - 1);
                    assert_int_equal(taken[at]++, 0);
                }
            }
        }
        int widest = 0;
        for (int panel = 0; panel < weights->panels; panel++) {
            int first = variable_panel_col(weights, panel), end = variable_panel_col(weights, panel + 1);
            widest = end - first > widest ? end - first : widest;
            assert_in_range(end - first, 1, weights->stride);
            assert_int_equal(variable_at(weights, 0, first) % MODEL_ROW_ALIGN, 0);
            for (int col = first; col < end && col < width; col++) {
                assert_int_equal(variable_panel(weights, col), panel);
                assert_int_equal(variable_at(weights, weights->rows - 1, col),
                                 variable_at(weights, 0, first) +
                                     (size_t)(weights->rows - 1) * (size_t)weights->stride + (size_t)(col - first));
            }
        }
        assert_in_range(weights->stride - widest, 0, MODEL_ROW_ALIGN - 1); /* no more than alignment takes */
        size_t floats = 0;
        for (int i = 0; i < model.variable_count; i++) {
            const struct variable *variable = &model.variables[i];
            floats += (size_t)variable->panels * (size_t)variable->rows * (size_t)variable->stride;
        }
        assert_int_equal(model.float_count, floats);
        free(taken);
    }
}

TEST(padding_is_zero_and_biases_are_init_bias)
{
    struct config_model config = mlp(37);
    struct model model;
    float *values = initial(&model, &config, 1);
    for (int v = 0; v < model.variable_count; v++) {
        const struct variable *variable = &model.variables[v];
        for (int row = 0; row < variable->rows; row++) {
            const float *at = values + variable->offset + (size_t)row * (size_t)variable->stride;
            for (int col = 0; col < variable->stride; col++) {
                if (col >= variable->cols) {
                    assert_true(at[col] == 0.0f);
                } else if (variable->is_weights) {
                    assert_true(at[col] != 0.0f);
                } else {
                    assert_true(at[col] == 0.1f);
                }
            }
        }
    }
    free(values);
}

/* Element e of a variable has the same value whatever the width of the matrix. */
TEST(values_do_not_depend_on_the_layout)
{
    struct config_model wide = mlp(500), narrow = mlp(7);
    struct model model_wide, model_narrow;
    float *a = initial(&model_wide, &wide, 42);
    float *b = initial(&model_narrow, &narrow, 42);
    for (int e = 0; e < 784 * 7; e++) {
        float from_wide = a[e / 500 * model_wide.variables[0].stride + e % 500];
        float from_narrow = b[e / 7 * model_narrow.variables[0].stride + e % 7];
        assert_true(from_wide == from_narrow);
    }
    float *c = initial(&model_narrow, &narrow, 43);
    assert_true(memcmp(b, c, sizeof *b) != 0);
    free(a);
    free(b);
    free(c);
}

struct moments {
    double mean, stddev, kurtosis, largest;
};

static struct moments weights_moments(const struct config_model *config)
{
    struct model model;
    float *values = initial(&model, config, 7);
    const struct variable *w = &model.variables[0];
    double n = (double)w->rows * w->cols, sum = 0, sum2 = 0, sum4 = 0;
    struct moments moments = {0};
    for (int row = 0; row < w->rows; row++) {
        for (int col = 0; col < w->cols; col++) {
            double x = (double)values[(size_t)row * (size_t)w->stride + (size_t)col];
            sum += x;
            sum2 += x * x;
            sum4 += x * x * x * x;
            moments.largest = fmax(moments.largest, fabs(x));
        }
    }
    moments.mean = sum / n;
    moments.stddev = sqrt(sum2 / n);
    moments.kurtosis = sum4 / n / (sum2 / n * sum2 / n);
    free(values);
    return moments;
}

/* Expected values in closed form; the bounds are five standard errors of 392,000 draws. */
TEST(distributions_are_tensorflows)
{
    struct config_model config = mlp(500);
    struct moments m = weights_moments(&config);
    assert_true(fabs(m.mean) < 5 * 0.088 / sqrt(392000.0));
    assert_true(fabs(m.stddev / (0.1 * 0.87962566103423978) - 1) < 0.005);
    assert_true(fabs(m.kurtosis - 2.3655) < 0.02); /* of a normal truncated at 2; a whole normal has 3 */
    assert_true(m.largest <= 0.2 && m.largest > 0.1999);

    config.initializer = INITIALIZER_HE;
    m = weights_moments(&config);
    assert_true(fabs(m.stddev / sqrt(2.0 / 784) - 1) < 0.005);
    assert_true(fabs(m.kurtosis - 2.3655) < 0.02);

    config.initializer = INITIALIZER_GLOROT;
    m = weights_moments(&config);
    double limit = sqrt(6.0 / (784 + 500));
    assert_true(m.largest <= limit && m.largest > 0.999 * limit);
    assert_true(fabs(m.stddev / (limit / sqrt(3.0)) - 1) < 0.005);
    assert_true(fabs(m.kurtosis - 1.8) < 0.02);

    config.initializer = INITIALIZER_ZEROS;
    assert_true(weights_moments(&config).largest == 0.0);
}

/*
 * The empirical distribution compared with the normal one, so that the two branches of the quantile meet where they
 * should.
 */
TEST(truncated_normal_follows_the_distribution_function)
{
    struct config_model config = mlp(500);
    config.init_stddev = 1.0;
    struct model model;
    float *values = initial(&model, &config, 11);
    const struct variable *w = &model.variables[0];
    enum { BINS = 40 };
    double counts[BINS] = {0};
    for (int row = 0; row < w->rows; row++) {
        for (int col = 0; col < w->cols; col++) {
            double x = (double)values[(size_t)row * (size_t)w->stride + (size_t)col];
            int bin = (int)((x + 2.0) * BINS / 4.0);
            counts[bin < BINS ? bin : BINS - 1]++;
        }
    }
    double chi2 = 0, total = erf(2 / sqrt(2.0));
    for (int bin = 0; bin < BINS; bin++) {
        double low = -2.0 + bin * 4.0 / BINS, high = low + 4.0 / BINS;
        double expected = 392000.0 * (erf(high / sqrt(2.0)) - erf(low / sqrt(2.0))) / 2 / total;
        chi2 += (counts[bin] - expected) * (counts[bin] - expected) / expected;
    }
    assert_true(chi2 < 76); /* 39 degrees of freedom: exceeded once in 3,000 seeds */
    free(values);
}

/* The widths that worker 0 sends a ps: any list of layers; only one with the config's hidden layers counts. */
TEST(layers_are_told_in_words)
{
    static const struct {
        const char *text;
        int layers; /* 0: refused */
    } told[] = {{"7,5,6,2", 4},
                {"1048576,5,6,1", 4},
                {"1048577,5,6,1", 0},
                {"7,5,6,65537", 0},
                {"7,6,5,2", 0},
                {"7,5,2", 0},
                {"7,5,6,2,2", 0},
                {"", 0},
                {"7,5,6,2,", 0},
                {"7,5,6,0", 0},
                {"7,5,6", 0},
                {"7,5,,2", 0},
                {"7,5,6,x", 0},
                {"7,5,6,-2", 0},
                {"7;5,6,2", 0},
                {"7,5,6,2 ", 0},
                {",,,", 0},
                {"7 5,6,2", 0},
                {"1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 0}};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
        struct config_model config = {.hidden = {5, 6}, .hidden_count = 2, .layers = {784, 10}, .layer_count = 2};
        const struct config_model before = config;
        char text[MODEL_UNITS_TEXT];
        struct error error;
        const bool taken = model_take_units(&config, told[i].text, &error);
        assert_int_equal(taken, told[i].layers > 0);
        if (!taken) {
            assert_memory_equal(&config, &before, sizeof config);
            continue;
        }
        assert_int_equal(config.layer_count, told[i].layers);
        model_units_text(&config, text);
        assert_string_equal(text, told[i].text);
    }
}

/* A rollout's config with hidden layers only keeps the inputs and outputs of the running model. */
TEST(hidden_layers_go_between_the_ends)
{
    const struct config_model now = {.layers = {7, 5, 2}, .layer_count = 3, .hidden = {5}, .hidden_count = 1};
    const struct config_model whole = {.layers = {784, 10}, .layer_count = 2, .hidden_count = CONFIG_AUTO};
    const struct config_model then = {.layers = {784, 10}, .layer_count = 2, .hidden = {9, 8}, .hidden_count = 2};
    char text[MODEL_UNITS_TEXT];
    struct config_model result = model_with_ends(&then, &now);
    model_units_text(&result, text);
    assert_string_equal(text, "7,9,8,2");
    result = model_with_ends(&whole, &now);
    model_units_text(&result, text);
    assert_string_equal(text, "784,10");
}

int main(void)
{
    test_seed = test_random_begin("test_model");
    return check_run(NULL, NULL);
}
