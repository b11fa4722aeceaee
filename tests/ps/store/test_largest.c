/* The largest: those that sorting would choose; what is sent and what stays behind add up to everything. */
#include "ps/store/codec.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/random.h"

enum { MOST = 3 * LARGEST_PIECE };

struct entry {
    uint32_t bits;
    int place;
};

static int by_size(const void *a, const void *b)
{
    const struct entry *left = a, *right = b;
    return left->bits != right->bits ? (left->bits < right->bits) - (left->bits > right->bits)
                                     : (left->place > right->place) - (left->place < right->place);
}

/* Many ties, many zeros; now and then all equal. */
static void make(struct test_random *random, float *values, int n)
{
    const int kind = test_random_below(random, 4);
    for (int i = 0; i < n; i++) {
        const float value = test_random_float(random);
        values[i] = kind == 0   ? value
                    : kind == 1 ? truncf(8 * value)
                    : kind == 2 ? ldexpf(value, test_random_below(random, 60) - 30)
                                : 1.0f;
    }
}

static struct largest find(const float *values, int n, size_t count)
{
    struct largest_search search;
    largest_begin(&search, count);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, values, (size_t)n / 3); /* in parts */
        largest_look(&search, values + n / 3, (size_t)n - (size_t)n / 3);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

/* Packs all, reads it back; returns how many were chosen. */
static int travel(float *values, float *sent, int n, struct largest chosen, enum dtype dtype)
{
    static uint8_t bytes[LARGEST_ROOM];
    static uint16_t places[LARGEST_PIECE];
    static float read[LARGEST_PIECE];
    int all = 0;
    memset(sent, 0, (size_t)n * sizeof *sent);
    for (int first = 0; first < n; first += LARGEST_PIECE) {
        const size_t count = (size_t)(n - first < LARGEST_PIECE ? n - first : LARGEST_PIECE);
        const size_t size = largest_pack(bytes, values + first, count, &chosen, dtype);
        if (size == 0) {
            continue;
        }
        const struct largest_head head = largest_read_head(bytes);
        assert_int_equal(size, LARGEST_HEAD + head.gap_bytes + largest_values_size(dtype, head.count));
        assert_true(head.count > 0 && largest_read_places(places, head, bytes + LARGEST_HEAD, count));
        assert_true(largest_read_values(read, bytes + LARGEST_HEAD + head.gap_bytes, head.count, dtype));
        for (size_t i = 0; i < head.count; i++) {
            assert_true(places[i] < count && (i == 0 || places[i] > places[i - 1]));
            sent[first + places[i]] = read[i];
        }
        all += head.count;
    }
    return all;
}

TEST(those_that_sorting_would_choose)
{
    struct test_random random = test_random_begin("largest");
    float *values = malloc(MOST * sizeof *values), *left = malloc(MOST * sizeof *left);
    float *sent = malloc(MOST * sizeof *sent);
    struct entry *entries = malloc(MOST * sizeof *entries);
    for (int round = 0; round < 60; round++) {
        const int n = 1 + test_random_below(&random, round < 50 ? 700 : MOST);
        const int count = test_random_below(&random, 3) == 0 ? 1 + n / 100 : 1 + test_random_below(&random, n + 20);
        int nonzero = 0;
        make(&random, values, n);
        for (int i = 0; i < n; i++) {
            const float magnitude = fabsf(values[i]);
            memcpy(&entries[i].bits, &magnitude, sizeof magnitude);
            entries[i].place = i;
            nonzero += magnitude > 0;
        }
        qsort(entries, (size_t)n, sizeof *entries, by_size);
        memcpy(left, values, (size_t)n * sizeof *left);
        const int wanted = count < nonzero ? count : nonzero;
        assert_int_equal(travel(left, sent, n, find(values, n, (size_t)count), DTYPE_LARGEST_FLOAT32), wanted);
        for (int i = 0; i < n; i++) {
            const int at = entries[i].place;
            assert_memory_equal(&sent[at], i < wanted ? &values[at] : &(float){0}, sizeof(float));
            assert_true(left[at] == (i < wanted ? 0.0f : values[at]));
        }
    }
    free(values);
    free(left);
    free(sent);
    free(entries);
}

