/* The pipeline: steps overlap with pushes, in order, on parameters as old as promised, and each push counts once. */
#include "tests/check.h"
#include "worker/remote/exchange/push_pull.h"

#include "tests/worker/remote/exchange/fake_engine.h"
#include "tests/worker/remote/exchange/fake_ps.h"

enum { STEPS = 20 };

struct bench {
    struct fake_ps ps;
    struct fake_engine engine;
    struct traffic traffic;
    struct push_pull exchange;
    struct pipeline *pipeline;
    atomic_bool computes;
    int depth;
};

static void begin(struct bench *bench, const struct engine_table *table, int depth, const char *const *flags)
{
    struct error error;
    memset(bench, 0, sizeof *bench);
    fake_ps_start(&bench->ps, flags);
    bench->depth = depth;
    bench->engine.engine.table = table;
    bench->engine.parameters = calloc(bench->ps.model.float_count, sizeof(float));
    struct push_pull_options options = {.config = &bench->ps.config,
                                        .model = &bench->ps.model,
                                        .engine = &bench->engine.engine,
                                        .identity = &bench->ps.identity,
                                        .traffic = &bench->traffic,
                                        .quiet = true};
    assert_true(push_pull_create(&bench->exchange, &options, &error));
    assert_true(pipeline_create(&bench->pipeline, &bench->exchange, &bench->engine.engine, depth, &error));
    assert_int_equal(push_pull_join(&bench->exchange, &error), EXCHANGE_OK);
    assert_true(pipeline_load(bench->pipeline, &error));
}

static void end(struct bench *bench)
{
    pipeline_destroy(bench->pipeline);
    push_pull_destroy(&bench->exchange);
    free(bench->engine.parameters);
    fake_ps_free(&bench->ps);
}

/* Each gradient subtracts 1 from every parameter's negative: parameters count the pushes that they contain. */
static void fill(struct outbox *outbox, const struct model *model)
{
    struct gradient_sink sink = outbox_sink(outbox);
    outbox_begin(outbox);
    for (int v = 0; v < model->variable_count; v++) {
        const struct variable *variable = &model->variables[v];
        float row[64];
        for (int c = 0; c < variable->cols; c++) {
            row[c] = -1.0f;
        }
        for (int r = 0; r < variable->rows; r++) {
            struct gradient_block block = {
                .variable = v, .row = r, .rows = 1, .cols = variable->cols, .values = row, .stride = variable->cols};
            sink.block(sink.context, &block);
        }
    }
}

/* All parameters contain the same pushes. */
static int pushes_held(const struct bench *bench)
{
    const struct model *model = &bench->ps.model;
    int held = (int)bench->engine.parameters[0];
    for (int v = 0; v < model->variable_count; v++) {
        const struct variable *variable = &model->variables[v];
        for (int r = 0; r < variable->rows; r++) {
            for (int c = 0; c < variable->cols; c++) {
                size_t i = variable->offset + (size_t)r * (size_t)variable->stride + (size_t)c;
                assert_true(bench->engine.parameters[i] == (float)held);
            }
        }
    }
    return held;
}

/* Until the pushes of that many steps were answered while this one "computes"; a minute at most. */
static void compute(struct bench *bench, int overlapped)
{
    atomic_store(&bench->computes, true);
    for (int tries = 0; tries < 60000 && atomic_load(&bench->ps.overlapped) < overlapped; tries++) {
        usleep(1000);
    }
    atomic_store(&bench->computes, false);
}

/* Step number i, from 0: "computes" on the engine's parameters, for that long, then hands over. */
static enum exchange_result step(struct bench *bench, int i, int overlapped, int64_t *global_step, struct error *error)
{
    struct push_answer answer;
    int answers;
    int held = pushes_held(bench);
    assert_in_range(held, i > bench->depth ? i - bench->depth : 0, i);
    fill(pipeline_outbox(bench->pipeline), &bench->ps.model);
    compute(bench, overlapped);
    struct push_note note = {.base_step = *global_step, .local_step = i, .examples = 1};
    enum exchange_result how = pipeline_push(bench->pipeline, &note, &answer, &answers, error);
    if (answers > 0 && how == EXCHANGE_OK) { /* otherwise they stay in the mirror */
        *global_step = answer.global_step;
        assert_int_equal(answer.global_step, pushes_held(bench));
        assert_true(answer.staleness <= (unsigned)bench->depth);
    }
    return how;
}

static void settle(struct bench *bench, int pushes)
{
    struct push_answer answer;
    struct error error;
    int answers;
    assert_int_equal(pipeline_drain(bench->pipeline, &answer, &answers, &error), EXCHANGE_OK);
    assert_int_equal(pushes_held(bench), pushes);
    fake_ps_stop(&bench->ps);
    assert_int_equal(bench->ps.steps, pushes);
}

