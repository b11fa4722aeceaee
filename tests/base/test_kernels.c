/* Every table of kernels compared with the reference, on sizes that leave remainders everywhere. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
/* cmocka needs the four headers above first. */
#include "base/kernels.h"
#include "tests/check.h"
#include "tests/random.h"

enum { FLOATS = 1 << 16, ROUNDS = 300 };

static struct test_random test_seed;
static const struct kernels *tested;
static _Alignas(64) float a[FLOATS], b[FLOATS], expected[FLOATS], actual[FLOATS], more_expected[FLOATS],
    more_actual[FLOATS];
static _Alignas(64) uint8_t bytes[FLOATS], bytes_expected[FLOATS], bytes_actual[FLOATS];

static int below(int bound)
{
    if (bound <= 0) {
        abort();
    }
    return test_random_below(&test_seed, bound);
}

static int round_up(int n, int multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* From anywhere in numbers that are drawn once: to draw all of them each time took longer than all kernels. */
static void fill(float *values)
{
    static float drawn[2 * FLOATS];
    static bool is_drawn;
    for (int i = 0; i < 2 * FLOATS && !is_drawn; i++) {
        drawn[i] = test_random_float(&test_seed);
    }
    is_drawn = true;
    memcpy(values, drawn + below(FLOATS), FLOATS * sizeof *values);
}

static void fill_bytes(int percent)
{
    for (int i = 0; i < FLOATS; i++) {
        const int drawn = below(100 * 255);
        bytes[i] = (uint8_t)(drawn % 100 < percent ? 1 + drawn / 100 : 0);
    }
}

static void assert_close(const float *x, const float *y, int count, double tolerance)
{
    for (int i = 0; i < count; i++) {
        double difference = fabs((double)x[i] - (double)y[i]);
        if (!(difference <= tolerance * (1.0 + fabs((double)x[i])))) {
            fail_msg("%s: element %d: expected %.9g, got %.9g", tested->name, i, (double)x[i], (double)y[i]);
        }
    }
}

static int vectors_of_floats(int most)
{
    return tested->lanes * (1 + below(most / tested->lanes));
}

static void test_gemm(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        struct gemm gemm = {.m = 1 + below(40),
                            .n = vectors_of_floats(KERNEL_STRIP),
                            .k = below(130),
                            .a = a,
                            .b = b,
                            .accumulate = below(2)};
        gemm.b_stride = gemm.n + 16 * below(3);
        gemm.c_stride = gemm.n + 16 * below(3);
        bool transposed = below(2);
        gemm.a_row = transposed ? 1 : gemm.k + below(5) + 1;
        gemm.a_col = transposed ? gemm.m + below(5) : 1;
        fill(a);
        fill(b);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        gemm.c = expected;
        kernels_reference.gemm(&gemm);
        gemm.c = actual;
        tested->gemm(&gemm);
        assert_close(expected, actual, FLOATS, 1e-4);
    }
}

/* A row's sum must not depend on the number of rows, because threads divide rows differently. */
static void test_gemm_rows_are_independent(void **state)
{
    fill(a);
    fill(b);
    struct gemm gemm = {.m = 37,
                        .n = 64,
                        .k = 100,
                        .a = a,
                        .a_row = 100,
                        .a_col = 1,
                        .b = b,
                        .b_stride = 64,
                        .c = expected,
                        .c_stride = 64};
    tested->gemm(&gemm);
    for (int i = 0; i < 37; i++) {
        gemm.m = 1;
        gemm.a = a + i * 100;
        gemm.c = actual + i * 64;
        tested->gemm(&gemm);
    }
    assert_memory_equal(expected, actual, 37 * 64 * sizeof(float));
}

