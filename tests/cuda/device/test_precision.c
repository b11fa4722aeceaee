/*
 * tf32 and bfloat16 compared with their definition (cuda/kernels/dense.cuh), restated here in double precision:
 * operands of matrix products are rounded, and nothing else.
 */
#include "tests/check.h"
#include "tests/cuda/device/fixture.h"

static const enum precision formats[] = {PRECISION_TF32, PRECISION_BFLOAT16};

/* By arithmetic, not by bits, because the kernels' bit tricks are under test. Ties go away from zero, or to even. */
static double rounded(enum precision precision, double value)
{
    int exponent;
    int bits = precision == PRECISION_TF32 ? 11 : precision == PRECISION_BFLOAT16 ? 8 : 24;
    double scaled = ldexp(frexp(value, &exponent), bits);
    double whole = precision == PRECISION_TF32 ? round(scaled) : nearbyint(scaled);
    return ldexp(whole, exponent - bits);
}

/* --- the reference --- */

struct pass {
    const struct fixture *fixture;
    const float *parameters;
    int count;
    double
        *values[CONFIG_MAX_LAYERS]; /* [count, width]: the input, then each layer's outputs; the last are the logits */
    double *deltas[CONFIG_MAX_LAYERS]; /* likewise, from 1 on */
};

static double weight_of(const struct pass *pass, int layer, int i, int j)
{
    const struct variable *weights = &pass->fixture->model.variables[2 * layer];
    return pass->parameters[weights->offset + (size_t)i * (size_t)weights->stride + (size_t)j];
}

static double activated(enum activation activation, double z)
{
    return activation == ACTIVATION_RELU      ? fmax(z, 0)
           : activation == ACTIVATION_SIGMOID ? 1 / (1 + exp(-z))
           : activation == ACTIVATION_TANH    ? tanh(z)
                                              : z;
}

static double derived(enum activation activation, double a)
{
    return activation == ACTIVATION_RELU      ? a > 0
           : activation == ACTIVATION_SIGMOID ? a * (1 - a)
           : activation == ACTIVATION_TANH    ? 1 - a * a
                                              : 1;
}

static void forward(struct pass *pass, enum precision precision, const uint8_t *images)
{
    const struct model *model = &pass->fixture->model;
    for (int l = 0; l <= model->layer_count; l++) {
        int width = model->widths[l];
        pass->values[l] = calloc((size_t)pass->count * (size_t)width, sizeof(double));
        pass->deltas[l] = calloc((size_t)pass->count * (size_t)width, sizeof(double));
        for (int e = 0; e < pass->count * width; e++) {
            if (l == 0) {
                pass->values[0][e] = (double)((float)images[e] * (1.0f / 255.0f));
                continue;
            }
            int below = model->widths[l - 1], m = e / width, n = e % width;
            double z = pass->parameters[model->variables[2 * l - 1].offset + (size_t)n];
            for (int i = 0; i < below; i++) {
                z += rounded(precision, pass->values[l - 1][m * below + i]) *
                     rounded(precision, weight_of(pass, l - 1, i, n));
            }
            pass->values[l][e] = l < model->layer_count ? activated(model->activation, z) : z;
        }
    }
}

static void backward(struct pass *pass, enum precision precision, const int32_t *labels)
{
    const struct model *model = &pass->fixture->model;
    int last = model->layer_count, classes = model->widths[last];
    for (int m = 0; m < pass->count; m++) {
        const double *logits = pass->values[last] + m * classes;
        double sum = 0;
        for (int n = 0; n < classes; n++) {
            sum += exp(logits[n]);
        }
        for (int n = 0; n < classes; n++) {
            pass->deltas[last][m * classes + n] = (exp(logits[n]) / sum - (n == labels[m])) / pass->count;
        }
    }
    for (int l = last - 1; l > 0; l--) {
        int width = model->widths[l], above = model->widths[l + 1];
        for (int e = 0; e < pass->count * width; e++) {
            double sum = 0;
            for (int n = 0; n < above; n++) {
                sum += rounded(precision, pass->deltas[l + 1][e / width * above + n]) *
                       rounded(precision, weight_of(pass, l, e % width, n));
            }
            pass->deltas[l][e] = sum * derived(model->activation, pass->values[l][e]);
        }
    }
}

static void gradient(const struct pass *pass, enum precision precision, float *into)
{
    const struct model *model = &pass->fixture->model;
    for (int l = 0; l < model->layer_count; l++) {
        const struct variable *weights = &model->variables[2 * l], *biases = &model->variables[2 * l + 1];
        for (int i = 0; i <= weights->rows; i++) {
            for (int n = 0; n < weights->cols; n++) {
                double sum = 0;
                for (int m = 0; m < pass->count; m++) {
                    double input = i < weights->rows ? pass->values[l][m * weights->rows + i] : 1;
                    sum += rounded(precision, input) * rounded(precision, pass->deltas[l + 1][m * weights->cols + n]);
                }
                size_t at = i < weights->rows ? weights->offset + (size_t)i * (size_t)weights->stride : biases->offset;
                into[at + (size_t)n] = (float)sum;
            }
        }
    }
}

