/*
 * What a shard sends to workers, compared with a plain reference that tracks the sent model float by float; and a
 * worker that was away, or starts, has the same as all others.
 */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "net/message.h"
#include "ps/store/codec.h"
#include "ps/shard.h"
#include "tests/check.h"
#include "tests/random.h"

enum { WORKERS = 3, GENERATION = 5, STEPS = 24 };

struct bench {
    struct config config;
    struct model model;
    struct shard *shard;
    float *parameters, *sent; /* [float_count]: the shard's, and the reference's */
    float *views[WORKERS];    /* what each worker has, and of which version; 0: nothing */
    uint64_t versions[WORKERS];
    int pieces, wholes; /* answers of either kind that contained something */
};

/* --- The shard --- */

static void read_vector(const struct bench *bench, enum store_vector vector, float *values)
{
    const struct span *spans;
    struct error error;
    const int count = shard_spans(bench->shard, &spans);
    for (int i = 0; i < count; i++) {
        const struct range range = {spans[i].first, (uint32_t)spans[i].count};
        assert_true(shard_read(bench->shard, vector, range, values + range.first, &error));
    }
}

static void write_vector(const struct bench *bench, enum store_vector vector, const float *from)
{
    const struct span *spans;
    struct error error;
    const int count = shard_spans(bench->shard, &spans);
    for (int i = 0; i < count; i++) {
        float *values;
        const struct range range = {spans[i].first, (uint32_t)spans[i].count};
        assert_true(shard_claim_write(bench->shard, vector, range, &values, &error));
        memcpy(values, from + range.first, range.count * sizeof *values);
        shard_wrote(bench->shard, vector, range);
    }
}

static void restore(struct bench *bench, const float *parameters, const float *sent, int64_t step)
{
    struct error error;
    shard_begin_write(bench->shard, GENERATION);
    write_vector(bench, STORE_PARAMETERS, parameters);
    if (sent) {
        write_vector(bench, STORE_SENT, sent);
    }
    assert_true(shard_end_write(bench->shard, step, 0, &error));
    memset(bench->versions, 0, sizeof bench->versions);
}

static void begin(struct bench *bench, enum wire_dtype dtype, double top, int ps, struct test_random *random)
{
    struct error error;
    static const int layers[] = {50, 130, 10};
    memset(bench, 0, sizeof *bench);
    memcpy(bench->config.model.layers, layers, sizeof layers);
    bench->config.model.layer_count = 3;
    bench->config.train = (struct config_train){.optimizer = OPTIMIZER_SGD, .learning_rate = 1, .lr_decay = 1};
    bench->config.cluster.worker_hosts.count = WORKERS;
    bench->config.cluster.ps_hosts.count = ps;
    bench->config.cluster.issync = true;
    bench->config.cluster.wire_dtype = dtype;
    bench->config.cluster.wire_top = top;
    model_layout(&bench->model, &bench->config.model);
    assert_true(shard_create(&bench->shard, &bench->model, &bench->config, ps - 1, &error));
    assert_true(shard_compresses_answers(bench->shard));
    const size_t floats = bench->model.float_count;
    bench->parameters = calloc(floats, sizeof(float));
    bench->sent = calloc(floats, sizeof(float));
    for (int i = 0; i < WORKERS; i++) {
        bench->views[i] = calloc(floats, sizeof(float));
    }
    for (int v = 0; v < bench->model.variable_count; v++) {
        const struct variable *variable = &bench->model.variables[v];
        for (int row = 0; row < variable->rows; row++) {
            for (int col = 0; col < variable->cols; col++) {
                bench->parameters[variable_at(variable, row, col)] = test_random_float(random);
            }
        }
    }
    restore(bench, bench->parameters, NULL, 0);
    read_vector(bench, STORE_PARAMETERS, bench->sent);
}

static void end(struct bench *bench)
{
    shard_destroy(bench->shard);
    free(bench->parameters);
    free(bench->sent);
    for (int i = 0; i < WORKERS; i++) {
        free(bench->views[i]);
    }
}

