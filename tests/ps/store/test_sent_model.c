/* Pieces of what workers are sent: afterwards both sides have the same, and invalid ones are refused. */
#include "ps/store/codec.h"
#include "tests/check.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

static const enum dtype dtypes[] = {DTYPE_INT8, DTYPE_LARGEST_FLOAT32, DTYPE_LARGEST_BFLOAT16, DTYPE_LARGEST_INT8};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

static struct largest choose(const float *left, size_t n, size_t count)
{
    struct largest_search search;
    largest_begin(&search, count);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, left, n);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

/* Exactly as many bytes as there are, so that a sanitizer catches reads beyond them. */
static size_t apply(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    uint8_t *exact = malloc(size > 0 ? size : 1);
    memcpy(exact, bytes, size);
    const size_t took = sent_model_apply(known, exact, size, n, dtype);
    free(exact);
    return took;
}

TEST(what_is_left_becomes_less_until_nothing_is)
{
    enum { MOST = 700 };
    struct test_random random = test_random_begin("sent");
    static uint8_t bytes[LARGEST_ROOM];
    for (int round = 0; round < 300; round++) {
        const enum dtype dtype = dtypes[round % DTYPES];
        const size_t n = 1 + (size_t)test_random_below(&random, MOST);
        float wanted[MOST], known[MOST] = {0}, heard[MOST] = {0}, left[MOST];
        for (size_t i = 0; i < n; i++) {
            wanted[i] = ldexpf(test_random_float(&random), test_random_below(&random, 9) - 4);
        }
        for (int times = 0; times < 60; times++) {
            float before = 0, after = 0;
            for (size_t i = 0; i < n; i++) {
                left[i] = wanted[i] - known[i];
                before = fmaxf(before, fabsf(left[i]));
            }
            struct largest chosen = choose(left, n, 1 + n / 8);
            const size_t size = sent_model_pack(bytes, left, known, n, &chosen, dtype);
            if (size == 0) {
                break; /* nothing is left */
            }
            assert_int_equal(apply(heard, bytes, size, n, dtype), size);
            assert_memory_equal(heard, known, n * sizeof *known);
            for (size_t i = 0; i < n; i++) {
                after = fmaxf(after, fabsf(wanted[i] - known[i]));
            }
            assert_true(after <= before);
        }
        for (size_t i = 0; i < n; i++) { /* all has been sent several times over: differences below an ulp may remain */
            assert_true(fabsf(wanted[i] - known[i]) <= 2 * FLT_EPSILON * fmaxf(fabsf(wanted[i]), 1e-3f));
        }
    }
}

TEST(what_is_cut_short_makes_no_sense)
{
    enum { N = 150 };
    struct test_random random = test_random_begin("sent, cut");
    static uint8_t bytes[LARGEST_ROOM];
    for (int round = 0; round < 40; round++) {
        const enum dtype dtype = dtypes[round % DTYPES];
        float known[N] = {0}, left[N], heard[N] = {0};
        const float nothing[N] = {0};
        for (size_t i = 0; i < N; i++) {
            left[i] = test_random_float(&random);
        }
        struct largest chosen = choose(left, N, 20);
        const size_t size = sent_model_pack(bytes, left, known, N, &chosen, dtype);
        for (size_t cut = 0; cut < size; cut++) {
            assert_int_equal(apply(heard, bytes, cut, N, dtype), 0);
            assert_memory_equal(heard, nothing, sizeof nothing);
        }
        bytes[size] = 0xff; /* the rest belongs to another piece */
        assert_int_equal(apply(heard, bytes, size + 1, N, dtype), size);
        assert_memory_equal(heard, known, sizeof known);
    }
}