/* A pair's entries in parts of any size; an entry of only one row is zero for the other. */
static void divide(int pairs, const uint32_t *start, struct parts *parts)
{
    for (int i = 0; i < pairs; i++) {
        int entries = (int)(start[i + 1] - start[i]) / KERNEL_ENTRIES;
        int both = below(entries + 1), even = both + below(entries - both + 1);
        parts[i] = (struct parts){(uint8_t)(both * KERNEL_ENTRIES), (uint8_t)(even * KERNEL_ENTRIES)};
        for (uint32_t e = start[i] + parts[i].both; e < start[i + 1]; e++) {
            a[2 * e + (e < start[i] + parts[i].even)] = 0.0f;
        }
    }
}

static void test_sparse(void **state)
{
    static uint32_t start[KERNEL_CHUNK + 1];
    static struct parts parts[KERNEL_CHUNK];
    static uint32_t offset[40 * KERNEL_CHUNK];
    static uint8_t order[KERNEL_CHUNK];
    static int32_t ahead[2 * KERNEL_CHUNK];
    for (int round = 0; round < ROUNDS; round++) {
        int pairs = 1 + below(KERNEL_CHUNK);
        int n = vectors_of_floats(KERNEL_STRIP);
        int range = 1 + below(255);
        int stride = n + 16 * below(3);
        start[0] = 0;
        for (int i = 0; i < pairs; i++) {
            start[i + 1] = start[i] + KERNEL_ENTRIES * (uint32_t)below(10);
            order[i] = (uint8_t)(pairs - 1 - i);
        }
        for (uint32_t e = 0; e < start[pairs]; e++) {
            offset[e] = (uint32_t)(below(range) * stride * (int)sizeof(float));
        }
        struct sparse sparse = {.pairs = pairs,
                                .n = n,
                                .order = order,
                                .start = start,
                                .offset = offset,
                                .value = a,
                                .in = b,
                                .out_stride = n + 16 * below(3),
                                .parts = below(2) ? parts : NULL,
                                .accumulate = below(2),
                                .ahead = below(2) ? b : NULL,
                                .ahead_rows = ahead,
                                .ahead_stride = 16};
        if (range * stride > FLOATS || 2 * pairs * sparse.out_stride > FLOATS) {
            continue;
        }
        fill(a);
        divide(pairs, start, parts);
        fill(b);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        sparse.out = expected;
        kernels_reference.sparse(&sparse);
        sparse.out = actual;
        tested->sparse(&sparse);
        assert_close(expected, actual, FLOATS, 1e-4);
    }
}

static void test_scatter(void **state)
{
    static uint32_t start[KERNEL_BLOCK / 2 + 1];
    static uint32_t offset[40 * KERNEL_BLOCK];
    static int32_t rows[KERNEL_BLOCK];
    for (int round = 0; round < ROUNDS; round++) {
        int pairs = 1 + below(KERNEL_BLOCK / 2);
        int n = vectors_of_floats(KERNEL_NARROW);
        int in_stride = n + 16 * below(3);
        int out_stride = n + 16 * below(3);
        start[0] = 0;
        for (int i = 0; i < pairs; i++) {
            start[i + 1] = start[i] + KERNEL_ENTRIES * (uint32_t)below(10);
            rows[2 * i] = below(KERNEL_BLOCK);
            rows[2 * i + 1] = below(KERNEL_BLOCK);
        }
        for (uint32_t e = 0; e < start[pairs]; e++) {
            offset[e] = (uint32_t)(below(KERNEL_CHUNK) * out_stride * (int)sizeof(float));
        }
        struct scatter scatter = {.pairs = pairs,
                                  .n = n,
                                  .start = start,
                                  .offset = offset,
                                  .value = a,
                                  .in = b,
                                  .in_rows = rows,
                                  .in_stride = in_stride};
        fill(a);
        fill(b);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        scatter.out = expected;
        kernels_reference.scatter(&scatter);
        scatter.out = actual;
        tested->scatter(&scatter);
        assert_close(expected, actual, FLOATS, 1e-4);
    }
}

