/*
 * Shards against their slow twin: the whole model updated densely by the baseline's loops, one push after the other.
 * However the model is cut into shards, blocks and ranges, and whatever a worker was told when, the bits are the same.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ps/store/bfloat16.h"
#include "ps/store/optimizer.h"
#include "ps/shard.h"
#include "ps/store/outer.h"
#include "ps/store/robust.h"
#include "ps/shard/internal.h"
#include "tests/locks.h"
#include "tests/random.h"

enum { MAX_PS = 4, WORKERS = 3, GENERATION = 7 };

/* Rows of several blocks, one block, and several rows to a block; and several stripes. */
enum { STRIPES = 4 };
static const int shapes[][4] = {{5, 1300, 20, 3}, {40, 500, 10, 0}, {3, 7, 0, 0}, {90, 17, 600, 2}, {300, 500, 10, 0}};

/* A cluster's worth of shards, the twin, and what each worker believes the parameters are. */
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

static void configure(struct config *config, int shape, int variant)
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

static void write_range(struct shard *shard, enum store_vector vector, struct span span, const float *from)
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

static void restore(struct shard *shard, const float *parameters, int64_t step)
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

static bool in_padding(const struct model *model, size_t at)
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

static void set_up(struct fixture *f, int shape, int variant, int ps_count, enum placement_policy policy,
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

static void tear_down(struct fixture *f)
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
static void set_up_synchronous(struct fixture *f, int shape, int variant, struct test_random *random)
{
    struct error error;
    set_up(f, shape, variant, 1, PLACEMENT_RANGES, random);
    shard_destroy(f->shards[0]);
    f->config.cluster.issync = true;
    assert_true(shard_create(&f->shards[0], &f->model, &f->config, 0, &error));
    restore(f->shards[0], f->twin[STORE_PARAMETERS], 0);
}

/* The same, of rounds; the twin knows nothing of these, and has the outer optimizer. */
static void set_up_rounds(struct fixture *f, int shape, int variant, struct test_random *random)
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

static void step_twin(struct fixture *f, const float *gradient)
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

/* Where a frame's ranges begin and end, as an engine or anybody else may cut them. */
static size_t random_cut(struct test_random *random, size_t at, size_t end)
{
    size_t most = end - at;
    size_t count = 1 + (size_t)test_random_below(random, test_random_below(random, 2) == 0 ? 40 : 2000);
    return at + (count < most ? count : most);
}

/* A gradient with whole stretches of zeros, which are mostly left out of the push. */
static void push_random(struct fixture *f, int ps, struct stage *stage, float *gradient, struct test_random *random)
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

static void take_changes(float *view, const struct changes *changes)
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

static void check_vectors(struct fixture *f)
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

static void run_variant(int shape, int variant, int ps_count, enum placement_policy policy, struct test_random *random)
{
    struct fixture f;
    set_up(&f, shape, variant, ps_count, policy, random);
    float *gradient = calloc(f.model.float_count, sizeof *gradient);
    for (int step = 0; step < 12; step++) {
        int worker = test_random_below(random, WORKERS);
        struct changes changes[MAX_PS];
        for (int ps = 0; ps < ps_count; ps++) {
            struct stage *stage = shard_stage(f.shards[ps], worker);
            push_random(&f, ps, stage, gradient, random);
            assert_true(
                shard_apply(f.shards[ps], GENERATION, stage, f.versions[worker][ps], DTYPE_FLOAT32, &changes[ps]));
            f.versions[worker][ps] = changes[ps].version;
            assert_int_equal(changes[ps].version, step + 2);
            assert_int_equal(changes[ps].global_step, step + 1);
            take_changes(f.views[worker], &changes[ps]);
        }
        step_twin(&f, gradient);
        assert_memory_equal(f.views[worker], f.twin[STORE_PARAMETERS], f.model.float_count * sizeof(float));
    }
    check_vectors(&f);
    free(gradient);
    tear_down(&f);
}

static void test_shards_equal_the_whole_vector(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("shard");
    for (int variant = 0; variant < 40; variant++) {
        int shape = test_random_below(&random, 4);
        int ps_count = 1 + test_random_below(&random, MAX_PS);
        run_variant(shape, variant, ps_count, (enum placement_policy)test_random_below(&random, 3), &random);
    }
}

/* --- One shard --- */

static void fill_stage(struct shard *shard, struct stage *stage, float value)
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

static void set_up_plain_sgd(struct fixture *f, struct test_random *random)
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

static void test_unchanged_blocks_stay_away(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("unchanged");
    struct fixture f;
    struct error error;
    struct changes changes;
    float *values;
    set_up_plain_sgd(&f, &random);
    struct stage *stage = shard_stage(f.shards[0], 0);
    stage_begin(stage);
    assert_true(stage_claim(stage, (struct range){528 * 3, 500}, &values, &error));
    memset(values, 0, 500 * sizeof *values);
    values[17] = 2.0f;
    assert_true(shard_apply(f.shards[0], GENERATION, stage, 1, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.range_count, 1);
    assert_int_equal(changes.value_count, 500);
    assert_true(((const float *)changes.values)[17] == -2.0f);
    /* Asked again, as a retry does; from the start; and with nothing new. */
    assert_true(shard_changes(f.shards[0], GENERATION, stage, 1, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.value_count, 500);
    assert_true(shard_changes(f.shards[0], GENERATION, stage, 0, DTYPE_FLOAT32, &changes));
    assert_true(changes.value_count >= f.model.parameter_count);
    assert_true(shard_changes(f.shards[0], GENERATION, stage, changes.version, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.value_count, 0);
    tear_down(&f);
}

static void test_bfloat16_answers_are_rounded(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("bfloat16");
    struct fixture f;
    struct changes changes;
    set_up(&f, 1, 4, 1, PLACEMENT_RANGES, &random);
    struct stage *stage = shard_stage(f.shards[0], 0);
    fill_stage(f.shards[0], stage, 0.37f);
    assert_true(shard_apply(f.shards[0], GENERATION, stage, 0, DTYPE_BFLOAT16, &changes));
    const struct ranges ranges = {changes.ranges, changes.range_count};
    const uint16_t *halves = changes.values;
    struct error error;
    for (uint32_t i = 0; i < ranges.count; i++) {
        struct range range = range_get(&ranges, i);
        float *exact = malloc(range.count * sizeof *exact);
        assert_true(shard_read(f.shards[0], STORE_PARAMETERS, range, exact, &error));
        for (uint32_t k = 0; k < range.count; k++) {
            assert_int_equal(*halves++, bfloat16_round(exact[k]));
        }
        free(exact);
    }
    tear_down(&f);
}

static void test_bfloat16_rounding(void **state)
{
    (void)state;
    static const struct {
        float value;
        uint16_t half;
    } cases[] = {
        {0.0f, 0},
        {-0.0f, 0x8000},
        {1.0f, 0x3f80},
        {0x1.01p0f, 0x3f80} /* a tie, to even */,
        {0x1.03p0f, 0x3f82} /* a tie, to even */,
        {0x1.0101p0f, 0x3f81},
        {-0x1.0101p0f, 0xbf81},
        {3.4e38f, 0x7f80} /* rounds to infinity */,
        {INFINITY, 0x7f80},
        {1e-40f, 0x0001},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(bfloat16_round(cases[i].value), cases[i].half);
    }
    uint32_t bits = 0x7f800001; /* a NaN whose upper half alone would be infinity */
    float nan_value;
    memcpy(&nan_value, &bits, sizeof bits);
    assert_true(isnan(bfloat16_widen(bfloat16_round(nan_value))));
    assert_true(bfloat16_widen(0x3f80) == 1.0f);
}

static void test_not_finite_is_seen(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("finite");
    struct fixture f;
    set_up_plain_sgd(&f, &random);
    struct stage *stage = shard_stage(f.shards[0], 0);
    const float bad[] = {NAN, INFINITY, -INFINITY};
    float values[100] = {0};
    for (int i = 0; i < 300; i++) {
        stage_begin(stage);
        stage_check(stage, values, 100);
        assert_true(stage_is_finite(stage));
        values[i % 100] = bad[i / 100];
        stage_check(stage, values, 100);
        assert_false(stage_is_finite(stage));
        values[i % 100] = 3.4e38f;
        stage_check(stage, values, 100);
        assert_false(stage_is_finite(stage)); /* once bad, always bad */
        values[i % 100] = 0.0f;
    }
    tear_down(&f);
}

static void test_ranges_that_are_not_held(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("held");
    struct fixture f;
    struct error error;
    float *values;
    float out[8];
    set_up(&f, 1, 0, 2, PLACEMENT_RANGES, &random);
    const struct span *spans;
    assert_int_equal(shard_spans(f.shards[1], &spans), 1);
    struct stage *stage = shard_stage(f.shards[1], 0);
    const struct range wrong[] = {
        {0, 1},
        {spans[0].first - 1, 2},
        {spans[0].first + spans[0].count - 1, 2},
        {spans[0].first, UINT32_MAX},
        {UINT64_MAX, 1},
        {UINT64_MAX, UINT32_MAX},
        {spans[0].first + spans[0].count, 1},
        {spans[0].first, 0},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_false(stage_claim(stage, wrong[i], &values, &error));
        assert_false(shard_read(f.shards[1], STORE_PARAMETERS, wrong[i], out, &error));
    }
    assert_false(shard_read(f.shards[1], STORE_SLOT0, (struct range){spans[0].first, 8}, out, &error));
    tear_down(&f);
}

static void test_restoring(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("restore");
    struct fixture f;
    struct error error;
    struct changes changes;
    float *values;
    float out[4];
    int64_t step;
    uint64_t version;
    set_up(&f, 1, 1, 1, PLACEMENT_RANGES, &random); /* momentum */
    struct shard *shard = f.shards[0];
    struct stage *stage = shard_stage(shard, 0);
    fill_stage(shard, stage, 1.0f);
    assert_true(shard_apply(shard, GENERATION, stage, 0, DTYPE_FLOAT32, &changes));
    /* Another generation's requests, and any while it is closed. */
    assert_false(shard_apply(shard, GENERATION - 1, stage, 0, DTYPE_FLOAT32, &changes));
    shard_begin_write(shard, GENERATION + 1);
    assert_false(shard_apply(shard, GENERATION + 1, stage, 0, DTYPE_FLOAT32, &changes));
    assert_false(shard_changes(shard, GENERATION + 1, stage, 0, DTYPE_FLOAT32, &changes));
    assert_false(shard_read(shard, STORE_PARAMETERS, (struct range){0, 4}, out, &error));
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_CLOSED);
    /* Parameters are owed, slots and averages are not, and nothing may be NaN. */
    assert_false(shard_end_write(shard, 5, 0, &error));
    /* What comes twice, for its connection broke, counts once; what was claimed alone counts not at all. */
    const size_t half = f.model.float_count / 2;
    write_range(shard, STORE_PARAMETERS, (struct span){0, half}, f.twin[STORE_PARAMETERS]);
    write_range(shard, STORE_PARAMETERS, (struct span){0, half}, f.twin[STORE_PARAMETERS]);
    const struct range rest = {half / 2, (uint32_t)(f.model.float_count - half / 2)};
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, rest, &values, &error));
    assert_false(shard_end_write(shard, 5, 0, &error));
    assert_non_null(strstr(error.text, "parameters were written"));
    write_range(shard, STORE_PARAMETERS, (struct span){rest.first, rest.count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_claim_write(shard, STORE_SLOT0, (struct range){0, 4}, &values, &error));
    values[2] = NAN;
    assert_false(shard_end_write(shard, 5, 0, &error));
    values[2] = 2.5f;
    assert_false(shard_claim_write(shard, STORE_SLOT1, (struct range){0, 4}, &values, &error));
    assert_true(shard_end_write(shard, 5, 0, &error));
    shard_now(shard, &version, &step);
    assert_int_equal(version, 1);
    assert_int_equal(step, 5);
    assert_true(shard_read(shard, STORE_SLOT0, (struct range){0, 4}, out, &error));
    assert_true(out[0] == 0.0f && out[2] == 2.5f);
    assert_true(shard_changes(shard, GENERATION + 1, stage, 0, DTYPE_FLOAT32, &changes));
    assert_true(changes.value_count >= f.model.parameter_count);
    tear_down(&f);
}

/* While it is written nothing of it is shown: neither values, nor a snapshot of what was there before. */
static void test_nothing_is_read_while_it_is_written(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("closed");
    struct fixture f;
    struct error error;
    float out[4] = {7, 7, 7, 7};
    const float *values;
    int64_t step;
    set_up(&f, 1, 0, 1, PLACEMENT_RANGES, &random);
    struct shard *shard = f.shards[0];
    const struct range few = {0, 4};
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    assert_true(shard_snapshot_values(shard, 5, STORE_PARAMETERS, few, &values, &step, &error));
    shard_begin_write(shard, GENERATION + 1);
    assert_false(shard_read(shard, STORE_PARAMETERS, few, out, &error));
    assert_true(out[0] == 7 && out[3] == 7);
    assert_false(shard_snapshot_values(shard, 5, STORE_PARAMETERS, few, &values, &step, &error));
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 9, 0, &error));
    assert_false(shard_snapshot_values(shard, 5, STORE_PARAMETERS, few, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN); /* the number means another step now */
    assert_int_equal(step, 9);
    tear_down(&f);
}

struct snapping {
    struct shard *shard;
    enum snapshot_state state;
};

static void *snap(void *context)
{
    struct snapping *snapping = context;
    int64_t step;
    snapping->state = shard_snapshot(snapping->shard, 5, -1, &step);
    return NULL;
}

/* Some stripes are copied, and others are not: nobody reads it yet, and who asks for it is told to ask again. */
static void test_a_snapshot_under_way_is_not_ready(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("under way");
    struct fixture f;
    struct error error;
    const float *values;
    int64_t step;
    pthread_t thread;
    set_up(&f, STRIPES, 0, 1, PLACEMENT_RANGES, &random);
    struct shard *shard = f.shards[0];
    struct snapping snapping = {.shard = shard};
    assert_true(shard->stripe_count > 3);
    pthread_mutex_lock(&shard->stripes[2].lock);
    assert_int_equal(pthread_create(&thread, NULL, snap, &snapping), 0);
    while (pthread_mutex_trylock(&shard->stripes[1].lock) == 0) { /* it keeps that one until it gets ours */
        pthread_mutex_unlock(&shard->stripes[1].lock);
        sched_yield();
    }
    assert_false(shard_snapshot_values(shard, 5, STORE_PARAMETERS, (struct range){0, 4}, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_PENDING);
    pthread_mutex_unlock(&shard->stripes[2].lock);
    pthread_join(thread, NULL);
    assert_int_equal(snapping.state, SNAPSHOT_TAKEN);
    assert_true(shard_snapshot_values(shard, 5, STORE_PARAMETERS, (struct range){0, 4}, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    tear_down(&f);
}

static void test_epochs_of_the_schedule_come_with_the_restore(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("schedule");
    struct fixture f;
    struct error error;
    set_up_plain_sgd(&f, &random);
    struct shard *shard;
    f.config.train.lr_decay = 0.5;
    f.config.train.lr_decay_steps = 0;
    assert_true(shard_create(&shard, &f.model, &f.config, 0, &error));
    shard_begin_write(shard, GENERATION);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_false(shard_end_write(shard, 20, 0, &error));
    assert_true(shard_end_write(shard, 20, 10, &error));
    struct changes changes;
    fill_stage(shard, shard_stage(shard, 0), -1.0f);
    assert_true(shard_apply(shard, GENERATION, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    assert_true(*(const float *)changes.values == 0.25f);
    shard_destroy(shard);
    tear_down(&f);
}

/*
 * Restores the shard at step 20, makes a step of a gradient of -1, and returns the first parameter: the learning rate.
 */
static float rate_after_restore(struct fixture *f, struct shard *shard, uint32_t generation)
{
    struct error error;
    struct changes changes;
    shard_begin_write(shard, generation);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f->model.float_count}, f->twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 20, 0, &error));
    fill_stage(shard, shard_stage(shard, 0), -1.0f);
    assert_true(shard_apply(shard, generation, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    return *(const float *)changes.values;
}

/* Another shard may have lost it all and begin with what is in force; so must this one. */
static void test_what_is_in_force_stays_so_after_a_restore(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("force");
    struct fixture f;
    struct error error;
    struct changes changes;
    struct shard *shard;
    set_up_plain_sgd(&f, &random);
    assert_true(shard_create(&shard, &f.model, &f.config, 0, &error));
    const float before = rate_after_restore(&f, shard, GENERATION);
    struct config_train train = f.config.train;
    train.learning_rate *= 4;
    shard_schedule(shard, &train, 0, 22);
    assert_true(rate_after_restore(&f, shard, GENERATION + 1) == before); /* it is at step 21 now, and then at 20 */
    for (int i = 0; i < 2; i++) {
        fill_stage(shard, shard_stage(shard, 0), -1.0f);
        assert_true(shard_apply(shard, GENERATION + 1, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    }
    assert_true(rate_after_restore(&f, shard, GENERATION + 2) == 4 * before);
    shard_destroy(shard);
    tear_down(&f);
}

/* Any live key; and where the rate decays by epochs, the steps of one may change, too, and stay so after a restore. */
static void test_all_live_keys_are_taken(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("live");
    struct fixture f;
    struct error error;
    struct shard *shard;
    set_up_plain_sgd(&f, &random);
    f.config.train.lr_decay = 1.0;
    assert_true(shard_create(&shard, &f.model, &f.config, 0, &error));
    const float before = rate_after_restore(&f, shard, GENERATION);
    struct config_train train = f.config.train;
    train.lr_warmup_steps = 40;
    shard_schedule(shard, &train, 0, 0);
    assert_true(rate_after_restore(&f, shard, GENERATION + 1) == (float)((double)before * (21.0 / 40.0)));
    train.lr_warmup_steps = 0;
    train.lr_decay = 0.5;
    train.lr_decay_steps = 0;
    train.lr_staircase = true;
    shard_schedule(shard, &train, 10, 0); /* the model is restored at step 20: two epochs */
    shard_begin_write(shard, GENERATION + 2);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_false(shard_end_write(shard, 20, 0, &error));
    assert_true(shard_end_write(shard, 20, 10, &error));
    struct changes changes;
    fill_stage(shard, shard_stage(shard, 0), -1.0f);
    assert_true(shard_apply(shard, GENERATION + 2, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    assert_true(*(const float *)changes.values == before / 4);
    /* Steps of twice as many gradients: an epoch has half as many, from step 21 on. */
    shard_schedule(shard, &train, 5, 21);
    fill_stage(shard, shard_stage(shard, 0), -1.0f);
    assert_true(shard_apply(shard, GENERATION + 2, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    assert_true(*(const float *)changes.values == before / 4 + before / 16);
    shard_destroy(shard);
    tear_down(&f);
}

/* --- Many at once --- */

enum { PUSHES = 300 };

struct pusher {
    pthread_t thread;
    struct fixture *f;
    int worker;
    bool failed;
};

/* Every push adds 1 to every parameter, so an answer must be one number throughout: the version it names. */
static void *push_ones(void *context)
{
    struct pusher *pusher = context;
    struct shard *shard = pusher->f->shards[0];
    struct stage *stage = shard_stage(shard, pusher->worker);
    uint64_t version = 0;
    for (int i = 0; i < PUSHES; i++) {
        struct changes changes;
        fill_stage(shard, stage, -1.0f);
        pusher->failed |= !shard_apply(shard, GENERATION, stage, version, DTYPE_FLOAT32, &changes);
        const float *values = changes.values;
        const struct ranges ranges = {changes.ranges, changes.range_count};
        for (uint32_t r = 0; r < ranges.count; r++) {
            struct range range = range_get(&ranges, r);
            for (uint32_t k = 0; k < range.count; k++, values++) {
                bool padding = in_padding(&pusher->f->model, range.first + k);
                pusher->failed |= *values != (padding ? 0.0f : (float)(changes.version - 1));
            }
        }
        version = changes.version;
    }
    return NULL;
}

/* Snapshots of steps to come and of this moment: each is one step's state throughout. */
static void check_snapshots(struct fixture *f)
{
    struct error error;
    uint64_t number = 0;
    int64_t now = 0;
    int taken = 0;
    int64_t steps = WORKERS * PUSHES;
    while (now < steps) {
        shard_now(f->shards[0], NULL, &now);
        int64_t at_step = ++number % 2 == 0 || now + 5 > steps ? -1 : now + 5;
        int64_t step;
        enum snapshot_state state;
        do {
            state = shard_snapshot(f->shards[0], number, at_step, &step);
        } while (state == SNAPSHOT_PENDING);
        if (state == SNAPSHOT_PASSED) {
            continue; /* it was over before we asked */
        }
        assert_int_equal(state, SNAPSHOT_TAKEN);
        assert_true(at_step < 0 || step == at_step);
        const float *values;
        int64_t of_step;
        struct range all = {0, (uint32_t)f->model.float_count};
        assert_true(shard_snapshot_values(f->shards[0], number, STORE_PARAMETERS, all, &values, &of_step, &error));
        assert_int_equal(of_step, step);
        for (uint32_t k = 0; k < all.count; k++) {
            assert_true(values[k] == (in_padding(&f->model, k) ? 0.0f : (float)step));
        }
        taken++;
    }
    assert_true(taken > 0);
}

static void test_pushes_of_many_threads_all_count(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("threads");
    struct fixture f;
    struct pusher pushers[WORKERS];
    set_up_plain_sgd(&f, &random);
    for (int i = 0; i < WORKERS; i++) {
        pushers[i] = (struct pusher){.f = &f, .worker = i};
        assert_int_equal(pthread_create(&pushers[i].thread, NULL, push_ones, &pushers[i]), 0);
    }
    check_snapshots(&f);
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(pushers[i].thread, NULL);
        assert_false(pushers[i].failed);
    }
    int64_t step;
    uint64_t version;
    shard_now(f.shards[0], &version, &step);
    assert_int_equal(step, WORKERS * PUSHES);
    assert_int_equal(version, WORKERS * PUSHES + 1);
    tear_down(&f);
}

/* --- Snapshots that are ordered --- */

enum { EVERY = 3 };

static uint64_t order_of(int64_t step)
{
    return SNAPSHOT_ORDER | (uint64_t)(1000 + step);
}

static enum snapshot_state order(struct shard *shard, int64_t step)
{
    int64_t of_step;
    enum snapshot_state state = shard_snapshot(shard, order_of(step), step, &of_step);
    assert_true(state != SNAPSHOT_TAKEN || of_step == step);
    return state;
}

/* Every parameter of a snapshot is the number of steps that were made (set_up_plain_sgd). */
static void check_ordered(struct fixture *f, uint64_t number, int64_t step)
{
    struct error error;
    const float *values;
    int64_t of_step;
    struct range all = {0, (uint32_t)f->model.float_count};
    if (!shard_snapshot_values(f->shards[0], number, STORE_PARAMETERS, all, &values, &of_step, &error)) {
        fail_msg("step %lld: %s", (long long)step, error.text);
    }
    assert_int_equal(of_step, step);
    for (uint32_t k = 0; k < all.count; k++) {
        assert_true(values[k] == (in_padding(&f->model, k) ? 0.0f : (float)step));
    }
}

static void make_steps(struct fixture *f, int count)
{
    struct stage *stage = shard_stage(f->shards[0], 0);
    struct changes changes;
    for (int i = 0; i < count; i++) {
        fill_stage(f->shards[0], stage, -1.0f);
        assert_true(shard_apply(f->shards[0], GENERATION, stage, 0, DTYPE_FLOAT32, &changes));
    }
}

static void test_orders_are_kept_until_they_are_released(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("orders");
    struct fixture f;
    int64_t step;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    assert_false(shard_must_wait(shard, 0));
    for (int i = 1; i <= SHARD_ORDERS_KEPT + 1; i++) {
        assert_int_equal(order(shard, i * EVERY), SNAPSHOT_PENDING);
    }
    /* Not for the first ones, and not between two of them. */
    for (int i = 1; i <= SHARD_ORDERS_KEPT; i++) {
        assert_false(shard_must_wait(shard, i * EVERY));
    }
    const int64_t full = (SHARD_ORDERS_KEPT + 1) * EVERY;
    make_steps(&f, (int)full);
    assert_true(shard_must_wait(shard, full));
    assert_false(shard_must_wait(shard, full + 1));
    /* A plain snapshot has room of its own. */
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    check_ordered(&f, 5, full);
    check_ordered(&f, order_of(EVERY), EVERY);
    check_ordered(&f, order_of(2 * EVERY), 2 * EVERY);
    /* A step that is not released is still there long after; one released makes room for the one that waits. */
    shard_release(shard, order_of(EVERY));
    assert_false(shard_must_wait(shard, full));
    make_steps(&f, 1);
    assert_int_equal(order(shard, full), SNAPSHOT_TAKEN);
    check_ordered(&f, order_of(full), full);
    check_ordered(&f, order_of(2 * EVERY), 2 * EVERY);
    check_ordered(&f, 5, full);
    assert_int_equal(order(shard, EVERY), SNAPSHOT_PASSED);
    tear_down(&f);
}

static void test_a_step_that_has_just_passed_is_over(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("passed");
    struct fixture f;
    int64_t step;
    set_up_plain_sgd(&f, &random);
    make_steps(&f, 3);
    assert_int_equal(shard_snapshot(f.shards[0], 5, 2, &step), SNAPSHOT_PASSED);
    assert_int_equal(order(f.shards[0], 2), SNAPSHOT_PASSED);
    assert_int_equal(shard_snapshot(f.shards[0], 5, 3, &step), SNAPSHOT_TAKEN);
    assert_int_equal(step, 3);
    tear_down(&f);
}

static void test_a_step_that_is_left_without_room_loses_its_order_alone(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("no room");
    struct fixture f;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    for (int step = 1; step <= SHARD_ORDERS_KEPT + 1; step++) {
        order(shard, step);
    }
    make_steps(&f, SHARD_ORDERS_KEPT + 2);
    assert_int_equal(order(shard, SHARD_ORDERS_KEPT + 1), SNAPSHOT_PASSED);
    for (int step = 1; step <= SHARD_ORDERS_KEPT; step++) {
        check_ordered(&f, order_of(step), step);
    }
    /* Nor does anybody wait for an order that was given up. */
    order(shard, 10);
    assert_true(shard_must_wait(shard, 10));
    shard_skip_order(shard, 10);
    assert_false(shard_must_wait(shard, 10));
    check_ordered(&f, order_of(1), 1);
    /* Of too many, the earliest gives way; forgotten ones make room. */
    for (int step = 20; step < 20 + SHARD_ORDERS - SHARD_ORDERS_KEPT; step++) {
        assert_int_equal(order(shard, step), SNAPSHOT_PENDING);
    }
    check_ordered(&f, order_of(1), 1);
    assert_int_equal(order(shard, 30), SNAPSHOT_PENDING);
    assert_int_equal(order(shard, 1), SNAPSHOT_PASSED);
    check_ordered(&f, order_of(2), 2);
    shard_forget_snapshots(shard);
    assert_false(shard_must_wait(shard, 30));
    assert_int_equal(order(shard, 2), SNAPSHOT_PASSED);
    tear_down(&f);
}

static void test_orders_of_a_shard_that_is_being_written(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("orders early");
    struct fixture f;
    struct error error;
    set_up_plain_sgd(&f, &random);
    struct shard *shard = f.shards[0];
    order(shard, 4);
    make_steps(&f, 5);
    shard_begin_write(shard, GENERATION);
    for (int step = 1; step <= 3; step++) { /* what came before is forgotten */
        assert_int_equal(order(shard, step), SNAPSHOT_PENDING);
    }
    for (int i = 0; i < f.model.variable_count; i++) {
        const struct variable *variable = &f.model.variables[i];
        const struct span span = {variable->offset, (size_t)variable->rows * (size_t)variable->stride};
        float *twos = calloc(f.model.float_count, sizeof *twos);
        for (size_t k = span.first; k < span.first + span.count; k++) {
            twos[k] = in_padding(&f.model, k) ? 0.0f : 2.0f;
        }
        write_range(shard, STORE_PARAMETERS, span, twos);
        free(twos);
    }
    assert_true(shard_end_write(shard, 2, 0, &error));
    assert_int_equal(order(shard, 1), SNAPSHOT_PASSED); /* it begins later */
    make_steps(&f, 2);
    assert_int_equal(order(shard, 2), SNAPSHOT_TAKEN);
    assert_int_equal(order(shard, 3), SNAPSHOT_TAKEN);
    assert_int_equal(order(shard, 4), SNAPSHOT_PENDING); /* it is at that step, and has no room */
    assert_true(shard_must_wait(shard, 4));
    check_ordered(&f, order_of(2), 2);
    shard_release(shard, order_of(2));
    assert_int_equal(order(shard, 4), SNAPSHOT_TAKEN);
    check_ordered(&f, order_of(3), 3);
    tear_down(&f);
}

/* While many push, each holding to what shard_must_wait says: then no ordered step is ever lost. */
struct patient {
    struct fixture *f;
    int worker;
    pthread_mutex_t *turn; /* deciding, as the job does it: who may leave which step */
    int64_t *accepted;
    pthread_t thread;
};

static void *push_patiently(void *context)
{
    struct patient *patient = context;
    struct shard *shard = patient->f->shards[0];
    struct stage *stage = shard_stage(shard, patient->worker);
    for (int i = 0; i < PUSHES;) {
        struct changes changes;
        pthread_mutex_lock(patient->turn);
        bool waits = shard_must_wait(shard, *patient->accepted);
        *patient->accepted += !waits;
        pthread_mutex_unlock(patient->turn);
        if (!waits) {
            fill_stage(shard, stage, -1.0f);
            shard_apply(shard, GENERATION, stage, UINT64_MAX, DTYPE_FLOAT32, &changes);
            i++;
        } else {
            sched_yield(); /* else those who wait keep the locks from those they wait for */
        }
    }
    return NULL;
}

static void test_no_ordered_step_is_lost_while_many_push(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("every step");
    struct fixture f;
    struct patient patients[WORKERS];
    pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
    int64_t accepted = 0, steps = (int64_t)WORKERS * PUSHES, ordered = 0;
    set_up_plain_sgd(&f, &random);
    for (int i = 0; i <= SHARD_ORDERS_KEPT; i++) {
        assert_int_equal(order(f.shards[0], ordered += EVERY), SNAPSHOT_PENDING);
    }
    for (int i = 0; i < WORKERS; i++) {
        patients[i] = (struct patient){.f = &f, .worker = i, .turn = &turn, .accepted = &accepted};
        assert_int_equal(pthread_create(&patients[i].thread, NULL, push_patiently, &patients[i]), 0);
    }
    for (int64_t step = EVERY; step < steps; step += EVERY) {
        enum snapshot_state state_of_it;
        do {
            sched_yield();
            state_of_it = order(f.shards[0], step);
        } while (state_of_it == SNAPSHOT_PENDING);
        assert_int_equal(state_of_it, SNAPSHOT_TAKEN);
        order(f.shards[0], ordered += EVERY); /* before there is room */
        check_ordered(&f, order_of(step), step);
        shard_release(f.shards[0], order_of(step));
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(patients[i].thread, NULL);
    }
    pthread_mutex_destroy(&turn);
    tear_down(&f);
}

/* --- Synchronous steps --- */

/* The slow twin of an aggregate, as ps/store/collect.h says it; gradients: [WORKERS] of the whole vector. */
static void step_twin_by_mean(struct fixture *f, float *const gradients[WORKERS], const int *workers, int count,
                              const float *weights)
{
    float *sum = calloc(f->model.float_count, sizeof *sum);
    for (size_t i = 0; i < f->model.float_count; i++) {
        sum[i] = weights[0] * gradients[workers[0]][i];
        for (int k = 1; k < count; k++) {
            sum[i] += weights[k] * gradients[workers[k]][i];
        }
    }
    step_twin(f, sum);
    free(sum);
}

static int random_workers(int workers[WORKERS], struct test_random *random)
{
    int count = 0;
    while (count == 0) {
        for (int worker = 0; worker < WORKERS; worker++) {
            if (test_random_below(random, 3) > 0) {
                workers[count++] = worker;
            }
        }
    }
    return count;
}

struct helper {
    pthread_t thread;
    struct shard *shard;
    atomic_bool end;
};

static void *help_on(void *context)
{
    struct helper *helper = context;
    while (!atomic_load(&helper->end)) {
        shard_help(helper->shard);
    }
    return NULL;
}

/* With rounds every worker says how many examples it has; without, nobody looks at that. */
static void weigh(struct shard *shard, bool rounds, const int *workers, int count, float weights[WORKERS],
                  struct test_random *random)
{
    double all = 0, examples[WORKERS];
    for (int k = 0; k < count; k++) {
        examples[k] = 1 + test_random_below(random, 1000);
        stage_weigh(shard_stage(shard, workers[k]), (uint32_t)examples[k]);
        all += examples[k];
    }
    for (int k = 0; k < count; k++) {
        weights[k] = rounds ? (float)(examples[k] / all) : 1.0f / (float)count;
    }
}

static void run_synchronous_variant(bool rounds, int shape, int variant, struct test_random *random)
{
    struct fixture f;
    float *gradients[WORKERS];
    struct helper helpers[2];
    (rounds ? set_up_rounds : set_up_synchronous)(&f, shape, variant, random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        gradients[i] = calloc(f.model.float_count, sizeof(float));
    }
    for (int i = 0; i < 2; i++) {
        helpers[i].shard = shard;
        atomic_init(&helpers[i].end, false);
        assert_int_equal(pthread_create(&helpers[i].thread, NULL, help_on, &helpers[i]), 0);
    }
    for (int step = 0; step < 12; step++) {
        int workers[WORKERS], count = random_workers(workers, random);
        float weights[WORKERS];
        for (int i = 0; i < WORKERS; i++) { /* also of those who are not taken: no harm may come of them */
            push_random(&f, 0, shard_stage(shard, i), gradients[i], random);
        }
        weigh(shard, rounds, workers, count, weights, random);
        assert_true(shard_aggregate(shard, GENERATION, workers, count));
        step_twin_by_mean(&f, gradients, workers, count, weights);
        for (int i = 0; i < WORKERS; i++) {
            struct changes changes;
            if (i > 0 && test_random_below(random, 4) == 0) {
                continue; /* this one is away for a step, and gets the changes of several later */
            }
            assert_true(
                shard_answer(shard, GENERATION, shard_stage(shard, i), f.versions[i][0], DTYPE_FLOAT32, &changes));
            assert_true(step == 0 || i > 0 || changes.shared); /* the first is never away */
            assert_int_equal(changes.version, step + 2);
            assert_int_equal(changes.global_step, step + 1);
            take_changes(f.views[i], &changes);
            f.versions[i][0] = changes.version;
            shard_answered(shard, &changes);
            assert_memory_equal(f.views[i], f.twin[STORE_PARAMETERS], f.model.float_count * sizeof(float));
        }
    }
    for (int i = 0; i < 2; i++) {
        atomic_store(&helpers[i].end, true);
        pthread_join(helpers[i].thread, NULL);
    }
    check_vectors(&f);
    for (int i = 0; i < WORKERS; i++) {
        free(gradients[i]);
    }
    tear_down(&f);
}

static void test_aggregates_are_means_in_the_order_of_workers(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("aggregate");
    for (int variant = 0; variant < 40; variant++) {
        run_synchronous_variant(false, test_random_below(&random, 4), variant, &random);
    }
}

static double squares_of(const struct model *model, const float *difference)
{
    double squares = 0;
    for (int i = 0; i < model->variable_count; i++) {
        for (int row = 0; row < model->variables[i].rows; row++) {
            squares = outer_squares(squares, difference + variable_at(&model->variables[i], row, 0),
                                    (size_t)model->variables[i].cols);
        }
    }
    return squares;
}

/* What a round of these differences comes to, and whether the shard says the same of each. */
static void check_middle(struct fixture *f, float *const *differences, const int *workers, int count,
                         const struct config_train *train)
{
    float scales[WORKERS], *middle = calloc(f->model.float_count, sizeof *middle);
    const float *values[WORKERS];
    void *scratch = malloc(robust_scratch(count));
    for (int k = 0; k < count; k++) {
        values[k] = differences[workers[k]];
        scales[k] = outer_clip(squares_of(&f->model, values[k]), train->clip_difference_norm);
    }
    robust_mean(middle, values, scales, count, robust_cut(train, count), f->model.float_count, scratch);
    assert_true(shard_aggregate(f->shards[0], GENERATION, workers, count));
    step_twin(f, middle);
    const double squares_of_middle = squares_of(&f->model, middle);
    for (int k = 0; k < count; k++) {
        float cosine, norm;
        double dot = 0, squares = squares_of(&f->model, values[k]);
        for (size_t i = 0; i < f->model.float_count; i++) {
            dot += (double)values[k][i] * (double)middle[i];
        }
        shard_round_figures(f->shards[0], workers[k], &cosine, &norm);
        assert_true(fabs((double)norm - sqrt(squares)) <= 1e-4 * sqrt(squares));
        if (squares > 0 && squares_of_middle > 0) {
            assert_true(fabs((double)cosine - dot / sqrt(squares * squares_of_middle)) < 1e-4);
        }
    }
    free(scratch);
    free(middle);
}

static void test_rounds_may_take_the_middle(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("middle");
    for (int variant = 0; variant < 20; variant++) {
        struct fixture f;
        float *differences[WORKERS];
        struct error error;
        set_up_rounds(&f, test_random_below(&random, 4), variant, &random);
        struct config_train train = f.config.train;
        train.aggregate = variant % 2 == 0 ? AGGREGATE_MEDIAN : AGGREGATE_TRIMMED_MEAN;
        train.trim = 0.3;
        train.clip_difference_norm = variant % 3 == 0 ? 5 : 0;
        f.config.train.aggregate = train.aggregate;
        f.config.train.trim = train.trim;
        f.config.train.clip_difference_norm = train.clip_difference_norm;
        shard_destroy(f.shards[0]);
        f.config.train.outer_optimizer = (enum outer_optimizer)(variant % 4);
        assert_true(shard_create(&f.shards[0], &f.model, &f.config, 0, &error));
        f.config.train = outer_train(&f.config.train);
        restore(f.shards[0], f.twin[STORE_PARAMETERS], 0);
        for (int i = 0; i < WORKERS; i++) {
            differences[i] = calloc(f.model.float_count, sizeof(float));
        }
        for (int step = 0; step < 6; step++) {
            int workers[WORKERS], count = random_workers(workers, &random);
            for (int k = 0; k < count; k++) {
                struct stage *stage = shard_stage(f.shards[0], workers[k]);
                push_random(&f, 0, stage, differences[workers[k]], &random);
                stage_weigh(stage, 1 + (uint32_t)test_random_below(&random, 100));
            }
            check_middle(&f, differences, workers, count, &train);
        }
        check_vectors(&f);
        for (int i = 0; i < WORKERS; i++) {
            free(differences[i]);
        }
        tear_down(&f);
    }
}

static void test_rounds_weigh_workers_by_examples(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("rounds");
    for (int variant = 0; variant < 40; variant++) {
        run_synchronous_variant(true, test_random_below(&random, 4), variant, &random);
    }
}

/* What somebody still sends stays as it is, though steps go on. */
static void test_answers_on_their_way_do_not_change(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("answers");
    struct fixture f;
    struct changes held[3];
    float *copies[3];
    const int all[WORKERS] = {0, 1, 2};
    set_up_synchronous(&f, 0, 0, &random);
    struct shard *shard = f.shards[0];
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < WORKERS; i++) {
            fill_stage(shard, shard_stage(shard, i), -1.0f);
        }
        assert_true(shard_aggregate(shard, GENERATION, all, WORKERS));
        assert_true(
            shard_answer(shard, GENERATION, shard_stage(shard, step), (uint64_t)step + 1, DTYPE_FLOAT32, &held[step]));
        /* The third finds both shared answers in use, and has one of its own. */
        assert_true(!!held[step].shared == (step < 2));
        copies[step] = malloc(held[step].value_count * sizeof(float));
        memcpy(copies[step], held[step].values, held[step].value_count * sizeof(float));
    }
    for (int step = 0; step < 3; step++) {
        assert_memory_equal(copies[step], held[step].values, held[step].value_count * sizeof(float));
        shard_answered(shard, &held[step]);
        free(copies[step]);
    }
    assert_false(shard_aggregate(shard, GENERATION + 1, all, WORKERS));
    tear_down(&f);
}

/* What the last step of the generation before changed is no answer in this one, though the versions are the same. */
static void test_a_shared_answer_is_of_one_generation(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("generation");
    struct fixture f;
    struct changes changes;
    const int all[WORKERS] = {0, 1, 2};
    set_up_synchronous(&f, 1, 0, &random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        fill_stage(shard, shard_stage(shard, i), -1.0f);
    }
    assert_true(shard_aggregate(shard, GENERATION, all, WORKERS)); /* from version 1 to 2 */
    struct error error;
    shard_begin_write(shard, GENERATION + 1);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 0, 0, &error));
    assert_true(shard_answer(shard, GENERATION + 1, shard_stage(shard, 0), 1, DTYPE_FLOAT32, &changes));
    assert_null(changes.shared);
    assert_int_equal(changes.version, 1);
    assert_int_equal(changes.value_count, 0);
    assert_false(shard_answer(shard, GENERATION, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    tear_down(&f);
}

/* A sum begins as zero, so that none is minus zero: as in a process that trains with micro-batches. */
static void test_no_sum_is_minus_zero(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("zeros");
    struct fixture f;
    struct error error;
    float *values, out[8];
    const int two[2] = {0, 1};
    set_up_synchronous(&f, 1, 0, &random); /* sgd: what is minus zero stays so if zero is subtracted from it */
    struct shard *shard = f.shards[0];
    const struct range few = {0, 8};
    for (size_t i = 0; i < 8; i++) {
        f.twin[STORE_PARAMETERS][i] = -0.0f;
    }
    restore(shard, f.twin[STORE_PARAMETERS], 0);
    stage_begin(shard_stage(shard, 0)); /* nothing in it */
    stage_begin(shard_stage(shard, 1));
    assert_true(stage_claim(shard_stage(shard, 1), few, &values, &error));
    for (size_t i = 0; i < few.count; i++) {
        values[i] = -0.0f;
    }
    assert_true(shard_aggregate(shard, GENERATION, two, 2));
    assert_true(shard_read(shard, STORE_PARAMETERS, few, out, &error));
    for (size_t i = 0; i < few.count; i++) {
        assert_true(out[i] == 0.0f && signbit(out[i]));
    }
    tear_down(&f);
}

/* A worker that pulls does not spoil the gradient of its that waits for its step. */
static void test_pulling_leaves_the_staged_gradient_alone(void **state)
{
    (void)state;
    struct test_random random = test_random_begin("pull");
    struct fixture f;
    struct changes changes;
    float *gradients[WORKERS];
    const int one[1] = {1};
    set_up_synchronous(&f, 1, 1, &random);
    struct shard *shard = f.shards[0];
    for (int i = 0; i < WORKERS; i++) {
        gradients[i] = calloc(f.model.float_count, sizeof(float));
    }
    push_random(&f, 0, shard_stage(shard, 1), gradients[1], &random);
    assert_true(shard_changes(shard, GENERATION, shard_stage(shard, 1), 0, DTYPE_FLOAT32, &changes));
    take_changes(f.views[1], &changes);
    assert_memory_equal(f.views[1], f.twin[STORE_PARAMETERS], f.model.float_count * sizeof(float));
    assert_true(shard_aggregate(shard, GENERATION, one, 1));
    step_twin_by_mean(&f, gradients, one, 1, (const float[]){1});
    check_vectors(&f);
    for (int i = 0; i < WORKERS; i++) {
        free(gradients[i]);
    }
    tear_down(&f);
}

static void test_memory_is_as_announced(void **state)
{
    (void)state;
    struct config config;
    struct model model;
    configure(&config, 1, 4); /* adam */
    config.cluster.ps_hosts.count = 1;
    model_layout(&model, &config.model);
    size_t vectors = 2 * 3 + WORKERS;
    size_t bytes = shard_memory(&model, &config, 0);
    assert_true(bytes >= 4 * model.float_count * vectors);
    assert_true(bytes <= 4 * model.float_count * vectors + model.float_count / 2 + 8192);
    config.output.save_steps = 10;
    assert_true(shard_memory(&model, &config, 0) - bytes >= 4 * model.float_count * 3 * SHARD_ORDERS_KEPT);
    assert_true(shard_memory(&model, &config, 0) - bytes <= 4 * (model.float_count + 16) * 3 * SHARD_ORDERS_KEPT);
    config.output.save_steps = 0;
    config.cluster.issync = true;
    vectors += 2 + WORKERS;
    bytes = shard_memory(&model, &config, 0);
    assert_true(bytes >= 4 * model.float_count * vectors);
    assert_true(bytes <= 4 * model.float_count * vectors + model.float_count + 16384);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards_equal_the_whole_vector),
        cmocka_unit_test(test_unchanged_blocks_stay_away),
        cmocka_unit_test(test_bfloat16_answers_are_rounded),
        cmocka_unit_test(test_bfloat16_rounding),
        cmocka_unit_test(test_not_finite_is_seen),
        cmocka_unit_test(test_ranges_that_are_not_held),
        cmocka_unit_test(test_restoring),
        cmocka_unit_test(test_nothing_is_read_while_it_is_written),
        cmocka_unit_test(test_a_step_that_has_just_passed_is_over),
        cmocka_unit_test(test_a_snapshot_under_way_is_not_ready),
        cmocka_unit_test(test_a_shared_answer_is_of_one_generation),
        cmocka_unit_test(test_no_sum_is_minus_zero),
        cmocka_unit_test(test_epochs_of_the_schedule_come_with_the_restore),
        cmocka_unit_test(test_what_is_in_force_stays_so_after_a_restore),
        cmocka_unit_test(test_all_live_keys_are_taken),
        cmocka_unit_test(test_pushes_of_many_threads_all_count),
        cmocka_unit_test(test_orders_are_kept_until_they_are_released),
        cmocka_unit_test(test_a_step_that_is_left_without_room_loses_its_order_alone),
        cmocka_unit_test(test_orders_of_a_shard_that_is_being_written),
        cmocka_unit_test(test_no_ordered_step_is_lost_while_many_push),
        cmocka_unit_test(test_aggregates_are_means_in_the_order_of_workers),
        cmocka_unit_test(test_rounds_may_take_the_middle),
        cmocka_unit_test(test_rounds_weigh_workers_by_examples),
        cmocka_unit_test(test_answers_on_their_way_do_not_change),
        cmocka_unit_test(test_pulling_leaves_the_staged_gradient_alone),
        cmocka_unit_test(test_memory_is_as_announced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
