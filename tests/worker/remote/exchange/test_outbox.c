/* The outbox: what goes in comes out, as runs within a ps's spans; zeros stay behind, and rounding loses nothing. */
#include "tests/check.h"
#include "worker/remote/exchange/outbox.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

#include <math.h>

#include "base/config.h"
#include "ps/store/codec.h"
#include "tests/random.h"

static struct model model;
static struct config config;

static int lay_out(void **state)
{
    struct error error;
    const struct config_setting settings[] = {{"layers", "23,300,17,5"}};
    if (!config_load(&config, NULL, settings, 1, &error)) {
        return 1;
    }
    model_layout(&model, &config.model);
    return 0;
}

static int forget(void **state)
{
    config_free(&config);
    return 0;
}

static size_t at(const struct variable *variable, int row, int col)
{
    return variable->offset + (size_t)row * (size_t)variable->stride + (size_t)col;
}

/* A gradient of random rows, a third of them zero, in the model's layout; added in strips of up to 7 columns. */
static void fill(struct outbox *outbox, struct test_random *random, float *gradient)
{
    struct gradient_sink sink = outbox_sink(outbox);
    memset(gradient, 0, model.float_count * sizeof *gradient);
    outbox_begin(outbox);
    for (int v = 0; v < model.variable_count; v++) {
        const struct variable *variable = &model.variables[v];
        for (int r = 0; r < variable->rows; r++) {
            bool zero = test_random_below(random, 3) == 0;
            for (int c = 0; !zero && c < variable->cols; c++) {
                gradient[at(variable, r, c)] = test_random_float(random);
            }
        }
        for (int c = 0; c < variable->cols; c += 7) {
            int cols = variable->cols - c < 7 ? variable->cols - c : 7;
            struct gradient_block block = {.variable = v,
                                           .rows = variable->rows,
                                           .col = c,
                                           .cols = cols,
                                           .values = gradient + at(variable, 0, c),
                                           .stride = variable->stride};
            sink.block(sink.context, &block);
        }
    }
}

/* Everything that would be sent, in the model's layout; *floats: how many, *runs: in how many pieces. */
static void empty(const struct outbox *outbox, const struct span *spans, int span_count, float *sent, size_t *floats,
                  int *runs)
{
    struct outbox_cursor cursor = outbox_open(outbox, spans, span_count);
    struct range range;
    const void *from;
    size_t bytes;
    uint64_t end = 0;
    while (outbox_next(&cursor, &range, &from, &bytes)) {
        bool inside = false;
        assert_true(range.count > 0 && range.first >= end);
        end = range.first + range.count;
        for (int i = 0; i < span_count; i++) {
            inside = inside || (range.first >= spans[i].first && end <= spans[i].first + spans[i].count);
        }
        assert_true(inside);
        for (uint32_t i = 0; i < range.count; i++) {
            float *to = &sent[range.first + i];
            *to = outbox->dtype == DTYPE_BFLOAT16 ? bfloat16_widen(((const uint16_t *)from)[i])
                                                  : ((const float *)from)[i];
        }
        *floats += range.count;
        ++*runs;
    }
}

/* A run ends with the row that makes it long enough, or where a row is missing. */
TEST(long_runs)
{
    enum { ROWS = 700, COLS = 100, STRIDE = 112, LONG = 64 * 1024 };
    const struct config_setting settings[] = {{"layers", "700,100"}};
    static float row[COLS];
    struct config large;
    struct model wide;
    struct outbox outbox;
    struct outbox_cursor cursor;
    struct error error;
    struct range range;
    const void *from;
    size_t bytes;
    assert_true(config_load(&large, NULL, settings, 1, &error));
    model_layout(&wide, &large.model);
    const struct span whole = {0, wide.float_count};
    outbox_create(&outbox, &wide, (struct outbox_form){DTYPE_FLOAT32, 1}, NULL);
    const struct gradient_sink sink = outbox_sink(&outbox);
    assert_int_equal(wide.variables[0].stride, STRIDE);
    outbox_begin(&outbox);
    row[COLS - 1] = 1;
    for (int r = 0; r < ROWS; r++) {
        const struct gradient_block block = {.row = r, .rows = 1, .cols = COLS, .values = row, .stride = COLS};
        if (r != 600) {
            sink.block(sink.context, &block);
        }
    }
    const int first_run = (LONG - COLS + STRIDE - 1) / STRIDE + 1; /* rows */
    const int rows[] = {first_run, 600 - first_run, ROWS - 601}, begins[] = {0, first_run, 601};
    cursor = outbox_open(&outbox, &whole, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(outbox_next(&cursor, &range, &from, &bytes), rows[i] > 0);
        assert_int_equal(range.first, begins[i] * STRIDE);
        assert_int_equal(range.count, (rows[i] - 1) * STRIDE + COLS);
        assert_int_equal(bytes, range.count * sizeof(float));
    }
    assert_false(outbox_next(&cursor, &range, &from, &bytes));
    outbox_destroy(&outbox);
    config_free(&large);
}