/* Two rows of bytes, compressed, times b: the same as the bytes, one row after the other. */
static void check_pair(bool divided)
{
    enum { COUNT = 64, N = 48 };
    static uint32_t offset[COUNT + 2 * KERNEL_ENTRIES + KERNEL_SLACK];
    static uint32_t packed[COUNT + 2 * KERNEL_ENTRIES + KERNEL_SLACK];
    static float values[2 * (COUNT + 2 * KERNEL_ENTRIES + KERNEL_SLACK)];
    const uint8_t order[] = {0};
    struct parts parts;
    const int stride = N * (int)sizeof(float);
    int entries = divided ? tested->pack_parts(COUNT, bytes, bytes + COUNT, packed, &parts)
                          : tested->compress(COUNT, bytes, bytes + COUNT, stride, offset, values);
    if (divided) {
        tested->unpack(entries, stride, packed, offset, values);
    }
    uint32_t start[] = {0, (uint32_t)entries};
    struct sparse sparse = {.pairs = 1,
                            .n = N,
                            .order = order,
                            .start = start,
                            .parts = divided ? &parts : NULL,
                            .offset = offset,
                            .value = values,
                            .in = b,
                            .out = actual,
                            .out_stride = N};
    tested->sparse(&sparse);
    for (int odd = 0; odd < 2; odd++) {
        for (int j = 0; j < N; j++) {
            double sum = 0.0;
            for (int i = 0; i < COUNT; i++) {
                sum += bytes[odd * COUNT + i] / 255.0 * (double)b[i * N + j];
            }
            expected[odd * N + j] = (float)sum;
        }
    }
    assert_close(expected, actual, 2 * N, 1e-5);
}

static void test_pairs_are_two_rows(void **state)
{
    for (int density = 0; density <= 100; density += 20) {
        fill(b);
        fill_bytes(density);
        check_pair(false);
        if (tested->pack_parts) {
            check_pair(true);
        }
    }
}

/* Rows of the same place share their mask. */
static bool is_repeated(const int32_t *places, int row)
{
    for (int i = 0; i < row; i++) {
        if (places[i] == places[row]) {
            return true;
        }
    }
    return false;
}

static void test_drop(void **state)
{
    double dropped = 0, expected_drops = 0, variance = 0;
    for (int round = 0; round < 50; round++) {
        double dropped_before = dropped, expected_before = expected_drops, variance_before = variance;
        static int32_t places[KERNEL_CHUNK];
        int n = vectors_of_floats(KERNEL_STRIP);
        double rate = below(100) / 100.0;
        struct dropout dropout = dropout_make((uint64_t)below(1000), rate);
        struct drop drop = {.dropout = &dropout,
                            .batch = {(uint32_t)below(10), 4294967296 * below(3) + below(1000)},
                            .layer = below(5),
                            .rows = KERNEL_CHUNK,
                            .n = n,
                            .stride = n + 16 * below(3),
                            .first = tested->lanes * below(50),
                            .places = places,
                            .in = a};
        for (int i = 0; i < KERNEL_CHUNK; i++) {
            places[i] = below(100000);
        }
        fill(a);
        drop.mask = b;
        drop.out = expected;
        kernels_reference.drop(&drop);
        static float mask[FLOATS];
        drop.mask = mask;
        drop.out = actual;
        tested->drop(&drop);
        for (int i = 0; i < KERNEL_CHUNK; i++) {
            const bool counts = !is_repeated(places, i);
            for (int j = 0; j < n; j++) {
                int at = i * drop.stride + j;
                assert_true(mask[at] == b[at] && actual[at] == expected[at]);
                assert_true(rate > 0 || mask[at] != 0.0f);
                dropped += counts && mask[at] == 0.0f;
            }
            expected_drops += counts ? rate * n : 0;
            variance += counts ? rate * (1 - rate) * n : 0;
        }
        const double off = dropped - dropped_before - (expected_drops - expected_before);
        assert_true(fabs(off) <= 7 * sqrt(variance - variance_before) + 1);
    }
    /* Of all rounds within five standard deviations; 150 checks of one round each would miss that now and then. */
    assert_true(fabs(dropped - expected_drops) <= 5 * sqrt(variance) + 1);
}

