/*
 * Asynchronous rounds: what a shard makes of every few differences, compared with a plain computation of the whole
 * model in double; no difference is lost, counted twice, or carried into a restored model.
 */
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ps/shard.h"
#include "tests/check.h"
#include "tests/random.h"

enum { WORKERS = 3, MAX_PS = 3, GENERATION = 7, STEPS = 5, MOST = 5, THREADED_PUSHES = 40 };

/* Units of the hidden layer, giving one stripe or several. */
enum { FEW = 12, MANY = 200 };

static const double RATE = 0.5, MOMENTUM = 0.9;

/* Several shards of one model, and the same in double. */
struct fixture {
    struct config config;
    struct model model;
    int ps_count;
    struct shard *shards[MAX_PS];
    double *parameters, *slots, *sum;
    double weight; /* of the sum's contents */
    int count;
};

static bool in_padding(const struct model *model, size_t at)
{
    for (int i = 0; i < model->variable_count; i++) {
        const struct variable *variable = &model->variables[i];
        const size_t end = variable->offset + (size_t)variable->rows * (size_t)variable->stride;
        if (at >= variable->offset && at < end) {
            return (at - variable->offset) % (size_t)variable->stride >= (size_t)variable->cols;
        }
    }
    return true;
}

static void restore(struct shard *shard, const double *parameters, uint32_t generation, int64_t step)
{
    struct error error;
    const struct span *spans;
    const int count = shard_spans(shard, &spans);
    shard_begin_write(shard, generation);
    for (int i = 0; i < count; i++) {
        float *values;
        const struct range range = {spans[i].first, (uint32_t)spans[i].count};
        assert_true(shard_claim_write(shard, STORE_PARAMETERS, range, &values, &error));
        for (size_t k = 0; k < spans[i].count; k++) {
            values[k] = (float)parameters[spans[i].first + k];
        }
        shard_wrote(shard, STORE_PARAMETERS, range);
    }
    assert_true(shard_end_write(shard, step, 0, &error));
}

static void configure(struct config *config, int size, int ps_count, int units)
{
    const int layers[] = {90, units, 600, 2}; /* rows of several blocks, and several to a block */
    memset(config, 0, sizeof *config);
    memcpy(config->model.layers, layers, sizeof layers);
    config->model.layer_count = 4;
    config->cluster.worker_hosts.count = WORKERS;
    config->cluster.ps_hosts.count = ps_count;
    config->train = (struct config_train){.optimizer = OPTIMIZER_ADAM,
                                          .learning_rate = 0.1,
                                          .lr_decay = 1,
                                          .local_steps = 4,
                                          .outer_learning_rate = RATE,
                                          .outer_momentum = MOMENTUM,
                                          .buffer_size = size};
}

static void create(struct fixture *f, struct test_random *random)
{
    struct error error;
    model_layout(&f->model, &f->config.model);
    f->ps_count = f->config.cluster.ps_hosts.count;
    f->parameters = calloc(f->model.float_count, sizeof(double));
    f->slots = calloc(f->model.float_count, sizeof(double));
    f->sum = calloc(f->model.float_count, sizeof(double));
    for (size_t i = 0; i < f->model.float_count; i++) {
        f->parameters[i] = in_padding(&f->model, i) ? 0 : (double)test_random_float(random);
    }
    for (int ps = 0; ps < f->ps_count; ps++) {
        assert_true(shard_create(&f->shards[ps], &f->model, &f->config, ps, &error));
        restore(f->shards[ps], f->parameters, GENERATION, 0);
    }
}

static void destroy(struct fixture *f)
{
    for (int ps = 0; ps < f->ps_count; ps++) {
        shard_destroy(f->shards[ps]);
    }
    free(f->parameters);
    free(f->slots);
    free(f->sum);
}

/* With runs of zeros, some of which are left out of the push. */
static void fill_stage(const struct fixture *f, int ps, struct stage *stage, const float *difference,
                       struct test_random *random)
{
    const struct span *spans;
    struct error error;
    const int count = shard_spans(f->shards[ps], &spans);
    stage_begin(stage);
    for (int i = 0; i < count; i++) {
        const size_t end = spans[i].first + spans[i].count;
        for (size_t at = spans[i].first, next; at < end; at = next) {
            next = at + 1 + (size_t)test_random_below(random, 1500);
            next = next < end ? next : end;
            bool zero = true;
            for (size_t k = at; k < next; k++) {
                zero = zero && !(difference[k] < 0 || difference[k] > 0);
            }
            float *values;
            if (zero && test_random_below(random, 2) == 0) {
                continue;
            }
            assert_true(stage_claim(stage, (struct range){at, (uint32_t)(next - at)}, &values, &error));
            memcpy(values, difference + at, (next - at) * sizeof *values);
            stage_check(stage, values, next - at);
        }
    }
    assert_true(stage_is_finite(stage));
}

