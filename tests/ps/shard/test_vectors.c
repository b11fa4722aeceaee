/* Which vectors a shard has, how they are initialised, and reads of their parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ps/shard.h"
#include "tests/check.h"

static struct config config;
static struct model model;
static struct shard *shard;
static struct error error;
static const struct span *span;

static void begin(enum optimizer_kind optimizer, double ema_decay)
{
    static char name[] = "a:1";
    static char *hosts[] = {name};
    memset(&config, 0, sizeof config);
    config.cluster.ps_hosts.items = config.cluster.worker_hosts.items = hosts;
    config.cluster.ps_hosts.count = config.cluster.worker_hosts.count = 1;
    config.model.layers[0] = 40;
    config.model.layers[1] = 64;
    config.model.layers[2] = 3;
    config.model.layer_count = 3;
    config.train.optimizer = optimizer;
    config.train.ema_decay = ema_decay;
    config.train.learning_rate = config.train.lr_decay = 1;
    config.train.adagrad_init = 0.25;
    config.train.batch_size = config.train.micro_batches = 1;
    model_layout(&model, &config.model);
    if (!shard_create(&shard, &model, &config, 0, &error)) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(shard_spans(shard, &span), 1);
}

/* Every float is its own number, modulo 1,000. */
static void restore(int64_t step)
{
    float *values;
    shard_begin_write(shard, 1);
    const struct range all = {span->first, (uint32_t)span->count};
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, all, &values, &error));
    for (size_t i = 0; i < span->count; i++) {
        values[i] = (float)(i % 1000);
    }
    shard_wrote(shard, STORE_PARAMETERS, all);
    if (!shard_end_write(shard, step, 1, &error)) {
        fail_msg("%s", error.text);
    }
}

/* A restored vector: padding is zero. */
static float value_at(size_t at)
{
    for (int i = 0; i < model.variable_count; i++) {
        const struct variable *variable = &model.variables[i];
        const size_t stride = (size_t)variable->stride, end = variable->offset + (size_t)variable->rows * stride;
        if (at >= variable->offset && at < end) {
            return (at - variable->offset) % stride < (size_t)variable->cols ? (float)(at % 1000) : 0;
        }
    }
    return 0;
}

TEST(as_many_layers_as_there_may_be_are_held)
{
    begin(OPTIMIZER_SGD, 0);
    shard_destroy(shard);
    for (config.model.layer_count = 0; config.model.layer_count < CONFIG_MAX_LAYERS; config.model.layer_count++) {
        config.model.layers[config.model.layer_count] = 2;
    }
    model_layout(&model, &config.model);
    assert_int_equal(model.variable_count, 2 * (CONFIG_MAX_LAYERS - 1));
    assert_true(shard_create(&shard, &model, &config, 0, &error));
    assert_int_equal(shard_spans(shard, &span), 1);
    assert_int_equal(span->count, model.float_count);
    shard_destroy(shard);
}