static void test_softmax(void **state)
{
    static int32_t labels[16];
    for (int round = 0; round < ROUNDS; round++) {
        int classes = 1 + below(200);
        struct softmax softmax = {.rows = 1 + below(16),
                                  .classes = classes,
                                  .stride = round_up(classes, 16),
                                  .labels = labels,
                                  .scale = 0.01f,
                                  .smoothing = round % 2 ? 0.1f : 0.0f};
        fill(expected);
        float spread = (float)(1 << below(9));
        for (int i = 0; i < softmax.rows * softmax.stride; i++) {
            expected[i] *= spread;
        }
        for (int i = 0; i < softmax.rows; i++) {
            labels[i] = below(classes);
        }
        memcpy(actual, expected, sizeof actual);
        softmax.logits = expected;
        softmax.losses = more_expected;
        softmax.correct = bytes_expected;
        kernels_reference.softmax(&softmax);
        softmax.logits = actual;
        softmax.losses = more_actual;
        softmax.correct = bytes_actual;
        tested->softmax(&softmax);
        assert_close(more_expected, more_actual, softmax.rows, 2e-6);
        assert_memory_equal(bytes_expected, bytes_actual, (size_t)softmax.rows);
        for (int i = 0; i < softmax.rows; i++) {
            assert_close(expected + i * softmax.stride, actual + i * softmax.stride, round_up(classes, tested->lanes),
                         1e-7);
        }
    }
}

static void test_softmax_says_what_is_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    int32_t label = 3;
    for (int i = 0; i < 3; i++) {
        memset(actual, 0, sizeof actual);
        actual[3] = bad[i];
        struct softmax softmax = {.rows = 1,
                                  .classes = 10,
                                  .logits = actual,
                                  .stride = 16,
                                  .labels = &label,
                                  .scale = 1.0f,
                                  .losses = more_actual,
                                  .correct = bytes_actual};
        tested->softmax(&softmax);
        assert_true(isnan(more_actual[0]) || isinf(more_actual[0]));
    }
}

static const enum loss_kind output_losses[] = {LOSS_SIGMOID, LOSS_MSE, LOSS_MAE, LOSS_HUBER, LOSS_QUANTILE};

static void test_output_loss(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        int targets = 1 + below(100);
        struct output_loss loss = {.kind = output_losses[round % 5],
                                   .rows = 1 + below(16),
                                   .targets = targets,
                                   .stride = round_up(targets, 16),
                                   .wanted = b,
                                   .wanted_stride = round_up(targets, 16),
                                   .scale = 0.01f,
                                   .smoothing = round % 2 ? 0.1f : 0.0f,
                                   .huber_delta = 0.25f + (float)below(100) / 50.0f,
                                   .quantile = (float)(1 + below(98)) / 100.0f};
        fill(expected);
        fill(b);
        float spread = (float)(1 << below(8));
        for (int i = 0; i < loss.rows * loss.stride; i++) {
            expected[i] = i % 7 == 0 ? b[i] : expected[i] * spread;
            b[i] = i % loss.stride >= targets ? 0.0f : loss.kind == LOSS_SIGMOID ? (float)(b[i] > 0.0f) : b[i];
        }
        memcpy(actual, expected, sizeof actual);
        loss.outputs = expected;
        loss.losses = more_expected;
        loss.correct = bytes_expected;
        kernels_reference.output_loss(&loss);
        loss.outputs = actual;
        loss.losses = more_actual;
        loss.correct = bytes_actual;
        tested->output_loss(&loss);
        assert_close(more_expected, more_actual, loss.rows, 2e-6);
        assert_memory_equal(bytes_expected, bytes_actual, (size_t)loss.rows);
        for (int i = 0; i < loss.rows; i++) {
            assert_close(expected + i * loss.stride, actual + i * loss.stride, round_up(targets, tested->lanes), 1e-7);
        }
    }
}