static void draw(const struct fixture *f, float *difference, struct test_random *random)
{
    bool zero = false;
    for (size_t i = 0; i < f->model.float_count; i++) {
        zero = i % 400 == 0 ? test_random_below(random, 3) == 0 : zero;
        difference[i] = zero || in_padding(&f->model, i) ? 0 : test_random_float(random);
    }
}

/* The mean of what was sent, each weighted by its examples, scaled by its staleness and clipped to the norm. */
static void add_to_twin(struct fixture *f, const float *difference, uint32_t examples, uint32_t staleness)
{
    const struct config_train *train = &f->config.train;
    const double weight = train->round_weights == WEIGHTS_BY_EXAMPLES ? examples : 1;
    double squares = 0, scale = 1 / sqrt(1.0 + staleness);
    for (size_t i = 0; i < f->model.float_count; i++) {
        squares += (double)difference[i] * (double)difference[i];
    }
    if (train->clip_difference_norm > 0 && sqrt(squares) > train->clip_difference_norm) {
        scale *= train->clip_difference_norm / sqrt(squares);
    }
    for (size_t i = 0; i < f->model.float_count; i++) {
        f->sum[i] += weight * scale * (double)difference[i];
    }
    f->weight += weight;
    if (++f->count < train->buffer_size) {
        return;
    }
    const double momentum = train->outer_optimizer == OUTER_MOMENTUM ? MOMENTUM : 0;
    for (size_t i = 0; i < f->model.float_count; i++) {
        f->slots[i] = momentum * f->slots[i] + f->sum[i] / f->weight;
        f->parameters[i] -= RATE * f->slots[i];
        f->sum[i] = 0;
    }
    f->weight = 0;
    f->count = 0;
}

/* Rounding is far below this: no value is above 30, and each goes through some 30 operations. */
static void check(const struct fixture *f)
{
    struct error error;
    float *values = malloc(f->model.float_count * sizeof *values);
    for (int ps = 0; ps < f->ps_count; ps++) {
        const struct span *spans;
        const int count = shard_spans(f->shards[ps], &spans);
        for (int i = 0; i < count; i++) {
            const struct range range = {spans[i].first, (uint32_t)spans[i].count};
            assert_true(shard_read(f->shards[ps], STORE_PARAMETERS, range, values, &error));
            for (size_t k = 0; k < spans[i].count; k++) {
                assert_true(fabs((double)values[k] - f->parameters[spans[i].first + k]) < 1e-3);
            }
        }
    }
    free(values);
}

TEST(test_every_few_differences_make_a_step)
{
    struct test_random random = test_random_begin("buffer");
    for (int variant = 0; variant < 24; variant++) {
        struct fixture f = {0};
        const int size = 1 + test_random_below(&random, MOST);
        configure(&f.config, size, variant % 3 == 0 ? 1 : 1 + test_random_below(&random, MAX_PS), FEW);
        f.config.train.outer_optimizer = variant % 2 == 0 ? OUTER_AVERAGE : OUTER_MOMENTUM;
        f.config.train.round_weights = variant % 4 < 2 ? WEIGHTS_BY_EXAMPLES : WEIGHTS_EQUAL;
        f.config.train.clip_difference_norm = variant % 3 == 0 ? 20 : 0; /* of norms around 50 */
        create(&f, &random);
        float *difference = calloc(f.model.float_count, sizeof *difference);
        for (int push = 1; push <= STEPS * size; push++) {
            const uint32_t examples = 1 + (uint32_t)test_random_below(&random, 1000);
            const uint32_t staleness = (uint32_t)test_random_below(&random, 5);
            const int worker = test_random_below(&random, WORKERS);
            draw(&f, difference, &random);
            for (int ps = 0; ps < f.ps_count; ps++) {
                struct stage *stage = shard_stage(f.shards[ps], worker);
                struct changes changes;
                fill_stage(&f, ps, stage, difference, &random);
                stage_set_weight(stage, examples);
                stage_set_staleness(stage, staleness);
                assert_true(shard_apply(f.shards[ps], GENERATION, stage, (uint64_t)(push - 1) / (uint64_t)size + 1,
                                        DTYPE_FLOAT32, &changes));
                assert_int_equal(changes.global_step, push / size);
                assert_int_equal(changes.version, push / size + 1);
                assert_int_equal(changes.range_count > 0, push % size == 0);
            }
            add_to_twin(&f, difference, examples, staleness);
            check(&f);
        }
        free(difference);
        destroy(&f);
    }
}

/* One push of the same number throughout. */
static void push_all(struct fixture *f, uint32_t generation, float value, uint32_t examples, struct changes *changes)
{
    struct stage *stage = shard_stage(f->shards[0], 0);
    struct error error;
    float *values;
    const uint32_t count = (uint32_t)f->model.float_count;
    stage_begin(stage);
    assert_true(stage_claim(stage, (struct range){0, count}, &values, &error));
    for (uint32_t i = 0; i < count; i++) {
        values[i] = in_padding(&f->model, i) ? 0 : value;
    }
    stage_set_weight(stage, examples);
    stage_set_staleness(stage, 0);
    assert_true(shard_apply(f->shards[0], generation, stage, 0, DTYPE_FLOAT32, changes));
}

