/* A network to test engines with: config, layout, training examples, initial parameters. */
#ifndef TESTS_WORKER_NETWORK_H
#define TESTS_WORKER_NETWORK_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "ps/store/model.h"
#include "tests/random.h"
#include "worker/data/examples.h"

/* Every number that an optimizer may need; everything else is zero, especially the seed. */
static inline void test_config(struct config *config, struct model *model, const int *layers, int layer_count,
                               int batch)
{
    memset(config, 0, sizeof *config);
    config->model.layer_count = layer_count;
    memcpy(config->model.layers, layers, (size_t)layer_count * sizeof *layers);
    config->model.initializer = INITIALIZER_TRUNCATED_NORMAL;
    config->model.init_stddev = 0.2;
    config->model.init_bias = 0.1;
    config->train = (struct config_train){.learning_rate = 0.05,
                                          .lr_decay = 1.0,
                                          .batch_size = batch,
                                          .micro_batches = 1,
                                          .num_threads = 1,
                                          .momentum = 0.9,
                                          .rho = 0.95,
                                          .beta1 = 0.9,
                                          .beta2 = 0.999,
                                          .epsilon = 1e-8,
                                          .rmsprop_decay = 0.9,
                                          .rmsprop_momentum = 0.5,
                                          .adagrad_init = 0.1,
                                          .gpu_memory_fraction = 1,
                                          .gpu_timeout_secs = 60};
    model_layout(model, &config->model);
}

/* Random images with `percent` nonzero pixels, and some that are always zero, as at the border of real digits. */
static inline void test_examples(struct examples *examples, const struct model *model, int count, int percent,
                                 struct test_random *random)
{
    int pixels = model->widths[0];
    *examples = (struct examples){.images = malloc((size_t)count * (size_t)pixels),
                                  .labels = malloc((size_t)count * sizeof(int32_t)),
                                  .count = count,
                                  .height = 1,
                                  .width = pixels,
                                  .classes = model->widths[model->layer_count]};
    for (int i = 0; i < count * pixels; i++) {
        bool border = pixels > 7 && i % pixels % 7 == 0;
        bool ink = !border && test_random_below(random, 100) < percent;
        examples->images[i] = (uint8_t)(ink ? 1 + test_random_below(random, 255) : 0);
    }
    for (int i = 0; i < count; i++) {
        examples->labels[i] = test_random_below(random, examples->classes);
    }
}

/* So that there is something to learn: the label is visible. */
static inline void test_examples_mark(struct examples *examples)
{
    for (int i = 0; i < examples->count; i++) {
        examples->images[i * examples->width + examples->labels[i] % examples->width] = 255;
    }
}

/* Rows of a table: numbers, and ones in `codes` columns that divide the other inputs evenly; some rows lack some. */
static inline void test_rows(struct examples *examples, int count, struct test_random *random)
{
    const struct examples like = *examples;
    if (!examples_create(examples, &like, count)) {
        abort();
    }
    for (int i = 0; i < count * like.numbers; i++) {
        examples->values[i] = test_random_float(random);
    }
    for (int i = 0; i < count * like.codes; i++) {
        int places = like.inputs - like.numbers, code = i % like.codes;
        int first = places * code / like.codes, end = places * (code + 1) / like.codes;
        bool is_missing = test_random_below(random, 8) == 0;
        examples->places[i] = is_missing ? -1 : first + test_random_below(random, end - first);
    }
    for (int i = 0; i < count && like.is_weighted; i++) {
        examples->weights[i] = (float)test_random_below(random, 5) / 2;
    }
}

/*
 * Their targets. Numbers are so far from a network's first outputs that no rounding decides on which side of them it
 * is; and all rows have theirs on the same side, so that errors add up, and rounding is small beside the sum.
 */
static inline void test_wanted(struct examples *examples, enum loss_kind loss, struct test_random *random)
{
    int first = test_random_below(random, 2);
    for (int i = 0; i < examples->count && examples->labels; i++) {
        examples->labels[i] = test_random_below(random, examples->classes);
    }
    for (int i = 0; i < examples->count * examples->targets; i++) {
        bool yes = test_random_below(random, 2), positive = (first + i % examples->targets) % 2 == 0;
        float size = 50 + 2 * test_random_float(random);
        examples->target_values[i] = loss == LOSS_SIGMOID ? (float)yes : positive ? size : -size;
    }
}

/* The caller frees. */
static inline float *test_parameters(const struct config *config, const struct model *model, int64_t seed)
{
    float *parameters = calloc(model->float_count, sizeof *parameters);
    model_initialise(model, &config->model, seed, parameters);
    return parameters;
}

#endif