static void end_pass(struct pass *pass)
{
    for (int l = 0; l <= pass->fixture->model.layer_count; l++) {
        free(pass->values[l]);
        free(pass->deltas[l]);
    }
}

static double distance(const float *a, const float *b, size_t count)
{
    double most = 0;
    for (size_t i = 0; i < count; i++) {
        most = fmax(most, fabs((double)a[i] - (double)b[i]));
    }
    return most / (largest(b, count) + 1e-12);
}

/* --- tests --- */

/* A real GPU may lack tensor cores for these formats. */
static void skip_without_tensor_cores(void)
{
    struct driver *driver;
    struct driver_device device;
    struct error error = {{0}};
    assert_true(driver_load(&driver, library(), &error));
    assert_true(driver_device(driver, 0, &device, &error));
    driver_unload(driver);
    if (device.major < 8) {
        skip();
    }
}

/* Inputs and weights are exact on both sides: only the order of sums may differ. */
TEST(test_logits_are_of_rounded_operands)
{
    skip_without_tensor_cores();
    for (int i = 0; i < 8; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        int layers[] = {1 + below(130), 1 + below(70)};
        setup(&fixture, layers, 2, 70, 70);
        fixture.config.train.precision = formats[i % 2];
        open_engines(&fixture);
        struct pass pass = {.fixture = &fixture, .parameters = fixture.parameters, .count = 70};
        size_t floats = (size_t)pass.count * (size_t)layers[1];
        float *got = calloc(floats, sizeof *got), *wanted = calloc(floats, sizeof *wanted);
        forward(&pass, formats[i % 2], fixture.examples.images);
        for (size_t e = 0; e < floats; e++) {
            wanted[e] = (float)pass.values[1][e];
        }
        const struct device_examples examples = arrays_of(&fixture.examples);
        assert_true(device_forward(fixture.device, false, &examples, got, &error));
        assert_close("logits", got, wanted, floats, is_fake() ? 2e-6 : 1e-5); /* tensor cores truncate what they add */
        end_pass(&pass);
        free(got);
        free(wanted);
        teardown(&fixture);
    }
}

/* The distance of a gradient from those of two references: with operands rounded as requested, and not at all. */
static void check_gradient_of(enum precision precision, const int *layers, int layer_count, int count)
{
    struct fixture fixture;
    struct error error = {{0}};
    struct device_outcome outcome;
    setup(&fixture, layers, layer_count, count, count);
    set_activation(&fixture, (enum activation)below(4));
    set_number("FAKE_CUDA_SEED", below(2) ? 1 + below(1000) : 0);
    fixture.config.train.precision = precision;
    open_engines(&fixture);
    size_t floats = fixture.model.float_count;
    float *got = calloc(floats, sizeof *got), *wanted = calloc(floats, sizeof *wanted);
    float *plain = calloc(floats, sizeof *plain);
    const struct examples *examples = &fixture.examples;
    const struct device_batch batch = {.examples = arrays_of(examples)};
    if (!device_step(fixture.device, &batch, got, NULL, &outcome, &error)) {
        fail_msg("%s", error.text);
    }
    for (int pass_number = 0; pass_number < 2; pass_number++) {
        enum precision format = pass_number == 0 ? precision : PRECISION_FLOAT32;
        struct pass pass = {.fixture = &fixture, .parameters = fixture.parameters, .count = count};
        forward(&pass, format, examples->images);
        backward(&pass, format, examples->labels);
        gradient(&pass, format, pass_number == 0 ? wanted : plain);
        end_pass(&pass);
    }
    /*
     * An activation whose sum was a tie may be rounded the other way, by a whole unit in the last place: as much of the
     * gradient of one image, less than half of it among many.
     */
    double unit = precision == PRECISION_TF32 ? 0x1p-10 : 0x1p-7;
    double off = distance(got, wanted, floats);
    if (!(off < (count > 2 ? unit / 2 : unit)) || distance(plain, wanted, floats) == 0) {
        fail_msg("%d layers, batch %d: gradient off by %g, %g were it not rounded", layer_count - 1, count, off,
                 distance(plain, wanted, floats));
    }
    free(got);
    free(wanted);
    free(plain);
    teardown(&fixture);
}

