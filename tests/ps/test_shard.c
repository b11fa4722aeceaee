/*
 * Shards compared with their slow reference. However the model is divided into shards, blocks and ranges, and whatever
 * workers received when, the bits are the same.
 */
#include "tests/check.h"
#include "tests/ps/twin.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include "ps/store/codec.h"

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

TEST(test_shards_equal_the_whole_vector)
{
    struct test_random random = test_random_begin("shard");
    for (int variant = 0; variant < 40; variant++) {
        int shape = test_random_below(&random, 4);
        int ps_count = 1 + test_random_below(&random, MAX_PS);
        run_variant(shape, variant, ps_count, (enum placement_policy)test_random_below(&random, 3), &random);
    }
}

/* --- One shard --- */

/* No two of them could be one, and together they hold every parameter once. */
TEST(test_blocks_are_as_large_as_they_may_be)
{
    struct test_random random = test_random_begin("blocks");
    for (int shape = 0; shape <= STRIPES; shape++) {
        struct fixture f;
        size_t floats = 0;
        set_up(&f, shape, 0, 1, PLACEMENT_RANGES, &random);
        const struct shard *shard = f.shards[0];
        for (size_t i = 0; i < shard->block_count; i++) {
            const struct shard_block *block = &shard->blocks[i], *next = block + 1;
            floats += (size_t)block->rows * block->cols;
            assert_true(block_extent(block) <= SHARD_BLOCK);
            assert_int_equal(block->first % MODEL_ROW_ALIGN, 0);
            if (i + 1 == shard->block_count || next->update != block->update) {
                continue;
            }
            if (next->first == block->first + block->cols) {
                assert_true(block->cols + next->cols > SHARD_BLOCK); /* of the same row */
            } else {
                assert_true((block->rows + next->rows) * block->stride > SHARD_BLOCK);
            }
        }
        assert_int_equal(floats, f.model.parameter_count);
        tear_down(&f);
    }
}

