/*
 * Push and pull against a ps that breaks connections and refuses: each push counts once, and its error tells what to
 * do.
 */
#include "tests/check.h"
#include "worker/remote/exchange/push_pull.h"

#include "base/config.h"
#include "tests/worker/remote/exchange/fake_engine.h"
#include "tests/worker/remote/exchange/fake_ps.h"

enum { PUSHES = 12 };

/* One worker and its ps. */
struct bench {
    struct fake_ps ps;
    struct fake_engine engine;
    struct traffic traffic;
    struct push_pull exchange;
    struct outbox outbox;
    bool given_up;
};

static bool given_up(void *context)
{
    return ((struct bench *)context)->given_up;
}

static void begin(struct bench *bench, const struct engine_table *table, const char *const *flags)
{
    struct error error;
    memset(bench, 0, sizeof *bench);
    fake_ps_start(&bench->ps, flags);
    bench->engine.engine.table = table;
    bench->engine.parameters = calloc(bench->ps.model.float_count, sizeof(float));
    struct push_pull_options options = {.config = &bench->ps.config,
                                        .model = &bench->ps.model,
                                        .engine = &bench->engine.engine,
                                        .identity = &bench->ps.identity,
                                        .traffic = &bench->traffic,
                                        .given_up = given_up,
                                        .context = bench,
                                        .quiet = true};
    assert_true(push_pull_create(&bench->exchange, &options, &error));
    outbox_create(&bench->outbox, &bench->ps.model, outbox_form(&bench->ps.config), NULL);
    assert_int_equal(push_pull_join(&bench->exchange, &error), EXCHANGE_OK);
}

static void end(struct bench *bench)
{
    push_pull_destroy(&bench->exchange);
    outbox_destroy(&bench->outbox);
    free(bench->engine.parameters);
    fake_ps_free(&bench->ps);
}

/* A gradient of `value` everywhere, for all variables. */
static void fill(struct outbox *outbox, const struct model *model, float value)
{
    struct gradient_sink sink = outbox_sink(outbox);
    outbox_begin(outbox);
    for (int v = 0; v < model->variable_count; v++) {
        const struct variable *variable = &model->variables[v];
        float row[64];
        for (int c = 0; c < variable->cols; c++) {
            row[c] = value;
        }
        for (int r = 0; r < variable->rows; r++) {
            struct gradient_block block = {
                .variable = v, .row = r, .rows = 1, .cols = variable->cols, .values = row, .stride = variable->cols};
            sink.block(sink.context, &block);
        }
    }
}

static enum exchange_result push(struct bench *bench, int number, struct push_answer *answer, struct error *error)
{
    struct push_note note = {.base_step = bench->exchange.global_step, .local_step = number, .examples = 1};
    fill(&bench->outbox, &bench->ps.model, -1.0f);
    push_pull_pack(&bench->exchange, &bench->outbox);
    return push_pull_exchange(&bench->exchange, &bench->outbox, &note, answer, error);
}

/* All rows of the engine's parameters are `value`, and the padding between them is unchanged. */
static void assert_parameters(const struct bench *bench, float value)
{
    for (int v = 0; v < bench->ps.model.variable_count; v++) {
        const struct variable *variable = &bench->ps.model.variables[v];
        for (int r = 0; r < variable->rows; r++) {
            for (int c = 0; c < variable->stride; c++) {
                float is =
                    bench->engine.parameters[variable->offset + (size_t)r * (size_t)variable->stride + (size_t)c];
                assert_true(is == (c < variable->cols ? value : 0.0f));
            }
        }
    }
}

static void push_all(struct bench *bench)
{
    struct push_answer answer;
    struct error error;
    for (int i = 1; i <= PUSHES; i++) {
        if (push(bench, i, &answer, &error) != EXCHANGE_OK) {
            fail_msg("push %d: %s", i, error.text);
        }
        assert_int_equal(answer.global_step, i);
        assert_false(answer.over);
        assert_parameters(bench, (float)i);
    }
}

TEST(parameters_land)
{
    const struct engine_table *tables[] = {&fake_engine_near, &fake_engine_far};
    const char *const bfloat16[] = {"wire_dtype", "bfloat16", NULL};
    for (int i = 0; i < 4; i++) {
        struct bench bench;
        begin(&bench, tables[i % 2], i < 2 ? NULL : bfloat16);
        push_all(&bench);
        assert_true(i % 2 == 0 ? bench.engine.writes == 0 : bench.engine.writes > 0);
        fake_ps_stop(&bench.ps);
        for (int k = 0; k < PUSHES; k++) {
            assert_int_equal(bench.ps.sequences[k], k + 1);
            assert_int_equal(bench.ps.seen[k].base_step, k);
            assert_int_equal(bench.ps.seen[k].base_version, k + 1);
        }
        assert_int_equal(bench.ps.pushes, PUSHES);
        assert_int_equal(atomic_load(&bench.traffic.retries), 0);
        end(&bench);
    }
}

