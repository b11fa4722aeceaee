/*
 * A cluster's worth of shards beside their slow reference: the whole model, updated densely by the baseline's loops,
 * one push after another.
 */
#ifndef TESTS_PS_TWIN_H
#define TESTS_PS_TWIN_H

#include <stdlib.h>
#include <string.h>

#include "ps/shard.h"
#include "ps/shard/internal.h"
#include "ps/store/optimizer.h"
#include "ps/store/rounds.h"
#include "tests/check.h"
#include "tests/random.h"

enum { MAX_PS = 4, WORKERS = 3, GENERATION = 7 };

/* Rows of several blocks, one block, and several rows per block; and several stripes. */
enum { STRIPES = 4 };
static const int shapes[][4] = {{5, 1300, 20, 3}, {40, 500, 10, 0}, {3, 7, 0, 0}, {90, 17, 600, 2}, {300, 500, 10, 0}};

/* A cluster's worth of shards, the reference, and what each worker has as parameters. */
struct fixture {
    struct config config;
    struct model model;
    int ps_count;
    struct shard *shards[MAX_PS];
    float *twin[STORE_VECTORS];
    int64_t step;
    float *views[WORKERS];
    uint64_t versions[WORKERS][MAX_PS];
};

static inline void configure(struct config *config, int shape, int variant)
{
    memset(config, 0, sizeof *config);
    while (config->model.layer_count < 4 && shapes[shape][config->model.layer_count] > 0) {
        config->model.layers[config->model.layer_count] = shapes[shape][config->model.layer_count];
        config->model.layer_count++;
    }
    config->train = (struct config_train){
        .optimizer = (enum optimizer_kind)(variant % 5),
        .nesterov = variant / 5 % 2,
        .l2 = variant / 10 % 2 ? 1e-3 : 0,
        .ema_decay = variant / 20 % 2 ? 0.9 : 0,
        .lazy_updates = variant % 3 == 2,
        .learning_rate = 0.05,
        .lr_decay = 0.9,
        .lr_decay_steps = 3,
        .momentum = 0.9,
        .adagrad_init = 0.1,
        .rho = 0.95,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .epsilon = 1e-8,
    };
    config->cluster.worker_hosts.count = WORKERS;
}

static inline void write_range(struct shard *shard, enum store_vector vector, struct span span, const float *from)
{
    struct error error;
    float *values;
    struct range range = {span.first, (uint32_t)span.count};
    if (!shard_claim_write(shard, vector, range, &values, &error)) {
        fail_msg("%s", error.text);
    }
    memcpy(values, from + span.first, span.count * sizeof *values);
    shard_wrote(shard, vector, range);
}

static inline void restore(struct shard *shard, const float *parameters, int64_t step)
{
    struct error error;
    const struct span *spans;
    int count = shard_spans(shard, &spans);
    shard_begin_write(shard, GENERATION);
    for (int i = 0; i < count; i++) {
        write_range(shard, STORE_PARAMETERS, spans[i], parameters);
    }
    if (!shard_end_write(shard, step, 0, &error)) {
        fail_msg("%s", error.text);
    }
}

static inline bool in_padding(const struct model *model, size_t at)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        size_t end = variable->offset + (size_t)variable->rows * (size_t)variable->stride;
        if (at >= variable->offset && at < end) {
            return (at - variable->offset) % (size_t)variable->stride >= (size_t)variable->cols;
        }
    }
    return true;
}

static inline void set_up(struct fixture *f, int shape, int variant, int ps_count, enum placement_policy policy,
                          struct test_random *random)
{
    struct error error;
    memset(f, 0, sizeof *f);
    configure(&f->config, shape, variant);
    f->config.cluster.ps_hosts.count = f->ps_count = ps_count;
    f->config.cluster.placement = policy;
    model_layout(&f->model, &f->config.model);
    size_t bytes = f->model.float_count * sizeof(float);
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        f->twin[vector] = calloc(1, bytes);
    }
    for (size_t i = 0; i < f->model.float_count; i++) {
        f->twin[STORE_PARAMETERS][i] = in_padding(&f->model, i) ? 0.0f : test_random_float(random);
        f->twin[STORE_AVERAGES][i] = f->twin[STORE_PARAMETERS][i];
        for (int slot = 0; slot < optimizer_slots(f->config.train.optimizer); slot++) {
            f->twin[STORE_SLOT0 + slot][i] = optimizer_slot_initial(&f->config.train, slot);
        }
    }
    for (int ps = 0; ps < ps_count; ps++) {
        assert_true(shard_create(&f->shards[ps], &f->model, &f->config, ps, &error));
        restore(f->shards[ps], f->twin[STORE_PARAMETERS], 0);
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        f->views[worker] = calloc(1, bytes);
    }
}

static inline void tear_down(struct fixture *f)
{
    for (int ps = 0; ps < f->ps_count; ps++) {
        shard_destroy(f->shards[ps]);
    }
    for (int vector = 0; vector < STORE_VECTORS; vector++) {
        free(f->twin[vector]);
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        free(f->views[worker]);
    }
}

/* One shard, for synchronous steps. */
static inline void set_up_synchronous(struct fixture *f, int shape, int variant, struct test_random *random)
{
    struct error error;
    set_up(f, shape, variant, 1, PLACEMENT_RANGES, random);
    shard_destroy(f->shards[0]);
    f->config.cluster.issync = true;
    assert_true(shard_create(&f->shards[0], &f->model, &f->config, 0, &error));
    restore(f->shards[0], f->twin[STORE_PARAMETERS], 0);
}

