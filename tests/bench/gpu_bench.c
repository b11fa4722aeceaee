/*
 * gpu_bench [seconds=3] [batch=100]: the GPU engine's share of a worker's step, without a network: new parameters into
 * the memory that it reads, the gradient of a batch, its blocks copied out as they arrive; and each of these alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cuda/client.h"
#include "worker/gpu/engine.h"

enum { IMAGES = 5000, PIXELS = 784, MOST = 1 << 20 };

struct bench {
    struct config config;
    struct model model;
    struct engine *engine;
    struct examples examples;
    int32_t *indexes;
    float *taken; /* [float_count]: the gradient as the sender needs it */
    double seconds;
    double first_s; /* in the current step: when its first block arrived */
};

static void fail(const char *why)
{
    fprintf(stderr, "gpu_bench: %s\n", why);
    exit(1);
}

static void take(void *context, const struct gradient_block *block)
{
    struct bench *bench = context;
    const struct variable *variable = &bench->model.variables[block->variable];
    if (bench->first_s == 0) {
        bench->first_s = clock_monotonic_s();
    }
    memcpy(bench->taken + variable->offset + (size_t)block->row * (size_t)variable->stride, block->values,
           (size_t)block->rows * (size_t)block->stride * sizeof(float));
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return count > 0 ? values[count / 2] : 0;
}

static void create(struct bench *bench)
{
    struct error error;
    struct gpu_client *client;
    struct engine_options options = {.model = &bench->model, .config = &bench->config};
    model_layout(&bench->model, &bench->config.model);
    bench->examples.images = malloc((size_t)IMAGES * PIXELS + 64);
    bench->examples.labels = malloc(IMAGES * sizeof *bench->examples.labels);
    bench->indexes = malloc((size_t)bench->config.train.batch_size * sizeof *bench->indexes);
    bench->taken = malloc(bench->model.float_count * sizeof *bench->taken);
    if (!bench->examples.images || !bench->examples.labels || !bench->indexes || !bench->taken) {
        fail("no memory");
    }
    uint32_t random = 1;
    for (size_t i = 0; i < (size_t)IMAGES * PIXELS; i++) {
        random = random * 1664525u + 1013904223u;
        bench->examples.images[i] = random >> 29 == 0 ? (uint8_t)(random >> 16) : 0;
    }
    for (int i = 0; i < IMAGES; i++) {
        bench->examples.labels[i] = i % 10;
    }
    if (!gpu_client_start(&client, bench->config.train.gpu_timeout_secs, &error) ||
        !gpu_engine_begin(client, &options, &error) || !gpu_engine_create(&bench->engine, &options, client, &error)) {
        fail(error.text);
    }
    float *parameters = bench->engine->table->parameters(bench->engine);
    model_initialise(&bench->model, &bench->config.model, 1, parameters);
}

static void measure(struct bench *bench)
{
    static double all[MOST], to_first[MOST];
    const struct engine_table *table = bench->engine->table;
    struct gradient_sink sink = {.block = take, .context = bench};
    struct error error;
    struct train_result result;
    int count = 0;
    double end_s = clock_monotonic_s() + bench->seconds;
    for (int step = 0; clock_monotonic_s() < end_s && count < MOST; step++) {
        struct batch batch = {.examples = &bench->examples,
                              .indexes = bench->indexes,
                              .count = bench->config.train.batch_size,
                              .step = step};
        for (int i = 0; i < batch.count; i++) {
            bench->indexes[i] = (step * batch.count + i) * 7 % IMAGES;
        }
        bench->first_s = 0;
        table->parameters(bench->engine); /* all of them count as new */
        double begin_s = clock_monotonic_s();
        if (!table->step(bench->engine, &batch, &sink, &result, &error)) {
            fail(error.text);
        }
        if (step >= 20) {
            all[count] = 1e6 * (clock_monotonic_s() - begin_s);
            to_first[count] = 1e6 * (bench->first_s - begin_s);
            count++;
        }
    }
    printf("step_us %.1f to_first_block_us %.1f steps %d\n", median(all, count), median(to_first, count), count);
}

int main(int count, char **arguments)
{
    struct bench bench = {.seconds = 3};
    struct config *config = &bench.config;
    config->model.layer_count = 3;
    memcpy(config->model.layers, (int[]){PIXELS, 500, 10}, 3 * sizeof(int));
    config->model.initializer = INITIALIZER_GLOROT;
    config->train = (struct config_train){.learning_rate = 0.1,
                                          .lr_decay = 1,
                                          .batch_size = 100,
                                          .micro_batches = 1,
                                          .seed = 1,
                                          .gpu_memory_fraction = 1,
                                          .gpu_timeout_secs = 10};
    for (int i = 1; i < count; i++) {
        if (strncmp(arguments[i], "seconds=", 8) == 0) {
            bench.seconds = atof(arguments[i] + 8);
        } else if (strncmp(arguments[i], "batch=", 6) == 0) {
            config->train.batch_size = atoi(arguments[i] + 6);
        } else {
            fail("seconds=S or batch=N");
        }
    }
    if (config->train.batch_size < 1) {
        fail("a batch has at least 1 image");
    }
    create(&bench);
    measure(&bench);
    bench.engine->table->destroy(bench.engine);
    examples_free(&bench.examples);
    free(bench.indexes);
    free(bench.taken);
    return 0;
}