TEST(test_unchanged_blocks_stay_away)
{
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
    /* Asked again, as a retry does; from the start; and without changes. */
    assert_true(shard_changes(f.shards[0], GENERATION, stage, 1, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.value_count, 500);
    assert_true(shard_changes(f.shards[0], GENERATION, stage, 0, DTYPE_FLOAT32, &changes));
    assert_true(changes.value_count >= f.model.parameter_count);
    assert_true(shard_changes(f.shards[0], GENERATION, stage, changes.version, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.value_count, 0);
    tear_down(&f);
}

TEST(test_bfloat16_answers_are_rounded)
{
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

/* What a connection was told is remembered float by float, whatever ranges it comes in. */
TEST(test_ranges_are_told_one_after_another)
{
    enum { FIRST = 40, SECOND = 64 };
    struct test_random random = test_random_begin("told");
    struct fixture f;
    struct error error;
    uint8_t bytes[2 * RANGE_BYTES], encoded[4 * (FIRST + SECOND)], wanted[4 * (FIRST + SECOND)];
    uint16_t halves[FIRST + SECOND], known[FIRST + SECOND] = {0};
    set_up(&f, 1, 0, 1, PLACEMENT_RANGES, &random);
    shard_destroy(f.shards[0]);
    f.config.cluster.wire_dtype = WIRE_BFLOAT16;
    assert_true(shard_create(&f.shards[0], &f.model, &f.config, 0, &error));
    struct stage *stage = shard_stage(f.shards[0], 0);
    assert_true(stage_keeps_known(stage));
    range_put(bytes, 0, (struct range){0, FIRST});
    range_put(bytes, 1, (struct range){528 * 2, SECOND});
    for (int times = 0; times < 3; times++) {
        for (int i = 0; i < FIRST + SECOND; i++) {
            halves[i] = (uint16_t)(times == 0 ? 37 * i : halves[i] + (times == 2));
        }
        const size_t first = bfloat16_encode_delta(wanted, known, halves, FIRST, false);
        const size_t second = bfloat16_encode_delta(wanted + first, known + FIRST, halves + FIRST, SECOND, false);
        assert_int_equal(stage_encode_delta(stage, 9, &(struct ranges){bytes, 2}, halves, false, encoded),
                         first + second);
        assert_memory_equal(encoded, wanted, first + second);
        assert_true(stage_is_known_to(stage, 9) && !stage_is_known_to(stage, 8));
    }
    tear_down(&f);
}

TEST(test_bfloat16_rounding)
{
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

TEST(test_not_finite_is_seen)
{
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

TEST(test_ranges_that_are_not_held)
{
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

TEST(test_restoring)
{
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
    /* Requests of another generation, and any while it is closed. */
    assert_false(shard_apply(shard, GENERATION - 1, stage, 0, DTYPE_FLOAT32, &changes));
    shard_begin_write(shard, GENERATION + 1);
    assert_false(shard_apply(shard, GENERATION + 1, stage, 0, DTYPE_FLOAT32, &changes));
    assert_false(shard_changes(shard, GENERATION + 1, stage, 0, DTYPE_FLOAT32, &changes));
    assert_false(shard_read(shard, STORE_PARAMETERS, (struct range){0, 4}, out, &error));
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_CLOSED);
    /* Parameters are required, slots and averages are not, and nothing may be NaN. */
    assert_false(shard_end_write(shard, 5, 0, &error));
    /* What is repeated because its connection broke counts once; what was only claimed does not count. */
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
    assert_string_equal(error.text, "vector 1 was written with a value that is not finite");
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

/* Float by float, without padding, however the ranges lie: here of blocks of several rows. */
TEST(test_what_was_written_is_counted)
{
    struct test_random random = test_random_begin("counted");
    struct fixture f;
    struct error error;
    char text[80];
    set_up(&f, 3, 0, 1, PLACEMENT_RANGES, &random);
    struct shard *shard = f.shards[0];
    const struct variable *last = &f.model.variables[f.model.variable_count - 1];
    const size_t end = last->offset + (size_t)last->cols - 1, singly = 300;
    shard_begin_write(shard, GENERATION + 1);
    for (size_t i = 0; i < singly; i++) {
        write_range(shard, STORE_PARAMETERS, (struct span){i, 1}, f.twin[STORE_PARAMETERS]);
    }
    write_range(shard, STORE_PARAMETERS, (struct span){singly, end - singly}, f.twin[STORE_PARAMETERS]);
    assert_false(shard_end_write(shard, 5, 0, &error));
    snprintf(text, sizeof text, "only %zu of this shard's %zu parameters were written", f.model.parameter_count - 1,
             f.model.parameter_count);
    assert_string_equal(error.text, text);
    write_range(shard, STORE_PARAMETERS, (struct span){end, 1}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 5, 0, &error));
    tear_down(&f);
}

/* A single slot of a block, here the last one, is enough for it to move on without a gradient. */
TEST(test_momentum_goes_on_after_a_restore)
{
    struct test_random random = test_random_begin("goes on");
    for (int shape = 0; shape < 4; shape++) {
        struct fixture f;
        struct error error;
        struct changes changes;
        set_up(&f, shape, 1, 1, PLACEMENT_RANGES, &random); /* momentum */
        struct shard *shard = f.shards[0];
        float *nothing = calloc(f.model.float_count, sizeof *nothing);
        for (size_t i = 0; i < shard->block_count; i++) {
            const struct shard_block *block = &shard->blocks[i];
            f.twin[STORE_SLOT0][block->first + (size_t)(block->rows - 1) * (size_t)block->stride + block->cols - 1] = 2;
        }
        shard_begin_write(shard, GENERATION + 1);
        write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
        write_range(shard, STORE_SLOT0, (struct span){0, f.model.float_count}, f.twin[STORE_SLOT0]);
        assert_true(shard_end_write(shard, 0, 0, &error));
        stage_begin(shard_stage(shard, 0));
        assert_true(shard_apply(shard, GENERATION + 1, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
        step_twin(&f, nothing);
        check_vectors(&f);
        free(nothing);
        tear_down(&f);
    }
}

/* Whatever was written there, it begins as it does in a new model; likewise what was not written. */
TEST(test_padding_is_not_taken)
{
    struct test_random random = test_random_begin("padding");
    for (int shape = 0; shape < 4; shape++) {
        struct fixture f;
        struct error error;
        set_up(&f, shape, 22, 1, PLACEMENT_RANGES, &random); /* adagrad, with averages */
        struct shard *shard = f.shards[0];
        const size_t floats = f.model.float_count;
        const struct range all = {0, (uint32_t)floats};
        float *sevens = malloc(floats * sizeof *sevens), *values = malloc(floats * sizeof *values);
        for (size_t i = 0; i < floats; i++) {
            sevens[i] = 7;
        }
        for (int written = 1; written <= 2; written++) { /* the parameters; the slots, too */
            shard_begin_write(shard, GENERATION + (uint32_t)written);
            for (int vector = 0; vector < written; vector++) {
                write_range(shard, (enum store_vector)vector, (struct span){0, floats}, sevens);
            }
            assert_true(shard_end_write(shard, 5, 0, &error));
            for (int vector = STORE_PARAMETERS; vector <= STORE_AVERAGES; vector++) {
                if (!shard_has(shard, (enum store_vector)vector)) {
                    continue;
                }
                const float initial = vector == STORE_SLOT0 ? 0.1f : 0;
                const float own = vector == STORE_SLOT0 && written == 1 ? initial : 7;
                assert_true(shard_read(shard, (enum store_vector)vector, all, values, &error));
                for (size_t i = 0; i < floats; i++) {
                    assert_true(values[i] == (in_padding(&f.model, i) ? initial : own));
                }
            }
        }
        free(sevens);
        free(values);
        tear_down(&f);
    }
}

/* Momentum moves a block without a gradient only once it has had one: what never had any is not sent either. */
TEST(test_blocks_rest_after_a_restore)
{
    struct test_random random = test_random_begin("rest");
    struct fixture f;
    struct error error;
    struct changes changes;
    float *values;
    set_up(&f, 1, 1, 1, PLACEMENT_RANGES, &random); /* momentum */
    struct stage *stage = shard_stage(f.shards[0], 0);
    for (uint32_t i = 1; i <= 2; i++) {
        stage_begin(stage);
        assert_true(stage_claim(stage, (struct range){528 * 6 * i, 500}, &values, &error));
        memset(values, 0, 500 * sizeof *values);
        values[17] = 2.0f;
        assert_true(shard_apply(f.shards[0], GENERATION, stage, i, DTYPE_FLOAT32, &changes));
        assert_int_equal(changes.range_count, i);
        assert_int_equal(changes.value_count, 500 * i);
    }
    tear_down(&f);
}

/* While it is written nothing of it is visible: neither values, nor a snapshot of the previous state. */
TEST(test_nothing_is_read_while_it_is_written)
{
    struct test_random random = test_random_begin("closed");
    struct fixture f;
    struct error error;
    float out[4] = {7, 7, 7, 7};
    const float *values;
    int64_t step;
    set_up(&f, 1, 0, 1, PLACEMENT_RANGES, &random);
    struct shard *shard = f.shards[0];
    const struct range few = {0, 4};
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_TAKEN);
    assert_true(shard_snapshot_values(shard, 1, STORE_PARAMETERS, few, &values, &step, &error));
    shard_begin_write(shard, GENERATION + 1);
    assert_false(shard_read(shard, STORE_PARAMETERS, few, out, &error));
    assert_true(out[0] == 7 && out[3] == 7);
    assert_false(shard_snapshot_values(shard, 1, STORE_PARAMETERS, few, &values, &step, &error));
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 9, 0, &error));
    assert_false(shard_snapshot_values(shard, 1, STORE_PARAMETERS, few, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 1, -1, &step), SNAPSHOT_TAKEN); /* the number means another step now */
    assert_int_equal(step, 9);
    shard_release(shard, 1);
    for (uint64_t number = 0; number <= 1; number++) {
        assert_false(shard_snapshot_values(shard, number, STORE_PARAMETERS, few, &values, &step, &error));
        assert_int_equal(step, -1);
    }
    tear_down(&f);
}

/* Of a model with fewer variables than ps. */
TEST(test_a_shard_may_hold_nothing)
{
    struct test_random random = test_random_begin("nothing");
    struct fixture f;
    struct error error;
    struct changes changes;
    const float *values;
    float out[1];
    int64_t step;
    set_up(&f, 2, 1, 4, PLACEMENT_ROUND_ROBIN, &random);
    struct shard *shard = f.shards[3];
    assert_int_equal(shard_floats(shard), 0);
    assert_int_equal(shard_snapshot(shard, SNAPSHOT_ORDER | 7, 1, &step), SNAPSHOT_PENDING);
    stage_begin(shard_stage(shard, 0));
    assert_true(shard_apply(shard, GENERATION, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.global_step, 1);
    assert_int_equal(changes.value_count, 0);
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    assert_int_equal(step, 1);
    assert_true(shard_changes(shard, GENERATION, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    assert_int_equal(changes.value_count, 0);
    assert_false(shard_read(shard, STORE_PARAMETERS, (struct range){0, 1}, out, &error));
    assert_false(shard_snapshot_values(shard, 5, STORE_PARAMETERS, (struct range){0, 1}, &values, &step, &error));
    assert_non_null(strstr(error.text, "floats 0 to 0 are not all held here"));
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

/* A thread of its own that keeps a lock: passes take theirs in order, which this one's owner would not. */
struct keeping {
    pthread_mutex_t *lock;
    atomic_bool has_it, ends;
};

static void *keep(void *context)
{
    struct keeping *keeping = context;
    pthread_mutex_lock(keeping->lock);
    atomic_store(&keeping->has_it, true);
    while (!atomic_load(&keeping->ends)) {
        sched_yield();
    }
    pthread_mutex_unlock(keeping->lock);
    return NULL;
}

/* Some stripes are copied, others are not: it can't be read yet, and requests must be repeated. */
TEST(test_a_snapshot_under_way_is_not_ready)
{
    struct test_random random = test_random_begin("under way");
    struct fixture f;
    struct error error;
    const float *values;
    int64_t step;
    pthread_t thread, keeper;
    set_up(&f, STRIPES, 0, 1, PLACEMENT_RANGES, &random);
    struct shard *shard = f.shards[0];
    struct snapping snapping = {.shard = shard};
    assert_true(shard->stripe_count > 3);
    struct keeping keeping = {.lock = &shard->stripes[2].lock};
    assert_int_equal(pthread_create(&keeper, NULL, keep, &keeping), 0);
    while (!atomic_load(&keeping.has_it)) {
        sched_yield();
    }
    assert_int_equal(pthread_create(&thread, NULL, snap, &snapping), 0);
    while (pthread_mutex_trylock(&shard->stripes[1].lock) == 0) { /* it has that one until it gets the next */
        pthread_mutex_unlock(&shard->stripes[1].lock);
        sched_yield();
    }
    assert_false(shard_snapshot_values(shard, 5, STORE_PARAMETERS, (struct range){0, 4}, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_PENDING);
    atomic_store(&keeping.ends, true);
    pthread_join(keeper, NULL);
    pthread_join(thread, NULL);
    assert_int_equal(snapping.state, SNAPSHOT_TAKEN);
    assert_true(shard_snapshot_values(shard, 5, STORE_PARAMETERS, (struct range){0, 4}, &values, &step, &error));
    assert_int_equal(shard_snapshot(shard, 5, -1, &step), SNAPSHOT_TAKEN);
    tear_down(&f);
}

TEST(test_epochs_of_the_schedule_come_with_the_restore)
{
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

/* Another shard may have lost everything and start with what is in force; so must this one. */
TEST(test_what_is_in_force_stays_so_after_a_restore)
{
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

/* Any live key; and if the rate decays by epochs, the steps of one may change, too, and stay so after a restore. */
TEST(test_all_live_keys_are_taken)
{
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
    /* The chief knows how long an epoch is where it goes on. */
    shard_begin_write(shard, GENERATION + 3);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 20, 10, &error));
    for (int i = 1; i <= 2; i++) {
        fill_stage(shard, shard_stage(shard, 0), -1.0f);
        assert_true(shard_apply(shard, GENERATION + 3, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
        assert_true(*(const float *)changes.values == (float)i * (before / 4));
    }
    /* An epoch may be as short as a step. */
    shard_begin_write(shard, GENERATION + 4);
    write_range(shard, STORE_PARAMETERS, (struct span){0, f.model.float_count}, f.twin[STORE_PARAMETERS]);
    assert_true(shard_end_write(shard, 0, 10, &error));
    shard_schedule(shard, &train, 1, 0);
    for (int i = 0; i < 2; i++) {
        fill_stage(shard, shard_stage(shard, 0), -1.0f);
        assert_true(shard_apply(shard, GENERATION + 4, shard_stage(shard, 0), 0, DTYPE_FLOAT32, &changes));
    }
    assert_true(*(const float *)changes.values == before + before / 2);
    shard_destroy(shard);
    tear_down(&f);
}

/* --- Concurrency --- */

enum { PUSHES = 300 };

struct pusher {
    pthread_t thread;
    struct fixture *f;
    int worker;
    bool failed;
};

/* Every push adds 1 to every parameter, so all numbers of an answer must be equal: the version that it names. */
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

/* Snapshots of future steps and of the current state: each is one step's state throughout. */
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
            continue; /* it was over before the request */
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

TEST(test_pushes_of_many_threads_all_count)
{
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

/* --- Memory --- */

TEST(test_memory_is_as_announced)
{
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
    return check_run(NULL, NULL);
}
