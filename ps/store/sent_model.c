/* Pieces of what is sent. The packer applies its own, so that it always has what receivers have. */
#include "ps/store/sent_model.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "ps/store/int8.h"

_Static_assert((int)LARGEST_PIECE == (int)PACKED_FLOATS && sizeof(float) * PACKED_FLOATS < LARGEST_ROOM,
               "a piece as int8 fits, too");

enum dtype sent_model_gradient_dtype(const struct config_cluster *cluster)
{
    static const enum dtype all[] = {
        [WIRE_FLOAT32] = DTYPE_FLOAT32, [WIRE_BFLOAT16] = DTYPE_BFLOAT16, [WIRE_INT8] = DTYPE_INT8};
    static const enum dtype largest[] = {[WIRE_FLOAT32] = DTYPE_LARGEST_FLOAT32,
                                         [WIRE_BFLOAT16] = DTYPE_LARGEST_BFLOAT16,
                                         [WIRE_INT8] = DTYPE_LARGEST_INT8};
    return (cluster->wire_top > 0 && cluster->wire_top < 1 ? largest : all)[cluster->wire_dtype];
}

bool sent_model_is_kept(const struct config_cluster *cluster)
{
    return cluster->issync && dtype_is_packed(sent_model_gradient_dtype(cluster));
}

size_t sent_model_pack(uint8_t *bytes, float *left, float *known, size_t n, struct largest *chosen, enum dtype dtype)
{
    size_t size = int8_size(n);
    if (dtype == DTYPE_INT8) {
        int8_round(bytes, left, n);
    } else {
        size = largest_pack(bytes, left, n, chosen, dtype);
    }
    const size_t applied = size > 0 ? sent_model_apply(known, bytes, size, n, dtype) : 0;
    assert(applied == size);
    return applied;
}

static void add(float *restrict to, const float *restrict values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        to[i] += values[i];
    }
}

static size_t apply_int8(float *known, const uint8_t *bytes, size_t size, size_t n)
{
    float values[PACKED_FLOATS];
    if (size < int8_size(n) || !int8_widen(values, bytes, n)) {
        return 0;
    }
    add(known, values, n);
    return int8_size(n);
}

static size_t apply_largest(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
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

size_t sent_model_apply(float *known, const uint8_t *bytes, size_t size, size_t n, enum dtype dtype)
{
    assert(n > 0 && n <= PACKED_FLOATS && dtype_is_packed(dtype));
    return dtype == DTYPE_INT8 ? apply_int8(known, bytes, size, n) : apply_largest(known, bytes, size, n, dtype);
}

/* --- A whole step --- */

void sent_packer_begin(struct sent_packer *packer, const struct config_cluster *cluster, size_t values, float *left)
{
    packer->dtype = sent_model_gradient_dtype(cluster);
    packer->chosen = (size_t)ceil(cluster->wire_top * (double)values);
    packer->left = left;
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

/* A packer's position in its spans. */
struct packer_walk {
    struct sent_packer *packer;
    struct largest chosen;
    const struct sent_sink *sink;
    float *left, *known; /* of the span */
    size_t first;        /* of the span, in the model */
};

static void pack_piece(struct packer_walk *walk, size_t at, size_t n)
{
    struct sent_packer *packer = walk->packer;
    const size_t size =
        sent_model_pack(packer->piece, walk->left + at, walk->known + at, n, &walk->chosen, packer->dtype);
    if (size > 0 && walk->sink) {
        const struct range range = {walk->first + at, (uint32_t)n};
        walk->sink->piece(walk->sink->context, range, packer->piece, size);
    }
}

/* Unchanged floats are left out if that saves a whole block, which costs more than another range. */
static void pack_int8(struct packer_walk *walk, size_t count)
{
    size_t begin = 0, at = 0;
    while (at < count) {
        const size_t n = count - at < INT8_BLOCK ? count - at : INT8_BLOCK;
        const bool rests = is_zero(walk->left + at, n);
        if (at > begin && (rests || at - begin + n > PACKED_FLOATS)) {
            pack_piece(walk, begin, at - begin);
            begin = at;
        }
        at += n;
        begin = rests ? at : begin;
    }
    if (at > begin) {
        pack_piece(walk, begin, at - begin);
    }
}

static void pack_largest(struct packer_walk *walk, size_t count)
{
    for (size_t at = 0; at < count; at += PACKED_FLOATS) {
        pack_piece(walk, at, count - at < PACKED_FLOATS ? count - at : PACKED_FLOATS);
    }
}

static struct largest find_largest(const struct sent_packer *packer, size_t floats)
{
    struct largest_search search;
    largest_begin(&search, packer->chosen);
    for (int pass = 0; pass < LARGEST_PASSES; pass++) {
        largest_look(&search, packer->left, floats);
        largest_end_pass(&search);
    }
    return largest_found(&search);
}

void sent_packer_pack(struct sent_packer *packer, const float *parameters, float *known, const struct span *spans,
                      int span_count, const struct sent_sink *sink)
{
    struct packer_walk walk = {.packer = packer, .sink = sink, .left = packer->left, .known = known};
    size_t floats = 0;
    for (int i = 0; i < span_count; i++) {
        floats += spans[i].count;
    }
    subtract(packer->left, parameters, known, floats);
    if (packer->dtype != DTYPE_INT8) {
        walk.chosen = find_largest(packer, floats);
    }
    for (int i = 0; i < span_count; i++) {
        walk.first = spans[i].first;
        if (packer->dtype == DTYPE_INT8) {
            pack_int8(&walk, spans[i].count);
        } else {
            pack_largest(&walk, spans[i].count);
        }
        walk.left += spans[i].count;
        walk.known += spans[i].count;
    }
}