/* One step by worker 0: rows change a little or a lot; some stay, unless all must change. */
static void step(struct bench *bench, bool all, struct test_random *random)
{
    static const int worker = 0;
    const struct span *spans;
    struct error error;
    struct stage *stage = shard_stage(bench->shard, worker);
    const int count = shard_spans(bench->shard, &spans), size = -test_random_below(random, 12);
    stage_begin(stage);
    for (int v = 0; v < bench->model.variable_count; v++) {
        const struct variable *variable = &bench->model.variables[v];
        for (int row = 0; row < variable->rows; row++) {
            const size_t first = variable_at(variable, row, 0);
            bool held = false;
            float *values;
            for (int i = 0; i < count; i++) {
                held = held || (first >= spans[i].first && first < spans[i].first + spans[i].count);
            }
            if (!held || (!all && test_random_below(random, 3) == 0)) {
                continue;
            }
            assert_true(stage_claim(stage, (struct range){first, (uint32_t)variable->cols}, &values, &error));
            for (int col = 0; col < variable->cols; col++) {
                values[col] = ldexpf(test_random_float(random), size - test_random_below(random, 5));
            }
        }
    }
    assert_true(shard_aggregate(bench->shard, GENERATION, &worker, 1));
}

/* --- The reference --- */

/* How a block is encoded in int8, float by float. */
static void say_int8(float *said, const float *left, size_t n)
{
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(left[i]));
    }
    const float scale = largest / 127.0f >= FLT_MIN ? largest / 127.0f : 0.0f;
    const float inverse = 1.0f / scale;
    for (size_t i = 0; i < n; i++) {
        said[i] = scale > 0 ? scale * nearbyintf(left[i] * inverse) : 0.0f;
    }
}

static void say(float *said, const float *left, size_t n, enum wire_dtype dtype)
{
    for (size_t i = 0; i < n && dtype != WIRE_INT8; i++) {
        said[i] = dtype == WIRE_FLOAT32 ? left[i] : bfloat16_widen(bfloat16_round(left[i]));
    }
    for (size_t at = 0; at < n && dtype == WIRE_INT8; at += INT8_BLOCK) {
        say_int8(said + at, left + at, n - at < INT8_BLOCK ? n - at : INT8_BLOCK);
    }
}

static int falling(const void *one, const void *other)
{
    const float a = *(const float *)one, b = *(const float *)other;
    return (a < b) - (a > b);
}

/* Those above `least` are chosen, and the first `ties` equal to it. */
static float threshold(const float *left, size_t floats, size_t count, size_t *ties)
{
    float *sorted = malloc(floats * sizeof *sorted);
    for (size_t i = 0; i < floats; i++) {
        sorted[i] = fabsf(left[i]);
    }
    qsort(sorted, floats, sizeof *sorted, falling);
    const float least = sorted[count - 1];
    for (*ties = 0; *ties < count && sorted[count - 1 - *ties] <= least; ++*ties) {
    }
    free(sorted);
    return least;
}

static size_t floats_of(const struct bench *bench, const struct span *spans, int count)
{
    size_t floats = 0;
    for (int v = 0; v < bench->model.variable_count; v++) {
        const struct variable *variable = &bench->model.variables[v];
        for (int row = 0; row < variable->rows; row++) {
            const size_t first = variable_at(variable, row, 0);
            for (int i = 0; i < count; i++) {
                const bool held = first >= spans[i].first && first < spans[i].first + spans[i].count;
                floats += held ? (size_t)variable->cols : 0;
            }
        }
    }
    return floats;
}