static void test_an_output_loss_says_what_is_not_finite(void **state)
{
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 15; i++) {
        memset(actual, 0, sizeof actual);
        memset(b, 0, sizeof b);
        actual[i % 4] = bad[i % 3];
        b[i % 4] = (float)below(2);
        struct output_loss loss = {.kind = output_losses[i / 3],
                                   .rows = 1,
                                   .targets = 5,
                                   .outputs = actual,
                                   .stride = 16,
                                   .wanted = b,
                                   .wanted_stride = 16,
                                   .scale = 1.0f,
                                   .huber_delta = 1.0f,
                                   .quantile = 0.3f,
                                   .losses = more_actual,
                                   .correct = bytes_actual};
        tested->output_loss(&loss);
        assert_true(isnan(more_actual[0]) || isinf(more_actual[0]));
    }
}

static void test_sum_rows(void **state)
{
    enum { MOST_ROWS = 40, MOST_ENTRIES = 12, FROM = 50 };
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t start[MOST_ROWS + 1];
        int32_t index[MOST_ROWS * MOST_ENTRIES];
        uint32_t entries = 0;
        struct row_sums sums = {.rows = 1 + below(MOST_ROWS),
                                .n = vectors_of_floats(KERNEL_STRIP),
                                .start = start,
                                .index = index,
                                .in = a,
                                .accumulate = below(2)};
        sums.in_stride = (size_t)sums.n + 16 * (size_t)below(3);
        sums.out_stride = sums.n + 16 * below(3);
        for (int r = 0; r < sums.rows; r++) {
            start[r] = entries;
            for (int e = below(MOST_ENTRIES); e > 0; e--) {
                index[entries++] = below(FROM);
            }
        }
        start[sums.rows] = entries;
        fill(a);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        sums.out = expected;
        kernels_reference.sum_rows(&sums);
        sums.out = actual;
        tested->sum_rows(&sums);
        assert_memory_equal(expected, actual, sizeof actual);
    }
}

/* Columns of bins, and the rows that end in each. */
static void test_bins(void **state)
{
    enum { MOST_ROWS = 40, MOST_COLUMNS = 8, MOST_BINS = 12 };
    for (int round = 0; round < ROUNDS; round++) {
        int32_t first[MOST_COLUMNS + 1] = {0}, bin[MOST_ROWS * MOST_COLUMNS], row[MOST_ROWS * MOST_COLUMNS];
        float share[MOST_ROWS * MOST_COLUMNS], shares[MOST_ROWS * MOST_COLUMNS];
        uint32_t start[MOST_COLUMNS * MOST_BINS + 1] = {0}, entries = 0;
        const int rows = 1 + below(MOST_ROWS), columns = 1 + below(MOST_COLUMNS), n = vectors_of_floats(KERNEL_STRIP);
        const int stride = n + 16 * below(3), out_stride = n + 16 * below(3);
        for (int c = 0; c < columns; c++) {
            first[c + 1] = first[c] + 1 + below(MOST_BINS);
            for (int r = 0; r < rows; r++) {
                bin[r * columns + c] = first[c] + below(first[c + 1] - first[c]);
                share[r * columns + c] = (float)below(101) / 100;
            }
            for (int i = first[c]; i < first[c + 1]; i++) {
                start[i] = entries;
                for (int r = 0; r < rows; r++) {
                    if (bin[r * columns + c] == i) {
                        row[entries] = r;
                        shares[entries++] = share[r * columns + c];
                    }
                }
            }
        }
        start[first[columns]] = entries;
        struct bin_sums sums = {.rows = rows,
                                .n = n,
                                .columns = columns,
                                .first = first,
                                .bin = bin,
                                .share = share,
                                .in = a,
                                .in_stride = (size_t)stride,
                                .out = expected,
                                .out_stride = out_stride};
        struct bin_gradients gradients = {.n = n,
                                          .columns = columns,
                                          .first = first,
                                          .start = start,
                                          .row = row,
                                          .share = shares,
                                          .in = a,
                                          .in_stride = (size_t)stride,
                                          .out = expected,
                                          .out_stride = out_stride};
        fill(a);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        kernels_reference.sum_bins(&sums);
        sums.out = actual;
        tested->sum_bins(&sums);
        assert_close(expected, actual, FLOATS, 1e-4);
        kernels_reference.bin_gradient(&gradients);
        gradients.out = actual;
        tested->bin_gradient(&gradients);
        assert_close(expected, actual, FLOATS, 1e-4);
    }
}