/* A batch whose gradient is computed in parts: a step of plain gradient descent over all images tells it. */
TEST(test_parts_of_a_batch)
{
    skip_without_tensor_cores();
    enum { COUNT = 300 };
    for (int i = 0; i < 2; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        struct device_outcome outcome;
        setup(&fixture, (const int[]){65, 63, 17}, 3, COUNT, COUNT);
        fixture.config.train.precision = formats[i];
        open_engines(&fixture);
        assert_true(!is_fake() || fixture.device->network.parts == 2);
        size_t floats = fixture.model.float_count;
        float *got = calloc(floats, sizeof *got), *wanted = calloc(floats, sizeof *wanted);
        assert_true(train_device(&fixture, 0, 1, &outcome, &error));
        assert_true(device_read(fixture.device, STORE_PARAMETERS, 0, floats, got, &error));
        for (size_t e = 0; e < floats; e++) {
            got[e] = (fixture.parameters[e] - got[e]) / (float)fixture.config.train.learning_rate;
        }
        struct pass pass = {.fixture = &fixture, .parameters = fixture.parameters, .count = COUNT};
        forward(&pass, formats[i], fixture.examples.images);
        backward(&pass, formats[i], fixture.examples.labels);
        gradient(&pass, formats[i], wanted);
        end_pass(&pass);
        double off = distance(got, wanted, floats);
        if (!(off < (formats[i] == PRECISION_TF32 ? 0x1p-11 : 0x1p-8))) {
            fail_msg("gradient off by %g", off);
        }
        free(got);
        free(wanted);
        teardown(&fixture);
    }
}

TEST(test_gradients_are_of_rounded_operands)
{
    skip_without_tensor_cores();
    static const int counts[] = {1, 2, 15, 17, 63, 64, 65, 129};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        check_gradient_of(formats[i % 2], (const int[]){65, 63, 17}, 3, counts[i]);
        check_gradient_of(formats[(i + 1) % 2], (const int[]){31, 1 + below(70), 1 + below(70), 5}, 4, counts[i]);
    }
}

/*
 * Training matches float32 but for the rounding; and it does differ. Always the same two runs, because no bound on how
 * far rounding drives them apart in 200 steps holds for all.
 */
TEST(test_training_follows_float32)
{
    test_seed = (struct test_random){1};
    skip_without_tensor_cores();
    for (int i = 0; i < 2; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        struct device_outcome got;
        struct train_result wanted;
        const char *name = i == 0 ? "tf32" : "bfloat16";
        setup(&fixture, (const int[]){100, 24, 10}, 3, 20, 115);
        fixture.config.train.optimizer = OPTIMIZER_MOMENTUM;
        fixture.config.train.learning_rate = 0.02;
        fixture.config.train.dropout = 0.1;
        fixture.config.train.ema_decay = 0.9;
        fixture.config.train.precision = formats[i];
        set_number("FAKE_CUDA_SEED", 0);
        open_engines(&fixture);
        assert_non_null(strstr(device_describe(fixture.device), name));
        assert_non_null(strstr(device_describe(fixture.device), "for its precision"));
        assert_int_equal(device_precision(fixture.device), formats[i]);
        double off = 0;
        for (int step = 0; step < 200; step += 50) {
            if (!train_device(&fixture, step, 50, &got, &error)) {
                fail_msg("%s", error.text);
            }
            assert_true(fixture.cpu->table->train(fixture.cpu, 50, &wanted, &error));
            off = fmax(off, fabs(got.loss_sum - wanted.loss_sum) / wanted.loss_sum);
        }
        if (!(off < (i == 0 ? 2e-3 : 2e-2)) || !(off > 1e-7)) {
            fail_msg("%s: the loss is off by %g", name, off);
        }
        assert_vectors_close(&fixture, i == 0 ? 5e-3 : 5e-2);
        teardown(&fixture);
    }
}

TEST(test_devices_without_tensor_cores)
{
    if (!is_fake()) {
        return;
    }
    set_number("FAKE_CUDA_CAPABILITY", 75);
    for (int i = 0; i < 2; i++) {
        struct fixture fixture;
        struct error error = {{0}};
        setup(&fixture, (const int[]){20, 9, 4}, 3, 8, 40);
        fixture.config.train.precision = formats[i];
        struct device_shape shape = shape_of(&fixture);
        assert_true(driver_load(&fixture.driver, library(), &error));
        assert_false(device_open(&fixture.device, fixture.driver, 0, &shape, &error));
        assert_non_null(strstr(error.text, "has compute capability 7.5, and precision"));
        assert_non_null(strstr(error.text, "--precision=float32"));
        driver_unload(fixture.driver);
        fixture.config.train.allow_soft_placement = true;
        open_engines(&fixture);
        assert_int_equal(device_precision(fixture.device), PRECISION_FLOAT32);
        assert_non_null(strstr(device_describe(fixture.device), "float32"));
        train_both(&fixture, 3, 2e-4);
        teardown(&fixture);
    }
    unsetenv("FAKE_CUDA_CAPABILITY");
}

int main(void)
{
    test_seed = test_random_begin("test_precision");
    set_number("FAKE_CUDA_MULTIPROCESSORS", 4);
    return check_run(NULL, NULL);
}