/* Brings the reference's sent model up to the shard's parameters. */
static void pack_plainly(struct bench *bench)
{
    const struct config_cluster *cluster = &bench->config.cluster;
    const size_t floats = bench->model.float_count;
    const struct span *spans;
    const int count = shard_spans(bench->shard, &spans);
    float *left = calloc(floats, sizeof *left), *said = calloc(floats, sizeof *said);
    read_vector(bench, STORE_PARAMETERS, bench->parameters);
    for (int i = 0; i < count; i++) {
        for (size_t k = spans[i].first; k < spans[i].first + spans[i].count; k++) {
            left[k] = bench->parameters[k] - bench->sent[k];
        }
    }
    size_t chosen = (size_t)ceil(cluster->wire_top * (double)floats_of(bench, spans, count));
    size_t ties = 0;
    const float least = threshold(left, floats, chosen, &ties);
    for (int i = 0; i < count; i++) {
        for (size_t at = 0; at < spans[i].count; at += PACKED_FLOATS) {
            const size_t n = spans[i].count - at < PACKED_FLOATS ? spans[i].count - at : PACKED_FLOATS;
            const size_t first = spans[i].first + at;
            size_t places[PACKED_FLOATS], taken = 0;
            float values[PACKED_FLOATS];
            for (size_t k = first; k < first + n; k++) {
                const float magnitude = fabsf(left[k]);
                const bool is_tie = magnitude <= least && magnitude >= least;
                if (cluster->wire_top >= 1 || (magnitude > 0 && (magnitude > least || (is_tie && ties > 0)))) {
                    ties -= is_tie && ties > 0;
                    values[taken] = left[k];
                    places[taken++] = k;
                }
            }
            say(said, values, taken, cluster->wire_dtype);
            for (size_t k = 0; k < taken; k++) {
                bench->sent[places[k]] += said[k];
            }
        }
    }
    free(left);
    free(said);
}

/* --- Workers --- */

static void take_pieces(float *view, const struct changes *changes)
{
    const uint8_t *at = changes->values, *const all = at + changes->value_count;
    while (at < all) {
        const struct sent_piece piece = sent_piece_at(at);
        assert_true(piece.range.count <= PACKED_FLOATS);
        assert_int_equal(
            sent_model_apply(view + piece.range.first, piece.bytes, piece.size, piece.range.count, changes->dtype),
            piece.size);
        at = piece.bytes + piece.size;
    }
    assert_ptr_equal(at, all);
}

static void take_whole(float *view, const struct changes *changes)
{
    const struct ranges ranges = {changes->ranges, changes->range_count};
    const float *values = changes->values;
    for (uint32_t i = 0; i < ranges.count; i++) {
        const struct range range = range_get(&ranges, i);
        memcpy(view + range.first, values, range.count * sizeof *values);
        values += range.count;
    }
}

static void answer(struct bench *bench, int worker)
{
    struct changes changes;
    const enum dtype dtype = sent_model_gradient_dtype(&bench->config.cluster);
    assert_true(shard_answer(bench->shard, GENERATION, shard_stage(bench->shard, worker), bench->versions[worker],
                             dtype, &changes));
    if (changes.dtype == DTYPE_FLOAT32) {
        take_whole(bench->views[worker], &changes);
        bench->wholes++;
    } else {
        assert_int_equal(changes.dtype, dtype);
        assert_true(bench->versions[worker] > 0);
        take_pieces(bench->views[worker], &changes);
        bench->pieces += changes.value_count > 0;
    }
    shard_answered(bench->shard, &changes);
    bench->versions[worker] = changes.version;
}