/* Invalid differences end the connection; the next one is sent everything, and nothing is lost or counted twice. */
TEST(differences_that_make_no_sense)
{
    const char *const bfloat16[] = {"wire_dtype", "bfloat16", NULL};
    struct bench bench;
    begin(&bench, &fake_engine_near, bfloat16);
    bench.ps.cut_in_push = 2;
    bench.ps.short_at = 4;
    bench.ps.nonsense_at = 7;
    bench.ps.cut_before_answer = 10;
    push_all(&bench);
    fake_ps_stop(&bench.ps);
    assert_int_equal(bench.ps.steps, PUSHES);
    assert_int_equal(bench.ps.connections, 5);
    end(&bench);
}

/*
 * Packed answers: a worker with a version is sent the changes to the next. A truncated or malformed answer leaves no
 * version, and everything is sent again: what was added once must not be added again.
 */
TEST(packed_answers_count_once)
{
    static const char *const int8[] = {"wire_dtype", "int8", "issync", "1", NULL};
    const struct engine_table *tables[] = {&fake_engine_near, &fake_engine_far};
    for (int i = 0; i < 2; i++) {
        struct bench bench;
        begin(&bench, tables[i], int8);
        bench.ps.cut_in_push = 2;
        bench.ps.cut_behind = 4;
        bench.ps.cut_in_answer = 6;
        bench.ps.short_at = 8;
        bench.ps.nonsense_at = 10;
        bench.ps.cut_before_answer = 12;
        push_all(&bench);
        fake_ps_stop(&bench.ps);
        assert_int_equal(bench.ps.steps, PUSHES);
        assert_int_equal(bench.ps.connections, 7);
        assert_int_equal(bench.ps.pushes, PUSHES + 5);
        for (int k = 1; k < bench.ps.pushes; k++) {
            const bool again = bench.ps.sequences[k] == bench.ps.sequences[k - 1];
            const bool broke_off = again && k != 8 && k != 12; /* none of those had arrived */
            assert_int_equal(bench.ps.seen[k].base_version, broke_off ? 0 : bench.ps.sequences[k]);
        }
        end(&bench);
    }
}

/*
 * The connection breaks while a push is sent, after it was applied, and in its answer: it is sent again, and counts
 * once.
 */
TEST(broken_connections)
{
    struct bench bench;
    begin(&bench, &fake_engine_near, NULL);
    bench.ps.cut_in_push = 3;
    bench.ps.cut_before_answer = 6;
    bench.ps.cut_in_answer = 9;
    bench.ps.beyond_at = 11;
    push_all(&bench);
    fake_ps_stop(&bench.ps);
    assert_int_equal(bench.ps.steps, PUSHES);
    assert_int_equal(bench.ps.pushes, PUSHES + 3); /* those applied but not answered were sent twice */
    assert_int_equal(bench.ps.connections, 5);
    assert_int_equal(atomic_load(&bench.traffic.retries), 4);
    end(&bench);
}

/* max_staleness: the push counts, and is asked about again until others have caught up. */
TEST(answers_that_take_long)
{
    struct bench bench;
    begin(&bench, &fake_engine_near, NULL);
    bench.ps.wrong_at = 4;
    bench.ps.error = ERROR_TOO_LATE;
    push_all(&bench);
    fake_ps_stop(&bench.ps);
    assert_int_equal(bench.ps.steps, PUSHES);
    assert_int_equal(bench.ps.pushes, PUSHES + 1);
    assert_int_equal(bench.ps.sequences[3], 4);
    assert_int_equal(bench.ps.sequences[4], 4);
    assert_int_equal(bench.ps.connections, 1);
    end(&bench);
}

TEST(errors_tell_what_to_do)
{
    static const struct {
        uint16_t code;
        enum exchange_result end;
    } cases[] = {{ERROR_OLD_GENERATION, EXCHANGE_REJOIN},
                 {ERROR_NOT_READY, EXCHANGE_REJOIN},
                 {ERROR_JOB_OVER, EXCHANGE_REJOIN},
                 {ERROR_BAD_REQUEST, EXCHANGE_FAILED},
                 {ERROR_NOT_ALLOWED, EXCHANGE_FAILED}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench bench;
        struct push_answer answer;
        struct error error;
        begin(&bench, &fake_engine_near, NULL);
        bench.ps.wrong_at = 2;
        bench.ps.error = cases[i].code;
        assert_int_equal(push(&bench, 1, &answer, &error), EXCHANGE_OK);
        assert_int_equal(push(&bench, 2, &answer, &error), cases[i].end);
        assert_non_null(strstr(error.text, "as the test wants"));
        assert_non_null(strstr(error.text, "ps 0 (127.0.0.1:"));
        /* And nothing of it is left: after joining again training continues. */
        assert_int_equal(push_pull_join(&bench.exchange, &error), EXCHANGE_OK);
        assert_parameters(&bench, 1);
        assert_int_equal(push(&bench, 3, &answer, &error), EXCHANGE_OK);
        assert_parameters(&bench, 2);
        fake_ps_stop(&bench.ps);
        end(&bench);
    }
}