static void test_functions(void **state)
{
    const enum activation all[] = {ACTIVATION_RELU, ACTIVATION_SIGMOID, ACTIVATION_TANH, ACTIVATION_IDENTITY};
    for (int round = 0; round < 40; round++) {
        enum activation activation = all[round % 4];
        int n = vectors_of_floats(1000);
        fill(expected);
        float spread = (float)(1 << below(8));
        for (int i = 0; i < n; i++) {
            expected[i] *= spread;
        }
        memcpy(actual, expected, sizeof actual);
        kernels_reference.activate(activation, n, expected);
        tested->activate(activation, n, actual);
        assert_close(expected, actual, n, 5e-7);
        fill(more_expected);
        memcpy(more_actual, more_expected, sizeof more_actual);
        kernels_reference.derive(activation, n, expected, more_expected);
        tested->derive(activation, n, expected, more_actual);
        assert_close(more_expected, more_actual, n, 1e-6);
    }
}

static void test_rows(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        int rows = 1 + below(100);
        int n = vectors_of_floats(KERNEL_STRIP);
        int stride = n + 16 * below(3);
        fill(a);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        kernels_reference.fill(rows, n, round % 2 ? a : NULL, expected, stride);
        tested->fill(rows, n, round % 2 ? a : NULL, actual, stride);
        assert_memory_equal(expected, actual, sizeof actual);
        bool accumulate = below(2);
        kernels_reference.column_sums(rows, n, a, stride, expected, accumulate);
        tested->column_sums(rows, n, a, stride, actual, accumulate);
        assert_close(expected, actual, n, 1e-4);
        kernels_reference.add(n, a, expected);
        tested->add(n, a, actual);
        assert_close(expected, actual, n, 1e-4);
    }
}

static void test_transpose(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        int n = vectors_of_floats(KERNEL_STRIP);
        int rows = 1 + below(n);
        int cols = 1 + below(KERNEL_STRIP);
        int stride = round_up(cols, 16) + 16 * below(3);
        fill(a);
        fill(expected);
        memcpy(actual, expected, sizeof actual);
        kernels_reference.transpose(rows, cols, a, stride, expected, n);
        tested->transpose(rows, cols, a, stride, actual, n);
        assert_memory_equal(expected, actual, sizeof actual);
        for (int i = 0; i < rows * cols; i++) {
            assert_true(expected[i % cols * n + i / cols] == a[i / cols * stride + i % cols]);
        }
    }
}

static void test_bytes(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        int rows = 16 * (1 + below(KERNEL_CHUNK / 16));
        int cols = 16 * (1 + below(KERNEL_BLOCK / 16));
        fill_bytes(below(101));
        kernels_reference.transpose_bytes(rows, cols, bytes, bytes_expected);
        tested->transpose_bytes(rows, cols, bytes, bytes_actual);
        assert_memory_equal(bytes_expected, bytes_actual, (size_t)(rows * cols));
        kernels_reference.scale(cols, bytes, expected);
        tested->scale(cols, bytes, actual);
        assert_memory_equal(expected, actual, (size_t)cols * sizeof(float));
    }
}

