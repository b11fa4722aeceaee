/* Pieces of what is told. The teller learns its own words, so that it can't know anything but what listeners do. */
#include "ps/store/told.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ps/store/int8.h"

_Static_assert((int)LARGEST_PIECE == (int)PACKED_FLOATS && sizeof(float) * PACKED_FLOATS < LARGEST_ROOM,
               "a piece as int8 fits, too");

enum dtype told_gradient_dtype(const struct config_cluster *cluster)
{
    static const enum dtype all[] = {
        [WIRE_FLOAT32] = DTYPE_FLOAT32, [WIRE_BFLOAT16] = DTYPE_BFLOAT16, [WIRE_INT8] = DTYPE_INT8};
    static const enum dtype largest[] = {[WIRE_FLOAT32] = DTYPE_LARGEST_FLOAT32,
                                         [WIRE_BFLOAT16] = DTYPE_LARGEST_BFLOAT16,
                                         [WIRE_INT8] = DTYPE_LARGEST_INT8};
    return (cluster->wire_top > 0 && cluster->wire_top < 1 ? largest : all)[cluster->wire_dtype];
}

bool told_is_kept(const struct config_cluster *cluster)
{
    return cluster->issync && dtype_is_packed(told_gradient_dtype(cluster));
}

size_t told_tell(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype)
{
    size_t size = int8_size(n);
    if (dtype == DTYPE_INT8) {
        int8_round(bytes, left, n);
    } else {
        size = largest_pack(bytes, left, n, chosen, dtype);
    }
    const size_t learnt = size > 0 ? told_learn(known, bytes, size, n, dtype) : 0;
    assert(learnt == size);
    return learnt;
}

static void add(float *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] += values[i];
    }
}

static size_t learn_int8(float *known, const uint8_t *bytes, size_t size, size_t n)
{
    float values[PACKED_FLOATS];
    if (size < int8_size(n) || !int8_widen(values, bytes, n)) {
        return 0;
    }
    add(known, values, n);
    return int8_size(n);
}

static size_t learn_largest(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    uint16_t places[PACKED_FLOATS];
    float values[PACKED_FLOATS];
    if (size < LARGEST_HEAD) {
        return 0;
    }
    const struct largest_head head = largest_read_head(bytes);
    if (head.count == 0 || head.count > n) {
        return 0;
    }
    const size_t at = LARGEST_HEAD + (size_t)head.gap_bytes, end = at + largest_values_size(dtype, head.count);
    if (size < end || !largest_read_places(places, head, bytes + LARGEST_HEAD, n) ||
        !largest_read_values(values, bytes + at, head.count, dtype)) {
        return 0;
    }
    for (size_t i = 0; i < head.count; i++) {
        known[places[i]] += values[i];
    }
    return end;
}

size_t told_learn(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    assert(n > 0 && n <= PACKED_FLOATS && dtype_is_packed(dtype));
    return dtype == DTYPE_INT8 ? learn_int8(known, bytes, size, n) : learn_largest(known, bytes, size, n, dtype);
}

/* --- A whole step --- */

void teller_begin(struct teller *teller, const struct config_cluster *cluster, size_t values, float *left)
{
    teller->dtype = told_gradient_dtype(cluster);
    teller->chosen = (size_t)ceil(cluster->wire_top * (double)values);
    teller->left = left;
}

static void subtract(float *restrict left, const float *restrict parameters, const float *restrict known, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        left[i] = parameters[i] - known[i];
    }
}

static bool is_zero(const float *values, size_t n)
{
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        any |= bits << 1;
    }
    return any == 0;
}

/* Where a teller is in its spans. */
struct told_walk {
    struct teller *teller;
    struct largest chosen;
    const struct told_sink *sink;
    float *left, *known; /* of the span */
    size_t first;        /* of the span, in the model */
};

static void tell_piece(struct told_walk *walk, size_t at, size_t n)
{
    struct teller *teller = walk->teller;
    const size_t size = told_tell(teller->piece, walk->left + at, walk->known + at, n, &walk->chosen, teller->dtype);
    if (size > 0 && walk->sink) {
        const struct range range = {walk->first + at, (uint32_t)n};
        walk->sink->piece(walk->sink->context, range, teller->piece, size);
    }
}

/* Floats that did not change are left out where that saves a whole block, which costs more than another range. */
static void tell_int8(struct told_walk *walk, size_t count)
{
    size_t begin = 0, at = 0;
    while (at < count) {
        const size_t n = count - at < INT8_BLOCK ? count - at : INT8_BLOCK;
        const bool rests = is_zero(walk->left + at, n);
        if (at > begin && (rests || at - begin + n > PACKED_FLOATS)) {
            tell_piece(walk, begin, at - begin);
            begin = at;
        }
        at += n;
        begin = rests ? at : begin;
    }
    if (at > begin) {
        tell_piece(walk, begin, at - begin);
    }
}

static void tell_largest(struct told_walk *walk, size_t count)
{
    for (size_t at = 0; at < count; at += PACKED_FLOATS) {
        tell_piece(walk, at, count - at < PACKED_FLOATS ? count - at : PACKED_FLOATS);
    }
}

static struct largest find_largest(const struct teller *teller, size_t floats)
{
    struct largest_search search;
    largest_begin(&search, teller->chosen);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, teller->left, floats);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

void teller_tell(struct teller *teller, const float *parameters, float *known, const struct span *spans, int span_count,
                 const struct told_sink *sink)
{
    struct told_walk walk = {.teller = teller, .sink = sink, .left = teller->left, .known = known};
    size_t floats = 0;
    for (int i = 0; i < span_count; i++) {
        floats += spans[i].count;
    }
    subtract(teller->left, parameters, known, floats);
    if (teller->dtype != DTYPE_INT8) {
        walk.chosen = find_largest(teller, floats);
    }
    for (int i = 0; i < span_count; i++) {
        walk.first = spans[i].first;
        if (teller->dtype == DTYPE_INT8) {
            tell_int8(&walk, spans[i].count);
        } else {
            tell_largest(&walk, spans[i].count);
        }
        walk.left += spans[i].count;
        walk.known += spans[i].count;
    }
}
