/*
 * The store compared with its slow reference: the whole flat vector updated densely by the baseline's loops, gradient
 * zeros included. Blocks in any division, order, thread and with absent rows must give the same bits.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ps/store/store.h"
#include "tests/check.h"
#include "tests/random.h"

static struct config_model model_config = {.layers = {23, 37, 10},
                                           .layer_count = 3,
                                           .initializer = INITIALIZER_TRUNCATED_NORMAL,
                                           .init_stddev = 0.1,
                                           .init_bias = 0.1};

static struct config_train train_config(int variant)
{
    return (struct config_train){.optimizer = (enum optimizer_kind)(variant % 5),
                                 .nesterov = variant / 5 % 2,
                                 .l2 = variant / 10 % 2 ? 1e-3 : 0,
                                 .ema_decay = variant / 20 % 2 ? 0.9 : 0,
                                 .lazy_updates = variant / 40 % 2,
                                 .learning_rate = 0.05,
                                 .lr_decay = 0.9,
                                 .lr_decay_steps = 3,
                                 .momentum = 0.9,
                                 .adagrad_init = 0.1,
                                 .rho = 0.95,
                                 .beta1 = 0.9,
                                 .beta2 = 0.999,
                                 .epsilon = 1e-8,
                                 .seed = 5};
}

enum { VARIANTS = 80 };

/* The slow reference. */
static void apply_densely(struct store *twin, const float *gradient)
{
    for (int v = 0; v < twin->model->variable_count; v++) {
        const struct variable *variable = &twin->model->variables[v];
        struct update update;
        update_prepare(&update, twin->config, twin->global_step);
        update.l2 = variable->is_weights ? update.l2 : 0;
        optimizer_loop loop = optimizer_loop_get(optimizer_kernels_get(CPU_KERNELS_REFERENCE), &update, true);
        for (int row = 0; row < variable->rows; row++) {
            size_t at = variable->offset + (size_t)row * (size_t)variable->stride;
            float *rows[STORE_VECTORS];
            for (int i = 0; i < STORE_VECTORS; i++) {
                rows[i] = twin->vectors[i] ? twin->vectors[i] + at : NULL;
            }
            struct optimizer_rows one = {.rows = 1,
                                         .cols = (size_t)variable->cols,
                                         .gradient = gradient + at,
                                         .parameters = rows[0],
                                         .slot0 = rows[1],
                                         .slot1 = rows[2],
                                         .average = rows[3]};
            loop(&update, &one);
        }
    }
    twin->global_step++;
}

/* Rows below `dead` of the first weights never have a gradient; others have none now and then, or hardly ever one. */
static void random_gradient(struct test_random *random, const struct model *model, int dead, float *gradient)
{
    memset(gradient, 0, model->float_count * sizeof *gradient);
    for (int v = 0; v < model->variable_count; v++) {
        const struct variable *variable = &model->variables[v];
        bool few = test_random_below(random, 2);
        for (int row = 0; row < variable->rows; row++) {
            bool none = few ? test_random_below(random, 12) > 0 : test_random_below(random, 3) == 0;
            bool absent = variable->is_weights && (none || (v == 0 && row < dead));
            for (int col = 0; col < variable->cols && !absent; col++) {
                gradient[variable->offset + (size_t)row * (size_t)variable->stride + (size_t)col] =
                    test_random_float(random);
            }
        }
    }
}

static bool row_is_zero(const float *row, int cols)
{
    for (int col = 0; col < cols; col++) {
        if (row[col] != 0.0f) {
            return false;
        }
    }
    return true;
}

/* One block as an engine would send it: packed values, with or without a list of the rows present. */
static void send_block(struct test_random *random, struct gradient_sink sink, const struct model *model,
                       const float *gradient, struct gradient_block block)
{
    const struct variable *variable = &model->variables[block.variable];
    float values[64 * 64];
    int32_t present[64];
    bool sparse = test_random_below(random, 2);
    int count = 0;
    block.stride = block.cols + test_random_below(random, 5);
    for (int row = 0; row < block.rows; row++) {
        const float *from =
            gradient + variable->offset + (size_t)(block.row + row) * (size_t)variable->stride + (size_t)block.col;
        if (sparse && row_is_zero(from, block.cols)) {
            continue;
        }
        memcpy(values + (size_t)count * (size_t)block.stride, from, (size_t)block.cols * sizeof *values);
        present[count++] = row;
    }
    block.values = values;
    block.present = sparse ? present : NULL;
    block.present_count = sparse ? count : 0;
    sink.block(sink.context, &block);
}