/* The same, for rounds; the reference does not support these, and has the outer optimizer. */
static inline void set_up_rounds(struct fixture *f, int shape, int variant, struct test_random *random)
{
    struct error error;
    struct config_train *train = &f->config.train;
    set_up_synchronous(f, shape, variant, random);
    shard_destroy(f->shards[0]);
    train->local_epochs = 1;
    train->outer_optimizer = (enum outer_optimizer)(variant % 4);
    train->outer_learning_rate = 0.1;
    train->outer_momentum = 0.9;
    assert_true(shard_create(&f->shards[0], &f->model, &f->config, 0, &error));
    restore(f->shards[0], f->twin[STORE_PARAMETERS], 0);
    *train = outer_train(train);
    memset(f->twin[STORE_SLOT0], 0, f->model.float_count * sizeof(float));
    memset(f->twin[STORE_SLOT1], 0, f->model.float_count * sizeof(float));
}

static inline void step_twin(struct fixture *f, const float *gradient)
{
    for (int v = 0; v < f->model.variable_count; v++) {
        const struct variable *variable = &f->model.variables[v];
        struct update update;
        update_prepare(&update, &f->config.train, f->step);
        update.l2 = variable->is_weights ? update.l2 : 0;
        optimizer_loop loop = optimizer_loop_get(optimizer_kernels_get(CPU_KERNELS_REFERENCE), &update, true);
        unsigned mode = optimizer_enter();
        struct optimizer_rows rows = {.rows = (size_t)variable->rows,
                                      .cols = (size_t)variable->cols,
                                      .gradient = gradient + variable->offset,
                                      .gradient_stride = (size_t)variable->stride,
                                      .parameters = f->twin[0] + variable->offset,
                                      .slot0 = f->twin[1] + variable->offset,
                                      .slot1 = f->twin[2] + variable->offset,
                                      .average = f->twin[3] + variable->offset,
                                      .stride = (size_t)variable->stride};
        loop(&update, &rows);
        optimizer_leave(mode);
    }
    f->step++;
}

/* Where a frame's ranges begin and end, as an engine or any peer may divide them. */
static inline size_t random_cut(struct test_random *random, size_t at, size_t end)
{
    size_t most = end - at;
    size_t count = 1 + (size_t)test_random_below(random, test_random_below(random, 2) == 0 ? 40 : 2000);
    return at + (count < most ? count : most);
}

/* A gradient with runs of zeros, which are mostly left out of the push. */
static inline void push_random(struct fixture *f, int ps, struct stage *stage, float *gradient,
                               struct test_random *random)
{
    const struct span *spans;
    struct error error;
    int count = shard_spans(f->shards[ps], &spans);
    stage_begin(stage);
    for (int i = 0; i < count; i++) {
        size_t end = spans[i].first + spans[i].count;
        for (size_t at = spans[i].first, next; at < end; at = next) {
            next = random_cut(random, at, end);
            float *values;
            bool absent = test_random_below(random, 2) == 0;
            for (size_t k = at; k < next; k++) {
                gradient[k] = absent || in_padding(&f->model, k) ? 0.0f : test_random_float(random);
            }
            if (absent) {
                continue;
            }
            assert_true(stage_claim(stage, (struct range){at, (uint32_t)(next - at)}, &values, &error));
            memcpy(values, gradient + at, (next - at) * sizeof *values);
            stage_check(stage, values, next - at);
        }
    }
    assert_true(stage_is_finite(stage));
}

static inline void take_changes(float *view, const struct changes *changes)
{
    const struct ranges ranges = {changes->ranges, changes->range_count};
    const float *values = changes->values;
    uint64_t previous = 0;
    for (uint32_t i = 0; i < ranges.count; i++) {
        struct range range = range_get(&ranges, i);
        assert_true(i == 0 || range.first >= previous);
        previous = range.first + range.count;
        memcpy(view + range.first, values, range.count * sizeof *values);
        values += range.count;
    }
    assert_int_equal(values - (const float *)changes->values, changes->value_count);
}

static inline void check_vectors(struct fixture *f)
{
    struct error error;
    float *values = malloc(f->model.float_count * sizeof *values);
    for (int ps = 0; ps < f->ps_count; ps++) {
        const struct span *spans;
        int count = shard_spans(f->shards[ps], &spans);
        for (int i = 0; i < count; i++) {
            for (int vector = 0; vector < STORE_VECTORS; vector++) {
                struct range range = {spans[i].first, (uint32_t)spans[i].count};
                if (shard_has(f->shards[ps], (enum store_vector)vector)) {
                    assert_true(shard_read(f->shards[ps], (enum store_vector)vector, range, values, &error));
                    assert_memory_equal(values, f->twin[vector] + range.first, range.count * sizeof *values);
                }
            }
        }
    }
    free(values);
}

static inline void fill_stage(struct shard *shard, struct stage *stage, float value)
{
    const struct span *spans;
    struct error error;
    float *values;
    int count = shard_spans(shard, &spans);
    stage_begin(stage);
    for (int i = 0; i < count; i++) {
        assert_true(stage_claim(stage, (struct range){spans[i].first, (uint32_t)spans[i].count}, &values, &error));
        for (size_t k = 0; k < spans[i].count; k++) {
            values[k] = value;
        }
    }
}

static inline void set_up_plain_sgd(struct fixture *f, struct test_random *random)
{
    set_up(f, 1, 0, 1, PLACEMENT_RANGES, random);
    shard_destroy(f->shards[0]);
    struct error error;
    f->config.train.learning_rate = 1.0;
    f->config.train.lr_decay = 1.0;
    memset(f->twin[STORE_PARAMETERS], 0, f->model.float_count * sizeof(float));
    assert_true(shard_create(&f->shards[0], &f->model, &f->config, 0, &error));
    restore(f->shards[0], f->twin[STORE_PARAMETERS], 0);
}

#endif