TEST(all_of_it_once)
{
    struct test_random random = test_random_begin("outbox");
    struct outbox outbox;
    float *gradient = calloc(model.float_count, sizeof *gradient), *sent = calloc(model.float_count, sizeof *sent);
    outbox_create(&outbox, &model, (struct outbox_form){DTYPE_FLOAT32, 1}, NULL);
    for (int ps_count = 1; ps_count <= 5; ps_count++) {
        for (int policy = PLACEMENT_RANGES; policy <= PLACEMENT_GREEDY; policy++) {
            size_t floats = 0;
            int runs = 0;
            fill(&outbox, &random, gradient);
            memset(sent, 0, model.float_count * sizeof *sent);
            for (int ps = 0; ps < ps_count; ps++) {
                struct span spans[PLACEMENT_MAX_SPANS];
                int count = placement_spans(&model, (enum placement_policy)policy, ps_count, ps, spans);
                empty(&outbox, spans, count, sent, &floats, &runs);
            }
            assert_memory_equal(sent, gradient, model.float_count * sizeof *sent);
            assert_true(floats < model.float_count * 9 / 10); /* rows of zeros were left out */
            assert_true(runs < (int)outbox.rows * 7 / 10);    /* neighbouring rows were combined */
        }
    }
    outbox_destroy(&outbox);
    free(gradient);
    free(sent);
}

/* With bfloat16, what was sent and what is kept add up to all gradients so far, whoever lends the residual. */
TEST(rounding_loses_nothing)
{
    enum { STEPS = 50, BOXES = 3 };
    struct test_random random = test_random_begin("rounding");
    struct span whole = {0, model.float_count};
    struct outbox boxes[BOXES];
    float *gradient = calloc(model.float_count, sizeof *gradient), *sent = calloc(model.float_count, sizeof *sent);
    double *owed = calloc(model.float_count, sizeof *owed);
    for (int i = 0; i < BOXES; i++) {
        outbox_create(&boxes[i], &model, (struct outbox_form){DTYPE_BFLOAT16, 1}, i > 0 ? &boxes[0] : NULL);
    }
    for (int step = 0; step < STEPS; step++) {
        struct outbox *outbox = &boxes[step % BOXES];
        size_t floats = 0;
        int runs = 0;
        fill(outbox, &random, gradient);
        memset(sent, 0, model.float_count * sizeof *sent);
        empty(outbox, &whole, 1, sent, &floats, &runs);
        for (size_t i = 0; i < model.float_count; i++) {
            owed[i] += (double)gradient[i] - (double)sent[i];
        }
    }
    for (size_t i = 0; i < model.float_count; i++) {
        assert_true(fabs(owed[i] - (double)boxes[0].half_residual[i]) < 1e-5);
        assert_true(fabs(owed[i]) < 1.0 / 128); /* half of the last place of 2 */
    }
    for (int i = BOXES - 1; i >= 0; i--) {
        outbox_destroy(&boxes[i]);
    }
    free(gradient);
    free(sent);
    free(owed);
}

/* Values that are not finite are sent at once, so that a ps can refuse them, and leave no residual. */
TEST(not_finite_does_not_stay)
{
    static const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX}; /* the last is rounded to infinity */
    struct span whole = {0, model.float_count};
    struct outbox outbox;
    float *sent = calloc(model.float_count, sizeof *sent);
    outbox_create(&outbox, &model, (struct outbox_form){DTYPE_BFLOAT16, 1}, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        float row[300] = {1.0f, bad[i]};
        struct gradient_sink sink = outbox_sink(&outbox);
        struct gradient_block block = {.rows = 1, .cols = 300, .values = row, .stride = 300};
        size_t floats = 0;
        int runs = 0;
        outbox_begin(&outbox);
        sink.block(sink.context, &block);
        empty(&outbox, &whole, 1, sent, &floats, &runs);
        assert_int_equal(floats, 300);
        assert_true(sent[1] - sent[1] != 0.0f);
        assert_false(outbox_is_finite(&outbox));
        row[1] = 2.0f;
        outbox_begin(&outbox);
        sink.block(sink.context, &block);
        assert_true(outbox_is_finite(&outbox));
        empty(&outbox, &whole, 1, sent, &floats, &runs);
        assert_true(sent[1] == 2.0f);
    }
    outbox_destroy(&outbox);
    free(sent);
}

/* Everything that a packed outbox would send, in the model's layout. */
static void unpack(const struct outbox *outbox, const struct span *span, float *sent)
{
    struct outbox_cursor cursor = outbox_open(outbox, span, 1);
    struct range range;
    const void *from;
    size_t size;
    uint64_t end = span->first;
    while (outbox_next(&cursor, &range, &from, &size)) {
        uint16_t places[LARGEST_PIECE];
        float values[LARGEST_PIECE];
        const uint8_t *bytes = from;
        assert_true(range.first >= end && range.count <= PACKED_FLOATS);
        end = range.first + range.count;
        assert_true(end <= span->first + span->count);
        if (outbox->dtype == DTYPE_INT8) {
            assert_int_equal(size, int8_size(range.count));
            assert_true(int8_widen(sent + range.first, bytes, range.count));
            continue;
        }
        const struct largest_head head = largest_read_head(bytes);
        assert_true(largest_read_places(places, head, bytes + LARGEST_HEAD, range.count));
        assert_true(largest_read_values(values, bytes + LARGEST_HEAD + head.gap_bytes, head.count, outbox->dtype));
        for (size_t i = 0; i < head.count; i++) {
            sent[range.first + places[i]] = values[i];
        }
    }
}