/* Cuts the columns into strips and each strip into runs of rows, at random. */
static void send_blocks(struct test_random *random, struct gradient_sink sink, const struct model *model,
                        const float *gradient)
{
    for (int v = model->variable_count - 1; v >= 0; v--) {
        const struct variable *variable = &model->variables[v];
        for (int col = 0, cols; col < variable->cols; col += cols) {
            cols = 1 + test_random_below(random, variable->cols - col);
            for (int row = 0, rows; row < variable->rows; row += rows) {
                rows = 1 + test_random_below(random, variable->rows - row);
                send_block(random, sink, model, gradient,
                           (struct gradient_block){.variable = v, .row = row, .rows = rows, .col = col, .cols = cols});
            }
        }
    }
}

static void assert_same(const struct store *a, const struct store *b)
{
    assert_int_equal(a->global_step, b->global_step);
    for (int v = 0; v < STORE_VECTORS; v++) {
        assert_int_equal(!a->vectors[v], !b->vectors[v]);
        if (a->vectors[v]) {
            assert_memory_equal(a->vectors[v], b->vectors[v], a->model->float_count * sizeof(float));
        }
    }
}

static void create(struct store *store, const struct model *model, const struct config_train *config)
{
    store_create(store, model, config);
    model_initialise(model, &model_config, config->seed, store->vectors[STORE_PARAMETERS]);
    if (store->vectors[STORE_AVERAGES]) {
        memcpy(store->vectors[STORE_AVERAGES], store->vectors[STORE_PARAMETERS], model->float_count * sizeof(float));
    }
}

TEST(blocks_are_as_the_whole)
{
    struct test_random random = test_random_begin("blocks_are_as_the_whole");
    struct model model;
    model_layout(&model, &model_config);
    float *gradient = malloc(model.float_count * sizeof *gradient);
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct config_train config = train_config(variant);
        struct store store, twin;
        create(&store, &model, &config);
        create(&twin, &model, &config);
        for (int step = 0; step < 8; step++) {
            random_gradient(&random, &model, 6, gradient);
            store_begin_step(&store);
            send_blocks(&random, store_sink(&store), &model, gradient);
            store_end_step(&store);
            apply_densely(&twin, gradient);
            assert_same(&store, &twin);
        }
        store_destroy(&store);
        store_destroy(&twin);
    }
    free(gradient);
}

/* A restored store continues with the same bits: what it remembers about rows is computed again. */
TEST(a_restored_store_goes_on_as_the_old_one)
{
    struct test_random random = test_random_begin("a_restored_store_goes_on_as_the_old_one");
    struct model model;
    model_layout(&model, &model_config);
    float *gradient = malloc(model.float_count * sizeof *gradient);
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct config_train config = train_config(variant);
        struct store store, restored;
        create(&store, &model, &config);
        create(&restored, &model, &config);
        for (int step = 0; step < 6; step++) {
            random_gradient(&random, &model, 6, gradient);
            if (step == 3) {
                for (int v = 0; v < STORE_VECTORS; v++) {
                    if (store.vectors[v]) {
                        memcpy(restored.vectors[v], store.vectors[v], model.float_count * sizeof(float));
                    }
                }
                restored.global_step = store.global_step;
                store_restored(&restored);
            }
            for (int which = 0; which < (step < 3 ? 1 : 2); which++) {
                struct store *one = which == 0 ? &store : &restored;
                store_begin_step(one);
                send_blocks(&random, store_sink(one), &model, gradient);
                store_end_step(one);
            }
        }
        assert_same(&store, &restored);
        store_destroy(&store);
        store_destroy(&restored);
    }
    free(gradient);
}

