/*
 * Steps per second of the CPU engine alone, its forward passes, and this CPU's peak of fused multiply-adds to compare
 * with.
 *
 *     engine_bench peak                       GFLOP/s of one core, for each instruction set
 *     engine_bench train [KEY=VALUE ...]      steps/s
 *     engine_bench forward [KEY=VALUE ...]    rows/s, a batch at a time
 *
 * Keys: data (folder with MNIST's gzipped training set; without it random images), layers, batch, threads, kernels
 * (reference, avx2, avx512), optimizer, lr, l2, ema, micro, density (of random images, 0..1), seconds, window (steps at
 * a time).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zlib.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/memory.h"
#include "ps/store/optimizer.h"
#include "tests/bench/fma_peak.h"
#include "worker/engine.h"

enum { IMAGES = 60000, WINDOWS = 100000 };

struct settings {
    const char *data;
    double density, seconds;
    int64_t window; /* steps per call of train */
    struct config config;
};

static void fail(const char *what)
{
    fprintf(stderr, "engine_bench: %s\n", what);
    exit(1);
}

static int find(const char *value, const char *const *names, int count)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(value, names[i]) == 0) {
            return i;
        }
    }
    fail(value);
    return 0;
}

static void set_layers(struct config_model *model, const char *value)
{
    model->layer_count = 0;
    for (char *end; *value != '\0'; value = *end == ',' ? end + 1 : end) {
        model->layers[model->layer_count++] = (int)strtol(value, &end, 10);
    }
}

static void set(struct settings *settings, const char *key, const char *value)
{
    static const char *const kernels[] = {"auto", "reference", "avx2", "avx512"};
    static const char *const optimizers[] = {"sgd", "momentum", "adagrad", "adadelta", "adam"};
    struct config_train *train = &settings->config.train;
    if (strcmp(key, "data") == 0) {
        settings->data = value;
    } else if (strcmp(key, "layers") == 0) {
        set_layers(&settings->config.model, value);
    } else if (strcmp(key, "batch") == 0) {
        train->batch_size = atoi(value);
    } else if (strcmp(key, "threads") == 0) {
        train->num_threads = atoi(value);
    } else if (strcmp(key, "kernels") == 0) {
        train->cpu_kernels = (enum cpu_kernels)find(value, kernels, 4);
    } else if (strcmp(key, "optimizer") == 0) {
        train->optimizer = (enum optimizer_kind)find(value, optimizers, 5);
    } else if (strcmp(key, "lr") == 0) {
        train->learning_rate = atof(value);
    } else if (strcmp(key, "l2") == 0) {
        train->l2 = atof(value);
    } else if (strcmp(key, "ema") == 0) {
        train->ema_decay = atof(value);
    } else if (strcmp(key, "micro") == 0) {
        train->micro_batches = atoi(value);
    } else if (strcmp(key, "density") == 0) {
        settings->density = atof(value);
    } else if (strcmp(key, "window") == 0) {
        settings->window = atoi(value);
    } else if (strcmp(key, "seconds") == 0) {
        settings->seconds = atof(value);
    } else {
        fail(key);
    }
}

static void read_gz(const char *folder, const char *name, size_t skip, void *bytes, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile file = gzopen(path, "rb");
    unsigned char header[16];
    if (!file || gzread(file, header, (unsigned)skip) != (int)skip ||
        gzread(file, bytes, (unsigned)size) != (int)size) {
        fail(path);
    }
    gzclose(file);
}

static void fill_examples(struct examples *examples, const struct settings *settings)
{
    const struct config_model *model = &settings->config.model;
    size_t pixels = (size_t)IMAGES * (size_t)model->layers[0];
    *examples = (struct examples){.images = memory_aligned(pixels),
                                  .labels = malloc(IMAGES * sizeof(int32_t)),
                                  .count = IMAGES,
                                  .height = 1,
                                  .width = model->layers[0],
                                  .classes = model->layers[model->layer_count - 1]};
    if (!examples->images || !examples->labels) {
        fail("no memory");
    }
    if (settings->data) {
        static uint8_t labels[IMAGES];
        read_gz(settings->data, "train-images-idx3-ubyte.gz", 16, examples->images, pixels);
        read_gz(settings->data, "train-labels-idx1-ubyte.gz", 8, labels, IMAGES);
        for (int i = 0; i < IMAGES; i++) {
            examples->labels[i] = labels[i];
        }
        return;
    }
    uint32_t random = 1;
    for (size_t i = 0; i < pixels; i++) {
        random = random * 1664525u + 1013904223u;
        examples->images[i] =
            (uint8_t)((double)(random >> 8) * 0x1p-24 < settings->density ? 1 + (random >> 12) % 255 : 0);
    }
    for (int i = 0; i < IMAGES; i++) {
        random = random * 1664525u + 1013904223u;
        examples->labels[i] = (int32_t)((random >> 8) % (uint32_t)examples->classes);
    }
}