TEST(outcomes)
{
    for (uint8_t outcome = 4; outcome <= 5; outcome++) { /* not finite; not wanted, the job is over */
        struct bench bench;
        struct push_answer answer;
        struct error error;
        begin(&bench, &fake_engine_near, NULL);
        bench.ps.wrong_at = 1;
        bench.ps.outcome = outcome;
        assert_int_equal(push(&bench, 1, &answer, &error), EXCHANGE_OK);
        assert_int_equal(answer.not_finite, outcome == 4);
        assert_int_equal(answer.over, outcome == 5);
        assert_parameters(&bench, 0);
        fake_ps_stop(&bench.ps);
        end(&bench);
    }
}

/* Nobody is there: a wait can be told to stop, and does so soon. */
TEST(waiting_can_be_given_up)
{
    struct bench bench;
    struct push_answer answer;
    struct error error;
    begin(&bench, &fake_engine_near, NULL);
    fake_ps_stop(&bench.ps);
    bench.given_up = true;
    double begun_s = clock_monotonic_s();
    assert_int_equal(push(&bench, 1, &answer, &error), EXCHANGE_STOPPED);
    assert_true(clock_monotonic_s() - begun_s < 30);
    end(&bench);
}

/* Data too long for a frame, by bytes or by ranges, is sent in several, and none of it is lost. */
TEST(pushes_of_several_frames)
{
    static const char *const layers[] = {"1100,1000", "9000,3"};
    for (int scattered = 0; scattered < 2; scattered++) {
        const char *const flags[] = {"layers", layers[scattered], NULL};
        static const float row[1000] = {1, 2, 3};
        struct bench bench;
        struct push_answer answer;
        struct error error;
        begin(&bench, &fake_engine_near, flags);
        const struct variable *weights = &bench.ps.model.variables[0];
        struct gradient_sink sink = outbox_sink(&bench.outbox);
        outbox_begin(&bench.outbox);
        for (int r = 0; r < weights->rows; r += 1 + scattered) {
            sink.block(sink.context,
                       &(struct gradient_block){
                           .row = r, .rows = 1, .cols = weights->cols, .values = row, .stride = weights->cols});
        }
        push_pull_pack(&bench.exchange, &bench.outbox);
        const struct push_note note = {.examples = 1};
        assert_int_equal(push_pull_exchange(&bench.exchange, &bench.outbox, &note, &answer, &error), EXCHANGE_OK);
        fake_ps_stop(&bench.ps);
        assert_int_equal(bench.ps.frames, 2);
        assert_int_equal(bench.ps.pushes, 1);
        for (int r = 0; r < weights->rows; r++) {
            const float *there = bench.ps.parameters + (size_t)r * (size_t)weights->stride;
            const float wanted = scattered && r % 2 == 1 ? 0 : -1;
            assert_true(there[0] == wanted && there[1] == 2 * wanted && there[2] == 3 * wanted);
        }
        end(&bench);
    }
}

/* If a ps restarts all wait for worker 0, which has the model. The delay grows with the fleet. */
TEST(worker_0_comes_back_first)
{
    struct bench bench;
    struct config_cluster cluster = {.lease_secs = 30, .worker_hosts = {.count = 2}};
    assert_true(pace_return_s(&cluster) <= 0.02);
    cluster.worker_hosts.count = 50;
    assert_true(pace_return_s(&cluster) == 0.5);
    cluster.worker_hosts.count = 10000;
    assert_true(pace_return_s(&cluster) == 1);
    cluster.lease_secs = 2;
    assert_true(pace_return_s(&cluster) == 0.25);
    for (int index = 0; index < 2; index++) {
        begin(&bench, &fake_engine_near, NULL);
        push_pull_destroy(&bench.exchange);
        fake_ps_stop(&bench.ps); /* nobody is connected to any more */
        bench.ps.config.cluster.task_index = index;
        bench.ps.config.cluster.lease_secs = 30;
        const struct push_pull_options options = {.config = &bench.ps.config,
                                                  .model = &bench.ps.model,
                                                  .engine = &bench.engine.engine,
                                                  .identity = &bench.ps.identity,
                                                  .traffic = &bench.traffic};
        struct error error;
        assert_true(push_pull_create(&bench.exchange, &options, &error));
        const struct link_options *link = &bench.exchange.parts[0].link.options;
        assert_true(index == 0 ? link->longest_delay_s <= 0.1 && link->return_within_s == 0
                               : link->return_within_s == pace_return_s(&bench.ps.config.cluster));
        end(&bench);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