TEST(order_and_age)
{
    const char *const bfloat16[] = {"wire_dtype", "bfloat16", NULL};
    const struct engine_table *tables[] = {&fake_engine_near, &fake_engine_far};
    for (int depth = 1; depth <= 4; depth++) {
        struct bench bench;
        struct error error;
        int64_t global_step = 0;
        begin(&bench, tables[depth % 2], depth, depth > 2 ? bfloat16 : NULL);
        bench.ps.delay_ms = 4;
        for (int i = 0; i < STEPS; i++) {
            assert_int_equal(step(&bench, i, 0, &global_step, &error), EXCHANGE_OK);
        }
        settle(&bench, STEPS);
        for (int k = 0; k < STEPS; k++) {
            assert_int_equal(bench.ps.sequences[k], k + 1);
            assert_int_equal(bench.ps.seen[k].local_step, k);
            assert_in_range(bench.ps.seen[k].base_step, k > depth ? k - depth : 0, k);
        }
        end(&bench);
    }
}

/* A push is in flight while the next step is computed. */
TEST(steps_overlap)
{
    struct bench bench;
    struct error error;
    int64_t global_step = 0;
    begin(&bench, &fake_engine_near, 1, NULL);
    bench.ps.delay_ms = 10;
    bench.ps.computes = &bench.computes;
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(step(&bench, i, i, &global_step, &error), EXCHANGE_OK);
    }
    atomic_store(&bench.ps.all_computed, true);
    settle(&bench, STEPS);
    assert_int_equal(atomic_load(&bench.ps.overlapped), STEPS - 1); /* all but the last */
    end(&bench);
}

TEST(broken_connections)
{
    struct bench bench;
    struct error error;
    int64_t global_step = 0;
    begin(&bench, &fake_engine_near, 2, NULL);
    bench.ps.cut_in_push = 3;
    bench.ps.cut_before_answer = 7;
    bench.ps.cut_in_answer = 12;
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(step(&bench, i, 0, &global_step, &error), EXCHANGE_OK);
    }
    settle(&bench, STEPS);
    assert_int_equal(bench.ps.pushes, STEPS + 2);
    for (int k = 1; k < bench.ps.pushes; k++) {
        assert_in_range(bench.ps.sequences[k], bench.ps.sequences[k - 1], bench.ps.sequences[k - 1] + 1);
    }
    end(&bench);
}

/* The result of a push is in the sum of answers, however many came together. */
TEST(a_push_that_is_not_finite)
{
    struct bench bench;
    struct push_answer answer;
    struct error error;
    bool not_finite = false;
    int answers, all = 0;
    begin(&bench, &fake_engine_near, 4, NULL);
    bench.ps.wrong_at = 1;
    bench.ps.outcome = PUSH_NOT_FINITE;
    for (int i = 0; i < 4; i++) {
        const struct push_note note = {.base_step = 0, .local_step = i, .examples = 1};
        fill(pipeline_outbox(bench.pipeline), &bench.ps.model);
        assert_int_equal(pipeline_push(bench.pipeline, &note, &answer, &answers, &error), EXCHANGE_OK);
        not_finite = not_finite || (answers > 0 && answer.not_finite);
        all += answers;
    }
    assert_int_equal(pipeline_drain(bench.pipeline, &answer, &answers, &error), EXCHANGE_OK);
    assert_true(not_finite || answer.not_finite);
    assert_int_equal(all + answers, 4);
    assert_int_equal(answer.global_step, 3);
    assert_int_equal(pushes_held(&bench), 3);
    fake_ps_stop(&bench.ps);
    end(&bench);
}

/* The model was restored: pushes in flight are dropped, none is sent after the failed one, and training continues. */
TEST(restored_model)
{
    struct bench bench;
    struct push_answer answer;
    struct error error;
    int64_t global_step = 0;
    int answers, i = 0;
    begin(&bench, &fake_engine_near, 2, NULL);
    bench.ps.wrong_at = 5;
    bench.ps.error = ERROR_OLD_GENERATION;
    while (step(&bench, i, 0, &global_step, &error) == EXCHANGE_OK) {
        i++;
        assert_true(i < STEPS);
    }
    assert_int_equal(pipeline_drain(bench.pipeline, &answer, &answers, &error), EXCHANGE_REJOIN);
    assert_non_null(strstr(error.text, "as the test wants"));
    assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
    assert_true(pipeline_load(bench.pipeline, &error));
    assert_int_equal(pushes_held(&bench), 4);
    global_step = 4;
    for (i = 4; i < STEPS; i++) {
        assert_int_equal(step(&bench, i, 0, &global_step, &error), EXCHANGE_OK);
    }
    settle(&bench, STEPS);
    assert_int_equal(bench.ps.pushes, STEPS + 1);
    end(&bench);
}

int main(void)
{
    return check_run(NULL, NULL);
}