/* Worker 0 is always there, 1 is away now and then, 2 for long, or its answer was cut off. */
static void run(enum wire_dtype dtype, double top, int ps, struct test_random *random)
{
    struct bench bench;
    begin(&bench, dtype, top, ps, random);
    const size_t bytes = bench.model.float_count * sizeof(float);
    float *sent = calloc(1, bytes);
    for (int i = 0; i < STEPS; i++) {
        step(&bench, false, random);
        pack_plainly(&bench);
        read_vector(&bench, STORE_SENT, sent);
        assert_memory_equal(sent, bench.sent, bytes);
        for (int worker = 0; worker < WORKERS; worker++) {
            if (worker > 0 && test_random_below(random, 4 * worker) > 0) {
                continue;
            }
            bench.versions[worker] = worker == 2 && test_random_below(random, 3) == 0 ? 0 : bench.versions[worker];
            answer(&bench, worker);
            answer(&bench, worker); /* a worker that has everything is sent nothing */
            assert_memory_equal(bench.views[worker], bench.sent, bytes);
        }
    }
    assert_true(bench.pieces >= STEPS - 1);
    free(sent);
    end(&bench);
}

TEST(everybody_knows_what_a_plain_reference_says)
{
    struct test_random random = test_random_begin("sent, of a shard");
    for (int dtype = WIRE_FLOAT32; dtype <= WIRE_INT8; dtype++) {
        for (int ps = 1; ps <= 2; ps++) {
            run((enum wire_dtype)dtype, 0.05, ps, &random);
        }
    }
    run(WIRE_INT8, 1, 1, &random);
    run(WIRE_INT8, 1, 2, &random);
}

/*
 * A log of int8 is worth keeping while it is smaller than the model it leads to, whose floats take 4 bytes against
 * 1.06.
 */
TEST(who_was_away_for_long_is_told_all_of_it)
{
    struct test_random random = test_random_begin("sent, away");
    struct bench bench;
    begin(&bench, WIRE_INT8, 1, 1, &random);
    answer(&bench, 1);
    for (int away = 1; away < 6; away++) {
        const int wholes = bench.wholes;
        for (int i = 0; i < away; i++) {
            step(&bench, true, &random);
            pack_plainly(&bench);
        }
        answer(&bench, 1);
        assert_int_equal(bench.wholes - wholes, away > 3);
        assert_memory_equal(bench.views[1], bench.sent, bench.model.float_count * sizeof(float));
    }
    end(&bench);
}

/* Half of the floats, with their positions, take more than half of the log: the step before is dropped. */
TEST(a_log_may_have_room_for_one_step)
{
    struct test_random random = test_random_begin("sent, one");
    struct bench bench;
    begin(&bench, WIRE_FLOAT32, 0.5, 1, &random);
    answer(&bench, 0);
    answer(&bench, 1);
    for (int i = 1; i <= 4; i++) {
        step(&bench, true, &random);
        pack_plainly(&bench);
        answer(&bench, 0);
        assert_int_equal(bench.pieces, i);
        assert_memory_equal(bench.views[0], bench.sent, bench.model.float_count * sizeof(float));
    }
    assert_int_equal(bench.wholes, 2);
    answer(&bench, 1);
    assert_int_equal(bench.wholes, 3);
    assert_memory_equal(bench.views[1], bench.sent, bench.model.float_count * sizeof(float));
    end(&bench);
}

/* Also what has not changed since the model was restored. */
TEST(who_has_nothing_is_told_all_of_it)
{
    struct test_random random = test_random_begin("sent, new");
    struct bench bench;
    struct changes changes;
    begin(&bench, WIRE_INT8, 0.1, 1, &random);
    for (int i = 0; i < 2; i++) {
        assert_true(
            shard_changes(bench.shard, GENERATION, shard_stage(bench.shard, 1), 0, DTYPE_LARGEST_INT8, &changes));
        assert_int_equal(changes.dtype, DTYPE_FLOAT32);
        take_whole(bench.views[1], &changes);
        assert_memory_equal(bench.views[1], bench.sent, bench.model.float_count * sizeof(float));
        step(&bench, false, &random);
        pack_plainly(&bench);
    }
    end(&bench);
}