TEST(vectors_are_those_of_the_optimizer)
{
    static const struct {
        enum optimizer_kind optimizer;
        int slots;
        float first;
    } kinds[] = {
        {OPTIMIZER_SGD, 0, 0}, {OPTIMIZER_MOMENTUM, 1, 0}, {OPTIMIZER_ADAGRAD, 1, 0.25f}, {OPTIMIZER_ADAM, 2, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (int averages = 0; averages < 2; averages++) {
            begin(kinds[i].optimizer, averages ? 0.5 : 0);
            restore(5);
            float value = 7;
            assert_true(shard_has(shard, STORE_PARAMETERS));
            assert_int_equal(shard_has(shard, STORE_SLOT0), kinds[i].slots > 0);
            assert_int_equal(shard_has(shard, STORE_SLOT1), kinds[i].slots > 1);
            assert_int_equal(shard_has(shard, STORE_AVERAGES), averages);
            const struct range third = {span->first + 3, 1};
            assert_int_equal(shard_read(shard, STORE_SLOT0, third, &value, &error), kinds[i].slots > 0);
            assert_true(kinds[i].slots == 0 || value == kinds[i].first);
            assert_int_equal(shard_read(shard, STORE_AVERAGES, third, &value, &error), averages);
            assert_true(!averages || value == 3); /* they start as the parameters */
            shard_destroy(shard);
        }
    }
}

TEST(vectors_that_there_are_not_are_refused)
{
    static const enum store_vector none[] = {STORE_SLOT0, STORE_AVERAGES, STORE_SENT, STORE_PS_VECTORS};
    const float *there;
    float value, *values;
    int64_t step;
    begin(OPTIMIZER_SGD, 0);
    restore(5);
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_TAKEN);
    const struct range one = {span->first, 1};
    for (int i = 0; i < 4; i++) {
        assert_false(shard_read(shard, none[i], one, &value, &error));
        assert_non_null(strstr(error.text, "optimizer sgd keeps no vector"));
        assert_false(shard_snapshot_values(shard, 1, none[i], one, &there, &step, &error));
        assert_non_null(strstr(error.text, "optimizer sgd keeps no vector"));
    }
    assert_false(shard_snapshot_values(shard, 2, STORE_PARAMETERS, one, &there, &step, &error));
    assert_non_null(strstr(error.text, "there is no snapshot 2"));
    assert_false(shard_snapshot_values(shard, 0, STORE_PARAMETERS, one, &there, &step, &error));
    assert_true(shard_snapshot_values(shard, 1, STORE_PARAMETERS, one, &there, &step, &error));
    assert_int_equal(step, 5);
    shard_begin_write(shard, 2);
    for (int i = 0; i < 4; i++) {
        assert_false(shard_claim_write(shard, none[i], one, &values, &error));
        assert_non_null(strstr(error.text, "optimizer sgd keeps no vector"));
    }
    shard_destroy(shard);
}

TEST(a_snapshot_of_a_step_is_of_that_step)
{
    int64_t step = -7;
    begin(OPTIMIZER_SGD, 0);
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_CLOSED); /* there is nothing yet */
    restore(0);
    assert_int_equal(shard_snapshot(shard, 1, 1, &step), SNAPSHOT_PENDING);
    assert_int_equal(shard_snapshot(shard, 1, 0, &step), SNAPSHOT_TAKEN);
    assert_int_equal(step, 0);
    restore(5);
    assert_int_equal(shard_snapshot(shard, 2, 0, &step), SNAPSHOT_PASSED);
    assert_int_equal(shard_snapshot(shard, 2, 4, &step), SNAPSHOT_PASSED);
    assert_int_equal(shard_snapshot(shard, 2, 6, &step), SNAPSHOT_PENDING);
    assert_int_equal(shard_snapshot(shard, 2, 5, &step), SNAPSHOT_TAKEN);
    assert_int_equal(step, 5);
    assert_int_equal(shard_snapshot(shard, 3, -1, &step), SNAPSHOT_TAKEN); /* now */
    assert_int_equal(step, 5);
    shard_destroy(shard);
}

/* In whichever stripes and blocks it lies. */
TEST(any_part_is_read_as_it_is)
{
    static float values[8192];
    begin(OPTIMIZER_SGD, 0);
    restore(0);
    assert_true(span->count < 8192);
    const uint32_t lengths[] = {1, 2, 63, 64, 65, 500, 513, 2000};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        for (size_t from = 0; from + lengths[k] <= span->count; from += 61) {
            memset(values, 0xff, sizeof values);
            assert_true(
                shard_read(shard, STORE_PARAMETERS, (struct range){span->first + from, lengths[k]}, values, &error));
            for (size_t i = 0; i < lengths[k]; i++) {
                assert_true(values[i] == value_at(from + i));
            }
            assert_true(values[lengths[k]] != values[lengths[k]]); /* NOLINT: a NaN; nothing more was written */
        }
    }
    static const int beyond[] = {0, 1, 50};
    for (int i = 0; i < 3; i++) {
        const struct range range = {span->first + span->count - (size_t)beyond[i], (uint32_t)beyond[i] + 1};
        assert_false(shard_read(shard, STORE_PARAMETERS, range, values, &error));
        assert_non_null(strstr(error.text, "are not all held here"));
    }
    shard_begin_write(shard, 2);
    assert_false(shard_read(shard, STORE_PARAMETERS, (struct range){span->first, 1}, values, &error));
    assert_non_null(strstr(error.text, "the parameters are being restored"));
    shard_destroy(shard);
}