/* Rows selected by index, compared with the same rows in place. */
static void test_gather(void **state)
{
    for (int round = 0; round < ROUNDS; round++) {
        int rows = 1 + below(KERNEL_CHUNK);
        int cols = 16 * (1 + below(KERNEL_BLOCK / 16));
        int stride = 1 + below(KERNEL_BLOCK);
        static int32_t indexes[KERNEL_CHUNK];
        static uint8_t seen_expected[KERNEL_BLOCK], seen_actual[KERNEL_BLOCK];
        fill_bytes(below(101));
        for (int i = 0; i < rows; i++) {
            indexes[i] = below((int)sizeof bytes / stride - KERNEL_BLOCK);
        }
        memset(seen_expected, 0, sizeof seen_expected);
        memset(seen_actual, 0, sizeof seen_actual);
        int64_t set = 0;
        for (int i = 0; i < rows * cols; i++) {
            uint8_t value = bytes[indexes[i / cols] * stride + i % cols];
            bytes_expected[i] = value;
            seen_expected[i % cols] |= value;
            set += value != 0;
        }
        assert_int_equal(tested->gather(rows, cols, bytes, (size_t)stride, indexes, bytes_actual, seen_actual), set);
        assert_memory_equal(bytes_actual, bytes_expected, (size_t)(rows * cols));
        assert_memory_equal(seen_actual, seen_expected, (size_t)cols);
        assert_int_equal(tested->gather(rows, cols, bytes_actual, (size_t)cols, NULL, bytes_actual, seen_actual), set);
        assert_memory_equal(bytes_actual, bytes_expected, (size_t)(rows * cols));
    }
}

static void test_compress(void **state)
{
    static uint32_t offset_expected[KERNEL_CHUNK + KERNEL_SLACK];
    static uint32_t offset_actual[KERNEL_CHUNK + KERNEL_SLACK];
    for (int round = 0; round < ROUNDS; round++) {
        int count = 16 * (1 + below(KERNEL_CHUNK / 16));
        int stride = 1 + below(3000);
        fill_bytes(round == 0 ? 0 : round == 1 ? 100 : below(101));
        int entries = kernels_reference.compress(count, bytes, bytes + count, stride, offset_expected, expected);
        assert_int_equal(entries % KERNEL_ENTRIES, 0);
        assert_int_equal(tested->compress(count, bytes, bytes + count, stride, offset_actual, actual), entries);
        assert_memory_equal(offset_expected, offset_actual, (size_t)entries * sizeof(uint32_t));
        assert_memory_equal(expected, actual, 2 * (size_t)entries * sizeof(float));
    }
}

/* Equal to the reference's; and each part contains what its name says, in order. */
static void test_pack_parts(void **state)
{
    enum { MOST = KERNEL_BLOCK + 3 * KERNEL_ENTRIES + KERNEL_SLACK };
    static uint32_t wanted_packed[MOST], packed[MOST];
    for (int round = 0; round < ROUNDS && tested->pack_parts; round++) {
        int count = 16 * (1 + below(KERNEL_BLOCK / 16));
        struct parts wanted, parts;
        fill_bytes(round == 0 ? 0 : round == 1 ? 100 : below(101));
        const uint8_t *even = bytes, *odd = bytes + count;
        int entries = kernels_reference.pack_parts(count, even, odd, wanted_packed, &wanted);
        assert_int_equal(tested->pack_parts(count, even, odd, packed, &parts), entries);
        assert_int_equal(parts.both, wanted.both);
        assert_int_equal(parts.even, wanted.even);
        assert_memory_equal(wanted_packed, packed, (size_t)entries * sizeof(uint32_t));
        assert_int_equal(parts.both % KERNEL_ENTRIES + parts.even % KERNEL_ENTRIES + entries % KERNEL_ENTRIES, 0);
        assert_true(parts.both <= parts.even && parts.even <= entries);
        for (int e = 0, seen = 0; e < entries; e++) {
            int at = (int)(packed[e] >> 16), part = e < parts.both ? 0 : e < parts.even ? 1 : 2;
            bool is_padding = (packed[e] & 0xffff) == 0;
            seen = e == 0 || e == parts.both || e == parts.even ? -1 : seen;
            assert_true(is_padding || at > seen);
            assert_true(is_padding || ((even[at] != 0) == (part != 2) && (odd[at] != 0) == (part != 1)));
            assert_true(is_padding || (packed[e] & 0xffff) == (uint32_t)(odd[at] << 8 | even[at]));
            seen = at;
        }
    }
}