/* Nearly all floats with their positions take more than the floats alone. */
TEST(what_is_larger_than_the_model_is_not_kept)
{
    struct test_random random = test_random_begin("sent, large");
    struct bench bench;
    begin(&bench, WIRE_FLOAT32, 0.999, 1, &random);
    for (int i = 0; i < 4; i++) {
        answer(&bench, 0);
        assert_memory_equal(bench.views[0], bench.sent, bench.model.float_count * sizeof(float));
        step(&bench, true, &random);
        pack_plainly(&bench);
    }
    assert_int_equal(bench.wholes, 4);
    end(&bench);
}

TEST(a_restored_shard_goes_on_with_the_same_bits)
{
    struct test_random random = test_random_begin("sent, restored");
    for (int i = 0; i < 4; i++) {
        struct bench whole, restored;
        const enum wire_dtype dtype = i % 2 == 0 ? WIRE_INT8 : WIRE_BFLOAT16;
        begin(&whole, dtype, i < 2 ? 0.1 : i == 2 ? 1 : 0.5, 1, &random);
        begin(&restored, dtype, i < 2 ? 0.1 : i == 2 ? 1 : 0.5, 1, &random);
        const size_t bytes = whole.model.float_count * sizeof(float);
        for (int k = 0; k < 5; k++) {
            step(&whole, false, &random);
        }
        read_vector(&whole, STORE_PARAMETERS, whole.parameters);
        read_vector(&whole, STORE_SENT, whole.sent);
        restore(&restored, whole.parameters, whole.sent, 5);
        for (int k = 0; k < 5; k++) {
            struct test_random same = random;
            step(&whole, false, &random);
            step(&restored, false, &same);
        }
        read_vector(&whole, STORE_SENT, whole.sent);
        answer(&restored, 0);
        assert_int_equal(restored.wholes, 1); /* no earlier version leads there */
        assert_memory_equal(restored.views[0], whole.sent, bytes);
        end(&whole);
        end(&restored);
    }
}

/* Versions start over with a restore, and the steps that led to the former ones are forgotten. */
TEST(a_restore_forgets_the_log)
{
    struct test_random random = test_random_begin("sent, forgotten");
    struct bench bench;
    begin(&bench, WIRE_INT8, 1, 1, &random); /* there is room for three whole steps */
    for (int generation = 0; generation < 2; generation++) {
        const int steps = generation == 0 ? 5 : 3; /* the first two of five are no longer there */
        answer(&bench, 0);
        for (int i = 0; i < steps; i++) {
            step(&bench, generation == 0, &random);
            pack_plainly(&bench);
            answer(&bench, 0);
            assert_memory_equal(bench.views[0], bench.sent, bench.model.float_count * sizeof(float));
        }
        assert_int_equal(bench.pieces, generation == 0 ? 5 : 8);
        assert_int_equal(bench.wholes, generation + 1);
        restore(&bench, bench.parameters, NULL, 7);
        read_vector(&bench, STORE_SENT, bench.sent);
    }
    end(&bench);
}

TEST(a_snapshot_has_what_was_told_at_its_step)
{
    struct test_random random = test_random_begin("sent, snapshot");
    struct bench bench;
    struct error error;
    int64_t at;
    begin(&bench, WIRE_INT8, 0.1, 1, &random);
    assert_int_equal(shard_snapshot(bench.shard, 9, 3, &at), SNAPSHOT_PENDING);
    for (int i = 0; i < 6; i++) {
        step(&bench, false, &random);
        if (i < 3) {
            pack_plainly(&bench);
        }
    }
    const struct span *spans;
    const float *values;
    assert_int_equal(shard_snapshot(bench.shard, 9, 3, &at), SNAPSHOT_TAKEN);
    for (int i = 0; i < shard_spans(bench.shard, &spans); i++) {
        const struct range range = {spans[i].first, (uint32_t)spans[i].count};
        assert_true(shard_snapshot_values(bench.shard, 9, STORE_SENT, range, &values, &at, &error));
        assert_int_equal(at, 3);
        assert_memory_equal(values, bench.sent + range.first, range.count * sizeof *values);
    }
    end(&bench);
}

int main(void)
{
    return check_run(NULL, NULL);
}