TEST(nonsense_is_refused)
{
    static const uint8_t none[] = {0, 0, 0, 0}, many[] = {3, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t beyond[] = {1, 0, 1, 0, 9, 0, 0, 0, 0}, gaps[] = {1, 0, 2, 0, 0, 0, 0, 0, 0, 0};
    float known[2] = {1, 2}, scale = -1;
    uint8_t negative[sizeof scale + 2] = {0};
    memcpy(negative, &scale, sizeof scale);
    assert_int_equal(sent_model_apply(known, none, sizeof none, 2, DTYPE_LARGEST_FLOAT32), 0);
    assert_int_equal(sent_model_apply(known, many, sizeof many, 2, DTYPE_LARGEST_BFLOAT16), 0);
    assert_int_equal(sent_model_apply(known, beyond, sizeof beyond, 2, DTYPE_LARGEST_FLOAT32), 0);
    assert_int_equal(sent_model_apply(known, gaps, sizeof gaps, 2, DTYPE_LARGEST_FLOAT32), 0);
    assert_int_equal(sent_model_apply(known, negative, sizeof negative, 2, DTYPE_INT8), 0);
    assert_true(known[0] == 1.0f && known[1] == 2.0f);
}

enum { MOST_PIECES = 8 };

static struct {
    struct range ranges[MOST_PIECES];
    int count;
} said;

static void note_piece(void *context, struct range range, const uint8_t *bytes, size_t size)
{
    assert_true(said.count < MOST_PIECES && size >= int8_size(range.count));
    said.ranges[said.count++] = range;
}

static void says(int piece, size_t first, size_t count)
{
    assert_int_equal(said.ranges[piece].first, first);
    assert_int_equal(said.ranges[piece].count, count);
}

/* A piece begins and ends where blocks rest, or where a span ends, or it is full. Multiples of 127 are exact. */
TEST(what_has_not_changed_is_left_out)
{
    enum { B = INT8_BLOCK, FIRST = 5 * B + 10, SECOND = 2 * PACKED_FLOATS + 5, ALL = FIRST + SECOND };
    static const struct config_cluster cluster = {.issync = true, .wire_dtype = WIRE_INT8, .wire_top = 1};
    static const struct span spans[] = {{100, FIRST}, {100000, SECOND}};
    static float parameters[ALL], known[ALL], left[ALL];
    static struct sent_packer packer;
    const struct sent_sink sink = {note_piece, NULL};
    sent_packer_begin(&packer, &cluster, ALL, left);
    parameters[0] = -0.0f;                           /* is 0 */
    parameters[2 * B - 1] = parameters[2 * B] = 127; /* of two blocks */
    parameters[4 * B] = parameters[FIRST + SECOND - 1] = 127;
    sent_packer_pack(&packer, parameters, known, spans, 2, &sink);
    assert_int_equal(said.count, 3);
    says(0, 100 + B, 2 * B);
    says(1, 100 + 4 * B, B);
    says(2, 100000 + 2 * PACKED_FLOATS, 5);
    assert_memory_equal(known + 1, parameters + 1, (ALL - 1) * sizeof *known);
    said.count = 0;
    for (int i = FIRST; i < ALL; i++) {
        parameters[i] = 254;
    }
    sent_packer_pack(&packer, parameters, known, spans, 2, &sink);
    assert_int_equal(said.count, 3);
    for (int i = 0; i < 3; i++) {
        says(i, 100000 + (size_t)i * PACKED_FLOATS, i < 2 ? PACKED_FLOATS : 5);
    }
    for (int i = 0; i < FIRST; i++) {
        parameters[i] = 381;
    }
    sent_packer_pack(&packer, parameters, known, spans, 2, NULL); /* nobody listens */
    for (int i = 0; i < FIRST; i++) {
        assert_true(fabsf(known[i] - parameters[i]) <= 1.5f); /* half a step of 381 / 127 */
    }
}

TEST(it_is_kept_where_answers_are_packed)
{
    static const struct {
        bool issync;
        enum wire_dtype dtype;
        double top;
        bool kept;
        enum dtype sent;
    } cases[] = {{true, WIRE_FLOAT32, 1, false, DTYPE_FLOAT32},
                 {true, WIRE_BFLOAT16, 1, false, DTYPE_BFLOAT16},
                 {true, WIRE_INT8, 1, true, DTYPE_INT8},
                 {true, WIRE_FLOAT32, 0.1, true, DTYPE_LARGEST_FLOAT32},
                 {true, WIRE_BFLOAT16, 0.1, true, DTYPE_LARGEST_BFLOAT16},
                 {true, WIRE_INT8, 0.1, true, DTYPE_LARGEST_INT8},
                 {false, WIRE_INT8, 0.1, false, DTYPE_LARGEST_INT8}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct config_cluster cluster = {
            .issync = cases[i].issync, .wire_dtype = cases[i].dtype, .wire_top = cases[i].top};
        assert_int_equal(sent_model_is_kept(&cluster), cases[i].kept);
        assert_int_equal(sent_model_gradient_dtype(&cluster), cases[i].sent);
    }
}

int main(void)
{
    return check_run(NULL, NULL);
}