/* Padding that was written does not make up for a missing parameter. */
TEST(one_parameter_that_is_missing_is_missed)
{
    float *values;
    begin(OPTIMIZER_SGD, 0);
    shard_begin_write(shard, 1);
    const struct range most = {span->first + 1, (uint32_t)span->count - 1}, first = {span->first, 1};
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, most, &values, &error));
    memset(values, 0, most.count * sizeof *values);
    shard_wrote(shard, STORE_PARAMETERS, most);
    assert_false(shard_end_write(shard, 0, 1, &error));
    char wanted[100];
    size_t real = 0;
    for (int i = 0; i < model.variable_count; i++) {
        real += (size_t)model.variables[i].rows * (size_t)model.variables[i].cols;
    }
    snprintf(wanted, sizeof wanted, "only %zu of this shard's %zu parameters were written", real - 1, real);
    assert_string_equal(error.text, wanted);
    shard_begin_write(shard, 2);
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, first, &values, &error));
    *values = 0;
    shard_wrote(shard, STORE_PARAMETERS, first);
    shard_wrote(shard, STORE_PARAMETERS, first); /* repeated floats count once */
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, most, &values, &error));
    memset(values, 0, most.count * sizeof *values);
    shard_wrote(shard, STORE_PARAMETERS, most);
    assert_true(shard_end_write(shard, 0, 1, &error));
    shard_destroy(shard);
}

TEST(a_restore_must_be_whole_and_finite)
{
    float *values;
    begin(OPTIMIZER_MOMENTUM, 0.5);
    const struct range all = {span->first, (uint32_t)span->count}, half = {span->first, (uint32_t)span->count / 2};
    shard_begin_write(shard, 1);
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, half, &values, &error));
    memset(values, 0, half.count * sizeof *values);
    shard_wrote(shard, STORE_PARAMETERS, half);
    assert_false(shard_end_write(shard, 0, 1, &error));
    assert_non_null(strstr(error.text, "parameters were written"));
    assert_true(shard_claim_write(shard, STORE_PARAMETERS, all, &values, &error));
    memset(values, 0, all.count * sizeof *values);
    *values = 1.0f / 0.0f;
    shard_wrote(shard, STORE_PARAMETERS, all);
    assert_false(shard_end_write(shard, 0, 1, &error));
    assert_non_null(strstr(error.text, "vector 0 was written with a value that is not finite"));
    *values = 0;
    assert_true(shard_claim_write(shard, STORE_SLOT0, all, &values, &error));
    memset(values, 0, all.count * sizeof *values);
    values[7] = -1.0f / 0.0f;
    shard_wrote(shard, STORE_SLOT0, all);
    assert_false(shard_end_write(shard, 0, 1, &error));
    assert_non_null(strstr(error.text, "vector 1 was written with a value that is not finite"));
    values[7] = 0;
    if (!shard_end_write(shard, 0, 1, &error)) {
        fail_msg("%s", error.text);
    }
    uint64_t version;
    int64_t step = 9;
    shard_now(shard, &version, &step);
    assert_true(version == 1 && step == 0);
    shard_now(shard, NULL, NULL);
    shard_destroy(shard);
}

int main(void)
{
    return check_run(NULL, NULL);
}