static void test_unpack(void **state)
{
    enum { MOST = 500, ALL = MOST + KERNEL_SLACK };
    static uint32_t packed[ALL], wanted_offset[ALL], offset[ALL];
    static float wanted[2 * ALL], values[2 * ALL];
    for (int round = 0; round < ROUNDS && tested->unpack; round++) {
        int count = below(MOST + 1), stride = 1 + below(3000);
        for (int i = 0; i < count; i++) {
            packed[i] = (uint32_t)below(KERNEL_BLOCK) << 16 | (uint32_t)below(1 << 16);
        }
        kernels_reference.unpack(count, stride, packed, wanted_offset, wanted);
        tested->unpack(count, stride, packed, offset, values);
        assert_memory_equal(wanted_offset, offset, (size_t)count * sizeof *offset);
        assert_memory_equal(wanted, values, 2 * (size_t)count * sizeof *values);
        for (int i = 0; i < count; i++) {
            assert_int_equal(offset[i], (packed[i] >> 16) * (uint32_t)stride);
            assert_int_equal(lrintf(values[2 * i] * 255.0f), packed[i] & 0xff);
            assert_int_equal(lrintf(values[2 * i + 1] * 255.0f), packed[i] >> 8 & 0xff);
        }
    }
}

static int differences(const struct signature *one, const struct signature *other)
{
    int differ = 0;
    for (int bit = 0; bit < 128; bit++) {
        differ += (int)(((one->bits[bit / 64] ^ other->bits[bit / 64]) >> bit % 64) & 1);
    }
    return differ;
}

/* Every image once, each paired with the most similar of those that follow soon. */
static void test_pair(void **state)
{
    enum { MOST = 300 };
    for (int round = 0; round < ROUNDS; round++) {
        struct signature signatures[MOST];
        bool seen[MOST] = {false};
        int count = 1 + below(MOST);
        for (int i = 0; i < count; i++) {
            /* Few varying bits, so that some are equally near. */
            signatures[i] = (struct signature){.bits = {(uint64_t)below(16), (uint64_t)below(16) << 60}, .place = i};
        }
        tested->pair(count, signatures);
        for (int i = 0; i < count; i++) {
            assert_in_range(signatures[i].place, 0, count - 1);
            assert_false(seen[signatures[i].place]);
            seen[signatures[i].place] = true;
        }
        for (int i = 0; i + 1 < count; i += 2) {
            /* The candidates for i followed it before, and still do: within the next few pairs. */
            int nearest = differences(&signatures[i], &signatures[i + 1]);
            for (int k = i + 2; k < count && signatures[k].place < i + KERNEL_AMONG; k++) {
                assert_true(signatures[k].place < i || differences(&signatures[i], &signatures[k]) >= nearest);
            }
        }
    }
}

static int run_table(enum cpu_kernels wanted, const char *name)
{
    const char *why;
    struct error error;
    if (!kernels_choose(&tested, &why, wanted, &error)) {
        print_message("[  SKIPPED ] kernels %s: %s\n", name, error.text);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm),
        cmocka_unit_test(test_gemm_rows_are_independent),
        cmocka_unit_test(test_sparse),
        cmocka_unit_test(test_scatter),
        cmocka_unit_test(test_pairs_are_two_rows),
        cmocka_unit_test(test_drop),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_softmax_says_what_is_not_finite),
        cmocka_unit_test(test_output_loss),
        cmocka_unit_test(test_an_output_loss_says_what_is_not_finite),
        cmocka_unit_test(test_sum_rows),
        cmocka_unit_test(test_bins),
        cmocka_unit_test(test_functions),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_compress),
        cmocka_unit_test(test_pack_parts),
        cmocka_unit_test(test_unpack),
        cmocka_unit_test(test_pair),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL);
}

int main(void)
{
    test_seed = test_random_begin("test_kernels");
    return run_table(CPU_KERNELS_REFERENCE, "reference") + run_table(CPU_KERNELS_AVX2, "avx2") +
           run_table(CPU_KERNELS_AVX512, "avx512") + run_table(CPU_KERNELS_NEON, "neon");
}