/* Seconds: with one thread its CPU time, so that other programs matter less; with several threads the elapsed time. */
static double now(const struct settings *settings)
{
    if (settings->config.train.num_threads != 1) {
        return clock_monotonic_s();
    }
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

/* Current GFLOP/s of one core, in the instructions that the kernels use. */
static double peak_now(const struct settings *settings)
{
    bool wide = settings->config.train.cpu_kernels != CPU_KERNELS_AVX2 && cpu_features_get()->avx512;
    const long rounds = 20000;
    double before = now(settings);
    volatile float kept = wide ? fma_peak_avx512(rounds) : fma_peak_avx2(rounds);
    (void)kept;
    return (double)rounds * FMA_PEAK_CHAINS * (wide ? 32 : 16) / (now(settings) - before) * 1e-9;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void bench_train(struct settings *settings)
{
    struct error error;
    struct examples examples;
    struct model model;
    struct engine *engine;
    struct config *config = &settings->config;
    fill_examples(&examples, settings);
    model_layout(&model, &config->model);
    struct engine_options options = {.model = &model, .config = config, .train = &examples};
    if (!cpu_engine_create(&engine, &options, &error)) {
        fail(error.text);
    }
    float *parameters = calloc(model.float_count, sizeof *parameters);
    if (!parameters) {
        fail("no memory");
    }
    model_initialise(&model, &config->model, 1, parameters);
    engine->table->write(engine, STORE_PARAMETERS, 0, model.float_count, parameters, &error);
    char text[256];
    engine->table->describe(engine, text, sizeof text);
    struct train_result result;
    engine->table->train(engine, 100, &result, &error);
    /* Short windows, each next to a measurement of the core's speed: virtual machines rarely run undisturbed. */
    static double rates[WINDOWS];
    static double ratios[WINDOWS];
    int windows = 0;
    double used = 0.0;
    while (used < settings->seconds && windows < WINDOWS && result.finite) {
        double peak = peak_now(settings);
        double before = now(settings);
        engine->table->train(engine, settings->window, &result, &error);
        double seconds = now(settings) - before;
        peak = (peak + peak_now(settings)) / 2;
        rates[windows] = (double)result.steps / seconds;
        ratios[windows] = rates[windows] / peak;
        used += seconds;
        windows++;
    }
    double steps = (double)windows * (double)settings->window;
    qsort(rates, (size_t)windows, sizeof *rates, compare);
    qsort(ratios, (size_t)windows, sizeof *ratios, compare);
    printf(
        "%.1f steps/s, median %.1f, best %.1f; per GFLOP/s of FMA peak: median %.2f, best %.2f; loss %.6f, right %.4f; "
        "%s\n",
        steps / used, rates[windows / 2], rates[windows - 1], ratios[windows / 2], ratios[windows - 1],
        result.loss_sum / (double)result.steps, (double)result.correct / (double)result.images, text);
    engine->table->destroy(engine);
    free(parameters);
    free(examples.images);
    free(examples.labels);
}

static void bench_forward(struct settings *settings)
{
    struct error error;
    struct examples examples;
    struct model model;
    struct engine *engine;
    const int batch = settings->config.train.batch_size;
    fill_examples(&examples, settings);
    model_layout(&model, &settings->config.model);
    struct engine_options options = {.model = &model, .config = &settings->config, .only_forward = true};
    settings->config.train.batch_size = 1; /* as when serving */
    float *parameters = calloc(model.float_count, sizeof *parameters);
    float *outputs = malloc((size_t)batch * (size_t)model.widths[model.layer_count] * sizeof *outputs);
    if (!parameters || !outputs || !cpu_engine_create(&engine, &options, &error)) {
        fail("no engine");
    }
    model_initialise(&model, &settings->config.model, 1, parameters);
    engine->table->write(engine, STORE_PARAMETERS, 0, model.float_count, parameters, &error);
    int64_t rows = 0;
    const double began = now(settings);
    while (now(settings) - began < settings->seconds) {
        const int first = (int)(rows % (IMAGES - batch));
        if (!engine->table->forward(engine, false, &examples, first, batch, outputs, &error)) {
            fail(error.text);
        }
        rows += batch;
    }
    printf("%.0f rows/s\n", (double)rows / (now(settings) - began));
    engine->table->destroy(engine);
    free(parameters);
    free(outputs);
    free(examples.images);
    free(examples.labels);
}

int main(int count, char **arguments)
{
    struct settings settings = {.density = 1.0, .seconds = 3.0, .window = 100};
    struct config *config = &settings.config;
    set_layers(&config->model, "784,500,10");
    config->model.initializer = INITIALIZER_TRUNCATED_NORMAL;
    config->model.init_stddev = 0.1;
    config->train = (struct config_train){.learning_rate = 0.01,
                                          .lr_decay = 1.0,
                                          .batch_size = 100,
                                          .micro_batches = 1,
                                          .seed = 1,
                                          .momentum = 0.9,
                                          .rho = 0.95,
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .epsilon = 1e-8,
                                          .adagrad_init = 0.1};
    for (int i = 2; i < count; i++) {
        char *value = strchr(arguments[i], '=');
        if (!value) {
            fail(arguments[i]);
        }
        *value = '\0';
        set(&settings, arguments[i], value + 1);
    }
    if (count > 1 && strcmp(arguments[1], "peak") == 0) {
        fma_peak_print(settings.seconds);
    } else if (count > 1 && strcmp(arguments[1], "train") == 0) {
        bench_train(&settings);
    } else if (count > 1 && strcmp(arguments[1], "forward") == 0) {
        bench_forward(&settings);
    } else {
        fail("peak, train or forward");
    }
    return 0;
}