/*
 * Packed, in any form: what was sent and the residual add up to all gradients that counted, however many outboxes share
 * it, and however many ps the model is divided among.
 */
TEST(packing_loses_nothing)
{
    enum { STEPS = 24, BOXES = 2 };
    static const enum dtype dtypes[] = {DTYPE_INT8, DTYPE_LARGEST_FLOAT32, DTYPE_LARGEST_BFLOAT16, DTYPE_LARGEST_INT8};
    struct test_random random = test_random_begin("packing");
    float *gradient = calloc(model.float_count, sizeof *gradient), *sent = calloc(model.float_count, sizeof *sent);
    double *owed = calloc(model.float_count, sizeof *owed);
    for (int kind = 0; kind < 4; kind++) {
        struct outbox boxes[BOXES];
        memset(owed, 0, model.float_count * sizeof *owed);
        for (int i = 0; i < BOXES; i++) {
            const struct outbox_form form = {dtypes[kind], kind == 0 ? 1 : 0.05};
            outbox_create(&boxes[i], &model, form, i > 0 ? &boxes[0] : NULL);
        }
        for (int step = 0; step < STEPS; step++) {
            struct outbox *outbox = &boxes[step % BOXES];
            const int ps_count = 1 + step % 3;
            fill(outbox, &random, gradient);
            memset(sent, 0, model.float_count * sizeof *sent);
            for (int ps = 0; ps < ps_count; ps++) {
                struct span spans[PLACEMENT_MAX_SPANS];
                assert_int_equal(placement_spans(&model, PLACEMENT_RANGES, ps_count, ps, spans), 1);
                outbox_pack(outbox, spans, 1);
                unpack(outbox, spans, sent);
            }
            outbox_packed(outbox);
            if (step % 5 == 4) {
                outbox_restore_residual(outbox);
                continue;
            }
            for (size_t i = 0; i < model.float_count; i++) {
                owed[i] += (double)gradient[i] - (double)sent[i];
            }
        }
        size_t chosen = 0, floats = 0;
        for (int i = 0; i < model.variable_count; i++) {
            floats += (size_t)model.variables[i].rows * (size_t)model.variables[i].cols;
        }
        for (size_t i = 0; i < model.float_count; i++) {
            assert_true(fabs(owed[i] - (double)boxes[0].residual->now[i]) < 1e-4);
            assert_true(kind > 0 || fabs(owed[i]) < 1.01 / 127); /* of 2, because residuals are added */
            chosen += sent[i] != 0;
        }
        assert_true(kind == 0 || (chosen > floats / 25 && chosen <= floats / 20 + 3));
        for (int i = BOXES - 1; i >= 0; i--) {
            outbox_destroy(&boxes[i]);
        }
    }
    free(gradient);
    free(sent);
    free(owed);
}

/* A packed gradient that is not finite is sent, to be refused, and leaves the residual as it was. */
TEST(not_finite_is_not_owed)
{
    static const enum dtype dtypes[] = {DTYPE_INT8, DTYPE_LARGEST_FLOAT32, DTYPE_LARGEST_BFLOAT16, DTYPE_LARGEST_INT8};
    const struct span whole = {0, model.float_count};
    const size_t bytes = model.float_count * sizeof(float);
    float *before = malloc(bytes);
    for (int kind = 0; kind < 8; kind++) {
        const struct outbox_form form = {dtypes[kind % 4], kind % 4 == 0 ? 1 : 0.001};
        const bool is_taken_back = kind >= 4; /* not if other gradients are on their way already */
        struct outbox outbox;
        outbox_create(&outbox, &model, form, NULL);
        float row[300];
        struct gradient_sink sink = outbox_sink(&outbox);
        const struct gradient_block block = {.rows = 1, .cols = 300, .values = row, .stride = 300};
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < 300; i++) { /* more than one message takes */
                row[i] = step != 1 ? 0.01f * (float)(i + 1) : i % 2 == 0 ? NAN : INFINITY;
            }
            memcpy(before, outbox.residual->now, bytes);
            outbox_begin(&outbox);
            sink.block(sink.context, &block);
            outbox_pack(&outbox, &whole, 1);
            outbox_packed(&outbox);
            assert_true(outbox.piece_count > 0);
            assert_int_equal(outbox_is_finite(&outbox), step != 1);
            if (step == 1 && is_taken_back) {
                outbox_restore_residual(&outbox);
            }
            assert_int_equal(memcmp(before, outbox.residual->now, bytes) == 0, step == 1);
        }
        outbox_destroy(&outbox);
    }
    free(before);
}

int main(void)
{
    return check_run(lay_out, forget);
}