/* Gathered differences belong to a lost model: their senders learnt that from the new generation. */
TEST(test_a_restore_forgets_what_waits)
{
    struct test_random random = test_random_begin("restore");
    struct fixture f = {0};
    struct changes changes;
    configure(&f.config, 2, 1, FEW);
    create(&f, &random);
    push_all(&f, GENERATION, 100, 10, &changes);
    assert_int_equal(changes.global_step, 0);
    restore(f.shards[0], f.parameters, GENERATION + 1, 4);
    push_all(&f, GENERATION + 1, 1, 30, &changes);
    assert_int_equal(changes.global_step, 4);
    push_all(&f, GENERATION + 1, 2, 10, &changes);
    assert_int_equal(changes.global_step, 5);
    for (size_t i = 0; i < f.model.float_count; i++) {
        f.parameters[i] -= in_padding(&f.model, i) ? 0 : RATE * (30 * 1 + 10 * 2) / 40;
    }
    check(&f);
    destroy(&f);
}

/* Each is finite, and so is their mean: only their sum is not. One without examples does not count. */
TEST(test_no_mean_of_finite_differences_overflows)
{
    struct test_random random = test_random_begin("overflow");
    struct fixture f = {0};
    struct changes changes;
    configure(&f.config, 3, 1, FEW);
    create(&f, &random);
    push_all(&f, GENERATION, -3e38f, 0, &changes);
    push_all(&f, GENERATION, -3e38f, UINT32_MAX, &changes);
    push_all(&f, GENERATION, -3e38f, UINT32_MAX, &changes);
    assert_int_equal(changes.global_step, 1);
    const float *values = changes.values;
    for (uint64_t i = 0; i < changes.value_count; i++) {
        assert_true(isfinite(values[i]));
    }
    push_all(&f, GENERATION, 7, 0, &changes);
    push_all(&f, GENERATION, 7, 0, &changes);
    push_all(&f, GENERATION, 7, 0, &changes);
    assert_int_equal(changes.global_step, 2);
    assert_true(isfinite(((const float *)changes.values)[0]));
    destroy(&f);
}

struct pusher {
    pthread_t thread;
    struct fixture *f;
    int worker;
    bool failed;
};

/* Each step takes RATE times 2 off every parameter, so all numbers of an answer are equal: that of its version. */
static void *push_twos(void *context)
{
    struct pusher *pusher = context;
    struct shard *shard = pusher->f->shards[0];
    struct stage *stage = shard_stage(shard, pusher->worker);
    const struct range all = {0, (uint32_t)pusher->f->model.float_count};
    uint64_t version = 0;
    for (int i = 0; i < THREADED_PUSHES; i++) {
        struct changes changes;
        struct error error;
        float *values;
        stage_begin(stage);
        pusher->failed |= !stage_claim(stage, all, &values, &error);
        for (uint32_t k = 0; k < all.count; k++) {
            values[k] = -2;
        }
        stage_set_weight(stage, 1);
        stage_set_staleness(stage, 0);
        pusher->failed |= !shard_apply(shard, GENERATION, stage, version, DTYPE_FLOAT32, &changes);
        const struct ranges ranges = {changes.ranges, changes.range_count};
        const float *answer = changes.values;
        for (uint32_t r = 0; r < ranges.count; r++) {
            const struct range range = range_get(&ranges, r);
            for (uint32_t k = 0; k < range.count; k++, answer++) {
                const bool padding = in_padding(&pusher->f->model, range.first + k);
                pusher->failed |= *answer != (padding ? 0.0f : (float)(changes.version - 1));
            }
        }
        pusher->failed |= changes.version != (uint64_t)changes.global_step + 1 || changes.version < version;
        version = changes.version;
    }
    return NULL;
}

TEST(test_differences_of_many_threads_all_count_once)
{
    struct test_random random = test_random_begin("threads");
    struct fixture f = {0};
    struct pusher pushers[WORKERS];
    uint64_t version;
    int64_t step;
    configure(&f.config, 4, 1, MANY);
    create(&f, &random);
    memset(f.parameters, 0, f.model.float_count * sizeof(double));
    restore(f.shards[0], f.parameters, GENERATION, 0);
    for (int i = 0; i < WORKERS; i++) {
        pushers[i] = (struct pusher){.f = &f, .worker = i};
        assert_int_equal(pthread_create(&pushers[i].thread, NULL, push_twos, &pushers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        pthread_join(pushers[i].thread, NULL);
        assert_false(pushers[i].failed);
    }
    shard_now(f.shards[0], &version, &step);
    assert_int_equal(step, WORKERS * THREADED_PUSHES / 4);
    assert_int_equal(version, step + 1);
    destroy(&f);
}

int main(void)
{
    return check_run(NULL, NULL);
}