/* Momentum goes on in the one row that ever had a gradient, also where the same row of later variables had none. */
TEST(rows_are_remembered_by_variable)
{
    struct model model;
    model_layout(&model, &model_config);
    const struct config_train config = train_config(OPTIMIZER_MOMENTUM);
    const struct variable *weights = &model.variables[0];
    const int32_t row = 3;
    const size_t at = variable_at(weights, row, 0), bytes = model.float_count * sizeof(float);
    const float ones[64] = {1};
    struct store store;
    create(&store, &model, &config);
    for (int step = 0; step < 3; step++) {
        const float before = store.vectors[STORE_PARAMETERS][at];
        float *const others = malloc(bytes);
        memcpy(others, store.vectors[STORE_PARAMETERS], bytes);
        store_begin_step(&store);
        store_apply(&store, &(struct gradient_block){.rows = weights->rows,
                                                     .cols = weights->cols,
                                                     .values = ones,
                                                     .stride = weights->cols,
                                                     .present = &row,
                                                     .present_count = step == 0});
        store_end_step(&store);
        assert_true(store.vectors[STORE_PARAMETERS][at] < before);
        others[at] = store.vectors[STORE_PARAMETERS][at];
        assert_memory_equal(others, store.vectors[STORE_PARAMETERS], bytes);
        free(others);
        store_restored(&store);
    }
    store_destroy(&store);
}

struct half {
    struct store *store;
    const float *gradient;
    int first_col;
    uint64_t seed;
};

/* Every second strip of eight columns of the first weights. */
static void *apply_half(void *context)
{
    struct half *half = context;
    struct test_random random = {half->seed};
    const struct model *model = half->store->model;
    const struct variable *variable = &model->variables[0];
    for (int col = half->first_col; col < variable->cols; col += 16) {
        int cols = variable->cols - col < 8 ? variable->cols - col : 8;
        send_block(&random, store_sink(half->store), model, half->gradient,
                   (struct gradient_block){.rows = variable->rows, .col = col, .cols = cols});
    }
    return NULL;
}

TEST(threads_share_rows)
{
    struct test_random random = test_random_begin("threads_share_rows");
    struct model model;
    model_layout(&model, &model_config);
    float *gradient = malloc(model.float_count * sizeof *gradient);
    struct config_train config = train_config(OPTIMIZER_ADAM);
    struct store store, twin;
    create(&store, &model, &config);
    create(&twin, &model, &config);
    for (int step = 0; step < 50; step++) {
        random_gradient(&random, &model, 6, gradient);
        memset(gradient + model.variables[1].offset, 0,
               (model.float_count - model.variables[1].offset) * sizeof *gradient);
        store_begin_step(&store);
        struct half halves[2] = {{&store, gradient, 0, test_random_next(&random)},
                                 {&store, gradient, 8, test_random_next(&random)}};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, apply_half, &halves[1]), 0);
        apply_half(&halves[0]);
        pthread_join(thread, NULL);
        store_end_step(&store);
        apply_densely(&twin, gradient);
        assert_same(&store, &twin);
    }
    store_destroy(&store);
    store_destroy(&twin);
    free(gradient);
}

TEST(memory_is_what_the_header_says)
{
    struct model model;
    model_layout(&model, &model_config);
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct config_train config = train_config(variant);
        struct store store;
        create(&store, &model, &config);
        int expected = 1 + optimizer_slots(config.optimizer) + (config.ema_decay > 0);
        int vectors = 0;
        for (int v = 0; v < STORE_VECTORS; v++) {
            assert_int_equal((uintptr_t)store.vectors[v] % 64, 0);
            vectors += !!store.vectors[v];
        }
        assert_int_equal(vectors, expected);
        /* One block: the vectors one after another, then the bytes of the rows. */
        assert_ptr_equal(store.moved, (char *)store.memory + (size_t)vectors * model.float_count * sizeof(float));
        store_destroy(&store);
    }
}

TEST(averages_start_at_the_parameters)
{
    struct model model;
    model_layout(&model, &model_config);
    struct config_train config = train_config(20);
    struct store store;
    create(&store, &model, &config);
    assert_memory_equal(store.vectors[STORE_AVERAGES], store.vectors[STORE_PARAMETERS],
                        model.float_count * sizeof(float));
    store_destroy(&store);
    store_destroy(&store);
}

int main(void)
{
    return check_run(NULL, NULL);
}