/* In each form what is sent and what is left add up to the input. */
TEST(nothing_is_lost)
{
    enum { N = 20000 };
    struct test_random random = test_random_begin("nothing lost");
    float *values = malloc(N * sizeof *values), *left = malloc(N * sizeof *left), *sent = malloc(N * sizeof *sent);
    for (int dtype = DTYPE_LARGEST_FLOAT32; dtype <= DTYPE_LARGEST_INT8; dtype++) {
        for (int i = 0; i < N; i++) {
            left[i] = values[i] = test_random_float(&random);
        }
        assert_int_equal(travel(left, sent, N, find(values, N, N / 50), (enum dtype)dtype), N / 50);
        for (int i = 0; i < N; i++) {
            assert_true(fabsf(values[i] - sent[i] - left[i]) < 1e-6f);
            assert_true(sent[i] == 0 || fabsf(left[i]) < 1.01f / 254);
        }
    }
    /* Values that are not finite are sent first, and leave no residual. */
    for (int dtype = DTYPE_LARGEST_FLOAT32; dtype <= DTYPE_LARGEST_INT8; dtype++) {
        memcpy(left, values, N * sizeof *left);
        left[777] = dtype == DTYPE_LARGEST_BFLOAT16 ? NAN : INFINITY;
        const struct largest chosen = find(left, N, 1);
        assert_int_equal(travel(left, sent, N, chosen, (enum dtype)dtype), 1);
        assert_true(!isfinite(sent[777]) && left[777] == 0);
    }
    free(values);
    free(left);
    free(sent);
}

/* In one byte up to 127. */
TEST(gaps_are_as_short_as_they_may_be)
{
    static const uint8_t wanted[] = {2, 0, 3, 0, 127, 128, 1};
    static float values[300];
    static uint8_t bytes[LARGEST_ROOM];
    uint16_t places[2];
    values[127] = 1;
    values[127 + 1 + 128] = 2;
    struct largest chosen = find(values, 300, 2);
    const size_t size = largest_pack(bytes, values, 300, &chosen, DTYPE_LARGEST_FLOAT32);
    assert_int_equal(size, sizeof wanted + 2 * sizeof(float));
    assert_memory_equal(bytes, wanted, sizeof wanted);
    assert_true(largest_read_places(places, largest_read_head(bytes), bytes + LARGEST_HEAD, 300));
    assert_int_equal(places[0], 127);
    assert_int_equal(places[1], 256);
}

TEST(all_of_a_piece_may_be_chosen)
{
    static float values[LARGEST_PIECE];
    static const float nothing[LARGEST_PIECE];
    static uint8_t bytes[LARGEST_ROOM];
    for (enum dtype dtype = DTYPE_LARGEST_FLOAT32; dtype <= DTYPE_LARGEST_INT8; dtype++) {
        for (int i = 0; i < LARGEST_PIECE; i++) {
            values[i] = 127; /* exact as an int8, too */
        }
        struct largest chosen = find(values, LARGEST_PIECE, LARGEST_PIECE);
        const size_t size = largest_pack(bytes, values, LARGEST_PIECE, &chosen, dtype);
        assert_int_equal(size, LARGEST_HEAD + LARGEST_PIECE + largest_values_size(dtype, LARGEST_PIECE));
        assert_int_equal(largest_read_head(bytes).count, LARGEST_PIECE);
        assert_memory_equal(values, nothing, sizeof values); /* that is left */
    }
}

/* Gaps that lead out of the piece, are truncated, or are too many. */
TEST(what_makes_no_sense_is_refused)
{
    uint16_t places[8];
    const uint8_t gaps[] = {3, 0x80 | 5, 1, 0};
    assert_true(largest_read_places(places, (struct largest_head){3, 4}, gaps, 139));
    assert_int_equal(places[0], 3);
    assert_int_equal(places[1], 3 + 1 + 133);
    assert_int_equal(places[2], 138);
    assert_false(largest_read_places(places, (struct largest_head){3, 4}, gaps, 138));
    assert_false(largest_read_places(places, (struct largest_head){2, 4}, gaps, 139));
    assert_false(largest_read_places(places, (struct largest_head){4, 4}, gaps, 200));
    assert_false(largest_read_places(places, (struct largest_head){2, 2}, gaps, 200));
    assert_false(largest_read_places(places, (struct largest_head){1, 0}, gaps, 200));
    assert_true(largest_read_places(places, (struct largest_head){0, 0}, gaps, 200));
}

int main(void)
{
    return check_run(NULL, NULL);
}
